"""Tables whose rows are only ever added: the database itself refuses to change or delete one, by triggers.

Whoever owns the database can take the triggers away; what that would hide is for a hash chain to show. They are made at
each start of a host, and not by a migration: SQLite loses them where a migration makes a table anew, and the databases
of tests, which are emptied again and again, have none.
"""

from typing import Any

REFUSAL = "its rows are only added, never changed or deleted"

_POSTGRESQL = """
CREATE OR REPLACE FUNCTION {name}_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION '%: {refusal}', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END $$;
CREATE OR REPLACE TRIGGER {name}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table}
  FOR EACH STATEMENT EXECUTE FUNCTION {name}_append_only();
"""
_SQLITE = {
    "update": "BEFORE UPDATE ON {table}",
    "delete": "BEFORE DELETE ON {table}",
    # INSERT OR REPLACE deletes the rows that stand in its way, and no trigger of a deletion sees it.
    "replace": "BEFORE INSERT ON {table} WHEN EXISTS (SELECT 1 FROM {table} WHERE {is_in_its_way})",
}


def protect(connection: Any, model: Any) -> None:
    """See that a model's table refuses all but new rows."""
    given = _names(connection, model)
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(_POSTGRESQL.format(**given))
            return
        for what, when in _SQLITE.items():
            cursor.execute(f"DROP TRIGGER IF EXISTS {given['name']}_no_{what}")
            does = f"BEGIN SELECT RAISE(ABORT, '{given['name']}: {REFUSAL}'); END"
            cursor.execute(f"CREATE TRIGGER {given['name']}_no_{what} {when.format(**given)} {does}")


def unprotect(connection: Any, model: Any) -> None:
    """Take that away: before the table is dropped or, in tests, emptied."""
    given = _names(connection, model)
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("DROP TRIGGER IF EXISTS {name}_append_only ON {table}".format(**given))
            cursor.execute("DROP FUNCTION IF EXISTS {name}_append_only()".format(**given))
            return
        for what in _SQLITE:
            cursor.execute(f"DROP TRIGGER IF EXISTS {given['name']}_no_{what}")


def _names(connection: Any, model: Any) -> dict[str, str]:
    table, quote = model._meta.db_table, connection.ops.quote_name
    # A row has a number of SQLite's own as well, by which it can be named where it is not the key.
    unique = ["rowid", *(quote(field.column) for field in model._meta.concrete_fields if field.unique)]
    is_in_its_way = " OR ".join(f"{column} = NEW.{column}" for column in unique)
    return {"name": table, "table": quote(table), "is_in_its_way": is_in_its_way, "refusal": REFUSAL}
