"""Secrets are taken out of whatever leaves the process as text."""

import json
import re
import time
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanohost.lib import redaction
from nanohost.lib.redaction import MASK, RedactedPieces, redact

pytestmark = pytest.mark.shapeless(reason="pure functions")


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("key nh_ab12cd34_0123456789abcdef.", f"key {MASK}."),
        ("key=sk-proj-0123456789_abc", f"key={MASK}"),
        ("first line\nsk-0123456789", f"first line\n{MASK}"),
        ("my_sk-0123456789", f"my_{MASK}"),
        ("Authorization: Bearer abc.def-012", f"Authorization: Bearer {MASK}"),
        ("authorization: bearer abc.def-012", f"authorization: bearer {MASK}"),
        ("redis://:secret@broker:6379/0", f"redis://{MASK}@broker:6379/0"),
        ("postgres://user:pa!ss@db/x and http://a:b@c", f"postgres://{MASK}@db/x and http://{MASK}@c"),
    ],
)
def test_what_is_shaped_like_a_secret_is_taken_out(text, left):
    assert redact(text) == left


WORDS = [
    "sk-ant-api03-AbCdEfGh_0123456789",
    "sk_live_AbCdEfGh0123456789",
    "gsk_AbCdEfGh0123456789AbCdEfGh",
    "hf_AbCdEfGh0123456789AbCdEfGh",
    "xai-AbCdEfGh0123456789AbCdEfGh",
    "AIzaSyAbCdEfGh0123456789AbCdEfGh0123456",
    "ya29.AbCdEfGh0123456789AbCdEfGh",
    "ghp_AbCdEfGh0123456789AbCdEfGh0123456789",
    "github_pat_AbCdEfGh0123456789_AbCdEfGh",
    "glpat-AbCdEfGh0123456789ab",
    "xoxb-012345678901-AbCdEfGh",
    "AKIAIOSFODNN7EXAMPLE",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U",
]


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize(
    "form", ["{}", "key={}", "'{}'", '{{"key": "{}"}}', "a {}, b", "<{}>", "x\n{}\ny", "?key={}&x=1"]
)
def test_a_providers_key_is_known_by_its_beginning(word, form):
    assert redact(form.format(word)) == form.format(MASK)


HEADERS = [
    "Cookie: session=abc123; csrftoken=def456",
    "Set-Cookie: session=abc123; Path=/; HttpOnly",
    "Authorization: Basic dXNlcjphYmMxMjM=",
    "Authorization: Bearer abc123abc123",
    "authorization=Token abc123abc123",
    "Proxy-Authorization: abc123",
    "X-Api-Key: abc123",
    '{"cookie": "session=abc123"}',
    '{"Authorization": "Bearer abc123 abc123"}',
    "{'x-api-key': 'abc123'}",
    '{"headers": "{\\"Authorization\\": \\"Bearer abc123\\"}"}',
    '{"password": "a\\"bc123abc123"}',
    "https://example.org/?api_key=abc123&x=1",
    "https://example.org/?x=1&access_token=abc123",
    "DB_PASSWORD=abc123",
    "client_secret: abc123",
]


@pytest.mark.parametrize("text", HEADERS)
def test_a_field_that_carries_a_secret_is_known_by_its_name(text):
    left = redact(text)
    assert MASK in left
    assert not re.search("abc123|def456|dXNl", left)
    assert redact(left) == left


def test_what_stands_beside_a_secret_is_left():
    assert redact("https://example.org/?api_key=abc123&x=1") == f"https://example.org/?api_key={MASK}&x=1"
    assert redact('{"password": "abc123", "user": "me"}') == f'{{"password": "{MASK}", "user": "me"}}'
    assert json.loads(redact('{"a": {"cookie": "x=abc123"}, "b": 1}')) == {"a": {"cookie": MASK}, "b": 1}


@pytest.mark.parametrize("kind", ["", "RSA ", "EC ", "OPENSSH ", "ENCRYPTED "])
@pytest.mark.parametrize("end", ["-----END {}PRIVATE KEY-----\nand so on", ""])
def test_a_private_key_is_taken_out_whole_also_when_its_end_is_cut_off(kind, end):
    key = f"-----BEGIN {kind}PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nMIIE+abc/123==\nabc\n{end.format(kind)}"
    for text in (key, json.dumps(key)):
        left = redact(f"before {text}")
        assert left.startswith("before ")
        assert "MIIE" not in left
        assert "abc" not in left
        assert ("and so on" in left) == bool(end)


@pytest.mark.parametrize(
    ("value", "left"),
    [
        ({"password": 123456, "user": "me"}, {"password": MASK, "user": "me"}),
        (
            {"headers": {"Authorization": "Bearer x", "Accept": "*/*"}},
            {"headers": {"Authorization": MASK, "Accept": "*/*"}},
        ),
        ({"X-DB-Password": ["a", "b"]}, {"X-DB-Password": MASK}),
        ({"text": "sk-0123456789"}, {"text": MASK}),
        ([["a://b:c@d"]], [[f"a://{MASK}@d"]]),
        ({"sk-0123456789": 1}, {MASK: 1}),
        ({"password": None, "cookies": "many"}, {"password": None, "cookies": "many"}),
    ],
)
def test_json_stays_json(value, left):
    assert json.loads(redaction.redact_json(json.dumps(value))) == left


@pytest.mark.parametrize("text", ['{"a":1,  "b": "x"}', "[]", "1", '"ü"', "no json", '{"a": 1'])
def test_json_without_a_secret_is_left_to_the_letter(text):
    assert redaction.redact_json(text) == text


@pytest.mark.parametrize("text", ['{"a": "sk-0123456789"', "[" * 9000 + '"sk-0123456789"'])
def test_what_is_no_json_is_text(text):
    assert MASK in redaction.redact_json(text)


def test_what_people_write_to_each_other_loses_only_this_hosts_own_secrets(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "the-secret-value")
    said = "use postgres://user:password@localhost/db and sk-0123456789"
    assert redaction.redact_known(f"{said}, the-secret-value") == f"{said}, {MASK}"


@pytest.mark.parametrize(
    "text",
    [
        "the disk-usage-report of the task-management",
        "http://127.0.0.1:8000/api/v1/conversations",
        "a bearer of news",
        "mail to someone@example.org: at 10:30",
        "nh_short",
        "Cookies are baked at 180 degrees.",
        "the password is asked for twice",
        "basic needs of many people",
        "a token of 5 bytes, tokens: 7, max_tokens=100",
        "2026-11-21T10:30:00Z, a-b-c-d-e-f-0123456789-0123456789",
        "550e8400-e29b-41d4-a716-446655440000",
        "sk-learn",
        "",
    ],
)
def test_what_is_none_is_left(text):
    assert redact(text) == text


@pytest.mark.parametrize("name", ["OPENAI_API_KEY", "SECRET_KEY", "NANOHOST_ADMIN_PASSWORD", "NANOHOST_API_KEY"])
@pytest.mark.parametrize(
    "secret", ["plainsecret", "with \"quotes\" \\ and 'more'", "schlüssel-wörter", "  blanks around "]
)
def test_the_settings_secrets_are_taken_out_however_they_are_spelt(monkeypatch, name, secret):
    monkeypatch.setenv(name, secret)
    secret = secret.strip()
    for spelling in (secret, json.dumps(secret), json.dumps(secret, ensure_ascii=False), repr(secret)):
        assert secret[:6] not in redact(f"it is {spelling}, they say")
        assert MASK in redact(f"it is {spelling}, they say")


@pytest.mark.parametrize("secret", ["plainsecret", "with \"quotes\" \\ and 'more'", "schlüssel-wörter"])
def test_a_secret_that_no_variable_holds_is_taken_out_once_it_is_remembered(monkeypatch, secret):
    monkeypatch.setattr(redaction, "_remembered", set())
    assert redact(f"it is {secret}") == f"it is {secret}"
    redaction.remember(secret)
    for spelling in (secret, json.dumps(secret), json.dumps(secret, ensure_ascii=False), repr(secret)):
        assert MASK in redact(f"it is {spelling}, they say")
        assert secret[:6] not in redact(f"it is {spelling}, they say")


def test_a_secret_that_is_part_of_another_leaves_nothing_of_it(monkeypatch):
    monkeypatch.setattr(redaction, "_remembered", {"secret-value", "a-secret-value-and-more"})
    assert redact("it is a-secret-value-and-more.") == f"it is {MASK}."


def test_a_value_too_short_for_a_secret_is_left(monkeypatch):
    monkeypatch.setenv("NANOHOST_ADMIN_PASSWORD", "at")
    assert redact("What a cat") == "What a cat"


@pytest.mark.parametrize(
    "part",
    [
        *("a", "://a:b", "://", "nh_aaaa", "nh_aaaa_", "sk-", "bearer ", ":", "@", "://a:", "the quick brown fox "),
        *(
            "-----BEGIN PRIVATE KEY-----",
            "-----BEGIN ",
            "password=",
            "password: '",
            'cookie="',
            "eyJaaaaaaaa.",
            "sk-a",
            "\\",
        ),
        *("authorization: bearer ", "cookie: a; ", "pwd=\\", "basic a"),
    ],
)
def test_a_long_line_takes_time_in_proportion_to_its_length(part):
    def seconds(length: int) -> float:
        line = (part * length)[:length]
        began = time.process_time()
        redact("://a:" + line + "\nsk-0123456789")
        return time.process_time() - began

    # Ten times the length: a quadratic pattern would take a hundred times as long.
    assert min(seconds(200_000) for _ in range(3)) < 20 * min(seconds(20_000) for _ in range(5))


@given(st.text(), st.text())
def test_a_secret_is_taken_out_wherever_it_stands(before, after):
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("OPENAI_API_KEY", "the-secret-value")
        assert "the-secret-value" not in redact(f"{before}the-secret-value{after}")


@pytest.mark.parametrize("before", ["\n", "\t", "\r", "\x00", '"', "ü", "‘"])
@pytest.mark.parametrize("secret", ["sk-0123456789canary", "cookie: id=canary", "password=canary", "X-Api-Key: canary"])
def test_a_secret_at_the_beginning_of_a_line_is_known_in_json_too(before, secret):
    """A tool's result is often JSON, and the page within it has many lines."""
    text = f"the page:{before}{secret}"
    for written in (json.dumps({"text": text}), json.dumps([json.dumps(text)]), repr(text), quote(text)):
        if "canary" in written:
            assert "canary" not in redact(written)


@pytest.mark.parametrize(
    "text",
    [
        '{"password": "canary", "password": ""}',
        '{"a": "sk-0123456789canary", "a": "x"}',
        '[{"a": {"sk-0123456789canary": 1}, "a": 2}]',
        '{"headers": [["Cookie", "id=canary"], ["Accept", "*/*"]]}',
    ],
)
def test_json_hides_no_secret_behind_a_second_key_or_in_a_list_of_headers(text):
    left = redaction.redact_json(text)
    assert "canary" not in left
    assert isinstance(json.loads(left), (dict, list))


MORE_SPELLINGS = [
    "Authorization: ApiKey canary-0123",
    "Authorization: Negotiate canary-0123",
    "Authorization: Bearer\tcanary-0123",
    "Authorization: Bearer: canary-0123",
    'Authorization: Digest username="x", response="canary-0123"',
    "Authorization: AWS4-HMAC-SHA256 Credential=x/y, SignedHeaders=host, Signature=canary-0123",
    'Cookie: a="b c"; id=canary-0123',
    "Cookie: a=b; id='canary-0123'",
    "Cookie: a=b&c=canary-0123",
    "Set-Cookie: a=b; Path=/, id=canary-0123",
    "[('cookie', 'id=canary-0123'), ('accept', '*/*')]",
    "[(b'authorization', b'canary-0123')]",
    "{b'cookie': b'id=canary-0123'}",
    '{"text": "[[\\"Cookie\\", \\"id=canary-0123\\"]]"}',
    "Bearer  canary-0123",
    "Bearer\ncanary-0123",
    "http://user:a@canary-0123@example.org/",
    r'{"url": "http:\/\/user:canary-0123@example.org\/"}',
    "AWS_SECRET_ACCESS_KEY=canary-0123",
    "PGPASSWORD=canary-0123",
    '{"dbPassword": "canary-0123"}',
    '{"api_token": "canary-0123"}',
    "Private-Token: canary-0123",
    "X-Vault-Token: canary-0123",
    "nvapi-canary0123456789_AbCd",
    "csk-canary0123456789AbCdEfGh",
]


@pytest.mark.parametrize("text", MORE_SPELLINGS)
def test_a_credential_is_taken_out_whole_however_it_is_written(text):
    left = redact(f"before {text}")
    assert "canary" not in left
    assert left.startswith("before ")
    assert redact(left) == left
    assert "canary" not in redaction.redact_json(text)


@pytest.mark.parametrize(
    "text",
    [
        '["milk", "cookie", "eggs"]',
        '["cookie", "milk", "eggs"]',
        "two cookies, a cookie, and a password",
        "http://example.org:8080/a?b=c and me@example.org",
        "he passwords nobody; max_token: 1234",
    ],
)
def test_what_only_sounds_like_a_credential_is_left(text):
    assert redact(text) == text


@pytest.mark.parametrize(
    "part", ["cookie: a='", 'cookie: a="b";', "[('cookie', '", "authorization: x ", "a@", ":\\/\\/a:"]
)
def test_a_long_line_of_headers_takes_time_in_proportion_to_its_length(part):
    def seconds(length: int) -> float:
        line = "://a:" + (part * length)[:length]
        began = time.process_time()
        redact(line)
        return time.process_time() - began

    # Ten times the length: a quadratic pattern would take a hundred times as long.
    assert min(seconds(500_000) for _ in range(2)) < 40 * max(0.01, min(seconds(50_000) for _ in range(3)))


def test_a_known_secret_is_taken_out_of_urls_too(monkeypatch):
    monkeypatch.setattr(redaction, "_remembered", {"pass+word/ü canary"})
    for written in (quote("pass+word/ü canary"), quote("pass+word/ü canary", safe=""), "pass%2Bword%2F%C3%BC+canary"):
        assert redact(f"GET /?x={written}&y=1") == f"GET /?x={MASK}&y=1"


def test_a_secret_that_arrives_in_pieces_is_never_shown_in_part(monkeypatch):
    secret = "canary-of-the-model-0123456789"
    monkeypatch.setenv("OPENAI_API_KEY", secret)
    said = f"My key is {secret}. Not canary-of-the-mill, nor can"
    for size in range(1, len(said) + 1):
        pieces, shown = RedactedPieces(), []
        for at in range(0, len(said), size):
            shown.append(pieces.add(said[at : at + size]))
            assert not any(len(piece) > 3 and piece in secret for piece in shown[-1].split())
        shown.append(pieces.end())
        assert "".join(shown) == "My key is [redacted]. Not canary-of-the-mill, nor can"


def test_pieces_in_which_no_secret_begins_are_shown_at_once(monkeypatch):
    monkeypatch.setattr(redaction, "_remembered", set())  # other tests' may begin with any letter
    monkeypatch.setenv("OPENAI_API_KEY", "zq-secret-of-the-model")
    pieces = RedactedPieces()
    assert [pieces.add(piece) for piece in ("Hello", ", wor", "ld")] == ["Hello", ", wor", "ld"]
    assert pieces.end() == ""
