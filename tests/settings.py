"""The project's settings with the tests' own app of tools, on the shape that ``TEST_SHAPE`` names."""

import os
import secrets
import tempfile

from tests import servers, shapes

os.environ.setdefault("NANOHOST_EXTRA_APPS", "tests.toolbox")
# Made once a run; the processes that run tests side by side inherit it.
if "DATA_DIR" not in os.environ:
    os.environ["DATA_DIR"] = tempfile.mkdtemp(prefix="nanohost-tests-")
# The suite must not follow the developer's own provider, nor come near the developer's own database.
for name in ("OPENAI_API_KEY", "LLM_BASE_URL", "LLM_PROVIDER", "LLM_MODELS", "NANOHOST_API_KEY"):
    os.environ.pop(name, None)
for name in ("DATABASE_URL", "DATABASE_URL_FILE", "REDIS_URL", "REDIS_URL_FILE"):
    os.environ.pop(name, None)
if shapes.shape() == shapes.PRODUCTION:
    os.environ.setdefault("TEST_RUN", f"{secrets.randbits(31):08x}")  # inherited, too
    # There is no database of that name: whoever gets past the tests' own finds nothing.
    os.environ["DATABASE_URL"] = servers.url_of(servers.name_of("nowhere"))
    os.environ["REDIS_URL"] = shapes.named_servers().redis_url
    os.environ["HTTPS"] = "false"  # there is no proxy

from nanohost.settings import *  # noqa: E402, F403 -- the environment first
from nanohost.settings import (  # noqa: E402 -- the environment first
    CELERY_BROKER_TRANSPORT_OPTIONS,
    DATA_DIR,
    DATABASES,
    NANOHOST_TOOL_PROCESS,
    PRODUCTION,
)

# What is tested is order, not the disk: the tests outlive no machine.
if PRODUCTION:
    DATABASES["default"]["OPTIONS"]["options"] += " -c synchronous_commit=off"
    # Many hosts and processes share a server of 100 connections: none is kept that is not used.
    DATABASES["default"]["OPTIONS"]["pool"]["max_idle"] = 2
    # xdist's name of the process is put behind the name of the database.
    tests_own = servers.name_of("tests")
    DATABASES["default"]["TEST"] = {"NAME": tests_own, "TEMPLATE": servers.name_of("migrated")}
    CELERY_BROKER_TRANSPORT_OPTIONS["global_keyprefix"] = f"{tests_own}_{os.environ.get('PYTEST_XDIST_WORKER', '')}:"
elif not NANOHOST_TOOL_PROCESS:
    pragmas = DATABASES["default"]["OPTIONS"]
    pragmas["init_command"] = pragmas["init_command"].replace("synchronous=FULL", "synchronous=OFF")
    # A file: threads share it as they share the real one.
    DATABASES["default"]["TEST"] = {"NAME": str(DATA_DIR / "test.sqlite3")}

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
