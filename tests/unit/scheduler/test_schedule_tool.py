"""The tool by which agents keep schedules: those of its own owner and agent, within caps, and not by the clock."""

import json
import re
import threading
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from django.urls import reverse

from conversations.engine import inbox
from conversations.engine.incoming import Incoming
from conversations.models import Message, Turn
from nanohost.accounts.models import ApiKey
from scheduler import series
from scheduler.models import Schedule, ScheduleRun
from scheduler.ticking import tick
from tests.support import tool_calls
from tests.support.factories import AgentFactory
from tests.support.scripts import script
from tests.support.working import settle
from tools import registry
from tools.gate import AgentTools
from tools.models import CallStatus, ToolCall

pytestmark = pytest.mark.django_db(transaction=True)

SOON = "2099-05-05T09:00"


@pytest.fixture
def use(tool_settings, owner, conversation):
    """``use("list")``: the call, as it ended, of the owner's default agent in the conversation."""
    tool_settings("schedule")

    def ask_and_run(action, **arguments):
        whose = {"owner_id": arguments.pop("owner_id", owner.pk)}
        whose["conversation_id"] = arguments.pop("conversation_id", conversation.pk)
        return tool_calls.run_in_thread(tool_calls.ask("schedule", **whose, action=action, **arguments))

    return ask_and_run


def made(use, **wishes):
    call = use("create", **{"prompt": "Say hello.", "at": SOON, **wishes})
    assert call.status == CallStatus.SUCCESS, call.result
    return Schedule.objects.latest("created_at")


def test_it_waits_for_permission_and_no_model_says_on_whose_behalf_it_runs(owner):
    registered = registry.get("schedule")
    assert (registered.inline, registered.effects) == (True, "rows")
    assert not {"caller", "owner", "owner_id", "agent", "conversation_id"} & registered.schema["properties"].keys()
    assert tool_calls.ask("schedule", owner_id=owner.pk, action="list").rule == "not_enabled"


# --- what it does -------------------------------------------------------------------------------------------------


def test_it_is_made_with_the_key_of_the_turn_that_asks_for_it(owner, conversation, tool_settings):
    tool_settings("schedule")
    key, _ = ApiKey.objects.issue(owner=owner)
    arguments = {"action": "create", "prompt": "Say hello.", "at": SOON}
    said = script({"call": [{"name": "schedule", "arguments": arguments}]}, {"say": "Done."})
    settle([inbox.receive(Incoming(said), conversation=conversation, request_id="r", key=key)])
    assert Schedule.objects.get().api_key_id == key.pk


def test_it_speaks_in_the_conversation_that_asked_for_it(use, owner, conversation):
    row = made(use, description="greeting")
    assert (row.owner, row.agent, row.conversation_id) == (owner, conversation.agent, conversation.pk)
    assert (row.prompt, row.next_at) == ("Say hello.", datetime(2099, 5, 5, 9, 0, tzinfo=UTC))
    assert made(use, new_conversation=True).conversation_id is None


@pytest.mark.parametrize(
    ("wishes", "told"),
    [
        ({"at": SOON}, r"it runs Tue 2099-05-05 09:00:00 \+0000 \(UTC\)\."),
        ({"at": SOON, "zone": "Europe/Berlin"}, r"it runs Tue 2099-05-05 09:00:00 \+0200 \(Europe/Berlin\)\."),
        ({"at": "2099-05-05T09:00+05:00"}, r"it runs Tue 2099-05-05 04:00:00 \+0000 \(UTC\)\."),
        (
            {"cron": "0 8 * * *", "zone": "Asia/Kolkata"},
            r"it runs (\w+ [-\d]+ 08:00:00 \+0530, ){3}… \(.*\)\.",
        ),
        ({"every_seconds": 3600, "max_runs": 2}, r"it runs (\w+ [-\d]+ [:\d]+ \+0000(, | )){2}\(UTC\)\."),
    ],
)
def test_the_answer_names_the_next_times(use, wishes, told):
    answer = use("create", prompt="Say hello.", **wishes).result
    row = Schedule.objects.get()
    assert re.fullmatch(rf"Created\. {row.pk}: Say hello\.; {told}", answer), answer


def test_a_zone_that_is_not_named_is_the_one_in_which_messages_are_dated(use, settings):
    settings.TIME_ZONE = "America/New_York"
    row = made(use, at=SOON)
    assert (row.zone, row.next_at) == ("America/New_York", datetime(2099, 5, 5, 13, 0, tzinfo=UTC))
    moved = made(use, at=SOON, zone="Europe/Berlin")
    use("update", id=str(moved.pk), at="2099-06-05T09:00")
    moved.refresh_from_db()
    assert (moved.zone, moved.next_at) == ("Europe/Berlin", datetime(2099, 6, 5, 7, 0, tzinfo=UTC))


def test_an_update_changes_what_is_given_and_nothing_else(use):
    row = made(use, description="greeting", zone="Europe/Berlin", ends_at="2100-01-01", max_runs=3)
    use("update", id=str(row.pk), prompt="Say goodbye.")
    changed = Schedule.objects.get()
    assert changed.prompt == "Say goodbye."
    kept = ("description", "zone", "ends_at", "max_runs", "next_at", "conversation_id")
    assert [getattr(changed, name) for name in kept] == [getattr(row, name) for name in kept]
    use("update", id=str(row.pk), ends_at="", max_runs=0)
    changed.refresh_from_db()
    assert (changed.ends_at, changed.max_runs) == (None, None)


def test_pause_resume_list_and_cancel(use):
    row = made(use)
    assert "paused: Paused by its agent. If resumed, it runs Tue 2099-05-05" in use("pause", id=str(row.pk)).result
    assert "paused:" in use("list").result
    assert use("resume", id=str(row.pk)).result.startswith(f"Resumed. {row.pk}")
    assert use("list").result == f"{row.pk}: Say hello.; it runs Tue 2099-05-05 09:00:00 +0000 (UTC)."
    assert str(row.pk) in use("cancel", id=str(row.pk)).result
    assert use("list").result == "There are no schedules."
    assert Schedule.objects.get().state == "cancelled"


def test_what_an_operator_has_paused_only_people_resume(use, admin_client):
    row = made(use)
    use("pause", id=str(row.pk))  # which would be the agent's to take back
    chosen = {"action": "pause", "_selected_action": [row.pk]}
    admin_client.post(reverse("admin:scheduler_schedule_changelist"), chosen)
    assert "Only people can resume it" in use("resume", id=str(row.pk)).result
    assert Schedule.objects.get().state == "paused"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"action": "create", "prompt": "x"}, "needs its times"),
        ({"action": "create", "at": SOON}, "needs a prompt"),
        (
            {"action": "create", "prompt": "x", "at": "2020-01-01T09:00"},
            "has passed; a time to come is needed",
        ),
        ({"action": "create", "prompt": "x", "at": "tomorrow at 8"}, "write it as 2030-12-31T09:00"),
        ({"action": "create", "prompt": "x", "at": SOON, "zone": "Mars"}, "one is called Europe/Berlin"),
        ({"action": "create", "prompt": "x", "cron": "0 0 30 2 *"}, "never matches"),
        ({"action": "create", "prompt": "x", "cron": "0 9 * * *", "at": SOON}, "Only one of"),
        ({"action": "update"}, "Name the schedule by its id"),
        ({"action": "pause", "id": "the first one"}, "There is no schedule with that id"),
    ],
)
def test_what_makes_no_sense_is_told_so_that_the_model_can_do_better(use, arguments, why):
    call = use(**arguments)
    assert call.status == CallStatus.FAILED
    assert why in call.result
    assert not Schedule.objects.exists()


def test_an_update_of_nothing_says_what_could_be_changed(use):
    assert "Say what is to change" in use("update", id=str(made(use).pk)).result


# --- whose schedules ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["update", "pause", "resume", "cancel"])
@pytest.mark.parametrize("whose", ["another owner's", "another agent's", "cancelled", "nobody's"])
def test_what_is_not_its_own_answers_as_if_it_did_not_exist(use, owner, outsider, action, whose):
    other = AgentFactory(name="other").name
    wishes = {"prompt": "secret", "at": SOON}
    if whose == "nobody's":
        id = uuid4()
    else:
        agent = other if whose == "another agent's" else ""
        row = series.create(owner_id=outsider.pk if whose == "another owner's" else owner.pk, agent=agent, **wishes)
        id = row.pk
        if whose == "cancelled":
            series.cancel(row)
    before = list(Schedule.objects.values())
    call = use(action, id=str(id), prompt="mine now")
    assert call.status == CallStatus.FAILED
    assert call.result == (
        "FAILED: There is no schedule with that id, or it is not yours. The action list shows those there are."
    )
    assert list(Schedule.objects.values()) == before


def test_a_list_has_its_own_owners_and_agents_alone(use, owner, outsider):
    other = AgentFactory(name="other").name
    series.create(owner_id=outsider.pk, prompt="of an outsider", at=SOON)
    series.create(owner_id=owner.pk, agent=other, prompt="of another agent", at=SOON)
    series.create(owner_id=owner.pk, prompt="made by a person", at=SOON)
    assert [line.split(": ")[1].split(";")[0] for line in use("list").result.splitlines()] == ["made by a person"]


def test_it_does_not_speak_in_somebody_elses_conversation(use, outsider):
    theirs = inbox.start_conversation(owner_id=outsider.pk, metadata={})
    call = use("create", prompt="x", at=SOON, conversation_id=theirs.pk)
    assert "or it is not yours" in call.result


# --- caps ---------------------------------------------------------------------------------------------------------


def test_it_has_so_many_at_most_for_each_owner_and_agent(use, owner, outsider, settings):
    settings.SCHEDULE_TOOL_MOST = 2
    series.create(owner_id=outsider.pk, prompt="x", at=SOON)
    first, second = made(use), made(use)
    use("pause", id=str(first.pk))
    assert "You may have 2 schedules that have not ended" in use("create", prompt="x", at=SOON).result
    assert Schedule.objects.filter(owner=owner).count() == 2
    use("cancel", id=str(second.pk))
    made(use)


def test_one_that_has_ended_takes_a_place_again_when_it_is_given_a_time(use, settings):
    settings.SCHEDULE_TOOL_MOST = 1
    ended = made(use)
    Schedule.objects.update(active=False, next_at=None)
    made(use)
    assert "You may have 1 schedules" in use("update", id=str(ended.pk), at=SOON).result
    ended.refresh_from_db()
    assert ended.state == "ended"


def test_calls_side_by_side_do_not_both_get_the_last_place(use, owner, conversation, settings):
    settings.SCHEDULE_TOOL_MOST = 1
    wanted = {"owner_id": owner.pk, "conversation_id": conversation.pk, "action": "create", "prompt": "x", "at": SOON}
    asked = [tool_calls.ask("schedule", **wanted) for _ in range(4)]
    barrier = threading.Barrier(len(asked))

    def run(call):
        barrier.wait()
        tool_calls.run_in_thread(call)

    threads = [threading.Thread(target=run, args=(call,)) for call in asked]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ToolCall.objects.values_list("status", flat=True)) == ["FAILED"] * 3 + ["SUCCESS"]
    assert Schedule.objects.count() == 1


@pytest.mark.parametrize("wishes", [{"every_seconds": 599}, {"cron": "*/5 * * * *"}, {"cron": "0,1 9 1 1 *"}])
def test_it_runs_no_oftener_than_it_may(use, wishes):
    assert "every 600 seconds at the most often" in use("create", prompt="x", **wishes).result
    row = made(use)
    assert "every 600 seconds at the most often" in use("update", id=str(row.pk), **wishes).result
    assert Schedule.objects.get().kind == "at"


@pytest.mark.parametrize("wishes", [{"every_seconds": 600}, {"cron": "*/10 * * * *"}, {"cron": "0 9 * * *"}])
def test_so_often_it_may(use, wishes):
    assert made(use, at=None, **wishes)


def test_what_a_person_made_is_changed_in_its_words_however_often_it_runs_and_however_many_there_are(
    use, owner, settings
):
    settings.SCHEDULE_TOOL_MOST = 1
    row, _ = (series.create(owner_id=owner.pk, prompt="x", every_seconds=60) for _ in range(2))
    assert use("update", id=str(row.pk), prompt="y").status == CallStatus.SUCCESS


def test_what_a_person_made_and_has_ended_does_not_go_on_that_often(use, owner):
    row = series.create(owner_id=owner.pk, prompt="x", every_seconds=60, max_runs=1)
    Schedule.objects.update(active=False, next_at=None, runs=1)
    assert "at the most often" in use("update", id=str(row.pk), max_runs=0).result
    assert Schedule.objects.get().state == "ended"


# --- in a chat, and by the clock ----------------------------------------------------------------------------------


def ask_for(**arguments):
    return script({"call": [{"name": "schedule", "arguments": arguments}]}, {"say": "{results}"})


@pytest.fixture
def agent_with_tools(agent, tool_settings):
    tool_settings("schedule")
    type(agent).objects.filter(pk=agent.pk).update(every_tool=True)
    return agent


def test_a_reminder_that_is_asked_for_in_a_chat_comes_there_in_time(agent_with_tools, conversation, say, settings):
    """As in docs/schedules.md: tomorrow at 8 by the clock of the zone, and not before."""
    settings.TIME_ZONE = "Europe/Berlin"
    wanted = {"action": "create", "prompt": "Remind me to call Anna.", "at": "2099-03-29T08:00"}
    (turn,) = settle([say(ask_for(**wanted))])
    answer = turn.messages.last().content
    assert "Remind me to call Anna.; it runs Sun 2099-03-29 08:00:00 +0200 (Europe/Berlin)." in answer
    eight = datetime(2099, 3, 29, 6, 0, tzinfo=UTC)
    assert tick(now=eight - timedelta(seconds=1)) == 0
    assert [tick(now=eight + timedelta(seconds=2)) for _ in range(3)] == [1, 0, 0]
    run = ScheduleRun.objects.get()
    (fired,) = settle([Turn.objects.get(pk=run.turn_id)])
    assert (fired.conversation_id, run.slot, run.lag_ms) == (conversation.pk, eight, 2000)
    said = Message.objects.filter(conversation=conversation).order_by("seq").values_list("content", flat=True)
    assert list(said)[-2:] == ["Remind me to call Anna.", "You said: Remind me to call Anna."]


ACTIONS = ["create", "list", "update", "pause", "resume", "cancel"]


@pytest.mark.parametrize("action", ACTIONS)
def test_a_turn_of_the_clock_may_not_use_it(agent_with_tools, owner, action):
    row = series.create(owner_id=owner.pk, prompt="x", every_seconds=60)
    series.update(row, prompt=ask_for(action=action, id=str(row.pk), prompt="more", at=SOON))
    before = Schedule.objects.values().get()
    run = series.run_now(row)
    (turn,) = settle([Turn.objects.get(pk=run.turn_id)])
    assert "A turn that was begun by the clock may not use schedules" in turn.messages.last().content
    assert Schedule.objects.values().get() == before


@pytest.mark.parametrize("named", ["schedule:", "heartbeat:"])
def test_what_a_client_calls_its_request_makes_no_turn_one_of_the_clock(agent_with_tools, conversation, named):
    create = ask_for(action="create", prompt="more", at=SOON)
    settle([inbox.receive(Incoming(create), conversation=conversation, request_id=f"{named}{conversation.pk}")])
    assert Schedule.objects.count() == 1


def test_nor_does_another_name_make_it_somebodys(agent_with_tools, owner):
    row = series.create(owner_id=owner.pk, prompt=ask_for(action="create", prompt="more", at=SOON), every_seconds=60)
    run = series.run_now(row)
    Turn.objects.update(request_id="request-1")
    (turn,) = settle([Turn.objects.get(pk=run.turn_id)])
    assert "A turn that was begun by the clock may not use schedules" in turn.messages.last().content


def test_a_retry_of_it_may_not_either_and_the_users_next_turn_may(agent_with_tools, owner, conversation, say):
    create = ask_for(action="create", prompt="more", at=SOON)
    row = series.create(owner_id=owner.pk, prompt=create, every_seconds=60, conversation_id=conversation.pk)
    run = series.run_now(row, now=datetime(2026, 5, 4, tzinfo=UTC))
    Turn.objects.filter(pk=run.turn_id).update(status="failed", error_code="x")
    for minute in (1, 3):
        tick(now=datetime(2026, 5, 4, 0, minute, tzinfo=UTC))
    settle([Turn.objects.latest("number")])
    assert (Turn.objects.count(), Schedule.objects.count()) == (2, 1)
    settle([say(create)])
    assert Schedule.objects.count() == 2


def test_unless_its_agent_may(agent_with_tools, owner):
    type(agent_with_tools).objects.update(may_reschedule=True)
    row = series.create(owner_id=owner.pk, prompt=ask_for(action="list"), every_seconds=60)
    run = series.run_now(row)
    (turn,) = settle([Turn.objects.get(pk=run.turn_id)])
    assert str(row.pk) in turn.messages.last().content


def test_an_agent_that_is_not_allowed_the_tool_does_not_have_it(use, owner):
    call = tool_calls.ask("schedule", agent_tools=AgentTools(names=frozenset()), owner_id=owner.pk, action="list")
    assert json.loads(call.result)["rule"] == "not_for_agent"
