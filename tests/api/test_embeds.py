"""A chat in other people's pages: what a visitor's token opens, and what no visitor is let do."""

from typing import Any

import pytest
from django.core import signing
from django.core.exceptions import ValidationError
from django.test import Client

from conversations.engine import inbox
from conversations.models import Conversation, Turn
from nanohost.accounts import keys
from nanohost.accounts.models import ApiKey, Scope
from nanohost.chat import embed
from nanohost.lib.clock import from_now
from tests.support.working import settle

pytestmark = pytest.mark.django_db

ORIGIN = "https://shop.example"


@pytest.fixture
def key(owner: Any, agent: Any) -> ApiKey:
    scopes = [str(each) for each in Scope]
    limits = {"allowed_origins": [ORIGIN], "requests_per_minute": 1_000, "agent_names": ["default"], "scopes": scopes}
    return keys.make(owner=owner, **limits)[0]


def begun(key: ApiKey, **options: Any) -> Any:
    return Client().post(f"/chat/embed/{key.prefix}/begin/", secure=True, **options)


@pytest.fixture
def visitor(key: ApiKey) -> tuple[Client, str]:
    told = begun(key).json()
    return Client(headers={embed.HEADER: told["token"]}), told["conversationId"]


def call(client: Client, method: str, path: str, body: object = None) -> Any:
    sent = {"data": body, "content_type": "application/json"} if body is not None else {}
    return getattr(client, method)(f"/api/v1{path}", secure=True, **sent)


def test_a_key_for_everybody_has_a_rate(owner, agent, key):
    for refused in (
        lambda: keys.make(owner=owner, allowed_origins=[ORIGIN]),
        lambda: keys.change(key, requests_per_minute=None),
        lambda: keys.change(keys.make(owner=owner)[0], allowed_origins=[ORIGIN]),
    ):
        with pytest.raises(ValidationError, match="requests a minute"):
            refused()


def test_pages_of_the_key_s_origins_alone_may_show_it(key):
    page = Client().get(f"/chat/embed/{key.prefix}/", secure=True)
    assert page.status_code == 200
    assert f"frame-ancestors {ORIGIN};" in page["Content-Security-Policy"] + ";"
    assert "script-src 'self'" in page["Content-Security-Policy"]
    assert "X-Frame-Options" not in page
    assert not page.cookies
    assert key.digest not in page.content.decode()
    others = Client().get("/chat/sign-in/", secure=True)
    assert "frame-ancestors 'none'" in others["Content-Security-Policy"]
    assert others["X-Frame-Options"] == "DENY"


@pytest.mark.parametrize(
    "limits", [{"allowed_origins": []}, {"scopes": ["read"]}, {"agent_names": ["none"]}, {"expires_at": "over"}]
)
def test_a_key_that_is_not_for_it_shows_none(key, limits):
    if limits.get("expires_at"):
        limits = {"expires_at": from_now(-1)}
    ApiKey.objects.filter(pk=key.pk).update(**limits)
    assert Client().get(f"/chat/embed/{key.prefix}/", secure=True).status_code == 404
    assert begun(key).status_code == 404


@pytest.mark.parametrize("prefix", ["none", "%00", "x" * 10_000, "' OR 1=1", "a%0d%0ab"])
def test_a_prefix_that_is_none_shows_none(key, prefix):
    assert Client().get(f"/chat/embed/{prefix}/", secure=True).status_code == 404


@pytest.mark.parametrize("site", ["cross-site", "same-site", "none"])
def test_a_page_of_another_origin_begins_none_in_its_visitor_s_browser(key, site):
    assert begun(key, headers={"Sec-Fetch-Site": site}).status_code == 403
    assert not Conversation.objects.exists()
    assert begun(key, headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200


def test_a_visitor_speaks_in_a_conversation_of_their_own(key, visitor):
    client, conversation_id = visitor
    made = call(client, "post", f"/conversations/{conversation_id}/turns", {"message": "Hello"})
    assert made.status_code == 202, made.content
    turn = Turn.objects.get()
    assert (turn.api_key_id, turn.owner) == (key.pk, key.owner)  # its budget pays
    assert call(client, "get", f"/conversations/{conversation_id}/messages").status_code == 200
    assert call(client, "get", f"/turns/{turn.pk}").status_code == 200
    assert call(client, "post", f"/turns/{turn.pk}/cancel", {}).status_code == 200


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("body", [{"message": "Hello"}, {"message": "/new"}])
def test_what_a_visitor_writes_is_untrusted(visitor, body):
    """Also after a new beginning, which forgets what was said."""
    client, conversation_id = visitor
    for each in (body, {"message": "Do as I say"}):
        made = call(client, "post", f"/conversations/{conversation_id}/messages", each)
        assert made.status_code == 202, made.content
        settle(Turn.objects.all())
    assert Conversation.objects.get(pk=conversation_id).tainted_by == "a visitor of a page that embeds this chat"


def test_a_visitor_s_token_opens_nothing_else(key, visitor, owner):
    client, mine = visitor
    other = begun(key).json()["conversationId"]
    private = inbox.Incoming(content="Private")
    theirs = inbox.receive(private, conversation=Conversation.objects.get(pk=other), request_id="r", key=key)
    refused = [
        *(("get", "/conversations"), ("post", "/conversations"), ("get", f"/conversations/{mine}")),
        *(("delete", f"/conversations/{mine}"), ("patch", f"/conversations/{mine}")),
        *(("get", f"/conversations/{other}/messages"), ("post", f"/conversations/{other}/turns")),
        *(
            ("get", f"/turns/{theirs.pk}"),
            ("get", f"/turns/{theirs.pk}/events"),
            ("post", f"/turns/{theirs.pk}/cancel"),
        ),
        *(("post", f"/conversations/{mine}/shares"), ("get", "/shares"), ("get", "/tools"), ("get", "/approvals")),
        *(("get", "/keys"), ("post", "/keys"), ("get", "/usage"), ("get", "/schedules"), ("post", "/schedules")),
        *(("get", "/agents/default/memory"), ("post", f"/conversations/{mine}/messages/../../../keys")),
    ]
    for method, path in refused:
        answer = call(client, method, path, {"message": "x"} if method in ("post", "patch") else None)
        assert answer.status_code in (403, 404), (method, path, answer.status_code)
        assert b"Private" not in answer.content
    assert Conversation.objects.count() == 2


@pytest.mark.parametrize("ended", ["revoked", "no origins", "expired token", "another's signature", "deactivated"])
def test_a_token_ends_with_what_it_stands_for(key, visitor, ended, monkeypatch):
    client, mine = visitor
    assert call(client, "get", f"/conversations/{mine}/messages").status_code == 200
    if ended == "revoked":
        keys.revoke(key)
    elif ended == "no origins":
        keys.change(key, allowed_origins=[])
    elif ended == "expired token":
        monkeypatch.setattr(embed, "VALID_SECONDS", -1)
    elif ended == "deactivated":
        type(key.owner).objects.update(is_active=False)
    else:
        forged = signing.dumps({"key": key.prefix, "conversation": mine}, salt="another")
        client = Client(headers={embed.HEADER: forged})
    answer = call(client, "get", f"/conversations/{mine}/messages")
    assert (answer.status_code, answer.json()["code"]) == (401, "not_authenticated")


def test_it_has_the_limits_of_its_key(key, visitor):
    client, mine = visitor
    keys.change(key, networks=["192.0.2.0/24"])
    assert call(client, "get", f"/conversations/{mine}/messages").json()["code"] == "address_not_allowed"
    assert begun(key).json()["code"] == "address_not_allowed"
    assert begun(key, REMOTE_ADDR="192.0.2.7").status_code == 200
    keys.change(key, networks=[], requests_per_minute=1)
    assert [begun(key).status_code for _ in range(3)][-1] == 429
