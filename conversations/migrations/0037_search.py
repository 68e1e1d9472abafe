"""An index of what was said, by its words: conversations/search.py tells how it is asked.

SQLite's triggers stand on the table of messages, and read that of conversations. A later migration that makes one of the
two anew (there, most changes of a column do) has to drop them before it, since SQLite refuses to rename a table that a
trigger names, and make them again; tests/engine/test_search.py sees it.
"""

from django.db import migrations

SAID = "{0}role IN ('user', 'assistant') AND {0}kind = ''"

# What a message is found by. The full-text table keeps no text of its own, so that a deletion has to tell it what stood
# there; its rows have numbers of their own, since those of a table without a number for its key may change.
_ADD = """
    INSERT INTO conversations_said (message_id, owner_id)
        SELECT new.id, owner_id FROM conversations_conversation WHERE id = new.conversation_id;
    INSERT INTO conversations_saidwords (rowid, content)
        SELECT id, substr(new.content, 1, 100000) FROM conversations_said WHERE message_id = new.id;
"""
_REMOVE = """
    INSERT INTO conversations_saidwords (conversations_saidwords, rowid, content)
        SELECT 'delete', id, substr(old.content, 1, 100000) FROM conversations_said WHERE message_id = old.id;
    DELETE FROM conversations_said WHERE message_id = old.id;
"""

MAKE = {
    "postgresql": [
        """CREATE INDEX said_by_word ON conversations_message
        USING gin (to_tsvector('simple', left(content, 100000)))
        WHERE role::text = ANY (ARRAY['user'::text, 'assistant'::text]) AND kind = ''""",
    ],
    "sqlite": [
        """CREATE TABLE conversations_said (
            id integer PRIMARY KEY AUTOINCREMENT, message_id char(32) NOT NULL UNIQUE, owner_id integer NOT NULL
        )""",
        """CREATE VIRTUAL TABLE conversations_saidwords USING fts5 (
            content, content='', detail=none, columnsize=0, tokenize='unicode61 remove_diacritics 2'
        )""",
        f"""CREATE TRIGGER conversations_said_insert AFTER INSERT ON conversations_message
        WHEN {SAID.format("new.")} BEGIN {_ADD} END""",
        f"""CREATE TRIGGER conversations_said_delete AFTER DELETE ON conversations_message
        WHEN {SAID.format("old.")} BEGIN {_REMOVE} END""",
        f"""CREATE TRIGGER conversations_said_update AFTER UPDATE OF content ON conversations_message
        WHEN {SAID.format("old.")} AND old.content <> new.content BEGIN {_REMOVE} {_ADD} END""",
        """INSERT INTO conversations_said (message_id, owner_id) SELECT message.id, owner_id
        FROM conversations_message message JOIN conversations_conversation whose ON conversation_id = whose.id
        WHERE role IN ('user', 'assistant') AND kind = '' ORDER BY message.id""",
        """INSERT INTO conversations_saidwords (rowid, content) SELECT said.id, substr(content, 1, 100000)
        FROM conversations_said said JOIN conversations_message said_in ON said_in.id = message_id ORDER BY said.id""",
    ],
}
UNDO = {
    "postgresql": ["DROP INDEX said_by_word"],
    "sqlite": [
        *(f"DROP TRIGGER conversations_said_{event}" for event in ("insert", "delete", "update")),
        "DROP TABLE conversations_saidwords",
        "DROP TABLE conversations_said",
    ],
}


def make(apps, schema_editor):
    for statement in MAKE[schema_editor.connection.vendor]:
        schema_editor.execute(statement, params=None)


def undo(apps, schema_editor):
    for statement in UNDO[schema_editor.connection.vendor]:
        schema_editor.execute(statement, params=None)


class Migration(migrations.Migration):
    dependencies = [("conversations", "0036_shares")]

    operations = [migrations.RunPython(make, undo)]
