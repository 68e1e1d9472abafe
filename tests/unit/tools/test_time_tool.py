"""The tool ``time``: whose clock it tells."""

import pytest

from tools import registry
from tools.sandbox.children import ChildPool, Task

pytestmark = pytest.mark.shapeless(reason="the processes of tools know no database")


def asked(pool: ChildPool, name: str, **arguments: str) -> str:
    task = Task(
        module="tools.agent_tools",
        qualname=name,
        arguments=arguments,
        timeout=20.0,
        output_bytes=65536,
        secrets=(),
        repeatable=True,
    )
    return pool.run(task, still_wanted=lambda: True).text


def test_without_a_timezone_it_is_the_hosts(monkeypatch):
    monkeypatch.setenv("TIME_ZONE", "Asia/Kolkata")
    monkeypatch.setenv("TZ", "Asia/Kolkata")  # as Django leaves it
    pool = ChildPool()
    try:
        assert asked(pool, "time").endswith("+05:30 Asia/Kolkata")
        asked(pool, "http_get", url="gopher://nowhere.example")  # reads the settings, in the same process
        assert asked(pool, "time").endswith("+05:30 Asia/Kolkata")
        assert asked(pool, "time", timezone="").endswith("+05:30 Asia/Kolkata")
        assert asked(pool, "time", timezone="UTC").endswith("+00:00 UTC")
        assert "'Mars/Base' is not the name of a timezone" in asked(pool, "time", timezone="Mars/Base")
    finally:
        pool.close()


def test_its_schema_tells_the_model_so():
    parameter = registry.get("time").schema["properties"]["timezone"]
    assert parameter["default"] == ""
    assert "without one" in parameter["description"].lower()
