"""What schemathesis needs: of this pytest, and of a host."""

from collections.abc import Iterator

import pytest

from tests.support.hosts import Host


def lend_an_id(item: pytest.Item) -> None:
    """Give a test the attribute that schemathesis writes each operation's name to while it tries it.

    Its other way, a test for each operation, gives all of them one id here: xdist then runs the last and leaves out the
    others without a word.
    """
    item._nodeid = item.nodeid


def own_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A host for what schemathesis makes up, to be made a fixture: it leaves schedules and messages for later, which
    would go on beside other tests."""
    running = Host(tmp_path_factory.mktemp("made-up")).start()
    yield running
    running.kill()
