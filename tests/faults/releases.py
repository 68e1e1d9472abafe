"""The release before: its code as git has it, to be run beside this one by the same Python."""

import subprocess
from pathlib import Path

from tests.support.hosts import ROOT

# What there is to upgrade from, while no release is tagged: by what it is called here, the commit.
RECORDED = {"the state before": "6ecd64d464d93eb8c3668c60311e80ac8b3c624f"}


def former() -> dict[str, str]:
    """Names and commits: the newest tag ``v…`` before this commit; what is recorded above, while there is none."""
    tagged = _git("describe", "--tags", "--abbrev=0", "--match", "v*", "HEAD^")
    if tagged.returncode == 0:
        return RECORDED | {"the state before": tagged.stdout.strip()}
    return RECORDED


def why_not(commit: str) -> str:
    """Why it cannot be had here; empty if it can."""
    if _git("cat-file", "-e", f"{commit}^{{commit}}").returncode:
        return f"git's history is not here as far as {commit[:12]}"
    return ""


def unpack(commit: str, folder: Path) -> Path:
    """Its files, in a folder of their own."""
    folder.mkdir()
    packed = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "--extract", "--directory", str(folder)], input=packed, check=True)
    return folder


def _git(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
