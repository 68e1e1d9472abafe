"""The tests, as their source is read: they enter by what is public, and none imports from another."""

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache

import pytest

from tests.support.sources import ROOT, product_modules

pytestmark = pytest.mark.shapeless(reason="it reads the source")

_PRIVATE = re.compile(r"_(?!_)\w+")

# What still reaches behind the public names, by file. It may only shrink: a name that is used no more is taken out.
STILL_PRIVATE: dict[str, set[str]] = {
    "tests/api/test_stream_readers.py": {"_subscriptions", "_threads"},
    "tests/contracts/test_docs_tools.py": {"_awaiting_schema", "_tools"},
    "tests/engine/test_claims.py": {"_inbox"},
    "tests/engine/test_tasks.py": {"_runtime"},
    "tests/engine/test_worker.py": {"_database", "_heart", "_loop"},
    "tests/host/test_hardening.py": {"_taken"},
    "tests/support/regexes.py": {"_parser"},  # of the standard library's re
    "tests/toolbox/trouble.py": {"_condition", "_has_left_something"},  # what a hostile tool replaces
    "tests/unit/agent/test_llm_connections.py": {"_transport"},
    "tests/unit/agent/test_llm_openai.py": {"_package"},
    "tests/unit/scheduler/test_beat.py": {"_heap"},
    "tests/unit/tools/test_gate.py": {"_tools"},
    "tests/unit/tools/test_inline_tools.py": {"_tools"},
    "tests/unit/tools/test_registry.py": {"_awaiting_schema", "_tools"},
    "tests/unit/tools/test_sandbox.py": {"_houses", "_process"},
}


# Classes of helpers that have the name of one of the product's. It may only shrink.
STILL_SHADOWED: dict[str, set[str]] = {
    "tests/leaks/management/commands/crash.py": {"Command"},  # Django looks for this name
    "tests/support/console_client.py": {"Page"},
    "tests/support/http_peer.py": {"Asked"},
    "tests/support/openai_server.py": {"Reply", "Request"},
    "tests/support/platforms.py": {"Sent"},
    "tests/support/sse.py": {"Told"},
}


@cache
def private_names() -> frozenset[str]:
    """Those of the product's modules, classes and objects."""
    found = set()
    for _, path in product_modules():
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    found.add(name)
                case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                    found.add(name)
    return frozenset(name for name in found if _PRIVATE.fullmatch(name))


def private_uses(source: str) -> Iterator[str]:
    """The product's private names that a test imports, looks up on something other than itself, or patches."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ImportFrom(module=str(module), names=names):
                found = [name.name for name in names] if module.split(".")[0] != "tests" else []
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                found = []
            case ast.Attribute(attr=name):
                found = [name]
            case ast.Call(func=ast.Attribute(attr="setattr" | "delattr") | ast.Name(id="getattr" | "setattr")):
                strings = [each.value for each in node.args if isinstance(each, ast.Constant)]
                found = [each.rpartition(".")[2] for each in strings if isinstance(each, str)]
            case _:
                found = []
        yield from (name for name in found if name in private_names())


def imports_of_tests(source: str) -> Iterator[str]:
    """The test modules that a source imports, or imports from."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ImportFrom(module=str(module), names=names):
                found = [f"{module}.{name.name}" for name in names]
            case ast.Import(names=names):
                found = [name.name for name in names]
            case _:
                found = []
        yield from (name for name in found if re.match(r"tests\.(\w+\.)*test_", name))


def sources() -> dict[str, str]:
    return {str(path.relative_to(ROOT)): path.read_text() for path in sorted((ROOT / "tests").rglob("*.py"))}


def classes_in(source: str) -> set[str]:
    """The classes that a module defines, without those inside others."""
    return {node.name for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}


@cache
def classes_of_the_product() -> frozenset[str]:
    found = (classes_in(path.read_text()) for name, path in product_modules() if ".migrations." not in name)
    return frozenset(name for names in found for name in names if not name.startswith("_"))


def test_helpers_have_names_of_their_own():
    helpers = {name: source for name, source in sources().items() if "/test_" not in name}
    found = {name: classes_in(source) & classes_of_the_product() for name, source in helpers.items()}
    assert {name: names for name, names in found.items() if names} == STILL_SHADOWED


def test_a_shadow_is_seen():
    assert classes_in("class Turn: pass") & classes_of_the_product() == {"Turn"}


def loose(names: Iterable[str]) -> list[str]:
    """The modules that stand in tests/unit itself, beside the folders of what they try."""
    return [name for name in names if re.fullmatch(r"tests/unit/(?!__init__)\w+\.py", name)]


def test_each_unit_test_stands_in_the_folder_of_what_it_tries():
    assert loose(sources()) == []


def test_a_loose_unit_test_is_seen():
    assert loose(["tests/unit/test_x.py", "tests/unit/lib/test_x.py", "tests/unit/__init__.py"]) == [
        "tests/unit/test_x.py"
    ]


def test_no_test_imports_from_another():
    found = {name: sorted(imports_of_tests(source)) for name, source in sources().items()}
    assert {name: imports for name, imports in found.items() if imports} == {}


def test_tests_use_public_names():
    found = {name: set(private_uses(source)) for name, source in sources().items()}
    assert {name: names for name, names in found.items() if names} == STILL_PRIVATE


@pytest.mark.parametrize(
    "planted",
    [
        "from conversations.engine.claims import _claim",
        "claims._claim(turn_id)",
        "runtime.turns._held",
        'monkeypatch.setattr(claims, "_claim", None)',
        'monkeypatch.setattr("conversations.engine.claims._claim", None)',
        'getattr(claims, "_claim")',
    ],
)
def test_a_private_name_is_seen(planted):
    assert [*private_uses(planted)]


@pytest.mark.parametrize("planted", ["self._held = 1", "from tests.support.words import _claim", "Turn._meta.fields"])
def test_ones_own_names_are_left_alone(planted):
    assert [*private_uses(planted)] == []


@pytest.mark.parametrize(
    "planted", ["from tests.engine.test_turns import say", "from tests.engine import test_turns", "import tests.test_x"]
)
def test_an_import_from_a_test_is_seen(planted):
    assert [*imports_of_tests(planted)]
