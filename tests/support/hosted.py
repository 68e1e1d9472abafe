"""The settings of the hosts that tests start, and in part of the tests themselves: the project's own, in the tests'
corner of the servers, where others may be as well. They wait for no disk at each commit, since hosts are killed and
their machine is not; and a password costs little, as many starts look whether it is still the one."""

import os

from nanohost.settings import *  # noqa: F403 -- the settings, and what differs
from nanohost.settings import (
    CELERY_BROKER_TRANSPORT_OPTIONS,
    DATABASES,
    NANOHOST_TOOL_PROCESS,
    PRODUCTION,
)

if PRODUCTION:  # a tool's process is given no server
    DATABASES["default"]["OPTIONS"]["options"] += " -c synchronous_commit=off"
    # Many hosts and processes share a server of 100 connections: none is kept that is not used.
    DATABASES["default"]["OPTIONS"]["pool"]["max_idle"] = 2
    CELERY_BROKER_TRANSPORT_OPTIONS["global_keyprefix"] = EVENTS_PREFIX = os.environ["TEST_KEYS"]
    CELERY_BEAT_MAX_LOOP_INTERVAL = 1  # it sees soon what tests change of its jobs
elif not NANOHOST_TOOL_PROCESS:
    pragmas = DATABASES["default"]["OPTIONS"]
    pragmas["init_command"] = pragmas["init_command"].replace("synchronous=FULL", "synchronous=OFF")

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
