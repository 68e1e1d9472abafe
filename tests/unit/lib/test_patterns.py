"""Every regular expression, and all of redaction, takes time in proportion to the text, whatever the text is."""

import functools
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from nanohost.lib import redaction, secret_shapes
from nanohost.lib.known_secrets import KnownSecrets
from nanohost.lib.redaction import (
    RedactedPieces,
    is_plain,
    names_a_secret,
    redact,
    redact_head,
    redact_json,
    redact_known,
)
from tests.support.regexes import Attack, attacks_on, everywhere, expressions, grows_too_fast, sources

pytestmark = pytest.mark.shapeless(reason="pure functions")

# What is only known while it is used: tried below, or given nothing from outside.
ELSEWHERE = {
    "nanohost/announcement.py: f'^{re.escape(line)}(\\\\S+)$'",  # what `serve` itself has printed
    "agent/llm/providers.py: f'(?<![a-z0-9]){re.escape(word)}(?![a-z])'",  # one word of the table of providers
    "agent/llm/providers.py: f'{re.escape(word)}(?![a-z0-9])'",
    "nanohost/lib/secret_shapes.py: f'{begins}(?:{behind}){WORDS[begin]}'",
    "nanohost/lib/secret_shapes.py: f'(?x){OTHERS[mark]}'",
}
# Given the last 64 characters of a name.
OF_NAMES = {secret_shapes.NAME.pattern, secret_shapes.MAYBE_NAME.pattern}

SHAPES = [*map(secret_shapes.word, secret_shapes.WORDS), *map(secret_shapes.other, secret_shapes.OTHERS)]


@pytest.mark.timeout(1200)
def test_each_expression_takes_time_in_proportion_to_the_text():
    found = [each for path in sources() for each in expressions(path)]
    assert {where for where, made, _ in found if made is None} == ELSEWHERE
    known = {(made.pattern, made.flags): (where, made, uses) for where, made, uses in found if made}
    assert len(known) > 60
    assert {pattern for pattern, _ in known} >= OF_NAMES
    slow = {
        where: told
        for where, made, uses in known.values()
        if made.pattern not in OF_NAMES
        for use in uses
        if (told := grows_too_fast(functools.partial(use, made), attacks_on(made), of_its_kind(made)))
    }
    assert not slow


def of_its_kind(made: "re.Pattern[Any]") -> Callable[[str], Any]:
    """Makes a text what the expression is for: a text, or bytes."""
    return str if isinstance(made.pattern, str) else str.encode


def test_each_shape_of_secrets_takes_time_in_proportion_to_the_text():
    slow = [told for made in SHAPES if (told := grows_too_fast(functools.partial(everywhere, made), attacks_on(made)))]
    assert not slow


@pytest.mark.parametrize(
    "pattern",
    [
        r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*",  # it let anybody stop a host
        r"<(\s*/?\s*untrusted)",
        r"\r+\n",
    ],
)
def test_an_expression_that_takes_longer_is_found(pattern):
    made = re.compile(pattern)
    assert grows_too_fast(functools.partial(everywhere, made), attacks_on(made))


# --- redaction, from end to end ----------------------------------------------------------------------------------

BY_HAND: list[Attack] = [
    ("", pump, end)
    for pump in (
        *(
            "eyJ-",
            "eyJ",
            "eyJaaaaaaaa.",
            "eyJaaaaaaaa.eyJaaaaaaaa-",
            "-eyJ-sk-",
            "://a:a",
            "://a:a:",
            "://a:@",
            ":\\/\\/a:",
        ),
        *("-----BEGIN ", "-----BEGIN RSA PRIVATE KEY-----", "-----BEGIN PRIVATE KEY-----\n-----END ", "-"),
        *(
            "password=",
            "password='",
            'password="',
            "password=\\",
            'password=\\"',
            "token=",
            "token=.",
            'token="',
            "pass=",
        ),
        *(
            '["cookie","',
            "['cookie', '",
            '[\\"cookie\\",\\"',
            '[\\"cookie\\",\'',
            "cookie: a=';",
            'cookie: a="',
            "cookie: a, ",
        ),
        *("authorization: x ", "authorization: bearer ", "cookie: a=b;", "cookie: a=b,c=d", "secret: a;", "İ", "İeyJ-"),
        *(
            "A_TOKEN=",
            "aToken:",
            "basic a",
            "basic aaaaaaaa",
            "bearer ",
            "bearer a",
            "sig=",
            "sig=a",
            "SG.a",
            "sk-",
            "sk_a",
        ),
        *(
            "nh_a",
            "nh_aaaa_",
            "task-sk-",
            "github_pat_",
            "private",
            "x-api-key",
            "x-goog-",
            "set-cookie",
            "\\",
            '"',
            "a",
        ),
        *("hf_", "hf_a", "hf_hub_download_file_name_", "hvs.a", "eyJaaaaaaaa..", "bearer%20a", "signature=", "&sig="),
        *("://a:a/", "://a:a/a", "://a:1/", "://aaaaaaaaaaaaaaaa", ":\\/\\/a:a\\/", "://a:", "a:a/"),
        *(
            "password: |\n  ",
            "password: |\n  a\n  a",
            "password>",
            "password>a",
            "<password>a</password",
            "password=['",
        ),
        *("password=['a', '", "['password','", "[['password','", "password=%22", "password&quot;:&quot;", "token=%22"),
        *(
            "password=$A",
            "password=<a",
            "password={a",
            "password=a.",
            "password=a.a",
            "password=a(",
            "pwd=/",
            "password\n",
        ),
        *("--", "--a-", "--password ", "--password a", "--password','", "machine ", "machine a login a ", "machine a "),
        *("private-lines:", "private-lines: a\n", ":AA", "0123456:AA", "webhooks/0", "hooks.slack.com/services/"),
        *(
            "accesskey=",
            "key=",
            "sessionid=",
            "c",
            "ca",
            "canary",
            "canary-of-the-",
            "63616e",
            "Y2FuYXJ5",
            "\x00",
            "é",
            "  ",
            "\n",
            "%3a",
            "\\u0022",
        ),
    )
    for end in ("", "\x00", '"', "'")
]


@pytest.fixture
def remember(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Have so many secrets known, and one that repeats itself."""
    monkeypatch.setattr(redaction, "known_secrets", KnownSecrets())

    def add(count: int) -> None:
        for number in range(count):
            redaction.remember(f"SECRET_{number}", f"canary-of-the-model-{number:010}")
        redaction.remember("PERIODIC", "canarycanarycanary")

    return add


def in_pieces(text: str) -> None:
    pieces = RedactedPieces()
    for at in range(0, len(text), 35):
        pieces.add(text[at : at + 35])
    pieces.end()


def in_strings(text: str) -> None:
    redact_json(json.dumps([text[at : at + 9] for at in range(0, len(text), 9)]))


@pytest.mark.parametrize(
    "of",
    [
        *(redact, is_plain, redact_known, redact_json, names_a_secret, in_pieces, in_strings),
        *(lambda text: redact_json(json.dumps({"a": text})),),
    ],
    ids=["redact", "is_plain", "known", "no json", "names", "pieces", "strings", "a string"],
)
def test_redaction_takes_time_in_proportion_to_the_text(remember, of):
    remember(1)
    assert not grows_too_fast(of, BY_HAND)


@pytest.mark.parametrize("of", [redact_known, in_pieces], ids=["known", "pieces"])
def test_so_it_does_however_many_secrets_there_are(remember, of):
    remember(20)
    assert not grows_too_fast(of, BY_HAND[-64:])


def test_redaction_takes_time_in_proportion_to_what_was_found_for_its_expressions():
    found = {
        attack: None for made in (secret_shapes.NAMED, secret_shapes.GOES_ON, *SHAPES) for attack in attacks_on(made)
    }
    assert not grows_too_fast(redact, list(found)[::3])


def test_the_head_of_a_text_costs_the_same_however_long_the_text(monkeypatch):
    given = []
    monkeypatch.setattr(redaction, "redact", lambda text: given.append(len(text)) or redact(text))
    heads = [redact_head("eyJ-" * length, 500) for length in (1_000, 1_000_000)]
    assert heads[0] == heads[1] == ("eyJ-" * 125)[:499] + "…"
    assert given[0] == given[1] < 5_000
