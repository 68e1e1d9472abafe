"""Standard terms, so that whoever searches finds: words that were replaced do not come back, in code or in texts."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.sources import ROOT, product_modules, tracked_files

pytestmark = pytest.mark.shapeless(reason="it reads the source")

# What is not written any more, as a pattern of words, and what is said instead. In names, underscores part words.
INSTEAD = {
    r"ring|rings|ringing|rang|rung": "notify, notification, notified_at",
    r"(?:hand|hands|handed|handing) back": "release",
    r"(?:put|puts|putting) off": "reschedule",
    r"(?:stand|stands|stood) back": "reschedule",
    r"to be had": "claimable, available",
    r"suspects?": "poison turn",
    r"waiting room": "response gateway",
    r"nursery|lifeline|bury|buries|buried": "fork server, liveness socket, reap",
    r"follower|farewell|outlook": "subscriber, unsubscribe, step context",
    r"house jobs?": "system job",
    r"misfits?": "InvalidArguments",
    r"what keeps": "why it is blocked; which sandbox",
    r"(?-i:MOST [A-Z]\w*)": "MAX_…",
    r"(?-i:LaterMessage\w*)": "DeferredMessage",
}

# Where such a word still stands, and has to: names that a database or people's settings have. It may only shrink.
STILL_THERE: dict[str, set[str]] = {
    "conversations/api/serializers.py": {"latermessageview"},  # a name of the API's schema
    "nanohost/lib/lease.py": {"rung"},  # a column
    "tests/host/test_migrations.py": {"latermessage"},  # a model, as the last release had it
    "tests/support/bulk.py": {"rung"},
    # The setting MEMORY_MOST_DROPPED.
    "docker-compose.yml": {"most dropped"},
    "docs/memory.md": {"most dropped"},
    "docs/settings.md": {"most dropped"},
    "memory/documents.py": {"most dropped"},
    "nanohost/settings.py": {"most dropped"},
    "tests/unit/memory/test_memory_documents.py": {"most dropped"},
}

# History tells of what was, in the words of its time.
HISTORY = ("CHANGELOG.md", "docs/decisions/", "benchmarks/")

_WORDS = re.compile(rf"(?<![^\W_])(?:{'|'.join(INSTEAD)})(?![^\W_])", re.IGNORECASE)


def replaced_words_in(text: str) -> Iterator[str]:
    """The words of a text that were replaced, each in lower case."""
    yield from (found[0].lower() for found in _WORDS.finditer(text.replace("_", " ")))


def texts() -> Iterator[tuple[str, Path]]:
    """What people read and search: code, texts and pages, without history and what other people wrote."""
    for path in tracked_files():
        name = str(path.relative_to(ROOT))
        if path.suffix not in {".py", ".md", ".html", ".js", ".toml", ".yml"} or "/migrations/" in name:
            continue
        if not name.startswith(HISTORY) and "/vendor/" not in name and path != Path(__file__):
            yield name, path


def test_replaced_words_do_not_come_back():
    found = {name: set(replaced_words_in(path.read_text())) for name, path in texts()}
    assert {name: words for name, words in found.items() if words} == STILL_THERE


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("def _ring_in(turn_id):", "ring"),
        ("It is handed back at a stop.", "handed back"),
        ("reply.put_off(hold)", "put off"),
        ("None if it is not to be had.", "to be had"),
        ("_MOST_BYTES = 1", "most bytes"),
        ("What keeps a turn", "what keeps"),
    ],
)
def test_a_word_that_was_replaced_is_seen(text, word):
    assert [*replaced_words_in(text)] == [word]


@pytest.mark.parametrize("text", ["Bring a string.", "the most characters", "put it off the list", "a suspected leak"])
def test_words_that_only_look_like_it_are_left_alone(text):
    assert [*replaced_words_in(text)] == []


# A heartbeat is a worker's; what an agent does by itself is a check-in, but for nanobot's file and the settings.
HEARTBEATS = {
    *("HEARTBEAT_SECONDS", "heartbeat_at"),  # of a worker
    *("HEARTBEAT", "HEARTBEAT_OK", "document_heartbeat"),  # the file, and what is answered where it has nothing to do
    *("HEARTBEAT_MINUTES", "HEARTBEAT_TOKENS_A_DAY"),
}


def names_in(source: str) -> Iterator[str]:
    """The names that a source gives to functions, classes, arguments and values."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name


def heartbeats_in(source: str) -> set[str]:
    return {name for name in names_in(source) if "heartbeat" in name.lower()}


def test_a_heartbeat_is_a_workers():
    sources = [path.read_text() for module, path in product_modules() if ".migrations." not in module]
    assert set().union(*map(heartbeats_in, sources)) == HEARTBEATS


def test_an_agents_heartbeat_is_seen():
    assert heartbeats_in("def start_heartbeat(agent): beat = 1") == {"start_heartbeat"}
