"""The tool ``cron``: nanobot's name and arguments for what ``schedule`` does, within the same caps."""

import json
import re

import pytest

from conversations.models import Turn
from scheduler import series
from scheduler.models import Schedule
from tests.support import tool_calls
from tests.support.hosts import ROOT
from tests.support.scripts import script
from tests.support.working import settle
from tools import registry
from tools.models import CallStatus

pytestmark = pytest.mark.django_db(transaction=True)

SOON = "2099-05-05T09:00"


@pytest.fixture
def cron(tool_settings, owner, conversation):
    """``cron(action="list")``: the call, as it ended, of the owner's default agent in the conversation."""
    tool_settings("cron")

    def ask_and_run(owner_id=owner.pk, **arguments):
        asked = tool_calls.ask("cron", owner_id=owner_id, conversation_id=conversation.pk, **arguments)
        return tool_calls.run_in_thread(asked)

    return ask_and_run


def test_it_waits_for_permission_and_takes_nanobots_arguments(owner):
    registered = registry.get("cron")
    assert (registered.inline, registered.effects) == (True, "rows")
    arguments = {"action", "message", "every_seconds", "cron_expr", "tz", "at", "job_id"}
    assert registered.schema["properties"].keys() == arguments
    assert tool_calls.ask("cron", owner_id=owner.pk, action="list").rule == "not_enabled"


def test_the_pages_examples_are_what_happens(cron):
    page = (ROOT / "docs" / "tools.md").read_text().split("\n## Cron\n")[1].split("\n## ")[0]
    examples = re.findall(r"^\| `cron (\{.*\})` \| `(.*)` \|$", page, re.MULTILINE)
    assert len(examples) == 3
    for arguments, result in examples:
        known = str(Schedule.objects.values_list("pk", flat=True).first())
        call = cron(**json.loads(arguments.replace("…", known)))
        assert call.status == CallStatus.SUCCESS, call.result
        assert call.result == result.replace("…", str(Schedule.objects.get().pk))


@pytest.mark.parametrize(
    ("wishes", "kept"),
    [
        ({"at": SOON, "every_seconds": 0, "cron_expr": ""}, ("at", None, "")),
        ({"every_seconds": 3600, "at": ""}, ("every", 3600, "")),
        ({"cron_expr": "0 9 * * *", "tz": "Asia/Kolkata"}, ("cron", None, "0 9 * * *")),
    ],
)
def test_what_it_adds_is_a_schedule_of_this_conversation(cron, owner, conversation, wishes, kept):
    assert cron(action="add", message="Say hello.", **wishes).status == CallStatus.SUCCESS
    row = Schedule.objects.get()
    assert (row.kind, row.every_seconds, row.expression) == kept
    assert (row.prompt, row.owner, row.conversation_id) == ("Say hello.", owner, conversation.pk)
    assert row.zone == wishes.get("tz", "UTC")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"action": "add", "at": SOON}, "Give a message"),
        ({"action": "add", "message": "x"}, "exactly one of at, every_seconds and cron_expr"),
        ({"action": "add", "message": "x", "at": SOON, "every_seconds": 3600}, "exactly one of"),
        ({"action": "add", "message": "x", "every_seconds": 300}, "every 600 seconds at the most often"),
        ({"action": "add", "message": "x", "at": SOON, "tz": "Mars"}, "one is called Europe/Berlin"),
        ({"action": "remove"}, "by its job_id"),
        ({"action": "remove", "job_id": "the first one"}, "There is no schedule with that id"),
    ],
)
def test_what_makes_no_sense_is_told_and_changes_nothing(cron, arguments, why):
    call = cron(**arguments)
    assert (call.status, why in call.result) == (CallStatus.FAILED, True), call.result
    assert not Schedule.objects.exists()


def test_both_tools_share_their_places(cron, owner, settings):
    settings.SCHEDULE_TOOL_MOST = 1
    series.create(owner_id=owner.pk, prompt="x", at=SOON)
    assert "You may have 1 schedules" in cron(action="add", message="y", at=SOON).result
    assert Schedule.objects.get().prompt == "x"


def test_nobody_removes_what_is_somebody_elses(cron, outsider):
    theirs = series.create(owner_id=outsider.pk, prompt="x", at=SOON)
    assert "or it is not yours" in cron(action="remove", job_id=str(theirs.pk)).result
    assert Schedule.objects.get().state == "active"


@pytest.mark.parametrize("action", ["add", "list", "remove"])
def test_a_turn_of_the_clock_may_not_use_it(agent, tool_settings, owner, action):
    tool_settings("cron")
    type(agent).objects.filter(pk=agent.pk).update(every_tool=True)
    row = series.create(owner_id=owner.pk, prompt="x", every_seconds=3600)
    arguments = {"action": action, "job_id": str(row.pk), "message": "more", "at": SOON}
    series.update(row, prompt=script({"call": [{"name": "cron", "arguments": arguments}]}, {"say": "{results}"}))
    before = Schedule.objects.values().get()
    (turn,) = settle([Turn.objects.get(pk=series.run_now(row).turn_id)])
    assert "A turn that was begun by the clock may not use schedules" in turn.messages.last().content
    assert Schedule.objects.values().get() == before
