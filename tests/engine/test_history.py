"""The messages of a prompt: what a process has kept and what has come since are what it would read anew."""

import itertools
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conversations.engine import history, inbox
from conversations.engine.history import Recent
from conversations.models import Conversation, Message, Turn

pytestmark = pytest.mark.django_db(transaction=True)

POINTERS: dict[str, Any] = {"starts_at": 1, "consolidated_through": 0, "window": 4}
KINDS = st.sampled_from([Message.Kind.SAID, Message.Kind.SAID, Message.Kind.COMMAND, Message.Kind.ROLLING])

# What happens in a conversation: messages come, a turn begins, pointers are moved, the prompt is read.
HAPPENS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), KINDS, st.sampled_from(["user", "assistant", "tool"])),
        st.tuples(st.just("begin")),
        st.tuples(st.just("start"), st.integers(0, 12)),
        st.tuples(st.just("cover"), st.integers(0, 12)),
        st.tuples(st.just("summarise")),
        st.tuples(st.just("read")),
    ),
    max_size=40,
)


def begin(conversation: Conversation, number: int) -> Turn:
    return Turn.objects.create(conversation=conversation, owner_id=conversation.owner_id, number=number, request_id="r")


def append(turn: Turn, seq: int, kind: str = "", role: str = "user", **fields: Any) -> Message:
    summary = kind == Message.Kind.ROLLING
    fields |= {"type": Message.Type.SUMMARY if summary else Message.Type.NORMAL, "kind": kind, "role": role}
    return Message.objects.create(
        conversation=turn.conversation, turn=turn, seq=seq, **({"content": f"words {seq}"} | fields)
    )


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(HAPPENS, st.integers(1, 6))
def test_what_is_kept_is_what_would_be_read_anew(owner, happens, window):
    conversation = inbox.start_conversation(owner_id=owner.pk, metadata={})
    numbers = itertools.count(1)
    turn, seq, starts_at, covered, recent = begin(conversation, next(numbers)), 0, 1, 0, Recent()
    summary_seq = None
    for what, *given_ in [*happens, ("read",)]:
        match what:
            case "append":
                seq += 1
                append(turn, seq, *given_)
            case "begin":
                Turn.objects.filter(pk=turn.pk).update(status="succeeded")
                turn = begin(conversation, next(numbers))
            case "start":
                starts_at = max(starts_at, min(given_[0], seq + 1))  # it only moves on
                covered = max(covered, starts_at - 1)
            case "cover":
                covered = min(max(given_[0], starts_at - 1), seq)  # a summary that is undone moves it back
            case "summarise":
                summary_seq = seq or None
            case "read":
                pointers = {"starts_at": starts_at, "consolidated_through": covered, "window": window}
                pointers["summary_seq"] = summary_seq
                kept, kept_summary = history.read(conversation.pk, turn.pk, **pointers, recent=recent)
                anew, summary = history.read(conversation.pk, turn.pk, **pointers, recent=Recent())
                assert [seen(each, turn) for each in kept] == [seen(each, turn) for each in anew]
                assert kept_summary == summary == (f"words {summary_seq}" if summary_seq else "")


def seen(said: history.Said, turn: Turn) -> tuple[object, ...]:
    return said.seq, said.turn == turn.pk.int, said.is_command, said.chat, said.shown


@pytest.fixture
def turn(conversation: Conversation) -> Turn:
    return begin(conversation, 1)


def read(turn: Turn, recent: Recent, **pointers: Any) -> list[str]:
    said, _ = history.read(turn.conversation_id, turn.pk, **(POINTERS | pointers), recent=recent)
    return [each.chat["content"] for each in said]


def test_what_was_read_before_is_not_read_again(turn, django_assert_num_queries):
    recent = Recent()
    for seq in range(1, 7):
        append(turn, seq)
    first, _ = history.read(turn.conversation_id, turn.pk, **POINTERS, summary_seq=2, recent=recent)
    append(turn, 7)
    with django_assert_num_queries(1) as asked:
        second, summary = history.read(turn.conversation_id, turn.pk, **POINTERS, summary_seq=2, recent=recent)
    assert all(now is before for now, before in zip(second, first, strict=False))
    assert len(second) == len(first) + 1
    assert summary == "words 2"
    assert "LIMIT 501" in asked.captured_queries[0]["sql"]


def test_what_a_hand_has_changed_is_seen_after_a_while(turn, monkeypatch):
    recent = Recent()
    append(turn, 1)
    assert read(turn, recent) == ["words 1"]
    Message.objects.update(content="other words")
    assert read(turn, recent) == ["words 1"]
    now = history.time.monotonic()
    monkeypatch.setattr(history.time, "monotonic", lambda: now + history.KEPT_SECONDS)
    assert read(turn, recent) == ["other words"]


def test_another_time_zone_shows_other_times(turn, settings):
    recent = Recent()
    append(turn, 1)

    def shown() -> str:
        (said,), _ = history.read(turn.conversation_id, turn.pk, **POINTERS, recent=recent)
        return str(said.shown["content"])

    before = shown()
    settings.TIME_ZONE = "Asia/Kathmandu"
    assert "Asia/Kathmandu" in shown() != before


def test_of_more_that_came_than_a_prompt_has_the_last_are_read(turn, monkeypatch):
    recent = Recent()
    append(turn, 1)
    read(turn, recent)
    other = begin(turn.conversation, 2)
    Message.objects.bulk_create(
        Message(conversation=turn.conversation, turn=turn, seq=seq, role="user", content=f"words {seq}")
        for seq in range(2, 700)
    )
    assert read(other, recent) == [f"words {seq}" for seq in range(200, 700)]


def test_what_is_kept_is_bounded(conversation, owner, monkeypatch):
    monkeypatch.setattr(history, "MAX_KEPT_CHARS", 10_000)
    recent, turns = Recent(), []
    for number in range(4):
        talk = Conversation.objects.create(key=f"api:{number}", owner=owner, agent=conversation.agent)
        turns.append(begin(talk, 1))
        append(turns[-1], 1, content="x" * 1000)
        read(turns[-1], recent)
        read(turns[0], recent)  # which is used all the time
    kept = [recent.get(each.conversation_id) is not None for each in turns]
    assert kept == [True, False, True, True]
    append(turns[0], 2, content="x" * 10_000)
    assert read(turns[0], recent)[1:] == ["x" * 10_000]
    assert not any(recent.get(each.conversation_id) for each in turns)
