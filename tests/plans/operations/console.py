"""The console's lists and pages."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

from django.test import Client

from conversations.models import Compaction, Conversation, DeferredMessage, Delivery, Message, Turn
from nanohost.accounts.models import AuditEntry
from nanohost.console.site import model_pages
from nanohost.lib.admin import GrowingAdmin
from tests.plans.operations.common import GROW, a_turn, a_usual_one, the_long_one
from tools.models import Approval, ToolCall


def growing() -> list[GrowingAdmin]:
    return [page for model, page in model_pages().items() if model._meta.db_table in GROW]


def path_of(page: GrowingAdmin) -> str:
    return f"/admin/{page.opts.app_label}/{page.opts.model_name}/"


# One for all pages: to log in takes longer than to look.
boss = Client()


def look_at(path: str) -> Any:
    response = boss.get(path, secure=True)
    assert response.status_code == 200, path
    return response


def console_paths() -> Iterator[tuple[str, str]]:
    """Each list, by each filter, by what is searched, and as other pages link to it; each page of a row."""
    turn, call = a_turn(), ToolCall.objects.order_by("-created_at").first()
    message = turn.messages.order_by("seq")[0]
    rows = {Conversation: the_long_one(), Turn: turn, Message: message, ToolCall: call}
    rows[DeferredMessage] = DeferredMessage.objects.order_by("-created_at").first()
    rows[Approval] = Approval.objects.order_by("-requested_at").first()
    rows[Delivery] = Delivery.objects.order_by("-created_at").first()
    rows[AuditEntry] = AuditEntry.objects.order_by("-id").first()
    rows[Compaction] = Compaction.objects.order_by("-created_at").first()
    for page in growing():
        path, name = path_of(page), page.opts.model_name
        yield f"{name} list", path
        yield f"{name} list, its third page", f"{path}?p=3"
        for part in ("", *(str(turn.pk)[:length] for length in (4, 13, 36)), str(the_long_one().pk), "api:5", "time"):
            yield f"{name} search {part}", f"{path}?q={part}"
        yield f"{name} search of two words", f"{path}?q={turn.pk}+{turn.request_id}"
        changelist = look_at(path).context["cl"]
        for spec in changelist.filter_specs:
            choices = [choice["query_string"] for choice in spec.choices(changelist)]
            # Of tools, rules and owners there are many. The first owner has a quarter of all, the others have little.
            for choice in choices if len(choices) < 10 else choices[:3]:
                yield f"{name} filter {choice}", f"{path}{choice}"
        yield f"{name} page", f"{path}{rows[page.model].pk}/change/"
    for conversation in (the_long_one(), a_usual_one()):
        pk = conversation.pk
        yield f"turns of {conversation}", f"/admin/conversations/turn/?conversation__exact={pk}"
        yield f"messages of {conversation}", f"/admin/conversations/message/?conversation__exact={pk}"
        yield f"messages of {conversation} in words", f"/admin/conversations/message/?conversation__exact={pk}&q=found"
        yield f"compactions of {conversation}", f"/admin/conversations/compaction/?conversation__exact={pk}"
        yield f"deletion of {conversation}", f"/admin/conversations/conversation/{pk}/delete/"
        yield f"calls of {conversation}", f"/admin/tools/toolcall/?conversation_id__exact={pk}"
        for query in ("", "?before=50", "?after=50"):
            yield f"transcript of {conversation} {query}", f"/admin/conversations/conversation/{pk}/transcript/{query}"
    yield "transcript, in the middle", f"/admin/conversations/conversation/{the_long_one().pk}/transcript/?before=50000"
    for window in ("24 hours", "7 days", "30 days"):
        yield f"overview of {window}", f"/admin/?{urlencode({'window': window})}"
        overview = look_at(f"/admin/?{urlencode({'window': window})}").context["overview"]
        for figure in (*overview["outcomes"], *overview["models"], *overview["calls"], *overview["open"]):
            yield f"{figure['link']} of {window}", figure["link"]
        for drawn in overview["charts"]:
            yield f"{drawn['title']} before {window}", drawn["compared_link"]
            yield f"{drawn['title']} in {window}", drawn["bars"][-1]["link"]
            for series in drawn["series"]:
                if series["link"]:
                    yield f"{drawn['title']}, {series['name']}, in {window}", series["link"]
    yield from audit_paths()
    yield "all about an agent", f"/admin/agent/agent/{turn.conversation.agent_id}/whole/"
    yield "owners with files", f"/admin/agent/agent/{turn.conversation.agent_id}/files/"
    yield "files of an owner", f"/admin/agent/agent/{turn.conversation.agent_id}/files/{turn.owner_id}/"
    yield "what the model was sent", f"/admin/conversations/turn/{turn.pk}/sent/"
    yield "a turn over time", f"/admin/conversations/turn/{turn.pk}/time/"
    for state in ("all", "running", "waiting", "queued", "held"):
        yield f"queue, {state}", f"/admin/queue/?state={state}"
    yield "getting started", "/admin/start/"
    yield "daily summary", "/admin/daily-summary/"
    yield "queue, the list that it leads to", look_at("/admin/queue/").context["turns_link"]
    yield "turns of a worker", "/admin/conversations/turn/?worker__exact=host:1:1&status__exact=running"


def audit_paths() -> Iterator[tuple[str, str]]:
    """The audit log by who, what, object and time, and by some of these at once; often and seldom."""
    path, turn = "/admin/accounts/auditentry/", a_turn()
    call = ToolCall.objects.filter(turn_id=turn.pk).earliest("position")
    day = {"from": f"{turn.created_at:%Y-%m-%d}", "until": f"{turn.created_at + timedelta(days=1):%Y-%m-%d}"}
    of_user, action = {"object_type": "auth.user", "object_id__exact": "7"}, {"action": "signed_in"}
    for query in (
        *({"q": term} for term in ("agent default", "default", "user owner-7", "owner-7", "7", "append_line")),
        *({"q": term} for term in (str(call.pk), turn.request_id, "user nobody")),
        *(day, action, of_user, {"object_type": "accounts.legalhold"}, {"object_type": "auth.user"}),
        {"q": "agent default", **day},
        *({"q": "owner-7", **narrowed} for narrowed in (day, action, {"object_type": "auth.user"})),
    ):
        yield f"audit log, {query}", f"{path}?{urlencode(query)}"
