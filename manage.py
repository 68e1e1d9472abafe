#!/usr/bin/env python
"""The project's commands: `manage.py help` lists them."""

import gc
import os
import sys
import traceback


def main() -> None:
    """Run a command; a setting that makes no sense, or a database that is not there, ends in one line."""
    if sys.version_info < (3, 11):  # noqa: UP036 -- it is started by hand, with whatever Python there is
        sys.exit(f"nanohost needs Python 3.11 or newer; this is {sys.version.split()[0]}.")
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "nanohost.settings")
    # What is loaded is no garbage; looking for some in it takes a fifth of the start. NanohostConfig.ready ends this.
    gc.disable()
    try:
        from django.core.exceptions import ImproperlyConfigured
        from django.core.management import execute_from_command_line
        from django.db import Error
    except ImportError as error:
        sys.exit(f"nanohost: {error}. `make run` installs what is needed; then use .venv/bin/python.")
    try:
        load_apps()
        sign()
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as error:
        sys.exit(f"nanohost: {error}")
    except Error as error:
        from nanohost.preparation import why_unusable

        if not (why := why_unusable(error)):
            raise
        sys.exit(f"nanohost: {why}")


def sign() -> None:
    """What a command does stands in the audit log under the name of whoever has started it; what hosts do, under their
    own."""
    from nanohost.accounts import audit
    from nanohost.lib.process import user_of_this

    if sys.argv[1:2] and sys.argv[1] not in ("prepare", "serve", "stack", "web", "worker"):
        audit.acts(f"manage.py {user_of_this()}")


def load_apps() -> None:
    """Load the settings and the apps. An app of the user's own that does not load is told of in one line."""
    import django
    from django.conf import settings
    from django.core.exceptions import ImproperlyConfigured

    try:
        django.setup()
    except ImproperlyConfigured:
        raise
    except Exception as error:
        if not settings.configured or not settings.NANOHOST_EXTRA_APPS:
            raise
        where = ""
        for frame, line in traceback.walk_tb(error.__traceback__):
            module = frame.f_globals.get("__name__", "")
            if any(module.partition(".")[0] == app.partition(".")[0] for app in settings.NANOHOST_EXTRA_APPS):
                where = f" ({frame.f_code.co_filename}, line {line})"
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ImproperlyConfigured(f"an app of NANOHOST_EXTRA_APPS does not load: {reason}{where}") from error


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # before the command took over
        sys.exit(130)
