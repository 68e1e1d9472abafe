"""What tests of the engine share."""

from collections.abc import Iterator

import pytest

from tests.faults.servers import Redis


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    """One of the module's own: to be silenced, to refuse, and to cut everybody's connections."""
    server = Redis(tmp_path_factory.mktemp("server") / "redis")
    server.start()
    yield server
    server.stop()
