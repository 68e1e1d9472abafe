"""What the tests share: three people (an owner, a colleague, an outsider), a running host, real rows."""

import gc
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import httpx2
import hypothesis
import pytest
from django.conf import settings
from django.db import connection, transaction
from django.test import TransactionTestCase
from xdist.scheduler import LoadFileScheduling

from agent import llm
from agent.llm.breaker import breaker
from agent.models import DEFAULT_AGENT, Agent
from agent.spending import book
from agent.spending.ahead import stock
from conversations.engine import inbox
from conversations.models import Conversation, Message, Turn
from nanohost.accounts import audit
from nanohost.accounts.models import AuditEntry, AuditSeal
from nanohost.lib import append_only, one_core, redaction
from nanohost.lib.known_secrets import KnownSecrets
from nanohost.lib.text import storable
from tests import shapes
from tests.support import servers
from tests.support.api_client import start
from tests.support.factories import OwnerFactory
from tests.support.hosts import Host, environment_of, sqlite_template
from tests.support.openai_server import OpenAIServer
from tests.support.saying import said
from tests.toolbox import grants_of
from tools import gate
from tools.models import ToolSetting, sync_settings

# What is asserted is not how fast; the machine may have other work.
hypothesis.settings.register_profile("timeless", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("timeless")

# What else than its shape decides on whether a test runs there: see the markers in pyproject.toml.
NOT_ON = {shapes.EMBEDDED: {"production"}, shapes.PRODUCTION: {"embedded", "shapeless"}}
# With several processes a file is one's: those that take longest begin.
FIRST = {"test_stack", "test_migrations", "test_readme", "test_state_machine", "test_serve", "test_mutants"}
FIRST |= {"test_query_plans", "test_openai_host", "test_deploy", "test_browser", "test_tool_processes", "test_sandbox"}
FIRST |= {
    "test_docs_tools",
    "test_patterns",
    "test_chat",
    "test_attention_in_a_browser",
    "test_platforms",
    "test_admin",
}

# Tests that use these are one process's, so that there is one of each host and not one a process: a start costs seconds
# of the processor, and an idle host some hundredths. They are the tests of the API, and these.
SHARED_HOSTS = frozenset({"host", "impatient", "mortal"})
SHARERS = (
    *("tests/api/", "tests/host/test_logs.py", "tests/host/test_metrics.py"),
    "tests/commands/test_chat_command.py",
)


class ByFile(LoadFileScheduling):
    """A file is one process's, as what its tests share is made once; and so are those that share hosts.

    This is what xdist's ``loadgroup`` is for, but it writes the group into an attribute that this pytest no longer
    reads, and then hands out test by test.
    """

    def _split_scope(self, nodeid: str) -> str:
        return "shared hosts" if nodeid.startswith(SHARERS) else super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    """Whatever ``--dist`` says."""
    return ByFile(config, log)


def pytest_configure() -> None:
    """Collect tests, of which none is garbage, without looking for garbage: that is a third of the time."""
    gc.disable()


def pytest_collection_finish() -> None:
    """From here on look for garbage, but not among what was loaded."""
    gc.freeze()
    gc.enable()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Have the run's corner of the servers made, by the process that starts the others."""
    if shapes.shape() == shapes.PRODUCTION and starts_the_others(session.config):
        session.config.stash[RUN] = servers.Run(environment_of(Path(os.environ["DATA_DIR"])))


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave nothing behind."""
    if starts_the_others(config):
        if run := config.stash.get(RUN, None):
            run.end()
        shutil.rmtree(os.environ["DATA_DIR"], ignore_errors=True)
        shutil.rmtree(os.environ["TOOL_FOLDERS"], ignore_errors=True)


RUN = pytest.StashKey[servers.Run]()
SHARED: list[Host] = []


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End the hosts that tests share when the last of these has run. Their fixtures live as long as the process, which
    then runs others; and an idle host takes some hundredths of a processor."""
    if item.nodeid.startswith(SHARERS) and not (nextitem and nextitem.nodeid.startswith(SHARERS)):
        while SHARED:
            SHARED.pop().kill()


def shared(host: Host) -> Iterator[Host]:
    """A host that is ended after the last test that shares it, and in any case with the process."""
    SHARED.append(host)
    yield host
    host.kill()


def starts_the_others(config: pytest.Config) -> bool:
    """Whether this process is the one that was started, and not one that xdist has started to run tests."""
    return not hasattr(config, "workerinput")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is not for this shape, each with its reason; and begin with what takes longest."""
    left_out = []
    for item in items:
        for marker in ("embedded", "production", "shapeless"):
            for mark in item.iter_markers(marker):
                if not mark.kwargs.get("reason"):
                    raise pytest.UsageError(f"{item.nodeid}: {marker} without a reason")
        if any(counts(item, marker) for marker in NOT_ON[shapes.shape()]):
            left_out.append(item)
        if SHARED_HOSTS & set(getattr(item, "fixturenames", ())) and not item.nodeid.startswith(SHARERS):
            raise pytest.UsageError(f"{item.nodeid} uses a shared host: name its file in SHARERS")
    if twice := [each for each, count in Counter(item.nodeid for item in items).items() if count > 1]:
        raise pytest.UsageError(f"several tests are one to xdist, which would run one of them: {twice}")
    config.hook.pytest_deselected(items=left_out)
    kept = [item for item in items if item not in set(left_out)]
    items[:] = sorted(kept, key=begins)


def begins(item: pytest.Item) -> int:
    """What takes longest begins: those that share hosts, then those of ``FIRST``, then the others."""
    if item.nodeid.startswith(SHARERS):
        return 0
    return 1 if item.path.stem in FIRST or item.path.parent.name == "faults" else 2


def counts(item: pytest.Item, marker: str) -> bool:
    """Whether a test has this marker. Of a shapeless module, those that ask for rows or a host are not meant."""
    if marker == "shapeless" and {"db", "transactional_db", *SHARED_HOSTS} & set(getattr(item, "fixturenames", ())):
        return False
    return item.get_closest_marker(marker) is not None


# What there is is deleted, and what the migrations have made is made again; the audit log's tables are apart.
UNDO: list[str] = []
APPEND_ONLY = (AuditEntry, AuditSeal)


def tables() -> set[str]:
    """All that tests write to; Django's own lists are the same for all. One table is no model's: of what waits for
    SQLite's index."""
    lists = {"auth_permission", "django_content_type"}
    own = {"conversations_unsaid"} if connection.vendor == "sqlite" else set()
    return set(connection.introspection.django_table_names(only_existing=True)) - lists | own


@pytest.fixture
def on_one_core(monkeypatch) -> Iterator[set[int]]:
    """As in a process that keeps to one core, as far as this thread and what it starts are concerned; gives the cores
    that there are."""
    cores = os.sched_getaffinity(0)
    if len(cores) < 2:
        pytest.skip("this machine has one core to offer")
    monkeypatch.setattr(one_core, "current", one := one_core.OneCore(cores))
    os.sched_setaffinity(0, {one.here})
    yield cores
    os.sched_setaffinity(0, cores)


@pytest.fixture(scope="session")
def django_db_setup(
    request: pytest.FixtureRequest,
    django_test_environment: None,
    django_db_modify_db_settings: None,
    django_db_blocker: Any,
) -> None:
    """Have a copy of the run's database that was migrated, and keep what the migrations have made.

    Django would migrate it once more: to find that nothing is to be done takes a process some seconds.
    """
    if not any(item.get_closest_marker("django_db") for item in request.session.items):
        return  # and pytest-django has named no database
    name = connection.settings_dict["TEST"]["NAME"]
    if shapes.shape() == shapes.PRODUCTION:
        servers.create(name, template=servers.name_of("migrated"))
    else:
        shutil.copy(sqlite_template("migrated"), name)
    connection.close()
    if shapes.shape() == shapes.PRODUCTION:
        connection.close_pool()  # of whoever has looked before
    settings.DATABASES["default"]["NAME"] = connection.settings_dict["NAME"] = name
    copies = {}
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        audit.guard()
        for table in tables():
            cursor.execute(f"SELECT 1 FROM {table}")
            if cursor.fetchone():
                copies[table] = f"as_migrated_{table}"
                cursor.execute(f"CREATE TABLE {copies[table]} AS SELECT * FROM {table}")
        kept = [model._meta.db_table for model in APPEND_ONLY]
        UNDO[:] = [f"DELETE FROM {table};" for table in sorted(tables() - {*kept})]
        UNDO.extend(f"INSERT INTO {table} SELECT * FROM {copy};" for table, copy in copies.items())
        if connection.vendor == "postgresql":
            cursor.execute(f"{AS_A_FUNCTION} BEGIN {''.join(map(emptied, kept))} {''.join(UNDO)} END $$")


AS_A_FUNCTION = "CREATE FUNCTION undo() RETURNS void LANGUAGE plpgsql AS $$"


def emptied(table: str) -> str:
    """What empties a table that refuses it, if there is anything in it."""
    changed = f"ALTER TABLE {table} {{}} TRIGGER USER;"
    act = f"{changed.format('DISABLE')} DELETE FROM {table}; {changed.format('ENABLE')}"
    return f"IF EXISTS (SELECT 1 FROM {table}) THEN {act} END IF;"


def delete_rows(test_case: object) -> None:
    """Undo what a test has committed, table by table: then there is again what the migrations made.

    Django would truncate each table, which costs PostgreSQL a new file for each, and then make its lists anew: 40 ms
    a test on SQLite and 200 on PostgreSQL, against 2 and 3. A function keeps the plans of its statements.
    """
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT undo()")
        return
    for model in (each for each in APPEND_ONLY if each.objects.exists()):
        with transaction.atomic(), connection.cursor() as cursor:
            append_only.unprotect(connection, model)
            cursor.execute(f"DELETE FROM {model._meta.db_table}")
            append_only.protect(connection, model)
    # Foreign keys are looked at when the transaction ends.
    connection.connection.executescript("\n".join(["BEGIN IMMEDIATE;", *UNDO, "COMMIT;"]))


TransactionTestCase._fixture_teardown = delete_rows


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    """Reports travel between processes as UTF-8; what a test logs on purpose may be none."""
    report = yield
    report.sections = [(name, storable(text)) for name, text in report.sections]
    return report


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A running host that tests share; they must leave it as they found it."""
    yield from shared(Host(tmp_path_factory.mktemp("host")).start())


@pytest.fixture(scope="session")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """Another that tests share. It waits half a second for an answer, and 1.5 s for a model that is away; it gives a
    turn 3 s, offers two models, and logs what is said."""
    yield from shared(
        Host(
            tmp_path_factory.mktemp("impatient"),
            CHAT_WAIT_SECONDS="0.5",
            TURN_MAX_ATTEMPTS="1",
            LLM_RETRY_SECONDS="1.5",
            TURN_TIMEOUT_SECONDS="3",
            LLM_MODELS="gpt-4.1-mini,gpt-4.1",
            LOG_CONTENT="1",
        ).start()
    )


@pytest.fixture(scope="session")
def _mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    yield from shared(Host(tmp_path_factory.mktemp("mortal"), TURN_LEASE_SECONDS="2", SWEEP_SECONDS="0.3"))


@pytest.fixture
def mortal(_mortal: Host) -> Host:
    """Another that tests share, which they may stop and kill: whatever of it has ended is started again. What a killed
    worker held is soon taken over."""
    return _mortal.start()


@pytest.fixture(scope="module")
def api(host: Host) -> Iterator[httpx2.Client]:
    """A client of the shared host's API, with a good key."""
    with host.client() as api:
        yield api


@pytest.fixture
def conversation_id(api: httpx2.Client) -> str:
    """A new conversation in the shared host."""
    return start(api)


@pytest.fixture(autouse=True, scope="session")
def _no_tool_processes_left() -> Iterator[None]:
    yield
    gate.close_tools()


@pytest.fixture(autouse=True)
def _no_provider_rests() -> None:
    """Whatever tests before have had fail."""
    breaker.forget()


@pytest.fixture(autouse=True)
def _nobody_acts() -> Iterator[None]:
    """Django's client of tests makes its requests in the context of the test, and not in one of their own."""
    with audit.acting(audit.HOST):
        yield


@pytest.fixture(autouse=True)
def _no_prices_of_before() -> None:
    """What a process knows of prices and budgets it knows for a second, and a test may be shorter."""
    book.forget()
    stock.forget()


@pytest.fixture
def owner(db: Any) -> Any:
    return OwnerFactory(username="owner")


@pytest.fixture
def outsider(db: Any) -> Any:
    return OwnerFactory(username="outsider")


@pytest.fixture
def tool_settings(db: Any) -> Callable[..., None]:
    """Enable tools: ``tool_settings("append_line", grants=["FS_WRITE"])``."""
    sync_settings()

    def enable(*names: str, grants: list[str] | None = None) -> None:
        for name in names:
            granted = grants_of(name, grants)
            ToolSetting.objects.update_or_create(name=name, defaults={"enabled": True, "grants": granted})

    return enable


@pytest.fixture
def agent(db: Any) -> Agent:
    """The default agent, which the migrations have made."""
    return Agent.objects.get(name=DEFAULT_AGENT)


@pytest.fixture
def conversation(owner: Any, agent: Agent) -> Conversation:
    return inbox.start_conversation(owner_id=owner.pk, metadata={})


@pytest.fixture
def say(conversation: Conversation) -> Callable[..., Turn]:
    """Say something in the conversation: ``say("hello")`` returns the queued turn."""

    def receive(content: str, **options: Any) -> Turn:
        options.setdefault("conversation", conversation)
        return said(content, request_id="request-1", **options)

    return receive


@pytest.fixture
def fill(conversation: Conversation) -> Callable[[int], None]:
    """As many messages, of a user and the assistant by turns."""

    def make(count: int, words: str = "Remember word") -> None:
        first = Conversation.objects.get(pk=conversation.pk).next_seq
        Message.objects.bulk_create(
            Message(conversation=conversation, seq=seq, role=("assistant", "user")[seq % 2], content=f"{words} {seq}")
            for seq in range(first, first + count)
        )
        Conversation.objects.filter(pk=conversation.pk).update(next_seq=first + count)

    return make


@pytest.fixture
def model(settings: Any) -> Iterator[OpenAIServer]:
    """A provider that answers as it is told, by OpenAI's API."""
    server = OpenAIServer().start()
    settings.LLM_PROVIDER, settings.LLM_BASE_URL = "openai", server.url
    llm.forget_clients()
    yield server
    server.stop()
    llm.forget_clients()


@pytest.fixture
def marks() -> Path:
    """A folder that tools reach, if they are granted FS_WRITE."""
    return Path(tempfile.mkdtemp(dir=os.environ["TOOL_FOLDERS"]))


@pytest.fixture
def effects(marks: Path) -> Path:
    """The file side effects go to."""
    return marks / "effects"


@pytest.fixture
def own_secrets(monkeypatch: pytest.MonkeyPatch) -> KnownSecrets:
    """The secrets that redaction knows in a test: at first none, and afterwards what was known before."""
    known = KnownSecrets()
    monkeypatch.setattr(redaction, "known_secrets", known)
    return known
