"""Keys at their three doors, shell, API and console: what is set, shown, refused and revoked is the same at each."""

import io
import re
from datetime import timedelta
from typing import Any, Protocol

import pytest
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from nanohost.accounts import keys
from nanohost.accounts.models import MAX_AT_ONCE, MAX_PER_MINUTE, ApiKey, AuditEntry
from tests.support.factories import OwnerFactory

pytestmark = pytest.mark.django_db

# Every field that people set, by the name that it is stored by; how long it lives, in days.
FIELDS: dict[str, Any] = {
    "name": "the shop",
    "scopes": ["read"],
    "agent_names": ["default"],
    "model_names": ["small"],
    "networks": ["203.0.113.0/24"],
    "requests_per_minute": 60,
    "allowed_origins": ["https://example.org"],
    "turns_at_once": 5,
    "cancel_on_disconnect": True,
    "expires_at": 7,
}
BAD: tuple[dict[str, Any], ...] = (
    {"name": "x" * 101},
    {"scopes": []},
    {"scopes": ["everything"]},
    {"agent_names": ["x" * 129]},
    {"model_names": ["x" * 129]},
    {"model_names": ["x"] * 101},
    {"networks": ["home"]},
    {"networks": ["203.0.113.9/24"]},
    {"networks": ["fe80::%eth0/64"]},
    {"requests_per_minute": -1},
    {"requests_per_minute": MAX_PER_MINUTE + 1},
    {"requests_per_minute": 5, "allowed_origins": ["*"]},
    {"requests_per_minute": 5, "allowed_origins": ["https://example.org/path"]},
    {"allowed_origins": ["https://example.org"]},
    {"turns_at_once": -1},
    {"turns_at_once": MAX_AT_ONCE + 1},
    {"expires_at": 1_000_000_000},
)


class Door(Protocol):
    """``make`` and ``change`` say whether it was done."""

    def make(self, owner: str, **limits: Any) -> bool: ...

    def change(self, key: ApiKey, **limits: Any) -> bool: ...

    def show(self, key: ApiKey) -> str: ...

    def revoke(self, key: ApiKey) -> None: ...


class Shell:
    """``manage.py keys``."""

    NAMES = {"agent_names": "agents", "model_names": "models", "allowed_origins": "origins"}
    NAMES |= {"requests_per_minute": "per-minute", "expires_at": "expires"}

    def options(self, limits: dict[str, Any]) -> list[str]:
        words = {name: ",".join(said) if isinstance(said, list) else said for name, said in limits.items()}
        names = {name: self.NAMES.get(name, name.replace("_", "-")) for name in words}
        return [f"--{names[name]}={'yes' if said is True else said}" for name, said in words.items()]

    def run(self, *arguments: str) -> str:
        told = io.StringIO()
        call_command("keys", *arguments, stdout=told, stderr=io.StringIO())
        return told.getvalue()

    def attempt(self, limits: dict[str, Any], *arguments: str) -> bool:
        try:
            self.run(*arguments, *self.options(limits))
        except CommandError as refused:
            named = re.findall(r"--([a-z-]+)", str(refused))
            assert set(named[:1]) & {"owner", *(self.NAMES.get(name, name.replace("_", "-")) for name in FIELDS)}
            return False
        return True

    def make(self, owner: str, **limits: Any) -> bool:
        return self.attempt({"owner": owner, **limits}, "create")

    def change(self, key: ApiKey, **limits: Any) -> bool:
        return self.attempt(limits, "change", key.prefix)

    def show(self, key: ApiKey) -> str:
        return next(line for line in self.run("list").splitlines() if line.startswith(key.prefix))

    def revoke(self, key: ApiKey) -> None:
        self.run("revoke", key.prefix)


class Rest:
    """``/api/v1/keys``."""

    NAMES = {"agent_names": "agents", "model_names": "models", "allowed_origins": "allowedOrigins"}
    NAMES |= {"requests_per_minute": "requestsPerMinute", "turns_at_once": "turnsAtOnce", "expires_at": "expiresAt"}
    NAMES |= {"cancel_on_disconnect": "cancelOnDisconnect"}

    def __init__(self) -> None:
        _, text = ApiKey.objects.issue(owner=OwnerFactory(), scopes=["admin"])
        self.client = Client(headers={"Authorization": f"Bearer {text}"})

    def ask(self, method: str, path: str = "", limits: dict[str, Any] | None = None) -> Any:
        body = {self.NAMES.get(name, name): said for name, said in (limits or {}).items()}
        if "expiresAt" in body:
            try:
                body["expiresAt"] = (timezone.now() + timedelta(days=body["expiresAt"])).isoformat()
            except OverflowError:
                body["expiresAt"] = "+1000000-01-01T00:00:00Z"
        sent: dict[str, Any] = {"data": body, "content_type": "application/json"} if body else {}
        return getattr(self.client, method)(f"/api/v1/keys{path}", secure=True, **sent)

    def make(self, owner: str, **limits: Any) -> bool:
        answer = self.ask("post", limits={"owner": owner, **limits})
        assert answer.status_code in (201, 400), answer.content
        return bool(answer.status_code == 201)

    def change(self, key: ApiKey, **limits: Any) -> bool:
        answer = self.ask("patch", f"/{key.prefix}", limits)
        assert answer.status_code in (200, 400), answer.content
        return bool(answer.status_code == 200)

    def show(self, key: ApiKey) -> str:
        return str(self.ask("get", f"/{key.prefix}").content.decode())

    def revoke(self, key: ApiKey) -> None:
        assert self.ask("delete", f"/{key.prefix}").status_code == 204


class Console:
    """The pages of keys."""

    LIST = reverse("admin:accounts_apikey_changelist")

    def __init__(self) -> None:
        self.client = Client()
        self.client.force_login(OwnerFactory(is_staff=True, is_superuser=True))

    def form(self, limits: dict[str, Any]) -> dict[str, Any]:
        lines = ("model_names", "networks", "allowed_origins")
        form = {name: "\n".join(said) if name in lines else said for name, said in limits.items()}
        form["days"] = form.pop("expires_at", "")
        return {name: said for name, said in form.items() if said is not None and said is not False}

    def make(self, owner: str, **limits: Any) -> bool:
        pk = get_user_model().objects.get(username=owner).pk
        form = {"owner": pk, **self.form({"scopes": ["chat"], **limits})}
        return bool(re.search(r'id="key"', self.client.post(f"{self.LIST}add/", form).content.decode()))

    def page(self, key: ApiKey) -> str:
        return reverse("admin:accounts_apikey_change", args=[key.pk])

    def change(self, key: ApiKey, **limits: Any) -> bool:
        stored = {name: said for name, said in keys.limits_of(key).items() if name != "expires_at"}
        return bool(self.client.post(self.page(key), self.form(stored | limits)).status_code == 302)

    def show(self, key: ApiKey) -> str:
        return self.client.get(self.page(key)).content.decode()

    def revoke(self, key: ApiKey) -> None:
        self.client.post(self.LIST, {"action": "revoke", "_selected_action": [key.pk]})


@pytest.fixture(params=[Shell, Rest, Console])
def door(request: pytest.FixtureRequest) -> Door:
    made: Door = request.param()
    return made


def newest() -> ApiKey:
    key: ApiKey = ApiKey.objects.latest("pk")
    return key


def told_of(key: ApiKey) -> dict[str, Any]:
    """What it may do; how long it lives, in days."""
    told = keys.limits_of(key)
    expires = told["expires_at"]
    return told | {"expires_at": round((expires - timezone.now()) / timedelta(days=1)) if expires else None}


def everything() -> list[dict[str, Any]]:
    return [{**row, "last_used_at": None} for row in ApiKey.objects.order_by("pk").values()]


def test_all_that_is_set_anywhere_is_in_the_table() -> None:
    assert set(FIELDS) == set(keys.LIMITS)


def test_a_key_is_made_with_all_of_it(door: Door, owner: Any) -> None:
    assert door.make(owner.username, **FIELDS)
    assert told_of(newest()) == FIELDS
    assert newest().owner == owner


@pytest.mark.parametrize("name", [*FIELDS])
def test_each_is_changed_and_the_others_stay(door: Door, owner: Any, name: str) -> None:
    made, _ = keys.make(owner=owner, requests_per_minute=30)
    before = told_of(made)
    assert door.change(made, **{name: FIELDS[name]})
    made.refresh_from_db()
    assert told_of(made) == before | {name: FIELDS[name]}
    assert AuditEntry.objects.get(action="key.changed").object_id == str(made.pk)


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: "-".join(f"{name}={said}"[:40] for name, said in bad.items()))
def test_what_makes_no_sense_is_refused_and_changes_nothing(door: Door, owner: Any, bad: dict[str, Any]) -> None:
    made, _ = keys.make(owner=owner)
    before, entries = everything(), AuditEntry.objects.count()
    assert not door.make(owner.username, **bad)
    assert not door.change(made, **bad)
    assert (everything(), AuditEntry.objects.count()) == (before, entries)


def test_none_is_made_that_has_expired_and_none_for_who_is_deactivated(door: Door, owner: Any) -> None:
    gone, before = OwnerFactory(is_active=False), everything()
    assert not door.make(owner.username, expires_at=-1)
    assert not door.make(gone.username)
    assert everything() == before


def test_it_is_shown_without_its_secret(door: Door, owner: Any) -> None:
    until = timezone.now() + timedelta(days=7)
    made, text = keys.make(owner=owner, **FIELDS | {"expires_at": until})
    shown = door.show(made)
    for said in ("the shop", "read", "default", "small", "203.0.113.0/24", "https://example.org", "60", "5"):
        assert said in shown
    for secret in (text, text.split("_", 2)[2], made.digest):
        assert secret not in shown


def test_it_is_revoked_once(door: Door, owner: Any) -> None:
    made, text = keys.make(owner=owner)
    door.revoke(made)
    first = ApiKey.objects.get(pk=made.pk).revoked_at
    assert first is not None
    assert ApiKey.objects.recognise(text) is None
    door.revoke(made)
    assert ApiKey.objects.get(pk=made.pk).revoked_at == first
    assert AuditEntry.objects.filter(action="key.revoked").count() == 1


@pytest.mark.parametrize("prefix", ["none", "a\x00b", "\udcff"])
def test_a_prefix_that_no_key_has_is_told_in_the_shell_as_by_the_api(prefix: str) -> None:
    with pytest.raises(CommandError, match="no key"):
        call_command("keys", "revoke", prefix)
