"""The tools that an agent works with files by. They run inline, and see one folder: that of the agent and the owner.

Nothing of what they are given is run. The kernel keeps them in the folder (:mod:`tools.workspace.beneath`).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

from django.conf import settings
from pydantic import Field

from tools.registry import Caller, Untrusted, tool
from tools.workspace import beneath, documents, outside, text
from tools.workspace.errors import PathRefused, Protected
from tools.workspace.globs import is_within, matches
from tools.workspace.store import Entry, Workspace, entries_of, open_workspace, walk
from tools.workspace.store import read_file as read_content

MAX_LISTED = 500


def stays_inside() -> bool:
    """Whether what these write is seen by the owner of the conversation alone, and by no other of the agent's."""
    return not (settings.WORKSPACE_SHARED or settings.WORKSPACE_WRITE_FOLDERS)


_STAYS = stays_inside()


class _Place:
    """A folder that can be read, and a path in it: of the workspace, or of one outside of it."""

    def __init__(self, workspace: Workspace | None, folder: int, path: str, prefix: str) -> None:
        self.workspace, self.folder, self.path, self.prefix = workspace, folder, path, prefix

    @property
    def parts(self) -> tuple[str, ...]:
        return beneath.parts_of(self.path)

    def trusts(self, path: str, content: bytes) -> bool:
        return self.workspace is not None and self.workspace.is_trusted(path, content)

    def knows(self, entry: Entry) -> bool:
        return self.workspace is not None and self.workspace.knows(entry.path, is_folder=entry.kind == "folder")


@contextmanager
def _place(caller: Caller, path: str) -> Iterator[_Place]:
    with _named(path):
        if not path.startswith("/"):
            with open_workspace(agent=caller.agent, owner_id=caller.owner_id) as workspace:
                yield _Place(workspace, workspace.files, path, "")
            return
        root, inner = outside.place_of(path)
        with outside.opened_root(root) as folder:
            yield _Place(None, folder, inner, f"{root}/")


@contextmanager
def _named(path: str) -> Iterator[None]:
    """What goes wrong in the block, in words for the model."""
    try:
        yield
    except FileNotFoundError:
        raise PathRefused(f"There is no {path!r}. list_dir tells what there is.") from None


@contextmanager
def _workspace(caller: Caller, path: str) -> Iterator[tuple[Workspace, str]]:
    """Where a file is to be changed, and its path there."""
    with _named(path):
        if not path.startswith("/"):
            with open_workspace(agent=caller.agent, owner_id=caller.owner_id) as workspace:
                yield workspace, path
            return
        root, inner = outside.place_of(path)
        if root not in settings.WORKSPACE_WRITE_FOLDERS:
            raise Protected(f"{path} can be read, but not changed.")
        with outside.open_outside(root) as workspace:
            yield workspace, inner


@tool(permissions=["FS_READ"], effects="read", requires=["openat2"])
def read_file(
    caller: Caller,
    path: str,
    offset: Annotated[int, Field(ge=1)] = 1,
    limit: Annotated[int, Field(ge=1, le=5000)] = 1000,
) -> str:
    """Return the text of a file in your workspace.

    Args:
        path: The file, such as notes/today.md.
        offset: The first line, counted from 1.
        limit: How many lines at most.
    """
    with _named(path):
        document = documents.read(caller, path)
    if document:
        result = text.shown(document.text, offset=offset, limit=limit)
        return _learnt(result, document.tainted_by) if document.tainted_by else result
    with _place(caller, path) as place:
        content = read_content(place.folder, place.parts)
        result = text.shown(text.decoded(content), offset=offset, limit=limit)
        return result if place.trusts(place.path, content) else _of_file(result, path)


@tool(permissions=["FS_WRITE"], effects="write", stays_inside=_STAYS, requires=["openat2"], changes_file="path")
def write_file(caller: Caller, path: str, content: str) -> str:
    """Write a file in your workspace, in the place of the one that is there. Folders are made.

    Args:
        path: The file, such as notes/today.md.
        content: All of its text.
    """
    written = _encoded(content)
    if told := _changed(caller, path, lambda before: content):
        return told
    with _workspace(caller, path) as (workspace, inner):
        was_there = workspace.write(inner, written, trusted=not caller.tainted_by)
    if not was_there:
        return f"Written: a new file of {len(written)} bytes."
    return f"Written: {len(written)} bytes. undo_file restores the previous content, for a day."


@tool(
    permissions=["FS_READ", "FS_WRITE"], effects="write", stays_inside=_STAYS, requires=["openat2"], changes_file="path"
)
def edit_file(caller: Caller, path: str, old_text: str, new_text: str) -> str:
    """Replace a text in a file of your workspace. The text must stand there exactly once.

    Args:
        path: The file, such as notes/today.md.
        old_text: What is replaced, with blanks and line ends as they are in the file.
        new_text: What takes its place.
    """
    if not old_text:
        raise ValueError("old_text is empty: there is nothing to replace. write_file writes a whole file.")
    old, new = _encoded(old_text), _encoded(new_text)
    if told := _changed(caller, path, lambda before: _edited(before.encode(), old, new).decode()):
        return told
    with _workspace(caller, path) as (workspace, inner):
        before = workspace.read(inner)
        text.decoded(before)  # which says what is no text
        if text.is_wide(before):
            raise ValueError("The file is in UTF-16; only UTF-8 is edited. write_file writes all of it, in UTF-8.")
        after = _edited(before, old, new)
        if after == before:
            return "The file has this text already."
        trusted = not caller.tainted_by and workspace.is_trusted(inner, before)
        workspace.write(inner, after, trusted=trusted, expected=before)
    return "Edited. undo_file restores the previous content, for a day."


def _edited(before: bytes, old: bytes, new: bytes) -> bytes:
    # Overlapping ones count: which of two is meant is not known.
    first = before.find(old)
    if first < 0:
        raise ValueError("old_text does not stand in the file; nothing was changed. Read the file again.")
    if before.find(old, first + 1) >= 0:
        raise ValueError("old_text stands in the file more than once; nothing was changed. Name more of it.")
    return before[:first] + new + before[first + len(old) :]


def _changed(caller: Caller, path: str, made_of: Callable[[str], str]) -> str | None:
    """What is told of a document that was changed; None if the path is no document's."""
    if not path.startswith("/") and is_within(beneath.parts_of(path), settings.WORKSPACE_PROTECTED_PATHS):
        return None  # who would write the file says so
    return documents.change(caller, path, made_of)


@tool(permissions=["FS_WRITE"], effects="write", stays_inside=_STAYS, requires=["openat2"], changes_file="path")
def undo_file(caller: Caller, path: str) -> str:
    """Undo the last change of a file in your workspace, if it was within a day. Undone again, the change is back.

    Args:
        path: The file, such as notes/today.md.
    """
    with _workspace(caller, path) as (workspace, inner):
        try:
            is_there = workspace.undo(inner, tainted=bool(caller.tainted_by))
        except FileNotFoundError:
            raise ValueError(f"No change of {path!r} is kept; it is for a day.") from None
    return "Undone." if is_there else "Undone: the file was new, and is gone."


@tool(permissions=["FS_READ"], effects="read", requires=["openat2"])
def list_dir(caller: Caller, path: str = "") -> str:
    """List a folder of your workspace: a name a line, folders with a slash, files with their size in bytes.

    Args:
        path: The folder; empty for the whole workspace's own.
    """
    with _place(caller, path) as place:
        kept = documents.in_folder(caller, path)
        try:
            with beneath.open_folder(place.folder, place.parts) as folder:
                entries = entries_of(folder, place.parts)
        except FileNotFoundError:
            if not kept:
                raise
            entries = []
        found = {_name(entry): _line(entry) for entry in entries}
        found |= {name: f"{name}/" if size is None else f"{name}\t{size}" for name, size in kept.items()}
        lines = [found[name] for name in sorted(found)[:MAX_LISTED]]
        if len(found) > MAX_LISTED:
            lines.append(f"[{MAX_LISTED} of {len(found)}]")
        result = "\n".join(lines) or "[the folder is empty]"
        return result if all(map(place.knows, entries)) else _of_file(result, path or "the workspace")


@tool(permissions=["FS_READ"], effects="read", requires=["openat2"])
def search_files(caller: Caller, query: str = "", path: str = "", pattern: str = "*") -> str:
    """Search the files of your workspace for a text, or for names.

    Args:
        query: The text, whatever its case. Without one, files are found by their names alone.
        path: The folder to search; empty for the whole workspace.
        pattern: Which files: *.md in any folder, notes/*.md in one, notes/**/*.md in it and those beneath.
    """
    with _place(caller, path) as place:
        most = 2 * settings.WORKSPACE_MAX_FILES
        found = [entry for entry in walk(place.folder, place.parts, most=most) if entry.kind == "file"]
        fitting = [entry for entry in found if matches(entry.path.split("/"), pattern)]
        if not query:
            lines, cut = [f"{place.prefix}{entry.path}" for entry in fitting], ""
            trusted = all(map(place.knows, fitting))
        else:
            read = {}

            def content_of(name: str) -> bytes:
                content = read_content(place.folder, beneath.parts_of(name))
                read[name] = place.trusts(name, content)
                return content

            result = text.search((entry.path for entry in fitting), content_of, query)
            lines, cut = [f"{place.prefix}{line}" for line in result.lines], result.cut
            trusted = all(read[name] for name in result.paths)
        if len(lines) > MAX_LISTED:
            cut = f"{MAX_LISTED} of {len(lines)}"
        shown = "\n".join([*lines[:MAX_LISTED], *([f"[{cut}]"] if cut else [])]) or "Nothing found."
        return shown if trusted else _of_file(shown, path or "the workspace")


def _name(entry: Entry) -> str:
    return entry.path.rpartition("/")[2]


def _line(entry: Entry) -> str:
    name = _name(entry)
    if entry.kind == "folder":
        return f"{name}/"
    return f"{name}\t{entry.size}" if entry.kind == "file" else f"{name}\t[a link or no regular file]"


def _encoded(content: str) -> bytes:
    try:
        return content.encode()
    except UnicodeEncodeError:
        raise ValueError("The text has half of a character (a lone surrogate).") from None


def _learnt(result: str, tainted_by: str) -> Untrusted:
    return Untrusted(result, by=f"memory, learnt in {tainted_by[:100]}")


def _of_file(result: str, path: str) -> Untrusted:
    return Untrusted(result, by=f"files of the workspace ({path[:100]})")
