"""Signing in to the console: who fails too often has to wait, and is told how long."""

from datetime import timedelta

import pytest
from axes.models import AccessAttempt
from django.contrib.auth import get_user_model
from django.db.models import F
from django.test import Client
from django.urls import reverse

from nanohost.accounts.models import ApiKey

pytestmark = pytest.mark.django_db

LOGIN = "/admin/login/"
RIGHT = "correct horse battery"


@pytest.fixture(autouse=True)
def boss(db):
    return get_user_model().objects.create_superuser("boss", password=RIGHT)


def sign_in(password, *, address="192.0.2.1", username="boss", **headers):
    return Client(headers=headers).post(LOGIN, {"username": username, "password": password}, REMOTE_ADDR=address)


def fail(times, **options):
    for _ in range(times):
        answer = sign_in("wrong", **options)
    return answer


def test_the_right_password_lets_in():
    """And leads to where a host is set up, of which nothing is yet."""
    answer = sign_in(RIGHT)
    assert (answer.status_code, answer.url) == (302, reverse("first_run"))


def test_after_five_failures_an_address_is_told_how_long_to_wait():
    assert fail(4).status_code == 200
    for answer in (fail(1), sign_in("wrong"), sign_in(RIGHT)):
        assert answer.status_code == 429
        assert "You can try again in 15 minutes." in answer.content.decode()
        assert 880 < int(answer["Retry-After"]) <= 900
        assert "script-src 'self'" in answer["Content-Security-Policy"]


def test_the_time_that_is_told_runs_out_whoever_tries_meanwhile():
    fail(5)
    AccessAttempt.objects.update(attempt_time=F("attempt_time") - timedelta(minutes=12, seconds=30))
    assert "You can try again in 3 minutes." in fail(3).content.decode()
    AccessAttempt.objects.update(attempt_time=F("attempt_time") - timedelta(minutes=3))
    assert sign_in(RIGHT).status_code == 302


def test_names_are_counted_together_and_other_addresses_apart():
    for number in range(5):
        fail(1, username=f"name-{number}")
    assert sign_in(RIGHT).status_code == 429
    assert sign_in(RIGHT, address="192.0.2.2").status_code == 302


def test_whoever_gets_in_begins_anew():
    fail(4)
    assert sign_in(RIGHT).status_code == 302
    assert fail(4).status_code == 200


def test_an_admin_lets_an_address_in_at_once(admin_client):
    fail(5)
    row = AccessAttempt.objects.get()
    assert (
        admin_client.post(reverse("admin:axes_accessattempt_delete", args=[row.pk]), {"post": "yes"}).status_code == 302
    )
    assert sign_in(RIGHT).status_code == 302


def test_behind_a_proxy_what_it_has_seen_counts_and_not_what_was_sent(settings):
    settings.TRUSTED_PROXIES = 1
    for number in range(5):
        fail(1, address="127.0.0.1", **{"X-Forwarded-For": f"198.51.100.{number}, 203.0.113.7"})
    assert sign_in(RIGHT, address="127.0.0.1", **{"X-Forwarded-For": "203.0.113.7"}).status_code == 429
    assert sign_in(RIGHT, address="127.0.0.1", **{"X-Forwarded-For": "203.0.113.8"}).status_code == 302
    assert AccessAttempt.objects.get().ip_address == "203.0.113.7"


@pytest.mark.parametrize(
    ("proxies", "forwarded", "counted"),
    [
        (0, "203.0.113.7", "192.0.2.1"),
        (1, "", "192.0.2.1"),
        (1, "nonsense", "192.0.2.1"),
        (2, "198.51.100.1, 203.0.113.7, 10.0.0.1", "203.0.113.7"),
        (2, "203.0.113.7", "203.0.113.7"),
        (1, "2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
    ],
)
def test_which_address_counts(settings, proxies, forwarded, counted):
    settings.TRUSTED_PROXIES = proxies
    fail(1, **({"X-Forwarded-For": forwarded} if forwarded else {}))
    assert AccessAttempt.objects.get().ip_address == counted


def test_no_password_is_kept():
    fail(1, username="hunter2")
    (row,) = AccessAttempt.objects.values()
    assert "wrong" not in str(row)


def test_the_api_knows_nothing_of_it(client, boss):
    fail(5)
    _, key = ApiKey.objects.issue(owner=boss)
    answer = client.get("/api/v1/conversations", headers={"Authorization": f"Bearer {key}"}, REMOTE_ADDR="192.0.2.1")
    assert answer.status_code == 200
    assert not {"Set-Cookie", "Content-Security-Policy", "Vary"} & answer.headers.keys()
    assert not {"session", "csp_nonce", "_messages"} & vars(answer.wsgi_request).keys()


@pytest.mark.parametrize("https", [False, True])
def test_cookies_are_for_https_where_it_is(settings, https):
    settings.SESSION_COOKIE_SECURE = settings.CSRF_COOKIE_SECURE = https
    cookies = sign_in(RIGHT).cookies
    assert {cookie["secure"] for cookie in cookies.values()} == ({True} if https else {""})
    assert all(cookie["httponly"] and cookie["samesite"] == "Lax" for cookie in cookies.values())
