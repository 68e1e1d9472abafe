"""Links by which others read a conversation, without signing in."""

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from conversations.models import Message, Share
from nanohost.accounts.models import ApiKey, AuditEntry
from nanohost.lib.clock import from_now
from nanohost.lib.redaction import redact

pytestmark = pytest.mark.django_db

CALL = [{"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": '{"of": "secrets"}'}}]


@pytest.fixture
def client(owner: Any) -> Client:
    _, key = ApiKey.objects.issue(owner=owner, scopes=["chat", "read"], agent_names=["*"])
    return Client(headers={"Authorization": f"Bearer {key}"})


@pytest.fixture
def talk(conversation, fill):
    """Two messages, a call with its result, thoughts, a command, and a summary."""
    fill(2)
    rest = [
        {"role": "assistant", "content": "I look.", "tool_calls": CALL, "reasoning": "Private thoughts"},
        {"role": "tool", "tool_call_id": "call_1", "tool_name": "look_up", "content": "The result"},
        {"role": "system", "kind": "command", "content": "Said by the host"},
        {"role": "assistant", "type": "SUMMARY", "kind": "rolling", "content": "A summary"},
    ]
    for seq, each in enumerate(rest, start=3):
        Message.objects.create(conversation=conversation, seq=seq, **each)
    type(conversation).objects.filter(pk=conversation.pk).update(next_seq=7)
    return conversation


def share(client: Client, conversation: Any, **wanted: Any) -> dict[str, Any]:
    path = f"/api/v1/conversations/{conversation.pk}/shares"
    made = client.post(path, wanted, content_type="application/json", secure=True)
    assert made.status_code == 201, made.content
    told: dict[str, Any] = made.json()
    return told


def page(token: str, query: str = "") -> Any:
    """As anybody gets it, who is not signed in."""
    return Client().get(f"/chat/shared/{token}/{query}", secure=True)


def test_whoever_has_the_link_reads_what_was_said(client, talk):
    found = page(share(client, talk)["token"])
    text = found.content.decode()
    assert found.status_code == 200
    assert "Remember word 1" in text
    assert "I look." in text
    for private in ("look_up", "The result", "Private thoughts", "Said by the host", "A summary", talk.owner.username):
        assert private not in text, private
    assert found["Cache-Control"] == "no-store"
    assert found["Referrer-Policy"] == "no-referrer"
    assert "noindex" in found["X-Robots-Tag"]
    assert "script-src 'self'" in found["Content-Security-Policy"]
    assert not found.cookies


def test_calls_of_tools_are_shown_if_the_owner_chose_that(client, talk):
    text = page(share(client, talk, withTools=True)["token"]).content.decode()
    for shown in ("look_up", "The result", "secrets"):
        assert shown in text
    assert "Private thoughts" not in text


def test_what_is_said_later_is_not_shown(client, talk, fill):
    made = share(client, talk)
    assert made["throughSeq"] == 6
    fill(2, "Later")
    assert "Later" not in page(made["token"]).content.decode()
    assert "Later" not in page(made["token"], "?after=6").content.decode()


def test_html_in_messages_is_text(client, conversation):
    Message.objects.create(conversation=conversation, seq=1, role="assistant", content="<script>alert(1)</script>")
    type(conversation).objects.update(next_seq=2)
    text = page(share(client, conversation)["token"]).content.decode()
    assert "&lt;script&gt;alert(1)" in text


def test_a_long_one_has_pages(client, conversation, fill):
    fill(450)
    token = share(client, conversation)["token"]
    assert 'href="?after=200"' in page(token).content.decode()
    last = page(token, "?after=400").content.decode()
    assert "Remember word 450" in last
    assert "Show more" not in last
    for odd in ("?after=x", "?after=-1", "?after=" + "9" * 400, "?after=\u0663"):
        assert page(token, odd).status_code == 200


@pytest.mark.parametrize("ended", ["revoked", "expired", "deleted", "deactivated"])
def test_a_link_that_has_ended_opens_nothing(client, talk, ended):
    made = share(client, talk)
    assert page(made["token"]).status_code == 200
    if ended == "revoked":
        assert client.delete(f"/api/v1/shares/{made['shareId']}", secure=True).status_code == 204
        assert client.delete(f"/api/v1/shares/{made['shareId']}", secure=True).status_code == 204
    elif ended == "expired":
        Share.objects.update(expires_at=from_now(-1))
    elif ended == "deleted":
        client.delete(f"/api/v1/conversations/{talk.pk}", secure=True)
    else:
        User.objects.update(is_active=False)
    assert page(made["token"]).status_code == 404
    if ended in ("revoked", "expired"):
        (row,) = client.get("/api/v1/shares", secure=True).json()["results"]
        assert (row["state"], "token" in row) == (ended, False)


@pytest.mark.parametrize("token", ["x", "nh_share_" + "x" * 32, "nh_share_" + "x" * 10_000, "%00", "' OR 1=1", "../.."])
def test_a_token_that_is_none_opens_nothing(client, talk, token):
    share(client, talk)
    assert page(token).status_code == 404


def test_its_token_is_kept_nowhere_and_taken_out_of_logs(client, talk):
    made = share(client, talk)
    (row,) = Share.objects.values()
    assert made["token"] not in str(row)
    entries = AuditEntry.objects.filter(action__startswith="share.")
    assert entries.get().action == "share.made"
    assert made["token"] not in str(list(entries.values()))
    assert redact(f"GET /chat/shared/{made['token']}/") == "GET /chat/shared/[redacted]/"
    client.delete(f"/api/v1/shares/{made['shareId']}", secure=True)
    assert entries.filter(action="share.revoked").count() == 1


def test_links_are_listed_by_their_conversation(client, talk):
    made = share(client, talk, days=7)

    def listed(query: str) -> list[str]:
        return [row["shareId"] for row in client.get(f"/api/v1/shares{query}", secure=True).json()["results"]]

    assert listed("") == listed(f"?conversationId={talk.pk}") == [made["shareId"]]
    assert listed(f"?conversationId={made['shareId']}") == []
    assert client.get("/api/v1/shares?conversationId=x", secure=True).json()["code"] == "invalid_request"


@pytest.mark.parametrize("wanted", [{"days": 0}, {"days": 366}, {"days": "x"}, {"withTools": 1}, {"forever": True}])
def test_a_link_that_makes_no_sense_is_refused(client, talk, wanted):
    path = f"/api/v1/conversations/{talk.pk}/shares"
    refused = client.post(path, wanted, content_type="application/json", secure=True)
    assert (refused.status_code, refused.json()["code"]) == (400, "invalid_request")
    assert not Share.objects.exists()
