"""What the host reads does not grow with what it keeps: the plan of each hot query on a million messages.

Every operation is done once, for real, on PostgreSQL with 1,000,000 messages, 200,000 turns and 400,000 tool calls, and
each statement it runs is explained where it is run. No table that grows is read from one end to the other, and what is
read is bounded. Nothing here is timed.

What is done is in :mod:`tests.plans.operations`, by subject.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import connection, transaction
from django.test import TestCase

import tests.plans.operations  # noqa: F401 -- fills OPERATIONS
from conversations.api import urls
from conversations.deliveries import outbox
from conversations.engine import (
    announcements,
    caller,
    deadlines,
    deferred,
    history,
    inbox,
    intake,
    lease,
    outgoing,
    retention,
    snapshot,
    spawned,
    steps,
    sweeper,
    turn_control,
)
from conversations.engine.channels import from_channels, listener
from conversations.engine.compacting import compaction, daily, parts
from conversations.engine.consent import approvals, questions
from conversations.engine.deliveries import typing_marks, undelivered
from conversations.events import answers, streams
from conversations.openai_api import turn_parts
from conversations.openai_api import urls as openai_urls
from nanohost.accounts.models import WIDE, ApiKey, Scope
from nanohost.lib.admin import GrowingAdmin
from scheduler.system_jobs import sync_system_jobs
from tests.plans.operations.api import KEY
from tests.plans.operations.common import CONSOLE, GROW, OPERATIONS, WHOLE, Bound
from tests.plans.operations.console import boss, console_paths, growing, look_at
from tests.support import bulk, servers
from tests.support.query_plan import ExplainedStatement, explained
from tools import calls, limits
from tools.models import sync_settings

pytestmark = [
    pytest.mark.production(reason="the plans are PostgreSQL's; tests/engine/test_sweeper.py has those of SQLite"),
    pytest.mark.timeout(900),  # bounds a hang: a million rows take their time on a slow machine
]


# --- the fixture ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def many_messages(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """The connection leads to a database of its own, with much in it."""
    tests_own, full = connection.settings_dict["NAME"], servers.name_of("plans")
    servers.create(full, template=servers.name_of("migrated"))
    with django_db_blocker.unblock():
        connect_to(full)
        try:
            sync_settings()
            bulk.fill()
            sync_system_jobs()
            owner = get_user_model().objects.get(username="owner-1")
            ApiKey.objects.register(KEY, owner=owner, **WIDE | {"scopes": Scope.values})
            boss.force_login(get_user_model().objects.create_superuser("boss"))
            yield
        finally:
            connect_to(tests_own)


def connect_to(database: str) -> None:
    connection.close()
    connection.close_pool()
    connection.settings_dict["NAME"] = database


Seen = Callable[[str], list[ExplainedStatement]]


@pytest.fixture(scope="module")
def seen(many_messages: None) -> Seen:
    """What an operation ran; it is done once, and undone."""
    return cache(lambda name: look_twice(OPERATIONS[name].prepare, OPERATIONS[name].bound))


@pytest.fixture(scope="module")
def seen_in_console(many_messages: None) -> dict[str, list[ExplainedStatement]]:
    """What each page of the console ran."""
    with transaction.atomic():
        paths = dict(console_paths())
        transaction.set_rollback(True)
    return {name: look_twice(partial(looking_at, path), bound_of(name)) for name, path in paths.items()}


def looking_at(path: str) -> Callable[[], object]:
    return lambda: look_at(path)


def bound_of(page: str) -> Bound:
    return WHOLE if "in words" in page else CONSOLE


def look_twice(prepare: Callable[[], Callable[[], object]], bound: Bound) -> list[ExplainedStatement]:
    """Once more if something is wrong: statistics are a sample, and now and then a bound of a histogram lies just where
    is looked, which makes few rows look like many; and what others have undone is read until it is cleaned up."""
    statements = run(prepare)
    if any(wrong(statement, bound) for statement in statements):
        bulk.analyze()
        statements = run(prepare)
    return statements


def run(prepare: Callable[[], Callable[[], object]]) -> list[ExplainedStatement]:
    with transaction.atomic():
        act = prepare()
        with explained() as statements, TestCase.captureOnCommitCallbacks(execute=True):
            act()
        transaction.set_rollback(True)
    return statements


# --- what is held -----------------------------------------------------------------------------------------------------


def wrong(statement: ExplainedStatement, bound: Bound) -> list[str]:
    """What is wrong with a statement."""
    found = [f"reads all of {table}" for table in sorted(statement.scanned() & GROW)]
    if (rows := statement.rows()) > bound.rows:
        found.append(f"takes up {rows} rows, of {bound.rows}")
    if statement.blocks > bound.blocks:
        found.append(f"reads {statement.blocks} blocks, of {bound.blocks}")
    return found


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_goes_by_index_and_reads_little(seen: Seen, name: str) -> None:
    assert seen(name), "it ran no statement"
    for statement in seen(name):
        assert not wrong(statement, OPERATIONS[name].bound), statement


def test_the_console_goes_by_index_and_reads_a_bounded_part(
    seen_in_console: dict[str, list[ExplainedStatement]],
) -> None:
    failures = []
    for name, statements in seen_in_console.items():
        assert statements, name
        failures += [(name, found, each) for each in statements if (found := wrong(each, bound_of(name)))]
    assert not failures, "\n".join(f"{name}: {', '.join(found)}\n{statement}" for name, found, statement in failures)


def test_each_index_is_used_by_something(seen: Seen, seen_in_console: dict[str, list[ExplainedStatement]]) -> None:
    """An index costs a write with each row; one that nothing reads by is a loss, unless it keeps something unique."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT indexrelid::regclass::text FROM pg_index WHERE indrelid = ANY(%s::regclass[]) AND NOT indisunique",
            [sorted(GROW)],
        )
        indexes = {name for (name,) in cursor.fetchall()}
    statements = [each for many in (*map(seen, OPERATIONS), *seen_in_console.values()) for each in many]
    used = {step["Index Name"] for each in statements for step in each.steps() if "Index Name" in step}
    assert len(indexes) > 10
    # All agents have their conversations by this one, and whoever is deleted; here there is one agent, and one webhook.
    assert indexes - used <= {"conversations_of_an_agent", "deliveries_of_a_webhook"}


def test_each_foreign_key_has_an_index_to_delete_by(many_messages: None) -> None:
    """What refers to a deleted row is looked for, also by PostgreSQL itself: without one, in all of the table."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT conrelid::regclass::text, attname FROM pg_constraint
            JOIN pg_attribute ON attrelid = conrelid AND attnum = conkey[1]
            WHERE contype = 'f' AND NOT EXISTS (
                SELECT 1 FROM pg_index WHERE indrelid = conrelid AND indkey[0] = conkey[1] AND indpred IS NULL
            )
            """
        )
        assert cursor.fetchall() == []
        cursor.execute(
            "SELECT count(*) FROM pg_constraint WHERE contype = 'f' AND conrelid::regclass::text = ANY(%s)",
            [sorted(GROW)],
        )
        assert cursor.fetchone()[0] >= 6


# --- and the list of operations does not rot --------------------------------------------------------------------------


MODULES = (
    announcements,
    answers,
    calls,
    history,
    lease,
    snapshot,
    steps,
    compaction,
    parts,
    daily,
    deadlines,
    turn_control,
    spawned,
    inbox,
    intake,
    deferred,
    approvals,
    limits,
    outbox,
    outgoing,
    undelivered,
    typing_marks,
    questions,
    from_channels,
    listener,
    streams,
    sweeper,
    retention,
    caller,
    turn_parts,
)


def test_each_function_that_moves_a_turn_or_a_call_is_looked_at() -> None:
    without_query = {
        *("deadlines.time_for_last_answer", "calls.new_call", "calls.refuse", "answers.problem_answer"),
        *("calls.may_be_claimed_as_stored", "calls.claim_as_stored"),  # calls.store stores it
        *("limits.limits_of", "answers.accepted", "answers.succeeded", "answers.usage_of", "streams.stream"),
        *("history.for_model", "lease.mine", "lease.held_turn"),
        "turn_control.holds_on",
        *("inbox.refuse_other_models", "inbox.may_be_asked_again"),
        *("outbox.id_of", "outgoing.as_card"),
        *("questions.of_button", "questions.answer_as"),
        "from_channels.take_request",  # a signature, and then from_channels.take
        *("parts.line_of", "parts.stub_of", "parts.base_of"),
        *("parts.made_so_far", "parts.next_chunk", "parts.told_besides"),
        *("answers.as_response", "answers.is_answered", "answers.wire", "inbox.transient_conversation"),
        *("caller.is_open", "caller.is_repeated"),
        *("spawned.deferred_in", "spawned.tell_at_once", "spawned.call_in", "spawned.hops_in"),
    }
    # The route GET turns/{} is nothing else.
    elsewhere = {
        "steps.charge_lost",
        "calls.end_waiting",
        # Rows by their keys, and a message to a chat.
        *("calls.suspend", "outgoing.put_question", "outgoing.reword", "questions.withdraw", "questions.is_for"),
        *("outgoing.edit", "outgoing.react", "outgoing.send_file", "outgoing.tell", "outgoing.going_on"),
        "outgoing.show_sticker",
        "outgoing.change",
        "outbox.doubt_open",  # of turn_control.end_restored
        *("outgoing.names_of_chats", "spawned.reported_on", "from_channels.take_held"),
        "announcements.approval",
        "answers.turns_as_json",
        "answers.success_of",
        "calls.store",
        "compaction.apply",
        "compaction.end",
    }
    there_are = {
        f"{module.__name__.rpartition('.')[2]}.{name}"
        for module in MODULES
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and not name.startswith("_")
    }
    looked_at = {name.split(",")[0] for name in OPERATIONS}
    assert len(there_are) > 25
    assert there_are - looked_at == without_query | elsewhere


def test_each_route_of_the_api_is_looked_at() -> None:
    routes = {
        f"{method.upper()} {re.sub('<(uuid|str|int|path):.*?>', '{}', str(pattern.pattern))}"
        for pattern in (*urls.urlpatterns, *openai_urls.urlpatterns)
        for method in ("get", "post", "put", "patch", "delete")
        if hasattr(pattern.callback.view_class, method)
    }
    looked_at = {name.split(",")[0] for name in OPERATIONS}
    assert len(routes) >= 9
    assert routes <= looked_at


def test_each_list_of_what_grows_is_bounded() -> None:
    pages = growing()
    assert {page.model._meta.db_table for page in pages} == GROW
    for page in pages:
        assert isinstance(page, GrowingAdmin)
        # It looks for the first and the last row, and for each month between them, in everything that is listed.
        assert page.date_hierarchy is None
        assert not page.show_full_result_count
