"""Where a call stands in a trace, as those are told who do the work: a command, a tool's process, an MCP server."""

import pytest

from nanohost.lib import traces
from tests.support.mcp_servers import allow, server
from tests.support.tool_calls import ask, run
from tools.mcp import catalogue
from tools.models import ToolSetting
from tools.sandbox import bubblewrap
from tools.workspace import beneath

pytestmark = pytest.mark.django_db(transaction=True)

TRACE = "0af7651916cd43dd8448eb211c80319c"
CONTEXT = f"00-{TRACE}-b7ad6b7169203331-01"


@pytest.fixture
def spans():
    """The spans that have ended."""
    traces.configure(on=True, sampler="always_on", share=1.0, most=1_000)
    traces.ended.clear()
    yield traces.ended
    traces.configure(on=False, sampler="parentbased_always_on", share=1.0, most=0)
    traces.ended.clear()
    traces.enter("")


def told_below_its_span(call, spans):
    """Whether what a call was told is the context below its own span, which stands below the caller's."""
    ((span, _, kind, about, error, _),) = spans
    assert (kind, about, error) == (traces.TOOL, call.tool_name, "")
    assert (span[0], span[2]) == (TRACE, CONTEXT[36:52])
    return call.result == f"00-{TRACE}-{span[1]}-01"


def test_an_mcp_server_is_told_in_the_call(spans):
    made = server("traced")
    catalogue.refresh(made)
    allow("mcp_ours_echo")
    call = run(ask("mcp_ours_echo", text="x"), context=CONTEXT)
    assert told_below_its_span(call, spans), call.result


def test_a_tools_process_is_told_and_the_next_call_is_not_told_the_same(spans, tool_settings):
    tool_settings("tell_trace")
    call = run(ask("tell_trace"), context=CONTEXT)
    (child, _, kind, about, error, values), (whole, *_) = spans
    assert (kind, about, error, values) == (traces.CHILD, "tell_trace", "", ("tests.toolbox.agent_tools.tell_trace",))
    assert (whole[0], whole[2], child[2]) == (TRACE, CONTEXT[36:52], whole[1])
    assert call.result == f"00-{TRACE}-{child[1]}-01"
    spans.clear()
    assert run(ask("tell_trace")).result == "none"
    assert not spans


def test_the_span_of_a_process_says_why_its_call_failed(spans, tool_settings):
    tool_settings("raise_error")
    run(ask("raise_error"), context=CONTEXT)
    assert [(kind, error) for _, _, kind, _, error, _ in spans] == [(traces.CHILD, "raised"), (traces.TOOL, "raised")]


@pytest.mark.skipif(bool(beneath.why_missing()), reason=beneath.why_missing())
@pytest.mark.skipif(not bubblewrap.program(), reason="NOT TRIED: bubblewrap is not installed")
def test_a_command_finds_it_in_its_environment(spans, settings, tmp_path, tool_settings):
    settings.WORKSPACES_DIR = tmp_path / "workspaces"
    settings.SHELL_GRANTABLE = True
    settings.PERMISSIONS_GRANTED = [*settings.PERMISSIONS_GRANTED, "SHELL"]
    tool_settings("exec", grants=["SHELL", "FS_READ", "FS_WRITE"])
    ToolSetting.objects.filter(name="exec").update(approval="never")
    call = run(ask("exec", command='printf %s "$TRACEPARENT"'), context=CONTEXT)
    assert told_below_its_span(call, spans), call.result
    spans.clear()
    assert run(ask("exec", command='printf %s "${TRACEPARENT-none}"')).result == "none"
