"""Who may do what in the console: each page and each action there is, tried by each role."""

import re

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.db import connection, transaction
from django.test import RequestFactory
from django.test.utils import CaptureQueriesContext
from django.urls import URLResolver, get_resolver

from nanohost.accounts.models import ApiKey
from nanohost.console import attention
from nanohost.console.roles import ADMIN, OPERATOR, ROLES, VIEWER, sync_roles
from nanohost.console.site import model_pages
from nanohost.lib.admin import ACTIONS
from tests.support.console_client import (
    ANONYMOUS,
    NOBODY,
    STRANGER,
    Page,
    client_of,
    get,
    make_a_row_of_each,
    member,
    page,
    pages,
)
from tests.support.factories import OwnerFactory
from tests.support.tables import rows_of_all_tables
from tools.models import ToolCall, ToolSetting

# Of these rows some are deleted, but not the one that is tried.
KEPT = {"django_celery_beat.periodictask delete"}

# Walks over all pages, which test_console_pages.py opens on both.
embedded = pytest.mark.embedded(reason="who may see a page is decided before a row is read")

EVERYBODY = (ANONYMOUS, STRANGER, NOBODY, *ROLES)

# Pages that belong to no rows: to whoever is staff.
OF_ADMINS = {"first_run", "colleague"}
OF_STAFF = {"find", "index", "password_change", "jsi18n", "search"}


@pytest.fixture(scope="module")
def answers(django_db_setup, django_db_blocker):
    """What each role gets on each page: status, by role and page; and what the page says of itself to an admin."""
    with django_db_blocker.unblock(), transaction.atomic():
        make_a_row_of_each()
        sync_roles()
        ToolCall.objects.update(private_arguments="only-the-tool-may-see")
        owner = User.objects.first()
        owner.set_password("hunter2")
        owner.save()
        found = {"secrets": ["only-the-tool-may-see", owner.password.split("$")[-1], ApiKey.objects.first().digest]}
        there_are = list(pages())
        for role in EVERYBODY:
            client = client_of(role)
            found[role] = {each: get(client, each) for each in there_are}
        transaction.set_rollback(True)
    return found


def expected(role: str, shown: Page) -> int:
    if role in (ANONYMOUS, STRANGER):
        return 302
    if shown.view in OF_STAFF:
        return 200
    if role == NOBODY:
        return 404 if shown.view.startswith("app_list") else 403  # an app of which one may see nothing is not there
    if shown.view == "queue_intake":  # it asks whether to pause
        return 200 if role in (OPERATOR, ADMIN) else 403
    if shown.view in OF_ADMINS:
        return 200 if role == ADMIN else 403
    if shown.view == "history":  # the audit log's list, of this object alone
        return 302
    if shown.model is None or shown.view in ("changelist", "change") or shown.view.startswith("read "):
        return 200
    return 200 if role == ADMIN and not is_forbidden(shown) else 403


def is_forbidden(shown: Page) -> bool:
    """Whether nobody adds or deletes such rows by hand, whatever the role."""
    request = RequestFactory().get("/")
    request.user = OwnerFactory.build(is_superuser=True)
    own = model_pages()[shown.model]
    if shown.view == "add":
        return not own.has_add_permission(request)
    return shown.view == "delete" and (str(shown) in KEPT or not own.has_delete_permission(request))


@embedded
@pytest.mark.parametrize("role", EVERYBODY)
def test_each_page_opens_for_whom_it_is_for_and_nobody_else(answers, role):
    assert len(answers[role]) > 100
    wrong = [
        (str(shown), answer.status_code, expected(role, shown))
        for shown, answer in answers[role].items()
        if answer.status_code != expected(role, shown)
    ]
    assert not wrong
    if role == ANONYMOUS:
        assert all(answer.url.startswith("/admin/login/") for answer in answers[role].values())


@pytest.fixture
def rows(db):
    make_a_row_of_each()
    sync_roles()


@embedded
@pytest.mark.parametrize("role", [VIEWER, OPERATOR])
def test_neither_viewers_nor_operators_change_a_row_by_its_page(rows, role):
    client = client_of(role)
    for shown in list(pages()):
        if shown.model and shown.view in ("add", "change", "delete", "password"):
            assert client.post(shown.address, {"post": "yes"}).status_code == 403, str(shown)


@pytest.mark.parametrize("role", ROLES)
def test_the_actions_a_role_is_offered(rows, role):
    request = RequestFactory().get("/")
    request.user = member(role)
    offered = set()
    for own in model_pages().values():
        for name, (function, _, _) in own.get_actions(request).items():
            # One that asks for nothing could be done by whoever sees the page.
            asked = set(function.allowed_permissions)
            assert asked, (own, name)
            acts = {*ACTIONS, "cancel_turn", "requeue_turn"}  # the last two: in the list of conversations
            allowed = {VIEWER: {"view"}, OPERATOR: {"view", *acts}}.get(role)
            assert allowed is None or asked <= allowed, (own, name, asked)
            offered |= asked
    assert (
        offered
        >= {
            VIEWER: set(),
            OPERATOR: {"toggle", "pause", "revoke", "requeue", "cancel", "fail"},
            ADMIN: {"delete", "toggle"},
        }[role]
    )


@pytest.mark.parametrize(("role", "acts"), [(VIEWER, False), (OPERATOR, True), (ADMIN, True)])
def test_an_operator_acts_and_a_viewer_does_not(rows, role, acts):
    client, tool = client_of(role), ToolSetting.objects.first()
    key = ApiKey.objects.first()
    assert (tool.enabled, key.revoked_at) == (True, None)
    client.post(page("tools_toolsetting"), {"action": "disable", "_selected_action": [tool.pk]})
    client.post(page("accounts_apikey"), {"action": "revoke", "_selected_action": [key.pk]})
    tool.refresh_from_db()
    key.refresh_from_db()
    assert (not tool.enabled, key.revoked_at is not None) == (acts, acts)


@embedded
@pytest.mark.parametrize("role", ROLES)
def test_no_role_sees_a_secret(answers, role):
    for shown, answer in answers[role].items():
        text = answer.content.decode()
        assert not [secret for secret in answers["secrets"] if secret in text], str(shown)


@pytest.mark.django_db
def test_roles_are_mended_and_learn_of_what_is_new():
    sync_roles()
    viewer = Group.objects.get(name=VIEWER)
    viewer.permissions.add(Permission.objects.get(codename="delete_user"))
    viewer.permissions.remove(Permission.objects.get(codename="view_turn"))
    sync_roles()
    assert set(viewer.permissions.values_list("codename", flat=True)) == {
        f"view_{model._meta.model_name}" for model in model_pages()
    }
    assert Group.objects.count() == 3


def test_members_of_other_groups_are_left_alone(rows):
    own = Group.objects.create(name="night shift")
    own.permissions.add(Permission.objects.get(codename="view_turn"))
    sync_roles()
    assert own.permissions.count() == 1


# What is a person's own, whatever their role.
OWN = {"admin/login/", "admin/logout/", "admin/password_change/"}
# Counted when somebody looks, and kept of who is signed in.
COUNTED = {"console_hour", "console_total", "console_use", "django_session"}
AUDIT = {"accounts_auditentry", "accounts_unsealedentry"}
# Every word that a form of the console knows for what is to be done.
SAID = {"post": "yes", "decision": "approve", "do": "erase", "confirm": "yes", "reason": "x", "arguments": "{}"}


def routes_of(patterns, before=""):
    """Every address there is, as Django has it."""
    for each in patterns:
        route = before + str(each.pattern).removeprefix("^").removesuffix("$").removesuffix("\\Z")
        if isinstance(each, URLResolver):
            yield from routes_of(each.url_patterns, route)
        else:
            yield route


def place_of(model):
    return f"admin/{model._meta.app_label}/{model._meta.model_name}/"


def addresses_of(route):
    """The route, with the key of a row of its model, or each condition, where it has a gap."""
    model = next((each for each in model_pages() if route.startswith(place_of(each))), None)
    keys = (
        attention.CONDITIONS
        if route.startswith("admin/attention/<")
        else [model._default_manager.first().pk if model else 1]
    )
    for key in keys:
        number = key if isinstance(key, int) else 1
        yield "/" + re.sub("<[^>]*>", str(key), re.sub("<int:[^>]*>", str(number), route))


def forms_of(address):
    """What is sent there: to a list, each of its actions, on all of its rows."""
    listed = next((own for model, own in model_pages().items() if address == f"/{place_of(model)}"), None)
    if listed is None:
        return [SAID | {"action": "resume", "name": "x"}]
    chosen = [str(each.pk) for each in listed.model._default_manager.all()]
    return [SAID | {"action": name, "_selected_action": chosen} for _, name, _ in listed._get_base_actions()]


def everything():
    return {table: rows for table, rows in rows_of_all_tables() if table not in COUNTED}


@embedded
def test_nothing_that_a_viewer_sends_anywhere_changes_a_row(rows):
    client = client_of(VIEWER)
    routes = [each for each in routes_of(get_resolver().url_patterns) if each.startswith("admin/") and each not in OWN]
    assert len(routes) > 200
    before, changed = everything(), []
    for address in (each for route in routes for each in addresses_of(route)):
        for form in forms_of(address):
            assert client.post(address, form).status_code < 500, address
            if (after := everything()) != before:
                tables = {table for table in after if after[table] != before[table]}
                if not ("/export." in address and tables <= AUDIT):  # what somebody has read in a file is told there
                    changed.append(f"{address} {form['action']}: {', '.join(sorted(tables))}")
                before = after
    assert not changed, "\n".join(changed)


@pytest.mark.django_db
def test_roles_are_made_without_a_question_for_each_permission():
    Group.objects.all().delete()
    with CaptureQueriesContext(connection) as asked:
        sync_roles()
    assert Permission.objects.count() > 100
    of_kinds = [query for query in asked.captured_queries if '"django_content_type"."id" =' in query["sql"]]
    assert len([query for query in of_kinds if "JOIN" not in query["sql"]]) < 5
