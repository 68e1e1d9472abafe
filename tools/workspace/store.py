"""The workspace of an agent and an owner: a folder of files, what they were a day ago, and which of them are trusted.

    WORKSPACES_DIR/<agent>/<owner>/     or <agent>/shared/, with WORKSPACE_SHARED
        files/      what the agent sees
        former/     of each file that was changed: what it was before
        trusted/    of each path that an untainted conversation wrote: the hash of what it wrote there
        parts/      what is being written
        lock        held by whoever changes something

Only ``files`` is seen by tools. What is not there is made when it is first needed. Of a folder in which agents work
besides, elsewhere on the machine, the rest is kept in ``WORKSPACES_DIR/.outside`` (:mod:`tools.workspace.outside`).

**Trust.** A file is trusted if its content is, byte for byte, what the agent wrote there in a conversation that no
untrusted text had entered. Whatever else comes there, by a person's upload or in any other way, is not; nobody has to
mark it. The hash is stored after the file, so that a crash in between costs trust, and gives none.
"""

import errno
import fcntl
import hashlib
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings

from tools.workspace import beneath, documents, writing
from tools.workspace.errors import Full, PathRefused, Protected
from tools.workspace.globs import is_within
from tools.workspace.writing import Draft

# How long what a file was before is kept.
FORMER_SECONDS = 24 * 3600

# Of the protected files and folders of a workspace in which programs run.
MAX_SHUT = 200

# In the place of an owner, where all of them have one together.
SHARED = "shared"


_ROOMS = ("files", "former", "trusted", "parts")
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW

Parts = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A name in a folder. ``kind``: file, folder or other; ``size`` in bytes, ``changed`` as seconds since 1970."""

    path: str
    kind: str
    size: int
    changed: float


class Workspace:
    """An open workspace: the descriptors of its folders. Made by :func:`open_workspace`."""

    # What it is called where it is full, the mode of folders that are made in it, and whether documents stand there.
    _noun, _folder_mode, _has_documents = "workspace", 0o700, True

    def __init__(self, rooms: dict[str, int], folder: int, root: Path) -> None:
        self.files = rooms["files"]
        # Where it is, for what binds it into a box; files in it are opened by descriptors alone.
        self.root = root
        self._rooms, self._folder = rooms, folder

    # --- reading ---

    def read(self, path: str) -> bytes:
        """A file's content. Raises :class:`FileNotFoundError`, :class:`PathRefused`, and :class:`Full` for one with
        more than ``WORKSPACE_FILE_MAX_BYTES``."""
        return read_file(self.files, beneath.parts_of(path))

    def is_trusted(self, path: str, content: bytes) -> bool:
        """Whether this content, which was read there, is the agent's own."""
        parts = beneath.parts_of(path)
        return self._mark(_key(parts)) == _hash(content)

    def knows(self, path: str, *, is_folder: bool) -> bool:
        """Whether a name was given in an untainted conversation, whatever is in the file by now."""
        return bool(self._mark(_key(beneath.parts_of(path), is_folder=is_folder)))

    def _mark(self, key: str) -> str:
        try:
            mark = os.open(key, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._rooms["trusted"])
        except FileNotFoundError:
            return ""
        with open(mark) as file:
            return file.read()

    def entries(self, path: str = "") -> list[Entry]:
        """What a folder holds, by name."""
        parts = beneath.parts_of(path)
        with beneath.open_folder(self.files, parts) as folder:
            return entries_of(folder, parts)

    # --- changing ---

    def write(
        self, path: str, content: bytes, *, trusted: bool, expected: bytes | None = None, replaces: bool = True
    ) -> bool:
        """Make this a file's content, at once or not at all; returns whether there was one before.

        ``expected``: what was read; raises :class:`PathRefused` if the file is no longer that. ``replaces`` false:
        raises :class:`FileExistsError` if there is one. Raises :class:`Full`, :class:`Protected` and
        :class:`PathRefused`.
        """
        parts = self._may_be_changed(path)
        if len(content) > settings.WORKSPACE_FILE_MAX_BYTES:
            raise Full(f"It has {len(content)} bytes; a file may have {settings.WORKSPACE_FILE_MAX_BYTES}.")
        with writing.told(), self._locked():
            seen, before = self._seen(parts), self._content(parts)
            if before is not None and not replaces:
                raise FileExistsError(path)
            if expected is not None and before != expected:
                raise PathRefused("The file was changed in the meantime. Read it again.")
            self._check_room(added=len(content) - len(before or b""), files=0 if before is not None else 1)
            state = self._state(parts, before)
            self._sweep()
            self._put(parts, content, trusted=trusted, seen=seen, besides=[self._former(parts, before, state)])
            self._forget_other_states(parts, state)
        return before is not None

    def delete(self, path: str) -> None:
        """Delete a file; :meth:`undo` brings it back. Raises :class:`FileNotFoundError`."""
        parts = self._may_be_changed(path)
        with writing.told(), self._locked():
            before = self._content(parts)
            if before is None:
                raise FileNotFoundError(path)
            self._keep(parts, before, self._state(parts, before))
            self._take_away(parts)

    def undo(self, path: str, *, tainted: bool) -> bool:
        """Give a file what it had before its last change, which the next undo gives it back; returns whether there is
        one now. Raises :class:`FileNotFoundError` if nothing was kept, or not for so long."""
        parts = self._may_be_changed(path)
        key = _key(parts)
        with writing.told(), self._locked():
            self._sweep()
            former = next((name for name in os.listdir(self._rooms["former"]) if name.startswith(f"{key}.")), None)
            if former is None:
                raise FileNotFoundError(path)
            content = None
            if not former.endswith(".absent"):
                content = read_file(self._rooms["former"], (former,))
            seen, now = self._seen(parts), self._content(parts)
            added = len(content or b"") - len(now or b"")
            self._check_room(added=added, files=int(content is not None) - int(now is not None))
            state = self._state(parts, now)
            if content is not None:
                self._put(parts, content, trusted=former.endswith(".trusted") and not tainted, seen=seen)
            elif now is not None:
                self._take_away(parts)
            self._keep(parts, now, state)
        return content is not None

    def forget_former(self) -> bool:
        """Drop what is older than undo reaches back; False if somebody changes the workspace at this moment."""
        try:
            # A version that is kept just now may take the name of an old one.
            with self._locked(waits=False):
                self._sweep()
        except BlockingIOError:
            return False
        return True

    @contextmanager
    def _locked(self, *, waits: bool = True) -> Iterator[None]:
        """Alone among those who change this workspace. Raises :class:`BlockingIOError` if that has to be waited for and
        is not to be."""
        lock = os.open("lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=self._folder)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        finally:
            os.close(lock)

    @contextmanager
    def for_command(self) -> Iterator[list[str]]:
        """While a program works in it: the paths of protected files and folders, which it is to be kept from changing.

        Where there are any, one program runs at a time: another could put a link in the place of a folder above one.
        Raises :class:`PathRefused` if one runs, or if there are too many.
        """
        if not settings.WORKSPACE_PROTECTED_PATHS:
            yield []
            return
        lock = os.open("programs", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=self._folder)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise PathRefused(
                    "Another command runs in this workspace, which has protected files. Try again when it has ended."
                ) from None
            yield self._protected()
        finally:
            os.close(lock)

    def _protected(self) -> list[str]:
        """What is protected and there; what is in a folder that is protected as a whole goes with it."""
        found: list[str] = []
        for entry in walk(self.files, most=2 * settings.WORKSPACE_MAX_FILES + 1):
            parts = tuple(entry.path.split("/"))
            if not is_within(parts, settings.WORKSPACE_PROTECTED_PATHS) or entry.kind == "other":
                continue
            if not any(entry.path.startswith(f"{outer}/") for outer in found):
                found.append(entry.path)
        if len(found) > MAX_SHUT:
            raise PathRefused(f"Commands do not run here: more than {MAX_SHUT} files and folders are protected.")
        return found

    def _may_be_changed(self, path: str) -> Parts:
        """The names in a path of a file. Raises :class:`Protected`, and :class:`PathRefused` for the folder itself."""
        parts = beneath.parts_of(path)
        if not parts:
            raise PathRefused("The path names no file.")
        if self._is_protected(parts):
            raise Protected(f"{'/'.join(parts)} is protected: it can be read, but not changed.")
        if self._has_documents:
            documents.refuse(parts)
        return parts

    def _is_protected(self, parts: Parts) -> bool:
        return is_within(parts, settings.WORKSPACE_PROTECTED_PATHS)

    def _seen(self, parts: Parts) -> os.stat_result | None:
        """What a file is before it is read, where others may change it until it is replaced."""
        return None

    def _content(self, parts: Parts) -> bytes | None:
        try:
            return read_file(self.files, parts)
        except FileNotFoundError:
            return None

    def _check_room(self, *, added: int, files: int) -> None:
        if added <= 0 and files <= 0:
            return
        most, most_files = settings.WORKSPACE_MAX_BYTES, settings.WORKSPACE_MAX_FILES
        size = count = 0
        # Of folders there may be as many; more than that is not looked at.
        for entry in walk(self.files, most=2 * most_files + 1):
            size, count = size + entry.size, count + 1
        if size + added > most:
            raise Full(f"The {self._noun} is full: it has {size} bytes of {most}, and this needs {added} more.")
        if files > 0 and count + files > most_files:
            raise Full(f"The {self._noun} is full: it has {count} files and folders, of {most_files}.")

    def _put(
        self,
        parts: Parts,
        content: bytes,
        *,
        trusted: bool,
        seen: os.stat_result | None,
        besides: Sequence[Draft] = (),
    ) -> None:
        """Write a file; what is to be on the disk before it stands ``besides``. ``seen``: see :meth:`_seen`."""
        with self._parent(parts, trusted=trusted) as parent:
            writing.checked(parent, parts[-1])
            writing.put(*besides, self._draft(content, parent, parts[-1], seen))
            os.fsync(parent)
        self._trust(_key(parts), _hash(content) if trusted else "")

    def _draft(self, content: bytes, parent: int, name: str, seen: os.stat_result | None) -> Draft:
        return Draft(content, parent, name, room=self._rooms["parts"])

    def _take_away(self, parts: Parts) -> None:
        with beneath.open_folder(self.files, parts[:-1]) as parent:
            writing.checked(parent, parts[-1])
            os.unlink(parts[-1], dir_fd=parent)
            os.fsync(parent)
        self._trust(_key(parts), "")

    @contextmanager
    def _parent(self, parts: Parts, *, trusted: bool) -> Iterator[int]:
        """The folder that a file is in, made if there is none."""
        for depth in range(1, len(parts)):
            with beneath.open_folder(self.files, parts[: depth - 1]) as above:
                try:
                    os.mkdir(parts[depth - 1], self._folder_mode, dir_fd=above)
                except FileExistsError:
                    continue
            self._trust(_key(parts[:depth], is_folder=True), "folder" if trusted else "")
        with beneath.open_folder(self.files, parts[:-1]) as parent:
            yield parent

    def _trust(self, key: str, mark: str) -> None:
        room = self._rooms["trusted"]
        if not mark:
            with suppress(FileNotFoundError):
                os.unlink(key, dir_fd=room)
            return
        # In its place: one that is read, or left by a crash, half written fits no content, which costs trust at most.
        # Nobody makes it empty first, or ext4 would wait for the disk when it is closed.
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(key, flags, 0o600, dir_fd=room), "wb") as file:
            file.write(mark.encode())
            file.truncate()

    def _state(self, parts: Parts, content: bytes | None) -> str:
        if content is None:
            return "absent"
        return "trusted" if self._mark(_key(parts)) == _hash(content) else "untrusted"

    def _keep(self, parts: Parts, content: bytes | None, state: str) -> None:
        """Keep what a file was, for whoever wants it back within a day."""
        self._sweep()
        writing.put(self._former(parts, content, state))
        self._forget_other_states(parts, state)

    def _former(self, parts: Parts, content: bytes | None, state: str) -> Draft:
        # Of a file that was not there, the name says all.
        name, folder = f"{_key(parts)}.{state}", self._rooms["former"]
        return Draft(content or b"", folder, name, room=self._rooms["parts"], synced=content is not None)

    def _forget_other_states(self, parts: Parts, state: str) -> None:
        for other in {"absent", "trusted", "untrusted"} - {state}:
            with suppress(FileNotFoundError):
                os.unlink(f"{_key(parts)}.{other}", dir_fd=self._rooms["former"])

    def _sweep(self) -> None:
        """Drop what is too old, and the oldest of what is more than a workspace may have."""
        for room, seconds in (("former", FORMER_SECONDS), ("parts", writing.PART_SECONDS)):
            found = sorted(entries_of(self._rooms[room], ()), key=lambda entry: -entry.changed)
            size = 0
            for place, entry in enumerate(found):
                size += entry.size
                too_much = size > settings.WORKSPACE_MAX_BYTES or place >= settings.WORKSPACE_MAX_FILES
                if too_much or time.time() - entry.changed > seconds:
                    with suppress(FileNotFoundError):
                        os.unlink(entry.path, dir_fd=self._rooms[room])


def name_of(*, agent: str, owner_id: int) -> str:
    """What a workspace is called: its place in WORKSPACES_DIR."""
    return f"{agent}/{_folder_of(owner_id)}"


def _folder_of(owner_id: int) -> str:
    return SHARED if settings.WORKSPACE_SHARED else str(owner_id)


@contextmanager
def open_workspace(*, agent: str, owner_id: int) -> Iterator[Workspace]:
    """The workspace of an agent for an owner, made if there is none. Raises :class:`PathRefused` where it cannot be."""
    owner = _folder_of(owner_id)
    with opened_rooms(agent, owner) as (folder, rooms):
        yield Workspace(rooms, folder, Path(settings.WORKSPACES_DIR, agent, owner))


@contextmanager
def opened_rooms(agent: str, owner: str) -> Iterator[tuple[int, dict[str, int]]]:
    """A workspace's own folder, and those in it by name; made if there are none."""
    if reason := beneath.why_missing():
        raise PathRefused(f"There is no workspace on this machine: {reason}.")
    opened: list[int] = []
    try:
        opened.append(_base(Path(settings.WORKSPACES_DIR)))
        for name in (agent, owner):
            opened.append(_made(opened[-1], name))
        folder, rooms = opened[-1], {}
        for name in _ROOMS:
            rooms[name] = _made(folder, name)
            opened.append(rooms[name])
        yield folder, rooms
    finally:
        for descriptor in opened:
            os.close(descriptor)


def forget_former(place: Path) -> bool:
    """Drop what the files of the workspace in this folder were more than a day ago; makes none. False if it was not
    looked at: it is no workspace, or is being changed, and whoever changes it drops these as well."""
    opened: list[int] = []
    try:
        opened.append(os.open(place, _OPEN_FOLDER))
        opened += [os.open(name, _OPEN_FOLDER, dir_fd=opened[0]) for name in _ROOMS]
        workspace = Workspace(dict(zip(_ROOMS, opened[1:], strict=True)), opened[0], place)
        return workspace.forget_former()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return False
        raise
    finally:
        for descriptor in opened:
            os.close(descriptor)


def set_aside(agent: str) -> None:
    """Put an agent's workspaces under a name that no agent can have: another of its name begins without them. Who
    deletes an owner's, finds them there as well."""
    base = Path(settings.WORKSPACES_DIR)
    with suppress(FileNotFoundError):
        os.rename(base / agent, base / f"{agent}.{secrets.token_hex(8)}")


def erase(owner_id: int) -> None:
    """Delete an owner's workspaces with all agents, whatever is in them. Those that owners share stay."""
    base = Path(settings.WORKSPACES_DIR)
    for agent in base.iterdir() if base.is_dir() else ():
        if not agent.is_symlink() and (mine := agent / str(owner_id)).is_dir():
            shutil.rmtree(mine)  # follows no link, on this platform also not one that is put there meanwhile


def _base(path: Path) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC  # who runs the host may have put a link there
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(path, flags)


def _made(folder: int, name: str) -> int:
    try:
        return os.open(name, _OPEN_FOLDER, dir_fd=folder)
    except FileNotFoundError:
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=folder)
        return os.open(name, _OPEN_FOLDER, dir_fd=folder)


def read_file(folder: int, parts: Parts) -> bytes:
    """A file's content; see :meth:`Workspace.read`."""
    most = settings.WORKSPACE_FILE_MAX_BYTES
    with beneath.open_file(folder, parts) as descriptor, open(descriptor, "rb", closefd=False) as file:
        content = file.read(most + 1)
        if len(content) > most:
            size = max(os.fstat(descriptor).st_size, len(content))
            raise Full(f"The file has {size} bytes; {most} can be read at most.")
    return content


def file_of(*, agent: str, owner_id: int, path: str) -> bytes:
    """The content of a file in an agent's workspace, for a tool of an upper layer that has FS_READ. Raises
    :class:`PathRefused` and :class:`Full`."""
    try:
        with open_workspace(agent=agent, owner_id=owner_id) as workspace:
            return read_file(workspace.files, beneath.parts_of(path))
    except FileNotFoundError:
        raise PathRefused(f"There is no {path!r}. list_dir tells what there is.") from None


def entries_of(folder: int, parts: Parts) -> list[Entry]:
    """What an open folder holds, by name; ``parts``: where it is."""
    found = []
    with os.scandir(folder) as names:
        for name in names:
            try:
                status = name.stat(follow_symlinks=False)
                path = "/".join((*parts, name.name))
                path.encode()
            except (FileNotFoundError, UnicodeEncodeError):
                continue  # it has just gone; or no tool could name it
            kind = "other"
            if stat.S_ISDIR(status.st_mode):
                kind = "folder"
            elif stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
                kind = "file"
            size = status.st_size if kind == "file" else 0
            found.append(Entry(path=path, kind=kind, size=size, changed=status.st_mtime))
    return sorted(found, key=lambda entry: entry.path)


def walk(folder: int, parts: Parts = (), *, most: int) -> Iterator[Entry]:
    """All that is beneath a folder, so many entries at most. Folders that cannot be opened are passed over."""
    waiting = [parts]
    while waiting:
        here = waiting.pop()
        try:
            with beneath.open_folder(folder, here) as opened:
                entries = entries_of(opened, here)
        except (PathRefused, FileNotFoundError):
            continue
        for entry in entries:
            if most <= 0:
                return
            most -= 1
            yield entry
        folders = [tuple(entry.path.split("/")) for entry in entries if entry.kind == "folder"]
        waiting += reversed([each for each in folders if len(each) < beneath.MAX_DEPTH])


def _key(parts: Parts, *, is_folder: bool = False) -> str:
    return _hash(("/".join(parts) + ("/" if is_folder else "")).encode())


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
