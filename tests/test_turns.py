"""Turns, run by the real runner in the test's own thread."""

import json

import pytest

from conversations.models import Message, TurnStatus
from tests.work import settle

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_turn_echoes(say):
    (turn,) = settle([say("Hello")])
    assert turn.status == TurnStatus.SUCCEEDED
    rows = Message.objects.transcript().filter(conversation=turn.conversation)
    assert [(row.seq, row.role, row.content) for row in rows] == [
        (1, "user", "Hello"),
        (2, "assistant", "You said: Hello"),
    ]


def test_a_turn_runs_a_tool(say, tool_settings):
    tool_settings("time")
    (turn,) = settle([say("What time is it?")])
    roles = Message.objects.transcript().filter(turn=turn).values_list("role", flat=True)
    assert list(roles) == ["user", "assistant", "tool", "assistant"]


def test_a_refused_tool_is_answered_with_its_rule(say):
    script = {"script": [{"call": [{"name": "flood"}]}, {"say": "{results}"}]}
    (turn,) = settle([say(json.dumps(script))])
    assert turn.status == TurnStatus.SUCCEEDED
