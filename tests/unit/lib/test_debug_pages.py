"""What DEBUG=true shows when something fails: no secret, and nothing to anybody but this machine."""

import pytest
from django.http import HttpResponse
from django.test import Client, RequestFactory
from django.urls import path

from nanohost.lib.debugging import Handler
from nanohost.lib.redaction import remember

# A request begins by looking after the connection that its thread may have kept.
pytestmark = [pytest.mark.urls(__name__), pytest.mark.django_db]

CANARY = "canary-0123456789abcdef"
KNOWN = 'canary-known-"quoted" & <odd>'  # a secret by its value alone, of no known shape
HERE = {"HTTP_HOST": "localhost:8000", "REMOTE_ADDR": "127.0.0.1"}


class Odd:
    def __repr__(self):
        raise RuntimeError(CANARY)


def fails(request):
    password, api_key, plain = CANARY, CANARY, "a value that is shown"  # noqa: F841 -- seen in the frame
    headers = {
        "Authorization": f"Bearer {CANARY}",
        "other": [("X-Api-Key", CANARY)],
        "url": f"https://u:{CANARY}@host/",
    }
    said, known, odd = f"token: nh_abcd1234_{CANARY}", KNOWN, Odd()  # noqa: F841
    try:
        raise ValueError(f"https://user:{CANARY}@example.org/ {KNOWN}")
    except ValueError as error:
        error.add_note(f"api_key={CANARY}")
        raise LookupError(f"api_key={CANARY} {KNOWN}", plain, headers, said, known) from error


def suspicious(request):
    return HttpResponse(request.get_host())


urlpatterns = [path("fails", fails), path("suspicious", suspicious)]


@pytest.fixture(autouse=True)
def _debug(settings):
    settings.DEBUG = True
    settings.METRICS_TOKEN = CANARY
    settings.PRODUCTION, settings.TRUSTED_PROXIES = False, 0
    settings.ALLOWED_HOSTS = ["localhost", "127.0.0.1", "chat.example.org"]
    settings.DATABASE_URL = f"postgresql://user:{CANARY}@host/name"
    settings.NESTED = {"inner": [{"password": CANARY}, f"https://user:{CANARY}@host/"]}
    remember("KNOWN", KNOWN)


def ask(address="/fails", accept="text/html", method="get", data=None, **extra):
    client = Client(raise_request_exception=False, headers={"Accept": accept})
    client.cookies["sessionid"] = client.cookies["other"] = CANARY
    return getattr(client, method)(address, data or {}, **HERE | extra)


SENT = {"password": CANARY, "api_key": CANARY, "said": f"Bearer {CANARY}", "known": KNOWN}


@pytest.mark.parametrize("accept", ["text/html", "text/plain"])
@pytest.mark.parametrize("method", ["get", "post"])
def test_the_page_of_an_exception_shows_what_failed_and_no_secret(accept, method):
    answer = ask(method=method, accept=accept, data=SENT, HTTP_AUTHORIZATION=f"Bearer {CANARY}", HTTP_X_API_KEY=CANARY)
    shown = answer.content.decode()
    assert answer.status_code == 500
    assert "LookupError" in shown
    assert "fails" in shown
    assert "a value that is shown" in shown
    assert "[redacted]" in shown
    assert CANARY not in shown
    assert "canary" not in shown, shown[shown.index("canary") - 300 : shown.index("canary") + 50]


@pytest.mark.parametrize(
    "stranger",
    [
        {"REMOTE_ADDR": "192.0.2.1"},
        {"HTTP_X_REAL_IP": "192.0.2.1"},
        {"HTTP_VIA": "1.1 proxy"},
        {"SERVER_PROTOCOL": "HTTP/1.0"},
        {"SERVER_PROTOCOL": "HTTP/0.9"},
        {"HTTP_HOST": "chat.example.org"},
    ],
    ids=str,
)
@pytest.mark.parametrize(("address", "status"), [("/fails", 500), ("/none", 404)])
def test_others_get_the_ordinary_page(settings, stranger, address, status):
    asked = {"method": "GET", "path": address, **HERE, **stranger}
    environ = RequestFactory().generic(**asked).environ
    shown, answer = with_handler(environ)
    settings.DEBUG = False
    ordinary, expected = with_handler(environ)
    assert (answer, shown) == (expected, ordinary)
    assert answer.startswith(str(status))
    assert "DEBUG" not in shown
    assert "test_debug_pages" not in shown


def with_handler(environ):
    began = []
    handler = Handler()
    body = b"".join(handler(dict(environ), lambda status, headers: began.append(status)))
    return body.decode(), began[0]


def test_this_machine_is_shown_all_addresses():
    shown, status = with_handler(RequestFactory().get("/none", **HERE).environ)
    assert status.startswith("404")
    assert "test_debug_pages" in shown


@pytest.mark.parametrize("setting", [{"PRODUCTION": True}, {"TRUSTED_PROXIES": 1}])
def test_in_production_and_behind_proxies_nobody_is_of_this_machine(settings, setting):
    for name, value in setting.items():
        setattr(settings, name, value)
    assert b"LookupError" not in ask().content


def test_a_host_that_is_none_of_ours_is_shown_nothing_of_the_settings():
    answer = ask("/suspicious", HTTP_HOST="evil.example")
    assert answer.status_code == 400
    assert b"DisallowedHost" not in answer.content
    assert b"INSTALLED_APPS" not in answer.content
