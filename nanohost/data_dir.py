"""DATA_DIR: held by one process at a time, and home of the secret key of those that were given none."""

import fcntl
import logging
import os
import pwd
import stat
from contextlib import suppress
from pathlib import Path
from typing import IO

from django.conf import settings
from django.core.management.base import CommandError

from nanohost.lib import env

logger = logging.getLogger(__name__)


def make_data_dir(data_dir: Path) -> None:
    """See that DATA_DIR is there, for its owner alone: the secret key and all that was said stand in it. One
    that others may read is narrowed if it is ours alone, and refused if it is not."""
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = data_dir.stat()
        if not is_open(found):
            return
        if reason := _why_not_ours(data_dir, found):
            raise CommandError(
                f"DATA_DIR {data_dir} may be entered by others of this machine, and is not narrowed: {reason}."
                f" Set DATA_DIR to a folder of its own, such as {data_dir / 'nanohost'}."
            )
        data_dir.chmod(0o700)
        if is_open(data_dir.stat()):
            raise CommandError(f"DATA_DIR {data_dir} may be entered by others, and cannot be narrowed; set another.")
    except OSError as error:
        raise CommandError(f"DATA_DIR {data_dir} cannot be written: {error.strerror}.") from None
    logger.warning(
        f"DATA_DIR {data_dir} could be entered by others of this machine; now it is its owner's alone (0700)."
    )


def is_open(found: os.stat_result) -> bool:
    """Whether anybody but its owner may read, write or enter a folder."""
    return bool(stat.S_IMODE(found.st_mode) & 0o077)


def _why_not_ours(folder: Path, found: os.stat_result) -> str:
    """Why a folder is not for us to close to others; "" if it is."""
    if found.st_uid != os.geteuid():
        return f"it belongs to the user {_name_of(found.st_uid)}"
    if found.st_mode & stat.S_ISVTX:
        return "it is shared, as /tmp is"
    homes = {Path(known.pw_dir) for known in pwd.getpwall()}
    if folder in {*homes, Path.home(), Path(folder.anchor)} or folder in Path(__file__).parents:
        return "it holds other things as well: a home, or programs"
    return ""


def _name_of(user: int) -> str:
    with suppress(KeyError):
        return pwd.getpwuid(user).pw_name
    return str(user)


def lock_data_dir(data_dir: Path) -> IO[str]:
    """Hold DATA_DIR: a second process on one SQLite file would mean two sweepers of one memory."""
    make_data_dir(data_dir)
    try:
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
