"""API keys in the admin: made in the browser, shown once by the answer itself, and nowhere else ever."""

import logging
import re
from datetime import timedelta

import pytest
from django.apps import apps
from django.contrib.auth.models import Group, User
from django.core import serializers
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from nanohost.accounts.models import ApiKey
from nanohost.console.roles import OPERATOR, VIEWER, sync_roles
from tests.support.factories import AgentFactory, OwnerFactory

pytestmark = pytest.mark.django_db

ADD, LIST = reverse("admin:accounts_apikey_add"), reverse("admin:accounts_apikey_changelist")


def make(client, **fields):
    answer = client.post(ADD, {"scopes": ["chat", "read"], **fields})
    found = re.search(r'id="key"[^>]*>(nh_[^<]+)<', answer.content.decode())
    return answer, found[1] if found else None


def test_a_key_is_made_shown_once_and_opens_the_api(admin_client, owner, client):
    assert admin_client.get(ADD).status_code == 200
    answer, key = make(admin_client, owner=owner.pk, days=30)
    assert answer.status_code == 200
    assert "no-store" in answer["Cache-Control"]
    row = ApiKey.objects.get()
    assert ApiKey.objects.recognise(key) == row
    assert row.owner == owner
    assert timedelta(days=29.9) < row.expires_at - timezone.now() <= timedelta(days=30)
    assert client.get("/api/v1/conversations", headers={"Authorization": f"Bearer {key}"}).status_code == 200
    assert make(admin_client, owner=owner.pk)[1] != key
    assert ApiKey.objects.filter(expires_at=None).count() == 1


def test_a_key_is_left_nowhere(admin_client, owner, caplog):
    with caplog.at_level(logging.DEBUG):
        answer, key = make(admin_client, owner=owner.pk)
    secret = key.split("_", 2)[2]
    assert secret not in caplog.text
    assert secret not in str(answer.headers) + str(admin_client.cookies)
    assert secret not in str(dict(admin_client.session))
    stored = [serializers.serialize("json", model.objects.all()) for model in apps.get_models()]
    assert not [rows for rows in stored if secret in rows]
    (row,) = ApiKey.objects.all()
    for address in (LIST, ADD, reverse("admin:accounts_apikey_change", args=[row.pk]), reverse("admin:index")):
        shown = admin_client.get(address).content.decode()
        assert secret not in shown
        assert row.digest not in shown


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"owner": "", "days": ""}, "This field is required."),
        ({"owner": "4711", "days": ""}, "Select a valid choice."),
        ({"days": "0"}, "greater than or equal to 1"),
        ({"days": "1000000"}, "less than or equal to 36500"),
        ({"days": "soon"}, "Enter a whole number."),
    ],
)
def test_what_makes_no_sense_makes_no_key(admin_client, owner, fields, words):
    answer, key = make(admin_client, **{"owner": owner.pk, **fields})
    assert words in answer.content.decode()
    assert key is None
    assert not ApiKey.objects.exists()


def test_who_is_not_active_gets_none(admin_client):
    gone = OwnerFactory(is_active=False)
    assert make(admin_client, owner=gone.pk)[1] is None


@pytest.mark.parametrize(
    ("may", "is_wider"),
    [
        ({}, False),
        ({"agent_names": ["default"]}, False),
        ({"model_names": ["large"]}, False),
        ({"scopes": ["memory"]}, True),
        ({"agent_names": ["*"]}, True),
        ({"agent_names": ["default", "clerk"]}, True),
        ({"model_names": ["large", "huge"]}, True),
    ],
)
def test_the_list_says_which_keys_are_wider_than_a_new_one(admin_client, owner, settings, may, is_wider):
    settings.LLM_MODELS = ["large"]
    AgentFactory(name="clerk")
    ApiKey.objects.issue(owner=owner, **may)
    (cell,) = re.findall(r'<td class="field-wider.*?</td>', admin_client.get(LIST).content.decode(), re.DOTALL)
    assert ("True" in cell, "False" in cell) == (is_wider, not is_wider)


@pytest.mark.parametrize("role", [VIEWER, OPERATOR])
def test_a_key_opens_what_is_anybody_s_so_that_only_admins_make_one(owner, role):
    sync_roles()
    member = User.objects.create_user("member", is_staff=True)
    member.groups.add(Group.objects.get(name=role))
    client = Client()
    client.force_login(member)
    assert client.get(ADD).status_code == 403
    assert make(client, owner=owner.pk)[1] is None
    assert not ApiKey.objects.exists()
    assert ADD not in client.get(LIST).content.decode()
