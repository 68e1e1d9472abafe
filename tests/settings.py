"""The project's settings with the tests' own app of tools."""

import os
import tempfile

os.environ.setdefault("NANOHOST_EXTRA_APPS", "tests.toolbox")
os.environ.setdefault("DATA_DIR", tempfile.mkdtemp(prefix="nanohost-tests-"))
# The suite must not follow the developer's own provider.
for name in ("OPENAI_API_KEY", "LLM_BASE_URL", "LLM_PROVIDER", "LLM_MODELS", "NANOHOST_API_KEY"):
    os.environ.pop(name, None)

from nanohost.settings import *  # noqa: E402, F403
from nanohost.settings import DATA_DIR, DATABASES  # noqa: E402 -- the environment first

# A file: threads share it as they share the real one.
DATABASES["default"]["TEST"] = {"NAME": str(DATA_DIR / "test.sqlite3")}

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
