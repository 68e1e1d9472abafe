"""The project's settings, for processes whose server answers nobody: they do not try for long."""

from nanohost.settings import *  # noqa: F403 -- the settings, and what differs
from nanohost.settings import DATABASES

DATABASES["default"]["OPTIONS"]["pool"] |= {"timeout": 0.2, "reconnect_timeout": 0.2}
