"""A new tool's first lines, and its test's, written into an app of the user's own: ``manage.py tools new``."""

import ast
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from keyword import iskeyword
from pathlib import Path

from django.apps import apps
from django.conf import settings

from tools import registry
from tools.errors import ToolExists, UnfitName

MODULE = "agent_tools"
DOCSTRING = '"""Tools that models may call, once somebody has allowed them."""'
IMPORT = "from tools.registry import tool"

TOOL = '''
@tool(effects="read", timeout=5)
def {name}(text: str) -> str:
    """Return the text as it is. Say here what the tool does: the model goes by it.

    Args:
        text: Any text. Say here what the model is to give.
    """
    return text
'''

TEST = """from {app}.{module} import {name}


def test_{name}():
    assert {name}(text="hello") == "hello"
"""


@dataclass(frozen=True, kw_only=True)
class Written:
    """What was written: the module with the tool, and its test."""

    tool: Path
    test: Path


def new_tool(name: str, *, app: str, directory: Path | None = None) -> Written:
    """Write a tool and its test into an app, which is made if there is none; ``app`` is its dotted name.

    ``directory`` is where the app's top folder stands, or is to; None: beside manage.py. What there is stays as it is:
    the tool is added at the end of the app's ``agent_tools.py``. Raises :class:`UnfitName`, :class:`ToolExists`, and
    ``OSError`` for what cannot be written; then nothing is.
    """
    _check_name(name)
    folder = _folder_of(app, directory)
    module = folder / f"{MODULE}.py"
    # Django's startapp makes a tests.py, which a package of that name would hide.
    tests = folder if (folder / "tests.py").exists() else folder / "tests"
    test = tests / f"test_{name}.py"
    if test.exists():
        raise ToolExists(f"There is a test {test} already.")
    texts = {module: _with_tool(module, name), test: TEST.format(app=app, module=MODULE, name=name)}
    # A folder of tests that is no package is somebody's way of having tests.
    packages = [*_missing_packages(folder, app), *([] if tests.exists() else [tests])]
    texts |= {init: "" for package in packages if not (init := package / "__init__.py").exists()}
    _write(texts)
    return Written(tool=module, test=test)


# --- what is refused ---------------------------------------------------------------------------------------------


def _check_name(name: str) -> None:
    if not _is_identifier(name) or len(name) > 64:
        raise UnfitName(f"{name!r} cannot be a tool: its name is that of a Python function, of 64 characters at most.")
    if name.startswith("test"):
        raise UnfitName(f"{name!r} cannot be a tool: pytest would take it for a test.")
    if name in ("tool", "str"):
        raise UnfitName(f"{name!r} cannot be a tool: its own lines use that name for something else.")
    if name in registry.names():
        raise ToolExists(f"There is a tool named {name!r} already, in {registry.get(name).module}.")


def _folder_of(app: str, directory: Path | None) -> Path:
    """Where the app stands, or is to."""
    parts = app.split(".")
    if not all(_is_identifier(part) for part in parts):
        raise UnfitName(f"{app!r} cannot be an app: it is a dotted name of Python packages, such as garden.")
    own = {each.name: Path(each.path) for each in apps.get_app_configs() if _is_extra(each.name)}
    if app in own:
        if directory and directory.joinpath(*parts).resolve() != own[app].resolve():
            raise UnfitName(f"{app!r} stands in {own[app]}, and not in {directory}.")
        return own[app]
    others = {each.label: each.name for each in apps.get_app_configs() if each.name not in own}
    top, home = parts[0], directory or settings.BASE_DIR
    if top in {name.split(".")[0] for name in others.values()} | sys.stdlib_module_names:
        raise UnfitName(f"{app!r} cannot be an app of yours: {top} is part of nanohost, of Python or of a library.")
    if parts[-1] in others:
        raise UnfitName(f"{app!r} cannot be an app: {others[parts[-1]]} has its label, {parts[-1]}.")
    if not home.is_dir():
        raise UnfitName(f"There is no folder {home}.")
    if not (home / top).exists() and top in metadata.packages_distributions():
        raise UnfitName(f"{app!r} cannot be an app of yours: a library is named {top}.")
    folder = home.joinpath(*parts)
    if folder.exists() and not (folder / "__init__.py").exists() and (folder.is_file() or any(folder.iterdir())):
        raise UnfitName(f"{folder} is there, and is no Python package.")
    return folder


def _is_extra(app: str) -> bool:
    """Whether NANOHOST_EXTRA_APPS names it, by its name or by that of its configuration."""
    return any(entry == app or entry.startswith(f"{app}.") for entry in settings.NANOHOST_EXTRA_APPS)


def _is_identifier(name: str) -> bool:
    return name.isascii() and name.isidentifier() and not iskeyword(name)


def _missing_packages(folder: Path, app: str) -> Iterator[Path]:
    """The app's folder, and those above it that are to be made."""
    yield folder
    for above in list(folder.parents)[: app.count(".")]:
        if not above.exists():
            yield above


# --- what is written ---------------------------------------------------------------------------------------------


def _with_tool(module: Path, name: str) -> str:
    """The module's source with the tool at its end."""
    if not module.exists():
        return f"{DOCSTRING}\n\n{IMPORT}\n\n{TOOL.format(name=name)}"
    try:
        source = module.read_bytes().decode()
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise UnfitName(f"{module} is no Python that could be added to: {error}.") from None
    bound = dict(_bound(tree))
    if name in bound:
        raise ToolExists(f"{module} has something named {name!r} already, in line {bound[name]}.")
    newline = "\r\n" if "\r\n" in source else "\n"
    lines = re.split("(?<=\n)", source)
    if not any(isinstance(node, ast.ImportFrom) and ast.unparse(node) == IMPORT for node in tree.body):
        if "tool" in bound:
            raise UnfitName(f"{module} means something of its own by the name tool, in line {bound['tool']}.")
        lines.insert(_after_imports(tree), f"{IMPORT}{newline}")
    text = "".join(lines)
    text += "" if text.endswith("\n") else newline
    text += f"\n{TOOL.format(name=name)}".replace("\n", newline)
    ast.parse(text)
    return text


def _bound(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """The names a module gives to something, and those it gives to tools; with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg == "name" and isinstance(keyword.value, ast.Constant):
                    yield str(keyword.value.value), node.lineno
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((each.asname or each.name.split(".")[0], node.lineno) for each in node.names)
        else:
            names = (each for each in ast.walk(node) if isinstance(each, ast.Name))
            yield from ((each.id, each.lineno) for each in names if isinstance(each.ctx, ast.Store))


def _after_imports(tree: ast.Module) -> int:
    """How many lines stand before the place for one more import."""
    last = 0
    for index, node in enumerate(tree.body):
        docstring = index == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if docstring or isinstance(node, ast.Import | ast.ImportFrom):
            last = node.end_lineno or last
    return last


def _write(texts: dict[Path, str]) -> None:
    """Write all of these files, or none: those there are are replaced at the end, each in one step."""
    made: list[Path] = []
    texts = {path.resolve(): text for path, text in texts.items()}
    former = {path: path.read_bytes() for path in texts if path.exists()}
    try:
        for path, text in texts.items():
            made += _make_folders(path.parent)
            made.append(aside := _aside(path))
            aside.write_bytes(text.encode())
            if path in former:
                shutil.copymode(path, aside)
        for path in texts:
            if path not in former:
                made.append(path)
            _aside(path).replace(path)
    except BaseException:
        for path, content in former.items():
            if path.read_bytes() != content:
                path.write_bytes(content)
        for path in reversed(made):
            with suppress(OSError):  # what failed is told, not what is left of it
                path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
        raise


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.new")


def _make_folders(folder: Path) -> list[Path]:
    """Make a folder and those above it; returns those that were made, the uppermost first."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()][::-1]
    for each in missing:
        each.mkdir()
    return missing
