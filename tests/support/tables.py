"""The tables that are looked through for what must be in none of them."""

from django.db import connection

# SQLite's full-text table of messages keeps no text to be read; what it keeps stands in tables of its own.
UNREADABLE = frozenset({"conversations_saidwords"})


def readable_tables() -> list[str]:
    """Whatever is in the database, also what no model is of, such as an index."""
    return sorted(set(connection.introspection.table_names()) - UNREADABLE)
