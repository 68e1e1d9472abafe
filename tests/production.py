"""The settings of the production processes that tests start: the project's own, in the tests' corner of a Redis server
that others may use as well, and without waiting for the disk at each commit: they are killed, the database's machine is
not."""

import os

from nanohost.settings import *  # noqa: F403 -- the settings, and what differs
from nanohost.settings import CELERY_BROKER_TRANSPORT_OPTIONS, DATABASES, PRODUCTION

if PRODUCTION:  # a tool's process is given no server
    DATABASES["default"]["OPTIONS"]["options"] += " -c synchronous_commit=off"
    # Many hosts and processes share a server of 100 connections: none is kept that is not used.
    DATABASES["default"]["OPTIONS"]["pool"]["max_idle"] = 2
    CELERY_BROKER_TRANSPORT_OPTIONS["global_keyprefix"] = EVENTS_PREFIX = os.environ["TEST_KEYS"]
