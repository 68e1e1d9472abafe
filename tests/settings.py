"""The project's settings with the tests' own app of tools, on the shape that ``TEST_SHAPE`` names."""

import os
import secrets
import tempfile

from agent.llm.providers import PROVIDERS
from tests import shapes
from tests.support import servers

os.environ.setdefault("NANOHOST_EXTRA_APPS", "tests.toolbox")
# Made once a run; the processes that run tests side by side inherit it.
if "DATA_DIR" not in os.environ:
    os.environ["DATA_DIR"] = tempfile.mkdtemp(prefix="nanohost-tests-")
# All of this machine's files that tools reach, in the tests' own process and in the hosts they start.
if "TOOL_FOLDERS" not in os.environ:
    os.environ["TOOL_FOLDERS"] = tempfile.mkdtemp(prefix="nanohost-marks-")
# The suite must not follow the developer's own provider, nor come near the developer's own database.
for name in ("LLM_BASE_URL", "LLM_BASE_URLS", "LLM_PROVIDER", "LLM_MODELS", "NANOHOST_API_KEY"):
    os.environ.pop(name, None)
for provider in PROVIDERS.values():
    os.environ.pop(provider.key, None)
for name in ("ZHIPUAI_API_KEY", "LLM_HEADERS", "LLM_HEADERS_FILE"):
    os.environ.pop(name, None)
for name in ("DATABASE_URL", "DATABASE_URL_FILE", "REDIS_URL", "REDIS_URL_FILE"):
    os.environ.pop(name, None)
if "NANOHOST_TOOL_PROCESS" not in os.environ:  # a tool's process is not used again once its environment has changed
    os.environ["WEBHOOK_KEY"] = "of these tests, and of the processes that they start"
if shapes.shape() == shapes.PRODUCTION:
    os.environ.setdefault("TEST_RUN", f"{secrets.randbits(31):08x}")  # inherited, too
    # There is no database with that name: whoever gets past the tests' own finds nothing.
    os.environ["DATABASE_URL"] = servers.url_of(servers.name_of("nowhere"))
    os.environ["REDIS_URL"] = shapes.named_servers().redis_url
    os.environ["HTTPS"] = "false"  # there is no proxy
    tests_own = servers.name_of("tests")
    os.environ["TEST_KEYS"] = f"{tests_own}_{os.environ.get('PYTEST_XDIST_WORKER', '')}:"

from tests.support.hosted import *  # noqa: E402, F403 -- the environment first; the settings, and what differs
from tests.support.hosted import DATA_DIR, DATABASES, NANOHOST_TOOL_PROCESS, PRODUCTION  # noqa: E402 -- the environment first

if PRODUCTION:
    # xdist's name of the process is put behind the name of the database.
    DATABASES["default"]["TEST"] = {"NAME": tests_own}
elif not NANOHOST_TOOL_PROCESS:
    # A file: threads share it as they share the real one.
    DATABASES["default"]["TEST"] = {"NAME": str(DATA_DIR / "test.sqlite3")}

# Each client of Django's would look through all files that pages need; those of hosts are asked for.
WHITENOISE_USE_FINDERS = False
