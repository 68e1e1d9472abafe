"""Adding a colleague: one form, and a link that is good once."""

import re
from datetime import timedelta
from threading import Barrier

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from agent.models import Agent
from nanohost.accounts import invitations
from nanohost.accounts.models import ApiKey, AuditEntry
from nanohost.console.roles import sync_roles
from nanohost.lib.redaction import redact
from tests.support.threads import in_threads

pytestmark = pytest.mark.django_db(transaction=True)

ADD = reverse("colleague")
STRONG = "correct horse battery"


def add(client, **said):
    return client.post(ADD, {"username": "anna", "role": "", **said})


def link_in(answer):
    found = re.search(r'id="link"[^>]*>http://testserver(/chat/join/[^<]+)<', answer.content.decode())
    assert found, answer.content.decode()
    return found[1]


def choose(link, password=STRONG, **options):
    return Client().post(link, {"new_password1": password, "new_password2": password}, **options)


def test_one_form_makes_a_person_a_role_and_a_key_and_the_link_lets_them_in_once(admin_client, client):
    sync_roles()
    answer = add(admin_client, email="anna@example.org", role="operator", has_key="on", agents=["default"])
    link = link_in(answer)
    anna = get_user_model().objects.get(username="anna")
    assert (anna.is_staff, [group.name for group in anna.groups.all()]) == (True, ["operator"])
    (text,) = re.findall(r'id="key"[^>]*>(nh_[\w-]+)<', answer.content.decode())
    key = ApiKey.objects.recognise(text)
    assert (key.owner, key.agent_names) == (anna, ["default"])
    assert "no-store" in answer["Cache-Control"]

    page = client.get(link)
    assert (page.status_code, page["Referrer-Policy"], page["Cache-Control"]) == (200, "same-origin", "no-store")
    assert choose(link, "short").status_code == 400
    entered = choose(link)
    assert (entered.status_code, entered.url) == (302, reverse("admin:index"))
    assert choose(link, "another horse battery").status_code == client.get(link).status_code == 404
    anna.refresh_from_db()
    assert anna.check_password(STRONG)
    told = AuditEntry.objects.filter(object_id=str(anna.pk)).order_by("id").values_list("actor", "action")
    expected = [("user admin", "user.made"), ("user admin", "user.given"), ("user admin", "invitation.made")]
    expected += [("user anna", "invitation.used"), ("user anna", "signed_in")]
    assert [each for each in told if each in expected] == expected


def test_whoever_has_no_role_comes_to_the_chat_and_wrong_input_makes_nothing(admin_client):
    Agent.objects.get(name="default")
    assert choose(link_in(add(admin_client))).url == reverse("chat")
    before = get_user_model().objects.count()
    for said in ({}, {"username": ""}, {"username": "a b"}, {"username": "x", "email": "nowhere"},
                 {"username": "x", "role": "god"}, {"username": "x", "has_key": "on", "agents": ["none"]}):  # fmt: skip
        assert add(admin_client, **said).status_code == 400, said
    assert get_user_model().objects.count() == before


def test_of_two_admins_who_add_the_same_person_at_once_one_is_told(admin_user):
    def adding(name):
        admin = Client()
        admin.force_login(admin_user)
        together = Barrier(2)

        def deed():
            together.wait(30)
            return add(admin, username=name).status_code

        return [deed, deed]

    for number in range(20):
        assert sorted(in_threads(adding(f"anna{number}"))) == [200, 400]
    assert get_user_model().objects.filter(username__startswith="anna").count() == 20


def test_a_link_is_over_after_its_days_and_for_whoever_is_deactivated_or_has_a_password(admin_client, monkeypatch):
    link = link_in(add(admin_client))
    anna = get_user_model().objects.get(username="anna")
    later = timezone.now().replace(tzinfo=None) + timedelta(days=invitations.days(), minutes=1)
    with monkeypatch.context() as patched:
        patched.setattr(invitations.tokens, "_now", lambda: later)
        assert Client().get(link).status_code == 404
    again = link_in(admin_client.post(reverse("colleague_invite", args=[anna.pk])))
    get_user_model().objects.filter(pk=anna.pk).update(is_active=False)
    assert Client().get(again).status_code == 404
    get_user_model().objects.filter(pk=anna.pk).update(is_active=True)
    assert choose(again).status_code == 302
    refused = admin_client.post(reverse("colleague_invite", args=[anna.pk]))
    assert (refused.status_code, "has a password already" in refused.content.decode()) == (400, True)


NO_LINKS = [
    "/chat/join/nh_invite_-/",
    "/chat/join/nonsense/",
    "/chat/join/nh_invite_MQ-x/",
    "/chat/join/nh_invite_OTk5OTk5OTk5OTk5OTk5OTk5OTk5-x/",
    "/chat/join/x/",
]


def test_tokens_cannot_be_tried_and_no_log_has_one(admin_client):
    """Five forms sent to links that are none, and the address waits, as at the sign-in; meanwhile a good one does not
    open."""
    link = link_in(add(admin_client))
    assert redact(f"GET {link}") == "GET /chat/join/[redacted]/"
    wrong = [f"{link[:-2]}x/", *NO_LINKS[:4]]
    assert [choose(each, REMOTE_ADDR="192.0.2.7").status_code for each in wrong] == [404, 404, 404, 404, 429]
    assert Client().get(link, REMOTE_ADDR="192.0.2.7").status_code == 429
    assert Client().get(link, REMOTE_ADDR="192.0.2.8").status_code == 200
    assert Client().get(reverse("admin:login"), REMOTE_ADDR="192.0.2.9").status_code == 200


@pytest.mark.parametrize("method", ["get", "head"])
def test_a_page_that_only_has_links_loaded_locks_nobody_out(admin_client, method):
    """As images of another site do. Nor can a token be guessed: it has 128 bits of a keyed hash."""
    link = link_in(add(admin_client))
    assert re.search(r"-[0-9a-z]+-[0-9a-f]{32}/$", link)
    loaded = [getattr(Client(), method)(each, REMOTE_ADDR="192.0.2.7").status_code for each in NO_LINKS * 2]
    assert set(loaded) == {404}
    assert choose(link, REMOTE_ADDR="192.0.2.7").status_code == 302
