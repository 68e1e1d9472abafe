"""Making a large table one of several parts, by the hash of a column: PostgreSQL's own partitions.

Each part has its own indexes, which fit into memory one by one, and is vacuumed and rebuilt on its own. Django goes on
to see one table.
"""

from dataclasses import dataclass
from typing import Any

from django.db import connection, transaction


class CannotBePartitioned(Exception):
    """Says why."""


@dataclass(frozen=True, kw_only=True)
class Partitioned:
    """What was done: how many rows are in how many parts."""

    rows: int
    parts: int


def partition_by_hash(table: str, column: str, *, parts: int) -> Partitioned:
    """Move a table's rows into so many parts, with all constraints and indexes that it had, in one transaction: it is
    done, or nothing was. Nobody can use the table meanwhile, and the disk holds it twice.

    A unique constraint must have the column, and the primary key gets it: PostgreSQL looks for an equal row in one part
    only. Raises :class:`CannotBePartitioned` where something else stands against it.
    """
    with transaction.atomic(), connection.cursor() as cursor:
        _refuse_what_is_none(cursor, table, column)
        quoted, whole = connection.ops.quote_name(table), connection.ops.quote_name(f"{table}_whole")
        cursor.execute(f"LOCK TABLE {quoted} IN ACCESS EXCLUSIVE MODE")
        made = _constraints(cursor, table, column) + _indexes(cursor, table)
        owner, granted = _owner(cursor, table), _granted(cursor, table)
        cursor.execute(f"ALTER TABLE {quoted} RENAME TO {whole}")
        key = connection.ops.quote_name(column)
        like = f"LIKE {whole} INCLUDING DEFAULTS INCLUDING GENERATED INCLUDING STORAGE INCLUDING COMMENTS"
        cursor.execute(f"CREATE TABLE {quoted} ({like}) PARTITION BY HASH ({key})")
        for number in range(parts):
            part = connection.ops.quote_name(f"{table}_p{number}")
            values = f"FOR VALUES WITH (MODULUS {parts}, REMAINDER {number})"
            cursor.execute(f"CREATE TABLE {part} PARTITION OF {quoted} {values}")
            cursor.execute(f"ALTER TABLE {part} OWNER TO {owner}")
        cursor.execute(f"INSERT INTO {quoted} SELECT * FROM {whole}")  # noqa: S608 -- both names are quoted
        rows = cursor.rowcount
        # Its indexes have the names that the new ones are to have; and rows are copied faster without any.
        cursor.execute(f"DROP TABLE {whole}")
        for statement in (*made, f"ALTER TABLE {quoted} OWNER TO {owner}", *granted, f"ANALYZE {quoted}"):
            cursor.execute(statement)
    return Partitioned(rows=rows, parts=parts)


def _refuse_what_is_none(cursor: Any, table: str, column: str) -> None:
    cursor.execute("SELECT relkind FROM pg_class WHERE oid = %s::regclass", [table])
    if cursor.fetchone() == ("p",):
        raise CannotBePartitioned(f"{table} is partitioned already.")
    cursor.execute(
        "SELECT conname FROM pg_constraint WHERE contype = 'f' AND confrelid = %s::regclass ORDER BY conname", [table]
    )
    if referring := [name for (name,) in cursor.fetchall()]:
        raise CannotBePartitioned(f"Other tables refer to rows of {table}: {', '.join(referring)}.")
    cursor.execute(
        "SELECT conname FROM pg_constraint WHERE contype = 'u' AND conrelid = %(table)s::regclass AND NOT conkey @>"
        " (SELECT array_agg(attnum) FROM pg_attribute WHERE attrelid = %(table)s::regclass AND attname = %(column)s)",
        {"table": table, "column": column},
    )
    if alone := [name for (name,) in cursor.fetchall()]:
        raise CannotBePartitioned(f"These must hold over all parts, and lack {column}: {', '.join(alone)}.")


def _constraints(cursor: Any, table: str, column: str) -> list[str]:
    """What makes the table's constraints anew; the primary key has the column as well."""
    cursor.execute(
        "SELECT conname, contype, pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = %s::regclass"
        " AND contype IN ('p', 'u', 'f', 'c') ORDER BY contype = 'p' DESC, conname",
        [table],
    )
    quoted, statements = connection.ops.quote_name(table), []
    for name, kind, definition in cursor.fetchall():
        if kind == "p":
            definition = f"{definition.removesuffix(')')}, {connection.ops.quote_name(column)})"
        statements.append(f"ALTER TABLE {quoted} ADD CONSTRAINT {connection.ops.quote_name(name)} {definition}")
    return statements


def _indexes(cursor: Any, table: str) -> list[str]:
    """What makes the table's indexes anew that are no constraint's."""
    cursor.execute(
        "SELECT indexrelid::regclass::text, indisunique, pg_get_indexdef(indexrelid) FROM pg_index"
        " WHERE indrelid = %(table)s::regclass"
        " AND indexrelid NOT IN (SELECT conindid FROM pg_constraint WHERE conrelid = %(table)s::regclass)",
        {"table": table},
    )
    found = cursor.fetchall()
    if unique := [name for name, is_unique, _ in found if is_unique]:
        raise CannotBePartitioned(f"Unique indexes must be constraints: {', '.join(unique)}.")
    return [definition for _, _, definition in found]


def _owner(cursor: Any, table: str) -> str:
    cursor.execute("SELECT relowner::regrole::text FROM pg_class WHERE oid = %s::regclass", [table])
    return str(cursor.fetchone()[0])


def _granted(cursor: Any, table: str) -> list[str]:
    """What gives others the rights they had."""
    cursor.execute(
        "SELECT format('GRANT %%s ON TABLE %%s TO %%s', each.privilege_type, pg_class.oid::regclass,"
        " CASE each.grantee WHEN 0 THEN 'PUBLIC' ELSE each.grantee::regrole::text END)"
        " FROM pg_class, aclexplode(relacl) AS each WHERE pg_class.oid = %s::regclass",
        [table],
    )
    return [statement for (statement,) in cursor.fetchall()]
