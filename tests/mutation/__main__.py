"""``make mutants``: small mistakes are made in a copy of the code, one at a time, and a test must see each.

Without arguments, the modules that keep the three promises; ``MODULES="a/b.py c.py"``: those; ``SINCE=REV``: those that
changed since. A mistake that no test sees survives: then a test is missing, or the mistake is none, which
``survivors.toml`` says with the reason. Any other survivor makes the command fail.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.mutants import copy_of_the_code
from tests.host import ROOT

# What runs the mistakes has an environment of its own: the suite needs none of it.
COSMIC_RAY = ROOT / ".venv" / "mutants" / "bin"

# The modules that are always tried, and the tests that see them best, quickest first.
TESTS = {
    "conversations/claims.py": ("test_claims", "test_guarantees", "test_turns", "test_endings", "test_sent"),
    "conversations/inbox.py": ("test_inbox", "test_api_chat", "test_api_idempotency", "test_intake"),
    "nanohost/lib/redaction.py": ("test_redaction", "test_secrets", "test_logs"),
    "tools/addresses.py": ("test_addresses", "test_http_client"),
    "tools/calls.py": ("test_gate", "test_endings", "test_sweeper", "test_guarantees"),
    "tools/gate.py": ("test_gate", "test_tool_limits", "test_simulator", "test_inline_tools", "test_database_away"),
}

# Of the dozen operators that may take an operator's place, one is enough to see whether a test looks at the result.
KEPT = (
    "Add_Sub|Sub_Add|Mul_Add|Div_Mul|FloorDiv_Mul|Mod_Mul|Pow_Mul|RShift_LShift|LShift_RShift|BitOr_BitAnd|BitAnd_BitOr"
)

SECONDS = 300.0


@dataclass(frozen=True, kw_only=True)
class Survivor:
    """A mistake that no test saw: what stands in the code, and what it became."""

    file: str
    line: str
    becomes: str

    def is_listed(self, listed: Sequence[dict[str, str]]) -> bool:
        """Whether it is known, with a reason."""
        return any(
            (each["file"], each["line"], each["becomes"]) == (self.file, self.line, self.becomes) for each in listed
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


def seeing(module: str) -> list[str]:
    """The tests that see a module: the named ones, or all that import it."""
    if named := TESTS.get(module):
        return [f"tests/{name}.py" for name in named]
    dotted = module.removesuffix(".py").replace("/", ".")
    package, _, name = dotted.rpartition(".")
    imports = re.compile(
        rf"from {re.escape(dotted)} import|import {re.escape(dotted)}\b|from {re.escape(package)} import .*\b{name}\b"
    )
    files = sorted(ROOT.glob("tests/test_*.py"))
    return [f"tests/{file.name}" for file in files if imports.search(file.read_text())]


def try_module(root: Path, module: str, listed: Sequence[dict[str, str]]) -> int:
    """Make every mistake in a module, one after the other; how many unknown ones survive."""
    tests = seeing(module)
    if not tests:
        print(f"{module}: no test imports it")  # noqa: T201 -- a command
        return 1
    config, session = root / "mutation.toml", root / "mutation.sqlite"
    session.unlink(missing_ok=True)
    config.write_text(_config(module, tests))
    ray("init", config, session, root=root)
    subprocess.run([COSMIC_RAY / "cr-filter-operators", session, config], cwd=root, check=True)
    ray("baseline", config, root=root)
    ray("exec", config, session, root=root)
    tried, survivors = outcome(session, root)
    unknown = [each for each in survivors if not each.is_listed(listed)]
    print(f"{module}: {tried} mistakes, {len(survivors)} survive, {len(unknown)} unexplained")  # noqa: T201 -- a command
    for each in unknown:
        print(f"\n    {each.line}\nbecomes\n    {each.becomes}", flush=True)  # noqa: T201 -- a command
    return len(unknown)


def _config(module: str, tests: Sequence[str]) -> str:
    command = f"{sys.executable} -m pytest -x -q --numprocesses 0 -p no:cacheprovider {' '.join(tests)}"
    return f"""
[cosmic-ray]
module-path = {json.dumps(module)}
timeout = {SECONDS}
excluded-modules = []
test-command = {json.dumps(command)}
distributor.name = "local"
[cosmic-ray.filters.operators-filter]
exclude-operators = [{json.dumps(f"core/ReplaceBinaryOperator_(?!({KEPT})$)")}]
"""


def ray(*arguments: object, root: Path) -> None:
    """Run the tool in the copy."""
    subprocess.run([COSMIC_RAY / "cosmic-ray", *map(str, arguments)], cwd=root, check=True)


def outcome(session: Path, root: Path) -> tuple[int, list[Survivor]]:
    """How many mistakes were tried, and those that survived."""
    dumped = subprocess.check_output([COSMIC_RAY / "cosmic-ray", "dump", session], cwd=root, text=True)
    tried = [(item, result) for item, result in map(json.loads, dumped.splitlines()) if result]
    tried = [(item, result) for item, result in tried if result["worker_outcome"] != "skipped"]
    return len(tried), list(_survivors(tried))


def _survivors(tried: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> Iterator[Survivor]:
    for item, result in tried:
        if result["test_outcome"] == "survived":
            changed = [line for line in result["diff"].splitlines() if not line.startswith(("---", "+++", "@@"))]
            yield Survivor(
                file=item["mutations"][0]["module_path"],
                line=" ".join(line[1:].strip() for line in changed if line.startswith("-")),
                becomes=" ".join(line[1:].strip() for line in changed if line.startswith("+")),
            )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
