"""Keys over the API, for who has one with the scope ``admin``."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from nanohost.accounts.models import ApiKey, AuditEntry
from tests.support.factories import OwnerFactory

pytestmark = pytest.mark.django_db


@pytest.fixture
def admin(owner: Any) -> Client:
    _, text = ApiKey.objects.issue(owner=owner, scopes=["admin"])
    return Client(headers={"Authorization": f"Bearer {text}"})


def ask(client: Client, method: str, path: str = "", body: object = None) -> Any:
    sent = {} if body is None else {"data": body, "content_type": "application/json"}
    return getattr(client, method)(f"/api/v1/keys{path}", secure=True, **sent)


def stored() -> list[dict[str, Any]]:
    """All keys, but for when they were used."""
    return [{**row, "last_used_at": None} for row in ApiKey.objects.values()]


LIMITS = {
    "name": "the shop",
    "scopes": ["chat"],
    "agents": ["default"],
    "models": ["small"],
    "networks": ["203.0.113.0/24"],
    "allowedOrigins": ["https://example.org", "http://127.0.0.1:8080"],
    "requestsPerMinute": 60,
    "turnsAtOnce": 5,
    "cancelOnDisconnect": True,
}


def test_a_key_is_made_shown_once_changed_and_revoked(admin: Client, owner: Any) -> None:
    shop = OwnerFactory(username="shop")
    expires = (timezone.now() + timedelta(days=3)).isoformat()
    made = ask(admin, "post", body={**LIMITS, "owner": "shop", "expiresAt": expires})
    assert made.status_code == 201
    told = made.json()
    key = ApiKey.objects.recognise(told["key"])
    assert key.owner == shop
    assert {name: told[name] for name in LIMITS} == LIMITS
    assert made["Location"] == f"/api/v1/keys/{key.prefix}"
    shown = ask(admin, "get", f"/{key.prefix}").json()
    assert "key" not in shown
    assert shown == {name: value for name, value in told.items() if name != "key"}
    changed = ask(admin, "patch", f"/{key.prefix}", {"scopes": ["read"], "turnsAtOnce": None})
    assert (changed.json()["scopes"], changed.json()["turnsAtOnce"]) == (["read"], None)
    unbounded = ask(admin, "patch", f"/{key.prefix}", {"requestsPerMinute": None})
    assert (unbounded.status_code, unbounded.json()["code"]) == (400, "invalid_request")
    assert "requests a minute" in unbounded.json()["detail"]
    assert changed.json()["networks"] == LIMITS["networks"], "the rest stays"
    assert ask(admin, "delete", f"/{key.prefix}").status_code == 204
    assert ask(admin, "get", f"/{key.prefix}").json()["state"] == "revoked"
    assert ApiKey.objects.recognise(told["key"]) is None
    listed = ask(admin, "get").json()["results"]
    assert listed[0]["prefix"] == key.prefix
    assert told["key"] not in str(listed)
    of_it = AuditEntry.objects.filter(object_type="accounts.apikey", object_id=str(key.pk)).order_by("id")
    assert [entry.action for entry in of_it] == ["key.made", "key.changed", "key.revoked"]
    assert not AuditEntry.objects.filter(after__contains=told["key"]).exists()


def test_without_an_owner_it_is_the_callers(admin: Client, owner: Any) -> None:
    made = ask(admin, "post", body={}).json()
    assert (made["owner"], made["scopes"], made["agents"]) == ("owner", ["chat", "read"], [])


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"scopes": []}, "scopes"),
        ({"scopes": ["everything"]}, "scopes"),
        ({"scopes": "chat"}, "scopes"),
        ({"networks": ["203.0.113.9/24"]}, "host bits"),
        ({"networks": ["home"]}, "home"),
        ({"allowedOrigins": ["*"]}, "not an origin"),
        ({"allowedOrigins": ["https://example.org/path"]}, "not an origin"),
        ({"allowedOrigins": ["https://a.example; script-src *"]}, "not an origin"),
        ({"networks": ["fe80::%eth0/64"]}, "zone"),
        ({"agents": [""]}, "agents"),
        ({"agents": ["x" * 129]}, "agents"),
        ({"models": [7]}, "models"),
        ({"models": ["x"] * 101}, "models"),
        ({"requestsPerMinute": 0}, "requestsPerMinute"),
        ({"requestsPerMinute": 10_001}, "requestsPerMinute"),
        ({"turnsAtOnce": -1}, "turnsAtOnce"),
        ({"expiresAt": "soon"}, "expiresAt"),
        ({"name": "x" * 101}, "name"),
        ({"owner": "nobody"}, "nobody"),
        ({"digest": "0" * 64}, "digest"),
    ],
)
def test_what_makes_no_sense_is_told_and_nothing_is_stored(admin: Client, body: dict[str, Any], words: str) -> None:
    before = stored()
    answer = ask(admin, "post", body=body)
    assert answer.status_code == 400, answer.content
    assert words in answer.json()["detail"]
    if "owner" not in body:
        prefix = ApiKey.objects.get().prefix
        assert ask(admin, "patch", f"/{prefix}", body).status_code == 400
    assert stored() == before
    assert not AuditEntry.objects.filter(object_type="accounts.apikey").exists()


def test_no_key_is_made_that_has_expired_and_one_can_be_made_to_expire(admin: Client) -> None:
    past = {"expiresAt": (timezone.now() - timedelta(seconds=1)).isoformat()}
    answer = ask(admin, "post", body=past)
    assert (answer.status_code, "expiresAt" in answer.json()["errors"]) == (400, True)
    prefix = ask(admin, "post", body={}).json()["prefix"]
    assert ask(admin, "patch", f"/{prefix}", past).json()["state"] == "expired"


def test_who_is_not_active_gets_no_key(admin: Client) -> None:
    OwnerFactory(username="gone", is_active=False)
    assert ask(admin, "post", body={"owner": "gone"}).status_code == 400


@pytest.mark.parametrize("prefix", ["none", "%00", "x" * 300])
def test_a_key_that_there_is_not(admin: Client, prefix: str) -> None:
    for method, body in (("get", None), ("patch", {}), ("delete", None)):
        assert ask(admin, method, f"/{prefix}", body).status_code == 404
