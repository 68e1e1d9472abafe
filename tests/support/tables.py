"""The tables that are looked through for what must be in none of them."""

from collections.abc import Iterator

from django.db import connection

# SQLite's full-text table of messages keeps no text to be read; what it keeps stands in tables of its own.
UNREADABLE = frozenset({"conversations_saidwords"})


def readable_tables() -> list[str]:
    """Whatever is in the database, also what no model is of, such as an index."""
    return sorted(set(connection.introspection.table_names()) - UNREADABLE)


def rows_of_all_tables() -> Iterator[tuple[str, str]]:
    """Each table, and all its rows as a text."""
    with connection.cursor() as cursor:
        for table in readable_tables():
            cursor.execute(f'SELECT * FROM "{table}"')
            yield table, repr(cursor.fetchall())
