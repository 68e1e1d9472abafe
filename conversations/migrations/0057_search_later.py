"""On SQLite, messages wait for their place in the index of what was said, and are taken in by many: each transaction that
writes to a full-text table costs a dozen pages, and a turn has two. conversations/search.py takes them in.

What 0037 says of a migration that makes one of the two tables anew holds for these triggers, too.
"""

from importlib import import_module

from django.db import migrations

before = import_module("conversations.migrations.0037_search")

_WAIT = "INSERT INTO conversations_unsaid (message_id) VALUES (new.id);"
# What waits has no place yet that it could lose; its text is read when it gets one.
_TRIGGERS = {
    "insert": f"AFTER INSERT ON conversations_message WHEN {before.SAID.format('new.')} BEGIN {_WAIT} END",
    "update": f"""AFTER UPDATE OF content ON conversations_message
        WHEN {before.SAID.format("old.")} AND old.content <> new.content BEGIN {before._REMOVE} {_WAIT} END""",
}
MAKE = [
    *(f"DROP TRIGGER conversations_said_{event}" for event in _TRIGGERS),
    "CREATE TABLE conversations_unsaid (id integer PRIMARY KEY, message_id char(32) NOT NULL)",
    *(f"CREATE TRIGGER conversations_said_{event} {does}" for event, does in _TRIGGERS.items()),
]


def make(apps, schema_editor):
    if schema_editor.connection.vendor == "sqlite":
        for statement in MAKE:
            schema_editor.execute(statement, params=None)


def undo(apps, schema_editor):
    """Has nothing left waiting: what it undoes to knows no such table."""
    if schema_editor.connection.vendor != "sqlite":
        return
    from conversations import search

    search.take_in()
    for event in _TRIGGERS:
        schema_editor.execute(f"DROP TRIGGER conversations_said_{event}")
    schema_editor.execute("DROP TABLE conversations_unsaid")
    for statement in before.MAKE["sqlite"]:
        if any(f"TRIGGER conversations_said_{event} " in statement for event in _TRIGGERS):
            schema_editor.execute(statement, params=None)


class Migration(migrations.Migration):
    dependencies = [("conversations", "0056_deliveries_in_busy_chats")]

    operations = [migrations.RunPython(make, undo)]
