"""An agent's documents as files of its workspaces: AGENTS.md, SOUL.md, USER.md and HEARTBEAT.md.

Whether its tools may change one, the gate decides. What they write is a version of the agent, as what people write is.
"""

from collections.abc import Callable

from django.core.exceptions import ValidationError
from django.db import transaction

from agent.access import agent_named
from agent.models import FILES, Agent
from nanohost.accounts import audit
from tools.registry import Caller
from tools.workspace.documents import Kept, Parts, Text

_NAMES = {f"{name}.md": name for name in FILES}


def owns(parts: Parts) -> bool:
    """They stand in the workspace's own folder."""
    return len(parts) == 1 and parts[0] in _NAMES


def found(caller: Caller) -> dict[str, Text]:
    """Those that say something. What they say is the operator's, or was written where nothing untrusted was."""
    agent = agent_named(caller.agent)
    texts = agent.documents if agent else {}
    return {path: Text(text=texts[name]) for path, name in _NAMES.items() if texts.get(name)}


def change(caller: Caller, parts: Parts, made_of: Callable[[str], str]) -> str:
    """Make the next version of the agent, with this document changed."""
    name = _NAMES[parts[0]]
    with transaction.atomic():
        agent = Agent.objects.select_for_update().filter(name=caller.agent).first()
        if agent is None:
            raise ValueError("The agent was deleted meanwhile; its documents went with it.")
        before = agent.documents.get(name, "")
        after = made_of(before)
        if after == before:
            return f"{name} says this already."
        agent.documents = {**agent.documents, name: after}
        if not after.strip():
            del agent.documents[name]
        try:
            agent._meta.get_field("documents").clean(agent.documents, agent)
        except ValidationError as error:
            raise ValueError(" ".join(error.messages)) from None
        by = f"agent {agent.name}, in conversation {caller.conversation_id}"
        with audit.acting(by):
            agent.save_version(by=by)
    return f"Written: version {agent.version} of the agent. Earlier ones are kept."


KEPT = Kept(folder=(), owns=owns, found=found, change=change, instructs=True)
