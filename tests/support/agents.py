"""Agents of a running host besides its own."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.hosts import Host


@contextmanager
def another_agent(host: Host, name: str = "another") -> Iterator[str]:
    """One that is like the default one, and has done nothing; gone afterwards, with all that was said to it."""
    (row,) = host.sql("SELECT * FROM agent_agent WHERE name = 'default'")
    columns = ", ".join(f'"{column}"' for column in row if column not in ("id", "name"))
    host.sql(
        f"INSERT INTO agent_agent (name, {columns}) SELECT ?, {columns} FROM agent_agent WHERE id = ?", name, row["id"]
    )
    yield name
    host.sql("DELETE FROM agent_agent WHERE name = ?", name)
