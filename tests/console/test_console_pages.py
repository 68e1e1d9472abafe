"""What the pages of the console load and run: nothing from another host, and no script that stands in a page."""

import hashlib
import re
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path

import pytest
import unfold
from django.apps import apps
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.contrib.staticfiles import finders
from django.db import transaction
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from conversations.models import Worker
from nanohost.console import navigation
from nanohost.console.site import model_pages
from tests.support.console_client import get, make_a_row_of_each, pages


def a_worker(*, provider, name="worker-1", queues="turns"):
    """One that answers, by this provider; for an hour, since there are many pages."""
    until = timezone.now() + timedelta(hours=1)
    fields = {"queues": queues, "provider": provider}
    Worker.objects.create(name=name, version="0", turns_most=1, heartbeat_at=until, **fields)


NAMED = "gpt-that-pages-name"


def name_a_model_everywhere():
    """In the first row of each kind that names one."""
    for label in ("agent", "conversations", "console"):
        for rows in apps.get_app_config(label).get_models():
            if "model" in [field.name for field in rows._meta.fields]:
                first = rows._default_manager.first()
                rows._default_manager.filter(pk=first and first.pk).update(model=NAMED)


class Reader(HTMLParser):
    """Collects a page's tags with their attributes, and what stands in its scripts and styles."""

    def __init__(self, content):
        super().__init__()
        self.tags, self.inline, self._in = [], [], None
        self.feed(content)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self._in = tag if tag in ("script", "style") else None

    def handle_endtag(self, tag):
        self._in = None

    def handle_data(self, data):
        if self._in and data.strip():
            self.inline.append((self._in, self.tags[-1][1], data))


@pytest.fixture(scope="module")
def everything(django_db_setup, django_db_blocker):
    """Each page that an admin gets, and what those see who are not let in."""
    with django_db_blocker.unblock(), transaction.atomic():
        make_a_row_of_each()
        name_a_model_everywhere()
        a_worker(provider="mock")
        client = Client()
        client.force_login(get_user_model().objects.create_superuser("boss"))
        shown = {str(page): get(client, page) for page in pages()}
        delete = {"action": "delete_selected", "_selected_action": [Group.objects.get().pk]}
        shown["action"] = client.post(reverse("admin:auth_group_changelist"), delete)
        client.logout()
        shown["login"] = client.get(reverse("admin:login"))
        shown["wrong password"] = client.post(reverse("admin:login"), {"username": "x", "password": "x"})
        transaction.set_rollback(True)
    return shown


@pytest.fixture(scope="module")
def read(everything):
    """Those among them that are HTML."""
    pages = {name: page for name, page in everything.items() if page.content.strip().startswith(b"<!DOCTYPE html>")}
    assert len(pages) > 60
    return {name: Reader(page.content.decode()) for name, page in pages.items()}


def test_every_page_has_a_policy_that_lets_no_inline_script_run(everything):
    for name, page in everything.items():
        policy = dict(part.strip().split(" ", 1) for part in page["Content-Security-Policy"].split(";"))
        assert policy["script-src"] == "'self'", name
        assert policy["default-src"] == "'self'"
        assert policy["object-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
        assert "unsafe-eval" not in page["Content-Security-Policy"]


def test_no_page_has_a_script_of_its_own_or_an_event_handler(read):
    for name, page in read.items():
        assert [inline for inline in page.inline if inline[0] == "script"] == [], name
        for tag, attributes in page.tags:
            assert not [each for each in attributes if each.startswith("on")], (name, tag, attributes)
            assert not (attributes.get("href") or "").startswith("javascript"), name


def test_the_one_style_in_a_page_has_the_nonce_of_its_answer(everything, read):
    nonces = set()
    for name, page in read.items():
        ((_, attributes, _),) = [inline for inline in page.inline if inline[0] == "style"]
        assert f"'nonce-{attributes['nonce']}'" in everything[name]["Content-Security-Policy"], name
        nonces.add(attributes["nonce"])
    assert len(nonces) == len(read)


def test_nothing_is_loaded_from_another_host(read):
    for name, page in read.items():
        for tag, attributes in page.tags:
            for attribute in ("src", "href", "action", "srcset", "data", "poster"):
                address = attributes.get(attribute) or ""
                ours = address.startswith(("/", "?", "#", "data:")) or not re.match("[a-z]+:", address)
                assert ours, (name, tag, address)
                assert not address.startswith("//"), (name, tag, address)
                assert tag == "a" or not address.startswith("/static/") or finders.find(address[8:]), (name, address)


def test_no_style_or_script_of_ours_names_another_host(read):
    loaded = {attributes.get("src") or attributes.get("href") for page in read.values() for _, attributes in page.tags}
    for address in loaded:
        if address and address.startswith("/static/") and address.endswith((".css", ".js")):
            text = Path(finders.find(address[8:])).read_text()
            assert not re.search(r"(?:url\(|@import |fetch\(|import\()[\"']?(?:https?:)?//", text), address


def test_every_expression_can_be_read_by_the_build_of_alpine_that_evaluates_nothing(read):
    """It knows no globals, one expression at a time, and no functions; what pages name is in console.js."""
    for name, page in read.items():
        for tag, attributes in page.tags:
            for attribute, expression in attributes.items():
                if attribute.startswith(("x-", "@", ":")) and expression and tag != "template":
                    words = re.sub(r"'[^']*'", "''", expression).strip().rstrip(";")
                    assert not re.search(r";|=>|`|\b(localStorage|document|function|JSON|Alpine)\b", words), (
                        name,
                        words,
                    )


# Of the theme's templates that ours replace. Changed with an upgrade? Compare, carry over, and write the new one here.
REPLACED = {
    "unfold/layouts/skeleton.html": "66af9f0bb45f98ba",
    "unfold/helpers/header.html": "d30d2ed9f06b45f3",
    "unfold/helpers/welcomemsg.html": "e8eab02522ba2319",
    "admin/index.html": "9fdb849b7da18ccd",
}


@pytest.mark.parametrize("name", REPLACED)
def test_the_theme_s_templates_that_ours_replace_are_those_they_were_made_of(name):
    theirs = Path(unfold.__file__).parent / "templates" / name
    assert hashlib.sha256(theirs.read_bytes()).hexdigest()[:16] == REPLACED[name]


SCRIPTED = "A scripted model answers"


def is_told(page):
    return 'id="header-inner"' in page.content.decode()


def test_while_the_scripted_model_answers_every_page_says_so(everything):
    pages = {name: page for name, page in everything.items() if is_told(page)}
    assert len(pages) > 100
    assert [name for name, page in pages.items() if SCRIPTED not in page.content.decode()] == []


def test_no_page_that_names_a_model_goes_without_it(everything, read):
    """Whatever template it has: files that are exported and what programs read are no pages."""
    naming = {name: everything[name].content.decode() for name in read if NAMED in everything[name].content.decode()}
    assert {"agent.agent changelist", "conversations.turn change", "console usage"} <= naming.keys()
    assert [name for name, text in naming.items() if SCRIPTED not in text] == []


@pytest.mark.django_db
def test_while_it_answers_some_turns_that_is_said(admin_client):
    a_worker(provider="openai")
    a_worker(name="toolbox", queues="tools", provider="mock")
    assert SCRIPTED not in admin_client.get("/admin/queue/").content.decode()
    a_worker(name="worker-2", provider="mock")
    assert "A scripted model answers some turns" in admin_client.get("/admin/queue/").content.decode()
    Worker.objects.filter(provider="openai").delete()
    assert "A scripted model answers</strong>" in admin_client.get("/admin/queue/").content.decode()


@pytest.mark.django_db
def test_while_another_answers_no_page_says_so(admin_client):
    """A page of each kind: each has its template."""
    make_a_row_of_each()
    a_worker(provider="openai")
    kinds = {page.view: page for page in pages()}
    shown = {name: page for name, page in ((kind, get(admin_client, kinds[kind])) for kind in kinds) if is_told(page)}
    assert len(shown) > 15
    assert [name for name, page in shown.items() if SCRIPTED in page.content.decode()] == []


def test_ten_doors_stand_at_the_side_in_the_order_of_people_s_work(rf, admin_user):
    request = rf.get("/")
    request.user = admin_user
    ((shown,),) = [[group["items"]] for group in navigation.groups(request)]
    doors = ["Overview", "Queue", "Conversations", "Approvals", "Agents", "Tools", "Schedules", "Usage", "Audit"]
    assert [item["title"] for item in shown] == [*doors, "Settings"]
    assert len({item["icon"] for item in shown}) == len(shown)


def test_every_list_stands_behind_a_door_that_names_itself_on_its_page(admin_client):
    """And so do the pages of their rows; whatever has no door of its own is on the page of settings."""
    make_a_row_of_each()
    settings = admin_client.get(reverse("settings")).content.decode()
    for page in pages():
        if page.view not in ("changelist", "change"):
            continue
        answer = get(admin_client, page)
        trail = re.findall(r'class="trail">([^<]*)<', answer.content.decode())
        assert len(trail) == len(set(trail)), (page, trail)
        ((side,),) = [[group["items"]] for group in answer.context["sidebar_navigation"]]
        assert [item["title"] for item in side if item["active"]] == trail[:1], (page, trail)
        if page.view == "changelist" and trail[0] == navigation.SETTINGS:
            assert page.address in settings, page


# Of these there are rows from the first start on; and tables of the scheduler's, which stand behind its jobs.
NEVER_EMPTY = {"agent", "agentversion", "toolsetting"}
OF_THE_SCHEDULER = {"periodictask", "clockedschedule", "crontabschedule", "intervalschedule", "solarschedule"}


def test_an_empty_list_says_what_would_stand_there():
    silent = {model._meta.model_name for model, page in model_pages().items() if not getattr(page, "nothing_yet", "")}
    assert silent == NEVER_EMPTY | OF_THE_SCHEDULER


def test_a_list_counts_results_where_something_was_looked_for(admin_client):
    make_a_row_of_each()
    for address, counts in (("", False), ("?q=words", True), ("?status__exact=failed", True)):
        page = admin_client.get(f"/admin/conversations/turn/{address}").content.decode()
        assert ("Show all" in page.split("</h1>")[0]) is counts, address
