"""Rules of rooms that imports do not show: where a page of the console stands, and who renders for an API."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.support.sources import PACKAGES, PROJECT, ROOT, product_modules

pytestmark = pytest.mark.shapeless(reason="it reads the source")

CONSOLE = "nanohost.console"

# From the top to the bottom.
APPS = [line for line in PROJECT["tool"]["importlinter"]["contracts"][0]["layers"] if line in PACKAGES]


# --- one home for pages ------------------------------------------------------------------------------------------
#
# The page of a model is in the `admin` of its app, or of an app above that has what the page shows beside it. Pages of
# the whole house, and those of models that are not ours or are accounts, are in the console. The console may take the
# place of an app's page (`admin.site.unregister`) where that shows what only the whole house knows.


def registered(source: str) -> Iterator[tuple[str, str]]:
    """The models that a source registers a page of, each with the module that it is imported from."""
    tree = ast.parse(source)
    origin = {
        name.asname or name.name: node.module or ""
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "register":
            if not ast.unparse(node.func).startswith("admin."):
                continue
            for model in ast.walk(node.args[0]):
                if isinstance(model, ast.Name):
                    yield model.id, origin.get(model.id, "")


def misplaced_pages(module: str, source: str) -> list[str]:
    """The models whose pages a module registers though they have their home elsewhere."""
    app, replaced = module.split(".")[0], set(re.findall(r"admin\.site\.unregister\((?:\[)?(\w+)", source))
    found = []
    for model, origin in registered(source):
        owner = origin.split(".")[0]
        if module.startswith(CONSOLE):
            is_at_home = owner not in APPS or model in replaced
        else:
            is_at_home = "admin" in module.split(".") and owner in APPS and APPS.index(app) <= APPS.index(owner)
        if not is_at_home:
            found.append(f"{module}: {model}")
    return found


def pages_elsewhere(urls: str) -> list[str]:
    """The addresses below /admin/ that lead to what is not the console's."""
    routes = re.findall(r'path\("(admin/[^"]*)", ([^\n]+)', urls)
    return [
        path for path, target in routes if not re.match(rf'include\("{CONSOLE}\.|admin\.site\.urls|first_run\.', target)
    ]


def test_each_page_of_a_model_has_its_home():
    pages = [(module, path.read_text()) for module, path in product_modules()]
    assert sum(len([*registered(source)]) for _, source in pages) > 40
    assert [page for module, source in pages for page in misplaced_pages(module, source)] == []


def test_each_page_of_the_whole_house_is_the_consoles():
    urls = (ROOT / "nanohost" / "urls.py").read_text()
    assert urls.count('path("admin/') > 8
    assert pages_elsewhere(urls) == []


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("conversations.engine.turns", "@admin.register(Turn)\nclass A: pass"),
        ("nanohost.console.turns", "@admin.register(Turn)\nclass A: pass"),
        ("memory.admin", "@admin.register(Turn)\nclass A: pass"),
    ],
)
def test_a_page_elsewhere_is_seen(module, line):
    assert misplaced_pages(module, f"from conversations.models import Turn\n{line}") == [f"{module}: Turn"]


def test_an_address_that_leads_elsewhere_is_seen():
    assert pages_elsewhere('path("admin/turns/", include("conversations.web.turns")),') == ["admin/turns/"]


# --- the engine renders for no API -------------------------------------------------------------------------------
#
# An API's names are in `api`, `openai_api`, `events` and `deliveries`; the engine has them rendered there.

# By module of the engine: what is stored in this form, so that it is not a rendering. It may only shrink.
STORED: dict[str, set[str]] = {
    "between_agents": {"spawnedIn"},  # a conversation's metadata
    "frozen": {"promptTokens", "completionTokens", "modelCalls"},  # the same of its original
    "grading": {"replayId", "turnId", "sameWords", "runId"},  # a run's report
    "outgoing": {"messageId"},  # a delivery's data
    "replayer": {"promptTokens", "completionTokens", "modelCalls"},  # a replay's result
    "turns": {"requestId"},  # a log line's
}


def names_of_an_api(source: str) -> set[str]:
    """The keys in camel case that a source writes into dictionaries."""
    keys = (key for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Dict) for key in node.keys)
    texts = {key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}
    return {text for text in texts if re.fullmatch(r"[a-z]+(?:[A-Z][a-z]+)+", text)}


def test_the_engine_renders_for_no_api():
    modules = [(name, path) for name, path in product_modules() if name.startswith("conversations.engine.")]
    found = {name.rpartition(".")[2]: names_of_an_api(path.read_text()) for name, path in modules}
    assert {name: names for name, names in found.items() if names} == STORED


def test_a_rendering_is_seen():
    assert names_of_an_api('told = {"turnId": 1, "status": 2}') == {"turnId"}
