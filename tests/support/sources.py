"""What the tests read off the project's own source."""

import ast
import functools
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = ROOT / "nanohost" / "settings.py"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = PROJECT["tool"]["importlinter"]["root_packages"]

# Read where they are needed and kept nowhere, since they are secrets.
READ_ELSEWHERE = ("NANOHOST_ADMIN_PASSWORD", "NANOHOST_API_KEY")


@dataclass(frozen=True)
class Reader:
    """``attribute = env.kind("NAME", …)`` in the settings."""

    name: str
    kind: str


def readers() -> list[Reader]:
    """Every reader of an environment variable in the settings."""
    calls = (node for node in ast.walk(ast.parse(SETTINGS.read_text())) if isinstance(node, ast.Call))
    return [
        Reader(call.args[0].value, call.func.attr)
        for call in calls
        if isinstance(call.func, ast.Attribute) and getattr(call.func.value, "id", "") == "env"
        if isinstance(call.args[0], ast.Constant)
    ]


def read_settings() -> dict[str, Any]:
    """The settings as the environment now makes them."""
    made: dict[str, Any] = {"__name__": "settings", "__file__": str(SETTINGS)}
    exec(_settings(), made)
    return made


@functools.cache
def _settings() -> CodeType:
    """Compiled once: tests read them a thousand times."""
    return compile(SETTINGS.read_text(), SETTINGS, "exec")


def tracked_files() -> list[Path]:
    """Every file of the project, but pictures: what git knows, or would take in."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\n")
    return [ROOT / name for name in listed if name and not name.endswith(".png") and (ROOT / name).is_file()]


def product_modules() -> list[tuple[str, Path]]:
    """Every module of the product, by its dotted name, and its file."""
    paths = (path.relative_to(ROOT) for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))
    return [(".".join(path.with_suffix("").parts).removesuffix(".__init__"), ROOT / path) for path in paths]
