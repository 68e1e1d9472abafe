"""What schemathesis needs of this pytest."""

import pytest


def lend_an_id(item: pytest.Item) -> None:
    """Give a test the attribute that schemathesis writes each operation's name to while it tries it.

    Its other way, a test for each operation, gives all of them one id here: xdist then runs the last and leaves out the
    others without a word.
    """
    item._nodeid = item.nodeid  # type: ignore[attr-defined]
