"""The tool ``spawn``: a sub-agent's turn in a conversation of its own, its result once, its bounds, and its end."""

import json
import re

import pytest

from agent.llm.base import Completion
from conversations.engine import deferred, inbox, steps, turn_control
from conversations.engine.turns import claim_and_load
from conversations.errors import BY_OPERATOR, FenceLost
from conversations.models import Conversation, DeferredMessage, DeferredState, Message, Turn
from conversations.options import Options
from conversations.statuses import TurnStatus
from nanohost.lib.errors import InvalidRequest
from tests.support import tool_calls
from tests.support.console_client import page
from tests.support.hosts import ROOT
from tests.support.scripts import script
from tests.support.working import settle
from tools import registry, taint
from tools.models import CallStatus, ToolCall

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def enabled(tool_settings):
    tool_settings("spawn")


@pytest.fixture
def spawn(say, owner):
    """``spawn(task="…")``: the call, as it ended, of a turn that goes on meanwhile."""

    def ask_and_run(turn=None, tainted_by="", **arguments):
        turn = turn or say("Hello")
        asked = tool_calls.ask("spawn", owner_id=owner.pk, conversation_id=turn.conversation_id, **arguments)
        number = ToolCall.objects.filter(turn_id=turn.pk).count()
        ToolCall.objects.filter(pk=asked.pk).update(turn_id=turn.pk, position=number, call_id=f"call_{number}")
        tools = tool_calls.AgentTools(names=None, tainted_by=tainted_by)
        return tool_calls.run_in_thread(ToolCall.objects.get(pk=asked.pk), agent_tools=tools)

    return ask_and_run


def spawning(*steps_of_the_task):
    """What has the scripted model start a sub-agent, and then answer."""
    arguments = {"task": script(*steps_of_the_task), "label": "trains"}
    return script({"call": [{"name": "spawn", "arguments": arguments}]}, {"say": "Started."})


def turn_of_the_child(parent: Turn) -> Turn:
    return Turn.objects.exclude(conversation=parent.conversation_id).get(number=1)


def results() -> list[str]:
    return list(DeferredMessage.objects.order_by("created_at").values_list("content", flat=True))


# --- a task, and its result --------------------------------------------------------------------------------------


def test_it_waits_for_permission_and_declares_what_it_does(owner):
    registered = registry.get("spawn")
    assert (registered.inline, registered.effects) == (True, "rows")
    assert taint.reaches_out(registered)


def test_the_pages_example_is_what_happens(spawn):
    section = (ROOT / "docs" / "tools.md").read_text().split("\n## Sub-agents\n")[1].split("\n## ")[0]
    ((arguments, result),) = re.findall(r"^\| `spawn (\{.*\})` \| `(.*)` \|$", section, re.MULTILINE)
    call = spawn(**json.loads(arguments))
    child = Conversation.objects.get(spawned_by=call.pk)
    assert (call.status, call.result) == (CallStatus.SUCCESS, result.replace("…", str(child.pk)))


def test_a_task_is_worked_on_elsewhere_and_its_result_begins_a_turn(say, conversation):
    (parent,) = settle([say(spawning({"say": "There are three."}))])
    assert parent.messages.last().content == "Started."
    child = turn_of_the_child(parent).conversation
    assert (child.owner, child.agent, child.name) == (conversation.owner, conversation.agent, "trains")
    assert child.metadata == {"spawnedIn": str(conversation.pk)}
    settle([turn_of_the_child(parent)])
    for _ in range(2):
        deferred.fire_due()
    (woken,) = settle(Turn.objects.filter(conversation=conversation).exclude(pk=parent.pk))
    said = Message.objects.get(turn=woken, role="user").content
    assert said == f"[sub-agent “trains”, {child.pk}] It has answered:\n\nThere are three."


def test_a_result_is_told_at_once_by_whoever_ends_the_sub_agent(say, conversation):
    """Nobody sweeps here."""
    (parent,) = settle([say(spawning({"say": "There are three."}))])
    settle([turn_of_the_child(parent)])
    woken = Turn.objects.filter(conversation=conversation).exclude(pk=parent.pk).get()
    message = DeferredMessage.objects.get()
    assert (message.state, message.turn_id, message.tries) == (DeferredState.FIRED, woken.pk, 1)


def test_a_failure_is_told_with_its_code(say):
    (parent,) = settle([say(spawning({"fail": "auth"}))])
    settle([turn_of_the_child(parent)])
    (told,) = results()
    assert told.endswith("It has failed (llm_auth).")


def test_one_that_an_operator_ends_is_told_as_failed(say):
    (parent,) = settle([say(spawning({"say": "x"}))])
    assert turn_control.fail_turn(turn_of_the_child(parent), reason="It takes too long.")
    (told,) = results()
    assert told.endswith(f"It has failed ({BY_OPERATOR}).")


def test_a_worker_that_has_lost_the_turn_brings_no_result(say):
    (parent,) = settle([say(spawning({"say": "x"}))])
    child = turn_of_the_child(parent)
    claim, _ = claim_and_load(child.pk, worker="worker-1")
    assert turn_control.requeue_turn(child)
    with pytest.raises(FenceLost):
        steps.finish(claim, Completion(content="late"), reply="late")
    assert results() == []
    settle([child])
    assert len(results()) == 1


def test_what_people_say_there_later_is_answered_there(say):
    (parent,) = settle([say(spawning({"say": "x"}))])
    child = turn_of_the_child(parent)
    settle([child])
    settle([say("And now?", conversation=child.conversation)])
    assert len(results()) == 1


# --- its share of the tokens -------------------------------------------------------------------------------------


def shares():
    turns = Turn.objects.filter(conversation__spawned_by__isnull=False).order_by("created_at", "pk")
    return [Options.of(turn.options).turn_tokens for turn in turns]


def test_each_task_has_a_share_of_the_tokens_that_are_left(say, spawn, conversation):
    conversation.agent.max_turn_tokens = 1_000
    conversation.agent.save()
    turn = say("Hello")
    Turn.objects.filter(pk=turn.pk).update(prompt_tokens=150, completion_tokens=50)
    for _ in range(3):
        assert spawn(turn, task="Count.").status == CallStatus.SUCCESS
    assert shares() == [400, 200, 100]


def test_a_task_of_a_task_has_a_share_of_its_share(say, spawn, conversation):
    conversation.agent.max_turn_tokens = 1_000
    conversation.agent.save()
    spawn(task="Count.")
    (child,) = Turn.objects.filter(conversation__spawned_by__isnull=False)
    assert spawn(child, task="Count.").status == CallStatus.SUCCESS
    assert shares() == [500, 250]


def test_where_nothing_is_left_none_is_started(say, spawn, conversation):
    conversation.agent.max_turn_tokens = 1_000
    conversation.agent.save()
    turn = say("Hello")
    Turn.objects.filter(pk=turn.pk).update(prompt_tokens=1_000)
    call = spawn(turn, task="Count.")
    assert (call.status, "No tokens of this turn are left" in call.result) == (CallStatus.FAILED, True)
    assert shares() == []


def test_without_a_limit_there_is_no_share(spawn):
    spawn(task="Count.")
    assert shares() == [0]


def test_a_task_that_has_used_its_share_gives_its_best_answer(say, spawn, conversation, tool_settings):
    tool_settings("time")
    conversation.agent.max_turn_tokens = 1_000_000
    conversation.agent.save()
    spawn(task=script(*[{"call": [{"name": "time"}]}] * 5, {"say": "done"}))
    Turn.objects.filter(conversation__spawned_by__isnull=False).update(options=Options(turn_tokens=1).as_json())
    (child,) = settle(Turn.objects.filter(conversation__spawned_by__isnull=False))
    assert child.status == TurnStatus.SUCCEEDED
    assert "the turn's token limit" in child.messages.last().content


# --- bounds ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("task", "why"), [(" ", "Give a task"), ("/new", "a command to the host")])
def test_what_makes_no_sense_is_told_and_starts_nothing(spawn, task, why):
    call = spawn(task=task)
    assert (call.status, why in call.result) == (CallStatus.FAILED, True), call.result
    assert not Conversation.objects.filter(spawned_by__isnull=False).exists()


def test_so_many_work_at_once_and_no_more(spawn, settings):
    settings.SPAWN_MAX_OPEN = 1
    assert spawn(task="one").status == CallStatus.SUCCESS
    refused = spawn(task="two")
    assert (refused.status, "1 sub-agents are at work" in refused.result) == (CallStatus.FAILED, True)
    settle(Turn.objects.filter(conversation__spawned_by__isnull=False))
    assert spawn(task="two").status == CallStatus.SUCCESS


def test_they_are_nested_so_deep_and_no_deeper(spawn, settings):
    settings.SPAWN_MAX_DEPTH = 2
    first = spawn(task="one")
    second = spawn(turn=Turn.objects.get(conversation__spawned_by=first.pk), task="two")
    assert second.status == CallStatus.SUCCESS
    third = spawn(turn=Turn.objects.get(conversation__spawned_by=second.pk), task="three")
    assert (third.status, "as deep as they may be" in third.result) == (CallStatus.FAILED, True)


def test_a_turn_that_a_result_has_begun_starts_no_further_ones(say, spawn, conversation):
    (parent,) = settle([say(spawning({"say": "x"}))])
    settle([turn_of_the_child(parent)])
    deferred.fire_due()
    woken = Turn.objects.filter(conversation=conversation).exclude(pk=parent.pk).get()
    refused = spawn(turn=woken, task="more")
    assert (refused.status, "begun by a sub-agent's result" in refused.result) == (CallStatus.FAILED, True)
    assert Conversation.objects.filter(spawned_by__isnull=False).count() == 1


def test_nothing_is_started_where_no_result_could_come_back(spawn, conversation):
    Conversation.objects.filter(pk=conversation.pk).update(is_transient=True)
    assert "for one request only" in spawn(task="one").result


def test_no_client_makes_such_a_conversation(owner):
    with pytest.raises(InvalidRequest, match="the host's own"):
        inbox.conversation_of(owner_id=owner.pk, key="spawn:mine", metadata={})


# --- in the console ----------------------------------------------------------------------------------------------


def test_a_transcript_shows_them_as_a_tree_and_theirs_where_they_were_started(spawn, admin_client, conversation):
    first = spawn(task="one", label="<b>trains</b>")
    child = Conversation.objects.get(spawned_by=first.pk)
    second = spawn(turn=Turn.objects.get(conversation=child), task="two", label="prices")
    below = Conversation.objects.get(spawned_by=second.pk)
    at = {each: page("conversations_conversation", "transcript", each.pk) for each in (conversation, child, below)}
    html = admin_client.get(at[conversation]).content.decode()
    tree = html.split('id="sub-agents"')[1].split("</details>")[0]
    assert tree.index(at[child]) < tree.index("&lt;b&gt;trains&lt;/b&gt;") < tree.index(at[below])
    assert tree.count("queued") >= 2
    assert 'id="started-in"' not in html
    html = admin_client.get(at[below]).content.decode()
    chain = html.split('id="started-in"')[1].split("</p>")[0]
    assert chain.index(at[conversation]) < chain.index(at[child])
    assert 'id="sub-agents"' not in html


# --- its end -----------------------------------------------------------------------------------------------------


def test_cancelling_goes_down_to_the_last(spawn):
    first = spawn(task="one")
    parent = Turn.objects.get(pk=first.turn_id)
    child = Turn.objects.get(conversation__spawned_by=first.pk)
    second = spawn(turn=child, task="two")
    assert turn_control.cancel_turn(parent)
    below = Turn.objects.filter(conversation__spawned_by__in=[first.pk, second.pk])
    assert [turn.status for turn in below] == [TurnStatus.CANCELLED] * 2
    assert results() == []


def test_one_that_runs_is_told_to_stop(spawn):
    call = spawn(task="one")
    child = Turn.objects.get(conversation__spawned_by=call.pk)
    assert claim_and_load(child.pk, worker="worker-1")
    turn_control.cancel_turn(Turn.objects.get(pk=call.turn_id))
    child.refresh_from_db()
    assert (child.status, child.cancel_requested) == (TurnStatus.RUNNING, True)


@pytest.mark.parametrize("how", ["stop", "delete"])
def test_so_do_a_stop_and_deleting_the_conversation(say, conversation, how):
    (parent,) = settle([say(spawning({"say": "x"}))])
    child = turn_of_the_child(parent)
    if how == "stop":
        say("/stop")
    else:
        turn_control.delete_conversation(conversation.pk)
    child.refresh_from_db()
    assert child.status == TurnStatus.CANCELLED
    assert results() == []


def test_a_caller_that_was_cancelled_is_brought_nothing(say):
    (parent,) = settle([say(spawning({"say": "x"}))])
    # As if the process that cancels had died before it came to the sub-agents.
    Turn.objects.filter(pk=parent.pk).update(status=TurnStatus.CANCELLED)
    settle([turn_of_the_child(parent)])
    assert results() == []


# --- taint -------------------------------------------------------------------------------------------------------


def test_taint_goes_down_and_up_again(spawn, conversation):
    call = spawn(task="one", tainted_by="the tool web_fetch")
    child = Conversation.objects.get(spawned_by=call.pk)
    settle([*Turn.objects.filter(conversation=conversation), Turn.objects.get(conversation=child)])
    child.refresh_from_db()
    assert child.tainted_by == f"conversation {conversation.pk}"
    deferred.fire_due()
    settle(Turn.objects.filter(conversation=conversation))
    conversation.refresh_from_db()
    assert conversation.tainted_by == f"a sub-agent, conversation {child.pk}"


def test_what_is_trusted_stays_so(spawn, conversation):
    call = spawn(task="one")
    settle([*Turn.objects.filter(conversation=conversation), Turn.objects.get(conversation__spawned_by=call.pk)])
    deferred.fire_due()
    settle(Turn.objects.filter(conversation=conversation))
    assert not Conversation.objects.filter(tainted_at_seq__isnull=False).exists()
