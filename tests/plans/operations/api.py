"""The API, and searching."""

from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlencode

from django.test import Client

import tools.approvals
from conversations import search, sharing
from conversations.channel_models import Chat
from conversations.engine import deferred, steps
from conversations.engine.channels import from_channels
from conversations.engine.consent import approvals, questions
from conversations.models import Conversation, DeferredMessage, Message, Share, StoredResponse
from conversations.question_models import Question
from conversations.statuses import TurnStatus
from nanohost.lib.clock import from_now
from nanohost.lib.ids import new_id
from tests.plans.operations.channels import said_in_a_chat
from tests.plans.operations.common import A_PAGE, HOT, READING, Bound, a_turn, a_usual_one, operation, say, the_long_one
from tests.plans.operations.deferred import defer
from tools import calls
from tools.models import Approval, ToolCall
from tools.registry import Caller

KEY = "nh_plans_0123456789abcdefghij"


def call_api(method: str, path: str, *, status: int = 200, body: object = None, under: str = "/api/v1/") -> Any:
    client = Client(headers={"Authorization": f"Bearer {KEY}"})
    request = {"data": body, "content_type": "application/json"} if body is not None else {}
    response = getattr(client, method.lower())(f"{under}{path}", secure=True, **request)
    assert response.status_code == status, response.content
    return response


def on_api(name: str, path: Callable[[], str], bound: Bound = HOT, **options: Any) -> None:
    """An operation of the API; ``path`` fills in what its name leaves open."""

    def prepare() -> Callable[[], object]:
        filled_in = path()
        return lambda: call_api(name.split(" ")[0], filled_in, **options)

    operation(name, bound)(prepare)


def a_workspace_file(name: str) -> str:
    """Where a file is that was put into a workspace."""
    path = f"agents/default/files/{new_id().hex}-{name}"
    call_api("PUT", path, body={"content": "words"}, status=201)
    return path


def cursor(**position: object) -> str:
    """As the API makes it: ``p`` is a position, ``r=1`` goes back from it."""
    return quote(b64encode(urlencode(position).encode()))


def a_deferred_one() -> DeferredMessage:
    defer(deferred.Kind.WAKE, when="2100-01-01T00:00Z")
    return DeferredMessage.objects.latest("pk")


def an_approval() -> Approval:
    """Of a turn that waits for it, and for nothing else."""
    turn = the_long_one().turns.filter(status=TurnStatus.SUCCEEDED).order_by("number")[1001]
    about = {"conversation_id": turn.conversation_id, "turn_id": turn.pk, "owner_id": 1, "agent": "default"}
    asked = {"call_id": "call_1001", "position": 1001, "tool_name": "time", "arguments": "{}", "effects": "read"}
    call = calls.new_call(**about, **asked, request_id="", refused=None, rate_limited=False, consent="consent:always")
    calls.store([call])
    return tools.approvals.request(call, four_eyes=False)


@operation("approvals.decide")
def decide() -> Callable[[], object]:
    approval = an_approval()
    return lambda: approvals.decide(approval.pk, by=tools.approvals.Voter(pk=1, name="anna"), decision="approve")


def a_question() -> Question:
    """Of the same turn."""
    call = ToolCall.objects.get(pk=an_approval().call_id)
    about = {"conversation_id": call.conversation_id, "turn_id": call.turn_id, "owner_id": 1, "agent": "default"}
    return Question.objects.create(**about, call_id=call.pk, text="Which?", options=["a"], expires_at=from_now(60))


@operation("questions.answer")
def answer_question() -> Callable[[], object]:
    question = a_question()
    return lambda: questions.answer(question.pk, "1", by="anna")


@operation("questions.ask")
def ask_something() -> Callable[[], object]:
    question = a_question()
    call = ToolCall.objects.get(pk=question.call_id)
    Question.objects.all().delete()
    asks = Caller(conversation_id=call.conversation_id, turn_id=call.turn_id, owner_id=1, agent="default",
                  call_id=call.pk, request_id="")  # fmt: skip
    return lambda: questions.ask(asks, "Which?", ["a", "b"], minutes=5)


@operation("questions.asked_in")
def answer_in_a_chat() -> Callable[[], object]:
    channel, chat = from_channels.active("shop"), Chat.objects.latest("pk")
    return lambda: questions.asked_in(channel, said_in_a_chat(), chat)


@operation("questions.expire_due")
def expire_question() -> Callable[[], object]:
    Question.objects.filter(pk=a_question().pk).update(expires_at=from_now(-1))
    return questions.expire_due


@operation("questions.forget_old")
def forget_questions() -> Callable[[], object]:
    Question.objects.filter(pk=a_question().pk).update(state="answered", asked_at=from_now(-31 * 86_400))
    return questions.forget_old


@operation("steps.end_calls")
def withdraw() -> Callable[[], object]:
    approval = an_approval()
    return lambda: steps.end_calls([approval.turn_id], rule="cancelled", reason="")


@operation("approvals.expire_due")
def expire() -> Callable[[], object]:
    approval = an_approval()
    Approval.objects.filter(pk=approval.pk).update(expires_at=from_now(-1))
    return approvals.expire_due


def far_into_the_list() -> str:
    middle = Conversation.objects.filter(owner=1).order_by("-created_at")[1000]
    return str(middle.created_at)


on_api("POST conversations", lambda: "conversations", body={}, status=201)
on_api("POST conversations, by a key", lambda: "conversations", body={"key": "plans:1"}, status=201)
on_api("POST conversations, by a key there is", lambda: "conversations", body={"key": "api:1"})
ASKED = {"model": "default", "messages": [{"role": "user", "content": "Hello"}]}
V1 = {"under": "/v1/", "body": ASKED}
on_api("POST chat/completions", lambda: "chat/completions", status=202, **V1)


ANSWERED = ASKED["messages"] + [{"role": "assistant", "content": "Hi."}, {"role": "user", "content": "And now?"}]  # type: ignore[operator]
on_api(
    "POST chat/completions, with what was said before",
    lambda: "chat/completions",
    under="/v1/",
    body=ASKED | {"messages": ANSWERED},
    status=202,
)


@operation("POST chat/completions, to a conversation")
def chat_that_stays() -> Callable[[], object]:
    body = ASKED | {"metadata": {"conversation_id": str(the_long_one().pk)}}
    return lambda: call_api("POST", "chat/completions", status=202, under="/v1/", body=body)


on_api("GET models", lambda: "models", under="/v1/")
on_api("GET models/{}", lambda: "models/default", under="/v1/")


def of_the_long_one(rest: str = "") -> str:
    return f"conversations/conv_{the_long_one().pk.hex}{rest}"


def an_item() -> str:
    """The id of what a user said in its midst."""
    said = the_long_one().messages.filter(role=Message.Role.USER, seq__gt=5000).order_by("seq").first()
    assert said
    return f"msg_{said.pk.hex}"


def a_response() -> str:
    """The id of one in the midst of the long conversation."""
    turn = a_turn()
    row_id = StoredResponse.id_of(turn.pk, 0)
    StoredResponse.objects.get_or_create(pk=row_id, defaults={"turn": turn, "number": 0, "asked": {"model": "default"}})
    return f"resp_{row_id.hex}"


ITEMS = {"items": [{"role": "user", "content": "Hello"}]}
RESPONSE = {"model": "default", "input": "Hello"}
AS_V1: dict[str, Any] = {"under": "/v1/"}
on_api("POST conversations, as OpenAI has them", lambda: "conversations", body=ITEMS, **AS_V1)
on_api("GET conversations/{}, as OpenAI has them", lambda: of_the_long_one(), **AS_V1)
on_api("POST conversations/{}", lambda: of_the_long_one(), body={"metadata": {}}, **AS_V1)
on_api("GET conversations/{}/items", lambda: of_the_long_one("/items"), **AS_V1)
on_api("GET conversations/{}/items, far down", lambda: of_the_long_one(f"/items?after={an_item()}"), **AS_V1)
on_api("GET conversations/{}/items/{}", lambda: of_the_long_one(f"/items/{an_item()}"), **AS_V1)
on_api("DELETE conversations/{}/items/{}", lambda: of_the_long_one(f"/items/{an_item()}"), **AS_V1)
on_api("POST conversations/{}/items", lambda: of_the_long_one("/items"), body=ITEMS, **AS_V1)
on_api("POST responses", lambda: "responses", body=RESPONSE, status=202, **AS_V1)
on_api("POST responses/input_tokens", lambda: "responses/input_tokens", body=RESPONSE, **AS_V1)
on_api("POST responses/compact", lambda: "responses/compact", body=RESPONSE, status=202, **AS_V1)
on_api("GET responses/{}", lambda: f"responses/{a_response()}", **AS_V1)
on_api("GET responses/{}, as a stream", lambda: f"responses/{a_response()}?stream=true", status=202, **AS_V1)
on_api("GET responses/{}/input_items", lambda: f"responses/{a_response()}/input_items", **AS_V1)
on_api("POST responses/{}/cancel", lambda: f"responses/{a_response()}/cancel", body={}, **AS_V1)
on_api("DELETE responses/{}", lambda: f"responses/{a_response()}", **AS_V1)


# It stores what it copies: some 400 messages, each in five indexes.
@operation("POST responses, from an earlier one", replace(HOT, blocks=5000))
def branch() -> Callable[[], object]:
    body = RESPONSE | {"previous_response_id": a_response()}
    return lambda: call_api("POST", "responses", status=202, body=body, **AS_V1)


# Of the 1,000 turns that a page looks at, each is read, and its calls are where these are asked for.
TURNS_PAGE = Bound(rows=10_000, blocks=6_000)
on_api("GET turns", lambda: "turns")
on_api("GET turns, that match", lambda: "turns?status=failed&tag=a:b&agent=default&minSeconds=999", bound=TURNS_PAGE)
on_api("GET turns, far down", lambda: f"turns?cursor={a_turn().pk}&minCost=99", bound=TURNS_PAGE)
on_api("GET turns, by a tool", lambda: "turns?tool=unknown&rule=unknown", bound=TURNS_PAGE)
on_api("GET turns, by words", lambda: "turns?search=found", bound=A_PAGE)
on_api("GET conversations", lambda: "conversations")
on_api("GET conversations, by a key", lambda: "conversations?key=api:1")
on_api("GET conversations, far down", lambda: f"conversations?cursor={cursor(p=far_into_the_list())}")
on_api("GET conversations, and back", lambda: f"conversations?cursor={cursor(r=1, p=far_into_the_list())}")
on_api("GET conversations, that are not archived", lambda: "conversations?archived=false&pinned=false")
on_api("GET conversations, that are archived", lambda: "conversations?archived=true")
on_api("GET conversations, that are pinned", lambda: "conversations?pinned=true")
on_api("GET conversations, by their titles", lambda: "conversations?search=found", bound=A_PAGE)
on_api("GET conversations/{}", lambda: f"conversations/{the_long_one().pk}")
on_api("PATCH conversations/{}", lambda: f"conversations/{the_long_one().pk}", body={"pinned": True})
on_api("DELETE conversations/{}", lambda: f"conversations/{a_usual_one().pk}", status=204)
on_api(
    "POST conversations/{}/chat", lambda: f"conversations/{the_long_one().pk}/chat", body={"message": "x"}, status=202
)
on_api("GET conversations/{}/messages", lambda: f"conversations/{the_long_one().pk}/messages?limit=50")
on_api(
    "GET conversations/{}/messages, far down",
    lambda: f"conversations/{the_long_one().pk}/messages?cursor={cursor(p=90000)}",
)
on_api(
    "GET conversations/{}/messages, and back",
    lambda: f"conversations/{the_long_one().pk}/messages?cursor={cursor(r=1, p=90000)}",
)
on_api(
    "GET conversations/{}/messages, from the end",
    lambda: f"conversations/{the_long_one().pk}/messages?cursor={cursor(r=1)}",
)
on_api(
    "POST conversations/{}/messages",
    lambda: f"conversations/{the_long_one().pk}/messages",
    body={"message": "x", "trigger": False},
    status=202,
)
on_api("GET conversations/{}/deferred", lambda: f"conversations/{the_long_one().pk}/deferred?limit=50")
on_api("GET deferred/{}", lambda: f"deferred/{a_deferred_one().pk}")
on_api("POST deferred/{}/cancel", lambda: f"deferred/{a_deferred_one().pk}/cancel", body={})
on_api("GET conversations/{}/turns", lambda: f"conversations/{the_long_one().pk}/turns?limit=50")
on_api(
    "GET conversations/{}/turns, far down",
    lambda: f"conversations/{the_long_one().pk}/turns?cursor={cursor(p=a_turn().number)}",
)
on_api(
    "POST conversations/{}/turns", lambda: f"conversations/{the_long_one().pk}/turns", body={"message": "x"}, status=202
)


@operation("POST conversations/{}/branches", READING)
def branches() -> Callable[[], object]:
    conversation = the_long_one()
    asked = Message.objects.get(conversation=conversation, seq=90_001)
    path = f"conversations/{conversation.pk}/branches"
    return lambda: call_api("POST", path, status=201, body={"before": str(asked.pk)})


def a_share() -> Share:
    return sharing.share(the_long_one(), days=1, with_tools=False)[0]


on_api("POST conversations/{}/shares", lambda: f"conversations/{the_long_one().pk}/shares", body={}, status=201)
on_api("GET shares", lambda: "shares")
on_api("GET shares, of a conversation", lambda: f"shares?conversationId={a_share().conversation_id}")
on_api("DELETE shares/{}", lambda: f"shares/{a_share().pk}", status=204)


@operation("sharing.find")
def found_by_its_token() -> Callable[[], object]:
    _, token = sharing.share(the_long_one(), days=1, with_tools=False)
    return lambda: sharing.find(token)


@operation("sharing.read")
def shared_messages() -> Callable[[], object]:
    link = a_share()
    return lambda: sharing.read(link, after=50_000, most=200)


@operation("search.find")
def found_by_words() -> Callable[[], object]:
    say()
    return lambda: search.find("hello")


@operation("search.find, of an owner")
def found_of_an_owner() -> Callable[[], object]:
    turn = say()
    return lambda: search.find("hello", owner_id=turn.owner_id)
