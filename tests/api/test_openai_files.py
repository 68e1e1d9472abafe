"""Pictures and files in messages, as the unmodified ``openai`` package sends them."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import openai
import pytest

from tests.support import files
from tests.support.api_client import key_of, rows, start, stored_at_rest
from tests.support.files import data_url, file_part, image_part, text_part
from tests.support.hosts import Host
from tests.support.openai_client import openai_client, refusal, strictly
from tests.support.responses import whole

MODEL = "default"


@pytest.fixture(scope="module")
def client(host: Host) -> Iterator[openai.OpenAI]:
    with openai_client(host, max_retries=0) as client:
        yield client


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def input_image(data: bytes) -> dict[str, Any]:
    return {"type": "input_image", "detail": "auto", "image_url": data_url(data, "image/png")}


def input_file(data: bytes, name: str) -> dict[str, Any]:
    return {"type": "input_file", "filename": name, "file_data": data_url(data)}


def completed(client: openai.OpenAI, *messages: dict[str, Any], **more: Any) -> str:
    """What the agent says; it is the scripted one, which says what it was asked."""
    answer = client.chat.completions.create(model=MODEL, messages=list(messages), **more)
    return str(strictly(answer).choices[0].message.content)


def test_a_completion_has_the_picture_and_what_the_file_says(client, host):
    parts = text_part("Look"), image_part(files.picture()), file_part(files.pdf("The sum is 42"), "sum.pdf")
    told = completed(client, user(*parts))
    assert "[picture: image 1, 32 x 24 pixels]" in told
    assert "[file: sum.pdf, application/pdf" in told
    assert "The sum is 42" in told
    assert "<untrusted>" in told


def test_those_of_the_history_go_along(client, host):
    before = rows(host, "SELECT COUNT(*) AS n FROM conversations_attachmentuse")[0]["n"]
    history = user(text_part("This one"), image_part(files.picture(colour=(1, 1, 1))))
    completed(client, history, {"role": "assistant", "content": "I see."}, user(text_part("And now?")))
    assert rows(host, "SELECT COUNT(*) AS n FROM conversations_attachmentuse")[0]["n"] == before + 1
    (kept,) = rows(
        host, "SELECT m.attachments FROM conversations_message m WHERE m.content = 'This one' ORDER BY id DESC LIMIT 1"
    )
    assert "image/png" in str(kept["attachments"])


def test_files_alone_are_a_message(client):
    assert "[picture: image 1" in completed(client, user(image_part(files.picture())))


def test_a_conversation_that_stays_keeps_them(client, host):
    with host.client() as api:
        conversation_id = start(api)
        headers = {"X-Conversation-Id": conversation_id}
        completed(client, user(text_part("One")), user(file_part(b"words", "a.txt")), extra_headers=headers)
        (message,) = [
            each
            for each in api.get(f"/conversations/{conversation_id}/messages").json()["results"]
            if each["role"] == "USER"
        ]
        assert [each["name"] for each in message["attachments"]] == ["a.txt"]


def test_a_body_may_be_as_long_as_its_files(client, host):
    paper = b"x" * 1_500_000  # more than a body may have without files
    assert "[file: long.txt" in completed(client, user(text_part("Read"), file_part(paper, "long.txt")))
    with pytest.raises(openai.APIStatusError) as told:
        completed(client, user(text_part("x" * 1_500_000)))
    refusal(told.value, 413, "body_too_large")


# --- responses ---------------------------------------------------------------------------------------------------


def test_a_response_has_them_and_shows_them_by_ids_that_may_be_sent_again(client):
    given = user({"type": "input_text", "text": "Look"}, input_image(files.picture()), input_file(b"The sum", "s.txt"))
    first = whole(client.responses.create(model=MODEL, input=[given]))
    assert "[picture: image 1" in first.output_text
    assert "The sum" in first.output_text
    (item,) = [strictly(each) for each in client.responses.input_items.list(first.id)]
    text, picture, paper = item.content
    assert (text.type, picture.type, paper.type) == ("input_text", "input_image", "input_file")
    assert paper.filename == "s.txt"
    again = [part.model_dump(exclude_none=True) for part in (picture, paper)]
    second = whole(client.responses.create(model=MODEL, input=[user(*again)]))
    assert "32 x 24 pixels" in second.output_text
    assert "The sum" in second.output_text


def test_a_branch_has_a_copy_of_them(client):
    first = whole(client.responses.create(model=MODEL, input=[user(input_image(files.picture()))]))
    whole(client.responses.create(model=MODEL, input="On", previous_response_id=first.id))
    branch = whole(client.responses.create(model=MODEL, input="Aside", previous_response_id=first.id))
    kinds = [part.type for each in client.responses.input_items.list(branch.id) for part in each.content]
    assert "input_image" in kinds


def test_they_count_as_input(client):
    few = client.responses.input_tokens.count(model=MODEL, input=[user({"type": "input_text", "text": "Look"})])
    picture = input_image(files.picture(size=(1000, 1000)))
    many = client.responses.input_tokens.count(model=MODEL, input=[user(picture)])
    assert many.input_tokens > few.input_tokens + 700


def test_items_of_a_conversation_have_them_and_give_them_up(client, host):
    made = client.conversations.create(
        items=[{"type": "message", **user({"type": "input_text", "text": "Keep"}, input_image(files.picture()))}]
    )
    (item,) = [strictly(each) for each in client.conversations.items.list(made.id)]
    assert [part.type for part in item.content] == ["input_text", "input_image"]
    of_it = "SELECT tainted_by FROM conversations_conversation WHERE id = ?"
    assert rows(host, of_it, str(UUID(made.id[5:])))[0]["tainted_by"] == "the file image 1"
    uses = "SELECT message_id FROM conversations_attachmentuse WHERE conversation_id = ?"
    assert len(rows(host, uses, str(UUID(made.id[5:])))) == 1
    client.conversations.items.delete(item.id, conversation_id=made.id)
    assert rows(host, uses, str(UUID(made.id[5:]))) == []


@pytest.mark.parametrize(
    ("part", "status", "code", "param"),
    [
        ({"type": "image_url", "image_url": {"url": 7}}, 400, "invalid_value", "messages[0].content[0].image_url.url"),
        ({"type": "image_url", "image_url": {"url": "file:///x"}}, 400, "invalid_value", None),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,$"}}, 400, "invalid_value", None),
        ({"type": "image_url", "image_url": {"url": "http://127.0.0.1/a.png"}}, 422, "attachment_not_fetched", None),
        ({"type": "file", "file": {"file_id": "file-1"}}, 400, "invalid_value", "messages[0].content[0].file_id"),
        ({"type": "file", "file": {"file_id": f"file-{'0' * 32}"}}, 400, "invalid_request", None),
        (file_part(b"\0\1\2", "x.png"), 400, "unsupported_content_type", None),
        (file_part(b"", "x.txt"), 422, "attachment_unreadable", None),
        (file_part(files.bomb_picture(50_000, 50_000), "x.png"), 413, "attachment_too_large", None),
        ({"type": "input_audio", "input_audio": {}}, 400, "unsupported_content_type", "messages[0].content[0]"),
    ],
)
def test_what_is_wrong_is_told_and_stored_nowhere(client, host, part, status, code, param):
    before = stored_at_rest(host)
    with pytest.raises(openai.APIStatusError) as told:
        completed(client, user(part))
    told_param = told.value.param
    refusal(told.value, status, code, told_param)
    assert param is None or told_param == param
    assert stored_at_rest(host) == before


def test_only_users_send_them(client):
    with pytest.raises(openai.BadRequestError) as told:
        completed(client, {"role": "system", "content": [image_part(files.picture())]}, user(text_part("x")))
    assert "only users" in refusal(told.value, 400, "unsupported_content_type", "messages[0].content[0]")


def test_a_model_that_cannot_see_is_a_named_error_wherever_the_picture_is(client, host):
    seen = user(image_part(files.picture()))
    (was,) = host.sql("SELECT model FROM agent_agent WHERE name = 'default'")
    host.sql("UPDATE agent_agent SET model = 'gpt-3.5-turbo' WHERE name = 'default'")
    try:
        for messages in ([seen], [seen, {"role": "assistant", "content": "I see."}, user(text_part("And now?"))]):
            with pytest.raises(openai.UnprocessableEntityError) as told:
                completed(client, *messages)
            refusal(told.value, 422, "model_cannot_see")
    finally:
        host.sql("UPDATE agent_agent SET model = ? WHERE name = 'default'", was["model"])


def test_nobody_sends_a_file_of_anothers(client, host):
    first = whole(client.responses.create(model=MODEL, input=[user(input_file(b"mine", "mine.txt"))]))
    (item,) = client.responses.input_items.list(first.id)
    part = next(each.model_dump(exclude_none=True) for each in item.content if each.type == "input_file")
    with openai_client(host, key_of(host, "another's files"), max_retries=0) as stranger:
        with pytest.raises(openai.BadRequestError) as told:
            stranger.responses.create(model=MODEL, input=[user(part)])
        assert "there is no such file" in refusal(told.value, 400, "invalid_request", None)
