"""What a model that consolidates gave validly is kept, whatever else is wrong; and what is void is not paid for."""

import asyncio
import itertools
import json
import threading
from dataclasses import replace
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.db.models import F

from agent import llm, tokens
from agent.tokens import Correction, estimated_message, estimated_tools
from conversations.engine.compacting import compaction, parts
from conversations.engine.compacting.compactor import Compactor
from conversations.models import Compaction, CompactionStatus, Conversation, Message
from memory import documents
from memory.models import HistoryEntry, Memory, MemoryVersion
from nanohost.lib.database_threads import DatabaseThreads
from tests.support.compacting import KEEP, compact, saves
from tests.support.openai_server import call, completion, failure
from tests.support.working import settle

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def nothing_learned(monkeypatch):
    """Of models, by tests before."""
    monkeypatch.setattr(tokens, "correction", Correction())


def as_nanobot(**arguments: Any) -> Any:
    """An answer with exactly the two arguments of nanobot's tool."""
    given = {"history_entry": "[2026-03-15 14:30] They spoke of roses.", "memory_update": "- likes roses"} | arguments
    return completion(None, tool_calls=[call("save_memory", json.dumps(given))], finish_reason="tool_calls")


def summary_of(conversation: Conversation) -> str:
    conversation.refresh_from_db()
    return Message.objects.get(conversation=conversation, seq=conversation.summary_seq).content


def logged(**which: Any) -> list[str]:
    return list(HistoryEntry.objects.filter(**which).order_by("pk").values_list("content", flat=True))


# --- nanobot's two arguments ---------------------------------------------------------------------------------------


def test_new_succeeds_with_a_model_that_gives_nanobots_two_arguments(conversation, fill, model, say):
    fill(8)
    model.answer(as_nanobot())
    (turn,) = settle([say("/new")])
    reply = Message.objects.get(turn=turn, role="assistant").content
    assert reply == "Started afresh. The conversation is kept in memory."
    assert Memory.objects.get().content == "- likes roses"
    assert logged() == ["They spoke of roses."]


def test_the_entry_is_then_the_summary_and_goes_on_with_the_one_before(conversation, fill, model):
    fill(44)
    model.answer(as_nanobot(), as_nanobot(history_entry={"topic": "tulips"}, memory_update={"likes": "tulips"}))
    assert compact(conversation).status == CompactionStatus.DONE
    assert summary_of(conversation) == "[2026-03-15 14:30] They spoke of roses."
    fill(22)
    assert compact(conversation).status == CompactionStatus.DONE
    assert summary_of(conversation) == '[2026-03-15 14:30] They spoke of roses.\n\n{"topic": "tulips"}'
    assert logged() == ["They spoke of roses.", '{"topic": "tulips"}']
    kept = MemoryVersion.objects.order_by("pk").values_list("content", flat=True)
    assert list(kept) == ["- likes roses", '{"likes": "tulips"}']


@pytest.mark.parametrize("summary", [None, "  ", "x" * 30_000, "?"])
def test_where_the_summary_is_of_no_use_the_entry_stands_in(conversation, fill, model, summary):
    fill(44)
    model.answer(saves(summary=summary))
    assert compact(conversation).status == CompactionStatus.DONE
    assert summary_of(conversation) == "Roses."
    assert Memory.objects.get().content == "- likes roses"


def test_what_is_spread_over_several_calls_is_taken_together(conversation, fill, model):
    fill(44)
    given: list[Any] = [{"history_entry": "Roses."}, {"memory_update": "- likes roses"}, {"history_entry": "Tulips."}]
    calls = [call("save_memory", json.dumps(each), f"call_{number}") for number, each in enumerate(given)]
    model.answer(completion(None, tool_calls=calls, finish_reason="tool_calls"))
    assert compact(conversation).status == CompactionStatus.DONE
    assert Memory.objects.get().content == "- likes roses"
    assert summary_of(conversation) == "Roses.\nTulips."


def test_a_long_entry_is_in_the_log_whole(conversation, fill, model):
    fill(44)
    model.answer(saves(history_entry="word " * 1500))
    assert compact(conversation).status == CompactionStatus.DONE
    assert "".join(logged()) == ("word " * 1500).strip()
    assert max(map(len, logged())) <= 3000


# --- a memory alone ------------------------------------------------------------------------------------------------

ALONE = {"summary": None, "history_entry": None}


def test_a_memory_without_a_summary_is_kept_and_the_rest_asked_for_again(conversation, fill, model):
    fill(44)
    model.answer(saves(**ALONE), saves(memory_update=None))
    row = compact(conversation)
    assert (row.status, row.error) == (CompactionStatus.QUEUED, "the model's answer: it gave no summary")
    conversation.refresh_from_db()
    assert conversation.consolidated_through == 0
    assert Memory.objects.get().content == "- likes roses"
    assert compact(conversation).status == CompactionStatus.DONE
    assert "- likes roses" in model.requests[1].body["messages"][1]["content"]


def test_a_stub_does_not_lose_the_memory_that_models_gave(conversation, fill, model):
    fill(44)
    model.answer(*[saves(**ALONE, memory_update=f"- likes roses\n- fact {number}") for number in range(3)])
    row = compact(conversation, times=4)
    assert (row.status, row.is_stub) == (CompactionStatus.DONE, True)
    assert Memory.objects.get().content == "- likes roses\n- fact 2"
    version = MemoryVersion.objects.latest("pk")
    assert (version.source, version.first_seq, version.last_seq) == ("compaction", 1, 24)


def test_a_memory_alone_that_was_overtaken_is_kept_aside(conversation, fill, model):
    fill(44)

    def meanwhile(request: Any) -> None:
        in_a_thread(remember, conversation.owner_id)

    model.on_request = meanwhile
    model.answer(saves(**ALONE))
    assert compact(conversation).status == CompactionStatus.QUEUED
    assert Memory.objects.get().content == "- from elsewhere"
    (aside,) = MemoryVersion.objects.filter(number=None)
    assert (aside.content, aside.aside_because) == ("- likes roses", "The memory was rewritten meanwhile.")


def remember(owner_id: int) -> None:
    documents.rewrite(agent="default", owner_id=owner_id, base=0, content="- from elsewhere", source="remember")
    connection.close()


def test_new_keeps_a_memory_alone_and_says_so(conversation, fill, model, say):
    fill(8)
    model.answer(saves(**ALONE))
    (turn,) = settle([say("/new")])
    reply = Message.objects.get(turn=turn, role="assistant").content
    assert reply.startswith("Nothing was changed but the long-term memory: the model's answer was of no use")
    assert Memory.objects.get().content == "- likes roses"
    conversation.refresh_from_db()
    assert conversation.starts_at_seq == 1


def test_a_worker_without_a_hold_keeps_no_memory(conversation, fill):
    fill(44)
    compaction.request(conversation.pk, None, keep_tokens=KEEP)
    hold = compaction.claim(Compaction.objects.get().pk, worker="slow")
    part = parts.read(conversation.pk, agent=conversation.agent, keep_tokens=KEEP)
    Compaction.objects.update(fence=F("fence") + 1)
    with pytest.raises(compaction.FenceLost):
        compaction.keep_memory(part, "- likes roses", model="m", turn_id=None, hold=hold)
    assert not MemoryVersion.objects.exists()


# --- chunk by chunk ------------------------------------------------------------------------------------------------

LONG = "Remember " + "that the roses are red and the violets are blue " * 4


@pytest.fixture
def chunked(conversation, fill, agent):
    """A conversation whose older part takes several calls."""
    agent.context_window = 4000
    agent.save()
    fill(60, words=LONG)
    return conversation


@pytest.mark.parametrize("fault", [failure(503), completion("No."), failure(422, "context_length_exceeded")])
def test_what_was_made_of_the_first_chunks_is_not_paid_for_again(chunked, model, fault):
    model.answer(saves(history_entry="One."), saves(history_entry="Two."), fault)
    row = compact(chunked)
    assert row.status == CompactionStatus.QUEUED
    assert chunked.consolidated_through == 0
    asked = len(model.requests)
    assert compact(chunked).status == CompactionStatus.DONE
    entries = HistoryEntry.objects.order_by("pk").values_list("content", "first_seq", "last_seq")
    assert [content for content, *_ in entries[:2]] == ["One.", "Two."]
    shown = "".join(request.body["messages"][1]["content"] for request in model.requests[asked:])
    assert f"{LONG} 1\n" not in shown
    assert f"{LONG} 40" in shown
    assert all(later[1] - earlier[2] in (0, 1) for earlier, later in itertools.pairwise(entries))
    assert entries[len(entries) - 1][2] == Compaction.objects.get().through_seq
    assert Compaction.objects.get().made_so_far is None


def test_a_stub_of_the_last_chunks_has_what_was_made_of_the_first(chunked, model):
    model.answer(saves(summary="All of it.", history_entry="One."), *[completion("No.")] * 3)
    row = compact(chunked, times=4)
    assert (row.status, row.is_stub) == (CompactionStatus.DONE, True)
    assert summary_of(chunked).startswith("All of it.\n\nMessages ")
    assert Memory.objects.get().content == "- likes roses"
    assert logged(kind="entry") == ["One."]
    raw = "".join(logged(kind="raw"))
    assert f"{LONG} 40" in raw
    assert "Remember" in raw
    assert f"{LONG} 1\n" not in raw


def test_what_was_made_on_an_older_memory_is_made_again(chunked, model):
    model.answer(saves(), failure(503))
    compact(chunked)
    documents.rewrite(agent="default", owner_id=chunked.owner_id, base=0, content="- likes tea", source="person")
    model.forget()
    assert compact(chunked).status == CompactionStatus.DONE
    assert f"{LONG} 1\n" in model.requests[0].body["messages"][1]["content"]
    assert "- likes tea" in Memory.objects.get().content


def test_a_secret_is_not_kept_between_chunks(chunked, model):
    secret = "sk-abcdefghijklmnopqrstuvwxyz0123456789"
    model.answer(saves(summary=secret, memory_update=secret, history_entry=secret), failure(503))
    compact(chunked)
    kept = json.dumps(Compaction.objects.get().made_so_far)
    assert "through" in kept
    assert "abcdefghijkl" not in kept


# --- small windows -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [1024, 2048, 4096, 7999])
@pytest.mark.parametrize("known", [0, 300])
def test_what_is_asked_fits_small_windows_and_nothing_known_is_lost(conversation, fill, agent, model, window, known):
    agent.context_window = window
    agent.save()
    facts = [f"- fact {number}: the quick brown fox of the year {number * 7}" for number in range(known)]
    if facts:
        documents.rewrite(
            agent="default", owner_id=conversation.owner_id, base=0, content="\n".join(facts), source="person"
        )
    fill(50, words="Remember " + "that the roses are red " * 5)
    Message.objects.filter(seq=4).update(content="long " * 3000)
    assert compact(conversation).status == CompactionStatus.DONE
    assert len(model.requests) > 1
    for request in model.requests:
        body = request.body
        cost = sum(map(estimated_message, body["messages"])) + estimated_tools(body["tools"])
        assert cost <= agent.prompt_tokens()
    remembered = Memory.objects.get().content.splitlines()
    assert remembered[: len(facts)] == facts
    assert any("Remember that the roses" in line for line in remembered[len(facts) :])
    assert not any("characters left out here" in line for line in remembered)
    assert not MemoryVersion.objects.filter(number=None).exists()


# --- a lease that is lost ------------------------------------------------------------------------------------------


def work_until_stopped(row: Compaction, model: Any) -> None:
    """Work on it as a worker does; fails if that does not end while the model is silent."""

    async def work() -> None:
        threads = DatabaseThreads(2)
        llm.forget_clients()
        try:
            working = asyncio.create_task(Compactor(worker="slow", database=threads).advance(row.pk))
            await asyncio.wait_for(asyncio.shield(working), 20)
        except TimeoutError:
            pytest.fail("it goes on paying")
        finally:
            threads.close()
            await llm.close_clients()

    asyncio.run(work())
    assert len(model.requests) == 1
    model.wait_until(lambda: model.requests[0].disconnected_at)


@pytest.fixture
def silent(conversation, fill, model, settings):
    """A compaction whose model says nothing for a minute."""
    settings.TURN_LEASE_SECONDS = 0.6
    fill(44)
    compaction.request(conversation.pk, None, keep_tokens=KEEP)
    model.answer(completion("Late.", before=60))
    return Compaction.objects.get()


def test_a_compaction_that_lost_its_lease_hangs_up_on_its_model(silent, model):
    def take_over(request: Any) -> None:
        Compaction.objects.update(fence=F("fence") + 1, worker="fast")
        connection.close()

    model.on_request = lambda request: in_a_thread(take_over, request)
    work_until_stopped(silent, model)
    silent.refresh_from_db()
    assert (silent.worker, silent.status, silent.failures) == ("fast", CompactionStatus.RUNNING, 0)


def test_one_whose_lease_cannot_be_renewed_goes_on_since_nobody_can_take_it(
    conversation, fill, model, settings, monkeypatch
):
    """While the database is away; what its model then answers is stored."""
    settings.TURN_LEASE_SECONDS = 0.3
    fill(44)
    model.answer(replace(saves(), before=1.5))
    away = []

    def refused(hold: Any) -> bool:
        away.append(hold)
        raise OperationalError("the database is away")

    monkeypatch.setattr(compaction, "renew", refused)
    row = compact(conversation)
    assert len(away) * settings.TURN_LEASE_SECONDS / 6 > settings.TURN_LEASE_SECONDS
    assert (row.status, row.failures, len(model.requests)) == (CompactionStatus.DONE, 0, 1)


def in_a_thread(function: Any, *args: Any) -> None:
    thread = threading.Thread(target=function, args=args)
    thread.start()
    thread.join()
