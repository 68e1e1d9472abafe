"""A reader that is cut off, anywhere, as often as may be, comes back and sees what one sees who never was cut off.

On production it comes back to one web node and the other in turns.
"""

import asyncio
import os
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import shapes
from tests.support import warm
from tests.support.api_client import eventually, start
from tests.support.crowd import Visitor, come, request, until
from tests.support.hosts import Host, environment_of
from tests.support.scripts import script
from tests.support.sse import Told, text_of

SEED = int(os.environ.get("FAULTS_SEED", "") or random.SystemRandom().randrange(10**6))
PIECES = 60
POEM = " ".join(f"word{number}" for number in range(PIECES))


@pytest.fixture(scope="module")
def addresses(host: Host, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Of every web node: embedded there is one, on production a second on the same servers."""
    if shapes.shape() == shapes.EMBEDDED:
        yield [host.address]
        return
    printed = tmp_path_factory.mktemp("web") / "web.log"
    with printed.open("wb") as log:
        web = warm.start(
            ("manage.py", "web"), env=environment_of(host.data_dir), stdout=log.fileno(), stderr=log.fileno()
        )
    try:
        yield [host.address, eventually(lambda: address_in(printed), seconds=60)]
    finally:
        web.kill()
        web.wait()


def address_in(log: Path) -> str:
    found = re.search(r"listening on (http://[^/\s]+)", log.read_text())
    return found[1] if found else ""


class Cut:
    """A reader of a turn that is cut off again and again, and what it has seen in all."""

    def __init__(self, turn_id: str, addresses: list[str], dice: random.Random) -> None:
        self.seen: list[Told] = []
        self.cuts = self.visits = 0
        self.ended_whole = False
        self._turn_id, self._addresses, self._dice = turn_id, addresses, dice

    async def read(self, *, most_cuts: int) -> None:
        """Read to the end; after so many cuts, undisturbed."""
        while not self.seen or self.seen[-1].id != "end":
            # Before the first byte, in mid event, between two: as the dice have it. An event has 150 bytes or so.
            await self.visit(self._dice.randint(0, 900) if self.cuts < most_cuts else None)

    async def visit(self, cut_after: int | None) -> None:
        last_id, address = self.seen[-1].id if self.seen else "", self._addresses[self.visits % len(self._addresses)]
        asked = request("GET", f"/turns/{self._turn_id}/events", last_id=last_id, in_query=bool(self.visits % 2))
        visitor = await come(address, asked, cut_after=cut_after)
        await visitor.left
        assert visitor.status == 200
        self.visits += 1
        self.seen += visitor.told()
        self.ended_whole = visitor.body().endswith(b"\n\n")
        self.cuts += self.seen == [] or self.seen[-1].id != "end"


@pytest.mark.parametrize(
    ("readers", "cuts"), [pytest.param(4, 20, id="20"), pytest.param(10, 200, id="200", marks=pytest.mark.faults)]
)
def test_a_reader_that_is_cut_off_anywhere_sees_the_exact_sequence(
    host: Host, addresses: list[str], readers: int, cuts: int, capsys: pytest.CaptureFixture[str]
) -> None:
    dice = random.Random(SEED)
    steps = script({"think": "Which ones?", "call": [{"name": "time"}], "pace": 0}, {"say": POEM, "pace": 0.05})

    async def read_together(turn_id: str, slow: str) -> tuple[Visitor, list[Cut]]:
        whole = await come(addresses[0], request("GET", f"/turns/{turn_id}/events"))
        await until(whole.told)
        await come(addresses[0], request("POST", f"/turns/{slow}/cancel"))
        live = [Cut(turn_id, addresses, dice) for _ in range(readers)]
        await asyncio.gather(*(each.read(most_cuts=cuts // readers) for each in live), whole.left)
        while sum(each.cuts for each in live) < cuts:  # the rest after the end: it is kept for a while
            live.append(Cut(turn_id, addresses, dice))
            await live[-1].read(most_cuts=cuts - sum(each.cuts for each in live))
        return whole, live

    with host.client() as client:
        url = f"/conversations/{start(client)}/turns"
        slow, turn_id = (
            client.post(url, json={"message": message}).json()["turnId"] for message in (script({"sleep": 600}), steps)
        )
        whole, cut = asyncio.run(read_together(turn_id, slow))
    with capsys.disabled():
        said = f"{sum(each.cuts for each in cut)} cuts, {sum(each.cuts for each in cut[:readers])} of them live"
        print(f"\nFAULTS_SEED={SEED}: {said}, {len(addresses)} web nodes")  # noqa: T201 -- to repeat it
    sequence = whole.told()
    assert text_of(sequence, 1) == POEM == sequence[-1].data["assistantMessage"]
    assert len({event.id for event in sequence}) == len(sequence)
    for each in cut:
        assert each.seen == sequence
    assert sum(each.cuts for each in cut) >= cuts


def test_a_reader_is_cut_off_where_it_hurts(host: Host, addresses: list[str]) -> None:
    """Before the first event, in the midst of one, behind the last piece, and after the end."""

    async def read(turn_id: str) -> tuple[Visitor, Cut]:
        whole = await come(addresses[0], request("GET", f"/turns/{turn_id}/events"))
        await whole.left
        reader = Cut(turn_id, addresses, random.Random())
        await reader.visit(0)
        assert reader.seen == []
        await reader.visit(700)
        assert 0 < len(reader.seen) < len(whole.told())
        assert not reader.ended_whole
        last_piece = whole.told()[-2]
        assert last_piece.kind == "message.delta"
        resumed = Cut(turn_id, addresses, random.Random())
        resumed.seen = [last_piece]
        await resumed.visit(None)
        assert resumed.seen == whole.told()[-2:]
        await reader.visit(None)
        ended = await come(addresses[-1], request("GET", f"/turns/{turn_id}/events", last_id=reader.seen[-1].id))
        await ended.left
        assert ended.status == 204
        return whole, reader

    with host.client() as client:
        url = f"/conversations/{start(client)}/turns"
        turn_id = client.post(url, json={"message": script({"say": POEM, "pace": 0.01})}).json()["turnId"]
        whole, reader = asyncio.run(read(turn_id))
    assert reader.seen == whole.told()
