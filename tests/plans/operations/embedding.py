"""The chat in other people's pages."""

from collections.abc import Callable
from typing import Any

from django.test import Client

from conversations.engine import inbox
from conversations.engine.incoming import Incoming
from conversations.events import answers, streams
from conversations.models import Compaction, Conversation, Message
from conversations.web import open_keys
from nanohost.accounts import audit
from nanohost.accounts.models import ApiKey
from nanohost.chat import embed
from nanohost.console import attention
from tests.plans.operations.api import KEY, a_question, a_workspace_file, an_approval, call_api, on_api
from tests.plans.operations.common import CONSOLE, a_turn, operation, the_long_one
from tests.plans.operations.messages import a_file
from tests.plans.operations.tool_calls import a_call
from tools import calls


def embedded() -> str:
    """The address of the chat that a key of these pages opens."""
    ApiKey.objects.update(allowed_origins=["https://shop.example"], requests_per_minute=1_000)
    return f"/chat/embed/{ApiKey.objects.get().prefix}/"


def opened(answer: Any) -> Any:
    assert answer.status_code == 200, answer.content
    return answer


@operation("embed.show")
def embedded_page() -> Callable[[], object]:
    address = embedded()
    return lambda: opened(Client().get(address, secure=True))


@operation("open_keys.active_keys")
def keys_of_those_who_wait() -> Callable[[], object]:
    key_ids = [*ApiKey.objects.values_list("pk", flat=True)]
    return lambda: open_keys.active_keys(key_ids)


@operation("embed.begin")
def embedded_begins() -> Callable[[], object]:
    address = embedded()
    return lambda: opened(Client().post(f"{address}begin/", secure=True))


@operation("embed.EmbedAuthentication")
def a_visitor() -> Callable[[], object]:
    told = Client().post(f"{embedded()}begin/", secure=True).json()
    visitor = Client(headers={embed.HEADER: told["token"]})
    turn = inbox.receive(
        Incoming("Hello"), conversation=Conversation.objects.get(pk=told["conversationId"]), request_id="r"
    )
    return lambda: opened(visitor.get(f"/api/v1/turns/{turn.pk}", secure=True))


on_api("GET attachments/{}", lambda: f"attachments/{a_file().attachment_id}")
on_api("GET attachments/{}/thumbnail", lambda: f"attachments/{a_file().attachment_id}/thumbnail")
on_api("GET turns/{}/events", lambda: f"turns/{a_turn().pk}/events", status=202)


on_api("GET approvals", lambda: "approvals")
on_api("GET approvals, of a state", lambda: "approvals?state=pending")
on_api("GET questions", lambda: "questions")
on_api("GET questions, of a state", lambda: "questions?state=pending")
on_api("POST questions/{}/answer", lambda: f"questions/{a_question().pk}/answer", body={"answer": "a"})
on_api("GET approvals/{}", lambda: f"approvals/{an_approval().pk}")
on_api("POST approvals/{}/decide", lambda: f"approvals/{an_approval().pk}/decide", body={"decision": "approve"})


OF_KEY = KEY.split("_")[1]
# It counts what was asked for within the hour, as the overview does.
on_api("GET usage", lambda: "usage?group_by=day", CONSOLE)
on_api("GET keys", lambda: "keys")
on_api("POST keys", lambda: "keys", body={}, status=201)
on_api("GET keys/{}", lambda: f"keys/{OF_KEY}")
on_api("PATCH keys/{}", lambda: f"keys/{OF_KEY}", body={"name": "shop"})
on_api("DELETE keys/{}", lambda: f"keys/{OF_KEY}", status=204)


@operation("audit.seal")
def seal() -> Callable[[], object]:
    for number in range(20):
        audit.record("host.tried", key=number)
    return audit.seal


@operation("audit.head")
def audit_head() -> Callable[[], object]:
    audit.record("host.tried")
    audit.seal()
    return audit.head


@operation("streams.read_replay")
def read_replay() -> Callable[[], object]:
    turn = a_turn()
    return lambda: streams.read_replay(turn.pk, renderer=answers, request_id="request")


on_api("GET turns/{}", lambda: f"turns/{a_turn().pk}")
on_api("POST turns/{}/cancel", lambda: f"turns/{a_turn().pk}/cancel", body={})
on_api("GET turns/{}/feedback", lambda: f"turns/{a_turn().pk}/feedback")
on_api("POST turns/{}/feedback", lambda: f"turns/{a_turn().pk}/feedback", body={"rating": "up", "comment": "Good."})
on_api("DELETE turns/{}/feedback", lambda: f"turns/{a_turn().pk}/feedback", status=204)
on_api("GET tools", lambda: "tools")
on_api("GET conversations/{}/summaries", lambda: f"conversations/{the_long_one().pk}/summaries")


def a_summary_that_counts() -> str:
    """The address to undo it at."""
    conversation = the_long_one()
    Compaction.objects.create(
        conversation=conversation, keep_tokens=0, status="done", first_seq=2, through_seq=900, summary_seq=901
    )
    Conversation.objects.filter(pk=conversation.pk).update(summary_seq=901, consolidated_through=900)
    return f"conversations/{conversation.pk}/summaries/901/undo"


def a_pin() -> str:
    """The address of one that is taken, among as many as there may be."""
    conversation = the_long_one()
    message = Message.objects.get(conversation=conversation, seq=2001)
    Conversation.objects.filter(pk=conversation.pk).update(
        pins=[{"seq": seq, "by": "x", "at": ""} for seq in range(2001, 2039, 2)]
    )
    return f"conversations/{conversation.pk}/messages/{message.pk}/pin"


on_api("POST conversations/{}/summaries/{}/undo", a_summary_that_counts, body={})
on_api("DELETE conversations/{}/messages/{}/pin", a_pin, status=204)


@operation("PUT conversations/{}/messages/{}/pin")
def put_pin() -> Callable[[], object]:
    a_pin()
    conversation = the_long_one()
    asked = Message.objects.filter(conversation=conversation, seq__range=(3001, 3100), role="user", kind="")
    message = asked.order_by("seq")[0]
    path = f"conversations/{conversation.pk}/messages/{message.pk}/pin"
    return lambda: call_api("PUT", path, body={})


on_api("GET agents/{}/memory", lambda: "agents/default/memory")
on_api("PUT agents/{}/memory", lambda: "agents/default/memory", body={"content": "- words", "version": 0})
on_api("GET agents/{}/files", lambda: "agents/default/files")
on_api("GET agents/{}/files/{}", lambda: a_workspace_file("taken.md"))
on_api("PUT agents/{}/files/{}", lambda: a_workspace_file("put.md"), body={"content": "words"})
on_api("DELETE agents/{}/files/{}", lambda: a_workspace_file("deleted.md"), status=204)
on_api("GET agents/{}/history", lambda: "agents/default/history")


@operation("calls.outcomes")
def calls_of() -> Callable[[], object]:
    call = a_call()
    return lambda: calls.outcomes(call.turn_id)


@operation("answers.current")
def chat_answer() -> Callable[[], object]:
    turn = a_turn()
    return lambda: answers.current(turn.pk, request_id="request")


@operation("GET /health/ready")
def ready() -> Callable[[], object]:
    return lambda: Client().get("/health/ready", secure=True)


@operation("attention.needs")
def what_needs_attention() -> Callable[[], object]:
    return attention.needs
