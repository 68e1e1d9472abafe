"""``make mutants``: small mistakes are made in a copy of the code, one at a time, and a test must see each.

Without arguments, the modules that keep the three promises; ``MODULES="a/b.py c.py"``: those; ``SINCE=REV``: those that
changed since. A mistake that no test sees survives: then a test is missing, or the mistake is none, which
``survivors.toml`` says with the reason. Any other survivor makes the command fail.
"""

import argparse
import ast
import difflib
import json
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.faults.mutants import copy_of_the_code
from tests.faults.servers import leashed
from tests.mutation.forks import READY, SEEN, SURVIVED
from tests.support.hosts import ROOT

# What runs the mistakes has an environment of its own: the suite needs none of it.
COSMIC_RAY = ROOT / ".venv" / "mutants" / "bin"

# Those that see what is claimed, read and stored of turns.
OF_TURNS = ("test_claims", "test_turns", "test_endings", "test_retries", "test_sent", "test_commands")
OF_TURNS += ("engine/test_compaction",)

# The modules that are always tried, and the tests that see them best: those that are quick, and those that start hosts,
# which are run on what the quick ones do not see.
TESTS = {
    "conversations/engine/history.py": (("engine/test_history", *OF_TURNS), ()),
    "conversations/engine/lease.py": (OF_TURNS, ("test_guarantees",)),
    "conversations/engine/snapshot.py": (OF_TURNS, ("test_guarantees",)),
    "conversations/engine/steps.py": (OF_TURNS, ("test_guarantees",)),
    "conversations/engine/inbox.py": (
        ("test_inbox", "test_intake", "test_commands", "test_ticking", "test_check_in"),
        ("test_conversation_keys", "test_api_chat", "test_api_idempotency"),
    ),
    "nanohost/lib/known_secrets.py": (("test_redaction",), ()),
    "nanohost/lib/lease.py": (
        ("test_sweeper", "test_calls", "test_claims", "engine/test_compaction"),
        ("test_worker",),
    ),
    "nanohost/lib/redaction.py": (("test_redaction",), ()),
    "nanohost/lib/secret_shapes.py": (("test_redaction",), ()),
    "tools/outbound/addresses.py": (("test_addresses",), ("test_http_client",)),
    "tools/calls.py": (
        ("test_calls", "test_gate", "test_endings", "test_sweeper", "test_inline_tools"),
        ("test_guarantees",),
    ),
    "tools/gate.py": (
        ("test_gate", "test_tool_limits", "test_simulator", "test_inline_tools"),
        ("test_guarantees", "test_database_away"),
    ),
}

# Of the dozen operators that may take an operator's place, one is enough to see whether a test looks at the result.
KEPT = (
    "Add_Sub|Sub_Add|Mul_Add|Div_Mul|FloorDiv_Mul|Mod_Mul|Pow_Mul|RShift_LShift|LShift_RShift|BitOr_BitAnd|BitAnd_BitOr"
)
LEFT_OUT = f"core/ReplaceBinaryOperator_(?!({KEPT})$)"


CONFIG = """
[cosmic-ray]
module-path = {module}
timeout = 1.0
excluded-modules = []
test-command = ""
distributor.name = "local"
[cosmic-ray.filters.operators-filter]
exclude-operators = [{left_out}]
"""

# In the environment of the tool: prints the sources, as JSON.
MAKE_THEM = """
import json, sys
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator
from cosmic_ray.work_db import WorkDB, use_db
with use_db(sys.argv[1], WorkDB.Mode.open) as db:
    items = [each for item in db.pending_work_items for each in item.mutations]
made = {}
for each in sorted(items, key=lambda each: (each.start_pos, each.operator_name, each.occurrence)):
    operator = get_operator(each.operator_name)(**each.operator_args)
    made[mutate_code(each.module_path.read_text(), operator, each.occurrence)] = True
print(json.dumps([source for source in made if source]))
"""


@dataclass(frozen=True, kw_only=True)
class Survivor:
    """A mistake that no test saw: what stands in the code, and what it became."""

    file: str
    line: str
    becomes: str

    @classmethod
    def of(cls, file: str, original: str, source: str) -> Self:
        """The mistake by which the source differs from the original."""
        lines = list(difflib.unified_diff(original.splitlines(), source.splitlines(), n=0))[2:]
        line, becomes = (" ".join(each[1:].strip() for each in lines if each[0] == sign).strip() for sign in "-+")
        return cls(file=file, line=line, becomes=becomes)

    def is_listed(self, listed: Sequence[dict[str, Any]]) -> bool:
        """Whether it is known, with a reason."""
        return any(
            (each["file"], each["line"]) == (self.file, self.line) and self.becomes in each["becomes"]
            for each in listed
        )


def main(arguments: Sequence[str]) -> int:
    """Try the modules; 0 if no unknown mistake survives."""
    parser = argparse.ArgumentParser(prog="make mutants")
    parser.add_argument("modules", nargs="*")
    parser.add_argument("--since", default="")
    told = parser.parse_args(arguments)
    modules = told.modules or (changed_since(told.since) if told.since else list(TESTS))
    listed = tomllib.loads((Path(__file__).parent / "survivors.toml").read_text()).get("survivor", [])
    unknown = 0
    with tempfile.TemporaryDirectory() as folder:
        root = copy_of_the_code(Path(folder) / "copy")
        for module in modules:
            unknown += try_module(root, module, listed)
    print(f"{unknown} mistakes survive that survivors.toml does not explain")  # noqa: T201 -- a command
    return min(unknown, 1)


def changed_since(rev: str) -> list[str]:
    """The modules of ours that have changed since, without tests and migrations."""
    names = subprocess.check_output(["git", "diff", "--name-only", "--diff-filter=d", rev], cwd=ROOT, text=True)
    return [
        name
        for name in names.split()
        if name.endswith(".py") and not name.startswith("tests/") and "/migrations/" not in name
    ]


def seeing(module: str) -> tuple[list[str], list[str]]:
    """The tests that see a module: the named ones, or all that import it."""
    if module in TESTS:
        quick, slow = TESTS[module]
        return [file_of(name) for name in quick], [file_of(name) for name in slow]
    dotted = module.removesuffix(".py").replace("/", ".")
    package, _, name = dotted.rpartition(".")
    imports = re.compile(
        rf"from {re.escape(dotted)} import|import {re.escape(dotted)}\b|from {re.escape(package)} import .*\b{name}\b"
    )
    files = sorted(ROOT.glob("tests/**/test_*.py"))
    return [str(file.relative_to(ROOT)) for file in files if imports.search(file.read_text())], []


def file_of(name: str) -> str:
    """Where the tests of this name stand."""
    (file,) = ROOT.glob(f"tests/**/{name}.py")
    return str(file.relative_to(ROOT))


def try_module(root: Path, module: str, listed: Sequence[dict[str, Any]]) -> int:
    """Make every mistake in a module, one after the other; how many unknown ones survive."""
    quick, slow = seeing(module)
    if not quick:
        print(f"{module}: no test imports it")  # noqa: T201 -- a command
        return 1
    began = time.monotonic()
    if run(root, *quick, *slow, seconds=3600.0):
        raise SystemExit(f"{module}: its tests fail without a mistake")
    seconds = max(30.0, 4 * (time.monotonic() - began))
    tried = mistakes(root, module)
    original = (root / module).read_text()
    became = dict(zip(tried, in_forks(root, module, quick, tried, seconds=seconds), strict=True))
    left = {source: Survivor.of(module, original, source) for source in tried if became[source] != SEEN}
    # What survives in a fork may be seen where all is loaded anew, or by the others.
    survivors = [
        each
        for source, each in left.items()
        if each.is_listed(listed) or not is_seen(root, module, [*quick, *slow], source, seconds=seconds)
    ]
    unknown = [each for each in survivors if not each.is_listed(listed)]
    print(f"{module}: {len(tried)} mistakes, {len(survivors)} survive, {len(unknown)} unexplained")  # noqa: T201 -- a command
    for each in unknown:
        print(f"\n    {each.line}\nbecomes\n    {each.becomes}", flush=True)  # noqa: T201 -- a command
    return len(unknown)


def mistakes(root: Path, module: str) -> list[str]:
    """The module's source with each mistake that there is to make."""
    config, session = root / "mutation.toml", root / "mutation.sqlite"
    session.unlink(missing_ok=True)
    config.write_text(CONFIG.format(module=json.dumps(module), left_out=json.dumps(LEFT_OUT)))
    for command in (("cosmic-ray", "init", config, session), ("cr-filter-operators", session, config)):
        subprocess.run([COSMIC_RAY / command[0], *command[1:]], cwd=root, check=True)
    made = subprocess.check_output([COSMIC_RAY / "python", "-c", MAKE_THEM, session], cwd=root, text=True)
    return [source for source in json.loads(made) if is_python(source)]


def is_python(source: str) -> bool:
    """Whether it can be loaded at all; the tool takes the star before a keyword for an operator."""
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


def in_forks(root: Path, module: str, tests: Sequence[str], sources: Sequence[str], *, seconds: float) -> list[str]:
    """What becomes of each in a fork: see :mod:`tests.mutation.forks`."""
    told, outcomes = root / "mistakes.json", root / "outcomes"
    dotted = module.removesuffix(".py").replace("/", ".")
    unbroken = (root / module).read_text()
    given = {"module": dotted, "file": str(root / module), "seconds": seconds, "sources": [unbroken, *sources]}
    told.write_text(json.dumps(given))
    own = ("-p", "tests.mutation.forks", "--capture=no", f"--mistakes={told}", f"--outcomes={outcomes}")
    run(root, *own, f"tests/mutation/{READY}", *tests, seconds=None)
    unhurt, *became = outcomes.read_text().split()
    if unhurt != SURVIVED or len(became) != len(sources):
        raise SystemExit(f"{module}: its tests fail in a fork without a mistake")
    return became


def is_seen(root: Path, module: str, tests: Sequence[str], source: str, *, seconds: float) -> bool:
    """Whether the tests see a mistake, in a process of its own."""
    original = (root / module).read_text()
    (root / module).write_text(source)
    try:
        return run(root, *tests, seconds=seconds)
    finally:
        (root / module).write_text(original)


def run(root: Path, *arguments: str, seconds: float | None) -> bool:
    """Run pytest in the copy; whether a test failed or the time was up."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--numprocesses", "0", "-p", "no:cacheprovider", *arguments]
    try:
        ended = subprocess.run(
            leashed(command), cwd=root, timeout=seconds, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return True
    return ended.returncode != 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
