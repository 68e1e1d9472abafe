"""Nothing but the gate can run a tool: the product's code is walked for every way to what runs one.

What runs tools is :mod:`tools.sandbox.children`, what that uses, and :mod:`tools.inline`; the gate reaches them by a
tool's runner, a value of :mod:`tools.runners`. The tools themselves are functions in modules named ``agent_tools``.
The walk finds whoever names these in an import, an attribute, a pattern or a text, whoever loads or runs code by a name
that is not written there to be read, and whoever starts another process.

This is a tripwire against accident and convenience: the shortcut that a hurried change takes does not pass unseen. It
is no boundary against an author who means to get around it. Whoever may write the product's code can call any function
of the process, in more ways than a walk over its text can list; against those stand review and the tools' own process.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.hosts import ROOT

pytestmark = pytest.mark.shapeless(reason="it reads the source")

PRODUCT = ("nanohost", "conversations", "agent", "tools", "memory", "scheduler", "manage.py")

# Neighbours in a dotted path that lead to a tool, whatever the path begins with.
LEADS_TO_A_TOOL = {("tools", "inline"), ("tools", "runners"), ("gate", "KINDS")}
LEADS_TO_A_TOOL |= {("mcp", "calling"), ("mcp", "keeping"), ("custom", "running"), ("custom", "reading")}
LEADS_TO_A_TOOL |= {("sandbox", name) for name in ("children", "child", "forkserver", "commands")}
# Names by which a tool can be run. As an attribute each is a way whatever it is an attribute of, since the walk cannot
# know what an argument or an item is; only where they are at home they are not.
RUNS_A_TOOL = {"ChildPool", "Child", "ForkServer", "_decide_and_run", "child", "children", "forkserver", "pool"}
RUNS_A_TOOL |= {"AdmittedCall", "InChild", "Inline", "run_admitted", "run_in_child", "run_inline"}
RUNS_A_TOOL |= {"InBox", "run_in_box", "function_of"}
RUNS_A_TOOL |= {"OnMcpServer", "run_on_server", "Keeper", "InWorkspace", "run_custom"}
HOMES = {"tools.gate", "tools.runners", "tools.inline"}
HOMES |= {"tools.sandbox.commands"}
HOMES |= {"tools.mcp.calling", "tools.mcp.keeping", "tools.custom.running", "tools.custom.reading"}
HOMES |= {"tools.sandbox.children", "tools.sandbox.child", "tools.sandbox.forkserver"}
# Names by which a tool's function can be had: a way everywhere.
HAS_TOOLS = {"_awaiting_schema", "_tools", "agent_tools"}
# Those that, alone in a text, say nothing.
PLAIN_WORDS = {"child", "children", "pool"}

# Functions that load code by its name. With the name written there, the name is looked at; else the use is reported.
LOADERS = {
    "__import__",
    "_find_and_load",
    "_gcd_import",
    "autodiscover_modules",
    "exec_module",
    "find_spec",
    "import_from_string",
    "import_module",
    "import_object",
    "import_string",
    "load_module",
    "locate",
    "reload",
    "resolve_name",
    "run_module",
    "run_path",
    "symbol_by_name",
}
# Reaching attributes by a name works the same way.
GETTERS = {"getattr", "attrgetter", "methodcaller", "setattr", "delattr"}
# And so does taking all there is of something, and choosing among it. These are reported however they are used.
TAKES_ALL = {
    "astuple",
    "get_objects",
    "get_referents",
    "get_referrers",
    "getattr_static",
    "getmembers",
    "getmembers_static",
}
# These are reported however they are used: text run as code, other processes, and everything there is, by name.
BUILTINS_THAT_RUN_TEXT = {"eval", "exec", "compile", "globals", "locals", "vars", "__builtins__", "__loader__"}
RUNS_ANYTHING = {
    "_frozen_importlib*",
    "_imp",
    "_posixsubprocess",
    "asyncio.create_subprocess_*",
    "asyncio.subprocess",
    "bdb",
    "billiard",
    "builtins",
    "cProfile",
    "code",
    "codeop",
    "concurrent.futures.ProcessPoolExecutor",
    "concurrent.futures.process",
    "concurrent.interpreters",
    "ctypes",
    "doctest",
    "imp",
    "importlib._*",
    "importlib.abc",
    "importlib.machinery",
    "importlib.util",
    "inspect.currentframe",
    "inspect.getclosurevars",
    "inspect.stack",
    "marshal",
    "multiprocessing",
    "os.exec*",
    "os.fork*",
    "os.popen",
    "os.posix_spawn*",
    "os.spawn*",
    "os.startfile",
    "os.system",
    "pdb",
    "pickle",
    "pkgutil",
    "posix",
    "profile",
    "pty",
    "runpy",
    "subprocess",
    "sys._current_frames",
    "sys._getframe",
    "sys.modules",
    "timeit",
    "trace",
    "zipimport",
}
# What starts a process, whatever it is an attribute of.
STARTS_A_PROCESS = re.compile(
    r"fork(pty)?|(exec|spawn)[lv]p?e?|posix_spawnp?|[pP]open|fork_exec"
    r"|(create_)?subprocess_(exec|shell)|(Process|Interpreter)PoolExecutor"
)
# What an object, a function or a frame is made of.
DUNDERS = {
    "__builtins__",
    "__closure__",
    "__code__",
    "__dict__",
    "__func__",
    "__getattribute__",
    "__globals__",
    "__loader__",
    "__spec__",
    "__subclasses__",
    "__wrapped__",
    "f_builtins",
    "f_globals",
    "f_locals",
}

# (module, what it uses, and all below it): why it may.
ALLOWED = {
    ("tools.gate", "tools.runners"): "The gate itself.",
    ("tools.registry", "tools.runners"): "Gives each tool its runner, and has none run.",
    ("tools.registry", "InChild"): "The same.",
    ("tools.registry", "Inline"): "The same.",
    ("tools.registry", "InBox"): "The same.",
    ("tools.runners", "tools.sandbox.commands"): "Has a call run in a box of its own, for the gate.",
    ("tools.sandbox.commands", "tools.runners"): "Is handed what it runs, as a value.",
    ("tools.sandbox.commands", "tools.inline.function_of"): "Has what says which program is run.",
    ("tools.sandbox.commands", "subprocess"): "Starts the box.",
    ("tools.sandbox.commands", "tools.sandbox.child.children_of"): "Counts the processes of a box.",
    ("tools.sandbox.launch", "os.exec*"): "Becomes the program of a tool or of an MCP server, in its box.",
    ("tools.runners", "tools.sandbox.children"): "Has a call run in a child, for the gate.",
    ("tools.runners", "tools.inline"): "Has a call run in the worker itself, for the gate.",
    ("tools.runners", "tools.mcp.calling"): "Has a call run by an MCP server, for the gate.",
    ("tools.runners", "tools.mcp.keeping"): "Starts and ends the keeper, for the gate.",
    ("tools.mcp.calling", "tools.mcp.keeping"): "Asks the keeper, for the gate.",
    ("tools.mcp.calling", "tools.runners"): "Is handed what it runs, as a value.",
    ("tools.mcp.catalogue", "tools.mcp.keeping"): "Asks which tools a server has, and has none run.",
    ("tools.mcp.catalogue", "tools.runners.OnMcpServer"): "Gives each tool its runner, and has none run.",
    ("tools.mcp.catalogue", "OnMcpServer"): "The same.",
    ("tools.mcp.keeping", "subprocess"): "Starts the keeper.",
    ("tools.mcp.stdio", "asyncio.create_subprocess_*"): "Starts servers' programs, in the keeper.",
    ("tools.mcp.stdio", "asyncio.subprocess"): "The same.",
    ("tools.runners", "tools.custom.running"): "Has a file of a workspace run, for the gate.",
    ("tools.custom.running", "tools.runners"): "Is handed what it runs, as a value.",
    ("tools.custom.running", "tools.custom.reading"): "Has a file run in a child of its own, for the gate.",
    ("tools.custom.catalogue", "tools.custom.reading"): "Has files read in a child, by a function of ours alone.",
    ("tools.custom.catalogue", "tools.runners.InWorkspace"): "Gives each tool its runner, and has none run.",
    ("tools.custom.catalogue", "InWorkspace"): "The same.",
    ("tools.custom.reading", "tools.sandbox.children"): "Has files read and run in a child of their own.",
    ("tools.custom.code", "compile"): "It is the process that a custom tool runs in.",
    ("tools.custom.code", "exec"): "The same.",
    ("tools.custom.code", "sys.modules"): "The same.",
    ("tools.custom.code", "__dict__"): "The same.",
    ("tools.documents.reading", "tools.sandbox.children"): "Has files read in a child, by a function of ours alone.",
    ("tools.documents.reading", "pool"): "The same.",
    ("tools.sandbox.children", "tools.runners"): "Is handed what it runs, as a value.",
    ("tools.inline", "tools.runners"): "The same.",
    ("tools.inline", "importlib.import_module"): "Has a tool's module, which autodiscovery has imported.",
    ("tools.inline", "getattr"): "Finds a tool in its module, for the gate.",
    ("tools.sandbox.children", "tools.sandbox.child.LENGTH"): "The frames' format, which both ends share.",
    ("tools.sandbox.children", "tools.sandbox.forkserver"): "Has children forked, for the gate.",
    ("tools.sandbox.children", "fork"): "Asks the fork server for a child.",
    ("tools.sandbox.forkserver", "tools.sandbox.child.LENGTH"): "The frames' format, which both ends share.",
    ("tools.sandbox.forkserver", "tools.sandbox.child.children_of"): "Counts the processes of a box.",
    ("tools.sandbox.forkserver", "subprocess"): "Starts the fork server.",
    ("tools.sandbox.forkserver", "'tools.sandbox.child'"): "The fork server's module.",
    ("tools.sandbox.child", "importlib.import_module"): "Imports the tools; it is the process they run in.",
    ("tools.sandbox.child", "getattr"): "Finds a tool in its module; it is the process they run in.",
    ("tools.sandbox.child", "os.fork"): "It is the fork server.",
    ("tools.sandbox.child", "sys.modules"): "Sees whether a call has changed what others run by.",
    ("tools.sandbox.child", "vars"): "Sees whether a call has changed what others run by.",
    ("tools.sandbox.child", "__code__"): "The same.",
    ("tools.sandbox.modes", "subprocess"): "Tries the sandbox from inside.",
    ("tools.sandbox.landlock", "ctypes"): "Calls the kernel, where Python has no function.",
    ("tools.sandbox.seccomp", "ctypes"): "Calls the kernel, where Python has no function.",
    ("nanohost.lib.left_out", "sys.modules"): "Keeps libraries from loading others that no host needs.",
    ("nanohost.lib.outages", "sys.modules"): "Asks whether a database's driver is loaded.",
    ("nanohost.lib.process", "ctypes"): "Calls the kernel, where Python has no function.",
    ("tools.apps", "'agent_tools'"): "Autodiscovery imports every app's tools, so that they register; it keeps none.",
    ("tools.apps", "'tools.workspace.agent_tools'"): "The same, of a room that is no app.",
    ("conversations.channels.dialects", "children"): "The pieces of a line, as markdown-it calls them.",
    ("tools.apps", "'tools.skills.agent_tools'"): "The same.",
    ("tools.workspace.beneath", "ctypes"): "Calls the kernel, where Python has no function.",
    ("tools.scaffold", "'agent_tools'"): "Names the file that it writes a new tool to; it imports nothing.",
    ("tools.management.commands.tools", "getattr"): "One of its own actions, as argparse has them.",
    ("nanohost.accounts.management.commands.keys", "getattr"): "One of its own actions, as argparse has them.",
    ("nanohost.stack", "subprocess"): "Starts web, workers and beat, as docker-compose.yml has them.",
    ("manage", "f_globals"): "Names the module a traceback passed through.",
    ("agent.llm", "importlib.import_module"): "A provider, from the table that stands above it.",
    ("conversations.channels.registry", "importlib.import_module"): "A platform, from the table that stands above it.",
    ("conversations.channels.registry", "getattr"): "Its class, from the same table.",
    ("nanohost.console.roles", "getattr"): "Actions of the console's pages, by the names the pages give.",
    ("scheduler.runs", "getattr"): "The columns of a row, from the tuple that stands above it.",
    ("agent.models", "getattr"): "The fields of an agent, from the tuple that stands below it.",
    ("agent.models", "setattr"): "The same.",
    ("tools.mcp.configured", "getattr"): "The fields of a server, from the table that stands above it.",
    ("tools.mcp.configured", "setattr"): "The same.",
    ("agent.llm", "getattr"): "A provider, from the table that stands above it.",
    ("nanohost.settings", "globals"): "The keys of providers, by the names in their table.",
    ("nanohost.management.commands.stack", "getattr"): "The same.",
    ("conversations.events", "django.utils.module_loading.import_string"): "The transport that the settings name.",
    (
        "conversations.engine.worker",
        "django.utils.module_loading.import_string",
    ): "The runner that a kind of work names.",
    ("conversations.kinds", "getattr"): "The setting that a kind of work names.",
    ("conversations.engine.branching", "getattr"): "The columns of a row, from the tuple that stands above it.",
    (
        "conversations.models.conversation",
        "setattr",
    ): "The fields of a row that was updated, by the names its caller gave.",
    ("nanohost.lib.admin", "getattr"): "A column of a row, as its model has it.",
    ("nanohost.lib.statements", "vars"): "Fills the fields of a row, whose names are its columns'.",
    ("nanohost.lib.logs", "vars"): "What a line's caller has added to its record.",
    ("nanohost.lib.postgresql.base", "pool"): "PostgreSQL's pool of connections.",
    ("nanohost.lib.database", "pool"): "The same.",
    ("nanohost.settings", "'psycopg.pool'"): "The name of its log.",
    ("conversations.admin.turn", "vars"): "Keeps with a row what was found out for its page.",
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
    found = {way for node in ast.walk(tree) for way in _ways_at(node, names, parents, docstrings, module)}
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
    node: ast.AST, names: dict[str, str], parents: dict[ast.AST, ast.AST], docstrings: set[ast.AST], module: str
) -> Iterator[Way]:
    line = getattr(node, "lineno", 0)
    reserved = HAS_TOOLS if module in HOMES else HAS_TOOLS | RUNS_A_TOOL
    if isinstance(node, ast.Import | ast.ImportFrom):
        if isinstance(parents.get(node), ast.ClassDef):  # its names become attributes of the class
            yield Way(line, "import in a class")
        for each in node.names:
            path = each.name if isinstance(node, ast.Import) else names[each.asname or each.name]
            if each.name == "*" or _leads_to_a_tool(path, module) or _runs_anything(path):
                yield Way(line, path)
            if isinstance(node, ast.ImportFrom) and each.name in reserved:
                yield Way(line, each.name)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings:
        if _names_a_tool(node.value, reserved):
            yield Way(line, repr(node.value))
    elif isinstance(node, ast.Name | ast.Attribute):
        yield from (Way(line, what) for what in _uses(node, names, parents.get(node), module))
        if isinstance(node, ast.Attribute) and node.attr in reserved:
            yield Way(line, node.attr)
    elif isinstance(node, ast.MatchClass):
        yield from (Way(line, each) for each in node.kwd_attrs if each in reserved or each.startswith("_"))
    elif isinstance(node, ast.Call):
        function, path = _last(node.func, names), _path(node, names)
        if function == "getattr" and _leads_to_a_tool(path, module):
            yield Way(line, path)
        if function in ("setattr", "delattr") and _path(node.args[0], names).startswith("tools."):
            yield Way(line, function)
        parts = {part for text in _literals(node) for part in text.split(".")}
        if function in LOADERS | GETTERS:
            yield from (Way(line, part) for part in PLAIN_WORDS & parts)


def _leads_to_a_tool(path: str, module: str) -> bool:
    """Whether the path has a part that does, or is something private of another module of the tools' app."""
    parts = path.split(".")
    private = parts[0] == "tools" and any(part.startswith("_") for part in parts) and not _matches(path, module)
    return private or "agent_tools" in parts or bool(LEADS_TO_A_TOOL & set(pairwise(parts)))


def _runs_anything(path: str) -> bool:
    return any(_matches(path, each) for each in RUNS_ANYTHING)


def _names_a_tool(text: str, reserved: set[str]) -> bool:
    """Whether a text could be a name by which something loads or gets what leads to a tool."""
    dotted = text.replace(":", ".").replace("/", ".").removesuffix(".py").strip(".")
    if not all(part.isidentifier() for part in dotted.split(".")):
        return "tools.sandbox.child" in text or "agent_tools" in text
    parts = set(dotted.split("."))
    return bool((reserved - PLAIN_WORDS) & parts or (len(parts) > 1 and PLAIN_WORDS & parts))


def _uses(node: ast.Name | ast.Attribute, names: dict[str, str], parent: ast.AST | None, module: str) -> Iterator[str]:
    path, last = _path(node, names), _last(node, names)
    if path and _leads_to_a_tool(path, module):
        yield path
    if isinstance(node, ast.Attribute) and last in DUNDERS:
        yield last
    # Nobody puts anything else in the place of a part of the gate.
    if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load) and path.startswith("tools."):
        yield path
    if isinstance(node, ast.Name) and last in BUILTINS_THAT_RUN_TEXT and names.get(node.id, last) == last:
        yield last
    if _runs_anything(path):
        yield path
    if last in TAKES_ALL or (STARTS_A_PROCESS.fullmatch(last) and (path or isinstance(node, ast.Attribute))):
        yield path or last
    is_called = isinstance(parent, ast.Call) and parent.func is node
    if last in LOADERS | GETTERS and not (is_called and _name_is_written(parent, last)):
        yield path or last


def _name_is_written(call: ast.Call, function: str) -> bool:
    """Whether all that is loaded or got stands there as a text; that text is looked at where it stands."""
    named = call.args[1:2] if function in ("getattr", "setattr", "delattr") else call.args
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


def test_what_runs_a_tool_is_known_by_its_present_name():
    homes = [
        ast.parse((ROOT / "tools" / file).read_text())
        for file in (
            "gate.py",
            "runners.py",
            "inline.py",
            "registry.py",
            "mcp/calling.py",
            "mcp/keeping.py",
            "custom/running.py",
            "sandbox/children.py",
            "sandbox/forkserver.py",
            "sandbox/commands.py",
        )
    ]
    defined = {name for home in homes for name in _defined(home)} | {"agent_tools", "child", "children", "forkserver"}
    assert defined >= RUNS_A_TOOL | HAS_TOOLS, "a name that is no more guards nothing"


def test_every_private_step_from_the_gate_to_a_runner_is_known():
    functions = [node for node in ast.parse((ROOT / "tools/gate.py").read_text()).body if hasattr(node, "name")]
    leading = {"run_admitted"}
    for _ in functions:
        leading |= {each.name for each in functions if any(_last(node, {}) in leading for node in ast.walk(each))}
    assert "run" in leading
    assert {name for name in leading if name.startswith("_")} <= RUNS_A_TOOL


def _defined(tree: ast.Module) -> set[str]:
    """The names that stand at the top of a module, and those of its classes' methods."""
    annotated = {node.target.id for node in tree.body if isinstance(node, ast.AnnAssign)}
    methods = {
        each.name for node in tree.body if isinstance(node, ast.ClassDef) for each in node.body if hasattr(each, "name")
    }
    return annotated | methods | {node.name for node in tree.body if hasattr(node, "name")}


def test_the_walk_sees_the_product():
    assert {"tools.gate", "tools.sandbox.children", "conversations.engine.turns", "agent.llm", "manage"} <= {
        module for module, _, _ in product()
    }


# --- the walk itself, seen red and green -------------------------------------------------------------------------

BYPASSES = [
    "import tools.sandbox.children",
    "import tools.sandbox.child as runner\nrunner.run({})",
    "from tools.sandbox import children",
    "from tools.sandbox import children as harmless",
    "from tools.sandbox.children import pool",
    "from tools.sandbox.child import run",
    "def later():\n    from tools.sandbox.children import pool",
    "from tools import *",
    "from tools.gate import *",
    "from tools.gate import pool",
    "from tools.gate import AdmittedCall as Job",
    "from tools import gate\ngate.pool().run(task, still_wanted=bool)",
    "from tools import gate as door\nrunner = door\nrunner.pool()",
    "import tools.gate\ntools.gate.pool()",
    "import tools\ntools.sandbox.children.pool()",
    "import conversations.engine.worker\nconversations.engine.worker.gate.pool()",
    "from tools import gate\ngetattr(gate, 'pool')()",
    "from tools import gate\ngetattr(gate, 'po' + 'ol')()",
    "from tools import gate\nvars(gate)['pool']()",
    "from tools import gate\ngate.__dict__['pool']()",
    "from tools import gate\ngate.run.__globals__['pool']()",
    "import operator, tools\noperator.attrgetter('sandbox.children.pool')(tools)()",
    "import importlib\nimportlib.import_module('tools.sandbox.children')",
    "import importlib\nimportlib.import_module('tools.sandbox.' + 'children')",
    "import importlib\nimportlib.import_module(name)",
    "import importlib\nimportlib.import_module('.children', 'tools.sandbox')",
    "import importlib\nimportlib.import_module(name='tools.sandbox.children')",
    "import importlib\nimportlib.import_module('tools').sandbox.children.pool()",
    "import importlib\nload = importlib.import_module\nload(name)",
    "import importlib\nlist(map(importlib.import_module, names))",
    "import importlib\ngetattr(importlib.import_module('tools.sandbox'), 'children')",
    "import importlib.util\nimportlib.util.spec_from_file_location('x', path)",
    "from importlib import import_module as load\nload(name)",
    "__import__('tools.sandbox.children')",
    "__import__(name)",
    "import builtins\nbuiltins.__import__(name)",
    "from django.utils.module_loading import import_string\nimport_string('tools.sandbox.children.pool')",
    "from django.utils.module_loading import import_string\nimport_string(path)",
    "from django.utils.module_loading import autodiscover_modules\nautodiscover_modules('agent_tools')",
    "exec('import tools.sandbox.children')",
    "eval(text)",
    "import runpy\nrunpy.run_module('tools.sandbox.child')",
    "import runpy\nrunpy.run_path(path)",
    "import pkgutil\npkgutil.resolve_name('tools.sandbox.children:pool')",
    "import sys\nsys.modules['tools.sandbox.children'].pool()",
    "from sys import modules\nmodules[name]",
    "import subprocess, sys\nsubprocess.run([sys.executable, '-m', 'tools.sandbox.child', '3'])",
    "import os\nos.system('python -m tools.sandbox.child')",
    "import os\nos.execv('python', ['python', 'tools/sandbox/child.py'])",
    "import gc\ngc.get_objects()",
    "from tools.agent_tools import time\ntime()",
    "from tools import agent_tools",
    "import scheduler.agent_tools",
    "from tests.toolbox import agent_tools",
    "from tools import registry\nregistry._tools['time']",
]


# Ways that do not write down what stands before the dangerous name.
BYPASSES += [
    "from tools.inline import run_inline",
    "from tools import inline",
    "from tools.gate import run_inline",
    "from tools.runners import InChild",
    "from tools import runners as harmless",
    "import tools.runners",
    "from tools.gate import KINDS",
    "from tools.registry import Inline",
    "from tools import registry\nregistry.InChild(module=name, qualname=name)",
    "from tools import registry\nregistry.get('time').runner.run_admitted(call)",
    "run = registry.get('time').runner.run_admitted",
    "import operator\noperator.methodcaller('run_admitted', call)(runner)",
    "match tool:\n    case RegisteredTool(runner=Runner(run_admitted=run)):\n        run(call)",
    "from tools.sandbox.children import run_in_child",
    "def f(children):\n    children.run_in_child(runner, call)",
    "def f(g):\n    g.run_inline(tool, {}, caller=somebody)",
    "from tools.gate import _decide_and_run",
    "from .gate import _decide_and_run",
    "from tools import gate\ngate._decide_and_run(call, all_tools)",
    "from tools.calls import _anything",
    "from tools import gate\n[gate][0].pool()",
    "from tools import gate\n{'g': gate}['g'].pool()",
    "def f(g):\n    g.pool()",
    "def f(g):\n    return g._decide_and_run",
    "self.pool.run(task)",
    "class A:\n    from tools import gate\nA.gate.pool()",
    "class A:\n    from importlib import import_module as load\nA.load(name)",
    "class A:\n    from subprocess import run\nA.run(command)",
    "from conversations.engine.worker import pool",
    "from django.apps import apps\napps.get_app_config('tools').module.sandbox.children.pool()",
    "from django.apps import apps\ngetattr(apps.get_app_config('tools').module.sandbox, 'children')",
    "from tools import gate\ngate.admit = lambda name, **_: anything",
    "from tools import gate\nsetattr(gate, name, anything)",
    "from tools import gate\nsetattr(gate, 'admit', anything)",
    "from tools import registry\nregistry._awaiting_schema['time']()",
    "import dataclasses\nfrom tools import registry\ndataclasses.astuple(registry.get('time'))[-1]()",
    "from dataclasses import astuple as members\nmembers(tool)[-1]()",
    "match tool:\n    case RegisteredTool(_signature=f):\n        f()",
    "match gate:\n    case object(pool=p):\n        p()",
    "import inspect\nfrom tools import gate\ndict(inspect.getmembers(gate))['pool']()",
    "import inspect\nfrom tools import gate\ninspect.getattr_static(gate, 'pool')",
    "from inspect import getmembers as look\nlook(gate)",
    "def f(inspector):\n    inspector.getattr_static(gate, name)",
    "import inspect\ninspect.stack()[0]",
    "import sys\nsys._getframe(1).f_globals",
    "import importlib\nimportlib._bootstrap._gcd_import('tools.' + 'children')",
    "from importlib._bootstrap import _gcd_import",
    "spec.loader.exec_module(module)",
    "from os import *",
    "import builtins\n[builtins][0].eval(text)",
    "import gc\n[gc][0].get_referrers(gate)",
]

# Processes: one could be anything, a tool included.
BYPASSES += [
    "import asyncio\nawait_me = asyncio.create_subprocess_exec(python, '-m', module)",
    "import asyncio\nawait_me = asyncio.create_subprocess_shell(command)",
    "from asyncio import create_subprocess_exec as start\nstart(python, '-m', module)",
    "def f(loop):\n    loop.subprocess_exec(protocol, command)",
    "import asyncio.subprocess",
    "from concurrent.futures import ProcessPoolExecutor\nProcessPoolExecutor().submit(function)",
    "import concurrent.futures\nconcurrent.futures.ProcessPoolExecutor()",
    "from concurrent.futures.process import ProcessPoolExecutor as Executor",
    "import multiprocessing\nmultiprocessing.Process(target=function)",
    "from multiprocessing import Process",
    "import billiard",
    "import pty\npty.spawn(command)",
    "from pty import spawn",
    "import subprocess as harmless",
    "from subprocess import Popen",
    "import os\nos.fork()",
    "from os import fork as split",
    "import os\n[os][0].execvpe(python, command, {})",
    "import os\nos.posix_spawn(python, command, {})",
    "import os\nos.spawnlp(os.P_WAIT, python)",
    "import os\nos.popen(command)",
    "import posix\nposix.system(command)",
]


@pytest.mark.parametrize("source", BYPASSES)
def test_a_planted_bypass_is_found(source):
    assert forbidden(source, module="conversations.planted")


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("tools.calls", "from .sandbox import children"),
        ("tools.calls", "from .sandbox.children import pool"),
        ("tools.management.commands.tools", "from ...sandbox.children import pool"),
        ("tools.gate", "from tools.agent_tools import time"),
        ("tools.gate", "from tools.sandbox.child import run"),
        ("tools.sandbox.children", "from tools.sandbox.child import run"),
        ("tools.apps", "from tools.agent_tools import time"),
        ("tools.registry", "import importlib\nimportlib.import_module(name)"),
        ("tools.calls", "from .gate import _decide_and_run"),
        ("tools.calls", "from .inline import run_inline"),
        ("tools.calls", "from .runners import InChild"),
        ("tools.registry", "get('time').runner.run_admitted(call)"),
        ("tools.admin", "registry.get('time').runner.run_admitted(call)"),
        ("tools.gate", "from tools.sandbox.children import pool"),
        ("tools.gate", "from tools.inline import run_inline"),
        ("tools.inline", "import subprocess"),
        ("tools.registry", "def f(g):\n    g.pool()"),
        ("tools.gate", "import subprocess"),
        ("tools.gate", "import os\nos.fork()"),
        ("tools.sandbox.children", "import os\nos.fork()"),
        ("tools.sandbox.children", "import multiprocessing"),
        ("tools.sandbox.child", "import subprocess"),
    ],
)
def test_a_bypass_planted_in_the_tools_app_is_found(module, source):
    assert forbidden(source, module=module)


@pytest.mark.parametrize(
    "source",
    [
        "from tools import gate\ngate.run(call_id, agent_tools=tools_of, worker='w', then=notify)",
        "from tools.gate import AgentTools\nagent_tools = AgentTools(names=None)\nagent_tools.include('time')",
        "from tools.registry import tool\n@tool()\ndef f() -> str:\n    'Runs in tools.sandbox.children.'",
        "from tools import registry\nregistry.names()",
        "import importlib\nimportlib.import_module('json').dumps({})",
        "from django.utils.module_loading import import_string\nimport_string('django.utils.timezone.now')",
        "getattr(settings, 'DEBUG', False)",
        "import re\nre.compile('x')",
        "children = []\nchildren.append(child)",
        "log.info('its children have ended')\nbody = {'children': []}",
        "connections = pool.run(task)\nself._pool.run(task)",
        "app.worker(pool='threads')\nserializers.ListField(child=field)",
        "match answer:\n    case Answer(ok=True, text=text):\n        print(text)",
        "from concurrent.futures import ThreadPoolExecutor\nThreadPoolExecutor(max_workers=4)",
        "from dataclasses import dataclass, replace\nreplace(tool, name='x')",
        "import inspect\ninspect.signature(f)",
        "registry.get('time').schema",
        "import os, sys\nos.environ['PATH']\nsys.exit(1)",
    ],
)
def test_what_is_innocent_is_not_reported(source):
    assert not forbidden(source, module="conversations.planted")
