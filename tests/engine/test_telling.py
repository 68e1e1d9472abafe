"""What is told of an answer while it comes: all of it, in order, and large pieces without the event loop."""

import asyncio
import threading

import pytest

from agent.llm.base import Delta
from conversations.engine.telling import Telling
from conversations.events.kinds import EventKind
from nanohost.lib import redaction
from nanohost.lib.known_secrets import KnownSecrets
from tests.support.listening import until

pytestmark = pytest.mark.shapeless(reason="what is told is only looked at")

LARGE = "x" * (redaction.LARGE + 1)


@pytest.fixture
def secrets(monkeypatch):
    """One is known; and the threads in which texts were read for it."""
    known, read_in = KnownSecrets(), set()
    known.add("KEY", "canary-0123456789")
    spellings = known.spellings
    monkeypatch.setattr(known, "spellings", lambda: read_in.add(threading.get_ident()) or spellings())
    monkeypatch.setattr(redaction, "known_secrets", known)
    return read_in


def told_of(*deltas):
    """What is told of these pieces, each with where it begins, and whether all could come at once."""
    told = []

    async def main():
        telling = Telling(lambda kind, data: told.append((kind, data["offset"], data["text"])), message=0)
        for delta in deltas:
            telling(delta)
        await telling.end()

    asyncio.run(main())
    return told


def test_pieces_behind_a_large_one_wait_for_it(secrets):
    pieces = [Delta(content="One "), Delta(content=LARGE), Delta(reasoning="hm"), Delta(content=" canary-01")]
    told = told_of(*pieces, Delta(content="23456789, two"))
    kinds = [kind for kind, _, _ in told]
    assert kinds[0] == EventKind.MESSAGE_DELTA
    for kind, whole in (
        (EventKind.MESSAGE_DELTA, f"One {LARGE} {redaction.MASK}, two"),
        (EventKind.REASONING_DELTA, "hm"),
    ):
        begins, seen = 0, ""
        for _, offset, text in filter(lambda each: each[0] == kind, told):
            assert offset == begins
            begins, seen = begins + len(text), seen + text
        assert seen == whole
    assert kinds.index(EventKind.REASONING_DELTA) > 1, "it came behind the large one"


def test_the_event_loop_reads_no_large_piece(secrets):
    told_of(Delta(content=LARGE))
    assert threading.get_ident() in secrets, "small pieces are read at once, the end among them"
    assert secrets - {threading.get_ident()}

    read = []

    async def main():
        telling = Telling(lambda kind, data: read.append(data["text"]), message=0)
        secrets.clear()
        telling(Delta(content=LARGE))
        await until(lambda: read)
        assert threading.get_ident() not in secrets
        await telling.end()

    asyncio.run(main())
    assert read == [LARGE]


def test_what_nobody_wants_any_more_is_not_told(secrets):
    told = []

    async def main():
        telling = Telling(lambda kind, data: told.append(data["text"]), message=0)
        telling(Delta(content="One "))
        telling(Delta(content=LARGE))
        telling.stop()
        telling(Delta(content="two"))
        with pytest.raises(asyncio.CancelledError):
            await telling.end()

    asyncio.run(main())
    assert told == ["One "]
