"""The page that turns are found on: searches are saved, what is found is exported and makes cases."""

import json
import re

import pytest

from conversations.api.serializers import TurnFilters
from conversations.models import ReplaySet
from conversations.saved_search_models import SavedSearch
from nanohost.accounts.models import AuditEntry
from nanohost.console import turn_search_page
from nanohost.console.roles import ADMIN, OPERATOR, VIEWER, sync_roles
from tests.support.console_client import HOSTILE, client_of
from tests.support.working import settle

pytestmark = pytest.mark.django_db(transaction=True)

PAGE = "/admin/turn-search/"


@pytest.fixture
def clients(db):
    sync_roles()
    return {role: client_of(role) for role in (VIEWER, OPERATOR, ADMIN)}


def exported(client, query):
    return [
        json.loads(line) for line in b"".join(client.get(f"{PAGE}?{query}&as=jsonl").streaming_content).splitlines()
    ]


def test_turns_are_found_and_exported_page_by_page(clients, say, monkeypatch):
    turns = settle([say(f"roses {number}") for number in range(3)] + [say("weeds")])
    found = clients[VIEWER].get(f"{PAGE}?search=roses").content.decode()
    assert [str(turn.pk) in found for turn in turns] == [True, True, True, False]
    monkeypatch.setattr(turn_search_page, "MAX_SHOWN", 2)
    lines = exported(clients[VIEWER], "search=roses&status=succeeded")
    assert [each["turnId"] for each in lines] == [str(turn.pk) for turn in reversed(turns[:3])]
    assert all(each["assistantMessage"] for each in lines)
    entry = AuditEntry.objects.get(action="list.exported")
    assert (entry.object_type, json.loads(entry.after)) == (
        "conversations.turn",
        {"search": "roses", "status": "succeeded"},
    )
    monkeypatch.setattr(turn_search_page, "MAX_EXPORTED", 1)
    assert len(exported(clients[VIEWER], "search=roses")) == 1
    for wrong in ("status=done", "minCost=much", "search=%00", "flower=rose", "cursor=x"):
        assert clients[VIEWER].get(f"{PAGE}?{wrong}&as=jsonl").status_code == 400, wrong


def test_each_filter_has_its_field(clients):
    assert {*turn_search_page.LABELS} == {*TurnFilters().fields} - {"cursor", "limit"}
    shown = clients[VIEWER].get(f"{PAGE}?feedback=down&minSeconds=x").content.decode()
    assert '<option value="down" selected>bad</option>' in shown
    assert re.search('id="id_minSeconds" value="x">\\s*<span class="errorlist">', shown)


def test_a_search_is_saved_by_its_name_for_whoever_saved_it(clients):
    save = {"act": "save", "name": HOSTILE}
    clients[VIEWER].post(f"{PAGE}?status=failed&cursor=", save)
    clients[VIEWER].post(f"{PAGE}?status=cancelled", save)
    assert SavedSearch.objects.get().query == {"status": "cancelled"}
    shown = clients[VIEWER].get(PAGE).content.decode()
    assert "?status=cancelled" in shown
    assert HOSTILE not in shown
    assert "?status=cancelled" not in clients[ADMIN].get(PAGE).content.decode()
    for query, name in (("", "all"), ("status=done", "wrong"), ("status=failed", ""), ("status=failed", "\0")):
        answer = clients[VIEWER].post(f"{PAGE}?{query}", {"act": "save", "name": name}, follow=True)
        assert "Nothing was done" in answer.content.decode(), name
    assert SavedSearch.objects.count() == 1
    clients[ADMIN].post(PAGE, {"act": "forget", "name": HOSTILE})
    assert SavedSearch.objects.count() == 1
    clients[VIEWER].post(PAGE, {"act": "forget", "name": HOSTILE})
    assert not SavedSearch.objects.exists()


def test_what_is_found_makes_a_set_of_cases_for_those_who_may_replay(clients, say):
    (turn,) = settle([say("roses")])
    say("roses that wait")
    collect = {"act": "collect", "name": "flowers"}
    assert clients[VIEWER].post(f"{PAGE}?search=roses", collect).status_code == 403
    assert "Nothing was done" in clients[OPERATOR].post(f"{PAGE}?search=weeds", collect, follow=True).content.decode()
    assert not ReplaySet.objects.exists()
    clients[OPERATOR].post(f"{PAGE}?search=roses", collect)
    assert list(ReplaySet.objects.get().cases.values_list("turn", flat=True)) == [turn.pk]
