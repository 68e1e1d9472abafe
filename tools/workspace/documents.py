"""What stands in a workspace as a file, and is kept elsewhere: in rows, with its versions.

Those who keep it are above this room. They say so when the host starts (:func:`add`), and this room knows nobody. A
path that is a document's is never a file's: the document is found first, and nothing is put there.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tools.registry import Caller
from tools.workspace import beneath
from tools.workspace.errors import PathRefused, Protected

Parts = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Text:
    """What a document says. ``tainted_by``: where some of it was learnt, if untrusted text had entered there."""

    text: str
    tainted_by: str = ""


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Documents that one app keeps.

    ``folder``: the one that they all stand in. ``owns``: whether a path is that of one, whether there is one by now or
    not. ``found``: those that there are for a caller, by path. ``change``: makes the next version of one, of what it
    says and what a function makes of that, while nobody else changes it; returns what the model is told. What a model
    did wrong is a ValueError. ``instructs``: what they say is what the agent does, in all its conversations: the gate
    asks whether it may change them.
    """

    folder: Parts
    owns: Callable[[Parts], bool]
    found: Callable[[Caller], dict[str, Text]]
    change: Callable[[Caller, Parts, Callable[[str], str]], str]
    instructs: bool = False


_kept: list[Kept] = []


def add(kept: Kept) -> None:
    """From now on, these are documents of every workspace."""
    _kept.append(kept)


def is_one(parts: Parts) -> bool:
    """Whether a path is a document's."""
    return any(each.owns(parts) for each in _kept)


def instructing(path: str) -> str:
    """The path of a document that instructs the agent, in its one spelling; "" if the path names none. One that is no
    path at all is refused by the tool that is given it."""
    try:
        parts = beneath.parts_of(path)
    except PathRefused:
        return ""
    return "/".join(parts) if any(each.instructs and each.owns(parts) for each in _kept) else ""


def read(caller: Caller, path: str) -> Text | None:
    """A document; None if the path is no document's. Raises :class:`FileNotFoundError` if there is none yet."""
    if path.startswith("/"):
        return None
    parts = beneath.parts_of(path)
    for each in _kept:
        if each.owns(parts):
            found = each.found(caller).get("/".join(parts))
            if found is None:
                raise FileNotFoundError(path)
            return found
    return None


def change(caller: Caller, path: str, made_of: Callable[[str], str]) -> str | None:
    """Make a document's next version, of what it says now; "" is said by one that is not there yet. Returns what the
    model is told, or None if the path is no document's."""
    if path.startswith("/"):
        return None
    parts = beneath.parts_of(path)
    for each in _kept:
        if each.owns(parts):
            return each.change(caller, parts, made_of)
    return None


def in_folder(caller: Caller, path: str) -> dict[str, int | None]:
    """What of them a folder has, by name: the bytes of a document, None for a folder."""
    if path.startswith("/"):
        return {}
    place, names = beneath.parts_of(path), {}
    near = [each for each in _kept if each.folder[: len(place)] == place]
    for document, text in [pair for each in near for pair in each.found(caller).items()]:
        parts = tuple(document.split("/"))
        if parts[: len(place)] == place:
            is_here = len(parts) == len(place) + 1
            names[parts[len(place)]] = len(text.text.encode()) if is_here else None
    return names


def refuse(parts: Parts) -> None:
    """Raise :class:`Protected` for a path that is a document's: no file is put there."""
    if is_one(parts):
        raise Protected(f"{'/'.join(parts)} is no file, but a document that the host keeps, with its versions.")
