"""Images and files in messages, over HTTP on a running host."""

import base64
import hashlib

import pytest

from nanohost.accounts.models import WIDE
from tests.support import files
from tests.support.api_client import key_of, problem, start
from tests.support.files import file_part, image_part, text_part


def send(api, conversation_id, *parts, **options):
    return api.post(f"/conversations/{conversation_id}/chat", json={"content": list(parts)}, **options)


def said(api, conversation_id):
    """The user's last message."""
    messages = api.get(f"/conversations/{conversation_id}/messages").json()["results"]
    return [message for message in messages if message["role"] == "USER"][-1]


def test_a_message_may_be_a_text_or_parts(api, conversation_id):
    for content in ("Hello", [text_part("Hello")], [text_part("He"), text_part("llo")]):
        answer = api.post(f"/conversations/{conversation_id}/chat", json={"content": content})
        assert answer.status_code == 200, answer.text
        assert "Hello" in answer.json()["assistantMessage"].replace("He\n\nllo", "Hello")


def test_a_picture_and_a_file_are_kept_by_reference(api, conversation_id):
    picture, paper = files.picture(size=(640, 480)), files.pdf("The sum is 42")
    answer = send(api, conversation_id, text_part("Look"), image_part(picture), file_part(paper, "paper.pdf"))
    assert answer.status_code == 200, answer.text
    message = said(api, conversation_id)
    assert message["content"] == "Look"
    of_picture, of_paper = message["attachments"]
    assert of_picture | {"id": ""} == {
        "id": "", "name": "image 1", "type": "image/png", "size": len(picture), "width": 640, "height": 480,
        "sha256": hashlib.sha256(picture).hexdigest(),
    }  # fmt: skip
    assert (of_paper["name"], of_paper["type"]) == ("paper.pdf", "application/pdf")
    # The scripted model says what it was told, with what the file says, as data.
    told = answer.json()["assistantMessage"]
    assert "[picture: image 1, 640 x 480 pixels]" in told
    assert "The sum is 42" in told
    assert "<untrusted>" in told


def test_a_file_comes_back_as_a_download_that_no_browser_runs(api, conversation_id):
    page = b"<script>alert(document.domain)</script>"
    send(api, conversation_id, file_part(page, 'a"b\r\nX: y/../évil.html'))
    (attachment,) = said(api, conversation_id)["attachments"]
    answer = api.get(f"/attachments/{attachment['id']}")
    assert (answer.status_code, answer.content) == (200, page)
    assert answer.headers["content-type"] == "text/plain"
    assert answer.headers["content-disposition"].startswith('attachment; filename="_vil.html"; filename*=')
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'; sandbox" in answer.headers["content-security-policy"]
    assert "no-store" in answer.headers["cache-control"]
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    problem(api.get(f"/attachments/{attachment['id']}/thumbnail"), 404, "not_found")


def test_a_picture_has_a_thumbnail(api, conversation_id):
    send(api, conversation_id, image_part(files.picture("JPEG", (1024, 512))))
    (attachment,) = said(api, conversation_id)["attachments"]
    answer = api.get(f"/attachments/{attachment['id']}/thumbnail")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/png")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.content.startswith(b"\x89PNG")


def test_the_same_content_is_stored_once_for_an_owner(api, host):
    picture = files.picture(colour=(1, 2, 3))
    ids = set()
    for name in ("one.png", "two.png"):
        conversation_id = start(api)
        send(api, conversation_id, file_part(picture, name))
        (attachment,) = said(api, conversation_id)["attachments"]
        ids.add(attachment["id"])
        assert attachment["name"] == name
    assert len(ids) == 1
    sha256 = hashlib.sha256(picture).hexdigest()
    assert len(list((host.data_dir / "attachments").glob(f"*/{sha256}-*[!l]"))) == 1


def test_nobody_gets_anothers_file(host, api, conversation_id):
    picture = files.picture(colour=(9, 9, 9))
    send(api, conversation_id, image_part(picture))
    (mine,) = said(api, conversation_id)["attachments"]
    with host.client(key_of(host, "file stranger")) as stranger:
        for path in (f"/attachments/{mine['id']}", f"/attachments/{mine['id']}/thumbnail"):
            problem(stranger.get(path), 404, "not_found")
        # The same content makes a file of their own, and tells nothing of mine.
        theirs = start(stranger)
        send(stranger, theirs, image_part(picture))
        (own,) = said(stranger, theirs)["attachments"]
        assert own["id"] != mine["id"]
        problem(api.get(f"/attachments/{own['id']}"), 404, "not_found")
    problem(api.get(f"/attachments/{mine['sha256'][:32]}"), 404, "not_found")
    with host.client(key_of(host, "only chats", ["chat"])) as chatter:
        problem(chatter.get(f"/attachments/{mine['id']}"), 403, "missing_scope")


def test_its_kind_is_told_by_its_content(api, conversation_id):
    send(api, conversation_id, image_part(files.picture("GIF"), "image/jpeg"), file_part(files.picture(), "a.pdf"))
    assert [each["type"] for each in said(api, conversation_id)["attachments"]] == ["image/gif", "image/png"]


@pytest.mark.parametrize(
    ("parts", "status", "code", "words"),
    [
        ([], 400, "invalid_request", "a list of parts"),
        ([7], 400, "invalid_request", "content[0]"),
        ([{"type": "audio"}], 400, "invalid_request", "content[0].type"),
        ([text_part("  ")], 400, "invalid_request", "neither words nor files"),
        ([{"type": "text", "text": 7}], 400, "invalid_request", "content[0].text"),
        ([{"type": "text", "text": "a\0b"}], 400, "invalid_request", "null character"),
        ([{"type": "image_url", "image_url": {"url": 7}}], 400, "invalid_request", "data URL"),
        ([{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}], 400, "invalid_request", "https://"),
        ([{"type": "image_url", "image_url": "data:image/png,abc"}], 400, "invalid_request", "base64"),
        ([{"type": "image_url", "image_url": "data:image/png;base64,$$"}], 400, "invalid_request", "base64"),
        ([{"type": "file", "file": {"file_id": "file-1"}}], 400, "invalid_request", "file_id"),
        ([{"type": "file", "file": 7}], 400, "invalid_request", "object"),
        ([{"type": "file", "file": {"filename": "x"}}], 400, "invalid_request", "https://"),
        ([text_part("x")] * 101, 400, "invalid_request", "100 parts"),
        ([image_part(files.picture())] * 11, 400, "invalid_request", "10 files"),
        ([file_part(b"\0\1\2", "x.png")], 400, "unsupported_file_type", "x.png"),
        ([file_part(b"", "x.txt")], 422, "attachment_unreadable", "empty"),
        ([file_part(files.picture()[:50], "x.png")], 422, "attachment_unreadable", "decoded"),
        ([file_part(files.bomb_picture(50_000, 50_000), "x.png")], 413, "attachment_too_large", "pixels"),
        (
            [{"type": "image_url", "image_url": {"url": "http://127.0.0.1/a.png"}}],
            422,
            "attachment_not_fetched",
            "http:",
        ),
        ([text_part("/new"), image_part(files.picture())], 400, "invalid_request", "command"),
    ],
)
def test_what_is_wrong_is_told_by_name(api, conversation_id, parts, status, code, words):
    told = problem(send(api, conversation_id, *parts), status, code)
    assert words in str(told), told
    assert api.get(f"/conversations/{conversation_id}/messages").json()["results"] == []


def test_both_or_neither_of_message_and_content_are_refused(api, conversation_id):
    for body in ({}, {"message": "a", "content": "b"}):
        told = problem(api.post(f"/conversations/{conversation_id}/chat", json=body), 400, "invalid_request")
        assert "not both" in str(told)


def test_files_of_a_message_that_wakes_nobody_come_with_the_next_turn(api, conversation_id):
    body = {"content": [image_part(files.picture(colour=(5, 5, 5)))], "trigger": False}
    stored = api.post(f"/conversations/{conversation_id}/messages", json=body).json()
    (attachment,) = stored["attachments"]
    assert "path" not in attachment
    assert api.get(f"/attachments/{attachment['id']}").status_code == 200
    send(api, conversation_id, text_part("What was that?"))
    first, second, _ = api.get(f"/conversations/{conversation_id}/messages").json()["results"]
    assert (first["attachments"], second["attachments"]) == ([attachment], [])


def test_what_is_wrong_with_a_file_for_later_is_told_at_once(api, conversation_id):
    path, later = f"/conversations/{conversation_id}/messages", {"runAfter": "2100-01-01T00:00:00Z"}
    broken = {"content": [image_part(files.picture()[:40])]}
    problem(api.post(path, json=broken | later), 422, "attachment_unreadable")
    command = {"content": [text_part("/new"), image_part(files.picture())]}
    problem(api.post(path, json=command | later), 400, "invalid_request")
    assert api.get(f"/conversations/{conversation_id}/deferred").json()["results"] == []


def test_a_name_of_a_megabyte_does_no_harm(api, conversation_id):
    for name in ("x" * 1_000_000 + ".txt", "/" * 1_000_000, "\u202e" * 500_000, "\\a" * 400_000):
        answer = send(api, conversation_id, file_part(b"words", name))
        assert answer.status_code == 200, answer.text
        assert len(said(api, conversation_id)["attachments"][0]["name"]) <= 100


def test_a_body_may_be_large_where_files_are_taken_and_only_there(api, conversation_id):
    noise = base64.b64encode(b"words " * 350_000).decode()  # 2.8 MB
    answer = send(api, conversation_id, {"type": "file", "name": "long.txt", "data": noise})
    assert answer.status_code == 200, answer.text
    problem(api.post("/conversations", json={"metadata": {"noise": noise}}), 413, "body_too_large")
    too_long = api.post(f"/conversations/{conversation_id}/chat", json={"message": "x" * 1_100_000})
    assert "Its text may have" in str(problem(too_long, 400, "invalid_request"))


def test_the_same_request_is_the_same_turn_and_another_file_is_another_request(api, conversation_id):
    key = {"Idempotency-Key": f"files-{conversation_id}"}
    first = send(api, conversation_id, image_part(files.picture()), headers=key).json()
    assert send(api, conversation_id, image_part(files.picture()), headers=key).json()["turnId"] == first["turnId"]
    other = send(api, conversation_id, image_part(files.picture("GIF")), headers=key)
    problem(other, 409, "idempotency_conflict")


def test_the_schema_tells_of_both_forms(api):
    shape = api.get("/../schema").json()["components"]["schemas"]["ChatInRequest"]["properties"]
    assert {each.get("type") for each in shape["content"]["oneOf"]} == {"string", "array"}
    assert WIDE
