"""The audit log: written with what it tells of, sealed in a chain that shows any tampering."""

import json
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from django.db import DatabaseError, connection, transaction
from django.utils import timezone

from nanohost.accounts import audit
from nanohost.accounts.audit import Head, NotWhole
from nanohost.accounts.models import AuditEntry, AuditSeal, UnsealedEntry
from nanohost.lib import append_only
from tests.support.threads import in_threads

pytestmark = pytest.mark.django_db(transaction=True)

TABLES = (AuditEntry, AuditSeal)


def some(count: int) -> None:
    for number in range(count):
        about = {"kind": "tools.toolsetting", "key": number, "name": f"tool {number}"}
        audit.record("tool_setting.changed", **about, before={"enabled": False}, after={"enabled": True, "n": number})


def rolled_back(do: Callable[[], object]) -> None:
    with transaction.atomic():
        do()
        transaction.set_rollback(True)


def test_an_entry_says_who_did_what_to_what_and_why() -> None:
    with audit.acting("user alice"):
        audit.record("key.revoked", kind="accounts.apikey", key=7, name="nh_ab12_…", reason="It leaked.")
    (entry,) = AuditEntry.objects.all()
    assert (entry.actor, entry.action, entry.object_id, entry.reason) == (
        "user alice",
        "key.revoked",
        "7",
        "It leaked.",
    )
    audit.record("host.started")
    assert AuditEntry.objects.first().actor == audit.HOST


def test_an_entry_is_written_with_what_it_tells_of_or_not_at_all() -> None:
    rolled_back(lambda: some(1))
    assert not AuditEntry.objects.exists()
    assert not UnsealedEntry.objects.exists()


def test_no_secret_comes_into_it() -> None:
    key = "nh_ab12cd34_" + "k" * 32
    audit.record("key.changed", kind="x", key=1, name=key, before={"note": key}, after={key: 1}, reason=f"was {key}")
    (row,) = AuditEntry.objects.values()
    assert key not in str(row)
    assert json.loads(row["before"])


@pytest.mark.parametrize("model", TABLES)
def test_the_database_refuses_to_change_or_delete(model: type[AuditEntry | AuditSeal]) -> None:
    some(2)
    audit.seal()
    table = model._meta.db_table
    column = "hash" if model is AuditSeal else "actor"
    forbidden = [f"UPDATE {table} SET {column} = 'somebody'", f"DELETE FROM {table}"]
    if connection.vendor == "postgresql":
        forbidden.append(f"TRUNCATE {table}")
    else:
        columns = ", ".join(field.column for field in model._meta.concrete_fields)
        forbidden.append(f"INSERT OR REPLACE INTO {table} ({columns}) SELECT {columns} FROM {table}")
    before = list(model.objects.order_by("pk").values())
    for statement in forbidden:
        with pytest.raises(DatabaseError, match="only added"), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(statement)
    assert list(model.objects.order_by("pk").values()) == before


@pytest.mark.embedded(reason="PostgreSQL deletes nothing to make place for a row")
def test_nothing_takes_the_place_of_a_seal_by_any_of_its_columns() -> None:
    some(3)
    audit.seal()
    before = list(AuditSeal.objects.order_by("number").values())
    seal = "INSERT OR REPLACE INTO accounts_auditseal"
    for statement in (
        f"{seal} (number, entry_id, hash) SELECT 900 + number, entry_id, hash FROM accounts_auditseal",
        f"{seal} (rowid, number, entry_id, hash) SELECT rowid, 900 + number, -number, hash FROM accounts_auditseal",
    ):
        with pytest.raises(DatabaseError, match="only added"), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(statement)
    assert list(AuditSeal.objects.order_by("number").values()) == before


def test_entries_are_sealed_in_a_chain() -> None:
    assert audit.verify() == Head(0, audit.BEGINNING)
    some(3)
    assert UnsealedEntry.objects.count() == 3
    assert audit.seal() == 3
    some(2)
    assert audit.seal() == 2
    assert audit.seal() == 0
    assert list(AuditSeal.objects.order_by("number").values_list("number", flat=True)) == [1, 2, 3, 4, 5]
    assert not UnsealedEntry.objects.exists()
    assert audit.verify() == audit.head()


def test_many_who_seal_at_once_seal_each_entry_once() -> None:
    some(400)
    together = threading.Barrier(6)

    def seal() -> None:
        connection.ensure_connection()
        together.wait(30)
        audit.seal()

    in_threads([seal] * 6)
    audit.seal()
    assert AuditSeal.objects.count() == 400
    assert audit.verify().number == 400


def test_an_entry_that_is_committed_late_is_sealed_late() -> None:
    """Numbers are not those of the rows: a transaction that began first may end last."""
    if connection.vendor != "postgresql":
        pytest.skip("on SQLite one writes at a time: no transaction that has written ends after a later one")
    wrote, go_on = threading.Event(), threading.Event()

    def slow() -> None:
        with transaction.atomic():
            some(1)
            wrote.set()
            assert go_on.wait(20)

    def quick() -> None:
        assert wrote.wait(20)
        some(2)
        audit.seal()
        go_on.set()

    in_threads([slow, quick])
    audit.seal()
    assert audit.verify().number == 3


# --- tampering ---------------------------------------------------------------------------------------------------


@contextmanager
def tampered(tamper: Callable[[random.Random], None], chance: random.Random) -> Iterator[None]:
    """As somebody who owns the database can; undone afterwards."""
    with transaction.atomic():
        for model in TABLES:
            append_only.unprotect(connection, model)
        tamper(chance)
        yield
        transaction.set_rollback(True)


def an_entry(chance: random.Random) -> AuditEntry:
    return chance.choice(list(AuditEntry.objects.all()))


def change(chance: random.Random) -> None:
    field = chance.choice(["actor", "action", "object_id", "object_name", "before", "after", "reason", "request_id"])
    entry = an_entry(chance)
    AuditEntry.objects.filter(pk=entry.pk).update(**{field: chance.choice(["", "x", "{}"]) + "y"})


def change_the_time(chance: random.Random) -> None:
    entry = an_entry(chance)
    AuditEntry.objects.filter(pk=entry.pk).update(at=entry.at + timedelta(milliseconds=chance.choice([-1, 1, 90_000])))


def delete(chance: random.Random) -> None:
    an_entry(chance).delete()


def delete_with_its_seal(chance: random.Random) -> None:
    entry = an_entry(chance)
    AuditSeal.objects.filter(entry_id=entry.pk).delete()
    entry.delete()


def take_the_seal_off(chance: random.Random) -> None:
    AuditSeal.objects.filter(entry_id=an_entry(chance).pk).delete()


def insert(chance: random.Random) -> None:
    """With a seal of its own, in the middle; those behind it move on."""
    number = chance.randint(1, AuditSeal.objects.count())
    entry = AuditEntry.objects.create(actor="user mallory", action="key.made")
    UnsealedEntry.objects.filter(entry_id=entry.pk).delete()
    behind = list(AuditSeal.objects.filter(number__gte=number).order_by("-number"))
    for seal in behind:
        AuditSeal.objects.filter(number=seal.number).update(number=seal.number + 1)
    before = AuditSeal.objects.filter(number=number - 1).first()
    forged = audit.hash_of(before.hash if before else audit.BEGINNING, number, entry)
    AuditSeal.objects.create(number=number, entry_id=entry.pk, hash=forged)


def slip_in(chance: random.Random) -> None:
    """Without a seal, and out of the sealer's queue."""
    entry = AuditEntry.objects.create(actor="user mallory", action="key.made")
    UnsealedEntry.objects.filter(entry_id=entry.pk).delete()


def reorder(chance: random.Random) -> None:
    first, second = chance.sample(list(AuditSeal.objects.all()), 2)
    AuditSeal.objects.filter(number=first.number).update(entry_id=-1)
    AuditSeal.objects.filter(number=second.number).update(entry_id=first.entry_id)
    AuditSeal.objects.filter(number=first.number).update(entry_id=second.entry_id)


def truncate(chance: random.Random) -> None:
    """The end is cut off; what was told of it meanwhile shows it."""
    left = chance.randint(0, AuditSeal.objects.count() - 1)
    gone = AuditSeal.objects.filter(number__gt=left)
    AuditEntry.objects.filter(pk__in=list(gone.values_list("entry_id", flat=True))).delete()
    gone.delete()


def forge_from_somewhere_on(chance: random.Random) -> None:
    """A change, and all that follows sealed anew, as it should be."""
    change(chance)
    previous = audit.BEGINNING
    for seal in AuditSeal.objects.order_by("number"):
        previous = audit.hash_of(previous, seal.number, AuditEntry.objects.get(pk=seal.entry_id))
        AuditSeal.objects.filter(number=seal.number).update(hash=previous)


TAMPERINGS = (
    *(change, change_the_time, delete, delete_with_its_seal, take_the_seal_off, insert, slip_in, reorder, truncate),
    forge_from_somewhere_on,
)


@pytest.mark.parametrize("tamper", TAMPERINGS)
def test_every_tampering_is_found(tamper: Callable[[random.Random], None]) -> None:
    """A hundred of each kind, by chance."""
    some(12)
    audit.seal()
    anchor = audit.head()
    chance = random.Random(tamper.__name__)
    for _ in range(100):
        with tampered(tamper, chance), pytest.raises(NotWhole):
            audit.verify([anchor])
    assert audit.verify([anchor]) == anchor


def test_an_entry_that_goes_before_it_is_sealed_is_missed() -> None:
    some(3)
    with tampered(lambda chance: an_entry(chance).delete(), random.Random(1)):
        audit.seal()
        with pytest.raises(NotWhole, match="not sealed yet"):
            audit.verify()


def test_a_log_in_use_raises_no_false_alarm() -> None:
    """A thousand honest runs: of entries, of transactions that are rolled back, of sealers that are cut short."""
    chance = random.Random(7)
    anchors: list[Head] = []
    for _ in range(1000):
        deed = chance.random()
        if deed < 0.5:
            some(chance.randint(1, 3))
        elif deed < 0.6:
            rolled_back(lambda: some(2))
        elif deed < 0.7:
            rolled_back(audit.seal)
        elif deed < 0.9:
            audit.seal()
        elif deed < 0.93:
            anchors.append(audit.head())
            audit.verify(anchors)
    audit.seal()
    assert audit.verify(anchors).number == AuditEntry.objects.count()


# --- an export ---------------------------------------------------------------------------------------------------


def test_an_export_has_all_that_was_sealed() -> None:
    some(4)
    audit.seal()
    some(1)
    told = [json.loads(line) for line in audit.lines()]
    assert [line["number"] for line in told] == [1, 2, 3, 4]
    assert [line["previous"] for line in told] == [audit.BEGINNING, *(line["hash"] for line in told[:-1])]
    assert told[-1]["hash"] == audit.head().hash
    assert len(list(audit.lines(since=timezone.now() - timedelta(days=1)))) == 4
    assert not list(audit.lines(since=timezone.now() + timedelta(days=1)))


def test_an_export_from_a_day_on_has_all_of_that_day() -> None:
    """An entry has the time at which its transaction began; one that took long is sealed after later ones."""
    day = timezone.now().replace(hour=0, minute=0, second=0, microsecond=0)
    for number, seconds in enumerate((-9, 1, -1, 2), 1):
        AuditEntry.objects.create(actor="boss", action="signed_in", at=day + timedelta(seconds=seconds), reason=number)
    audit.seal()
    told = [json.loads(line) for line in audit.lines(since=day)]
    assert [line["reason"] for line in told] == ["2", "3", "4"]
    assert told[0]["previous"] == AuditSeal.objects.get(number=1).hash


def test_however_many_are_gone_the_others_are_sealed() -> None:
    UnsealedEntry.objects.bulk_create(UnsealedEntry(entry_id=-number) for number in range(1, 1001))
    some(3)
    assert audit.seal() == 3
    with pytest.raises(NotWhole, match="not sealed yet"):
        audit.verify()


def test_what_is_masked_in_json_stays_json() -> None:
    said = {
        "url": 'DB_PASS="hunter2secret"',
        "note": "token=abcdefghijklmnop1234",
        "password": 'a"b\\',
        "deep": ["SECRET='x y'"],
    }
    audit.record("host.tried", before=said, after={"text": json.dumps(said)})
    entry = AuditEntry.objects.get()
    assert json.loads(entry.before).keys() == said.keys()
    assert json.loads(entry.after)
    assert "hunter2" not in entry.before + entry.after
