"""Foreign keys that PostgreSQL itself follows when what they refer to is deleted, as Django does.

Django deletes the rows that refer to a row before the row, but a node of the release before does not know the tables of
this one: whatever a replay or a question refers to, it could not delete, neither for a person who asks nor for
retention.
"""

from django.apps import apps
from django.db import connection, models

_ACTIONS = {models.CASCADE: "CASCADE", models.SET_NULL: "SET NULL"}

_NOT_FOLLOWED = """
SELECT con.confdeltype <> 'a', own.relname, key.attname, con.conname, referred.relname, referred_key.attname
FROM pg_constraint AS con
JOIN pg_class AS own ON own.oid = con.conrelid AND own.relkind = 'r'
JOIN pg_class AS referred ON referred.oid = con.confrelid AND referred.relkind = 'r'
JOIN pg_attribute AS key ON key.attrelid = own.oid AND key.attnum = con.conkey[1]
JOIN pg_attribute AS referred_key ON referred_key.attrelid = referred.oid AND referred_key.attnum = con.confkey[1]
WHERE con.contype = 'f' AND (con.confdeltype = 'a' OR NOT con.convalidated)
AND con.connamespace = current_schema()::regnamespace AND array_length(con.conkey, 1) = 1
ORDER BY own.relname, con.conname
"""


def follow_deletes() -> None:
    """Have PostgreSQL follow every foreign key that Django follows, but for those of a table in parts, or to one.

    On SQLite there is no release before that works on this one's database.
    """
    if connection.vendor != "postgresql":
        return
    from psycopg import sql  # a host on SQLite loads no PostgreSQL driver

    wanted = _wanted()
    with connection.cursor() as cursor:
        cursor.execute(_NOT_FOLLOWED)
        for is_followed, table, column, name, referred, referred_column in cursor.fetchall():
            if action := wanted.get((table, column)):
                names = [*map(sql.Identifier, (table, name, name, column, referred, referred_column))]
                if not is_followed:
                    cursor.execute(sql.SQL(_FOLLOW).format(*names, action=sql.SQL(action)))
                cursor.execute(sql.SQL("ALTER TABLE {} VALIDATE CONSTRAINT {}").format(*names[:2]))


# NOT VALID: looking at the rows that there are would hold up their writers; it is done afterwards, when it does not.
_FOLLOW = (
    "ALTER TABLE {} DROP CONSTRAINT {}, ADD CONSTRAINT {} FOREIGN KEY ({}) REFERENCES {} ({})"
    " ON DELETE {action} DEFERRABLE INITIALLY DEFERRED NOT VALID"
)


def _wanted() -> dict[tuple[str, str], str]:
    """What is to happen to a row when what it refers to is deleted, by its table and column."""
    return {
        (model._meta.db_table, field.column): _ACTIONS[field.remote_field.on_delete]
        for model in apps.get_models(include_auto_created=True)
        for field in model._meta.local_concrete_fields
        if isinstance(field, models.ForeignKey) and field.remote_field.on_delete in _ACTIONS
    }
