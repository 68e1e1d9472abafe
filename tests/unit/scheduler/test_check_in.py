"""Check-ins: no model is asked without cause, none twice, and what is told comes where it is told."""

import threading
from datetime import UTC, datetime, timedelta

import pytest
from django.db import IntegrityError, connection
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from agent import check_in as document
from agent.models import Agent, AgentVersion
from conversations.engine import model_request
from conversations.engine.turns import claim_and_load
from conversations.models import Compaction, Conversation, Message, Turn
from conversations.statuses import TurnStatus
from memory import documents
from memory.models import Memory
from scheduler import runs
from scheduler.check_in import ask_agents, settle, tokens_of
from scheduler.daily import summarise_day
from scheduler.models import CheckIn
from tests.support.factories import AgentFactory
from tests.support.scripts import script
from tests.support.working import settle as work

pytestmark = pytest.mark.django_db(transaction=True)

NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
MINUTE, HALF_HOUR = timedelta(minutes=1), timedelta(minutes=30)

TASK = "# Tasks\n\n- [ ] Water the plants.\n"
TELL = script({"say": "The plants are dry."})


@pytest.fixture
def watch(agent, owner):
    """``watch(TASK)``: the default agent has this document."""

    def write(text, **fields):
        fields = {"check_in_owner": owner, **fields}
        Agent.objects.filter(pk=agent.pk).update(documents={"HEARTBEAT": text}, **fields)
        return Agent.objects.get(pk=agent.pk)

    return write


def states():
    return list(CheckIn.objects.order_by("slot").values_list("state", flat=True))


def live_through(times, *, since=NOW):
    """So many half hours, each with its turn and its outcome."""
    for number in range(times):
        ask_agents(now=since + number * HALF_HOUR)
        work(Turn.objects.open())
        settle(now=since + number * HALF_HOUR + MINUTE)


def test_an_agent_may_have_minutes_of_its_own_and_a_change_of_them_asks_nobody_twice(watch):
    agent = watch("# Nothing to do", check_in_minutes=10)
    asked = []
    for minute in range(60):
        if minute == 45:  # the piece of 30 minutes that is running began with one
            Agent.objects.filter(pk=agent.pk).update(check_in_minutes=None)
        before = CheckIn.objects.count()
        ask_agents(now=NOW + minute * MINUTE)
        asked += [minute] * (CheckIn.objects.count() - before)
    assert asked == [0, 10, 20, 30, 40]
    ask_agents(now=NOW + 60 * MINUTE)
    Agent.objects.filter(pk=agent.pk).update(check_in_minutes=45)
    ask_agents(now=NOW + 61 * MINUTE)  # its piece of 45 minutes began at 0:45, and has that of 1:00
    assert CheckIn.objects.count() == 6


def test_the_minutes_are_a_limit_of_the_agent_with_its_versions(admin_client, watch):
    agent = watch(TASK)
    page = f"/admin/agent/agent/{agent.pk}/change/"
    form = {"document_heartbeat": TASK, "check_in_owner": agent.check_in_owner_id}
    assert b"1440" in admin_client.post(page, form | {"check_in_minutes": 5000}).content
    assert admin_client.post(page, form | {"check_in_minutes": 120}).status_code == 302
    version = AgentVersion.objects.latest("number")
    assert version.profile["heartbeat_minutes"] == 120
    assert "heartbeat_minutes" in version.changed.split(", ")
    assert "Minutes between check-ins" in admin_client.get(f"/admin/agent/agent/{agent.pk}/whole/").content.decode()


def told(owner):
    found = Message.objects.filter(conversation__owner=owner, conversation__key="heartbeat:default", turn=None)
    return list(found.order_by("seq").values_list("role", "content"))


# --- whether there is anything to do ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n \n\t",
        "# Tasks\n\n## Later ##\n#",
        "<!-- Add tasks below. -->",
        "<!-- several\n- [ ] lines\n--> <!-- and another -->",
        "<!-- never ends\n- [ ] Water the plants.",
        "- [x] done\n  * [X] this too\n+ [x]\n1. [x] and this\n2) [X] and that",
        "# Tasks\r\n\r\n- [x] done\r\n",
    ],
)
def test_there_is_nothing_to_do_and_no_model_is_asked(watch, text):
    watch(text)
    assert not document.has_something_to_do(text)
    assert [ask_agents(now=NOW + number * MINUTE) for number in (0, 1, 30)] == [0, 0, 0]
    assert (states(), Turn.objects.count(), Conversation.objects.count()) == (["nothing", "nothing"], 0, 0)


@pytest.mark.parametrize(
    "text",
    [
        "- [ ] Water the plants.",
        "Look after the plants.",
        "#hashtag",
        "<!-- a --> b",
        "- [x] done\n- [ ] not done",
        "-[x]",
    ],
)
def test_there_is_something_to_do(text):
    assert document.has_something_to_do(text)


@given(st.text("-*+1.)[]xX #<!>ab\n\t", max_size=40))
def test_a_line_with_words_is_always_something(text):
    lines = [f"- [x]{' x' * (len(text) % 3)}", "# x", f"<!-- {text.replace('-', '')} -->"]
    assert not document.has_something_to_do("\n".join(lines))
    assert document.has_something_to_do("\n".join([*lines, "- [ ] x"]))


@pytest.mark.parametrize(
    "answer",
    [
        *("HEARTBEAT_OK", " HEARTBEAT_OK\n", "**HEARTBEAT_OK**", "`HEARTBEAT_OK`.", "heartbeat_ok", "Heartbeat_Ok!"),
        *("HEARTBEATOK", r"HEARTBEAT\_OK", "I have looked at all of it.\n\nHEARTBEAT_OK", "HEARTBEAT_OK: all is well."),
    ],
)
def test_nothing_to_tell(answer):
    assert document.has_nothing_to_tell(answer)


@pytest.mark.parametrize("answer", ["", "heartbeat ok", "HEARTBEAT", "The heartbeat is OK.", "All is well."])
def test_something_to_tell(answer):
    assert not document.has_nothing_to_tell(answer)


# --- asked, and answered ------------------------------------------------------------------------------------------


def test_it_is_asked_once_in_half_an_hour_on_behalf_of_its_owner(watch, owner):
    watch(TASK)
    assert [ask_agents(now=NOW + number * MINUTE) for number in (0, 1, 29)] == [1, 0, 0]
    (turn,) = work(Turn.objects.all())
    assert (turn.owner, turn.conversation.key) == (owner, "heartbeat:default:asked")
    asked = turn.messages.order_by("seq")[0].content
    assert asked.startswith(document.HEAD)
    assert asked.endswith("- [ ] Water the plants.")
    assert ask_agents(now=NOW + HALF_HOUR) == 1


def test_an_answer_that_all_is_well_is_stored_and_not_delivered(watch, owner):
    watch(TASK)
    live_through(1)
    assert states() == ["ok"]
    assert Turn.objects.get().messages.last().content == "HEARTBEAT_OK"
    assert not Conversation.objects.filter(key="heartbeat:default").exists()


def test_an_answer_that_says_so_among_other_words_is_not_delivered_and_can_be_read(watch, owner):
    answer = "The plants were watered on Monday.\n\nheartbeat_ok"
    watch(f"Look after the plants.\n{script({'say': answer})}")
    live_through(1)
    assert states() == ["ok"]
    assert Turn.objects.get().messages.last().content == answer
    assert not Conversation.objects.filter(key="heartbeat:default").exists()


def test_its_answer_is_text_whatever_form_its_agent_s_answers_have(watch):
    watch(TASK, answer_schema='{"type": "object"}')
    live_through(1)
    assert states() == ["ok"]


def test_what_it_has_to_tell_is_delivered_once_as_its_own_words(watch, owner):
    watch(f"Look after the plants.\n{TELL}")
    live_through(1)
    settle(now=NOW + 2 * MINUTE)
    assert (states(), told(owner)) == (["told"], [("assistant", "The plants are dry.")])
    assert CheckIn.objects.get().tokens > 0


def test_what_it_has_to_tell_carries_taint_to_where_it_is_told(watch, owner):
    of = {"agent": "default", "owner_id": owner.pk}
    documents.rewrite(**of, base=0, content="- roses", source="remember", tainted_by="a page")
    watch(TELL)
    live_through(1)
    asked, told_in = (Conversation.objects.get(key=f"heartbeat:default{which}") for which in (":asked", ""))
    assert asked.tainted_by == "long-term memory, version 1, learnt in a page"
    assert told_in.tainted_by == f"a check-in, asked in conversation {asked.pk}"
    Memory.objects.update(tainted_by="")
    ask_agents(now=NOW + HALF_HOUR)  # which begins anew
    assert Conversation.objects.get(pk=asked.pk).tainted_at_seq is None


def test_its_user_can_answer_where_it_was_told(watch, owner, say):
    watch(TELL)
    live_through(1)
    where = Conversation.objects.select_related("agent").get(key="heartbeat:default")
    (turn,) = work([say("Which ones?", conversation=where)])
    assert turn.status == TurnStatus.SUCCEEDED


def test_what_is_told_waits_until_nobody_speaks_there(watch, owner, say):
    watch(TELL)
    live_through(1)
    where = Conversation.objects.select_related("agent").get(key="heartbeat:default")
    active = say("hello", conversation=where)
    Turn.objects.filter(pk=active.pk).update(status=TurnStatus.WAITING)
    ask_agents(now=NOW + HALF_HOUR)
    work([Turn.objects.exclude(pk=active.pk).latest("created_at")])
    settle(now=NOW + 31 * MINUTE)
    assert (states(), len(told(owner))) == (["told", "open"], 1)
    Turn.objects.filter(pk=active.pk).update(status=TurnStatus.CANCELLED)
    settle(now=NOW + 32 * MINUTE)
    assert states() == ["told", "told"]
    assert [content for _, content in told(owner)] == ["The plants are dry.", "The plants are dry."]


def test_each_begins_anew_and_sends_nothing_of_those_before(watch):
    watch(TASK)
    live_through(3)
    ask_agents(now=NOW + 3 * HALF_HOUR)
    turn = Turn.objects.open().get()
    _, context = claim_and_load(turn.pk, worker="worker-1")
    request = model_request.Asking(context, None).request
    assert [message["role"] for message in request.messages] == ["system", "user"]
    assert "Water the plants" not in request.messages[0]["content"]
    assert Message.objects.filter(conversation=turn.conversation_id).count() == 7


def test_a_user_who_speaks_there_is_not_cut_off(watch, say):
    watch(TASK)
    live_through(1)
    where = Conversation.objects.select_related("agent").get(key="heartbeat:default:asked")
    turn = say("What is this?", conversation=where)
    claim_and_load(turn.pk, worker="worker-1")
    started_at = Conversation.objects.get(pk=where.pk).starts_at_seq
    assert ask_agents(now=NOW + HALF_HOUR) == 1
    assert Conversation.objects.get(pk=where.pk).starts_at_seq == started_at


def test_a_turn_that_fails_is_told_of_in_the_list_and_the_next_is_asked(watch):
    watch(script({"fail": "auth"}))
    live_through(2)
    assert (states(), CheckIn.objects.first().error) == (["failed", "failed"], "llm_auth")


def test_a_conversation_that_is_deleted_ends_it(watch):
    watch(TASK)
    ask_agents(now=NOW)
    Conversation.objects.all().delete()
    live_through(1, since=NOW + HALF_HOUR)
    assert states() == ["failed", "ok"]


@pytest.mark.parametrize(("fields", "why"), [({"check_in_owner": None}, "It has no owner"), ({}, "is not active")])
def test_without_an_owner_who_is_active_nobody_is_asked(watch, owner, fields, why):
    watch(TASK, **fields)
    type(owner).objects.update(is_active=False)
    assert ask_agents(now=NOW) == 0
    assert states() == ["skipped"]
    assert why in CheckIn.objects.get().error


def test_one_whose_check_in_fails_keeps_no_other_from_its_own(watch, owner, caplog):
    watch(TASK)
    AgentFactory(name="broken", documents={"HEARTBEAT": None}, check_in_owner=owner)
    assert ask_agents(now=NOW) == 1
    assert "the check-in of broken failed" in caplog.text


# --- one at a time ------------------------------------------------------------------------------------------------


def test_one_that_has_not_ended_lets_the_next_pass(watch):
    watch(TASK)
    for number in range(3):
        ask_agents(now=NOW + number * HALF_HOUR)
    assert states() == ["open", "skipped", "skipped"]
    work(Turn.objects.all())
    ask_agents(now=NOW + 3 * HALF_HOUR)
    assert (states(), Turn.objects.count()) == (["ok", "skipped", "skipped", "open"], 2)


def test_the_database_admits_one_open_check_in_an_agent_and_one_a_slot(agent):
    CheckIn.objects.create(agent=agent, slot=NOW, day=NOW.date(), state="open")
    for fields in ({"slot": NOW + HALF_HOUR}, {"slot": NOW, "ended_at": NOW}):
        with pytest.raises(IntegrityError):
            CheckIn.objects.create(agent=agent, day=NOW.date(), state="open", **fields)


@pytest.mark.parametrize("open_before", [False, True])
def test_many_who_look_at_once_ask_once(watch, open_before):
    watch(TASK)
    if open_before:
        ask_agents(now=NOW - HALF_HOUR)
    at_once(lambda: ask_agents(now=NOW))
    assert states() == (["open", "skipped"] if open_before else ["open"])
    assert Turn.objects.count() == 1


def test_many_who_see_the_answer_deliver_it_once(watch, owner):
    watch(TELL)
    live_through(1)
    ask_agents(now=NOW + HALF_HOUR)
    work(Turn.objects.open())
    at_once(lambda: settle(now=NOW + 31 * MINUTE))
    assert (states(), len(told(owner))) == (["told", "told"], 2)


def at_once(act):
    """Have six threads do it."""
    barrier, broken = threading.Barrier(6), []

    def look():
        barrier.wait()
        try:
            act()
        except Exception as error:
            broken.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=look) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert broken == []


# --- tokens -------------------------------------------------------------------------------------------------------


def test_the_tokens_of_a_day_are_capped_and_its_owner_is_told_once(watch, owner, settings):
    settings.HEARTBEAT_TOKENS_A_DAY = 1
    agent = watch(TASK)
    live_through(4)
    assert states() == ["ok", "capped", "capped", "capped"]
    used = tokens_of(agent, NOW.date())
    assert (used, Turn.objects.count()) == (CheckIn.objects.order_by("slot")[0].tokens, 1)
    assert told(owner) == [
        ("system", f"Its check-ins have used {used} tokens on this day, of 1. default is asked again on the next day.")
    ]
    live_through(1, since=NOW + timedelta(days=1))
    assert states()[-1] == "ok"


def test_a_turn_that_failed_has_used_its_tokens_as_well(watch):
    watch(TASK)
    ask_agents(now=NOW)
    Turn.objects.update(status=TurnStatus.FAILED, prompt_tokens=300, completion_tokens=20, error_code="x")
    settle(now=NOW)
    assert CheckIn.objects.get().tokens == 320


def test_a_day_is_one_by_the_local_clock(watch, settings):
    settings.TIME_ZONE = "Asia/Kolkata"
    timezone.get_default_timezone.cache_clear()
    try:
        watch("")
        ask_agents(now=datetime(2026, 5, 4, 19, 0, tzinfo=UTC))
        assert str(CheckIn.objects.get().day) == "2026-05-05"
    finally:
        timezone.get_default_timezone.cache_clear()


def test_the_console_shows_them_by_day(admin_client, watch):
    watch(TASK)
    live_through(2)
    used = sum(CheckIn.objects.values_list("tokens", flat=True))
    page = admin_client.get("/admin/scheduler/checkin/").content.decode()
    assert page.count(f"{used} of 100000") == 2


# --- the document -------------------------------------------------------------------------------------------------


def test_the_document_is_edited_in_the_admin_versioned_and_in_no_other_prompt(admin_client, agent, owner, say):
    form = {"system_prompt": "", "model": "", "document_soul": "Be patient.", "document_heartbeat": TASK}
    answer = admin_client.post(f"/admin/agent/agent/{agent.pk}/change/", form | {"check_in_owner": owner.pk})
    assert answer.status_code == 302, answer.content.decode()
    version = AgentVersion.objects.latest("number")
    assert {"HEARTBEAT", "heartbeat_owner"} <= set(version.changed.split(", "))
    assert version.profile["documents"]["HEARTBEAT"].split() == TASK.split()
    _, context = claim_and_load(say("Hello").pk, worker="worker-1")
    request = model_request.Asking(context, None).request
    system = request.messages[0]["content"]
    assert "Be patient." in system
    assert "Water the plants" not in system
    assert "HEARTBEAT" not in system
    assert ask_agents(now=NOW) == 1


# --- around it ----------------------------------------------------------------------------------------------------


def test_its_turns_may_not_use_schedules(watch, tool_settings):
    tool_settings("schedule")
    step = {"call": [{"name": "schedule", "arguments": {"action": "list"}}]}
    watch(script(step, {"say": "{results}"}), every_tool=True)
    live_through(1)
    assert "A turn that was begun by the clock may not" in Turn.objects.get().messages.last().content


def test_old_ones_are_forgotten(agent):
    for days in (89, 91):
        CheckIn.objects.create(
            agent=agent,
            slot=NOW - timedelta(days=days),
            day=NOW.date(),
            state="ok",
            ended_at=timezone.now() - timedelta(days=days),
        )
    assert runs.forget_old() == 1
    assert CheckIn.objects.get().slot == NOW - timedelta(days=89)


def test_no_model_is_asked_for_a_summary_of_what_nobody_reads(watch, settings):
    """Its tokens would be counted by no cap."""
    settings.SCHEDULER_DAILY_SUMMARY_COVERS = "last-24h"
    watch(TELL)
    ask_agents(now=timezone.now())
    work(Turn.objects.open())
    settle(now=timezone.now())
    assert summarise_day(now=timezone.now() + MINUTE) == 1
    assert Compaction.objects.get().conversation.key == "heartbeat:default"
