"""What the agent of a tool call may use, as the gate asks."""

from functools import partial

from django.db.models import Subquery

from agent.models import Agent
from conversations.engine import outgoing
from conversations.models import Conversation
from nanohost.lib.statements import Given, Rows
from tools.gate import AgentTools
from tools.models import ToolCall

_agent = Rows(
    lambda: Agent.objects.filter(name=Given("name")).annotate(
        tainted_by=Subquery(Conversation.objects.filter(pk=Given("conversation_id")).values("tainted_by"))
    )
)


def tools_of_agent(call: ToolCall) -> AgentTools:
    """What the call's agent may use now, in a conversation that may be tainted by now; an agent that is gone may use
    nothing."""
    agent = next(iter(_agent(name=call.agent, conversation_id=call.conversation_id)), None)
    if agent is None:
        return AgentTools(names=frozenset())
    return agent.allowed_tools(
        tainted_by=agent.tainted_by or "", destinations=partial(outgoing.names, agent), owner_id=call.owner_id
    )
