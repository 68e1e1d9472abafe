"""Secrets are taken out of whatever leaves the process as text."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanohost.lib import redaction
from nanohost.lib.redaction import MASK, redact

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


@pytest.mark.parametrize(
    "text",
    [
        "the disk-usage-report of the task-management",
        "http://127.0.0.1:8000/api/v1/conversations",
        "a bearer of news",
        "mail to someone@example.org: at 10:30",
        "nh_short",
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
    "part", ["a", "://a:b", "://", "nh_aaaa", "nh_aaaa_", "sk-", "bearer ", ":", "@", "://a:", "the quick brown fox "]
)
def test_a_long_line_takes_time_in_proportion_to_its_length(part):
    def seconds(length: int) -> float:
        line = (part * length)[:length]
        began = time.process_time()
        redact("://a:" + line + "\nsk-0123456789")
        return time.process_time() - began

    assert min(seconds(100_000) for _ in range(3)) < 0.25
    # Ten times the length: a quadratic pattern would take a hundred times as long.
    assert min(seconds(1_000_000) for _ in range(2)) < 2.5


@given(st.text(), st.text())
def test_a_secret_is_taken_out_wherever_it_stands(before, after):
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("OPENAI_API_KEY", "the-secret-value")
        assert "the-secret-value" not in redact(f"{before}the-secret-value{after}")
