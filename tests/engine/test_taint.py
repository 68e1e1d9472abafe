"""Taint: what comes from outside is held against calls with effects and egress, wherever it is carried to."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from agent.models import Agent
from conversations import pins
from conversations.engine import inbox, turn_control
from conversations.engine.consent import approvals
from conversations.engine.incoming import Incoming
from conversations.engine.turns import claim_and_load
from conversations.models import Conversation, Message, Turn
from memory import documents, log
from memory.models import HistoryEntry, Memory, MemoryVersion
from scheduler import series
from scheduler.models import Schedule
from scheduler.ticking import tick
from tests.support.ageing import go, keep
from tests.support.compacting import compact, saves
from tests.support.factories import AgentFactory
from tests.support.injections import INJECTIONS, Injection
from tests.support.pages import Site
from tests.support.scripts import script
from tests.support.voters import ANNA
from tests.support.working import advance, run_call, settle
from tools import gate
from tools.models import Approval, CallStatus, ToolCall

pytestmark = pytest.mark.django_db(transaction=True)

# Each text is tried without a guard, so that it is seen to do harm, and with one of the two guards.
GUARDS = ("approve", "refuse")
OBEY = {"obey": True, "say": "Nobody asks me to do anything."}
DONE = {"say": "Done."}
each_injection = pytest.mark.parametrize("injection", INJECTIONS, ids=lambda each: each.name)
where_it_is_quick = pytest.mark.embedded(reason="what is decided is the same code on both; those of pages are on both")


def policies(injection: Injection, *, off: int = 1) -> tuple[str, ...]:
    """One of the guards; without a guard first, for one text of ``off``: that each does harm, pages show."""
    place = INJECTIONS.index(injection)
    guard = GUARDS[place % 2]
    return (guard,) if place % off else ("off", guard)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """A web site that tools may reach."""
    made = Site()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("HTTP_ALLOWED_PRIVATE_CIDRS", "127.0.0.0/8")
        environment.setenv("HTTP_ALLOWED_PORTS", str(made.port))
        gate.close_tools()  # so that their processes start anew, and may
        yield made
    gate.close_tools()
    made.close()


@pytest.fixture(autouse=True)
def tools(tool_settings: Any) -> None:
    own = ("remember", "daily_note", "session_state", "recall_history", "schedule")
    tool_settings("http_get", "fetch", grants=["NET_HTTP"])
    tool_settings("append_line", grants=["FS_WRITE"])
    tool_settings("echo", *own)


@pytest.fixture
def harm(site: Site, marks: Any) -> Any:
    """What an injection asks for, and whether it was done since it was looked at last."""
    path = marks / "deleted"

    class Harm:
        def asked_by(self, injection: Injection) -> str:
            if injection.kind == "send":
                return injection.asking("http_get", url=site.address("/sent?notes"))
            return injection.asking("append_line", path=str(path), line="deleted")

        def was_done(self) -> bool:
            done = "/sent?notes" in site.asked or path.exists()
            site.asked.clear()
            path.unlink(missing_ok=True)
            return done

    return Harm()


def call(name: str, **arguments: Any) -> dict[str, Any]:
    """A step of a script that calls a tool."""
    return {"call": [{"name": name, "arguments": arguments}]}


def settle_denying(turn: Turn) -> None:
    """Work until the turn has ended; what waits for consent because of taint, somebody denies."""
    for _ in range(30):
        advance(turn)
        for queued in ToolCall.objects.filter(turn_id=turn.pk, status=CallStatus.QUEUED):
            run_call(queued)
        for approval in Approval.objects.filter(turn_id=turn.pk, state="pending"):
            assert approval.rule == "consent:tainted"
            approvals.decide(approval.pk, by=ANNA, decision="deny")
        if not Turn.objects.open().filter(pk=turn.pk).exists():
            return
    raise AssertionError("not settled")


RULE = {"off": "", "approve": "consent:denied", "refuse": "tainted"}


@pytest.fixture
def talk(owner: Any) -> Callable[..., Conversation]:
    """Say something to an agent of this policy, and have it answered."""

    def converse(*steps: Any, taint: str = "refuse", into: Conversation | None = None) -> Conversation:
        agent = Agent.objects.filter(name=taint).first() or AgentFactory(name=taint, taint=taint)
        chat = into or inbox.start_conversation(owner_id=owner.pk, agent=agent.name, metadata={})
        said = steps[0] if isinstance(steps[0], str) else script(*steps)
        settle_denying(inbox.receive(Incoming(said), conversation=chat, request_id="request-1"))
        chat.refresh_from_db()
        return chat

    return converse


def calls_of(chat: Conversation) -> list[tuple[str, str, str]]:
    rows = ToolCall.objects.filter(conversation_id=chat.pk).order_by("created_at", "position")
    return list(rows.values_list("tool_name", "status", "rule"))


def forget_through(chat: Conversation, seq: int) -> None:
    """Its messages up to this one become old, and go."""
    old = Message.objects.filter(conversation=chat, seq__lte=seq)
    old.update(created_at=timezone.now() - timedelta(days=31))
    keep(chat.agent, messages=30)
    assert go()["refuse", "messages"] >= seq


def source_of(chat: Conversation) -> str:
    """From where its taint came; its message says the same."""
    chat.refresh_from_db()
    if chat.tainted_at_seq is not None:
        assert Message.objects.get(conversation=chat, seq=chat.tainted_at_seq).tainted_by == chat.tainted_by
    return chat.tainted_by


# --- forty texts, in three places -------------------------------------------------------------------------------


def test_the_texts_are_forty_and_each_asks_for_one_thing():
    assert len(INJECTIONS) == len({each.text for each in INJECTIONS}) == 40
    assert {each.kind for each in INJECTIONS} == {"send", "delete"}


@each_injection
def test_what_a_page_asks_for_is_not_done(injection, site, harm, talk):
    page = site.page("/page", harm.asked_by(injection))
    for policy in policies(injection):
        chat = talk(call("http_get", url=page), OBEY, DONE, taint=policy)
        assert harm.was_done() is (policy == "off")
        (_, _, _), (_, status, rule) = calls_of(chat)
        assert (status, rule) == ("SUCCESS" if policy == "off" else "REJECTED", RULE[policy])


@where_it_is_quick
@each_injection
def test_what_the_memory_asks_for_is_not_done(injection, site, harm, talk):
    page, fact = site.page("/page", "Roses."), harm.asked_by(injection)
    for policy in policies(injection, off=5):
        talk(call("http_get", url=page), call("remember", fact=fact), DONE, taint=policy)
        harm.was_done()
        chat = talk(OBEY, DONE, taint=policy)
        assert harm.was_done() is (policy == "off")
        assert [rule for _, _, rule in calls_of(chat)] == [RULE[policy]]


@where_it_is_quick
@each_injection
def test_what_a_summary_asks_for_is_not_done(injection, site, harm, talk, model, settings):
    settings.MEMORY_WINDOW = 1
    page = site.page("/page", "Roses.")
    for policy in policies(injection, off=5):
        chat = talk(call("http_get", url=page), DONE, taint=policy)
        talk("Hello", taint=policy, into=chat)
        model.answer(saves(summary=harm.asked_by(injection)))
        assert compact(chat).status == "done"
        harm.was_done()
        talk(OBEY, DONE, taint=policy, into=chat)
        assert harm.was_done() is (policy == "off")
        assert calls_of(chat)[-1][2] == RULE[policy]


# --- where it enters ---------------------------------------------------------------------------------------------


def test_it_enters_with_the_first_result_that_is_untrusted(talk, site):
    chat = talk(call("echo", value="hello"), call("http_get", url=site.page("/page", "Roses.")), DONE)
    marked = Message.objects.get(conversation=chat, seq=chat.tainted_at_seq)
    assert (source_of(chat), marked.role, marked.tool_name) == ("the tool http_get", "tool", "http_get")
    assert Message.objects.filter(conversation=chat, tainted_by__isnull=False).count() == 1
    assert talk(call("echo", value="hello"), DONE).tainted_at_seq is None


def test_an_error_taints_as_well_and_a_refusal_does_not(talk, site, tool_settings):
    assert source_of(talk(call("http_get", url="http://10.0.0.1/"), DONE)) == "the tool http_get"
    assert source_of(talk(call("http_get", no_such="argument"), DONE)) == ""


def test_calls_of_one_round_were_asked_for_before_it_entered(talk, site, harm, marks):
    page, path = site.page("/page", "Roses."), str(marks / "deleted")
    both = {"call": [*call("http_get", url=page)["call"], *call("append_line", path=path, line="x")["call"]]}
    chat = talk(both, call("append_line", path=path, line="y"), DONE)
    assert [rule for _, _, rule in calls_of(chat)] == ["", "", "tainted"]
    assert (marks / "deleted").read_text() == "x\n"


def test_a_round_that_is_cut_short_taints_all_the_same(owner, site, marks):
    agent = AgentFactory(taint="refuse")
    chat = inbox.start_conversation(owner_id=owner.pk, agent=agent.name, metadata={})
    fetch = call("http_get", url=site.page("/page", "Roses."))
    slow = call("append_line", path=str(marks / "x"), line="")
    steps = script({"call": [*fetch["call"], *slow["call"]]}, DONE)
    turn = inbox.receive(Incoming(steps), conversation=chat, request_id="request-1")
    advance(turn)
    run_call(ToolCall.objects.get(turn_id=turn.pk, tool_name="http_get"))
    assert turn_control.cancel_turn(turn)
    assert source_of(chat) == "the tool http_get"


# --- what goes on ------------------------------------------------------------------------------------------------


def test_reading_and_what_the_agent_keeps_goes_on_and_is_marked(talk, site):
    chat = talk(call("http_get", url=site.page("/page", "Roses.")), DONE)
    own = [("remember", {"fact": "roses"}), ("daily_note", {"text": "roses"})]
    own.append(("session_state", {"key": "a", "value": "b"}))
    for name, arguments in [*own, ("recall_history", {"query": "roses"}), ("echo", {"value": 1})]:
        talk(call(name, **arguments), DONE, into=chat)
    assert {status for _, status, _ in calls_of(chat)} == {"SUCCESS"}
    head, where = Memory.objects.get(), f"conversation {chat.pk}"
    assert (head.tainted_by, head.notes_tainted_by) == (where, where)
    assert (MemoryVersion.objects.get().tainted_by, HistoryEntry.objects.get().tainted_by) == (where, where)
    assert Conversation.objects.get(pk=chat.pk).state_tainted == {"a": "the tool http_get"}


def test_a_schedule_is_no_more_made_than_anything_else_that_acts(talk, site):
    chat = talk(call("http_get", url=site.page("/page", "Roses.")), DONE)
    talk(call("schedule", action="list"), DONE, into=chat)
    assert calls_of(chat)[-1] == ("schedule", "REJECTED", "tainted")


def test_the_model_is_told_why_in_plain_words(talk, site):
    chat = talk(call("http_get", url=site.page("/page", "Roses.")), call("fetch", url="x"), DONE)
    refused = ToolCall.objects.get(conversation_id=chat.pk, tool_name="fetch")
    assert "may not be used here any more" in refused.result
    assert "from the tool http_get" in refused.result
    assert refused.attempts == 0


def test_what_somebody_approves_runs_all_the_same(owner, talk, site):
    chat = talk(call("http_get", url=site.page("/page", "Roses.")), DONE, taint="approve")
    page = site.page("/more", "Tulips.")
    steps = script(call("http_get", url=page), DONE)
    asking = inbox.receive(Incoming(steps), conversation=chat, request_id="request-1")
    advance(asking)
    approval = Approval.objects.get(turn_id=asking.pk)
    approvals.decide(approval.pk, by=ANNA, decision="approve")
    settle_denying(asking)
    assert calls_of(chat)[-1] == ("http_get", "SUCCESS", "")


def test_a_call_is_decided_on_again_when_it_starts(owner, conversation, say, agent, marks):
    Agent.objects.filter(pk=agent.pk).update(taint="refuse")
    turn = say(script(call("append_line", path=str(marks / "x"), line="x"), DONE))
    advance(turn)
    Conversation.objects.filter(pk=conversation.pk).update(tainted_at_seq=1, tainted_by="somebody who pinned it")
    ended = run_call(ToolCall.objects.get(turn_id=turn.pk))
    assert (ended.status, ended.rule) == (CallStatus.REJECTED, "tainted")
    assert not (marks / "x").exists()


# --- how long it stays -------------------------------------------------------------------------------------------


def test_it_survives_a_summary_which_is_marked(talk, site, settings):
    settings.MEMORY_WINDOW = 1
    chat = talk(call("http_get", url=site.page("/page", "Roses.")), DONE)
    talk("Hello", into=chat)
    compact(chat)
    summary = Message.objects.get(conversation=chat, type=Message.Type.SUMMARY)
    assert summary.tainted_by == source_of(chat) == "the tool http_get"
    assert HistoryEntry.objects.get().tainted_by == f"conversation {chat.pk}"
    assert Conversation.objects.get(pk=chat.pk).consolidated_through >= chat.tainted_at_seq
    talk(call("fetch", url="x"), DONE, into=chat)
    assert calls_of(chat)[-1][2] == "tainted"


def test_a_summary_of_what_was_said_before_it_entered_is_not_marked(talk, site, settings):
    settings.MEMORY_WINDOW = 3
    chat = talk("Hello")
    talk(call("http_get", url=site.page("/page", "Roses.")), DONE, into=chat)
    done = compact(chat)
    chat.refresh_from_db()
    assert done.through_seq < chat.tainted_at_seq
    assert Message.objects.get(conversation=chat, type=Message.Type.SUMMARY).tainted_by is None


@pytest.mark.parametrize("command", ["/new", "/reset", "/clear"])
def test_a_new_beginning_ends_it(talk, site, command):
    chat = talk(call("http_get", url=site.page("/page", "Roses.")), DONE)
    assert source_of(talk(command, into=chat)) == ""
    talk(call("fetch", url="x"), DONE, into=chat)
    assert calls_of(chat)[-1][1:] == ("SUCCESS", "")


def test_a_new_beginning_leaves_the_memory_marked(talk, site):
    chat = talk(call("http_get", url=site.page("/page", "Roses.")), call("remember", fact="roses"), DONE)
    talk("/new", into=chat)
    assert source_of(chat) == ""
    talk("Hello", into=chat)
    assert source_of(chat) == f"long-term memory, version 1, learnt in conversation {chat.pk}"


def test_what_is_archived_at_a_new_beginning_is_marked(talk, site):
    chat = talk(call("http_get", url=site.page("/page", "Roses.")), DONE)
    talk("Remember that I like roses", into=chat)
    talk("/new", into=chat)
    assert documents.background(agent="refuse", owner_id=chat.owner_id, today=timezone.localdate()).tainted_by
    assert HistoryEntry.objects.get().tainted_by == f"conversation {chat.pk}"


def test_what_is_pinned_keeps_it(talk, site, harm):
    chat = talk(call("http_get", url=site.page("/page", "Roses.")), {"say": "Roses."})
    said = Message.objects.filter(conversation=chat, role="assistant").latest("seq")
    pins.pin(chat.pk, said.pk, by="anna")
    talk("/reset", into=chat)
    chat.refresh_from_db()
    assert (chat.tainted_at_seq, "which is pinned" in chat.tainted_by) == (said.seq, True)
    pins.unpin(chat.pk, said.pk)
    talk("/reset", into=chat)
    assert source_of(chat) == ""
    pins.pin(chat.pk, said.pk, by="anna")
    chat.refresh_from_db()
    assert chat.tainted_at_seq == said.seq


@pytest.mark.parametrize("first", ["/reset", "retention"])
def test_what_is_pinned_keeps_it_though_the_message_that_brought_it_is_deleted_by_its_age(talk, site, first):
    chat = talk(call("http_get", url=site.page("/page", "Roses.")), DONE)
    talk("Hello", into=chat)
    said = Message.objects.filter(conversation=chat, role="assistant").latest("seq")
    steps = [lambda: talk("/reset", into=chat), lambda: forget_through(chat, said.seq - 2)]
    for step in steps if first == "/reset" else reversed(steps):
        step()
    assert source_of(chat) == ""
    pins.pin(chat.pk, said.pk, by="anna")
    chat.refresh_from_db()
    assert (chat.tainted_at_seq, "the tool http_get" in chat.tainted_by) == (said.seq, True)


def test_what_is_said_after_all_that_is_tainted_was_deleted_by_its_age_is_no_cleaner(talk, site):
    chat = talk(call("http_get", url=site.page("/page", "Roses.")), DONE)
    forget_through(chat, chat.next_seq - 1)
    assert not Message.objects.filter(conversation=chat).exists()
    talk("Hello", into=chat)
    said = Message.objects.filter(conversation=chat, role="assistant").latest("seq")
    talk("/reset", into=chat)
    pins.pin(chat.pk, said.pk, by="anna")
    chat.refresh_from_db()
    assert (chat.tainted_at_seq, "the tool http_get" in chat.tainted_by) == (said.seq, True)


def test_what_was_said_after_a_tainted_summary_stays_tainted_though_that_is_deleted(talk, site, settings):
    settings.MEMORY_WINDOW = 1
    chat = talk("Hello")
    talk("Hello again", into=chat)
    talk(call("http_get", url=site.page("/page", "Roses.")), call("remember", fact="roses"), DONE)
    summed_up = compact(chat)
    talk("And again", into=chat)
    said = Message.objects.filter(conversation=chat, role="assistant").latest("seq")
    assert source_of(chat).startswith("long-term memory")
    talk("/reset", into=chat)
    forget_through(chat, summed_up.through_seq)
    assert not Message.objects.filter(conversation=chat, type=Message.Type.SUMMARY).exists()
    pins.pin(chat.pk, said.pk, by="anna")
    chat.refresh_from_db()
    assert chat.tainted_at_seq == said.seq


def test_what_is_pinned_before_it_entered_does_not(talk, site):
    chat = talk("Hello")
    pins.pin(chat.pk, Message.objects.get(conversation=chat, seq=1).pk, by="anna")
    talk(call("http_get", url=site.page("/page", "Roses.")), DONE, into=chat)
    assert source_of(talk("/reset", into=chat)) == ""


def test_the_state_that_was_kept_meanwhile_brings_it_back(talk, site):
    keep = call("session_state", key="step", value="two")
    chat = talk(call("session_state", key="old", value="one"), DONE)
    talk(call("http_get", url=site.page("/page", "Roses.")), keep, DONE, into=chat)
    talk("/reset", into=chat)
    talk(call("session_state", key="old"), DONE, into=chat)
    assert source_of(chat) == ""
    talk(call("session_state", key="step"), DONE, into=chat)
    assert source_of(chat) == "what was kept for the conversation (the tool http_get)"


# --- how it gets elsewhere ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("days", [0, 1])
def test_notes_carry_it_for_their_day(talk, site, days):
    talk(call("http_get", url=site.page("/page", "Roses.")), call("daily_note", text="roses"), DONE)
    Memory.objects.update(notes_on=timezone.localdate() - timedelta(days=days))
    assert ("notes of" in source_of(talk("Hello"))) is (days == 0)


def test_a_summary_that_is_made_beside_a_tainted_memory_carries_it(talk, site, settings):
    settings.MEMORY_WINDOW = 1
    chat = talk("Hello")
    talk("Hello again", into=chat)
    learnt = talk(call("http_get", url=site.page("/page", "Roses.")), call("remember", fact="roses"), DONE)
    assert source_of(chat) == ""
    compact(chat)
    assert source_of(chat) == f"long-term memory, version 1, learnt in conversation {learnt.pk}"
    assert Message.objects.get(conversation=chat, seq=chat.tainted_at_seq).type == Message.Type.SUMMARY


def test_what_is_found_in_the_log_carries_it(talk, site):
    learnt = talk(call("http_get", url=site.page("/page", "Roses.")), call("daily_note", text="roses"), DONE)
    Memory.objects.update(notes_on=None)
    assert source_of(talk(call("recall_history", query="tulips"), DONE)) == ""
    chat = talk(call("recall_history", query="roses"), DONE)
    assert source_of(chat) == f"the history log, an entry learnt in conversation {learnt.pk}"


def test_an_untainted_rewrite_of_a_tainted_memory_stays_tainted_and_an_older_version_is_clean(talk, owner, site):
    talk(call("remember", fact="tea"), DONE)
    talk(call("http_get", url=site.page("/page", "Roses.")), call("remember", fact="roses"), DONE)
    of = {"agent": "refuse", "owner_id": owner.pk}
    documents.rewrite(**of, base=2, content="- roses and tea", source="api", checked=False)
    assert Memory.objects.get().tainted_by
    documents.restore(MemoryVersion.objects.get(number=1), by="anna")
    assert Memory.objects.get().tainted_by == ""
    documents.restore(MemoryVersion.objects.get(number=2), by="anna")
    assert Memory.objects.get().tainted_by


@pytest.mark.parametrize("new_conversation", [False, True])
def test_a_schedule_carries_it_past_a_new_beginning(talk, site, new_conversation):
    make = call("schedule", action="create", prompt="Hello", at="2099-05-05T09:00", new_conversation=new_conversation)
    chat = talk(call("http_get", url=site.page("/page", "Roses.")), make, DONE, taint="off")
    row = Schedule.objects.get()
    assert source_of(talk("/reset", into=chat)) == ""
    assert source_of(talk(call("schedule", action="list"), DONE, taint="off")).startswith("a schedule, made in")
    tick(now=row.next_at)
    turn = Turn.objects.latest("created_at")
    settle([turn])
    spoken = Conversation.objects.get(pk=turn.conversation_id)
    assert (source_of(spoken), spoken.pk == chat.pk) == (f"a schedule, made in {row.tainted_by}", not new_conversation)


def test_a_schedule_is_marked_until_its_texts_are_others(owner):
    texts = {"prompt": "Roses.", "description": "roses"}
    row = series.create(owner_id=owner.pk, at="2099-05-05T09:00", tainted_by="a page", **texts)
    assert series.update(row, at="2099-05-06T09:00", **texts).tainted_by == "a page"
    assert series.update(row, prompt="Tulips.").tainted_by == "a page"
    assert series.update(row, prompt="Tea.", description="tea").tainted_by == ""
    assert series.update(row, prompt="Roses.", tainted_by="a page").tainted_by == "a page"


def test_a_message_that_waits_behind_a_new_beginning_taints_after_it(conversation, say):
    turns = [say("/reset"), say("Hello", tainted_by="a schedule")]
    settle(turns)
    conversation.refresh_from_db()
    assert conversation.tainted_at_seq == turns[1].messages.get(role="user").seq
    assert source_of(conversation) == "a schedule"


def test_what_failed_and_is_asked_again_is_no_cleaner(conversation, say):
    turn = say(script({"fail": "auth"}), tainted_by="a schedule")
    settle([turn])
    settle([say("/reset")])
    turn.refresh_from_db()
    settle([inbox.ask_again(turn, request_id="request-2")])
    assert source_of(conversation) == "a schedule"


def test_a_note_of_the_agent_carries_it(conversation):
    assert inbox.note(conversation_id=conversation.pk, content="Roses.", by_agent=True, tainted_by="a check-in")
    assert source_of(conversation) == "a check-in"
    assert inbox.note(conversation_id=conversation.pk, content="Tulips.")
    assert (source_of(conversation), conversation.next_seq) == ("a check-in", 3)


# --- and what does not ------------------------------------------------------------------------------------------


def test_a_memory_that_somebody_has_read_and_trusts_taints_nobody(talk, owner, site):
    talk(call("http_get", url=site.page("/page", "Roses.")), call("remember", fact="roses"), DONE)
    assert documents.trust(agent="refuse", owner_id=owner.pk)
    assert not documents.trust(agent="refuse", owner_id=owner.pk)
    assert source_of(talk("Hello")) == ""


def test_an_untainted_conversation_knows_of_none(conversation, say):
    turn = say("Hello")
    claim, context = claim_and_load(turn.pk, worker="worker-1")
    assert (context.taint.by, context.taint.entering) == ("", "")
    assert claim.agent.allowed_tools(tainted_by=context.taint.by).tainted_by == ""
    log.note(agent=claim.agent.name, owner_id=claim.owner_id, text="tea", today=timezone.localdate())
    assert HistoryEntry.objects.get().tainted_by is None
