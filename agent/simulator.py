"""Would this call run, and which rule decides? A page that asks the gate, which runs and stores nothing for it."""

import json
from collections.abc import Callable, Collection
from typing import Any
from uuid import UUID

from django import forms
from django.contrib.auth import get_user_model
from django.http import HttpRequest
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextareaWidget, UnfoldAdminTextInputWidget

from agent.models import DEFAULT_AGENT, Agent
from nanohost.lib.admin import shown
from tools import gate
from tools.gate import Verdict
from tools.models import ToolCall

# What each rule asks; of one for a permission, behind the colon stands which.
QUESTIONS = {
    "not_registered": "Is there a tool of that name?",
    "not_in_ceiling": "Does TOOLS_ALLOWED, the settings' ceiling, have it?",
    "requires": "Does this machine meet its requirements?",
    "not_enabled": "Has an admin enabled it?",
    "withheld": "Has its description by the MCP server been reviewed, and is that server enabled?",
    "not_for_agent": "May this agent use it?",
    "permission_ceiling": "Does PERMISSIONS_GRANTED, the settings' ceiling, have the permission it needs?",
    "permission": "Has an admin granted it the permission it needs?",
    "input_size": "Are the arguments small enough?",
    "arguments": "Are the arguments what the tool's schema asks for?",
    "denied": "Is the command free of those that are always refused?",
    "destination": "Was this agent given the destination that it would write to?",
    "document": "May this agent's tools change this document of the agent, for this owner?",
    "document:tainted": "Has nothing untrusted entered the conversation, whose words would instruct the agent?",
    "tainted": "Has nothing untrusted entered the conversation, or may the call run anyway?",
    "rate:conversation": "Is one of the conversation's calls of this minute left?",
    "rate:owner": "Is one of the owner's calls of this minute left?",
}


class SimulatorForm(forms.Form):
    """A call as a model might ask for it."""

    tool = forms.CharField(max_length=128, strip=False, widget=UnfoldAdminTextInputWidget)
    agent = forms.ModelChoiceField(Agent.objects.all(), to_field_name="name", widget=UnfoldAdminSelectWidget)
    owner = forms.CharField(
        required=False,
        max_length=150,
        widget=UnfoldAdminTextInputWidget,
        help_text="A user's name; rate limits and documents look at it. Empty: somebody without any calls.",
    )
    conversation = forms.UUIDField(
        required=False,
        widget=UnfoldAdminTextInputWidget,
        help_text="Its id; rate limits and taint look at it. Empty: a new one.",
    )
    arguments = forms.CharField(
        required=False,
        strip=False,
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 8}),
        help_text="JSON, as a model writes it.",
    )

    def clean_owner(self) -> int | None:
        """The user's id."""
        name = self.cleaned_data["owner"]
        if not name:
            return None
        found = get_user_model().objects.filter(username=name).values_list("pk", flat=True).first()
        if found is None:
            raise forms.ValidationError("There is no user with that name.")
        return int(found)

    def verdict(self, *, tainted_by: str, destinations: Callable[[Agent], Collection[str]]) -> Verdict:
        """What the gate says where this has tainted the conversation; the form is valid. ``destinations``: where an
        agent may write, by name."""
        given = self.cleaned_data
        return gate.simulate(
            given["tool"],
            given["arguments"],
            agent_tools=given["agent"].allowed_tools(
                tainted_by=tainted_by,
                destinations=lambda: destinations(given["agent"]),
                owner_id=given["owner"],
            ),
            owner_id=given["owner"],
            conversation_id=given["conversation"],
        )


# What stands for any page, in the verdict on a conversation that one has entered.
SUPPOSED = "a page that was fetched"


def context(
    request: HttpRequest, *, tainted_by: Callable[[UUID], str], destinations: Callable[[Agent], Collection[str]]
) -> dict[str, Any]:
    """What the page shows: the form; and, of one that is filled in, or of a call that is named, what the gate says: as
    it is, and if the conversation were tainted. ``tainted_by``: what has tainted a conversation, if anything has.
    ``destinations``: where an agent may write, by name."""
    call = _call(request)
    form = SimulatorForm(request.POST) if request.method == "POST" else SimulatorForm(call or _given(request))
    if request.method != "POST" and not call:
        return {"form": SimulatorForm(initial=_given(request))}
    if not form.is_valid():
        return {"form": form, "is_call": bool(call)}
    conversation_id = form.cleaned_data["conversation"]
    tainted = tainted_by(conversation_id) if conversation_id else ""
    verdict, if_tainted = (
        form.verdict(tainted_by=by, destinations=destinations) for by in (tainted, tainted or SUPPOSED)
    )
    steps = [{"rule": rule, "asks": question(rule), "passed": True, "message": ""} for rule in verdict.passed]
    if refusal := verdict.refusal:
        met = {"rule": refusal.rule, "asks": question(refusal.rule), "passed": False, "message": shown(str(refusal))}
        steps.append(met)
    arguments = None if verdict.arguments is None else json.dumps(verdict.arguments, indent=2, ensure_ascii=False)
    told = {"form": form, "is_call": bool(call), "verdict": verdict, "steps": steps, "tool": shown(form.data["tool"])}
    told |= {"tainted_by": shown(tainted), "if_tainted": if_tainted}
    told["if_tainted_says"] = shown(str(if_tainted.refusal)) if if_tainted.refusal else ""
    return told | {"arguments": arguments and shown(arguments)}


def question(rule: str) -> str:
    """What a rule asks, in plain words."""
    kind, _, permission = rule.partition(":")
    asks = QUESTIONS.get(rule) or QUESTIONS.get(kind, rule)
    return f"{asks.removesuffix('?')}, {permission}?" if kind.startswith("permission") else asks


def _given(request: HttpRequest) -> dict[str, Any]:
    named = {name: request.GET[name] for name in ("tool", "agent", "owner", "conversation") if name in request.GET}
    return {"agent": DEFAULT_AGENT, "arguments": "{}"} | named


def _call(request: HttpRequest) -> dict[str, Any] | None:
    """A stored call, as the form takes it."""
    try:
        pk = UUID(request.GET.get("call", ""))
    except ValueError:
        return None
    if not request.user.has_perm("tools.view_toolcall"):
        return None
    row = ToolCall.objects.filter(pk=pk).first()
    if row is None:
        return None
    owner = get_user_model().objects.filter(pk=row.owner_id).first() if row.owner_id else None
    return {
        "tool": row.tool_name,
        "agent": row.agent,
        "owner": owner.get_username() if owner else "",
        "conversation": row.conversation_id,
        "arguments": row.arguments,
    }
