"""GET /turns: turns as they are found by what happened in them."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from agent.models import Agent
from conversations import turn_search
from conversations.engine import inbox
from conversations.engine.incoming import Incoming
from conversations.models import Turn
from nanohost.accounts.models import ApiKey
from tools.models import CallStatus, ToolCall

pytestmark = pytest.mark.django_db

# Of turns that are made here: by their questions.
PLAIN, COSTLY, SLOW, FAILED, REFUSED, TAGGED = "plain", "costly", "slow", "failed", "refused", "tagged"


def key_for(owner: Any, **may: Any) -> tuple[ApiKey, Client]:
    row, key = ApiKey.objects.issue(owner=owner, scopes=["chat", "read"], **may)
    return row, Client(headers={"Authorization": f"Bearer {key}"})


def ask(owner: Any, words: str, *, key: ApiKey | None = None, metadata: Any = None, **became: Any) -> Turn:
    conversation = inbox.start_conversation(owner_id=owner.pk, metadata=metadata or {})
    turn = inbox.receive(Incoming(f"{words} roses"), conversation=conversation, request_id="r", key=key)
    Turn.objects.filter(pk=turn.pk).update(**became)
    return turn


def call_in(turn: Turn, tool: str, rule: str = "") -> None:
    ToolCall.objects.create(
        conversation_id=turn.conversation_id,
        turn_id=turn.pk,
        owner_id=turn.owner_id,
        agent="default",
        call_id="call",
        position=0,
        tool_name=tool,
        arguments="{}",
        rule=rule,
        status=CallStatus.REJECTED if rule else CallStatus.SUCCESS,
    )


@pytest.fixture
def turns(owner: Any, outsider: Any) -> dict[str, Turn]:
    """One of each, by its question; the oldest first."""
    key, _ = key_for(owner, agent_names=["*"])
    asked = timezone.now()
    made = {
        PLAIN: ask(owner, PLAIN, status="succeeded", ended_at=asked, model="one"),
        COSTLY: ask(owner, COSTLY, key=key, status="succeeded", cost=2_500_000, fallback_model="two"),
        SLOW: ask(owner, SLOW, status="succeeded", ended_at=asked + timedelta(seconds=90)),
        FAILED: ask(owner, FAILED, status="failed", error_code="provider_error"),
        REFUSED: ask(owner, REFUSED, status="succeeded"),
        TAGGED: ask(owner, TAGGED, metadata={"ticket": 7, "a__gt": "odd"}),
    }
    call_in(made[SLOW], "time")
    call_in(made[REFUSED], "http_get", "not_allowed")
    call_in(ask(outsider, "theirs", status="failed", error_code="provider_error"), "time")
    made["key"] = key  # type: ignore[assignment]  # for its prefix
    return made


def questions(client: Client, turns: dict[str, Turn], query: str) -> list[str]:
    answer = client.get(f"/api/v1/turns{query}", secure=True)
    assert answer.status_code == 200, answer.content
    names = {str(turn.pk): name for name, turn in turns.items()}
    return [names[row["turnId"]] for row in answer.json()["results"]]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", [TAGGED, REFUSED, FAILED, SLOW, COSTLY, PLAIN]),
        ("?status=failed", [FAILED]),
        ("?status=queued", [TAGGED]),
        ("?error=provider_error", [FAILED]),
        ("?error=turn_timeout", []),
        ("?model=one", [PLAIN]),
        ("?model=two", [COSTLY]),
        ("?minCost=2.5", [COSTLY]),
        ("?minCost=2.500001", []),
        ("?minSeconds=60", [SLOW]),
        ("?minSeconds=3600", []),
        ("?tool=time", [SLOW]),
        ("?tool=http_get&status=succeeded", [REFUSED]),
        ("?tool=http_get&status=failed", []),
        ("?rule=not_allowed", [REFUSED]),
        ("?tag=ticket:7", [TAGGED]),
        ("?tag=ticket:8", []),
        ("?tag=a__gt:odd", [TAGGED]),
        ("?tag=a%27%22]:b", []),
        ("?search=cost", [COSTLY]),
        ("?search=roses", [TAGGED, REFUSED, FAILED, SLOW, COSTLY, PLAIN]),
        ("?search=roses&tool=time", [SLOW]),
        ("?search=theirs", []),
        ("?agent=default&limit=2", [TAGGED, REFUSED]),
        ("?agent=nobody", []),
        ("?to=2020-01-01T00:00Z", []),
        ("?to=1066-01-01T00:00Z", []),
        ("?from=2020-01-01T00:00Z&search=plain", [PLAIN]),
        ("?from=2100-01-01T00:00Z", []),
    ],
)
def test_turns_are_found_by_what_happened_in_them(owner, turns, query, found):
    _, client = key_for(owner, agent_names=["*"])
    assert questions(client, turns, query) == found


def test_turns_are_found_by_the_key_that_they_were_asked_with(owner, turns):
    _, client = key_for(owner, agent_names=["*"])
    assert questions(client, turns, f"?key={turns['key'].prefix}") == [COSTLY]  # type: ignore[attr-defined]
    assert questions(client, turns, "?key=unknown") == []


def test_a_key_finds_turns_of_the_agents_that_it_may_name(owner, outsider, turns):
    Agent.objects.filter(name="default").update(is_public=False)
    _, narrow = key_for(owner, agent_names=["another"])
    _, others = key_for(outsider, agent_names=["*"])
    assert questions(narrow, turns, "") == []
    (theirs,) = others.get("/api/v1/turns", secure=True).json()["results"]
    assert theirs["error"]["code"] == "provider_error"


def test_pages_give_each_turn_once_however_few_match(owner, turns, monkeypatch):
    _, client = key_for(owner, agent_names=["*"])
    for stretch in (1, 2, 3, 1_000):
        monkeypatch.setattr(turn_search, "STRETCH", stretch)
        for limit in (1, 2, 50):
            found, link = [], f"https://testserver/api/v1/turns?status=succeeded&limit={limit}"
            for _ in range(20):
                page = client.get(link.removeprefix("https://testserver"), secure=True).json()
                found += [row["turnId"] for row in page["results"]]
                if not (link := page["next"]):
                    break
            assert not link
            assert found == [str(turns[name].pk) for name in (REFUSED, SLOW, COSTLY, PLAIN)]


@pytest.mark.parametrize(
    "query",
    [
        *("status=done", "minCost=much", "minCost=-1", "minCost=NaN", "minSeconds=NaN", "minSeconds=-1", "limit=0"),
        *(
            "limit=x",
            "cursor=1",
            "from=yesterday",
            "to=0001-01-01T00:00%2B14:00",
            "tag=ticket",
            "search=%00",
            "q=roses",
        ),
        "minCost=99999999999999999999",
    ],
)
def test_what_makes_no_sense_is_refused(owner, query):
    _, client = key_for(owner, agent_names=["*"])
    answer = client.get(f"/api/v1/turns?{query}", secure=True)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
    assert query.partition("=")[0] in answer.content.decode()
