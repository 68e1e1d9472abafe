"""What an agent keeps for one conversation, by its tool."""

import json
import re
from datetime import UTC, datetime

import pytest

from conversations.engine import inbox
from conversations.models import Conversation
from conversations.transfer.files import header_in
from nanohost.lib import clock
from nanohost.lib.moments import absolute
from tests.support import tool_calls
from tests.support.working import settle
from tools.models import CallStatus

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def keep(tool_settings, conversation):
    """``keep("step", "2")``: what the tool says."""
    tool_settings("session_state")

    def use(key="", value=None, of=conversation):
        asked = {"key": key} | ({} if value is None else {"value": value})
        call = tool_calls.ask("session_state", conversation_id=of.pk, owner_id=of.owner_id, **asked)
        return tool_calls.run_in_thread(call)

    return use


def test_what_is_kept_is_there_later_and_can_be_forgotten(keep, conversation):
    assert keep("step", "2").result == "Kept as step."
    assert keep("step").result == "2"
    assert json.loads(keep().result)["step"]["value"] == "2"
    assert keep("step", "").result == "Nothing is kept as step any more."
    assert (keep("step").result, keep().result) == ("Nothing is kept as step.", "Nothing is kept.")
    conversation.refresh_from_db()
    assert (conversation.state, conversation.state_times) == ({}, {})


def test_each_key_has_the_time_at_which_it_was_kept(keep, conversation, settings):
    settings.TIME_ZONE = "Asia/Kolkata"
    before = clock.read()
    keep("step", "1")
    keep("name", "Anna")
    first = json.loads(keep().result)
    keep("step", "2")
    second = json.loads(keep().result)
    assert {key: each["value"] for key, each in second.items()} == {"step": "2", "name": "Anna"}
    assert first["step"]["keptAt"].endswith("+05:30")
    times = [datetime.fromisoformat(each["keptAt"]) for each in (first["step"], first["name"], second["step"])]
    assert [before.replace(microsecond=0), *times] == sorted([before.replace(microsecond=0), *times])
    assert second["name"] == first["name"]
    exact = {key: datetime.fromisoformat(at) for key, at in Conversation.objects.get().state_times.items()}
    assert before <= exact["name"] <= exact["step"] <= clock.read()


def test_what_an_earlier_version_kept_can_be_read(keep):
    Conversation.objects.update(state={"step": "2", "odd": 7})
    assert keep("step").result == "2"
    assert json.loads(keep().result) == {"step": {"value": "2", "keptAt": None}, "odd": {"value": 7, "keptAt": None}}
    keep("step", "3")
    shown = json.loads(keep().result)
    assert (shown["step"]["value"], shown["odd"]) == ("3", {"value": 7, "keptAt": None})
    assert shown["step"]["keptAt"]


def test_the_console_shows_when(keep, conversation, admin_client):
    Conversation.objects.update(state={"old": "<b>1</b>"})
    keep("step", "2")
    page = admin_client.get(f"/admin/conversations/conversation/{conversation.pk}/change/").content.decode()
    at = datetime.fromisoformat(Conversation.objects.get().state_times["step"])
    assert re.search(f'<td>step</td><td>2</td><td><time [^>]*title="{absolute(at)}"', page)
    assert "<td>old</td><td>&lt;b&gt;1&lt;/b&gt;</td><td>–</td>" in page
    exported = admin_client.get(f"/admin/conversations/conversation/{conversation.pk}/export.json")
    told = json.loads(exported.getvalue())["conversation"]
    assert (told["state"], told["stateTimes"].keys()) == ({"old": "<b>1</b>", "step": "2"}, {"step"})


def test_another_conversation_of_the_same_owner_has_its_own(keep, owner):
    keep("step", "2")
    other = inbox.start_conversation(owner_id=owner.pk, metadata={})
    assert keep("step", of=other).result == "Nothing is kept as step."


def test_there_is_a_bound(keep, conversation):
    call = keep("all", "x" * 9000)
    assert (call.status, call.rule) == (CallStatus.FAILED, "raised")
    assert "Forget something first" in call.result
    Conversation.objects.update(state={str(number): "x" for number in range(50)})
    assert keep("one more", "x").status == CallStatus.FAILED
    assert keep("7", "y").result == "Kept as 7."


def test_new_keeps_it_and_clear_forgets_it(keep, conversation, say):
    keep("step", "2")
    settle([say("/new")])
    assert keep("step").result == "2"
    settle([say("/clear")])
    assert keep("step").result == "Nothing is kept as step."
    assert Conversation.objects.get().state_times == {}


def test_a_model_uses_it_in_a_turn(keep, conversation, say):
    script = [{"call": [{"name": "session_state", "arguments": {"key": "step", "value": "3"}}]}, {"say": "{results}"}]
    (turn,) = settle([say(json.dumps({"script": script}))])
    assert turn.messages.last().content == "Kept as step."
    conversation.refresh_from_db()
    assert conversation.state == {"step": "3"}


def test_times_that_are_none_are_left_out_of_an_import():
    ours = {"state": {"step": "2", "odd": 7}, "state_times": {"step": "soon", "odd": 5, "gone": "2026-03-01T12:00:00Z"}}
    header = header_in({"nanohost": ours, "key": "a:b"}, line=1, stem="", zone=UTC)
    assert (header.state, header.state_times) == (ours["state"], {})
    assert (
        header_in({"nanohost": ours | {"state_times": []}, "key": "a:b"}, line=1, stem="", zone=UTC).state_times == {}
    )
