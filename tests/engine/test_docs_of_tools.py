"""docs/tools.md: the examples of tools that work on rows, and of ``time``, each called through the gate."""

import json
import re

import pytest
from django.utils import timezone

from memory import log
from scheduler.models import Schedule
from tests.support import tool_calls
from tests.support.hosts import ROOT
from tools.models import CallStatus

pytestmark = pytest.mark.django_db(transaction=True)

SECTION = (ROOT / "docs" / "tools.md").read_text().split("\n## Time, memory, schedules\n")[1].split("\n## ")[0]
EXAMPLES = re.findall(r"^\| `(\w+) (\{.*\})` \| `(.*)` \|$", SECTION, re.MULTILINE)
# That one asks a server: tests/unit/tools/test_web.py.
HERE = [each for each in EXAMPLES if each[0] != "http_get"]


def test_the_pages_examples_are_what_happens(tool_settings, owner, conversation):
    names = {name for name, _, _ in HERE}
    assert names == {"time", "remember", "recall_history", "daily_note", "session_state", "schedule"}
    for name in names:
        tool_settings(name)
    asked_for = "They asked for trains to Bergen."
    log.append(agent="default", owner_id=owner.pk, content=asked_for, happened_at=timezone.now())
    for name, arguments, result in HERE:
        known = str(Schedule.objects.values_list("pk", flat=True).first())
        given = json.loads(arguments.replace("…", known))
        asked = tool_calls.ask(name, owner_id=owner.pk, conversation_id=conversation.pk, **given)
        call = tool_calls.run_in_thread(asked)
        assert call.status == CallStatus.SUCCESS, call.result
        expected = re.escape(result.replace("⏎", "\n")).replace("…", ".+")
        assert re.fullmatch(expected, call.result, re.DOTALL), call.result
