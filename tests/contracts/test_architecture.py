"""The layers, in every spelling that imports do not show; and other promises a reader of the source can check."""

import ast
import re
from pathlib import Path

import pytest
from django.apps import apps

from conversations.events.kinds import EventKind
from conversations.statuses import WaitingFor
from tests.support.sources import PACKAGES, PROJECT, ROOT, product_modules, tracked_files

pytestmark = pytest.mark.shapeless(reason="it reads the source")

# From the top to the bottom, as import-linter has them; a line may hold several modules of one height.
LAYERS = [line.split(" : ") for line in PROJECT["tool"]["importlinter"]["contracts"][0]["layers"]]
HEIGHT = {module: -depth for depth, line in enumerate(LAYERS) for module in line}

# Which functions take the name of an app, a module or a task, so that even a bare name counts.
_TAKES_A_NAME = {
    *("get_model", "get_app_config", "is_installed", "ForeignKey", "OneToOneField", "ManyToManyField"),
    *("import_module", "import_string", "find_spec", "__import__"),
    *("send_task", "signature", "subtask", "Signature"),
}


def layer_of(dotted: str) -> str | None:
    """The layer a dotted name stands in: ``conversations.Turn`` in conversations, ``nanohost.lib.ids`` in lib."""
    parts = dotted.split(".")
    found = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    # App labels: what Django calls an app of nanohost's own.
    return next((name for name in found if name in HEIGHT), {"accounts": "nanohost.accounts"}.get(parts[0]))


def names_in(source: str) -> list[tuple[int, str]]:
    """What the strings of a source may refer to, with their lines: dotted names, and bare names where one is taken."""
    tree = ast.parse(source)
    prose = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    named = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            if re.fullmatch(r"[A-Za-z_]\w*\.[\w.]*\*?", node.value):  # also the start of an f-string
                named.append((node.lineno, node.value.strip(".*")))
        elif isinstance(node, ast.Call):
            function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if function in _TAKES_A_NAME:
                given = [*node.args, *(keyword.value for keyword in node.keywords)]
                named += [(node.lineno, each.value) for each in given if isinstance(each, ast.Constant)]
        elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in ("dependencies", "run_before"):
            named += [(each.lineno, each.elts[0].value) for each in getattr(node.value, "elts", ()) if _is_pair(each)]
    return [(line, name) for line, name in named if isinstance(name, str)]


def _is_pair(node: ast.AST) -> bool:
    return isinstance(node, ast.Tuple) and isinstance(node.elts[0], ast.Constant)


def upward(module: str, source: str) -> list[str]:
    """The references in a module's strings that point to a layer above it."""
    here = layer_of(module)
    found = []
    for line, name in names_in(source):
        there = layer_of(name)
        if here and there and HEIGHT[there] > HEIGHT[here]:
            found.append(f"{module}, line {line}: {name!r} is above {here}")
    return found


def test_nothing_points_upward_in_a_string():
    assert [line for module, path in product_modules() for line in upward(module, path.read_text())] == []


@pytest.mark.parametrize(
    "planted",
    [
        'turn = models.ForeignKey("conversations.Turn", models.CASCADE)',
        'turn = models.OneToOneField(to="conversations.turn", on_delete=models.CASCADE)',
        'Turn = apps.get_model("conversations", "Turn")',
        'Turn = apps.get_model("conversations.Turn")',
        'apps.get_app_config("conversations")',
        'import_module("conversations.engine.turns")',
        'import_module("conversations")',
        'import_string("scheduler.tasks.retention")',
        '__import__("agent")',
        'current_app.send_task("conversations.tasks.advance_turn")',
        'current_app.signature("conversations.tasks.advance_turn").delay()',
        'TASK = "conversations.tasks.advance_turn"',
        'name = f"conversations.{module}"',
        'ROUTES = {"scheduler.tasks.*": {}}',
        'dependencies = [("conversations", "0001_initial")]',
        'urls = include("nanohost.urls")',
        'importlib.import_module(".turns", package="conversations")',
    ],
)
def test_what_points_upward_is_seen(planted):
    assert upward("tools.planted", planted)


@pytest.mark.parametrize(
    "allowed",
    [
        'tool = models.ForeignKey("tools.ToolCall", models.CASCADE)',
        '"""About conversations.Turn."""',
        'labels = {"agent": 1}',
        'help_text="What conversations. are."',
        'import_module("nanohost.lib.ids")',
        'logging.getLogger("nanohost.model")',
    ],
)
def test_what_points_downward_or_is_prose_is_left_alone(allowed):
    assert upward("tools.planted", allowed) == []


def test_every_module_of_nanohost_stands_in_a_layer():
    """What import-linter does not know, it does not hold to anything."""
    parts = {path.stem if path.is_file() else path.name for path in (ROOT / "nanohost").iterdir()}
    parts = {f"nanohost.{part}" for part in parts - {"__init__", "__pycache__"}}
    assert parts - {"nanohost.accounts", "nanohost.lib"} == set(LAYERS[0])


def kinds_of_events_in(source: str) -> list[str]:
    """The kinds of events that a source spells out, instead of taking them from their enumeration."""
    tree = ast.parse(source)
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return [kind for kind in EventKind for text in texts if id(text) not in prose and kind in text.value]


def test_kinds_of_events_are_spelt_out_in_one_module():
    modules = {module: kinds_of_events_in(path.read_text()) for module, path in product_modules()}
    assert sorted(modules.pop("conversations.events.kinds")) == sorted(EventKind)
    assert {module: found for module, found in modules.items() if found} == {}


@pytest.mark.parametrize(
    "planted", ['publish(turn_id, "turn.started")', "_PUBLISH = \"if x then tell('message.reset')\""]
)
def test_a_kind_of_event_that_is_spelt_out_elsewhere_is_seen(planted):
    assert kinds_of_events_in(planted)


# --- docs/architecture.md ----------------------------------------------------------------------------------------

PAGE = (ROOT / "docs" / "architecture.md").read_text()


def functions_of(path: Path) -> set[str]:
    """The functions of a module, and the methods of its classes as ``Class.method``."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            methods = (each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
            found |= {f"{node.name}.{method.name}" for method in methods}
    return found


def missing_from_the_code(page: str) -> list[str]:
    """The modules a page names that there are not, and the functions that are not in the module named before them."""
    missing, module = [], ""
    for path, function in re.findall(r"`(?:([\w/]+/\w+\.py)|([\w.]+)\(\))`", page):
        if path:
            module = path
            if not (ROOT / path).is_file():
                missing.append(path)
        elif module in missing or function not in functions_of(ROOT / module):
            missing.append(f"{module}: {function}()")
    return missing


def test_every_module_and_function_of_the_page_exists():
    ways = re.findall(r"^## (The way of .+)\n((?:(?!## ).*\n)+)", PAGE, re.MULTILINE)
    assert [name for name, _ in ways] == ["The way of a message", "The way of a tool call", "The way of a schedule"]
    for _, way in ways:
        assert len(re.findall(r"^\d+\. .*`", way, re.MULTILINE)) >= 8
        assert len(way.splitlines()) <= 40  # a screen
    assert missing_from_the_code(PAGE) == []


@pytest.mark.parametrize(
    ("page", "missing"),
    [
        ("`tools/gat.py`: `run()`", ["tools/gat.py", "tools/gat.py: run()"]),
        ("`tools/gate.py`: `ran()`", ["tools/gate.py: ran()"]),
        ("`tools/gate.py`: `run()` and `claim()`", ["tools/gate.py: claim()"]),
        ("`tools/sandbox/children.py`: `run()`", ["tools/sandbox/children.py: run()"]),  # it is ChildPool's
    ],
)
def test_what_the_page_names_and_there_is_not_is_seen(page, missing):
    assert missing_from_the_code(page) == missing


def files_named_in(page: str) -> set[str]:
    """The files that a page names, from the root on."""
    return set(re.findall(r"`([\w.-]+(?:/[\w.-]+)*\.(?:py|js|yml|md))`", page))


def test_every_file_that_contributors_are_sent_to_exists():
    page = (ROOT / "docs" / "contributing.md").read_text()
    assert len(re.findall(r"^\*\*[^*]+\.\*\*", page, re.MULTILINE)) == 13
    named = files_named_in(page) - {"admin.py", "agent_tools.py", "serializers.py", "api/views.py"}
    assert len(named) > 40
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []


def test_every_room_of_conversations_is_on_the_page():
    rooms = re.findall(r"^\| `(\w+)/` \|", PAGE, re.MULTILINE)
    assert sorted([*rooms, "management", "migrations", "models"]) == sorted(
        path.parent.name for path in (ROOT / "conversations").glob("*/__init__.py")
    )


def test_every_dependency_has_its_reason():
    reasons = (ROOT / "docs/decisions/dependencies.md").read_text()
    wanted = [PROJECT["project"]["dependencies"], *PROJECT["dependency-groups"].values()]
    names = {re.match(r"[A-Za-z0-9_-]+", each).group() for group in wanted for each in group}
    assert set(re.findall(r"^- \*\*(.+?)\*\*: .+", reasons, re.MULTILINE)) == names


def test_the_lock_files_name_versions_and_hashes_and_no_address():
    for name in ("requirements.txt", "requirements-dev.txt", "requirements-mutants.txt", "requirements-clients.txt"):
        lock = (ROOT / name).read_text()
        pinned = re.findall(
            r"^([A-Za-z0-9_.\[\]-]+)==\S+.*\\\n((?:    --hash=sha256:[0-9a-f]{64}.*\n)+)", lock, re.MULTILINE
        )
        assert len(pinned) == len(re.findall(r"^[A-Za-z0-9]", lock, re.MULTILINE)) > 20
        assert not re.search(r"://|--(extra-)?index-url|--find-links", lock)


def test_no_file_tells_where_it_was_made():
    forbidden = re.compile(
        "|".join(
            (
                "py" + r"pi\.(org|python)",
                "python" + "hosted",
                "/" + "work/",
                r"\b[Ii]ssue" + r"s? ?#?\d",
                r"(^|[\s(])#\d+\b",
            )
        )
    )
    found = []
    for path in tracked_files():
        if "vendor" in path.parts:  # other people's files, as they are
            continue
        for number, line in enumerate(path.read_text(errors="replace").split("\n"), 1):
            if forbidden.search(line):
                found.append(f"{path.relative_to(ROOT)}, line {number}: {line[:100]}")
    assert found == []


# Fields whose names say all there is to say.
_SAYS_IT_ALL = {
    *("id", "owner", "agent", "conversation", "conversation_id", "turn", "turn_id", "request_id", "worker"),
    *("created_at", "updated_at", "started_at", "ended_at", "heartbeat_at", "lease_until", "duration_ms"),
    *("name", "version", "status", "waiting_for", "cancel_requested", "error_code"),
    *("role", "type", "content", "tool_name", "prompt_tokens", "completion_tokens"),
}


def test_every_field_people_see_explains_itself():
    ours = [model for model in apps.get_models() if model.__module__.split(".")[0] in PACKAGES]
    silent = [
        f"{model.__name__}.{field.name}"
        for model in ours
        for field in model._meta.fields
        if not field.help_text and field.name not in _SAYS_IT_ALL
    ]
    assert silent == []


def test_the_page_names_all_that_a_turn_waits_for():
    page = (ROOT / "docs" / "architecture.md").read_text()
    (named,) = re.findall(r"⇄ waiting \(([^)]+)\)", page)
    # Of a queued turn the intake is told, not of a waiting one.
    assert set(named.split(" | ")) == set(WaitingFor) - {WaitingFor.INTAKE}
