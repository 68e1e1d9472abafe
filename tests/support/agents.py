"""Agents of a running host besides its own."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.hosts import Host


@contextmanager
def another_agent(host: Host, name: str = "another") -> Iterator[str]:
    """One that is like the default one, and has done nothing; gone afterwards, by that name."""
    (row,) = host.sql("SELECT * FROM agent_agent WHERE name = 'default'")
    columns = ", ".join(f'"{column}"' for column in row if column not in ("id", "name"))
    host.sql(
        f"INSERT INTO agent_agent (name, {columns}) SELECT ?, {columns} FROM agent_agent WHERE id = ?", name, row["id"]
    )
    yield name
    talks = "SELECT c.id FROM conversations_conversation c JOIN agent_agent a ON a.id = c.agent_id WHERE a.name = ?"
    if host.sql(talks, name):  # it stays for them, under a name that nobody uses
        host.sql(
            "UPDATE agent_agent SET name = ?, is_public = ? WHERE name = ?", f"gone-{row['id']}-{name}", False, name
        )
    else:
        host.sql("DELETE FROM agent_agent WHERE name = ?", name)
