"""What people do with a conversation in the console: export it, cancel and ask again its turns, delete it."""

import asyncio
import json
from itertools import islice

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group, Permission
from django.contrib.contenttypes.models import ContentType
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from conversations.admin import export
from conversations.engine import inbox, turn_control
from conversations.models import Conversation, Message, Turn
from conversations.web.gateway import PARTS_HEADER, ResponseGateway
from memory import log
from memory.models import HistoryEntry
from nanohost.console.roles import ROLES, sync_roles
from nanohost.lib import redaction
from tests.support.compacting import compact
from tests.support.factories import OwnerFactory
from tests.support.working import settle
from tools.models import ToolCall

pytestmark = pytest.mark.django_db(transaction=True)


def address(name, *args):
    return reverse(f"admin:conversations_conversation_{name}", args=args)


def told(answer):
    """The messages that the next page shows."""
    return [str(each) for each in answer.context["messages"]]


def logged():
    return list(LogEntry.objects.order_by("pk").values_list("user__username", "change_message", "object_repr"))


@pytest.fixture
def clients(db):
    """A signed-in client of each role."""
    sync_roles()
    made = {}
    for role in ROLES:
        user = OwnerFactory(username=role, is_staff=True)
        user.groups.add(Group.objects.get(name=role))
        made[role] = Client(enforce_csrf_checks=False)
        made[role].force_login(user)
    return made


# --- export ------------------------------------------------------------------------------------------------------


def test_all_that_waits_is_exported(conversation, say, monkeypatch):
    monkeypatch.setattr(export, "BATCH", 2)
    turns = [say(f"words {number}") for number in range(5)]
    turn_control.cancel_turn(turns[2])
    exported = json.loads(b"".join(export.as_json(conversation)))["messages"]
    assert [each["content"] for each in exported] == [f"words {number}" for number in range(5)]


@pytest.fixture
def spoken(conversation, say, tool_settings):
    tool_settings("time")
    settle([say("What time is it?"), say("/help"), say("Grüße \u2028 <b>")])
    say("still waiting")
    return conversation


def test_both_exports_have_all_there_is(admin_client, spoken):
    answer = admin_client.get(address("json", spoken.pk))
    assert answer["Content-Disposition"] == f'attachment; filename="conversation-{spoken.pk}.json"'
    whole = json.loads(b"".join(answer.streaming_content))
    assert [turn["number"] for turn in whole["turns"]] == [1, 2, 3, 4]
    assert [call["toolName"] for call in whole["turns"][0]["toolCalls"]] == ["time"]
    assert [message["seq"] for message in whole["messages"]] == [1, 2, 3, 4, 5, 6, 7, 8, None]
    assert whole["messages"][6]["content"] == "Grüße \u2028 <b>"
    lines = b"".join(admin_client.get(address("jsonl", spoken.pk)).streaming_content).decode().strip().split("\n")
    by_type = {"conversation": [], "turn": [], "message": []}
    for line in lines:
        record = json.loads(line)
        by_type[record.pop("record")].append(record)
    assert by_type == {
        "conversation": [whole["conversation"]],
        "turn": whole["turns"],
        "message": whole["messages"],
    }


def test_an_empty_conversation_is_exported(admin_client, conversation):
    whole = json.loads(b"".join(admin_client.get(address("json", conversation.pk)).streaming_content))
    assert (whole["turns"], whole["messages"]) == ([], [])


@pytest.mark.parametrize("made_by", [export.as_json, export.as_json_lines])
def test_an_export_reads_part_by_part(conversation, monkeypatch, made_by):
    Message.objects.bulk_create(
        Message(conversation=conversation, seq=seq, role="user", content="x") for seq in range(1, 1001)
    )
    conversation.next_seq = 1001
    parts = made_by(conversation)
    list(islice(parts, 6))
    with CaptureQueriesContext(connection) as queries:
        part = next(parts)
    assert len(queries) == 1
    assert part.count(b'"seq"') == export.BATCH
    rest = b"".join(parts)
    assert rest.count(b'"seq":1000,') == 1


def visit(room, *, taken):
    """What a browser gets of a room's answer that hangs up after ``taken`` parts; None: it takes all."""
    sent = []

    async def serve():
        gone = asyncio.Event()
        begun = iter([{"type": "http.request", "body": b""}])

        async def receive():
            if request := next(begun, None):
                return request
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)
            if len(sent) - 1 == taken:
                gone.set()
                await asyncio.sleep(0)

        scope = {"type": "http", "method": "GET", "path": "/x", "query_string": b"", "root_path": ""}
        scope["headers"] = [(b"host", b"localhost")]
        await room(
            scope | {"http_version": "1.1", "scheme": "http", "server": ("h", 80), "client": None}, receive, send
        )
        await room.close()

    asyncio.run(serve())
    return sent


@pytest.mark.parametrize("taken", [None, 3])
def test_parts_are_made_as_they_are_taken_and_closed_at_the_end(taken):
    made, closed = [], []

    class Answer:
        def __iter__(self):
            for number in range(1000):
                made.append(number)
                yield b"part %d," % number

        def close(self):
            closed.append(True)

    def django(environ, start_response):
        start_response("200 OK", [("Content-Type", "text/plain"), (PARTS_HEADER, "1")])
        return Answer()

    sent = visit(ResponseGateway(django), taken=taken)
    assert closed == [True]
    assert PARTS_HEADER.lower().encode() not in dict(sent[0]["headers"])
    if taken is None:
        assert len(made) == 1000
        assert b"".join(each["body"] for each in sent[1:]).count(b"part") == 1000
        assert sent[-1] == {"type": "http.response.body", "body": b""}
    else:
        assert len(made) < 10


def test_an_export_holds_no_known_secret(admin_client, conversation, say, own_secrets):
    redaction.remember("OPENAI_API_KEY", "a-key-that-nobody-may-see")
    say("my key is a-key-that-nobody-may-see")
    for name in ("json", "jsonl"):
        body = b"".join(admin_client.get(address(name, conversation.pk)).streaming_content)
        assert b"my key is [redacted]" in body


# --- cancel, and ask again ---------------------------------------------------------------------------------------


def failed(turn):
    Turn.objects.filter(pk=turn.pk).update(status="failed", error_code="llm_unavailable")
    return Turn.objects.get(pk=turn.pk)


@pytest.mark.parametrize(("role", "may"), [("viewer", False), ("operator", True), ("admin", True)])
def test_who_cancels_and_asks_again(clients, role, may, conversation, say):
    turn = failed(say("hello"))
    waiting = say("and then?")
    client = clients[role]
    page = client.get(address("transcript", conversation.pk)).content.decode()
    assert ("Cancel turn 2" in page, "Ask turn 1 again" in page) == (may, may)
    status = 302 if may else 403
    assert client.post(address("cancel_turn", conversation.pk, 2)).status_code == status
    assert client.post(address("ask_again", conversation.pk, 1)).status_code == status
    waiting.refresh_from_db()
    assert (waiting.status == "cancelled", Turn.objects.count() == 3) == (may, may)
    if may:
        again = Turn.objects.get(number=3)
        assert (again.model, again.messages.get().content) == (turn.model, "hello")
        key = conversation.key
        assert logged() == [(role, "Cancelled turn 2.", key), (role, "Asked turn 1 again, as turn 3.", key)]


@pytest.mark.parametrize(("permission", "may"), [("turn", True), ("conversation", False)])
def test_it_takes_the_permissions_by_which_turns_are_acted_on_in_their_own_list(
    client, owner, conversation, say, permission, may
):
    failed(say("hello"))
    waiting = say("and then?")
    type(owner).objects.filter(pk=owner.pk).update(is_staff=True)
    for act in ("cancel", "requeue"):
        of_model = ContentType.objects.get(app_label="conversations", model=permission)
        known = {"content_type": of_model, "codename": f"{act}_{permission}"}
        owner.user_permissions.add(Permission.objects.get_or_create(**known, defaults={"name": act})[0])
    owner.user_permissions.add(Permission.objects.get(codename="view_conversation"))
    client.force_login(owner)
    expected = 302 if may else 403
    assert client.post(address("cancel_turn", conversation.pk, 2)).status_code == expected
    assert client.post(address("ask_again", conversation.pk, 1)).status_code == expected
    for act in ("cancel", "ask_again"):
        client.post(address("changelist"), {"action": act, "_selected_action": [conversation.pk]})
    waiting.refresh_from_db()
    assert (waiting.status == "cancelled", Turn.objects.count() == 3) == (may, may)


def test_a_turn_is_asked_again_once_however_often_it_is_clicked(admin_client, conversation, say):
    failed(say("hello"))
    for _ in range(3):
        admin_client.post(address("ask_again", conversation.pk, 1))
    assert Turn.objects.count() == 2
    settle(Turn.objects.filter(number=2))
    assert Message.objects.get(turn__number=2, role="assistant").content == "You said: hello"


@pytest.mark.parametrize(("role", "may"), [("viewer", False), ("operator", True)])
def test_wherever_a_failed_turn_is_listed_it_is_asked_again_by_one_click(clients, role, may, conversation, say):
    turn = failed(say("hello"))
    Conversation.objects.filter(pk=conversation.pk).update(next_seq=2)
    turn.messages.update(seq=1)
    client, ask = clients[role], address("ask_again", conversation.pk, 1)
    places = {
        "turns": reverse("admin:conversations_turn_changelist"),
        "turn": reverse("admin:conversations_turn_change", args=[turn.pk]),
        "transcript": address("transcript", conversation.pk),
        "agent": reverse("admin:agent_agent_whole", args=[conversation.agent_id]),
        "queue": reverse("queue"),
    }

    def shown():
        pages = {name: client.get(place).content.decode() for name, place in places.items()}
        return {
            name: (f'action="{ask}"' in page, "as <a" in page or ">as turn 2<" in page) for name, page in pages.items()
        }

    assert shown() == dict.fromkeys(places, (may, False))
    for place in places.values() if may else ():
        page = client.get(place).content.decode()
        at = page.index(f'action="{ask}"')
        assert "csrfmiddlewaretoken" in page[page.rindex("<form ", 0, at) : page.index("</form>", at)], place
    inbox.ask_again(turn, request_id="r")
    assert shown() == dict.fromkeys(places, (False, True))


def test_a_second_click_says_what_became_of_the_first(admin_client, conversation, say):
    failed(say("hello"))
    for words in ("is asked again, as turn 2.", "was asked again already, as turn 2."):
        answer = admin_client.post(address("ask_again", conversation.pk, 1), follow=True)
        assert told(answer) == [f"Turn 1 {words}"]


def test_what_rode_along_is_not_asked_twice(conversation, say):
    turn = failed(say("the question"))
    Message.objects.create(conversation=conversation, turn=turn, seq=1, role="user", content="[note] before")
    Message.objects.filter(content="the question").update(seq=2)
    again = inbox.ask_again(turn, request_id="r")
    assert again.messages.get().content == Message.objects.filter(turn=turn).order_by("pk").last().content


def test_what_has_not_failed_is_not_asked_again(admin_client, conversation, say):
    settle([say("hello")])
    answer = admin_client.post(address("ask_again", conversation.pk, 1), follow=True)
    assert told(answer) == ["Turn 1: Only a turn that has failed can be asked again. It is succeeded."]
    assert Turn.objects.count() == 1
    answer = admin_client.post(address("cancel_turn", conversation.pk, 1), follow=True)
    assert told(answer) == ["Turn 1 has ended already."]


@pytest.mark.parametrize("act", ["cancel_turn", "ask_again"])
def test_looking_does_nothing(admin_client, conversation, say, act):
    say("hello")
    assert admin_client.get(address(act, conversation.pk, 1)).status_code == 405
    assert admin_client.post(address(act, conversation.pk, 2)).status_code == 404
    assert Turn.objects.get().status == "queued"


def test_a_page_of_another_site_can_do_nothing(admin_client, conversation, say):
    say("hello")
    client = Client(enforce_csrf_checks=True)
    client.cookies = admin_client.cookies
    for act in (address("cancel_turn", conversation.pk, 1), address("delete", conversation.pk)):
        assert client.post(act).status_code == 403
    assert Turn.objects.get().status == "queued"


def test_several_conversations_at_once(clients, conversation, say, owner):
    other = inbox.start_conversation(owner_id=owner.pk, metadata={})
    for each in (conversation, other):
        say("one", conversation=each)
        say("two", conversation=each)
    chosen = {"_selected_action": [conversation.pk, other.pk]}
    clients["viewer"].post(address("changelist"), chosen | {"action": "cancel"})
    assert not Turn.objects.exclude(status="queued").exists()
    clients["operator"].post(address("changelist"), chosen | {"action": "cancel"})
    assert Turn.objects.filter(status="cancelled").count() == 4
    Turn.objects.filter(number=2).update(status="failed")
    page = clients["operator"].post(address("changelist"), chosen | {"action": "ask_again"})
    assert (page.status_code, Turn.objects.filter(number=3).count()) == (200, 0)
    answer = {"action": "ask_again", "confirmed": "yes", "reason": "They are back.", "next": page.context["back"]}
    turns = [turn.pk for turn in page.context["turns"]]
    done = clients["operator"].post(page.context["confirm_at"], answer | {"_selected_action": turns})
    assert (done.url, Turn.objects.filter(number=3, status="queued").count()) == (address("changelist"), 2)


# --- delete ------------------------------------------------------------------------------------------------------


def test_what_goes_and_what_stays(clients, spoken, agent):
    whose = {"agent": agent.name, "owner_id": spoken.owner_id}
    entry = log.append(**whose, content="They spoke.", conversation_id=spoken.pk, happened_at=spoken.created_at)
    page = clients["admin"].get(address("delete", spoken.pk)).content.decode()
    assert "up to 8 of them" in page
    assert "it cannot be undone" in page.lower()
    assert Conversation.objects.exists()
    answer = clients["admin"].post(address("delete", spoken.pk), {"post": "yes"}, follow=True)
    assert told(answer) == [f"The conversation {spoken.key} is deleted."]
    assert (Conversation.objects.count(), Turn.objects.count(), Message.objects.count()) == (0, 0, 0)
    assert ToolCall.objects.filter(conversation_id=spoken.pk).exists()
    assert HistoryEntry.objects.get() == entry
    assert [row[::2] for row in logged()] == [("admin", spoken.key)]
    gone = clients["admin"].get(address("delete", spoken.pk))
    assert gone.status_code == 404


@pytest.mark.parametrize("role", ["viewer", "operator"])
def test_only_an_admin_deletes(clients, role, spoken):
    assert "to-delete" not in clients[role].get(address("transcript", spoken.pk)).content.decode()
    assert clients[role].get(address("delete", spoken.pk)).status_code == 403
    assert clients[role].post(address("delete", spoken.pk), {"post": "yes"}).status_code == 403
    assert Conversation.objects.exists()


# --- pin, and undo -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("role", "may"), [("viewer", False), ("operator", True), ("admin", True)])
def test_who_pins_a_message(clients, role, may, conversation, fill):
    fill(4)
    client, status = clients[role], 302 if may else 403
    page = client.get(address("transcript", conversation.pk)).content.decode()
    assert ("Pin message 1" in page) == may
    assert client.post(address("pin", conversation.pk, 1)).status_code == status
    page = client.get(address("transcript", conversation.pk)).content.decode()
    assert ("<strong>pinned</strong>" in page, "Unpin message 1" in page) == (may, may)
    assert client.post(address("unpin", conversation.pk, 1)).status_code == status
    conversation.refresh_from_db()
    assert conversation.pins == []
    key = conversation.key
    assert logged() == ([(role, "Pinned message 1.", key), (role, "Unpinned message 1.", key)] if may else [])


def test_what_is_not_pinned_is_told(admin_client, conversation, fill):
    fill(4)
    Message.objects.filter(seq=2).update(role="tool", tool_call_id="1")
    assert "Pin message 2<" not in admin_client.get(address("transcript", conversation.pk)).content.decode()
    answer = admin_client.post(address("pin", conversation.pk, 2), follow=True)
    assert told(answer)[0].startswith("Message 2 is not pinned. Only messages of a user or the assistant")
    assert logged() == []
    for seq in (99, 10**30):
        assert admin_client.post(address("pin", conversation.pk, seq)).status_code == 404
    assert admin_client.get(address("pin", conversation.pk, 1)).status_code == 405


@pytest.mark.parametrize(("role", "may"), [("viewer", False), ("operator", True), ("admin", True)])
def test_who_undoes_a_summary_and_says_why(clients, role, may, conversation, fill):
    fill(44)
    seq = compact(conversation).summary_seq
    client, key = clients[role], conversation.key
    page = client.get(address("transcript", conversation.pk)).content.decode()
    assert ("Undo this summary" in page) == may
    undo = address("undo", conversation.pk, seq)
    assert client.get(undo).status_code == (200 if may else 403)
    for unconfirmed in ({}, {"reason": "wrong"}, {"confirmed": "yes"}, {"confirmed": "yes", "reason": " "}):
        client.post(undo, unconfirmed)
        conversation.refresh_from_db()
        assert conversation.summary_seq == seq
    client.post(undo, {"confirmed": "yes", "reason": "It is <b>wrong</b>."})
    conversation.refresh_from_db()
    assert (conversation.summary_seq is None) == may
    page = client.get(address("transcript", conversation.pk)).content.decode()
    assert (f"by <bdi>{role}: It is &lt;b&gt;wrong&lt;/b&gt;.</bdi>" in page) == may
    assert logged() == ([(role, f"Undid summary {seq}: It is <b>wrong</b>.", key)] if may else [])
    if may:
        again = client.post(undo, {"confirmed": "yes", "reason": "again"}, follow=True)
        assert told(again) == [f"Summary {seq} stays. It was undone before."]


def test_without_its_token_nothing_is_pinned_or_undone(admin_user, conversation, fill):
    fill(44)
    seq = compact(conversation).summary_seq
    client = Client(enforce_csrf_checks=True)
    client.force_login(admin_user)
    for name, number in (("pin", 1), ("unpin", 1), ("undo", seq)):
        forged = client.post(address(name, conversation.pk, number), {"confirmed": "yes", "reason": "x"})
        assert forged.status_code == 403
