"""A session's cookie opens the API to whoever is signed in with a browser, and to nothing that another page sends."""

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from agent.models import Agent
from conversations.models import Conversation
from nanohost.accounts import keys
from nanohost.accounts.models import ApiKey, AuditEntry
from nanohost.lib.clock import from_now

pytestmark = pytest.mark.django_db

API = "/api/v1/conversations"
TOKEN = "t" * 32


@pytest.fixture
def anna(agent):
    Agent.objects.update(is_public=True)
    return User.objects.create_user("anna", password="a good password")


def browser_of(user, *, opened=True):
    if opened:
        keys.of_browser(user)
    client = Client(enforce_csrf_checks=True)
    client.force_login(user)
    client.cookies["csrftoken"] = TOKEN
    return client


def post(client, path=API, body=None, **headers):
    return client.post(path, body or {}, content_type="application/json", secure=True, headers=headers)


def get(client, path=API, **headers):
    return client.get(path, secure=True, headers=headers)


SENT = {"X-CSRFToken": TOKEN, "Referer": "https://testserver/chat/"}


def test_whoever_is_signed_in_reads_and_writes_what_is_theirs(anna):
    client = browser_of(anna)
    made = post(client, **SENT)
    assert made.status_code == 201
    assert [row["conversationId"] for row in get(client).json()["results"]] == [made.json()["conversationId"]]
    assert Conversation.objects.get().owner == anna
    assert AuditEntry.objects.filter(action="key.made", object_name__startswith="nh_").count() == 1


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-CSRFToken": "u" * 32, "Referer": "https://testserver/chat/"},
        {"X-CSRFToken": TOKEN, "Referer": "https://evil.example/"},
        {"X-CSRFToken": TOKEN, "Origin": "https://evil.example"},
    ],
)
def test_what_another_page_sends_is_refused(anna, headers):
    client = browser_of(anna)
    refused = post(client, **headers)
    assert (refused.status_code, refused.json()["code"]) == (401, "not_authenticated")
    assert not Conversation.objects.exists()


def test_what_is_somebody_else_s_is_as_unknown_as_to_a_key(anna, conversation):
    client = browser_of(anna)
    assert get(client, f"{API}/{conversation.pk}").status_code == 404
    assert get(client).json()["results"] == []
    assert post(client, f"{API}/{conversation.pk}/turns", {"message": "x"}, **SENT).status_code == 404


def test_it_opens_nothing_when_its_key_has_expired(anna):
    client = browser_of(anna)
    ApiKey.objects.filter(owner=anna).update(expires_at=from_now(-1))
    assert get(client).status_code == 401
    assert get(client, "/chat/").status_code == 200
    assert "no longer have access to the chat" in get(client, "/chat/").content.decode()


def test_it_opens_nothing_before_the_chat_was_opened_nor_when_its_key_is_revoked(anna):
    assert get(browser_of(anna, opened=False)).status_code == 401
    client = browser_of(anna)
    assert get(client).status_code == 200
    keys.revoke(ApiKey.objects.get(owner=anna))
    assert get(client).status_code == 401
    assert keys.of_browser(anna).state == "revoked"  # to open the page again makes no other


@pytest.mark.parametrize("ended", ["deactivated", "signed out", "new password"])
def test_it_ends_with_the_session(anna, ended):
    client = browser_of(anna)
    if ended == "deactivated":
        User.objects.update(is_active=False)
    elif ended == "new password":
        anna.set_password("another good one")
        anna.save()
    else:
        client.logout()
    assert get(client).status_code == 401


@pytest.mark.parametrize("cookie", ["", "x", "x" * 32, "x" * 10_000, "'; --", "\x00"])
def test_a_cookie_that_is_no_session_s_opens_nothing(anna, cookie):
    client = Client()
    client.cookies["sessionid"] = cookie
    assert get(client).status_code == 401


def test_a_key_in_the_request_is_what_counts(anna):
    client = browser_of(anna)
    assert get(client, Authorization="Bearer nh_none_sssssssssssssssssss").status_code == 401


def test_its_key_has_the_limits_that_an_admin_sets(anna):
    client = browser_of(anna)
    keys.change(ApiKey.objects.get(owner=anna), scopes=["read"])
    assert post(client, **SENT).json()["code"] == "missing_scope"
    keys.change(ApiKey.objects.get(owner=anna), networks=["192.0.2.0/24"])
    assert get(client).json()["code"] == "address_not_allowed"


def test_what_the_console_lets_somebody_do_the_chat_does_too_while_it_does(anna):
    Agent.objects.update(is_public=False)
    client = browser_of(anna)
    assert (get(client, "/api/v1/approvals").status_code, post(client, **SENT).status_code) == (403, 400)
    anna.is_staff = True
    anna.save()
    allowed = Permission.objects.filter(codename__in=["decide_approval", "view_agent"])
    Permission.objects.get_or_create(
        codename="decide_approval",
        content_type=Permission.objects.get(codename="view_approval").content_type,
        defaults={"name": "x"},
    )
    anna.user_permissions.set(allowed.all())
    assert (get(client, "/api/v1/approvals").status_code, post(client, **SENT).status_code) == (200, 201)
    assert get(client, "/api/v1/keys").status_code == 403
    anna.user_permissions.clear()
    assert get(client, "/api/v1/approvals").status_code == 403


def test_everybody_has_one_such_key(anna):
    row = keys.of_browser(anna)
    assert row.is_of_browser
    assert keys.of_browser(anna) == row
    assert ApiKey.objects.filter(owner=anna).count() == 1
