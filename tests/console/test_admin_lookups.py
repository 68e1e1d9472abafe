"""What lists of the console may be filtered and ordered by: what they show. By anything else, rows could be told apart
by what a hidden column holds, letter by letter."""

import re

import pytest
from django.contrib.admin.utils import flatten_fieldsets
from django.contrib.admin.views.main import ChangeList
from django.contrib.auth.models import User
from django.core.exceptions import FieldDoesNotExist
from django.db.models import F, Field, ForeignKey, Value
from django.db.models.functions import Concat
from django.test import Client, RequestFactory
from django.urls import reverse

from agent.models import Agent
from nanohost.accounts.models import ApiKey
from nanohost.console.roles import VIEWER, sync_roles
from nanohost.console.site import model_pages
from nanohost.lib import redaction
from tests.support import console_client
from tests.support.console_client import client_of, make_rows, page
from tests.support.factories import OwnerFactory

pytestmark = pytest.mark.django_db

# Each tells something of a column that is not shown.
LOOKUPS = ("", "__exact", "__iexact", "__contains", "__icontains", "__startswith", "__istartswith", "__endswith")
LOOKUPS += ("__iendswith", "__regex", "__iregex", "__gt", "__gte", "__lt", "__lte", "__range", "__in", "__isnull")
# These tell a text letter by letter, also one of which a page shows no more than its beginning, or not its secrets.
BISECTING = tuple(each for each in LOOKUPS if each not in ("", "__exact", "__in", "__isnull"))
TEXTS = ("CharField", "TextField", "JSONField", "GenericIPAddressField", "UUIDField")
# What the overview's links look up besides; neither tells of anything hidden.
OWN_LINKS = {
    "scheduler.Schedule": ["next_at__lt"],
    "conversations.Worker": ["queues__contains"],
    "conversations.Message": ["turn__exact"],
}


@pytest.fixture
def request_():
    request = RequestFactory().get("/")
    request.user = OwnerFactory(is_superuser=True, is_staff=True)
    return request


def registered():
    return [pytest.param(own, id=model._meta.label) for model, own in model_pages().items()]


def shown_by(own, request):
    """The columns that pages of a model show or filter by, from what they declare."""
    filters = [each[0] if isinstance(each, tuple) else each for each in own.get_list_filter(request)]
    classes = [each.parameter_name for each in filters if not isinstance(each, str)]
    # Moments and numbers are functions named after their column.
    columns = {getattr(each, "__name__", each) for each in own.get_list_display(request)}
    found = {*columns, *flatten_fieldsets(own.get_fieldsets(request)), *classes}
    found |= {*own.get_search_fields(request), *(each for each in filters if isinstance(each, str))}
    found |= {own.model._meta.pk.name, own.date_hierarchy} - {None}
    return found - ({"password"} if own.model is User else set())


def columns(model):
    return [each for each in model._meta.get_fields() if isinstance(each, Field)]


@pytest.mark.parametrize("own", registered())
def test_what_no_page_shows_is_not_looked_up(own, request_):
    shown = shown_by(own, request_)
    for column in columns(own.model):
        for name in {column.name, column.attname}:
            tried = {each for each in LOOKUPS if f"{name}{each}" not in OWN_LINKS.get(own.model._meta.label, ())}
            allowed = {each for each in tried if own.lookup_allowed(f"{name}{each}", "x", request_)}
            if not {column.name, column.attname} & shown:
                assert not allowed, (name, allowed)
            elif column.get_internal_type() in TEXTS:
                assert not allowed & set(BISECTING), (name, allowed)


@pytest.mark.parametrize("own", registered())
def test_nothing_is_looked_up_through_a_relation_but_the_key_of_what_is_shown(own, request_):
    for relation in own.model._meta.get_fields():
        if not relation.related_model:
            continue
        key = relation.related_model._meta.pk.name
        for column in columns(relation.related_model):
            for each in LOOKUPS:
                lookup = f"{relation.name}__{column.name}{each}"
                if own.lookup_allowed(lookup, "1", request_):
                    assert (column.name, each) == (key, "__exact"), lookup
                assert not own.lookup_allowed(f"{relation.name}__{lookup}", "1", request_)


@pytest.mark.parametrize("own", registered())
def test_what_is_shown_can_be_looked_up_as_the_console_s_own_links_do(own, request_):
    names = {each.name for each in columns(own.model)} & shown_by(own, request_)
    assert names
    for name in names:
        assert own.lookup_allowed(f"{name}__exact", "1", request_), name
        if own.model._meta.get_field(name).get_internal_type() in ("DateTimeField", "IntegerField"):
            assert own.lookup_allowed(f"{name}__gte", "1", request_), name


@pytest.mark.parametrize("own", registered())
def test_every_filter_of_a_list_works(own, request_):
    make_rows(1)

    def listed(query):
        request = RequestFactory().get(f"/{query}")
        request.user = request_.user
        changes = own.get_changelist_instance(request)
        # What a page reads: its rows, and what each filter offers. A filter that the list does not know raises.
        list(changes.result_list)
        return [choice["query_string"] for spec in changes.filter_specs for choice in spec.choices(changes)]

    there_are = listed("")
    for link in dict.fromkeys(there_are):
        assert len(listed(link)) == len(there_are), link


@pytest.mark.parametrize("own", registered())
def test_a_list_is_ordered_by_what_it_shows(own, request_):
    listed, shown = ChangeList.get_ordering_field, shown_by(own, request_)
    changes = own.get_changelist_instance(request_)
    for column in own.get_list_display(request_):
        ordering = listed(changes, column)
        if ordering is None:
            continue
        assert str(ordering).lstrip("-") in shown, column
        try:
            field = own.model._meta.get_field(ordering)
        except FieldDoesNotExist:
            continue
        if isinstance(field, ForeignKey):  # which orders by what its rows are ordered by
            theirs = model_pages().get(field.related_model)
            for name in field.related_model._meta.ordering:
                assert theirs
                assert name.lstrip("-") in shown_by(theirs, request_), (column, name)


# --- by HTTP, as somebody who may only look ----------------------------------------------------------------------


@pytest.fixture
def viewer(db):
    sync_roles()
    return client_of(VIEWER)


@pytest.mark.parametrize("lookup", ["contains", "startswith", "regex", "iexact", "exact", "isnull", "gt", "in"])
def test_a_viewer_learns_no_hidden_argument(viewer, lookup):
    asked = {f"private_arguments__{lookup}": "1"}
    assert viewer.get(page("tools_toolcall"), asked).status_code == 400
    assert viewer.get(page("tools_toolcall"), {**asked, "e": "1"}).status_code == 400


def test_a_viewer_learns_no_digest_and_no_password(viewer):
    row, _ = ApiKey.objects.issue(owner=OwnerFactory(password="pbkdf2_sha256$1$x$y"))
    for name, lookup in [
        ("accounts_apikey", "digest__startswith"),
        ("accounts_apikey", "owner__password__startswith"),
        ("auth_user", "password__startswith"),
        ("auth_user", "api_keys__digest__startswith"),
        ("conversations_turn", "conversation__owner__password__startswith"),
        ("conversations_message", "turn__owner__password__startswith"),
        ("auth_group", "user__password__startswith"),
    ]:
        value = row.digest[0] if "digest" in lookup else "pbkdf2"
        assert viewer.get(page(name), {lookup: value}).status_code == 400, (name, lookup)


def test_an_action_on_all_rows_is_not_narrowed_by_what_is_hidden(viewer, admin_client):
    """Its count, or what it did, would tell."""
    row, _ = ApiKey.objects.issue(owner=OwnerFactory())
    everything = {"action": "revoke", "_selected_action": [row.pk], "select_across": "1"}
    answer = admin_client.post(f"{page('accounts_apikey')}?digest__startswith={row.digest[0]}", everything)
    assert answer.status_code == 400
    row.refresh_from_db()
    assert row.revoked_at is None


def test_counts_beside_filters_are_not_narrowed_by_what_is_hidden(viewer):
    answer = viewer.get(page("tools_toolcall"), {"_facets": "True", "private_arguments__contains": "hunter2"})
    assert answer.status_code == 400


def test_a_list_that_grows_without_end_counts_nothing_beside_its_filters(viewer):
    answer = viewer.get(page("tools_toolcall"), {"_facets": "True"})
    assert (answer.status_code, answer.context["cl"].add_facets) == (200, False)


# Found by their names, which are no place for secrets.
FOUND_BY_NAME = ["conversations.Worker", "conversations.ReplaySet", "tools.ToolSetting", "tools.CustomTool"]
SECRET = "a-secret-that-a-tool-declares"


@pytest.fixture
def secret_everywhere(own_secrets, monkeypatch):
    """It stands in each text that people, models and clients write."""
    redaction.remember("A_TOOL_S", SECRET)
    monkeypatch.setattr(console_client, "HOSTILE", f"x {SECRET}")  # 32 characters are the least there is room for
    console_client.make_a_row_of_each()
    User.objects.update(username=Concat(Value("user "), F("pk")))


def test_no_page_shows_a_viewer_what_is_masked_anywhere(viewer, secret_everywhere):
    masked = 0
    for each in console_client.pages():
        answer = console_client.get(viewer, each)
        # The key of a row stands in its address.
        text = re.sub(r' (?:href|value|action)="[^"]*"', "", answer.content.decode())
        assert SECRET not in text, str(each)
        masked += "[redacted]" in text
    assert masked > 50


def test_no_search_finds_what_is_masked(viewer, secret_everywhere):
    """A count of rows would tell, letter by letter."""
    searched = [own for own in model_pages().values() if own.search_fields]
    assert len(searched) > 15
    for own in searched:
        address = page(f"{own.opts.app_label}_{own.opts.model_name}")
        counts = [
            viewer.get(address, {"q": part}).context["cl"].result_count for part in (SECRET[2:8], SECRET[:-1], SECRET)
        ]
        assert not any(counts) or own.model._meta.label in FOUND_BY_NAME, own


def test_words_of_a_conversation_are_found_but_for_those_that_are_masked(viewer, conversation, say, own_secrets):
    redaction.remember("A_TOOL_S", SECRET)
    say(f"my key is {SECRET}")
    say("a secret recipe")
    messages = page("conversations_message")

    def found(words):
        asked = {"conversation__exact": conversation.pk, "q": words}
        return viewer.get(messages, asked).context["cl"].result_count

    assert [found(words) for words in ("KEY", "secret", "a-secret", "my tool", "")] == [1, 1, 0, 0, 2]


def test_whoever_may_change_a_text_has_it_as_it_is_and_finds_it(admin_client, own_secrets):
    redaction.remember("A_TOOL_S", SECRET)
    agent = Agent.objects.create(name="keeper", system_prompt=f"You know {SECRET}.")
    assert f"You know {SECRET}." in admin_client.get(page("agent_agent", "change", agent.pk)).content.decode()
    assert admin_client.get(page("agent_agent"), {"q": SECRET[2:8]}).context["cl"].result_count == 1


def test_an_ordinary_word_that_is_a_secret_breaks_no_page(client, own_secrets):
    before = client.get(reverse("admin:login")).content.decode()
    for word in ("password", "username", "console", "static", "nanohost"):
        redaction.remember("NANOHOST_ADMIN_PASSWORD", word)
    shown = client.get(reverse("admin:login")).content.decode()
    assert re.findall(' (?:name|href|src)="[^"]*"', shown) == re.findall(' (?:name|href|src)="[^"]*"', before)
    assert "[redacted]" in shown


def test_what_people_read_of_a_tag_is_masked_and_the_rest_left(own_secrets):
    redaction.remember("A_TOOL_S", SECRET)
    page = f'<a title="x {SECRET}" href="?q={SECRET}">{SECRET}</a> <b alt="{SECRET}">{SECRET} {SECRET}</b>{SECRET}'
    told = redaction.redact_known_html(page)
    assert told == page.replace(SECRET, "[redacted]").replace("?q=[redacted]", f"?q={SECRET}")


def test_a_value_that_makes_no_sense_leads_to_the_whole_list(viewer):
    answer = viewer.get(page("tools_toolcall"), {"created_at__gte": "soon"})
    assert (answer.status_code, answer.url) == (302, f"{page('tools_toolcall')}?e=1")
    assert viewer.get(answer.url).context["cl"].queryset.query.where.children == []
    assert b"Traceback" not in viewer.get(page("tools_toolcall"), {"created_at__gte": "soon", "e": "1"}).content


def test_choices_for_a_form_are_searched_by_what_is_shown_to_those_who_may_see_them(viewer):
    """The address that fills boxes of choices: it knows each relation between models, whatever the pages ask."""
    OwnerFactory(username="anna", password="pbkdf2_sha256$1$x$y")
    sources = [
        {"app_label": model._meta.app_label, "model_name": model._meta.model_name, "field_name": field.name}
        for model in model_pages()
        for field in columns(model)
        if isinstance(field, ForeignKey) and field.related_model is User
    ]
    assert sources
    nobody = Client()
    nobody.force_login(OwnerFactory(username="of no group", is_staff=True))
    for source in sources:
        asked = {**source, "term": "pbkdf2"}
        assert nobody.get(reverse("admin:autocomplete"), asked).status_code == 403
        assert viewer.get(reverse("admin:autocomplete"), asked).json()["results"] == []
        found = viewer.get(reverse("admin:autocomplete"), {**source, "term": "anna"})
        assert [each["text"] for each in found.json()["results"]] == ["anna"]
