"""``manage.py keys``: making, listing and revoking API keys; and what opens the API."""

import hashlib
import re
from datetime import timedelta

import pytest
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command
from django.db import connection
from django.utils import timezone

from nanohost.accounts.errors import MalformedKey
from nanohost.accounts.models import KEY_PATTERN, ApiKey
from tests.support.tables import readable_tables

pytestmark = pytest.mark.django_db


def keys(capsys, *arguments):
    """Run the command; returns what it prints."""
    call_command("keys", *arguments)
    return capsys.readouterr().out


@pytest.fixture
def key(capsys):
    """A key of ada's, as it is shown once."""
    return keys(capsys, "create", "--owner", "ada").strip()


def opens(client, key):
    response = client.get("/api/v1/conversations", headers={"Authorization": f"Bearer {key}"})
    assert response.status_code in (200, 401)
    return response.status_code == 200


# --- create ------------------------------------------------------------------------------------------------------


def test_a_made_key_is_printed_alone_and_opens_the_api(client, key):
    assert re.fullmatch(KEY_PATTERN, key)
    assert opens(client, key)
    assert ApiKey.objects.recognise(key).owner.username == "ada"


def test_an_owner_nobody_knows_is_made_and_cannot_log_in(key):
    ada = get_user_model().objects.get(username="ada")
    assert not ada.has_usable_password()
    assert not ada.is_staff


def test_an_owner_who_is_known_is_left_as_they_are(capsys, owner):
    owner.set_password("correct horse")
    owner.save()
    keys(capsys, "create", "--owner", "owner")
    keys(capsys, "create", "--owner", "owner")
    owner.refresh_from_db()
    assert owner.check_password("correct horse")
    assert owner.api_keys.count() == 2


def test_a_key_that_is_to_expire_does(capsys, client):
    key = keys(capsys, "create", "--owner", "ada", "--expires", "7").strip()
    row = ApiKey.objects.get()
    assert abs(row.expires_at - timezone.now() - timedelta(days=7)) < timedelta(minutes=1)
    assert opens(client, key)
    ApiKey.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert not opens(client, key)


@pytest.mark.parametrize("days", ["0", "-1", "36501", "soon"])
def test_days_that_make_no_sense_are_refused(days):
    with pytest.raises(CommandError, match="--expires"):
        call_command("keys", "create", "--owner", "ada", f"--expires={days}")
    assert not ApiKey.objects.exists()
    assert not get_user_model().objects.exists()


@pytest.mark.parametrize("name", ["", "   ", "a" * 151, "two words", "a\x00b"])
def test_an_owners_name_that_cannot_be_one_is_refused(name):
    with pytest.raises(CommandError, match="--owner"):
        call_command("keys", "create", f"--owner={name}")
    assert not get_user_model().objects.exists()


def test_nobody_makes_a_key_for_a_user_who_is_deactivated(owner):
    get_user_model().objects.update(is_active=False)
    with pytest.raises(CommandError, match="deactivated"):
        call_command("keys", "create", f"--owner={owner.username}")
    assert not ApiKey.objects.exists()


# --- what is kept ------------------------------------------------------------------------------------------------


def test_the_key_itself_is_nowhere_in_the_database(key):
    secret = key.split("_", 2)[2]
    kept = []
    with connection.cursor() as cursor:
        for table in readable_tables():
            cursor.execute(f'SELECT * FROM "{table}"')
            kept += [str(value) for row in cursor.fetchall() for value in row]
    assert not [value for value in kept if key in value or secret in value]
    assert hashlib.sha256(key.encode()).hexdigest() in kept


def test_a_key_is_known_by_its_digest_alone(client, key):
    other = f"nh_{key.split('_')[1]}_{'0' * 32}"
    ApiKey.objects.update(digest=hashlib.sha256(other.encode()).hexdigest())
    assert not opens(client, key)
    assert opens(client, other)


# --- what does not open ------------------------------------------------------------------------------------------


def test_a_key_that_differs_in_one_place_does_not_open(client, key):
    last = "a" if key[-1] != "a" else "b"
    assert not opens(client, key[:-1] + last)
    assert not opens(client, key[:-1])
    assert not opens(client, f"{key}a")
    assert not opens(client, key.upper())
    assert opens(client, key)


@pytest.mark.parametrize("key", ["nh_", "nh__", "nh_a_b", "x", "nh_" + "a" * 10_000 + "_b", "ключ", "nh_\x00_a"])
def test_what_is_no_key_does_not_open(client, db, key):
    assert ApiKey.objects.recognise(key) is None


def test_the_key_of_an_owner_who_was_deactivated_does_not_open(client, key):
    get_user_model().objects.update(is_active=False)
    assert not opens(client, key)


def test_the_prefix_and_the_digest_do_not_open(client, key):
    row = ApiKey.objects.get()
    assert not opens(client, row.prefix)
    assert not opens(client, f"nh_{row.prefix}_{row.digest}")


@pytest.mark.parametrize("chosen", ["", "nh_abcd_short", "nh_ABCD_0123456789abcdef", "sk_abcd_0123456789abcdef"])
def test_a_chosen_key_that_is_not_shaped_like_one_is_refused(owner, chosen):
    with pytest.raises(MalformedKey, match="nh_<prefix>_<secret>"):
        ApiKey.objects.register(chosen, owner=owner)


def test_the_use_of_a_key_is_noted_at_most_once_a_minute(client, key):
    assert ApiKey.objects.get().last_used_at is None
    opens(client, key)
    first = ApiKey.objects.get().last_used_at
    opens(client, key)
    assert ApiKey.objects.get().last_used_at == first
    ApiKey.objects.update(last_used_at=timezone.now() - timedelta(minutes=2))
    opens(client, key)
    assert ApiKey.objects.get().last_used_at >= first


# --- list and revoke ---------------------------------------------------------------------------------------------


def test_keys_are_listed_with_their_state_and_without_their_secrets(capsys, client, key):
    other = keys(capsys, "create", "--owner", "bob", "--expires", "1").strip()
    gone = keys(capsys, "create", "--owner", "eve").strip()
    late = keys(capsys, "create", "--owner", "tim", "--expires", "1").strip()
    keys(capsys, "revoke", gone.split("_")[1])
    ApiKey.objects.filter(prefix=late.split("_")[1]).update(expires_at=timezone.now() - timedelta(days=1))
    opens(client, key)
    told = keys(capsys, "list")
    columns = {line.split("\t")[1]: line.split("\t") for line in told.splitlines()}
    assert columns["ada"][2] == "active"
    assert columns["bob"][2].startswith("expires 20")
    assert columns["eve"][2] == "revoked"
    assert columns["tim"][2].startswith("expired 20")
    assert columns["ada"][3] != "last used never"
    assert columns["bob"][3] == "last used never"
    for each in (key, other, gone, late):
        assert each.split("_")[1] in told
        assert each.split("_", 2)[2] not in told


def test_a_revoked_key_does_not_open(capsys, client, key):
    prefix = key.split("_")[1]
    assert keys(capsys, "revoke", prefix) == f"{prefix} is revoked.\n"
    assert not opens(client, key)


def test_revoking_twice_keeps_the_first_time(capsys, key):
    prefix = key.split("_")[1]
    keys(capsys, "revoke", prefix)
    first = ApiKey.objects.get().revoked_at
    keys(capsys, "revoke", prefix)
    assert ApiKey.objects.get().revoked_at == first


@pytest.mark.parametrize("written", ["{prefix}", "nh_{prefix}", "nh_{prefix}_…", "{key}"])
def test_a_key_is_revoked_by_any_way_to_write_its_prefix(capsys, client, key, written):
    keys(capsys, "revoke", written.format(prefix=key.split("_")[1], key=key))
    assert not opens(client, key)


def test_an_unknown_prefix_is_told():
    with pytest.raises(CommandError, match=r"There is no key with the prefix 'nobody'; `manage\.py keys list` lists"):
        call_command("keys", "revoke", "nobody")


@pytest.mark.parametrize("arguments", [[], ["make"], ["create"], ["revoke"]])
def test_a_command_that_makes_no_sense_is_refused(arguments):
    with pytest.raises(CommandError):
        call_command("keys", *arguments)
