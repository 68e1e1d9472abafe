"""The search over everything: finds what it names, for those who may see it, in as many queries whatever there is."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from agent.models import Agent
from nanohost.accounts.models import ApiKey
from nanohost.console.roles import ADMIN, OPERATOR, VIEWER, sync_roles
from tests.support.console_client import NOBODY, client_of, page
from tests.support.factories import OwnerFactory

pytestmark = pytest.mark.django_db


def find(client, typed):
    return client.get(reverse("find"), {"q": typed}).content.decode()


@pytest.fixture
def viewer():
    sync_roles()
    return client_of(VIEWER)


def test_each_kind_is_found_by_what_names_it(viewer, say, owner):
    turn, (key, _) = say("Shall we dance?"), ApiKey.objects.issue(owner=owner)
    for typed in (str(turn.pk), turn.pk.hex[:20], turn.request_id):
        assert page("conversations_turn", "change", turn.pk) in find(viewer, typed)
    assert page("conversations_conversation", "change", turn.conversation_id) in find(viewer, str(turn.conversation_id))
    assert page("accounts_apikey", "change", key.pk) in find(viewer, key.prefix)
    assert page("auth_user", "change", owner.pk) in find(viewer, owner.username)
    assert page("agent_agent", "change", turn.conversation.agent_id) in find(viewer, "default")
    assert page("tools_toolcall") in find(viewer, "calls")


def test_what_was_said_is_found(viewer, conversation, fill):
    fill(3, words="Remember umbrella")
    assert page("conversations_conversation", "transcript", conversation.pk) in find(viewer, "umbrel")


def test_whoever_may_see_nothing_finds_nothing(viewer, say, owner):
    turn, client = say("Shall we dance?"), client_of(NOBODY)
    for typed in (str(turn.pk), owner.username, "dance", "default"):
        assert "href" not in find(client, typed).replace('href="/admin/"', "")


@pytest.mark.parametrize(("role", "finds"), [(VIEWER, False), (OPERATOR, False), (ADMIN, True)])
def test_what_is_masked_for_somebody_is_found_by_none_of_its_letters(role, finds):
    sync_roles()
    agent = Agent.objects.create(name="helper", display_name="sesame-of-the-house")
    client = client_of(role)
    found = page("agent_agent", "change", agent.pk)
    assert found in find(client, "helper")
    assert (found in find(client, "sesame")) is finds
    assert client.get(page("agent_agent"), {"q": "sesame"}).context["cl"].result_count == finds


@pytest.mark.parametrize(("role", "finds"), [(VIEWER, False), (OPERATOR, False), (ADMIN, True)])
def test_keys_are_found_by_what_they_are_called_by_who_may_change_them(owner, role, finds):
    sync_roles()
    ApiKey.objects.issue(owner=owner, name="sesame-of-the-house")
    assert client_of(role).get(page("accounts_apikey"), {"q": "sesame"}).context["cl"].result_count == finds


def test_nothing_typed_breaks_it(viewer):
    for typed in ("", " ", "\x00", "'", '"; DROP', "%", "_", "<script>alert(1)</script>", "x" * 5000, "\u202e", "ab"):
        shown = viewer.get(reverse("find"), {"q": typed})
        assert shown.status_code == 200
        assert b"<script>alert" not in shown.content


def test_its_queries_do_not_grow(viewer, say):
    say("Shall we dance?")
    find(viewer, "default")  # what was said is in the index from then on
    with CaptureQueriesContext(connection) as few:
        find(viewer, "default")
    for _ in range(10):
        OwnerFactory(username=f"default{_}")
    with CaptureQueriesContext(connection) as many:
        find(viewer, "default")
    assert len(many) <= len(few) <= 20
