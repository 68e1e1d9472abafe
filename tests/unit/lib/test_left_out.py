import os
import subprocess
import sys
from importlib import import_module

import pytest

from nanohost.lib.left_out import left_out
from tests.support.hosts import ROOT

pytestmark = pytest.mark.shapeless(reason="how modules are loaded; the shape is not looked at")

ALL_OF_A_HOST = """
import sys, django
django.setup()
from nanohost import preparation
preparation.refuse_bad_configuration()
import nanohost.asgi, nanohost.embedded, nanohost.urls, conversations.engine.turns
from nanohost.console.site import model_pages
model_pages()
print(*sys.modules)
"""


def test_libraries_find_none_of_what_is_left_out_and_others_find_it_later(monkeypatch):
    monkeypatch.delitem(sys.modules, "rich", raising=False)
    with left_out(), pytest.raises(ModuleNotFoundError):
        import_module("rich")
    assert import_module("rich").__name__ == "rich"


def test_what_is_loaded_already_stays(monkeypatch):
    loaded = import_module("psycopg")
    with left_out():
        assert import_module("psycopg") is loaded
    assert import_module("psycopg") is loaded


def test_after_an_error_inside_all_can_be_loaded_again(monkeypatch):
    monkeypatch.delitem(sys.modules, "rich", raising=False)
    with pytest.raises(ZeroDivisionError), left_out():
        raise ZeroDivisionError
    assert import_module("rich")


def test_a_host_on_sqlite_loads_no_driver_of_postgresql_and_nothing_that_libraries_load_because_it_is_there(tmp_path):
    environment = {"PATH": os.environ["PATH"], "DATA_DIR": str(tmp_path), "DJANGO_SETTINGS_MODULE": "nanohost.settings"}
    ended = subprocess.run(
        [sys.executable, "-c", ALL_OF_A_HOST], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    loaded = {*ended.stdout.split()}
    assert {"unfold.admin", "rest_framework.compat", "structlog"} <= loaded, ended.stderr
    assert not {"rich", "requests", "pygments", "psycopg", "psycopg2"} & loaded


def test_a_process_of_tools_loads_no_event_loop_that_none_of_them_needs():
    """It imports ``nanohost.lib`` for secrets, and what our tools import."""
    code = "import sys; from tools.sandbox.child import _import; _import(['tools.agent_tools']); print(*sys.modules)"
    environment = {"PATH": os.environ["PATH"], "NANOHOST_TOOL_PROCESS": "1"}
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    loaded = {*ended.stdout.split()}
    assert {"tools.agent_tools", "nanohost.lib.redaction", "ssl"} <= loaded, ended.stderr
    assert "asyncio" not in loaded
