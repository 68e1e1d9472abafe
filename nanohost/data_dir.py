"""DATA_DIR: held by one process at a time, and home of the secret key of those that were given none."""

import fcntl
import grp
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
    that others may read is narrowed if it is ours alone, and refused if it is not; so is one that others could put
    another in the place of."""
    try:
        if reason := _why_replaceable(data_dir):
            raise CommandError(
                f"DATA_DIR {data_dir} could be replaced by others of this machine: {reason}. Change that, or set"
                " DATA_DIR to another folder."
            )
        for folder in reversed((data_dir, *data_dir.parents)):
            if not folder.is_dir():
                folder.mkdir(mode=0o700, exist_ok=True)
        found = data_dir.stat()
        if found.st_uid != os.geteuid():
            raise CommandError(
                f"DATA_DIR {data_dir} belongs to the user {_name_of(found.st_uid)}, who could read and change all that"
                " is kept in it. Set DATA_DIR to a folder of your own, or start as that user."
            )
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
    """Whether anybody but its owner may read, write or enter it."""
    return bool(stat.S_IMODE(found.st_mode) & 0o077)


def _why_not_ours(folder: Path, found: os.stat_result) -> str:
    """Why a folder is not for us to close to others; "" if it is."""
    if found.st_mode & stat.S_ISVTX:
        return "it is shared, as /tmp is"
    homes = {Path(known.pw_dir) for known in pwd.getpwall()}
    if folder in {*homes, Path.home(), Path(folder.anchor)} or folder in Path(__file__).parents:
        return "it holds other things as well: a home, or programs"
    return ""


def _why_replaceable(data_dir: Path) -> str:
    """Why somebody else could put another folder in the place of this one, or of one above it; "" if nobody could."""
    root = Path("/").stat()
    # Those who could do anything to us anyway: the administrator, and whoever may change our programs.
    trusted = {os.geteuid(), root.st_uid, Path(__file__).stat().st_uid}
    for folder in data_dir.resolve().parents:
        if not folder.exists():
            continue
        found = folder.stat()
        if found.st_uid not in trusted:
            return f"{folder} belongs to the user {_name_of(found.st_uid)}"
        if found.st_mode & stat.S_ISVTX:  # as in /tmp, each can only move what is their own
            continue
        if found.st_mode & stat.S_IWOTH:
            return f"{folder} may be written to by everybody"
        if found.st_mode & stat.S_IWGRP and found.st_gid != root.st_gid and _members_of(found.st_gid) - trusted:
            return f"{folder} may be written to by the group {_name_of_group(found.st_gid)}"
    return ""


def _members_of(group: int) -> set[int]:
    """The users in a group, as far as they are listed. Many systems give each user a group of their own."""
    members: list[str] = []
    with suppress(KeyError):
        members = grp.getgrgid(group).gr_mem
    return {user.pw_uid for user in pwd.getpwall() if user.pw_gid == group or user.pw_name in members}


def _name_of_group(group: int) -> str:
    with suppress(KeyError):
        return grp.getgrgid(group).gr_name
    return str(group)


def _name_of(user: int) -> str:
    with suppress(KeyError):
        return pwd.getpwuid(user).pw_name
    return str(user)


def lock_data_dir(data_dir: Path) -> IO[str]:
    """Hold DATA_DIR: a second process on one SQLite file would mean two sweepers of one memory."""
    make_data_dir(data_dir)
    try:
        _make_file(data_dir / "lock")
        lock = (data_dir / "lock").open("a")
    except OSError as error:
        raise CommandError(f"DATA_DIR {data_dir} cannot be written: {error.strerror}.") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise CommandError(f"DATA_DIR {data_dir} is in use by another nanohost; stop it, or set another.") from None
    return lock


def keep_database(database: Path) -> None:
    """See that SQLite's file is there, for its owner alone. The files that SQLite puts beside it get its mode; those
    that a host has left when it was killed are narrowed as well."""
    try:
        _make_file(database)
        for name in (f"{database.name}-wal", f"{database.name}-shm"):
            if (database.parent / name).exists():
                _make_file(database.parent / name)
    except OSError as error:
        raise CommandError(f"DATA_DIR {database.parent} cannot be written: {error.strerror}.") from None


def _make_file(file: Path) -> None:
    """Make an empty file for its owner alone; narrow it if it is there."""
    file.touch(mode=0o600)
    if is_open(file.stat()):
        file.chmod(0o600)


# A shorter key could be guessed.
_SHORTEST_KEY = 32

_SIGNS_OUT = "delete it, which signs everybody out, and each webhook needs another secret then"
_SET_ANEW = "delete it, and set its value again"


def keep_secret_key(data_dir: Path) -> None:
    """Django's SECRET_KEY lives in DATA_DIR, so that sessions outlast a restart. The settings have read it if it is.
    One that somebody else could have written, or could guess, is refused: it would let them be anybody."""
    kept = data_dir / "secret_key"
    try:
        if env.secret("SECRET_KEY"):
            return
        if kept.exists() and (key := kept.read_bytes().strip()):
            _close_secret(kept, otherwise=_SIGNS_OUT)
            if len(key.decode(errors="ignore")) < _SHORTEST_KEY:
                raise CommandError(
                    f"{kept} holds no text of {_SHORTEST_KEY} characters or more, which is too little for a key:"
                    f" {_SIGNS_OUT}."
                )
            return
        # Complete or not there: half a file would be half a secret.
        half = data_dir / "secret_key.new"
        half.unlink(missing_ok=True)  # while the folder was open, others could have put theirs there
        _make_file(half)
        half.write_text(settings.SECRET_KEY)
        half.replace(kept)
    except OSError as error:
        raise CommandError(f"DATA_DIR {data_dir} cannot be written: {error.strerror}.") from None


def close_secrets(data_dir: Path) -> None:
    """See that the files which stand for keys (`manage.py import_config` makes them), and their folders, are their
    owner's alone. A file that somebody else could have written is refused."""
    folder = data_dir / "secrets"
    try:
        for found in [folder, *sorted(folder.rglob("*"))] if folder.exists() else []:
            if found.is_dir():
                _refuse_if_not_ours(found, otherwise=_SET_ANEW)
                if is_open(found.stat()):
                    found.chmod(0o700)
            elif found.is_file():
                _close_secret(found, otherwise=_SET_ANEW)
    except OSError as error:
        raise CommandError(f"DATA_DIR {data_dir} cannot be written: {error.strerror}.") from None


def _close_secret(file: Path, *, otherwise: str) -> None:
    """Narrow a file that others may read; refuse one that they could have written. ``otherwise``: what helps who does
    not trust what it holds."""
    _refuse_if_not_ours(file, otherwise=otherwise)
    if file.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise CommandError(
            f"{file} may be written to by others of this machine: if you trust what it holds, narrow it with"
            f" chmod 600 {file}, or else {otherwise}."
        )
    _make_file(file)


def _refuse_if_not_ours(file: Path, *, otherwise: str) -> None:
    for found in (file.lstat(), file.stat()):  # of a link, too: who has put it there chose the file
        if found.st_uid != os.geteuid():
            raise CommandError(
                f"{file} belongs to the user {_name_of(found.st_uid)}, who could have chosen what it holds: make it"
                f" your own if you trust that, or else {otherwise}."
            )
