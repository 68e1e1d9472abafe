"""Statements that the ORM writes once, and that are then executed many times.

To write a statement's SQL takes the ORM five to twenty times as long as the database takes to carry it out, and each
time it is the same SQL. What every turn does is therefore kept: a query that is built with :class:`Given` for its
values is written at its first use, and later only executed, through Django's own connections.

    by_name = Rows(lambda: Agent.objects.filter(name=Given("name")))
    by_name(name="default")      # a list of Agents

A statement must not freeze what has another value each time it is written, such as a time or a new id: it is refused at
its first use. What a setting says is given as well; a test writes every statement there is under two sets of settings.
Which modules may have statements of their own is a contract in ``pyproject.toml``.
"""

import json
import threading
from asyncio import _get_running_loop
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Generic, TypeVar
from uuid import UUID

from django.db import DEFAULT_DB_ALIAS, connection, connections, models
from django.db.models.base import ModelState
from django.db.models.deletion import Collector
from django.db.models.expressions import Col, Expression
from django.db.models.query import ModelIterable, get_related_populators
from django.db.models.signals import post_init, pre_init
from django.db.models.sql import DeleteQuery, InsertQuery, UpdateQuery

T = TypeVar("T")

_populators: Any = get_related_populators  # the stubs are of another version


class Given(Expression):
    """A value that is given at each execution. ``output_field`` is needed where it does not stand beside a column."""

    def __init__(self, name: str, output_field: "models.Field[Any, Any] | None" = None) -> None:
        super().__init__(output_field=output_field)
        self.name = name

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, Any]:
        return "%s", [self]


class Statement:
    """The SQL of each kind of database, written at its first use there."""

    # Whether it returns rows. psycopg's cursors tell that too, by a list of their columns that is made anew each time.
    returns_rows = False

    def __init__(self) -> None:
        self._written: dict[str, tuple[str, list[Any], Any]] = {}
        self._writing = threading.Lock()

    def written(self) -> tuple[str, list[Any]]:
        """The SQL as it would be written now, and its parameters with :class:`Given` among them."""
        sql, parameters, _ = self._write()
        return sql, parameters

    def _write(self) -> tuple[str, list[Any], Any]:
        """The same, and what its rows are read with."""
        raise NotImplementedError

    def _execute(self, given: dict[str, Any]) -> tuple[list[Any], int, Any]:
        """The rows it returns, how many it has read or changed, and what they are read with."""
        database = _database()
        sql, parameters, reading = self._in_writing(database)
        return *_run(database, sql, _filled(database, parameters, given), self.returns_rows), reading

    def _in_writing(self, database: Any) -> tuple[str, list[Any], Any]:
        written = self._written.get(database.vendor)
        if written is None:
            with self._writing:
                written = self._write()
                if self.written() != written[:2]:
                    raise TypeError(f"the statement has another value each time it is written: give it ({written[0]})")
                sql, parameters, reading = written
                fixed = [each if type(each) is Given else _prepared(database, each) for each in parameters]
                written = self._written[database.vendor] = sql, fixed, reading
        return written


class Rows(Statement, Generic[T]):
    """A query. Calling it with its values returns the rows: model instances, or what ``values_list`` makes of them."""

    returns_rows = True

    def __init__(self, query: Callable[[], "models.QuerySet[Any, T]"]) -> None:
        super().__init__()
        self._query = query

    def __call__(self, **given: Any) -> list[T]:
        rows, _, read = self._execute(given)
        found: list[T] = read(rows)
        return found

    def _write(self) -> tuple[str, list[Any], Any]:
        query = self._query()
        compiler = query.query.get_compiler(using=connection.alias)
        sql, parameters = compiler.as_sql()
        converted = _converting(compiler, [column for column, _, _ in compiler.select])
        as_instances = query._iterable_class is ModelIterable
        made = _instances(compiler) if as_instances else _values if len(compiler.select) > 1 else _only_values

        def read(rows: Sequence[Any]) -> list[Any]:
            return made(converted(rows))

        return sql, list(parameters), read


class Update(Statement):
    """An update of rows. Calling it with its values returns how many it has changed; with ``returning``, the names of
    fields, it returns those of each row instead, as they then are, and with ``returning_rows`` the rows themselves.
    ``returning_also``: an expression, whose value comes behind those of the fields; what it reads of other rows than
    those that are updated is as it was when the update began."""

    def __init__(
        self,
        rows: Callable[[], "models.QuerySet[Any]"],
        changes: Callable[[], dict[str, Any]],
        *,
        returning: Sequence[str] = (),
        returning_also: "Callable[[], Any] | None" = None,
        returning_rows: bool = False,
    ) -> None:
        super().__init__()
        self._rows, self._changes, self._returning, self._returning_rows = rows, changes, returning, returning_rows
        self._returning_also = returning_also
        if returning_also and not returning:
            raise TypeError("what is returned also comes behind fields that are returned")
        self.returns_rows = bool(returning) or returning_rows

    def __call__(self, **given: Any) -> Any:
        rows, count, read = self._execute(given)
        return read(rows) if self.returns_rows else count

    def _write(self) -> tuple[str, list[Any], Any]:
        rows = self._rows()
        query: Any = rows.query.chain(UpdateQuery)
        query.add_update_values(self._changes())
        compiler = query.get_compiler(using=connection.alias)
        sql, parameters = compiler.as_sql()
        model, names = rows.model, self._returning
        if self._returning_rows:
            names = [field.name for field in model._meta.concrete_fields]
        fields = [model._meta.get_field(name) for name in names]
        columns: list[Any] = [Col(model._meta.db_table, field) for field in fields]
        named = [connection.ops.quote_name(field.column) for field in fields]
        if self._returning_also:
            also = self._returning_also().resolve_expression(query)
            also_sql, also_parameters = compiler.compile(also)
            columns.append(also)
            named.append(also_sql)
            parameters = (*parameters, *also_parameters)
        if named:
            sql += " RETURNING " + ", ".join(named)
        converted, alias = _converting(compiler, columns), connection.alias
        attributes = [field.attname for field in fields]

        made = _Maker(model)

        def read(found: Sequence[Any]) -> list[Any]:
            values = converted(found)
            if self._returning_rows:
                return [made.from_db(alias, attributes, row) for row in values]
            return _values(values)

        return sql, list(parameters), read


class Delete(Statement):
    """A deletion of rows, which nothing refers to. Calling it with its values returns how many it has deleted."""

    def __init__(self, rows: Callable[[], "models.QuerySet[Any]"]) -> None:
        super().__init__()
        self._rows = rows

    def __call__(self, **given: Any) -> int:
        _, count, _ = self._execute(given)
        return count

    def _write(self) -> tuple[str, list[Any], Any]:
        rows = self._rows()
        if not Collector(using=connection.alias).can_fast_delete(rows):
            raise TypeError(f"with rows of {rows.model.__name__} others are deleted, or somebody is told: use the ORM")
        sql, parameters = rows.query.chain(DeleteQuery).get_compiler(using=connection.alias).as_sql()
        return sql, list(parameters), None


class Insert(Statement):
    """A row. ``constant`` are values that never change; every other field of the model that has no constant default is
    given at each call, by the name of its attribute."""

    def __init__(self, model: type[models.Model], *given: str, **constant: Any) -> None:
        super().__init__()
        self._model, self._given, self._constant = model, given, constant

    def __call__(self, **given: Any) -> None:
        self._execute(given)

    def many(self, rows: Iterable[dict[str, Any]]) -> None:
        """Many rows, in less time than one by one."""
        database = connections[DEFAULT_DB_ALIAS]
        sql, parameters, _ = self._in_writing(database)
        with database.cursor() as cursor:
            cursor.executemany(sql, [_filled(database, parameters, given) for given in rows])

    def _write(self) -> tuple[str, list[Any], Any]:
        values = self._constant | {name: Given(name) for name in self._given}
        # A number that the database counts is left to it.
        counted = self._model._meta.auto_field
        fields = [
            field
            for field in self._model._meta.concrete_fields
            if not field.generated and (field is not counted or field.attname in values)
        ]
        row = self._model()
        for field in fields:
            if field.attname in values:
                vars(row)[field.attname] = values.pop(field.attname)
            elif (
                (field.has_default() and callable(field.default))
                or getattr(field, "auto_now_add", False)
                or getattr(field, "auto_now", False)
            ):
                raise TypeError(f"{field.attname} of a {self._model.__name__} has another value each time: give it")
        if values:
            raise TypeError(f"a {self._model.__name__} has no {', '.join(values)}")
        query = InsertQuery(self._model)
        # As it stands here: nothing is filled in at the time the SQL is written.
        query.insert_values(fields, [row], raw=True)
        ((sql, parameters),) = query.get_compiler(using=connection.alias).as_sql()
        return sql, list(parameters), None


# Django finds a thread's connection anew each time, which takes nine calls.
_own = threading.local()


def _database() -> Any:
    """This thread's way to the database; within an event loop there is another, which is refused."""
    if _get_running_loop() is not None:
        return connections[DEFAULT_DB_ALIAS]
    try:
        return _own.database
    except AttributeError:
        _own.database = connections[DEFAULT_DB_ALIAS]
        return _own.database


def _run(database: Any, sql: str, parameters: Sequence[Any], returns_rows: bool) -> tuple[list[Any], int]:
    """Have a statement executed; the rows it returns, and how many it has read or changed.

    Django's cursors ask around each statement whether somebody watches it, and who calls: twice as many functions as
    all else of it. That is asked once here, and where the answer is not the usual one, it goes Django's way.
    """
    if database.health_check_enabled and not database.health_check_done:
        database.close_if_health_check_failed()
    if database.connection is None:
        database.ensure_connection()
    if database.needs_rollback or database.execute_wrappers or database.queries_logged:
        with database.cursor() as cursor:
            cursor.execute(sql, parameters)
            return cursor.fetchall() if returns_rows else [], cursor.rowcount
    with database.wrap_database_errors:
        found: tuple[list[Any], int] = database.run(sql, parameters, returns_rows)
        return found


def _converting(compiler: Any, columns: Sequence[Any]) -> Callable[[Sequence[Any]], Iterable[Sequence[Any]]]:
    """What makes of a database's rows those of Python. What comes most often is converted as Django does it, without
    asking for each value how that is done."""
    converters = compiler.get_converters(columns)
    shorter = {place: made for place, each in converters.items() if (made := _shorter(compiler.connection, *each))}
    others = {place: converter for place, converter in converters.items() if place not in shorter}

    def converted(rows: Sequence[Any]) -> Iterable[Sequence[Any]]:
        for row in compiler.apply_converters(rows, others) if others else map(list, rows) if shorter else rows:
            for place, convert in shorter.items():
                if row[place] is not None:
                    row[place] = convert(row[place])
            yield row

    return converted


def _shorter(database: Any, converters: Sequence[Any], column: Any) -> Callable[[Any], Any] | None:
    """What does the same as Django's converters of a column; None: use those."""
    field = column.target if isinstance(column, Col) else None
    if type(field) is models.JSONField and not field.decoder and converters == [field.from_db_value]:
        return _from_json
    of_times = [getattr(database.ops, "convert_datetimefield_value", None)]
    if type(field) is models.DateTimeField and database.timezone is UTC and converters == of_times:
        return _in_utc  # on SQLite
    return None


# As most columns of JSON are.
_EMPTY: dict[str, type[list[Any]] | type[dict[str, Any]]] = {"[]": list, "{}": dict}


def _from_json(value: str) -> Any:
    if empty := _EMPTY.get(value):
        return empty()
    try:
        return json.loads(value)
    except json.JSONDecodeError:  # as a hand has left it on SQLite
        return value


def _in_utc(value: datetime) -> datetime:
    return value if value.tzinfo else value.replace(tzinfo=UTC)


def _values(rows: Iterable[Sequence[Any]]) -> list[Any]:
    return [tuple(row) for row in rows]


def _only_values(rows: Iterable[Sequence[Any]]) -> list[Any]:
    return [value for (value,) in rows]


def _instances(compiler: Any) -> Callable[[Iterable[Sequence[Any]]], list[Any]]:
    """What Django's own ModelIterable does with rows."""
    info, alias = compiler.klass_info, connection.alias
    places = info["select_fields"]
    first, end = places[0], places[-1] + 1
    names = [column.target.attname for column, _, _ in compiler.select[first:end]]
    related = _quickly_made(_populators(info, compiler.select, alias))
    annotated = compiler.annotation_col_map.items()
    maker = _Maker(info["model"])

    def made(rows: Iterable[Sequence[Any]]) -> list[Any]:
        instances = []
        for row in rows:
            instance = maker.from_db(alias, names, row[first:end])
            for populator in related:
                populator.populate(row, instance)
            for name, place in annotated:
                vars(instance)[name] = row[place]
            instances.append(instance)
        return instances

    return made


class _Maker:
    """Makes a model's instances of what a database returned. Django's ``from_db`` goes through ``__init__``, which sets
    field by field what has just been read, and takes four times as long."""

    def __init__(self, model: Any) -> None:
        self._model = model
        own = [vars(each) for each in model.__mro__ if each not in models.Model.__mro__]
        self._is_plain = not any({"from_db", "__init__", "__setattr__"} & each.keys() for each in own)

    def from_db(self, alias: str, names: Sequence[str], values: Sequence[Any]) -> Any:
        """As Django's; what is not among the names is read when it is asked for."""
        if not self._is_plain or pre_init.receivers or post_init.receivers:
            return self._model.from_db(alias, names, values)
        instance = self._model.__new__(self._model)
        state = ModelState()
        state.db, state.adding = alias, False
        own = vars(instance)
        own["_state"] = state
        own.update(zip(names, values, strict=True))
        return instance


def _quickly_made(related: Sequence[Any]) -> Sequence[Any]:
    """Django's populators, which fill in what was selected with a row, with ours to make it."""
    for each in related:
        each.model_cls = _Maker(each.model_cls)
        _quickly_made(each.related_populators)
    return related


# Values that a database takes as they are.
_PLAIN = {
    "sqlite": frozenset({str, int, bool, type(None)}),
    "postgresql": frozenset({str, int, bool, type(None), UUID, datetime, timedelta}),
}


def _filled(database: Any, parameters: Sequence[Any], given: dict[str, Any]) -> list[Any]:
    """The parameters with the values that are given in their places, as the database takes them; the others are
    prepared already."""
    plain, filled = _PLAIN[database.vendor], list(parameters)
    for place, each in enumerate(filled):
        if type(each) is Given:
            value = given[each.name]
            filled[place] = value if type(value) in plain else _prepared(database, value)
    return filled


def _prepared(database: Any, value: Any) -> Any:
    """A value as the database takes it. One that needs no change, or was prepared before, is returned as it is."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (dict, list)):
        return database.ops.adapt_json_value(value, None)
    if isinstance(value, UUID):
        return value if database.features.has_native_uuid_field else value.hex
    if isinstance(value, datetime):
        return database.ops.adapt_datetimefield_value(value)
    if isinstance(value, timedelta) and not database.features.has_native_duration_field:
        return value // timedelta(microseconds=1)
    return value
