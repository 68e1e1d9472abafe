"""The transcript in the console: what people read of a conversation, page by page, whatever stands in it."""

import json
import re

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from agent.llm.base import tool_call
from conversations.admin import reading
from conversations.engine import turn_control
from conversations.models import Conversation, Message, Turn
from nanohost.lib import redaction
from nanohost.lib.admin import shown
from tests.support.scripts import script
from tests.support.working import settle
from tools.models import CallStatus, ToolCall

pytestmark = pytest.mark.django_db(transaction=True)


def transcript(conversation, **query):
    return reverse("admin:conversations_conversation_transcript", args=[conversation.pk]), query


def look(client, conversation, **query):
    address, query = transcript(conversation, **query)
    answer = client.get(address, query)
    assert answer.status_code == 200, answer.content[:2000]
    return answer.content.decode()


def count_on(conversation):
    """Go on counting behind the messages that a test has made by itself."""
    last = Message.objects.transcript().filter(conversation=conversation).last()
    conversation.next_seq = last.seq + 1 if last else 1
    Conversation.objects.filter(pk=conversation.pk).update(next_seq=conversation.next_seq)


def numbers(html):
    return [int(seq) for seq in re.findall(r'id="message-(\d+)"', html)]


@pytest.fixture
def fill(conversation):
    """Turns of ``each`` messages, a tool's call and its result among them."""

    def make(turns, each=4):
        owner = conversation.owner_id
        first = Conversation.objects.get(pk=conversation.pk).next_turn
        for number in range(first, first + turns):
            turn = Turn.objects.create(
                conversation=conversation, owner_id=owner, number=number, model="m", status="succeeded", request_id="r"
            )
            seq = (number - 1) * each + 1
            call = tool_call(f"call_{number}", "time", "{}")
            rows = [("user", None, ""), ("assistant", [call], ""), ("tool", None, call["id"]), ("assistant", None, "")]
            for offset, (role, calls, answers) in enumerate(rows):
                Message.objects.create(
                    conversation=conversation,
                    turn=turn,
                    seq=seq + offset,
                    role=role,
                    content=f"words {seq + offset}",
                    tool_calls=calls,
                    tool_call_id=answers,
                )
            ToolCall.objects.create(
                conversation_id=conversation.pk,
                turn_id=turn.pk,
                owner_id=owner,
                agent="default",
                call_id=call["id"],
                position=0,
                tool_name="time",
                arguments="{}",
                status=CallStatus.SUCCESS,
                result="noon",
                duration_ms=12,
            )
        Conversation.objects.filter(pk=conversation.pk).update(next_turn=first + turns)
        count_on(conversation)

    return make


# --- what is read ------------------------------------------------------------------------------------------------


def test_a_turn_shows_what_was_said_called_and_spent(admin_client, conversation, say, tool_settings):
    tool_settings("time")
    (turn,) = settle([say("What time is it?")])
    html = look(admin_client, conversation)
    assert "What time is it?" in html
    assert 'id="turn-1"' in html
    assert "agent version 1" in html
    assert f"{turn.prompt_tokens} + {turn.completion_tokens} tokens" in html
    assert html.count("<details") == html.count("<summary>") == 1
    assert "SUCCESS" in html
    assert "took " in html
    assert numbers(html) == [1, 2, 4]  # the third is the call's result, which is folded
    assert ToolCall.objects.get().result.split("T")[0] in html


def test_a_refused_call_names_its_rule(admin_client, conversation, say, tool_settings):
    tool_settings("time")
    settle([say("What time is it?")])
    ToolCall.objects.update(rule="not_enabled", status="REJECTED")
    assert "by the rule <bdi>not_enabled</bdi>" in look(admin_client, conversation)


def test_a_failure_is_told_in_plain_words(admin_client, conversation, say):
    turn = say("hello")
    Turn.objects.filter(pk=turn.pk).update(status="failed", error_code="llm_unavailable", error_detail="connect")
    html = look(admin_client, conversation)
    assert "The model&#x27;s provider cannot be reached, or fails; retries were used up. connect" in html


def test_what_waits_in_the_inbox_stands_at_the_end(admin_client, conversation, fill, say):
    fill(30)
    say("still to come")
    html = look(admin_client, conversation)
    assert html.index("words 120") < html.index("Waiting for its turn") < html.index("still to come")
    assert "still to come" not in look(admin_client, conversation, before=50)


def test_summaries_and_commands_are_marked(admin_client, conversation, say):
    settle([say("/help")])
    Message.objects.create(conversation=conversation, seq=3, role="system", type="SUMMARY", kind="rolling", content="S")
    count_on(conversation)
    html = look(admin_client, conversation)
    assert "Command to the host" in html
    assert "The host" in html
    assert "Summary, for the prompts from here on" in html
    assert html.count('class="bubble command"') == 2


def test_an_import_has_messages_without_turns_and_calls_without_records(admin_client, conversation):
    calls = [tool_call("c", "old_tool", '{"a": 1}')]
    for seq, (role, asked, answers) in enumerate([("user", None, ""), ("assistant", calls, ""), ("tool", None, "c")]):
        Message.objects.create(
            conversation=conversation, seq=seq + 1, role=role, tool_calls=asked, tool_call_id=answers, content=f"w{seq}"
        )
    count_on(conversation)
    html = look(admin_client, conversation)
    assert "no record" in html
    assert "w2" in html
    assert numbers(html) == [1, 2]


def test_an_empty_conversation_says_so(admin_client, conversation):
    assert "No messages yet." in look(admin_client, conversation)


def test_a_conversation_that_is_gone_is_not_there(admin_client, conversation):
    address, _ = transcript(conversation)
    conversation.delete()
    assert admin_client.get(address).status_code == 404


# --- pages -------------------------------------------------------------------------------------------------------


def test_pages_go_from_the_newest_to_the_oldest_and_back_and_leave_nothing_out(conversation, fill):
    fill(90)
    page, seen = reading.read(conversation), []
    assert page.newer is None
    while True:
        here = [bubble.message.seq for part in page.parts for bubble in part.bubbles]
        seen = here + seen
        if page.older is None:
            break
        page = reading.read(conversation, before=page.older)
    every = [seq for seq in range(1, 361) if seq % 4 != 3]
    assert seen == every
    forth = [bubble.message.seq for part in page.parts for bubble in part.bubbles]
    while page.newer is not None:
        page = reading.read(conversation, after=page.newer)
        forth += [bubble.message.seq for part in page.parts for bubble in part.bubbles]
    assert forth == every


def test_a_turn_that_goes_over_two_pages_is_whole(conversation, fill):
    fill(90)
    Message.objects.filter(seq__gt=260).exclude(seq=260).update(turn=Turn.objects.get(number=65))
    page = reading.read(conversation)
    assert [part.turn.number for part in page.parts] == [65]
    # The call before the page's beginning is on the page before; its result stands for itself.
    assert page.older == 261


@pytest.mark.parametrize("query", [{"before": "x"}, {"after": "-1"}, {"before": "9" * 30}, {"after": "²"}, {"p": "1"}])
def test_an_address_that_makes_no_sense_shows_the_newest(admin_client, conversation, fill, query):
    fill(30)
    assert numbers(look(admin_client, conversation, **query))[-1] == 120


def test_a_page_costs_as_many_statements_however_long_the_conversation_is(admin_client, conversation, fill):
    def spent(**query):
        address, query = transcript(conversation, **query)
        with CaptureQueriesContext(connection) as queries:
            admin_client.get(address, query)
        return len(queries)

    fill(1)
    few = spent()
    fill(150)
    assert spent() == spent(before=400) + 2 == few <= 13  # one of which finds its sub-agents


def test_of_a_long_text_the_beginning_is_shown(admin_client, conversation):
    text = "x" * (reading.MAX_CHARS + 7)
    Message.objects.create(conversation=conversation, seq=1, role="user", content=text)
    count_on(conversation)
    html = look(admin_client, conversation)
    assert "7 more characters are left out here." in html
    assert text not in html


# --- hostile content ---------------------------------------------------------------------------------------------

HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg onload=alert(1)>",
    "![pixel](https://evil.example/pixel.png)",
    "[click](javascript:alert(1))",
    '"><a href="javascript:alert(1)">x</a>',
    "</pre></details><iframe src=//evil.example></iframe>",
    "{{ constructor.constructor('alert(1)')() }}",
    "<style>*{display:none}</style>",
    "&lt;script&gt;",
]
UNSEEN = {
    "left\u202eright": "U+202E",
    "a\u2066b": "U+2066",
    "zero\u200bwidth": "U+200B",
    "esc\x1b[31m": "U+001B",
    "tag\U000e0041": "U+E0041",
    "line\u2028end": "U+2028",
}


@pytest.fixture
def hostile(conversation):
    """A conversation with each of these in each place a stranger can reach."""
    seq = 0
    for number, text in enumerate((*HOSTILE, *UNSEEN)):
        turn = Turn.objects.create(
            conversation=conversation,
            owner_id=conversation.owner_id,
            number=number + 1,
            model=text[:128],
            request_id="r",
            status="failed",
            error_code="turn_error",
            error_detail=text,
        )
        calls = [{"id": text, "type": "function", "function": {"name": text, "arguments": json.dumps({text: text})}}]
        for role, asked, answers in [("user", None, ""), ("assistant", calls, ""), ("tool", None, text)]:
            seq += 1
            Message.objects.create(
                conversation=conversation,
                turn=turn,
                seq=seq,
                role=role,
                content=text,
                tool_calls=asked,
                tool_call_id=answers,
                tool_name=text,
                created_at=timezone.now(),
            )
        ToolCall.objects.create(
            conversation_id=conversation.pk,
            turn_id=turn.pk,
            agent="a",
            call_id=text,
            position=0,
            tool_name=text,
            arguments=text,
            status=CallStatus.REJECTED,
            rule=text[:64],
            result=text,
        )
    count_on(conversation)
    return conversation


def markup(html):
    """The tags of a page's own part, with their attributes."""
    tags = re.findall(r"<[a-z/][^>]*>", html[html.index('id="transcript"') :])
    return [tag for tag in tags if not tag.startswith('<script src="/static/')]


def assert_harmless(html):
    for tag in markup(html):
        assert not re.match(r"<(script|img|svg|iframe|style|object|embed|video|audio|link)\b", tag), tag
        assert not re.search(r"\son\w+=|javascript:|evil\.example|\ssrc=", tag), tag
    for text in HOSTILE[:-1]:
        assert not any(text in tag for tag in markup(html))


def test_nothing_that_a_stranger_wrote_is_markup(admin_client, hostile):
    html = look(admin_client, hostile)
    assert_harmless(html)
    assert html.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 5  # the model, said three times, its name, the error
    assert "&amp;lt;script&amp;gt;" in html  # what was escaped before it came here is shown as it came


def test_what_nobody_would_see_is_named(admin_client, hostile):
    html = look(admin_client, hostile)
    body = html[html.index('id="transcript"') :]
    for text, name in UNSEEN.items():
        assert name in body
        assert text not in body
    assert body.count('<pre class="said" dir="auto">') > 50


def test_what_is_shown_keeps_what_people_write():
    assert shown("Zeile 1\r\nZeile 2\t€ 👩‍👩‍👧 שלום <b>") == "Zeile 1\nZeile 2\t€ 👩‍👩‍👧 שלום &lt;b&gt;"


def test_a_known_secret_is_not_shown(admin_client, conversation, say, own_secrets):
    redaction.remember("OPENAI_API_KEY", "a-key-that-nobody-may-see")
    say("my key is a-key-that-nobody-may-see")
    html = look(admin_client, conversation)
    assert "a-key-that-nobody-may-see" not in html
    assert "my key is [redacted]" in html


def test_half_a_surrogate_pair_in_arguments_breaks_neither_the_turn_nor_a_page(
    admin_client, conversation, say, tool_settings
):
    """JSON may spell it; no page and no database can hold it."""
    tool_settings("time")
    half = {"a": "\ud800", "timezone": "\udfff"}
    arguments = (half, half | {"password": "hunter2hunter2"}, {"\ud800": 1}, {"timezone": ["\ud800"]})
    asked = [{"name": "time", "arguments": json.dumps(each)} for each in arguments]
    (turn,) = settle([say(script({"call": asked}, {"say": "Done."}))])
    assert turn.status == "succeeded"
    assert "U+D800" in look(admin_client, conversation)
    assert not ToolCall.objects.filter(arguments__contains="hunter2").exists()
    sent = admin_client.get(reverse("admin:conversations_turn_sent", args=[turn.pk]))
    assert (sent.status_code, "U+D800" in sent.content.decode()) == (200, True)
    for call in ToolCall.objects.all():
        assert admin_client.get(f"{reverse('admin:simulator')}?call={call.pk}").status_code == 200


def test_only_what_waits_is_said_to_wait(admin_client, conversation, say):
    say("first")
    gone, failed, waits = say("taken back"), say("ended by hand"), say("still to come")
    turn_control.cancel_turn(gone)
    turn_control.fail_turn(failed, reason="not today")
    html = look(admin_client, conversation)
    never, waiting = html.index('id="never-begun"'), html.index('id="waiting"')
    places = [html.index(text) for text in ("taken back", "ended by hand", "first", waits.messages.get().content)]
    assert never < places[0] < places[1] < waiting < places[2] < places[3]
