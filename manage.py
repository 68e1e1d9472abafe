#!/usr/bin/env python
"""The project's commands: `manage.py help` lists them."""

import os
import sys


def main() -> None:
    """Run a command; a setting that makes no sense ends in one line, not in a traceback."""
    if sys.version_info < (3, 11):  # noqa: UP036 -- it is started by hand, with whatever Python there is
        sys.exit(f"nanohost needs Python 3.11 or newer; this is {sys.version.split()[0]}.")
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "nanohost.settings")
    from django.conf import settings
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line

    try:
        settings.DATA_DIR  # noqa: B018 -- reads the settings, so that a bad one is met here
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as error:
        sys.exit(f"nanohost: {error}")


if __name__ == "__main__":
    main()
