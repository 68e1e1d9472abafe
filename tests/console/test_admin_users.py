"""Users in the admin: one who has anything is deactivated, or erased with all of it; the audit stays."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.contrib.auth import get_user_model
from django.contrib.contenttypes.models import ContentType
from django.db import connection
from django.urls import reverse

from agent.models import Agent
from conversations.engine import lease, steps, turn_control
from conversations.errors import FenceLost
from conversations.models import Conversation, Turn
from nanohost.accounts.models import ApiKey
from nanohost.console import people
from tests.support.console_client import make_rows
from tests.support.factories import OwnerFactory
from tests.support.working import advance, run_call
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


def page_of(user):
    return reverse("admin:auth_user_delete", args=[user.pk])


def rows_of(user):
    """Of each model that names a user, how many rows name this one."""
    return {
        f"{relation.related_model.__name__}.{relation.field.name}": count
        for relation in get_user_model()._meta.get_fields(include_hidden=True)
        if (relation.one_to_many and relation.auto_created)
        and (count := relation.related_model._default_manager.filter(**{relation.field.name: user.pk}).count())
    }


def test_whoever_has_anything_is_deleted_by_no_plain_click(admin_client, with_history):
    shown = admin_client.get(page_of(with_history)).content.decode()
    for words in ("Turns: 1<", "Conversations: 1<", "API keys: 1<", "Deactivate", "Erase it all"):
        assert words in shown
    assert admin_client.post(page_of(with_history), {"post": "yes"}).status_code == 400
    wrong = admin_client.post(page_of(with_history), {"do": "erase", "name": "somebody"})
    assert "Nothing was done: write the name" in wrong.content.decode()
    chosen = {"action": "delete_selected", "_selected_action": [with_history.pk], "post": "yes"}
    told = admin_client.post(reverse("admin:auth_user_changelist"), chosen).content.decode()
    assert "deactivate, or open the user" in told
    with_history.refresh_from_db()
    assert with_history.is_active
    assert Conversation.objects.count() == Turn.objects.count() == 1


def test_a_user_is_deactivated(admin_client, with_history):
    before = rows_of(with_history)
    assert admin_client.post(page_of(with_history), {"do": "deactivate"}).status_code == 302
    with_history.refresh_from_db()
    assert (with_history.is_active, rows_of(with_history)) == (False, before)
    other = OwnerFactory()
    admin_client.post(
        reverse("admin:auth_user_changelist"),
        {"action": "deactivate", "_selected_action": [other.pk, USERS.get(username="admin").pk]},
    )
    assert list(USERS.filter(is_active=True).values_list("username", flat=True)) == ["admin"]


def erase(client, user):
    return client.post(page_of(user), {"do": "erase", "name": user.username}, follow=True).content.decode()


def test_erased_all_that_was_somebody_s_is_gone_and_the_audit_stays(admin_client):
    make_rows(2)
    gone, other = USERS.filter(username__startswith="owner").order_by("pk")
    Agent.objects.update(check_in_owner=gone)
    call = ToolCall.objects.filter(conversation_id__in=Conversation.objects.filter(owner=gone).values("pk")).get()
    ToolCall.objects.update(owner_id=gone.pk)
    kept = rows_of(other)
    assert len(rows_of(gone)) >= 9
    assert "The user is erased" in erase(admin_client, gone)
    assert rows_of(gone) == {}
    assert not USERS.filter(pk=gone.pk).exists()
    assert rows_of(other) == kept
    call.refresh_from_db()
    assert call.owner_id == gone.pk
    assert LogEntry.objects.get(action_flag=DELETION).object_repr == f"user {gone.pk}"


def test_what_is_under_way_is_ended_and_its_worker_stores_nothing_more(admin_client, say, owner):
    claim = lease.claim(say("Hello").pk, worker="w")
    say("behind")
    erase(admin_client, owner)
    assert not Turn.objects.exists()
    with pytest.raises(FenceLost):
        steps.release(claim)


def test_an_erasure_that_was_cut_short_goes_on(admin_client, monkeypatch):
    make_rows(1)
    user = USERS.get(username__startswith="owner<")
    _, key = ApiKey.objects.issue(owner=user)
    before = rows_of(user)
    monkeypatch.setattr("nanohost.console.admin.ERASE_SECONDS", -1)
    assert "Erase again to continue" in erase(admin_client, user)
    assert ApiKey.objects.recognise(key) is None
    assert rows_of(user) == before
    monkeypatch.undo()
    assert "The user is erased" in erase(admin_client, user)
    assert not USERS.filter(pk=user.pk).exists()


class Interrupted(Exception):
    """It ends here."""


def test_more_conversations_than_are_read_at_once_are_erased_while_others_write(monkeypatch):
    user = OwnerFactory()
    agent = Agent.objects.get(name="default")
    rows = (Conversation(owner=user, agent=agent, key=f"test:{number}") for number in range(2_100))
    Conversation.objects.bulk_create(rows)
    real, deleted = turn_control.delete_conversation, []

    def write():
        OwnerFactory()
        connection.close()

    def delete(conversation_id):
        with ThreadPoolExecutor(1) as another:
            another.submit(write).result()
        real(conversation_id)
        deleted.append(conversation_id)
        if len(deleted) == 3:
            raise Interrupted

    monkeypatch.setattr(turn_control, "delete_conversation", delete)
    with pytest.raises(Interrupted):
        people.erase(user)
    assert Conversation.objects.count() == 2_097


def test_whom_the_console_s_log_names_stays_as_a_number(admin_client):
    boss = USERS.create_superuser("carla", "carla@example.org", "x")
    ApiKey.objects.issue(owner=boss)
    LogEntry.objects.create(
        user=boss, content_type=ContentType.objects.get_for_model(Turn), object_repr="x", action_flag=CHANGE
    )
    assert "is kept, as a number" in admin_client.get(page_of(boss)).content.decode()
    erase(admin_client, boss)
    left = USERS.get(pk=boss.pk)
    assert (left.username, left.email, left.is_active, left.is_staff, left.is_superuser) == (
        f"erased-{boss.pk}",
        "",
        False,
        False,
        False,
    )
    assert rows_of(left) == {"LogEntry.user": 1}


def test_nobody_erases_or_deactivates_himself(admin_client):
    me = USERS.get(username="admin")
    ApiKey.objects.issue(owner=me)
    assert "This is your own account." in admin_client.get(page_of(me)).content.decode()
    for does in ("erase", "deactivate"):
        assert admin_client.post(page_of(me), {"do": does, "name": "admin"}).status_code == 403
    assert USERS.get(username="admin").is_active


def test_a_user_without_a_history_is_deleted(admin_client):
    nobody = OwnerFactory(username="nobody")
    assert admin_client.post(page_of(nobody), {"post": "yes"}).status_code == 302
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
