"""What is shown when something went wrong: in the console's looks and with a way back, whatever failed."""

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db import OperationalError, connection
from django.http import Http404
from django.template import loader
from django.test import Client, RequestFactory, override_settings
from django.urls import include, path

from nanohost import urls
from nanohost.console import problems

pytestmark = pytest.mark.django_db

HOSTILE = "<script>alert(1)</script>"


def _deny(request):
    raise PermissionDenied


def _lack(request):
    raise Http404(HOSTILE)


def _fail(request):
    raise RuntimeError("the password is sesame")


def _lose_database(request):
    raise OperationalError("the database is away; its password is sesame")


urlpatterns = [
    *(path(f"{room}{name}", view) for room in ("admin/", "") for name, view in (("no", _deny), ("none", _lack))),
    *(path(f"{room}boom", _fail) for room in ("admin/", "", "api/")),
    *(path(f"{room}away", _lose_database) for room in ("admin/", "", "api/")),
    path("api/no", _deny),
    path("", include("nanohost.urls")),
]
handler400, handler403, handler404, handler500 = (
    urls.handler400,
    urls.handler403,
    urls.handler404,
    urls.handler500,
)


@pytest.fixture(params=["staff", "anonymous"])
def visitor(request):
    client = Client(raise_request_exception=False, enforce_csrf_checks=True)
    if request.param == "staff":
        client.force_login(User.objects.create_superuser("boss"))
    return client


def is_dressed(answer, status):
    shown = answer.content.decode()
    assert answer.status_code == status
    assert "/static/console/console.css" in shown
    assert "--color-primary-600" in shown
    assert 'href="/admin/"' in shown
    assert 'id="problem"' in shown
    assert "<script>alert" not in shown
    assert "sesame" not in shown
    return shown


@override_settings(ROOT_URLCONF=__name__)
@pytest.mark.parametrize("room", ["/admin/", "/"])
def test_every_problem_is_dressed_and_has_a_way_back(visitor, room):
    is_dressed(visitor.get(f"{room}no"), 403)
    assert "&lt;script&gt;" in is_dressed(visitor.get(f"{room}none"), 404)
    assert "under the request" in is_dressed(visitor.get(f"{room}boom"), 500)
    away = visitor.get(f"{room}away")
    assert "in a moment" in is_dressed(away, 503)
    assert int(away["Retry-After"]) >= 1
    is_dressed(visitor.get("/nonsense/"), 404)
    is_dressed(visitor.get(f"{room}no", headers={"Host": "not ours"}), 400)
    assert "load the page again" in is_dressed(visitor.post("/admin/login/", {"username": "x"}), 403)


def test_whoever_is_signed_in_keeps_the_console_around_it(admin_client):
    shown = is_dressed(admin_client.get("/admin/tools/toolsetting/add/"), 403)
    assert 'id="nav-sidebar"' in shown
    assert "Your role does not include this." in shown
    gone = admin_client.get("/admin/agent/agent/4711/whole/")
    assert "perhaps it was deleted" in is_dressed(gone, 404)


@override_settings(ROOT_URLCONF=__name__)
def test_the_api_s_stay_problem_details(visitor):
    for address, status in (("/api/no", 403), ("/api/nonsense", 404), ("/api/boom", 500), ("/api/away", 503)):
        answer = visitor.get(address)
        assert (answer.status_code, answer["Content-Type"]) == (status, "application/problem+json")
        assert answer.json()["status"] == status
        assert answer.has_header("Retry-After") is (status == 503)


def test_while_the_database_is_away_every_page_is_503(admin_client, caplog, settings):
    """Also those that read their session first, and those that Django REST framework does not answer for."""
    settings.METRICS_TOKEN = "sesame"
    admin_client.raise_request_exception = False
    with connection.execute_wrapper(_refused):
        for address in ("/admin/", "/admin/queue/", "/admin/login/", "/admin/conversations/turn/", "/metrics"):
            answer = admin_client.get(address, headers={"Authorization": "Bearer sesame"})
            assert (answer.status_code, answer.has_header("Retry-After")) == (503, True), address
        assert admin_client.post("/admin/login/", {"username": "x", "password": "y"}).status_code == 503
    assert "Traceback" not in caplog.text


def _refused(*_):
    raise OperationalError("the database is away")


def test_a_failure_s_page_needs_no_database(visitor):
    """Nor do the others: they are then made for a stranger."""
    with connection.execute_wrapper(_refused):
        request = RequestFactory().get("/admin/")
        for answer in (
            problems.server_error(request),
            problems.not_found(request, Http404()),
            problems.forbidden(request, PermissionDenied()),
            problems.csrf_failure(request),
        ):
            is_dressed(answer, answer.status_code)


def test_a_failure_s_page_needs_no_templates(monkeypatch):
    monkeypatch.setattr(loader, "get_template", lambda name: 1 / 0)
    answer = problems.server_error(RequestFactory().get("/"))
    assert answer.status_code == 500
    assert '<a href="/admin/">' in answer.content.decode()
