"""The database across releases: prepared once by many nodes, old nodes beside new ones, kept and restored."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx2
import pytest
from django.apps import apps
from django.db import models
from django.db.migrations import operations
from django.db.migrations.autodetector import MigrationAutodetector
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState
from django.db.models import NOT_PROVIDED

from agent.models import Agent
from nanohost.lib.help_texts import SetHelpTexts
from nanohost.stack import read_services
from tests.faults.servers import Redis, free_port
from tests.support import servers, warm
from tests.support.api_client import chat, start
from tests.support.factories import OwnerFactory
from tests.support.hosts import KEY, PLAIN, ROOT, Host
from tests.support.scripts import script
from tests.support.wait import wait_until

OPERATIONS = (ROOT / "docs" / "operations.md").read_text()

# --- what a migration may do --------------------------------------------------------------------------------------

OURS = ("accounts", "tools", "memory", "agent", "conversations", "scheduler")
# The first release's: before them there were no nodes.
FIRST_RELEASE = {
    "accounts.0001_initial",
    "agent.0001_initial",
    "agent.0002_default_agent",
    "conversations.0001_initial",
    "tools.0001_initial",
}
# Migrations that do more than add: why nodes of the release before can work beside it all the same.
LISTED = {
    "accounts.0003_audit_and_limits": "it lets the keys that there are do what they could, in columns that are new",
    "accounts.0007_browser_keys": "its constraint is of rows that only nodes of this release make",
    "accounts.0010_chosen_keys": "it marks keys in a column that nodes of the release before read only at their start",
    "agent.0003_memory": "it stores what each agent is as its first version, in a table of its own",
    "agent.0006_check_ins": "it renames two fields, and leaves their columns as they are",
    "agent.0007_public": "it marks the default agent as public, in a column that is new",
    "agent.0009_prices_and_budgets": "it stores prices, in a table that is new",
    "agent.0010_taint": "on a host without users it guards the default agent, in a column that is new",
    "agent.0014_written_prompts": "it prices what Anthropic caches, in a column that is new",
    "agent.0019_deleted_agents": "it stores how long deleted agents kept what, in a table that is new",
    "conversations.0003_growth": "it drops a constraint and makes it again, in one transaction",
    "conversations.0016_turns_held": "it forgets a column, and leaves it in the database",
    "conversations.0017_leases": "it renames a field, and leaves its column and index as they are",
    "conversations.0018_deferred_messages": "it renames a model and its permissions, and leaves its table as it is",
    "conversations.0037_search": "it indexes what was said, by triggers on SQLite, whoever writes it",
    "conversations.0038_channels": "its constraints and required columns are of tables that are new with it",
    "conversations.0045_agents_as_destinations": "nodes of the release before pass over a destination that has no chat",
    "conversations.0051_replay_sets": "its constraints are of tables that are new with it",
    "conversations.0052_feedback": "its constraint is of a table that is new with it",
    "conversations.0053_evaluations_by_themselves": "its constraint is of a column that only nodes of this release set",
    "conversations.0057_search_later": "it makes SQLite's triggers anew, whose one process is of one release",
    "memory.0001_initial": "it makes an index of a table that is new with it",
    "scheduler.0004_check_ins": "it renames a model and its permissions, and leaves its table as it is",
    "tools.0006_leases": "it renames a field, and leaves its column and index as they are",
    "tools.0011_mcp_health": "it adds to a table that no release has had",
    "tools.0012_mcp_addresses": "it adds to a table that no release has had",
}

# What the release before does not notice: tables and indexes it does not know, and rules it need not keep.
HARMLESS = (
    operations.CreateModel,
    operations.AddIndex,
    operations.RemoveIndex,
    operations.RemoveConstraint,
    operations.AlterModelOptions,
    operations.AlterModelManagers,
    SetHelpTexts,
)
# Attributes of a field that say nothing about what its column takes.
NOT_OF_THE_COLUMN = {
    "auto_now",
    "auto_now_add",
    "blank",
    "choices",
    "db_default",
    "db_index",
    "default",
    "editable",
    "error_messages",
    "help_text",
    "on_delete",
    "related_name",
    "validators",
    "verbose_name",
}


def column(field: models.Field) -> Any:
    _, path, arguments, options = field.deconstruct()
    kept = {name: value for name, value in options.items() if name not in NOT_OF_THE_COLUMN}
    return path, arguments, kept | {"to": str(kept.get("to")).lower()}


def narrows(operation: Operation, app: str, state: ProjectState) -> bool:
    """Whether nodes of the release before may stumble; ``state`` is the models' before the operation."""
    if isinstance(operation, HARMLESS):
        return False
    if isinstance(operation, operations.AddField):
        field = operation.field
        # They insert rows that do not name it.
        fills_itself = field.null or field.db_default is not NOT_PROVIDED or field.many_to_many
        return field.unique or not fills_itself
    if isinstance(operation, operations.AlterField):
        before = state.models[app, operation.model_name_lower].fields[operation.name]
        return bool(column(before) != column(operation.field))
    return True


def narrowing(loader: MigrationLoader, app: str, name: str) -> list[str]:
    """What of a migration is more than an addition."""
    state = loader.project_state([(app, name)], at_end=False)
    found = []
    for operation in loader.graph.nodes[app, name].operations:
        if narrows(operation, app, state):
            found.append(operation.describe())
        operation.state_forwards(app, state)
    return found


@pytest.mark.shapeless(reason="it reads migrations")
def test_every_migration_since_the_first_release_only_adds():
    loader = MigrationLoader(None)
    ours = [key for key in loader.graph.nodes if key[0] in OURS]
    assert {".".join(key) for key in ours} >= FIRST_RELEASE | LISTED.keys()
    found = {".".join(key): narrowing(loader, *key) for key in ours if ".".join(key) not in FIRST_RELEASE}
    assert {name for name, what in found.items() if what} == LISTED.keys(), found


@pytest.mark.shapeless(reason="it reads migrations")
@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        (operations.AddField("turn", "mood", models.TextField(null=True)), False),
        (operations.AddField("turn", "mood", models.TextField(db_default="calm")), False),
        (operations.AddField("turn", "mood", models.TextField(default="calm")), True),
        (operations.AddField("turn", "mood", models.TextField(null=True, unique=True)), True),
        (
            operations.AlterField("turn", "worker", models.CharField(max_length=128, blank=True, help_text="New.")),
            False,
        ),
        (operations.AlterField("turn", "worker", models.CharField(max_length=64, blank=True)), True),
        (operations.AlterField("turn", "deadline", models.DateTimeField()), True),
        (operations.RemoveField("turn", "worker"), True),
        (operations.RenameField("turn", "worker", "held_by"), True),
        (operations.DeleteModel("worker"), True),
        (operations.AlterModelTable("worker", "process"), True),
        (operations.AddConstraint("turn", models.UniqueConstraint(fields=["worker"], name="one")), True),
        (operations.RunSQL("DROP TABLE conversations_worker"), True),
        (operations.RunPython(operations.RunPython.noop), True),
    ],
    ids=lambda value: value.describe() if isinstance(value, Operation) else str(value),
)
def test_what_counts_as_an_addition(operation, expected):
    state = MigrationLoader(None).project_state([("conversations", "0001_initial")])
    assert narrows(operation, "conversations", state) is expected


@pytest.mark.shapeless(reason="it reads migrations")
def test_what_the_models_say_is_in_migrations():
    loader = MigrationLoader(None)
    models_now = ProjectState.from_apps(apps)
    changes = MigrationAutodetector(loader.project_state(), models_now).changes(graph=loader.graph)
    assert {app: [str(each.operations) for each in found] for app, found in changes.items()} == {}


@pytest.mark.shapeless(reason="it reads migrations")
def test_each_that_is_listed_is_told_of():
    for name, reason in LISTED.items():
        assert reason
        assert name in OPERATIONS


# --- on a database ------------------------------------------------------------------------------------------------

# Back to where models and fields have their earlier names, and keys no scopes. The tables are the same, so today's
# models do. All of it in one process: each has to learn of all migrations first.
BEFORE = """
from django.contrib.auth.models import Group, Permission, User
from django.core.management import call_command
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.utils import timezone


def as_it_was(*migrations):
    for app, migration in migrations:
        call_command("migrate", app, migration, verbosity=0)
    loader = MigrationExecutor(connection).loader
    return loader.project_state(list(loader.applied_migrations)).apps.get_model

model = as_it_was(("agent", "0005"), ("conversations", "0017"))  # scheduler.0004 goes with the first
owner, agent, now = User.objects.get(), model("agent.Agent").objects.get(), timezone.now()
model("agent.Agent").objects.update(heartbeat_owner=owner.pk, heartbeat_minutes=7)
conversation = model("conversations.Conversation").objects.create(owner_id=owner.pk, agent=agent, key="a:b")
later = {"content": "Wake up.", "run_after": now, "kind": "wake"}
model("conversations.LaterMessage").objects.create(conversation=conversation, **later)
model("scheduler.Heartbeat").objects.create(agent=agent, slot=now, day=now.date(), state="ok", ended_at=now)
granted = Permission.objects.filter(codename__in=["view_latermessage", "change_heartbeat"])
Group.objects.create(name="mine").permissions.set(granted)

# Last, as the log of what is changed goes with it.
keys = as_it_was(("accounts", "0002"))("accounts.ApiKey").objects
assert not hasattr(keys.model, "scopes")
keys.create(owner_id=owner.pk, prefix="former", digest="0" * 64)
"""
AFTER = """
from django.contrib.auth.models import Group, Permission

from agent.models import Agent
from conversations.models import DeferredMessage
from nanohost.accounts.models import ApiKey
from scheduler.models import CheckIn

(agent,), (message,), (check_in,) = Agent.objects.all(), DeferredMessage.objects.all(), CheckIn.objects.all()
print(agent.check_in_owner, agent.check_in_minutes, message.content, check_in.state)
print(*(f"{each.name}: {each.codename}" for each in Group.objects.get(name="mine").permissions.all()), sep=", ")
print(*(name for name in ("latermessage", "heartbeat") if Permission.objects.filter(codename__endswith=name)))
viewer = Group.objects.get(name="viewer").permissions.filter(codename__regex="deferred|checkin")
print(*sorted(viewer.values_list("codename", flat=True)))

former = ApiKey.objects.get(prefix="former")
new, _ = ApiKey.objects.issue(owner=former.owner)
for key in (former, new):
    print(key.scopes, key.agent_names, key.is_wider(public=[]))
"""


@pytest.fixture(scope="module")
def told_after(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What ``AFTER`` tells of a database that was migrated from ``BEFORE``."""
    host = Host(tmp_path_factory.mktemp("before"))
    host.have_database()
    assert host.manage("shell", "--no-imports", "-c", BEFORE).stderr == ""
    assert host.manage("prepare").returncode == 0
    return host.manage("shell", "--no-imports", "-c", AFTER).stdout.splitlines()


def test_what_has_another_name_now_keeps_its_rows_and_what_was_granted(told_after):
    assert told_after[:4] == [
        "admin 7 Wake up. ok",
        "Can view deferred message: view_deferredmessage, Can change check-in: change_checkin",
        "",
        "view_checkin view_deferredmessage",
    ]


def test_keys_that_there_were_before_there_were_scopes_keep_what_they_could(told_after):
    assert told_after[4:] == [
        "['chat', 'read', 'schedules', 'memory'] ['*'] True",
        "['chat', 'read'] [] False",
    ]


# The first release's keys. What stands in NANOHOST_API_KEY had a prefix of people's choice, or of a key made here.
FIRST_RELEASES_KEYS = """
from django.contrib.auth.models import User
from django.core.management import call_command

from django.db import connection
from django.utils import timezone

admin = User.objects.create_superuser("admin", password="of the test alone")
call_command("migrate", "accounts", "0001", verbosity=0)
with connection.cursor() as cursor:
    for prefix in ("former", "0123abcd"):
        cursor.execute(
            "INSERT INTO accounts_apikey (owner_id, prefix, digest, created_at) VALUES (%s, %s, %s, %s)",
            [admin.pk, prefix, "0" * 64, timezone.now()],
        )
"""
OPEN = "SELECT prefix FROM accounts_apikey WHERE revoked_at IS NULL ORDER BY prefix"


def test_a_key_that_is_changed_along_with_the_first_release_is_revoked_or_named(tmp_path):
    """Which key the setting named was not recorded then."""
    host = Host(tmp_path, NANOHOST_API_KEY="nh_chosen_0123456789abcdef")
    host.have_database()
    assert host.manage("shell", "--no-imports", "-c", FIRST_RELEASES_KEYS).stderr == ""
    assert [row["prefix"] for row in host.sql(OPEN)] == ["0123abcd", "former"]
    _, revoked, named = host.manage("prepare").stdout.splitlines()
    assert revoked == "NANOHOST_API_KEY has changed: the former key nh_former_… is revoked."
    assert named.endswith(
        "It may be one of these, which still open the API: nh_0123abcd_…. To end one: manage.py keys revoke PREFIX"
    )
    assert [row["prefix"] for row in host.sql(OPEN)] == ["0123abcd", "chosen"]


production = pytest.mark.production(reason="several nodes share a database")


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    redis = Redis(tmp_path_factory.mktemp("servers") / "redis")
    redis.start()
    yield redis
    redis.stop(signal.SIGKILL)


# Bounds a hang only: an empty database is prepared with all its migrations, on slow machines too.
STARTS_SECONDS = 180


class Nodes:
    """Processes of docker-compose.yml's commands on one database; ``log`` has what all of them say."""

    def __init__(self, folder: Path, database: str, redis_url: str) -> None:
        self.log = folder / "nodes.log"
        self.address = f"http://127.0.0.1:{free_port()}"
        self.processes: dict[str, list[subprocess.Popen[bytes]]] = {}
        self.environment = {
            "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}",
            "HOME": str(folder),
            "DATABASE_URL": servers.url_of(database),
            "REDIS_URL": redis_url,
            "DATA_DIR": str(folder),
            "PORT": self.address.rpartition(":")[2],
            "SECRET_KEY": "of every web node: it signs the sessions",
            "HTTPS": "false",
            "NANOHOST_EXTRA_APPS": "tests.toolbox",
        }

    def start(self, service: str, *, times: int = 1) -> None:
        command = read_services()[service].command
        with self.log.open("ab") as log:
            self.processes[service] = [
                subprocess.Popen(command, cwd=ROOT, env=self.environment, stdout=log, stderr=log) for _ in range(times)
            ]

    def ready(self) -> bool:
        try:
            return httpx2.get(f"{self.address}/health/ready", timeout=5, verify=PLAIN).status_code == 200
        except httpx2.HTTPError:
            return False

    def talk(self, key: str) -> str:
        """Have a turn with a tool call; returns the answer."""
        headers = {"Authorization": f"Bearer {key}"}
        with httpx2.Client(base_url=f"{self.address}/api/v1", headers=headers, timeout=60, verify=PLAIN) as client:
            answer = chat(client, start(client), script({"call": [{"name": "time"}]}, {"say": "Done: {results}"}))
        assert answer.status_code == 200, answer.text
        assert [call["status"] for call in answer.json()["toolCalls"]] == ["SUCCESS"]
        return str(answer.json()["assistantMessage"])

    def manage(self, *arguments: str, **own: str) -> subprocess.CompletedProcess[str]:
        return warm.run("manage.py", *arguments, env=self.environment | own, timeout=100)

    def leave(self) -> None:
        started = [process for processes in self.processes.values() for process in processes]
        for process in started:
            process.kill()
        for process in started:
            process.wait()


@pytest.fixture
def nodes(tmp_path: Path, redis: Redis) -> Iterator[Callable[..., Nodes]]:
    made: list[Nodes] = []

    def make(name: str, *, template: str) -> Nodes:
        servers.create(servers.name_of(name), template=template)
        made.append(Nodes(tmp_path, servers.name_of(name), redis.url))
        return made[-1]

    yield make
    for each in made:
        each.leave()


@production
def test_many_nodes_that_start_at_once_prepare_the_database_once(nodes):
    """Four nodes prepare an empty database; a web node, a worker and a toolbox that start beside them wait for it."""
    group = nodes("fresh", template="template0")
    for service in ("web", "worker", "toolbox"):
        group.start(service)
    group.start("migrate", times=4)
    migrating = group.processes["migrate"]
    assert [process.wait(timeout=STARTS_SECONDS) for process in migrating] == [0] * 4, group.log.read_text()
    with servers.connect(servers.name_of("fresh")) as database:
        recorded = database.execute("SELECT app, name FROM django_migrations").fetchall()
        assert len(recorded) == len(set(recorded))
        assert set(recorded) == set(MigrationLoader(None).disk_migrations)
        for table in ("auth_user", "accounts_apikey"):
            assert database.execute(f"SELECT count(*) FROM {table}").fetchone() == (1,)
    printed = group.log.read_text()
    assert printed.count("(shown this once)") == 2
    wait_until(group.ready, seconds=STARTS_SECONDS)
    assert group.talk(re.search(r"nh_\S+", printed)[0]).startswith("Done: ")


# What the next release may do to the database while nodes of this one still work on it.
NEXT_RELEASE = """
ALTER TABLE conversations_turn ADD COLUMN mood varchar(10) DEFAULT 'calm' NOT NULL;
ALTER TABLE conversations_message ADD COLUMN language varchar(10) NULL;
ALTER TABLE conversations_worker ADD COLUMN place varchar(10) DEFAULT '' NOT NULL;
ALTER TABLE tools_toolcall ADD COLUMN cost integer DEFAULT 0 NOT NULL;
CREATE TABLE conversations_letter (id bigint PRIMARY KEY, turn_id uuid NOT NULL REFERENCES conversations_turn (id));
CREATE INDEX turns_by_mood ON conversations_turn (mood);
INSERT INTO django_migrations (app, name, applied) VALUES ('conversations', '9999_mood', now());
"""


@production
def test_nodes_of_this_release_work_on_the_next_one_s_database(nodes):
    group = nodes("newer", template=servers.name_of("prepared"))
    with servers.connect(servers.name_of("newer")) as database:
        database.execute(NEXT_RELEASE)
    for service in ("web", "worker", "toolbox", "beat"):
        group.start(service)
    wait_until(group.ready, seconds=STARTS_SECONDS)
    assert group.talk(KEY).startswith("Done: ")
    assert "Traceback" not in group.log.read_text()
    assert group.processes["beat"][0].poll() is None
    # Only the newer release prepares it.
    refused = group.manage("prepare")
    assert refused.returncode == 1
    assert refused.stderr == (
        "CommandError: The database is newer than this code (it has conversations.9999_mood); run the newer version.\n"
    )


# What a node of this release has stored, in a table that nodes of the release before do not know.
A_QUESTION = """
from uuid import uuid4
from django.contrib.auth.models import User
from django.utils import timezone
from agent.models import Agent
from conversations.models import Conversation
from conversations.question_models import Question

owner, agent = User.objects.get(), Agent.objects.get()
conversation = Conversation.objects.create(owner=owner, agent=agent, key="a:b")
said = {"owner_id": owner.pk, "agent": agent.name, "text": "Blue?", "options": [], "expires_at": timezone.now()}
Question.objects.create(conversation=conversation, turn_id=uuid4(), call_id=uuid4(), **said)
"""
FOLLOWED = """
SELECT conrelid::regclass::text, attname, confdeltype::text, convalidated FROM pg_constraint
JOIN pg_attribute ON attrelid = conrelid AND attnum = conkey[1] WHERE contype = 'f'
"""
ACTIONS = {models.CASCADE: "c", models.SET_NULL: "n"}


@production
def test_nodes_of_the_release_before_delete_what_newer_tables_refer_to(nodes):
    group = nodes("deleting", template=servers.name_of("prepared"))
    stored = group.manage("shell", "--no-imports", "-c", A_QUESTION)
    assert stored.returncode == 0, stored.stderr
    with servers.connect(servers.name_of("deleting")) as database:
        # As they do: what they know of goes before, and nothing else.
        assert database.execute("DELETE FROM conversations_conversation").rowcount == 1
        assert database.execute("SELECT count(*) FROM conversations_question").fetchone() == (0,)
        followed = set(database.execute(FOLLOWED).fetchall())
    expected = {
        (model._meta.db_table, field.column, ACTIONS[field.remote_field.on_delete], True)
        for app in OURS
        for model in apps.get_app_config(app).get_models(include_auto_created=True)
        for field in model._meta.local_concrete_fields
        if field.remote_field and field.remote_field.on_delete in ACTIONS
    }
    assert len(expected) > 40
    assert expected - followed == set()


WAITS = "SELECT virtualtransaction FROM pg_locks WHERE NOT granted AND relation = 'conversations_question'::regclass"


@production
def test_nodes_that_hold_what_a_migration_waits_for_are_not_ended_and_it_tries_again(nodes):
    """It has locked a table that they want next."""
    group = nodes("busy", template=servers.name_of("migrated"))
    name = servers.name_of("busy")
    with servers.connect(name) as node, servers.connect(name) as watcher, node.transaction():
        node.execute("SELECT count(*) FROM conversations_question")
        group.start("migrate")
        tries = set()

        def has_tried_twice() -> bool:
            tries.update(watcher.execute(WAITS).fetchall())
            return len(tries) > 1

        wait_until(has_tried_twice, seconds=STARTS_SECONDS)
        assert node.execute("SELECT count(*) FROM conversations_conversation").fetchone() == (0,)
    (migrating,) = group.processes["migrate"]
    assert migrating.wait(timeout=STARTS_SECONDS) == 0, group.log.read_text()


@production
@pytest.mark.skipif(
    not (shutil.which("pg_dump") and shutil.which("pg_restore") and shutil.which("createdb")),
    reason="PostgreSQL's own programs make and restore a backup; they are not installed",
)
def test_a_backup_is_restored_by_the_documented_commands(nodes, tmp_path):
    group = nodes("backed_up", template=servers.name_of("prepared"))
    for service in ("web", "worker", "toolbox"):
        group.start(service)
    wait_until(group.ready, seconds=STARTS_SECONDS)
    group.talk(KEY)
    section = OPERATIONS.split("\n## Backup and restore\n")[1].split("\n## ")[0]
    blocks = re.findall(r"^```bash\n(.*?)^```$", section, re.M | re.S)
    # What follows a restore, `manage.py restored`, has tests of its own.
    commands = [block for block in blocks if "docker" not in block and "manage.py" not in block]
    assert len(commands) == 2
    restored = servers.name_of("restored")
    for block in commands:
        subprocess.run(
            ["bash", "-ec", block.replace("nanohost_restored", restored)],
            cwd=tmp_path,
            env=group.environment | {"RESTORED_URL": servers.url_of(restored)},
            check=True,
            timeout=60,
        )
    contents = "SELECT json_agg(message ORDER BY message.id)::text FROM conversations_message message"
    with servers.connect(servers.name_of("backed_up")) as before, servers.connect(restored) as after:
        kept, found = (database.execute(contents).fetchone()[0] for database in (before, after))
    assert len(json.loads(kept)) == 4
    assert found == kept
    prepared = group.manage("prepare", DATABASE_URL=servers.url_of(restored))
    assert (prepared.returncode, prepared.stdout.splitlines()[0]) == (0, "The database is up to date.")


@pytest.mark.django_db
@pytest.mark.parametrize("users", [0, 1])
def test_the_default_agent_is_held_to_taint_on_a_new_host_and_as_it_was_on_others(users, agent):
    assert agent.taint == "approve"  # as the migrations have made it
    Agent.objects.update(taint="off")
    OwnerFactory.create_batch(users)
    import_module("agent.migrations.0010_taint").guard_a_new_host(apps, None)
    agent.refresh_from_db()
    assert agent.taint == ("off" if users else "approve")
    assert Agent(name="clerk").taint == "approve"
    assert Agent._meta.get_field("taint").db_default == "off"  # of those that there were
