"""Files of secrets: one a secret, for its owner alone, each whole or not there."""

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from nanohost.nanobot_config.errors import Refused

# What is written and not yet in its place.
_NEW = ".new"

# In it are those of stored parts; beside it those of providers, by the names of their settings.
STORED = "nanobot"


class SecretFiles:
    """A folder of them. A file's name may have one folder before it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nobody else changes them meanwhile; the folders are there, for their owner alone."""
        try:
            for folder in (self.folder, self.folder / STORED):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                folder.chmod(0o700)
            lock = os.open(self.folder / "lock", os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise Refused(str(self.folder), f"it cannot be written: {error.strerror}") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def read(self, name: str) -> str | None:
        """What a file holds; None if it is not there."""
        try:
            return (self.folder / name).read_bytes().decode()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or "it holds no text"
            raise Refused(str(self.folder / name), f"it cannot be read: {reason}") from None

    def write(self, contents: Mapping[str, str]) -> None:
        """Write all of them: first beside their places, on the disk, then each into its place."""
        staged = [self.folder / f"{name}{_NEW}" for name in contents]
        try:
            for path, content in zip(staged, contents.values(), strict=True):
                path.unlink(missing_ok=True)
                with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600), "wb") as new:
                    new.write(content.encode())
                    new.flush()
                    os.fsync(new.fileno())
            for path in staged:
                path.replace(path.with_name(path.name.removesuffix(_NEW)))
        except OSError as error:
            for path in staged:
                with suppress(OSError):
                    path.unlink(missing_ok=True)
            raise Refused(str(self.folder), f"it cannot be written: {error.strerror}") from None

    def close_to_others(self, names: Mapping[str, object]) -> None:
        """Narrow those that others may read."""
        for name in names:
            with suppress(FileNotFoundError):
                (self.folder / name).chmod(0o600)

    def remove(self, name: str) -> None:
        """Take one away, if it is there."""
        (self.folder / name).unlink(missing_ok=True)

    def stored(self) -> set[str]:
        """The names of those of stored parts."""
        folder = self.folder / STORED
        return {f"{STORED}/{path.name}" for path in folder.iterdir()} if folder.is_dir() else set()
