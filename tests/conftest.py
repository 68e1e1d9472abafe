"""What the tests share: three people (an owner, a colleague, an outsider), a running host, real rows."""

from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.models import DEFAULT_AGENT, Agent
from conversations import inbox
from conversations.models import Conversation, Turn
from nanohost.lib.text import storable
from tests.factories import AgentFactory, OwnerFactory
from tests.host import Host
from tools import gate
from tools.models import ToolSetting, sync_settings


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    """Reports travel between processes as UTF-8; what a test logs on purpose may be none."""
    report = yield
    report.sections = [(name, storable(text)) for name, text in report.sections]
    return report


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A running host that tests share; they must leave it as they found it."""
    running = Host(tmp_path_factory.mktemp("host")).start()
    yield running
    running.kill()


@pytest.fixture(autouse=True, scope="session")
def _no_tool_processes_left() -> Iterator[None]:
    yield
    gate.close_tools()


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
            ToolSetting.objects.update_or_create(name=name, defaults={"enabled": True, "grants": grants or []})

    return enable


@pytest.fixture
def agent(db: Any) -> Agent:
    """The default agent; tests that commit are followed by a flush, which takes the migration's row along."""
    return AgentFactory(name=DEFAULT_AGENT)


@pytest.fixture
def conversation(owner: Any, agent: Agent) -> Conversation:
    return inbox.start_conversation(owner_id=owner.pk, metadata={})


@pytest.fixture
def say(conversation: Conversation) -> Callable[..., Turn]:
    """Say something in the conversation: ``say("hello")`` returns the queued turn."""

    def receive(content: str, **options: Any) -> Turn:
        options.setdefault("conversation", conversation)
        return inbox.receive(content=content, request_id="request-1", **options)

    return receive


@pytest.fixture
def effects(tmp_path: Path) -> Path:
    """The file side effects go to."""
    return tmp_path / "effects"
