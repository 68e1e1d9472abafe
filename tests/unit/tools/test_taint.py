"""Which tools are held back where untrusted text has entered, and what declares it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools import registry, taint
from tools.calls import Outcome
from tools.errors import ToolDefinitionError
from tools.gate import AgentTools
from tools.models import CallStatus
from tools.registry import Untrusted, tool

pytestmark = pytest.mark.shapeless(reason="it is decided on values alone")

OURS = {
    "time",
    "http_get",
    "remember",
    "recall_history",
    "daily_note",
    "session_state",
    "schedule",
    "cron",
    "message",
    "spawn",
}


def test_of_our_own_tools_these_are_held_back_and_that_is_untrusted():
    ours = [registry.get(name) for name in OURS]
    assert {each.name for each in ours if taint.reaches_out(each)} == {
        "http_get",
        "schedule",
        "cron",
        "message",
        "spawn",
    }
    assert {each.name for each in ours if each.untrusted} == {"http_get"}
    assert {each.name for each in ours if each.stays_inside} == {"remember", "daily_note", "session_state"}


@given(
    st.sampled_from(registry.names()),
    st.sampled_from(["off", "approve", "refuse", "something else"]),
    st.sampled_from(["", "the tool http_get"]),
)
def test_a_call_runs_only_if_nothing_stands_against_it(name, policy, source):
    known = registry.get(name)
    verdict = taint.decide(known, AgentTools(names=None, taint=policy, tainted_by=source))
    harmless = known.effects == "read" and "NET_HTTP" not in known.permissions
    may_run = not source or policy == "off" or harmless or known.stays_inside
    assert verdict == ("run" if may_run else "approve" if policy == "approve" else "refuse")


def test_a_tool_that_reaches_out_and_says_nothing_is_untrusted():
    assert registry.get("fetch").untrusted
    assert not registry.get("echo").untrusted


def inside(value: str) -> str:
    """Would stay inside."""
    return value


@pytest.mark.parametrize("effects", ["read", "write"])
def test_only_what_works_on_our_own_rows_stays_inside(effects):
    with pytest.raises(ToolDefinitionError, match="only an inline tool that has effects"):
        tool(effects=effects, stays_inside=True)(inside)


@pytest.mark.parametrize(
    ("status", "marked"),
    [(CallStatus.SUCCESS, True), (CallStatus.FAILED, True), (CallStatus.REJECTED, False), (CallStatus.UNKNOWN, False)],
)
def test_what_a_tool_says_is_untrusted_and_what_the_gate_says_is_not(status, marked):
    outcome = Outcome(status=status, result="words")
    assert bool(taint.marked(outcome, registry.get("http_get")).tainted_by) is marked
    assert taint.marked(outcome, registry.get("echo")) == outcome


def test_an_untrusted_text_is_a_text():
    found = Untrusted("words", by="the history log")
    assert (found, found.by, isinstance(found, str)) == ("words", "the history log", True)
