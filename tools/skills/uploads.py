"""Skills that people upload in the console: a zip, looked through before anything of it is written.

It is taken whole or not at all: unpacked into a folder that nobody reads, and then put in its place.
"""

import hashlib
import io
import os
import secrets
import shutil
import stat
import zipfile
from pathlib import Path

from django.conf import settings
from django.db import transaction

from nanohost.accounts import audit
from nanohost.lib.errors import InvalidRequest, NotFound
from nanohost.lib.text import clip
from tools.skills.frontmatter import BadSkill, parsed
from tools.skills.models import SkillSetting
from tools.skills.shelf import shelf
from tools.workspace.beneath import parts_of
from tools.workspace.errors import PathRefused

# Of the archive, what is in it together, each file, and how many there are.
MAX_ZIP_BYTES, MAX_BYTES, MAX_FILE_BYTES, MAX_FILES = 5_000_000, 20_000_000, 5_000_000, 200
MAX_DEPTH = 8

_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_SKILL = "SKILL.md"


def upload(content: bytes) -> str:
    """Take a skill in; returns its name. No agent may use it at first.

    Raises :class:`InvalidRequest`, which says what is wrong with the archive.
    """
    files = _read(content)
    name, files = _named(files)
    try:
        parsed(name, files[_SKILL,])
    except BadSkill as why:
        raise InvalidRequest(str(why)) from None
    if name in shelf().found:
        raise InvalidRequest(f"There is a skill {name} already; remove it first, or give this one another name.")
    # First: whoever reads skills sees it as soon as it is there, and this keeps all agents from it.
    setting, _ = SkillSetting.objects.update_or_create(name=name, defaults={"agents": []})
    try:
        _put(name, files)
    except OSError as error:
        raise InvalidRequest(f"It could not be stored in SKILLS_DIR: {error.strerror}.") from None
    told = {"files": len(files), "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    audit.record("skill.uploaded", about=setting, name=name, after=told)
    return name


def remove(name: str) -> None:
    """Remove a skill that was uploaded; raises :class:`NotFound` for another one."""
    place = Path(settings.SKILLS_DIR)
    if "/" in name or name.startswith(".") or not (place / name).is_dir():
        raise NotFound(f"No skill {clip(name, 100)!r} was uploaded; those of folders are removed there.")
    with transaction.atomic():
        skill, _ = SkillSetting.objects.get_or_create(name=name)
        audit.record("skill.removed", about=skill, name=name, before=skill.said())
        # No agent has it any more, whatever becomes of the files.
        skill.agents = []
        skill.save()
    gone = place / f".{secrets.token_hex(8)}"
    os.rename(place / name, gone)
    shutil.rmtree(gone)


def allow(name: str, agents: list[str] | None) -> None:
    """Let these agents use a skill, and no others; None: all of them."""
    if name not in shelf().found:
        raise NotFound(f"There is no skill {clip(name, 100)!r}.")
    with transaction.atomic():
        before = SkillSetting.objects.filter(name=name).first()
        if agents is None:
            SkillSetting.objects.filter(name=name).delete()
        else:
            SkillSetting.objects.update_or_create(name=name, defaults={"agents": sorted(agents)})
        was = {"agents": before.agents if before else "all"}
        now = {"agents": "all" if agents is None else sorted(agents)}
        if was != now:
            audit.record("skill.allowed", kind="tools.skillsetting", key=name, name=name, before=was, after=now)


def forget(agent: str) -> None:
    """Another agent of that name begins without what this one was given."""
    for skill in SkillSetting.objects.all():
        if agent in skill.agents:
            skill.agents = [name for name in skill.agents if name != agent]
            skill.save(update_fields=["agents", "updated_at"])


def uploaded() -> frozenset[str]:
    """The names of those that were uploaded."""
    place = str(settings.SKILLS_DIR)
    return frozenset(name for name, found in shelf().found.items() if found.place == place)


# --- the archive -------------------------------------------------------------------------------------------------

Files = dict[tuple[str, ...], bytes]


def _read(content: bytes) -> Files:
    """The files of an archive by their paths; what it says of itself is not believed."""
    if len(content) > MAX_ZIP_BYTES:
        raise InvalidRequest(f"The archive has {len(content)} bytes; {MAX_ZIP_BYTES} are taken.")
    files: Files = {}
    left = MAX_BYTES
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            entries = archive.infolist()
            if len(entries) > 2 * MAX_FILES:
                raise InvalidRequest(f"The archive has {len(entries)} entries; a skill has {MAX_FILES} files at most.")
            for entry in entries:
                parts = _parts(entry)
                if entry.is_dir():
                    continue
                with archive.open(entry) as file:
                    data = file.read(min(MAX_FILE_BYTES, left) + 1)
                if len(data) > min(MAX_FILE_BYTES, left):
                    raise InvalidRequest(
                        f"Unpacked, the archive would be too large: a file has {MAX_FILE_BYTES} bytes at most, and all"
                        f" together {MAX_BYTES}."
                    )
                left -= len(data)
                files[parts] = data
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError, EOFError, ValueError) as error:
        raise InvalidRequest(f"It is no zip archive that can be read ({type(error).__name__}).") from None
    except zipfile.zlib.error:  # type: ignore[attr-defined]
        raise InvalidRequest("It is no zip archive that can be read: what is packed in it is damaged.") from None
    if len(files) > MAX_FILES:
        raise InvalidRequest(f"The archive has {len(files)} files; a skill has {MAX_FILES} at most.")
    return _without_doubles(files)


def _parts(entry: zipfile.ZipInfo) -> tuple[str, ...]:
    """Where an entry stands; raises for what would lead elsewhere, or is no plain file or folder."""
    shown = clip(ascii(entry.orig_filename), 100)
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise InvalidRequest(f"{shown} is a link or no regular file, which a skill has none of.")
    if entry.flag_bits & 1:
        raise InvalidRequest(f"{shown} is encrypted.")
    if entry.compress_type not in _METHODS:
        raise InvalidRequest(f"{shown} is packed in a way that is not read; use the usual one (deflate).")
    # What zipfile makes of a name is not what stands there: it ends one at a NUL.
    if entry.orig_filename != entry.filename or "\\" in entry.filename or ":" in entry.filename:
        raise InvalidRequest(f"{shown} is no name of a file here.")
    try:
        parts = parts_of(entry.filename)
    except PathRefused as why:
        raise InvalidRequest(f"{shown}: {why}") from None
    if not parts or len(parts) > MAX_DEPTH or any(part.startswith(".") for part in parts):
        raise InvalidRequest(f"{shown} is hidden, in more than {MAX_DEPTH} folders, or has no name.")
    return parts


def _without_doubles(files: Files) -> Files:
    """Raises for files that would be one on some machines, and for a file that is a folder of others."""
    seen: set[tuple[str, ...]] = set()
    for parts in files:
        folded = tuple(part.casefold() for part in parts)
        if folded in seen or any(folded[:depth] in seen for depth in range(1, len(folded))):
            raise InvalidRequest(f"{clip(ascii('/'.join(parts)), 100)} occurs twice in the archive.")
        seen.add(folded)
    folders = {tuple(part.casefold() for part in parts[:depth]) for parts in files for depth in range(1, len(parts))}
    if both := folders & seen:
        raise InvalidRequest(f"{clip(ascii('/'.join(min(both))), 100)} is a file and a folder.")
    return files


def _named(files: Files) -> tuple[str, Files]:
    """The skill's name, and its files from its folder on: an archive has that one folder, and nothing besides."""
    tops = {parts[0] for parts in files}
    if len(tops) != 1 or any(len(parts) < 2 for parts in files):
        raise InvalidRequest(f"The archive has to hold one folder, which has the skill's name, and in it {_SKILL}.")
    (name,) = tops
    inside = {parts[1:]: data for parts, data in files.items()}
    if (_SKILL,) not in inside:
        raise InvalidRequest(f"There is no {_SKILL} in the folder {clip(ascii(name), 100)}.")
    return name, inside


def _put(name: str, files: Files) -> None:
    place = Path(settings.SKILLS_DIR)
    place.mkdir(mode=0o755, parents=True, exist_ok=True)
    made = place / f".{secrets.token_hex(8)}"
    try:
        for parts, data in files.items():
            file = made.joinpath(*parts)
            file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            file.write_bytes(data)
        os.rename(made, place / name)
    finally:
        shutil.rmtree(made, ignore_errors=True)
