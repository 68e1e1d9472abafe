"""Users in the admin: one with a history is not deleted but deactivated; what became of them can always be traced."""

import re

import pytest
from django.contrib.auth import get_user_model
from django.urls import reverse

from conversations.models import Conversation, Turn
from nanohost.accounts.models import ApiKey
from tests.factories import OwnerFactory
from tests.work import advance, run_call
from tools.models import CallStatus, ToolCall

pytestmark = pytest.mark.django_db(transaction=True)

USERS = get_user_model().objects


@pytest.fixture
def with_history(say, tool_settings):
    """An owner with a key, a conversation, a turn and an ended tool call."""
    tool_settings("time")
    turn = advance(say("What time is it?"))
    run_call(ToolCall.objects.get())
    turn.refresh_from_db()
    ApiKey.objects.issue(owner=turn.owner)
    return turn.owner


def ask_to_delete(admin_client, user, *, really):
    address = reverse("admin:auth_user_delete", args=[user.pk])
    return admin_client.post(address, {"post": "yes"}) if really else admin_client.get(address)


def test_a_user_with_a_history_is_not_deleted_and_the_page_says_what_stands_in_the_way(admin_client, with_history):
    page = ask_to_delete(admin_client, with_history, really=False).content.decode()
    assert "<title>Cannot delete user" in page
    for kind in ("turn", "message", "API key"):
        assert re.search(rf"<li[^>]*>\s*{kind}\s*</li>", page)
    assert ask_to_delete(admin_client, with_history, really=True).status_code == 403
    assert USERS.filter(pk=with_history.pk).exists()
    assert Conversation.objects.count() == Turn.objects.count() == 1


def test_the_action_of_the_list_deletes_none_with_a_history_either(admin_client, with_history):
    chosen = {"action": "delete_selected", "_selected_action": [with_history.pk], "post": "yes"}
    assert admin_client.post(reverse("admin:auth_user_changelist"), chosen).status_code == 403
    assert USERS.filter(pk=with_history.pk).exists()


def test_a_user_without_a_history_is_deleted(admin_client):
    nobody = OwnerFactory(username="nobody")
    assert ask_to_delete(admin_client, nobody, really=True).status_code == 302
    assert not USERS.filter(pk=nobody.pk).exists()


def test_the_keys_of_a_deactivated_user_open_nothing(with_history):
    _, key = ApiKey.objects.issue(owner=with_history)
    assert ApiKey.objects.recognise(key)
    USERS.filter(pk=with_history.pk).update(is_active=False)
    assert ApiKey.objects.recognise(key) is None


def test_code_that_deletes_a_user_takes_the_history_along_and_leaves_the_audit(with_history):
    with_history.delete()
    assert not Conversation.objects.exists()
    assert not Turn.objects.exists()
    assert ToolCall.objects.get().status == CallStatus.SUCCESS
