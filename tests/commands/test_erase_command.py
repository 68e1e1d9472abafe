"""``manage.py erase``, ``retention`` and ``holds``: a person's data goes without a trace, with a receipt."""

import hashlib
import io
import json
import re
from datetime import timedelta
from pathlib import Path

import pytest
from axes.models import AccessAttempt
from django.apps import apps
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth import get_user_model
from django.contrib.contenttypes.models import ContentType
from django.contrib.sessions.backends.db import SessionStore
from django.contrib.sessions.models import Session
from django.core.management import CommandError, call_command
from django.db import connection, models
from django.utils import timezone

from agent.models import Agent
from conversations import search
from conversations.models import Conversation, Message
from memory import log
from memory.models import HistoryEntry
from nanohost.accounts.models import AuditEntry, LegalHold
from nanohost.lib import clock
from scheduler.models import Schedule
from tests.support.ageing import age, keep
from tests.support.console_client import make_rows
from tests.support.tables import readable_tables
from tools.models import ToolCall
from tools.workspace.store import open_workspace

pytestmark = pytest.mark.django_db(transaction=True)

USERS = get_user_model().objects
MARK = "zebramark"

# What cannot be any text; and what is found by the index that is made when it is inserted.
AS_IT_IS = {"pins": [{"seq": 1, "by": MARK, "at": ""}], "words": None}


def run(*arguments):
    told = io.StringIO()
    call_command(*arguments, stdout=told)
    return told.getvalue()


def of_a_user():
    """Each model whose rows go with a user, however far away, and how they are looked up."""
    found, todo = {}, [(get_user_model(), "")]
    while todo:
        model, path = todo.pop()
        for relation in model._meta.related_objects:
            other = relation.related_model
            if relation.on_delete is models.CASCADE and other not in found and not other._meta.auto_created:
                found[other] = f"{relation.field.name}__{path}".strip("_")
                todo.append((other, found[other]))
    del found[LogEntry]
    return found | {
        model: name
        for model in apps.get_models()
        for name in ("owner_id", "user_id")
        if model is not LegalHold
        and any(field.name == name and not field.is_relation for field in model._meta.concrete_fields)
    }


def plant(*, is_logged=True):
    """Somebody whose every text is the mark. ``is_logged``: the console's log, and so the audit log, has it as well."""
    make_rows(1)
    user = USERS.get(username__startswith="owner")
    conversation = Conversation.objects.get(owner=user)
    ToolCall.objects.filter(conversation_id=conversation.pk).update(owner_id=user.pk)
    HistoryEntry.objects.all().delete()
    log.append(agent="default", owner_id=user.pk, content=f"There was a {MARK}.", happened_at=timezone.now())
    for model, path in of_a_user().items():
        key = user.pk if path.endswith("_id") else user
        rows = model._default_manager.filter(**{path: key})
        assert rows.exists(), f"tests/support/console_client.py makes no {model._meta.label} of an owner"
        rows.update(**dict(marked(model)))
    session = SessionStore()
    session.update({"_auth_user_id": str(user.pk), "said": MARK})
    session.save()
    AccessAttempt.objects.create(username=MARK, ip_address="192.0.2.1", failures_since_start=1)
    boss = USERS.create_superuser("boss")
    for row in (user, conversation, Schedule.objects.get(owner=user)) if is_logged else ():
        kind = ContentType.objects.get_for_model(row)
        LogEntry.objects.create(
            user=boss, content_type=kind, object_id=str(row.pk), object_repr=MARK, action_flag=CHANGE
        )
    USERS.filter(pk=user.pk).update(username=MARK, email=f"{MARK}@example.org", first_name=MARK)
    return USERS.get(pk=user.pk)


def marked(model):
    for field in model._meta.concrete_fields:
        if field.name in AS_IT_IS:
            if AS_IT_IS[field.name] is not None:
                yield field.name, AS_IT_IS[field.name]
        elif model is ToolCall and field.name not in ("arguments", "private_arguments", "result"):
            continue  # which it was stays
        elif field.choices or field.is_relation or field.primary_key:
            continue
        elif isinstance(field, models.JSONField):
            yield field.name, {MARK: MARK}
        elif isinstance(field, models.CharField | models.TextField):
            yield field.name, MARK


def tables_with_the_mark():
    """Whatever is in the database, also what no model is of, such as an index."""
    found = []
    with connection.cursor() as cursor:
        for table in readable_tables():
            cursor.execute(f"SELECT * FROM {connection.ops.quote_name(table)}")
            rows = cursor.fetchall()
            if any(MARK in str(value) or MARK.encode() in bytes_of(value) for row in rows for value in row):
                found.append(table)
    return set(found)


def bytes_of(value):
    return bytes(value) if isinstance(value, bytes | memoryview) else b""


# --- erase -------------------------------------------------------------------------------------------------------


def test_of_whoever_is_erased_no_text_is_left_anywhere():
    user = plant()
    search.take_in()
    with_it = tables_with_the_mark()
    assert len(with_it) >= 14
    assert {"conversations_message", "tools_toolcall", "memory_historyentry", "axes_accessattempt"} <= with_it
    assert connection.vendor != "sqlite" or {"memory_historywords_data", "conversations_saidwords_data"} <= with_it
    receipt = json.loads(run("erase", MARK, "--yes"))
    # The audit log refuses to lose what it has: the receipt says so.
    assert tables_with_the_mark() <= {"accounts_auditentry"}
    assert "names as they were" in receipt["kept"]["audit log"]
    assert not USERS.filter(pk=user.pk).exists()
    assert not Session.objects.exists()
    call = ToolCall.objects.get(owner_id=user.pk)
    assert (call.arguments, call.result, call.erased_at is None) == ("", "", False)


@pytest.mark.embedded(reason="it reads SQLite's file")
def test_nothing_is_left_in_sqlite_s_file_either():
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA secure_delete = OFF")  # some are built with it on
    plant(is_logged=False)
    run("erase", MARK, "--yes")
    kept = AuditEntry.objects.filter(before__contains=MARK) | AuditEntry.objects.filter(after__contains=MARK)
    kept |= AuditEntry.objects.filter(object_name__contains=MARK)
    assert not kept.exists()
    with connection.cursor() as cursor:
        cursor.execute("SELECT file FROM pragma_database_list WHERE name = 'main'")
        (file,) = cursor.fetchone()
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert file
    stored = Path(file).read_bytes()
    around = [stored[place.start() - 40 : place.end() + 40] for place in re.finditer(MARK.encode(), stored)]
    assert around == []


def test_the_receipt_adds_up_and_is_in_the_audit_log():
    user = plant()
    wanted = Message.objects.filter(conversation__owner=user).count()
    receipt = json.loads(run("erase", MARK, "--yes"))
    batches = AuditEntry.objects.filter(action="user.erasing", object_id=str(user.pk)).order_by("pk")
    told = [json.loads(each.after) for each in batches]
    assert receipt["batches"] == len(told) > 5
    assert receipt["hash"] == hashlib.sha256("".join(each["hash"] for each in told).encode()).hexdigest()
    rows = {table: sum(n for each in told for n, name in each["rows"] if name == table) for _, table in receipt["rows"]}
    assert {table: n for n, table in receipt["rows"]} == rows
    assert rows["conversations_message"] == wanted
    entry = AuditEntry.objects.get(pk=receipt["auditEntry"])
    assert (entry.action, entry.object_name) == ("user.erased", f"user {user.pk}")
    assert json.loads(entry.after)["hash"] == receipt["hash"]
    assert MARK not in json.dumps(told)


def test_a_copy_of_what_was_erased_is_known_by_its_hash(owner):
    entry = log.append(agent="default", owner_id=owner.pk, content="words", happened_at=timezone.now())
    entry.refresh_from_db()
    said = [getattr(entry, field.attname) for field in entry._meta.concrete_fields]
    text = json.dumps(said, ensure_ascii=False, separators=(",", ":"), default=str)
    line = f"memory_historyentry {entry.pk} {hashlib.sha256(text.encode()).hexdigest()}"
    run("erase", owner.username, "--yes")
    (told,) = AuditEntry.objects.filter(action="user.erasing")
    assert json.loads(told.after) == {
        "hash": hashlib.sha256(line.encode()).hexdigest(),
        "rows": [[1, "memory_historyentry"]],
    }


def test_files_that_agents_keep_for_somebody_are_erased_and_nobody_elses(owner, outsider, settings, tmp_path):
    settings.WORKSPACES_DIR = tmp_path
    for agent in ("default", "other"):
        for user in (owner, outsider):
            with open_workspace(agent=agent, owner_id=user.pk) as workspace:
                for _ in range(2):  # which keeps a former version
                    workspace.write("notes/a.txt", MARK.encode(), trusted=True)
    run("erase", owner.username, "--yes")
    left = {path.parent.name for path in tmp_path.glob("*/*/files")}
    assert left == {str(outsider.pk)}
    assert not list(tmp_path.glob(f"*/{owner.pk}"))


def test_without_yes_it_only_counts():
    user = plant()
    told = json.loads(run("erase", MARK, "--dry-run"))
    assert told["belongings"]["messages"] == Message.objects.filter(conversation__owner=user).count()
    assert told["heldBy"] == []
    with pytest.raises(CommandError, match="say --yes"):
        run("erase", MARK)
    assert USERS.get(pk=user.pk).is_active
    assert not AuditEntry.objects.filter(action="user.erasing").exists()


def test_under_a_legal_hold_it_refuses_and_names_it(owner, conversation):
    number = run("holds", "place", "--owner", "owner", "--reason", "A matter.").strip()
    with pytest.raises(CommandError, match=f"legal hold {number} on owner {owner.pk}"):
        run("erase", "owner", "--yes")
    assert json.loads(run("erase", "owner", "--dry-run"))["heldBy"][0].startswith(f"legal hold {number} ")
    run("holds", "release", number, "--reason", "Settled.")
    assert json.loads(run("erase", "owner", "--yes"))["owner"] == owner.pk
    assert not Conversation.objects.exists()


def test_nobody_of_that_name_is_told():
    with pytest.raises(CommandError, match="no user named"):
        run("erase", "nobody", "--yes")


# --- retention, and holds ----------------------------------------------------------------------------------------


def test_retention_counts_and_deletes(fill, agent):
    fill(5)
    age(40)
    assert "Everything is kept for ever" in run("retention")
    keep(agent, messages=30, history=7)
    told = run("retention", "--dry-run").splitlines()
    assert told[0] == "default\tmessages\t30 days\t5 rows would go\tconversations_message 5"
    assert told[1] == "default\thistory\t7 days\t0 rows would go"
    assert Message.objects.count() == 5
    assert run("retention").splitlines()[0] == "default\tmessages\t30 days\t5 rows deleted"
    assert not Message.objects.exists()
    with pytest.raises(CommandError, match="no agent named"):
        run("retention", "--agent", "nobody")


def test_what_a_deleted_agent_has_left_is_counted_and_deleted_as_well(owner):
    clerk = Agent.objects.create(name="clerk", retention={"history": 7})
    log.append(agent="clerk", owner_id=owner.pk, content="words", happened_at=timezone.now() - timedelta(days=8))
    clerk.remove()
    assert run("retention", "--dry-run").startswith("clerk\thistory\t7 days\t1 rows would go")
    assert run("retention", "--agent", "clerk") == "clerk\thistory\t7 days\t1 rows deleted\n"
    assert not HistoryEntry.objects.exists()


def test_what_is_held_is_counted_apart(fill, agent, conversation):
    fill(5)
    age(40)
    keep(agent, messages=30)
    run("holds", "place", "--conversation", str(conversation.pk), "--reason", "A matter.")
    assert "0 rows would go\t1 kept by a legal hold" in run("retention", "--dry-run")


@pytest.mark.parametrize("of", [("--owner", "nobody"), ("--agent", "nobody"), ("--conversation", "x")])
def test_a_hold_is_on_something_that_there_is(of):
    with pytest.raises(CommandError, match="There is no"):
        run("holds", "place", *of, "--reason", "A matter.")


def test_holds_are_listed_while_they_count(agent):
    number = run("holds", "place", "--agent", agent.name, "--reason", "A matter.").strip()
    assert run("holds", "list").split("\t")[:2] == [number, "agent default"]
    run("holds", "release", number, "--reason", "Settled.")
    assert run("holds", "list") == ""
    for wrong in (number, "999"):
        with pytest.raises(CommandError):
            run("holds", "release", wrong, "--reason", "Settled.")


def test_what_was_never_older_stays(fill, agent):
    fill(3)
    keep(agent, messages=1)
    Message.objects.filter(seq=1).update(created_at=clock.read() - timedelta(hours=23))
    assert "0 rows deleted" in run("retention")
