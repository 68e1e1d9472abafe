"""Nothing but the gate can run a tool: the product's code is walked for every way to what runs one.

What runs tools is :mod:`tools.children` and :mod:`tools.child`; the tools themselves are functions in modules named
``agent_tools``, whose signatures the registry keeps. The walk finds whoever names these in an import, an attribute or
a text, and whoever loads or runs code by a name that is not written there to be read.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from tests.host import ROOT

PRODUCT = ("nanohost", "conversations", "agent", "tools", "memory", "scheduler", "manage.py")

# Neighbours in a dotted path that lead to a tool, whatever the path begins with.
LEADS_TO_A_TOOL = {
    ("tools", "children"),
    ("tools", "child"),
    ("gate", "pool"),
    ("gate", "Task"),
    ("registry", "_tools"),
}
# A part of a dotted path that does so by itself.
IS_A_TOOLS_OWN = {"agent_tools", "_signature"}

# Functions that load code by its name. With the name written there, the name is looked at; else the use is reported.
LOADERS = {
    "__import__",
    "autodiscover_modules",
    "find_spec",
    "import_from_string",
    "import_module",
    "import_object",
    "import_string",
    "locate",
    "reload",
    "resolve_name",
    "run_module",
    "run_path",
    "symbol_by_name",
}
# Reaching attributes by a name works the same way.
GETTERS = {"getattr", "attrgetter", "methodcaller"}
# These are reported however they are used: text run as code, other processes, and everything there is, by name.
BUILTINS_THAT_RUN_TEXT = {"eval", "exec", "compile", "globals", "locals", "vars", "__builtins__", "__loader__"}
RUNS_ANYTHING = {
    "ctypes",
    "code",
    "codeop",
    "gc.get_objects",
    "gc.get_referents",
    "gc.get_referrers",
    "imp",
    "importlib.abc",
    "importlib.machinery",
    "importlib.util",
    "marshal",
    "multiprocessing",
    "os.exec*",
    "os.popen",
    "os.posix_spawn*",
    "os.spawn*",
    "os.system",
    "pickle",
    "pkgutil",
    "subprocess",
    "sys.modules",
    "zipimport",
}
DUNDERS = {"__dict__", "__globals__", "__getattribute__", "__subclasses__", "__wrapped__"}

# (module, what it uses, and all below it): why it may.
ALLOWED = {
    ("tools.gate", "tools.children"): "The gate itself.",
    ("tools.children", "tools.child.LENGTH"): "The frames' format, which both ends share.",
    ("tools.children", "subprocess"): "Starts the nursery.",
    ("tools.children", "'tools.child'"): "The nursery's module.",
    ("tools.child", "importlib.import_module"): "Imports the tools; it is the process they run in.",
    ("tools.child", "getattr"): "Finds a tool in its module; it is the process they run in.",
    ("tools.child", "ctypes"): "Asks the kernel to end it with the nursery.",
    ("tools.apps", "'agent_tools'"): "Autodiscovery imports every app's tools, so that they register; it keeps none.",
    ("tools.registry", "_signature"): "Makes the schema.",
    ("tools.management.commands.tools", "getattr"): "One of its own actions, as argparse has them.",
    ("nanohost.accounts.management.commands.keys", "getattr"): "One of its own actions, as argparse has them.",
    ("agent.llm", "importlib.import_module"): "A provider, from the table that stands above it.",
    ("agent.llm", "getattr"): "A provider, from the table that stands above it.",
}


@dataclass(frozen=True)
class Way:
    """A way to a tool: where it stands, and what it reaches or is done with."""

    line: int
    what: str


def ways_around(source: str, *, module: str, is_package: bool = False) -> list[Way]:
    """Every way to a tool in the source of ``module`` (its dotted name), the allowed ones included."""
    tree = ast.parse(source)
    names = _names(tree, module if is_package else module.rpartition(".")[0])
    parents, docstrings = _parents(tree), _docstrings(tree)
    found = {way for node in ast.walk(tree) for way in _ways_at(node, names, parents, docstrings)}
    return sorted(found, key=lambda way: (way.line, way.what))


def forbidden(source: str, *, module: str, is_package: bool = False) -> list[Way]:
    """Those that the list above does not allow."""
    found = ways_around(source, module=module, is_package=is_package)
    return [way for way in found if not _allowing(module, way)]


def _allowing(module: str, way: Way) -> list[tuple[str, str]]:
    return [(allowed, what) for allowed, what in ALLOWED if allowed == module and _matches(way.what, what)]


# --- the walk ----------------------------------------------------------------------------------------------------


def _names(tree: ast.AST, package: str) -> dict[str, str]:
    """What each imported name stands for, and each name that is given to something imported."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                names[each.asname or each.name.split(".")[0]] = each.name if each.asname else each.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom):
            for each in node.names:
                names[each.asname or each.name] = f"{_imported_from(node, package)}.{each.name}"
    for _ in range(3):  # a name for a name for a name
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) and node.value:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                path = _path(node.value, names)
                names |= {target.id: path for target in targets if path and isinstance(target, ast.Name)}
    return names


def _imported_from(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    above = package.split(".")[: len(package.split(".")) - node.level + 1]
    return ".".join([*above, *([node.module] if node.module else [])])


def _path(node: ast.AST | None, names: dict[str, str]) -> str:
    """The dotted path an expression stands for; empty for one that stands for none."""
    if isinstance(node, ast.Name):
        return names.get(node.id, "")
    if isinstance(node, ast.Attribute):
        path = _path(node.value, names)
        return f"{path}.{node.attr}" if path else ""
    if isinstance(node, ast.Call):
        loads, literal = _last(node.func, names), _literals(node)
        if loads in LOADERS and literal:
            return literal[0]
        if loads == "getattr" and literal and (path := _path(node.args[0], names)):
            return f"{path}.{literal[0]}"
    return ""


def _last(node: ast.AST, names: dict[str, str]) -> str:
    """The last part of a name or an attribute, as it was called where it came from."""
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id).rpartition(".")[2]
    return node.attr if isinstance(node, ast.Attribute) else ""


def _literals(call: ast.Call) -> list[str]:
    return [each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]


def _parents(tree: ast.AST) -> dict[ast.AST, ast.AST]:
    return {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}


def _docstrings(tree: ast.AST) -> set[ast.AST]:
    """Texts that stand alone, and do nothing."""
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}


def _ways_at(
    node: ast.AST, names: dict[str, str], parents: dict[ast.AST, ast.AST], docstrings: set[ast.AST]
) -> Iterator[Way]:
    line = getattr(node, "lineno", 0)
    if isinstance(node, ast.Import):
        yield from (Way(line, each.name) for each in node.names if _leads_to_a_tool(each.name))
    elif isinstance(node, ast.ImportFrom):
        for each in node.names:
            path = names[each.asname or each.name]
            if _leads_to_a_tool(path) or (each.name == "*" and path.split(".")[0] == "tools"):
                yield Way(line, path)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings:
        if _names_a_tool(node.value):
            yield Way(line, repr(node.value))
    elif isinstance(node, ast.Name | ast.Attribute):
        yield from (Way(line, what) for what in _uses(node, names, parents.get(node)))
    elif isinstance(node, ast.Call):
        function, path = _last(node.func, names), _path(node, names)
        if function == "getattr" and _leads_to_a_tool(path):
            yield Way(line, path)
        parts = {part for text in _literals(node) for part in text.split(".")}
        if function in LOADERS | GETTERS and {"children", "child"} & parts:
            yield Way(line, "children")


def _leads_to_a_tool(path: str) -> bool:
    parts = path.split(".")
    return bool(LEADS_TO_A_TOOL & set(pairwise(parts)) or IS_A_TOOLS_OWN & set(parts))


def _names_a_tool(text: str) -> bool:
    """Whether a text could be a name by which something loads or gets what leads to a tool."""
    dotted = text.replace(":", ".").replace("/", ".").removesuffix(".py").strip(".")
    if not all(part.isidentifier() for part in dotted.split(".")):
        return "tools.child" in text or "agent_tools" in text
    parts = set(dotted.split("."))
    return bool({"_tools", *IS_A_TOOLS_OWN} & parts or (len(parts) > 1 and {"children", "child"} & parts))


def _uses(node: ast.Name | ast.Attribute, names: dict[str, str], parent: ast.AST | None) -> Iterator[str]:
    path, last = _path(node, names), _last(node, names)
    if path and _leads_to_a_tool(path):
        yield path
    if isinstance(node, ast.Attribute) and last in DUNDERS | {"_signature"}:
        yield last
    if isinstance(node, ast.Name) and last in BUILTINS_THAT_RUN_TEXT and names.get(node.id, last) == last:
        yield last
    if any(_matches(path, pattern) for pattern in RUNS_ANYTHING) or path.startswith("builtins."):
        yield path
    is_called = isinstance(parent, ast.Call) and parent.func is node
    if last in LOADERS | GETTERS and not (is_called and _name_is_written(parent, last)):
        yield path or last


def _name_is_written(call: ast.Call, function: str) -> bool:
    """Whether all that is loaded or got stands there as a text; that text is looked at where it stands."""
    named = call.args[1:2] if function == "getattr" else call.args
    texts = [each for each in named if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return bool(named) and len(texts) == len(named) and not call.keywords


def _matches(path: str, pattern: str) -> bool:
    if pattern.endswith("*"):
        return path.startswith(pattern[:-1])
    return path == pattern or path.startswith(f"{pattern}.")


# --- the product -------------------------------------------------------------------------------------------------


def product() -> Iterator[tuple[str, bool, str]]:
    """Each module of the product: its name, whether it is a package, its source."""
    for part in PRODUCT:
        for file in sorted((ROOT / part).rglob("*.py")) if not part.endswith(".py") else [ROOT / part]:
            yield *_module_of(file), file.read_text()


def _module_of(file: Path) -> tuple[str, bool]:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return (".".join(parts[:-1]), True) if parts[-1] == "__init__" else (".".join(parts), False)


def test_nothing_but_the_gate_can_run_a_tool():
    found = {
        f"{module}:{way.line} {way.what}"
        for module, is_package, source in product()
        for way in forbidden(source, module=module, is_package=is_package)
    }
    assert not found


def test_what_is_allowed_is_there():
    used = {
        allowed
        for module, is_package, source in product()
        for way in ways_around(source, module=module, is_package=is_package)
        for allowed in _allowing(module, way)
    }
    assert used == set(ALLOWED), "an entry that allows nothing any more would allow a new bypass"


def test_the_walk_sees_the_product():
    assert {"tools.gate", "tools.children", "conversations.turns", "agent.llm", "manage"} <= {
        module for module, _, _ in product()
    }


# --- the walk itself, seen red and green -------------------------------------------------------------------------

BYPASSES = [
    "import tools.children",
    "import tools.child as runner\nrunner.run({})",
    "from tools import children",
    "from tools import children as harmless",
    "from tools.children import pool",
    "from tools.child import run",
    "def later():\n    from tools.children import pool",
    "from tools import *",
    "from tools.gate import *",
    "from tools.gate import pool",
    "from tools.gate import Task as Job",
    "from tools import gate\ngate.pool().run(task, still_wanted=bool)",
    "from tools import gate as door\nrunner = door\nrunner.pool()",
    "import tools.gate\ntools.gate.pool()",
    "import tools\ntools.children.pool()",
    "import conversations.worker\nconversations.worker.gate.pool()",
    "from tools import gate\ngetattr(gate, 'pool')()",
    "from tools import gate\ngetattr(gate, 'po' + 'ol')()",
    "from tools import gate\nvars(gate)['pool']()",
    "from tools import gate\ngate.__dict__['pool']()",
    "from tools import gate\ngate.run.__globals__['pool']()",
    "import operator, tools\noperator.attrgetter('children.pool')(tools)()",
    "import importlib\nimportlib.import_module('tools.children')",
    "import importlib\nimportlib.import_module('tools.' + 'children')",
    "import importlib\nimportlib.import_module(name)",
    "import importlib\nimportlib.import_module('.children', 'tools')",
    "import importlib\nimportlib.import_module(name='tools.children')",
    "import importlib\nimportlib.import_module('tools').children.pool()",
    "import importlib\nload = importlib.import_module\nload(name)",
    "import importlib\nlist(map(importlib.import_module, names))",
    "import importlib\ngetattr(importlib.import_module('tools'), 'children')",
    "import importlib.util\nimportlib.util.spec_from_file_location('x', path)",
    "from importlib import import_module as load\nload(name)",
    "__import__('tools.children')",
    "__import__(name)",
    "import builtins\nbuiltins.__import__(name)",
    "from django.utils.module_loading import import_string\nimport_string('tools.children.pool')",
    "from django.utils.module_loading import import_string\nimport_string(path)",
    "from django.utils.module_loading import autodiscover_modules\nautodiscover_modules('agent_tools')",
    "exec('import tools.children')",
    "eval(text)",
    "import runpy\nrunpy.run_module('tools.child')",
    "import runpy\nrunpy.run_path(path)",
    "import pkgutil\npkgutil.resolve_name('tools.children:pool')",
    "import sys\nsys.modules['tools.children'].pool()",
    "from sys import modules\nmodules[name]",
    "import subprocess, sys\nsubprocess.run([sys.executable, '-m', 'tools.child', '3'])",
    "import os\nos.system('python -m tools.child')",
    "import os\nos.execv('python', ['python', 'tools/child.py'])",
    "import gc\ngc.get_objects()",
    "from tools.agent_tools import time\ntime()",
    "from tools import agent_tools",
    "import scheduler.agent_tools",
    "from tests.toolbox import agent_tools",
    "from tools import registry\nregistry.get('time')._signature()",
    "from tools import registry\ngetattr(registry.get('time'), '_signature')()",
    "from tools import registry\nregistry._tools['time']",
]


@pytest.mark.parametrize("source", BYPASSES)
def test_a_planted_bypass_is_found(source):
    assert forbidden(source, module="conversations.planted")


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("tools.calls", "from . import children"),
        ("tools.calls", "from .children import pool"),
        ("tools.management.commands.tools", "from ...children import pool"),
        ("tools.gate", "from tools.agent_tools import time"),
        ("tools.gate", "from tools.child import run"),
        ("tools.children", "from tools.child import run"),
        ("tools.apps", "from tools.agent_tools import time"),
        ("tools.registry", "import importlib\nimportlib.import_module(name)"),
    ],
)
def test_a_bypass_planted_in_the_tools_app_is_found(module, source):
    assert forbidden(source, module=module)


@pytest.mark.parametrize(
    "source",
    [
        "from tools import gate\ngate.run(call_id, agent_tools=tools_of, worker='w', then=ring)",
        "from tools.gate import AgentTools\nagent_tools = AgentTools(names=None)\nagent_tools.include('time')",
        "from tools.registry import tool\n@tool()\ndef f() -> str:\n    'Runs in tools.children.'",
        "from tools import registry\nregistry.names()",
        "import importlib\nimportlib.import_module('json').dumps({})",
        "from django.utils.module_loading import import_string\nimport_string('django.utils.timezone.now')",
        "getattr(settings, 'DEBUG', False)",
        "import re\nre.compile('x')",
        "children = []\nchildren.append(node.children)",
        "log.info('its children have ended')\nbody = {'children': []}",
        "connections = pool.run(task)\nself.pool.run(task)",
        "import os, sys\nos.environ['PATH']\nsys.exit(1)",
    ],
)
def test_what_is_innocent_is_not_reported(source):
    assert not forbidden(source, module="conversations.planted")
