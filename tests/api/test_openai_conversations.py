"""Conversations and their items, as the unmodified ``openai`` package and its agents' sessions use them."""

import asyncio
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import openai
import pytest

from tests.support.api_client import chat, key_of, start
from tests.support.hosts import Host
from tests.support.openai_client import async_openai_client, openai_client, refusal, strictly
from tests.support.scripts import script
from tests.support.wait import wait_until

NOWHERE = "conv_00000000000070008000000000000000"


@pytest.fixture(scope="module")
def client(host: Host) -> Iterator[openai.OpenAI]:
    with openai_client(host, max_retries=0) as client:
        yield client


def user(said: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": said}


def texts(page: Any) -> list[str]:
    return [strictly(item).content[0].text for item in page]


def items(client: openai.OpenAI, conversation_id: str, **more: Any) -> list[Any]:
    """All of them, over however many pages."""
    return [strictly(item) for item in client.conversations.items.list(conversation_id, **more)]


# --- conversations -----------------------------------------------------------------------------------------------


def test_a_conversation_is_made_read_changed_and_deleted(client, host):
    made = strictly(client.conversations.create(metadata={"topic": "weather"}))
    assert (made.object, made.metadata) == ("conversation", {"topic": "weather"})
    assert strictly(client.conversations.retrieve(made.id)) == made
    changed = strictly(client.conversations.update(made.id, metadata={"topic": "sea"}))
    assert changed.metadata == {"topic": "sea"}
    with host.client() as api:
        shown = api.get(f"/conversations/{UUID(made.id[5:])}").json()
        assert (shown["agent"], shown["metadata"]) == ("default", {"topic": "sea"})
    gone = strictly(client.conversations.delete(made.id))
    assert (gone.id, gone.object, gone.deleted) == (made.id, "conversation.deleted", True)
    with pytest.raises(openai.NotFoundError) as told:
        client.conversations.retrieve(made.id)
    refusal(told.value, 404, "conversation_not_found")


def test_a_conversation_of_our_own_api_is_the_very_same(client, host):
    with host.client() as api:
        conversation_id = start(api)
        chat(api, conversation_id, "Hello")
    shown = items(client, f"conv_{UUID(conversation_id).hex}", order="asc")
    assert [(each.role, each.content[0].text, each.status) for each in shown] == [
        ("user", "Hello", "completed"),
        ("assistant", "You said: Hello", "completed"),
    ]
    assert shown[1].phase == "final_answer"


def test_what_is_appended_is_in_the_transcript_and_in_the_next_prompt(client, host):
    made = client.conversations.create(items=[user("One"), {"role": "assistant", "content": "Two"}])
    added = strictly(client.conversations.items.create(made.id, items=[user("Three")]))
    assert texts(added.data) == ["Three"]
    assert (added.first_id, added.last_id, added.has_more) == (added.data[0].id, added.data[0].id, False)
    assert texts(items(client, made.id, order="asc")) == ["One", "Two", "Three"]
    with host.client() as api:
        conversation_id = str(UUID(made.id[5:]))
        shown = api.get(f"/conversations/{conversation_id}/messages").json()["results"]
        assert [row["content"] for row in shown] == ["One", "Two", "Three"]
        alone = chat(api, start(api), "Four").json()["usage"]["promptTokens"]
        assert chat(api, conversation_id, "Four").json()["usage"]["promptTokens"] > alone


# --- items -------------------------------------------------------------------------------------------------------


def test_items_come_in_pages_both_ways(client):
    said = [str(number) for number in range(12)]
    made = client.conversations.create(items=[user(each) for each in said])
    assert texts(items(client, made.id, limit=5)) == said[::-1]
    assert texts(items(client, made.id, limit=5, order="asc")) == said
    page = client.conversations.items.list(made.id, limit=5, order="asc")
    assert (page.has_more, len(page.data), page.last_id) == (True, 5, page.data[-1].id)
    rest = client.conversations.items.list(made.id, limit=7, order="asc", after=page.last_id)
    assert (rest.has_more, texts(rest.data)) == (False, said[5:])


def test_an_empty_conversation_has_an_empty_list(client):
    made = client.conversations.create()
    page = client.conversations.items.list(made.id)
    assert (page.data, page.has_more, page.last_id, page.first_id) == ([], False, "", "")


CALL = {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": '{"city": "Oslo"}'}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "rain"}


def test_calls_and_what_they_gave_are_items(client):
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": []}
    made = client.conversations.create(
        items=[user("How is it?"), reasoning, CALL, CALL | {"call_id": "call_2"}, OUTPUT]
    )
    _, first, second, output = items(client, made.id, order="asc")
    assert (first.type, first.call_id, first.name, first.arguments) == tuple(CALL.values())
    assert (second.call_id, first.id != second.id) == ("call_2", True)
    assert (output.type, output.call_id, output.output) == ("function_call_output", "call_1", "rain")
    for each in (first, second, output):
        assert strictly(client.conversations.items.retrieve(each.id, conversation_id=made.id)) == each


@pytest.fixture(scope="module")
def with_time(host: Host) -> None:
    host.allow("time")  # as it is at first


def test_a_call_of_the_hosts_is_one_item_and_can_be_brought_elsewhere(client, host, with_time):
    steps = script({"say": "Wait.", "call": [{"name": "time"}, {"name": "no_such"}]}, {"say": "Late."})
    with host.client() as api:
        conversation_id = start(api)
        chat(api, conversation_id, steps)
    shown = items(client, f"conv_{UUID(conversation_id).hex}", order="asc")
    assert [each.type for each in shown] == ["message", "message", "mcp_call", "mcp_call", "message"]
    _, before, call, refused, last = shown
    assert (before.phase, last.phase) == ("commentary", "final_answer")
    assert (call.server_label, call.name, call.status, call.error) == ("nanohost", "time", "completed", None)
    assert call.output
    assert (refused.status, refused.output, refused.error.type) == ("failed", None, "mcp_tool_execution_error")
    one = client.conversations.items.retrieve(call.id, conversation_id=f"conv_{UUID(conversation_id).hex}")
    assert strictly(one) == call
    copy = client.conversations.create(items=[each.model_dump(exclude_none=True) for each in shown])
    copied = items(client, copy.id, order="asc")
    assert [each.type for each in copied] == [each.type for each in shown]
    assert (copied[2].output, copied[2].name) == (call.output, "time")


def test_an_item_is_deleted_and_prompts_have_it_no_more(client, host):
    made = client.conversations.create()
    conversation_id = str(UUID(made.id[5:]))
    with host.client() as api:
        chat(api, conversation_id, "Remember " + "many words " * 200)
        with_it = chat(api, conversation_id, "Well?").json()["usage"]["promptTokens"]
        (last, *_, first) = items(client, made.id)
        assert strictly(client.conversations.items.delete(first.id, conversation_id=made.id)).id == made.id
        client.conversations.items.delete(last.id, conversation_id=made.id)
        assert [each.id for each in items(client, made.id)] == [
            each.id for each in items(client, made.id) if each.id not in (first.id, last.id)
        ]
        assert chat(api, conversation_id, "Well?").json()["usage"]["promptTokens"] < with_it - 300
    with pytest.raises(openai.NotFoundError) as told:
        client.conversations.items.retrieve(first.id, conversation_id=made.id)
    refusal(told.value, 404, "item_not_found")
    entries = host.sql("SELECT object_id FROM accounts_auditentry WHERE action = 'message.deleted'")
    assert [UUID(each["object_id"]) for each in entries].count(UUID(conversation_id)) == 2


def test_one_call_of_a_message_is_deleted_alone(client):
    made = client.conversations.create(items=[user("How is it?"), CALL, CALL | {"call_id": "call_2"}])
    _, first, _ = items(client, made.id, order="asc")
    client.conversations.items.delete(first.id, conversation_id=made.id)
    assert [each.call_id for each in items(client, made.id, order="asc")[1:]] == ["call_2"]


def test_what_a_legal_hold_keeps_is_not_deleted(client, host):
    made = client.conversations.create(items=[user("One")])
    (item,) = items(client, made.id)
    conversation_id = UUID(made.id[5:])
    host.sql(
        "INSERT INTO accounts_legalhold (kind, agent, conversation_id, reason, placed_by)"
        " VALUES ('conversation', 'default', ?, 'a dispute', 'root')",
        conversation_id,
    )
    for delete in (
        lambda: client.conversations.items.delete(item.id, conversation_id=made.id),
        lambda: client.conversations.delete(made.id),
    ):
        with pytest.raises(openai.ConflictError) as told:
            delete()
        refusal(told.value, 409, "legal_hold")
    host.sql("DELETE FROM accounts_legalhold WHERE conversation_id = ?", conversation_id)


def test_nothing_falls_into_the_midst_of_a_turn(client, host):
    made = client.conversations.create(items=[user("One")])
    (item,) = items(client, made.id)
    with host.client() as api:
        conversation_id = str(UUID(made.id[5:]))
        turn = api.post(
            f"/conversations/{conversation_id}/turns", json={"message": script({"sleep": 20, "say": "x"})}
        ).json()
        wait_until(lambda: api.get(f"/turns/{turn['turnId']}").json()["status"] == "running")
        for change in (
            lambda: client.conversations.items.create(made.id, items=[user("Two")]),
            lambda: client.conversations.items.delete(item.id, conversation_id=made.id),
        ):
            with pytest.raises(openai.ConflictError) as told:
                change()
            refusal(told.value, 409, "turn_under_way")
            assert told.value.response.headers["x-should-retry"] == "false"
        api.post(f"/turns/{turn['turnId']}/cancel")


def test_a_session_as_the_agents_of_the_package_keep_one(host):
    async def session() -> list[str]:
        async with async_openai_client(host) as client:
            made = await client.conversations.create(items=[])
            await client.conversations.items.create(conversation_id=made.id, items=[user("One"), user("Two")])
            newest = await client.conversations.items.list(conversation_id=made.id, limit=1, order="desc")
            (popped,) = newest.data
            await client.conversations.items.delete(conversation_id=made.id, item_id=popped.id)
            left = [strictly(each) async for each in client.conversations.items.list(made.id, order="asc")]
            dumped = [each.model_dump(exclude_unset=True) for each in left]
            await client.conversations.items.create(conversation_id=made.id, items=dumped)
            found = [each async for each in client.conversations.items.list(made.id, order="asc")]
            await client.conversations.delete(conversation_id=made.id)
            return texts(found)

    assert asyncio.run(session()) == ["One", "One"]


# --- what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"items": [user("x")] * 21}, "invalid_value", "items"),
        ({"items": [user(" ")]}, "invalid_value", "items[0].content"),
        ({"items": [{"role": "system", "content": "Be brief."}]}, "invalid_value", "items"),
        ({"items": ["x"]}, "invalid_value", "items[0]"),
        ({"items": [{"type": "message", "role": "robot", "content": "x"}]}, "invalid_value", "items[0].role"),
        ({"items": [{"type": "computer_call"}]}, "unsupported_content_type", "items[0]"),
        ({"items": [{"type": ["x"]}]}, "unsupported_content_type", "items[0]"),
        ({"items": [CALL | {"call_id": ""}]}, "invalid_value", "items[0].call_id"),
        ({"items": [OUTPUT | {"output": None}]}, "invalid_value", "items[0].output"),
        ({"metadata": {"a": 1}}, "invalid_value", "metadata.a"),
        ({"metadata": "x"}, "invalid_value", "metadata"),
        ([], "invalid_value", None),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_name(client, body, code, param):
    if body == []:
        body = ["x"]
    with pytest.raises(openai.BadRequestError) as told:
        client.post("/conversations", body=body, cast_to=object)
    refusal(told.value, 400, code, param)


@pytest.mark.parametrize("query", [{"limit": 0}, {"limit": 101}, {"limit": "x"}, {"order": "up"}, {"after": "msg_x"}])
def test_a_page_that_makes_no_sense_is_refused(client, query):
    made = client.conversations.create()
    with pytest.raises(openai.BadRequestError) as told:
        client.conversations.items.list(made.id, extra_query=query)
    refusal(told.value, 400, "invalid_value", next(iter(query)))


def whatever_there_is(client: openai.OpenAI, conversation_id: str, item_id: str = "msg_x") -> Iterator[Any]:
    """Every request that names a conversation."""
    api = client.conversations
    yield lambda: api.retrieve(conversation_id)
    yield lambda: api.update(conversation_id, metadata={})
    yield lambda: api.items.list(conversation_id)
    yield lambda: api.items.create(conversation_id, items=[user("x")])
    yield lambda: api.items.retrieve(item_id, conversation_id=conversation_id)
    yield lambda: api.items.delete(item_id, conversation_id=conversation_id)
    yield lambda: api.delete(conversation_id)


def test_somebody_elses_conversation_is_as_unknown_as_none(client, host):
    made = client.conversations.create(items=[user("One")])
    (item,) = items(client, made.id)
    with openai_client(host, key_of(host, "who looks into others'"), max_retries=0) as other:
        for conversation_id in (made.id, NOWHERE, "conv_x", "%00"):
            for ask in whatever_there_is(other, conversation_id, item.id):
                with pytest.raises(openai.NotFoundError) as told:
                    ask()
                refusal(told.value, 404, "conversation_not_found")
    assert texts(items(client, made.id)) == ["One"]


def test_an_item_of_another_conversation_is_not_found(client):
    mine = client.conversations.create(items=[user("One")])
    other = client.conversations.create(items=[user("Two")])
    (item,) = items(client, other.id)
    for ask in (client.conversations.items.retrieve, client.conversations.items.delete):
        with pytest.raises(openai.NotFoundError) as told:
            ask(item.id, conversation_id=mine.id)
        refusal(told.value, 404, "item_not_found")


@pytest.mark.parametrize("scopes", [["read"], ["chat"], ["memory"]])
def test_each_request_needs_its_scope(client, host, scopes):
    key = key_of(host, f"conversations with {scopes[0]}", scopes)
    changes = ("update", "create", "delete")
    with openai_client(host, key, max_retries=0) as narrow:
        for ask in whatever_there_is(narrow, NOWHERE):
            is_change = any(name in ask.__code__.co_names for name in changes)
            may = scopes == ["chat"] or (scopes == ["read"] and not is_change)
            with pytest.raises(openai.APIStatusError) as told:
                ask()
            assert told.value.code == ("conversation_not_found" if may else "missing_scope")


def test_a_key_sees_the_conversations_of_its_agents_only(client, host):
    made = client.conversations.create()
    key = key_of(host, "who comes later")
    prefix = key.split("_")[1]
    host.sql(
        "UPDATE accounts_apikey SET owner_id = (SELECT owner_id FROM accounts_apikey WHERE prefix = 'test1234')"
        ", agent_names = '[\"another\"]' WHERE prefix = ?",
        prefix,
    )
    with openai_client(host, key, max_retries=0) as narrow:
        with pytest.raises(openai.NotFoundError) as told:
            narrow.conversations.retrieve(made.id)
        refusal(told.value, 404, "conversation_not_found")
        with pytest.raises(openai.NotFoundError) as told:
            narrow.conversations.create()
        refusal(told.value, 404, "model_not_found")
