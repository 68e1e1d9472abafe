"""What agents do in chats besides speaking: they change it, react, show cards and send files; and people who may
decide on their calls there."""

import base64
import json
import re
from datetime import timedelta

import pytest
from django.contrib.auth.models import Permission
from django.db.models import F
from django.utils import timezone

from agent.models import Agent
from conversations.channel_models import ApprovalNotice, Channel, Sender, SenderState
from conversations.deliveries import outbox
from conversations.engine import sweeper
from conversations.engine.consent import approvals
from conversations.kinds import DELIVERIES
from conversations.models import Delivery, DeliveryStatus, OutgoingFile, Turn
from nanohost.console.roles import sync_roles
from tests.support.delivering import deliver
from tests.support.factories import OwnerFactory
from tests.support.hosts import ROOT
from tests.support.platforms import WebhookProgram
from tests.support.scripts import script
from tests.support.working import advance, run_call, settle
from tools.approvals import Voter
from tools.models import Approval, ApprovalState, CallStatus, ToolCall, ToolSetting
from tools.workspace.store import open_workspace

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def program(settings, owner):
    running = WebhookProgram(settings)
    Agent.objects.update(max_tool_rounds=20)
    running.channel(owner, allow_from=["anna", "bert", "carl"])
    yield running
    running.close()


def call(name: str, /, **arguments) -> dict:
    return {"call": [{"name": name, "arguments": arguments}]}


def sent(program) -> list[dict]:
    """All that has gone out by now, in its order."""
    while waiting := list(Delivery.objects.open().order_by("number")[:1]):
        (row,) = deliver(*waiting)
        assert row.status == DeliveryStatus.DELIVERED, row.error
    return [json.loads(each.body) for each in program.receiver.received]


def results() -> list[tuple[str, str]]:
    settle(Turn.objects.open())
    return list(ToolCall.objects.order_by("created_at", "position").values_list("status", "result"))


def test_the_pages_examples_are_what_happens(program, tool_settings, settings, tmp_path, owner):
    section = (ROOT / "docs" / "tools.md").read_text().split("\n## Messages\n")[1].split("\n## ")[0]
    examples = re.findall(r"^\| `(\w+) (\{.*\})` \| `(.*)` \|$", section.split("\nIn a chat")[1], re.MULTILINE)
    assert [name for name, _, _ in examples] == ["edit_message", "react", "card", "send_file", "sticker"]
    settings.WORKSPACES_DIR = str(tmp_path)
    for name in ("message", "edit_message", "react", "card"):
        tool_settings(name)
    for name in ("send_file", "sticker"):
        tool_settings(name, grants=["FS_READ"])
    index = re.search(r"`stickers/index.json`, as in nanobot: `(\{.*?\})`", section)[1]
    with open_workspace(agent="default", owner_id=owner.pk) as workspace:
        workspace.write("reports/may.txt", b"9:00, 10:00", trusted=True)
        workspace.write("stickers/index.json", index.encode(), trusted=True)
    steps = [call(name, **json.loads(arguments)) for name, arguments, _ in examples]
    program.tell(script(call("message", content="I look."), *steps, {"say": "Done."}))
    for (_, _, result), (status, found) in zip(examples, results()[1:], strict=True):
        assert status == CallStatus.SUCCESS, found
        assert re.fullmatch(re.escape(result).replace("…", r"\d+"), found), found
    said = ["I have compared three trains.", "", "**Trains**\n\n- 9:00\n- 10:00\n\n[Tickets](https://example.org/t)"]
    shown = "[hooray](https://example.org/hooray.webp)"
    assert [each.get("text", "") for each in sent(program)] == [*said, "All of them.", shown, "Done."]


def test_what_was_said_is_changed_and_messages_are_reacted_to(program, tool_settings):
    for name in ("message", "edit_message", "react", "card"):
        tool_settings(name)
    shows = {"title": "Trains", "items": ["9:00", "10:00"], "links": {"All [of them]": "https://example.org/t"}}
    program.tell(script(call("message", content="I look."), {"say": "Wait."}))
    assert results() == [(CallStatus.SUCCESS, "Said; it is being sent to origin as message 1.")]
    assert len(sent(program)) == 2
    steps = [call("edit_message", number=1, content="I have looked.")]
    steps += [call("react", emoji="👍"), call("card", **shows), {"say": "Done."}]
    program.tell(script(*steps), event_id="event-2")
    assert [status for status, _ in results()] == [CallStatus.SUCCESS] * 4
    said, _, edit, reaction, card, done = sent(program)
    assert (edit["type"], edit["messageId"], edit["text"]) == ("edit", said["id"], "I have looked.")
    assert (reaction["type"], reaction["messageId"], reaction["emoji"]) == ("reaction", "event-2", "👍")
    assert card["text"] == "**Trains**\n\n- 9:00\n- 10:00\n\n[All (of them)](https://example.org/t)"
    assert done["text"] == "Done."
    # What is not there, is somebody else's, or makes no sense.
    for wrong in (
        call("edit_message", number=99, content="x"),
        call("edit_message", number=3, content="x"),
        call("edit_message", number=1, content=" "),
        call("edit_message", number=1, content="x", destination="boss"),
        call("react", emoji=""),
        call("card", title="x", links={"a": "javascript:alert(1)"}),
        call("card", title="x", links={"a": "https://e.org/) [x](http://evil"}),
    ):
        ToolCall.objects.all().delete()
        program.tell(script(wrong, {"say": "Done."}), event_id=json.dumps(wrong)[:190])
        ((status, _),) = results()
        assert status in (CallStatus.FAILED, CallStatus.REJECTED), wrong


def test_a_file_of_the_workspace_goes_to_the_chat(program, tool_settings, settings, tmp_path, owner):
    settings.WORKSPACES_DIR = str(tmp_path)
    tool_settings("send_file", grants=["FS_READ"])
    with open_workspace(agent="default", owner_id=owner.pk) as workspace:
        workspace.write("reports/may.txt", b"The figures", trusted=True)
    sends = call("send_file", path="reports/may.txt", content="Here it is.")
    program.tell(script(sends, {"say": "Done."}))
    assert results() == [(CallStatus.SUCCESS, "The file is being sent to origin.")]
    file, done = sent(program)
    assert (file["type"], file["text"], done["text"]) == ("file", "Here it is.", "Done.")
    assert file["file"]["name"] == "may.txt"
    assert base64.b64decode(file["file"]["data"]) == b"The figures"
    for number, wrong in enumerate(("../default/1/x", "/etc/passwd", "none.txt")):
        ToolCall.objects.all().delete()
        program.tell(script(call("send_file", path=wrong), {"say": "Done."}), event_id=f"wrong {number}")
        ((status, _),) = results()
        assert status == CallStatus.FAILED, wrong
    Delivery.objects.all().delete()
    assert not OutgoingFile.objects.exists()


@pytest.mark.parametrize(
    "index",
    [
        b'{"hooray": "http://example.org/a.webp"}',
        b'{"hooray": "https://example.org/a) [x](http://evil.example"}',
        b'{"hooray": 5, "boo": "https://example.org/a.webp"}',
        b'["hooray"]',
        b"\xff",
        None,
    ],
)
def test_a_sticker_that_is_none_is_not_shown(program, tool_settings, settings, tmp_path, owner, index):
    settings.WORKSPACES_DIR = str(tmp_path)
    tool_settings("sticker", grants=["FS_READ"])
    if index:
        with open_workspace(agent="default", owner_id=owner.pk) as workspace:
            workspace.write("stickers/index.json", index, trusted=True)
    program.tell(script(call("sticker", name="hooray"), {"say": "Done."}))
    ((status, result),) = results()
    assert (status, "boo" in result) == (CallStatus.FAILED, False)
    assert [each["text"] for each in sent(program)] == ["Done."]


def test_what_is_for_later_goes_out_then_and_holds_nothing_up(program, tool_settings):
    tool_settings("message")
    tool_settings("edit_message")
    later = call("message", content="It is time.", delay_minutes=30)
    program.tell(script(later, call("edit_message", number=1, content="It is late."), {"say": "Soon."}))
    (_, told), (_, changed) = results()
    assert "will be sent in 30 minutes to origin as message 1" in told
    assert "Message 1 is being changed" in changed
    row = Delivery.objects.get(number=1)
    assert timedelta(minutes=29) < row.deliver_after - timezone.now() <= timedelta(minutes=30)
    assert outbox.claim(row.pk, worker="early") is None
    (answer,) = deliver(Delivery.objects.get(number=2))
    assert answer.status == DeliveryStatus.DELIVERED
    half_an_hour = timedelta(minutes=30)
    Delivery.objects.filter(pk=row.pk).update(
        deliver_after=F("deliver_after") - half_an_hour,
        run_after=F("run_after") - half_an_hour,
        notified_at=F("notified_at") - half_an_hour,
    )
    assert sweeper.find(DELIVERIES) == [row.pk]
    assert [each["text"] for each in sent(program)] == ["Soon.", "It is late."]
    assert not outbox.change(row, "It is there already.")


def test_only_what_goes_to_a_chat_is_sent_later(program, tool_settings, conversation, say):
    tool_settings("message")
    for arguments in ({"delay_minutes": 5}, {"delay_minutes": -1}, {"delay_minutes": 20_000}):
        say(script(call("message", content="Later.", **arguments), {"say": "Done."}))
    assert {status for status, _ in results()} == {CallStatus.FAILED}
    assert not Delivery.objects.exists()


def test_progress_and_hints_are_told_where_the_channel_wants_them(program, tool_settings):
    tool_settings("time")
    steps = script(call("time", zone="Europe/Berlin" + 40 * "x") | {"say": "I look."}, {"say": "Done."})
    program.tell(steps)
    results()
    assert [each["text"] for each in sent(program)] == ["Done."]
    Channel.objects.update(progress=True, tool_hints=True)
    program.tell(steps, event_id="event-2")
    results()
    hint = '`time("Europe/Berlinxxxxxxxxxxxxxxxxxxxxxxxxxxx…")`'
    assert [each["text"] for each in sent(program)][1:] == ["I look.", hint, "Done."]


# --- approvals ---------------------------------------------------------------------------------------------------


@pytest.fixture
def deciders(program):
    """Bert and Carl are users who may decide; Anna is one who may not."""
    channel = Channel.objects.get()
    Channel.objects.update(approvals=True)
    sync_roles()
    may = Permission.objects.get(codename="decide_approval")
    for name in ("anna", "bert", "carl"):
        user = OwnerFactory(username=name, is_staff=True)
        if name != "anna":
            user.user_permissions.add(may)
        row, _ = Sender.objects.get_or_create(channel=channel, sender_id=name)
        Sender.objects.filter(pk=row.pk).update(owner=user, state=SenderState.ALLOWED)
    # Whose conversation it is stays the channel's owner's.
    Sender.objects.filter(sender_id="anna").update(owner=None)


def asking(program, tool_settings, effects, *, event_id: str = "event-1", four_eyes: bool = False) -> Approval:
    tool_settings("append_line", grants=["FS_WRITE"])
    ToolSetting.objects.filter(name="append_line").update(approval="always", four_eyes=four_eyes)
    program.tell(script(call("append_line", path=str(effects), line="one"), {"say": "Done."}), event_id=event_id)
    for turn in Turn.objects.open():
        advance(turn)
    return Approval.objects.order_by("-requested_at").first()


def press(program, value: str, who: str, event_id: str) -> None:
    program.tell("", type="choice", value=value, messageId="m", event_id=event_id, sender={"id": who, "name": who})


def go_on() -> None:
    for row in ToolCall.objects.filter(status=CallStatus.QUEUED):
        run_call(row)
    settle(Turn.objects.open())


def test_who_may_decides_in_the_chat_and_nobody_else(program, deciders, tool_settings, effects):
    approval = asking(program, tool_settings, effects)
    (notice,) = sent(program)
    yes, no = (each["value"] for each in notice["options"])
    assert "append_line" in notice["text"]
    assert all(len(each.encode()) <= 64 for each in (yes, no))
    press(program, yes, "anna", "e-2")  # no user
    bert = Sender.objects.get(sender_id="bert").owner
    may = list(bert.user_permissions.all())
    bert.user_permissions.clear()
    press(program, yes, "bert", "e-21")  # a user who may not
    bert.user_permissions.set(may)
    Sender.objects.filter(sender_id="carl").update(state=SenderState.BLOCKED)
    press(program, yes, "carl", "e-3")
    Channel.objects.update(approvals=False)
    press(program, yes, "bert", "e-4")
    Channel.objects.update(approvals=True)
    for number, value in enumerate(("a.y", f"a{'0' * 32}.y", yes[:-1] + "x", yes.replace("a", "q", 1))):
        press(program, value, "bert", f"e-5{number}")
    approval.refresh_from_db()
    assert approval.state == ApprovalState.PENDING
    press(program, yes, "bert", "e-6")
    press(program, no, "bert", "e-7")
    approval.refresh_from_db()
    assert (approval.state, approval.decided_by) == (ApprovalState.APPROVED, "bert")
    go_on()
    assert effects.read_text() == "one\n"
    texts = [(each["type"], each["text"]) for each in sent(program)[1:]]
    assert ("edit", "**append_line** for the agent default: approved by bert.") in texts
    assert any(text.startswith("Not decided: This was approved by bert already") for _, text in texts)


def test_what_is_approved_is_what_was_shown_and_four_eyes_are_four(program, deciders, tool_settings, effects):
    approval = asking(program, tool_settings, effects, four_eyes=True)
    (notice,) = sent(program)
    yes, _ = (each["value"] for each in notice["options"])
    press(program, yes, "bert", "e-2")
    press(program, yes, "bert", "e-3")
    approval.refresh_from_db()
    assert (approval.state, approval.votes.count()) == (ApprovalState.PENDING, 1)
    # Somebody proposes other arguments in the console: a button of what was shown approves nothing.
    other = json.dumps({"path": str(effects), "line": "two"})
    dora = OwnerFactory(username="dora")
    approvals.decide(approval.pk, by=Voter(pk=dora.pk, name="dora"), decision="approve", arguments=other)
    press(program, yes, "carl", "e-4")
    approval.refresh_from_db()
    assert approval.state == ApprovalState.PENDING
    # By words, where somebody likes those better, and with a reason.
    code = ApprovalNotice.objects.get().code
    carl = {"sender": {"id": "carl", "name": "Carl"}}
    program.tell(f"deny {code} Not today.", event_id="e-5", **carl)
    approval.refresh_from_db()
    assert (approval.state, approval.decided_by, approval.reason) == (ApprovalState.DENIED, "carl", "Not today.")
    go_on()
    assert not effects.exists()
    # The owner of a conversation is not one of the four.
    owner = Sender.objects.get(sender_id="bert").owner
    Channel.objects.update(owner=owner)
    approval = asking(program, tool_settings, effects, event_id="e-6", four_eyes=True)
    if approval.state == ApprovalState.PENDING:
        Approval.objects.filter(pk=approval.pk).update(owner_id=owner.pk)
        code = ApprovalNotice.objects.get(approval_id=approval.pk).code
        program.tell(f"approve {code}", event_id="e-7", sender={"id": "bert"})
        assert not approval.votes.exists()
