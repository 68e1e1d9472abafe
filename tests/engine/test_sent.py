"""What a model was sent can be told from what is stored: built again, it is what the model's server received."""

import json
import re
from datetime import date
from html import unescape

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from agent import tokens
from agent.models import AgentVersion
from agent.tokens import Correction
from conversations.engine import model_request
from conversations.models import Compaction, Conversation, Message, Turn
from memory import documents, log
from memory.models import HistoryEntry, MemoryVersion
from tests.support.compacting import run
from tests.support.openai_server import OpenAIServer, failure
from tests.support.scripts import script
from tests.support.working import advance, settle
from tools.models import ToolSetting

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def nothing_learned(monkeypatch):
    """Of models, by tests before."""
    monkeypatch.setattr(tokens, "correction", Correction())


def as_text(messages, tools):
    return json.dumps([messages, tools], ensure_ascii=False)


def received(server: OpenAIServer) -> list[str]:
    """What the server received of turns, without compactions."""
    bodies = [request.body for request in server.requests if "tool_choice" not in request.body]
    return [as_text(body["messages"], body.get("tools", [])) for body in bodies]


def told() -> list[str]:
    """What can be told of all turns' model calls, in their order; fails if there is a doubt."""
    found = []
    for turn in Turn.objects.order_by("number"):
        for call in model_request.calls_of(turn):
            assert call.record is not None
            again = model_request.build_again(turn.conversation, turn.model, call.record)
            assert again.doubts == []
            found.append(as_text(again.request.messages, again.request.tools))
    return found


def compact_if_due() -> bool:
    due = Compaction.objects.filter(status="queued").first()
    if due:
        run(due)
        due.refresh_from_db()
        assert due.status == "done", due.error
    return bool(due)


def asks(name, **arguments):
    return {"call": [{"name": name, "arguments": arguments}]}


def test_what_is_told_is_what_the_server_received(conversation, say, model, agent, tool_settings):
    """Over many turns, with tools, compactions, rewrites of the memory, notes, changes of the agent, limits, and a
    window that is too small for what is said."""
    tool_settings("time", "remember", "daily_note", "echo")
    agent.context_window, agent.output_reserve, agent.max_tool_rounds = 4500, 500, 2
    agent.save_version(by="anna")
    compacted = 0
    for number in range(50):
        words = f"Word {number} {'and so on ' * (number % 30)} \u202e €"
        match number % 10:
            case 2:
                words = f"long {number} " * 1800
            case 3:
                words = script(asks("time", timezone="UTC"), {"say": "The tool says: {results}"})
            case 4:
                words = script(asks("daily_note", text=f"note {number}"), {"say": "Noted."})
            case 5:
                words = script(asks("remember", fact=f"fact {number}"), {"say": "I will."})
            case 6:
                words = script(*[asks("echo", value="x" * 200)] * 4, {"say": "Enough."})
            case 7:
                agent.refresh_from_db()
                agent.documents = {"SOUL": f"You are patient, in turn {number}."}
                agent.save_version(by="anna")
            case 8:
                whose = {"agent": agent.name, "owner_id": conversation.owner_id}
                known = documents.background(**whose, today=date.today())
                documents.rewrite(
                    **whose, base=known.version, content=f"- memory {number}", source="person", checked=False
                )
            case 9:
                ToolSetting.objects.filter(name="echo").update(enabled=number % 20 == 9)
        (turn,) = settle([say(words)])
        assert turn.status == "succeeded", (turn.error_code, turn.error_detail)
        compacted += compact_if_due()
    seen, again = received(model), told()
    assert len(seen) > 60
    assert again == seen
    # And all of it was there to be told.
    assert compacted > 2
    assert AgentVersion.objects.count() > 3
    assert MemoryVersion.objects.count() > 3
    assert HistoryEntry.objects.filter(kind="note").count() > 3
    records = [each for each in Message.objects.values_list("sent", flat=True) if each]
    assert any("limit" in each for each in records)
    assert any("summary" in each for each in records)
    assert len({tuple(each["tools"]) for each in records}) > 1
    assert any("characters left out here" in text for text in seen)
    assert any(kept["last"] - kept["first"] > text.count('"role"') for kept, text in zip(records, seen, strict=True))


def test_a_request_that_was_made_smaller_is_told_as_it_was_answered(say, model):
    settle([say("x" * 400_000)])
    for _ in range(3):
        settle([say("y" * 100_000)])
    model.forget()
    too_long = failure(400, "context_length_exceeded")
    model.answer(too_long, too_long)
    (turn,) = settle([say("z" * 100_000)])
    assert turn.status == "succeeded"
    (call,) = model_request.calls_of(turn)
    again = model_request.build_again(turn.conversation, turn.model, call.record)
    assert again.doubts == []
    assert as_text(again.request.messages, again.request.tools) == received(model)[-1]
    assert len(call.record["refused"]) == 2
    assert call.record["refused"][0] > call.record["refused"][1] > call.record["room"]


def test_a_request_without_an_answer_is_told_as_well(say, model):
    model.answer(failure(400, "model_not_found"))
    (turn,) = settle([say("hello")])
    assert turn.error_code == "llm_request_refused"
    (call,) = model_request.calls_of(turn)
    assert call.answer is None
    assert told() == received(model)


def test_one_that_is_tried_again_stands_before_its_answer(say, model):
    model.answer(failure(503, headers={"Retry-After": "0"}))
    turn = advance(say("hello"))
    assert turn.waiting_for == "retry"
    Turn.objects.update(run_after=None)
    (turn,) = settle([turn])
    assert turn.status == "succeeded"
    first, second = model_request.calls_of(turn)
    assert (first.answer, second.answer.seq) == (None, 2)
    assert told() == received(model)


# --- what can't be told is said ----------------------------------------------------------------------------------


@pytest.fixture
def asked(say, agent, conversation, tool_settings):
    """A turn with a memory, and its record."""
    tool_settings("time")
    documents.rewrite(
        agent=agent.name, owner_id=conversation.owner_id, base=0, content="- roses", source="person", checked=False
    )
    log.note(agent=agent.name, owner_id=conversation.owner_id, text="a note", today=date.today())
    (turn,) = settle([say("hello")])
    (call,) = model_request.calls_of(turn)
    return turn, call.record


def doubts(turn, record):
    return model_request.build_again(Conversation.objects.get(pk=turn.conversation_id), turn.model, record).doubts


def test_a_record_is_small(asked):
    _, record = asked
    assert len(json.dumps(record)) < 400


@pytest.mark.parametrize(
    ("lose", "doubt"),
    [
        (lambda: AgentVersion.objects.all().delete(), "version 1 of the agent is not kept"),
        (lambda: MemoryVersion.objects.all().delete(), "version 1 of the long-term memory is gone"),
        (lambda: HistoryEntry.objects.all().delete(), "the notes of {day} have changed"),
    ],
)
def test_what_is_gone_is_named(asked, lose, doubt):
    turn, record = asked
    assert doubts(turn, record) == []
    lose()
    assert doubts(turn, record) == [doubt.format(day=record["notes"][0])]
    assert model_request.build_again(turn.conversation, turn.model, record).request is None


def test_another_wording_or_setting_is_noticed(asked, settings, monkeypatch):
    turn, record = asked
    settings.TIME_ZONE = "Asia/Tokyo"
    assert doubts(turn, record) == ["the messages differ: another release or other settings made them"]
    settings.TIME_ZONE = "UTC"
    monkeypatch.setattr("agent.prompt.SENT_NOTICE", "Other words.")
    assert doubts(turn, record) == ["the messages differ: another release or other settings made them"]


def test_a_tool_that_is_gone_or_described_otherwise_is_noticed(asked):
    turn, record = asked
    gone = record | {"tools": ["time", "of_an_earlier_release"]}
    assert "no code registers the tool of_an_earlier_release any more" in doubts(turn, gone)
    assert doubts(turn, record | {"toolsum": "0" * 16}) == ["the tools are described in another way by now"]


# --- the page ----------------------------------------------------------------------------------------------------


def look(client, turn, **query):
    answer = client.get(reverse("admin:conversations_turn_sent", args=[turn.pk]), query)
    assert answer.status_code == 200
    return answer.content.decode()


def test_the_page_shows_the_call_that_is_asked_for(admin_client, say, model, tool_settings):
    tool_settings("time")
    (turn,) = settle([say("What time is it? <script>alert(1)</script>")])
    first, last = look(admin_client, turn, call="1"), look(admin_client, turn)
    for html, body in ((first, model.requests[0].body), (last, model.requests[1].body)):
        assert "This is what was sent, byte by byte." in html
        whole = re.search(r'<pre class="code" id="json">(.*?)</pre>', html, re.DOTALL)[1]
        assert json.loads(unescape(whole)) == {name: body[name] for name in ("model", "messages", "tools")}
        assert "<script>alert" not in html
    assert "Answered by" in first
    assert "Model call 2 of 2" in look(admin_client, turn, call="99")


def test_the_page_says_what_it_cannot_tell(admin_client, asked, say):
    turn, _ = asked
    AgentVersion.objects.all().delete()
    html = look(admin_client, turn)
    assert "not surely what was sent" in html
    assert "version 1 of the agent is not kept" in html
    Message.objects.update(sent=None)
    assert "What was sent is not known" in look(admin_client, turn)
    (command,) = settle([say("/help")])
    assert "No model call of this turn is recorded." in look(admin_client, command)


def test_the_page_costs_as_many_statements_however_many_calls_there_are(admin_client, say, tool_settings):
    tool_settings("time")
    (once,) = settle([say("What time is it?")])
    (often,) = settle([say(script(*[asks("time", timezone="UTC")] * 2, {"say": "Late."}))])

    def spent(turn):
        with CaptureQueriesContext(connection) as queries:
            look(admin_client, turn)
        return len(queries)

    assert spent(once) == spent(often) <= 12
