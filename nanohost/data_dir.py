"""DATA_DIR: held by one process at a time, and home of the secret key of those that were given none."""

import fcntl
from pathlib import Path
from typing import IO

from django.conf import settings
from django.core.management.base import CommandError

from nanohost.lib import env


def lock_data_dir(data_dir: Path) -> IO[str]:
    """Hold DATA_DIR: a second process on one SQLite file would mean two sweepers of one memory."""
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (data_dir / "lock").open("a")
    except OSError as error:
        raise CommandError(f"DATA_DIR {data_dir} cannot be written: {error.strerror}.") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise CommandError(f"DATA_DIR {data_dir} is in use by another nanohost; stop it, or set another.") from None
    return lock


def keep_secret_key(data_dir: Path) -> None:
    """Django's SECRET_KEY lives in DATA_DIR, so that sessions outlast a restart. The settings have read it if it is."""
    kept = data_dir / "secret_key"
    try:
        if env.secret("SECRET_KEY") or (kept.exists() and kept.read_text().strip()):
            return
        # Complete or not there: half a file would be half a secret.
        half = data_dir / "secret_key.new"
        half.touch(mode=0o600)
        half.write_text(settings.SECRET_KEY)
        half.replace(kept)
    except OSError as error:
        raise CommandError(f"DATA_DIR {data_dir} cannot be written: {error.strerror}.") from None
