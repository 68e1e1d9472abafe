"""Conversations as people arrange them: named, pinned, archived, searched; and branches of them."""

from base64 import b64encode
from typing import Any

import pytest
from django.test import Client

from conversations.engine import inbox
from conversations.models import AttachmentUse, Compaction, Conversation, Message
from nanohost.accounts.models import ApiKey
from nanohost.lib.clock import Now
from tests.support.files import picture
from tools.models import CallStatus, ToolCall

pytestmark = pytest.mark.django_db


@pytest.fixture
def client(owner: Any) -> Client:
    _, key = ApiKey.objects.issue(owner=owner, scopes=["chat", "read", "schedules"], agent_names=["*"])
    return Client(headers={"Authorization": f"Bearer {key}"})


def call(client: Client, method: str, path: str, body: object = None) -> Any:
    sent = {"data": body, "content_type": "application/json"} if body is not None else {}
    return getattr(client, method)(f"/api/v1/conversations{path}", secure=True, **sent)


def titles(client: Client, query: str = "") -> list[str | None]:
    return [row["title"] for row in call(client, "get", query).json()["results"]]


def test_a_conversation_is_named_pinned_and_archived(client, conversation, fill):
    fill(2)
    shown = call(client, "get", f"/{conversation.pk}").json()
    assert (shown["title"], shown["pinned"], shown["archived"], shown["branchOf"]) == (
        "Remember word 1", False, False, None,
    )  # fmt: skip
    updated_at = shown["updatedAt"]
    for body, field, value in [
        ({"title": "  My\n clocks "}, "title", "My clocks"),
        ({"pinned": True}, "pinned", True),
        ({"archived": True}, "archived", True),
    ]:
        shown = call(client, "patch", f"/{conversation.pk}", body).json()
        assert shown[field] == value
    assert shown["updatedAt"] == updated_at
    assert (shown["title"], shown["pinned"]) == ("My clocks", True)  # what is not named stays
    for nothing in (None, "", "  "):
        assert call(client, "patch", f"/{conversation.pk}", {"title": nothing}).json()["title"] == "Remember word 1"


def test_those_that_are_pinned_or_archived_are_listed_apart(client, owner):
    for name, is_pinned, is_archived in [("a", True, False), ("b", False, True), ("c", False, False)]:
        inbox.start_conversation(owner_id=owner.pk, metadata={}).arrange(
            name=name, is_pinned=is_pinned, is_archived=is_archived
        )
    assert titles(client) == ["c", "b", "a"]
    assert titles(client, "?archived=true") == ["b"]
    assert titles(client, "?archived=false") == ["c", "a"]
    assert titles(client, "?archived=false&pinned=true") == ["a"]
    assert titles(client, "?archived=false&pinned=false") == ["c"]
    for wrong in ("pinned=yes", "archived=1", "search=%00"):
        assert call(client, "get", f"?{wrong}").json()["code"] == "invalid_request"


def test_a_conversation_is_found_by_its_name_and_by_how_it_began(client, conversation, fill, owner, outsider):
    fill(2, "Roses and")
    inbox.start_conversation(owner_id=owner.pk, metadata={}).arrange(name="Tulips 100% red")
    inbox.start_conversation(owner_id=outsider.pk, metadata={}).arrange(name="Tulips of others")
    assert titles(client, "?search=tulips") == ["Tulips 100% red"]
    assert titles(client, "?search=ROSES") == ["Roses and 1"]
    assert titles(client, "?search=0%25 red") == ["Tulips 100% red"]
    assert titles(client, "?search=%25") == ["Tulips 100% red"]
    assert titles(client, "?search=nothing") == []
    conversation.arrange(name="Renamed")  # its beginning is its title no longer, and is said in it nevertheless
    assert titles(client, "?search=roses") == ["Renamed"]
    assert titles(client, "?search=renam") == ["Renamed"]
    page = call(client, "get", "?search=e&limit=1").json()
    assert [row["title"] for row in page["results"]] == ["Tulips 100% red"]
    query = page["next"].partition("?")[2]
    assert titles(client, f"?{query}") == ["Renamed"]


def branch(client: Client, conversation: Conversation, seq: int) -> Conversation:
    asked = Message.objects.get(conversation=conversation, seq=seq)
    made = call(client, "post", f"/{conversation.pk}/branches", {"before": str(asked.pk)})
    assert made.status_code == 201, made.content
    assert made["Location"] == f"/api/v1/conversations/{made.json()['conversationId']}"
    return Conversation.objects.get(pk=made.json()["conversationId"])


def contents(conversation: Conversation) -> list[tuple[int | None, str]]:
    return list(Message.objects.transcript().filter(conversation=conversation).values_list("seq", "content"))


def test_a_branch_has_what_came_before_and_leaves_the_other_as_it_is(client, conversation, fill):
    fill(6)
    conversation.arrange(name="Clocks")
    before = contents(conversation)
    made = branch(client, conversation, 5)
    assert contents(made) == before[:4]
    assert contents(conversation) == before
    assert (made.branch_of, made.name, made.owner, made.next_seq) == (conversation.pk, "Clocks", conversation.owner, 5)
    times = [
        list(Message.objects.transcript().filter(conversation=each, seq__lt=5).values_list("created_at", flat=True))
        for each in (conversation, made)
    ]
    assert times[0] == times[1]
    first = branch(client, conversation, 1)
    assert (contents(first), first.next_seq) == ([], 1)
    assert call(client, "get", f"/{made.pk}").json()["branchOf"] == str(conversation.pk)


def test_a_branch_begins_with_what_a_user_has_said_in_that_conversation(client, conversation, fill, owner):
    fill(2)
    other = inbox.start_conversation(owner_id=owner.pk, metadata={})
    answer = Message.objects.get(conversation=conversation, seq=2)
    asked = Message.objects.get(conversation=conversation, seq=1)
    refused = call(client, "post", f"/{conversation.pk}/branches", {"before": str(answer.pk)})
    assert refused.json()["code"] == "invalid_request"
    assert call(client, "post", f"/{other.pk}/branches", {"before": str(asked.pk)}).status_code == 404
    assert Conversation.objects.count() == 2


def test_a_branch_has_the_summary_the_pins_and_the_taint_of_then(client, conversation, fill):
    fill(12)
    said = {"conversation": conversation, "role": "assistant", "type": "SUMMARY", "kind": "rolling"}
    for seq, through in ((13, 4), (14, 8)):
        Message.objects.create(**said, seq=seq, content=f"Through {through}.")
        Compaction.objects.create(
            conversation=conversation, keep_tokens=1, status="done", first_seq=1, through_seq=through, summary_seq=seq
        )
    Conversation.objects.filter(pk=conversation.pk).update(
        next_seq=15,
        summary_seq=14,
        consolidated_through=8,
        tainted_at_seq=9,
        tainted_by="a page",
        pins=[{"seq": 3, "by": "a", "at": "x"}, {"seq": 11, "by": "a", "at": "x"}],
    )
    fill(2)  # 15 and 16
    late = branch(client, conversation, 15)
    assert (late.summary_seq, late.consolidated_through) == (14, 8)
    assert [seq for seq, _ in contents(late)] == [*range(1, 13), 14]
    assert (late.tainted_at_seq, late.tainted_by, len(late.pins)) == (9, "a page", 2)
    early = branch(client, conversation, 7)  # before anything was summarised
    assert (early.summary_seq, early.consolidated_through) == (None, 0)
    assert (early.tainted_at_seq, early.tainted_by, [each["seq"] for each in early.pins]) == (None, "", [3])
    Conversation.objects.filter(pk=conversation.pk).update(starts_at_seq=15, tainted_at_seq=None, tainted_by="")
    Message.objects.filter(conversation=conversation, seq=2).update(tainted_by="a page")
    again = branch(client, conversation, 7)  # what it has begun anew without is in its prompts again
    assert (again.starts_at_seq, again.tainted_at_seq, again.tainted_by) == (1, 1, "a page")


def test_a_branch_of_a_long_conversation_has_its_newest_messages(client, conversation, fill):
    fill(1_205)
    made = branch(client, conversation, 1_205)
    assert [contents(made)[0][0], contents(made)[-1][0], made.erased_through] == [205, 1204, 204]


def test_files_of_a_branch_stay_while_it_does(client, conversation):
    body = {"content": [{"type": "image", "name": "a.png", "data": b64encode(picture()).decode()}]}
    assert call(client, "post", f"/{conversation.pk}/turns", body).status_code == 202
    Message.objects.update(seq=1)
    Conversation.objects.filter(pk=conversation.pk).update(next_seq=3)
    Message.objects.create(conversation=conversation, seq=2, role="user", content="And?")
    made = branch(client, conversation, 2)
    (copied,) = Message.objects.filter(conversation=made)
    assert copied.attachments == Message.objects.get(conversation=conversation, seq=1).attachments
    assert AttachmentUse.objects.filter(conversation=made, message_id=copied.pk).count() == 1


def test_calls_in_messages_tell_what_became_of_them(client, conversation, say):
    turn = say("Hello")
    asked = [{"id": f"call_{n}", "type": "function", "function": {"name": "time", "arguments": "{}"}} for n in (1, 2)]
    Message.objects.create(conversation=conversation, turn=turn, seq=9, role="assistant", tool_calls=asked)
    about = {"conversation_id": conversation.pk, "turn_id": turn.pk, "owner_id": turn.owner_id, "agent": "default"}
    ToolCall.objects.create(
        **about, call_id="call_2", position=1, tool_name="time", arguments="{}", status=CallStatus.REJECTED,
        created_at=Now(),
    )  # fmt: skip
    (shown,) = [
        each for each in call(client, "get", f"/{conversation.pk}/messages").json()["results"] if each["seq"] == 9
    ]
    assert [each["status"] for each in shown["toolCalls"]] == [None, "REJECTED"]


def test_schedules_are_listed_by_their_conversation(client, conversation):
    for given in ({}, {"conversationId": str(conversation.pk)}):
        body = {"prompt": "Hello", "cron": "0 9 24 12 *"} | given
        made = client.post("/api/v1/schedules", body, content_type="application/json", secure=True)
        assert made.status_code == 201, made.content
    found = client.get(f"/api/v1/schedules?conversationId={conversation.pk}", secure=True).json()["results"]
    assert [row["conversationId"] for row in found] == [str(conversation.pk)]
    assert client.get("/api/v1/schedules?conversationId=x", secure=True).json()["code"] == "invalid_request"
