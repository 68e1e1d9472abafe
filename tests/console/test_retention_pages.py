"""Retention and legal holds in the admin: what would go, how long an agent keeps what, and holds in the way."""

import re
from datetime import timedelta

import pytest
from django.contrib.auth import get_user_model
from django.urls import reverse

from agent.models import Agent, AgentVersion
from conversations.models import Conversation, Message
from memory import log
from nanohost.accounts import holds
from nanohost.accounts.models import AuditEntry, LegalHold
from nanohost.console import retention_page
from nanohost.console.roles import sync_roles
from nanohost.lib import clock
from tests.support.ageing import age, go, keep
from tests.support.console_client import client_of, page
from tests.support.working import settle

pytestmark = pytest.mark.django_db(transaction=True)

RETENTION = "/admin/retention/"


@pytest.fixture
def roles(db):
    sync_roles()


def text_of(answer):
    return " ".join(re.sub("<[^>]+>", " ", answer.content.decode()).split())


def hold_on(owner):
    return holds.place(kind="owner", owner_id=owner.pk, reason="A matter.", by="anna")


# --- how long ------------------------------------------------------------------------------------------------------


def test_how_long_an_agent_keeps_what_is_set_on_its_page(admin_client, agent):
    address = page("agent_agent", "change", agent.pk)
    form = {"system_prompt": "", "keep_messages": "90", "keep_results": "7", "keep_sent": "", "keep_memory": ""}
    assert admin_client.post(address, form | {"keep_history": ""}).status_code == 302
    agent.refresh_from_db()
    assert agent.retention == {"messages": 90, "results": 7}
    assert AgentVersion.objects.latest("number").profile["retention"] == agent.retention
    assert "retention" in AuditEntry.objects.filter(action="agent.changed").latest("pk").after
    assert 'value="90"' in admin_client.get(address).content.decode()
    refused = admin_client.post(address, form | {"keep_messages": "0"})
    assert refused.status_code == 200
    assert Agent.objects.get().retention == {"messages": 90, "results": 7}


def test_the_page_counts_what_would_go_by_agent_and_deletes_nothing(admin_client, agent, fill, conversation):
    assert "every agent keeps everything for ever" in text_of(admin_client.get(RETENTION))
    fill(5)
    age(40)
    keep(agent, messages=30)
    told = text_of(admin_client.get(RETENTION))
    assert "default messages 30 5 0" in told
    assert Message.objects.count() == 5
    hold = hold_on(conversation.owner)
    told = text_of(admin_client.get(RETENTION))
    assert "default messages 30 0 1" in told
    assert f"legal hold {hold.pk} on owner" in told


def test_the_page_tells_of_agents_that_were_deleted(admin_client, owner):
    clerk = Agent.objects.create(name="clerk", retention={"history": 7})
    log.append(agent="clerk", owner_id=owner.pk, content="words", happened_at=clock.read() - timedelta(days=8))
    assert admin_client.post(page("agent_agent", "delete", clerk.pk), {"post": "yes"}).status_code == 302
    assert "clerk (deleted) history 7 1 0" in text_of(admin_client.get(RETENTION))


def test_what_it_cannot_count_in_time_it_says(admin_client, agent, fill, monkeypatch):
    fill(5)
    age(40)
    keep(agent, messages=30)
    monkeypatch.setattr(retention_page, "COUNT_SECONDS", -1.0)
    assert "retention --dry-run counts all of it" in text_of(admin_client.get(RETENTION))


def test_only_those_who_see_agents_and_holds_see_it(roles):
    assert [client_of(role).get(RETENTION).status_code for role in ("viewer", "staff without a group")] == [200, 403]


def test_a_transcript_says_where_it_was_deleted_from_and_can_be_read(admin_client, say, agent, conversation):
    settle([say("one"), say("two")])
    age(40)
    settle([say("three")])
    keep(agent, messages=30)
    go()
    address = page("conversations_conversation", "transcript", conversation.pk)
    told = text_of(admin_client.get(address))
    assert "Messages up to 4 were deleted" in told
    assert "three" in told
    for query in ("?before=3", "?after=1", "?before=6"):
        assert admin_client.get(f"{address}{query}").status_code == 200


def test_an_emptied_conversation_can_be_read(admin_client, say, agent, conversation):
    settle([say("one")])
    age(40)
    keep(agent, messages=30)
    go()
    assert "Messages up to 2 were deleted" in text_of(
        admin_client.get(page("conversations_conversation", "transcript", conversation.pk))
    )


def test_what_a_model_was_sent_is_said_to_be_deleted(admin_client, say, agent):
    (turn,) = settle([say("one")])
    age(40)
    keep(agent, sent=30)
    go()
    told = text_of(admin_client.get(page("conversations_turn", "sent", turn.pk)))
    assert "its record was deleted because of its age" in told
    keep(agent, messages=30)
    go()
    told = text_of(admin_client.get(page("conversations_turn", "sent", turn.pk)))
    assert "if this turn had model calls, their records are gone" in told


# --- holds ---------------------------------------------------------------------------------------------------------


def test_a_hold_is_placed_and_released_in_the_admin(admin_client, owner):
    add = page("accounts_legalhold", "add")
    wrong = admin_client.post(add, {"kind": "owner", "subject": "nobody", "reason": "A matter."})
    assert "There is no user named" in text_of(wrong)
    assert admin_client.post(add, {"kind": "owner", "subject": "owner", "reason": "A matter."}).status_code == 302
    hold = LegalHold.objects.get()
    assert (hold.owner_id, hold.placed_by, hold.reason) == (owner.pk, "admin", "A matter.")
    change = page("accounts_legalhold", "change", hold.pk)
    assert admin_client.post(change, {"because": ""}).status_code == 200
    assert admin_client.post(change, {"because": "Settled."}).status_code == 302
    hold.refresh_from_db()
    assert (hold.released_by, hold.released_because) == ("admin", "Settled.")
    assert admin_client.post(change, {"because": "Again."}).status_code == 403
    assert admin_client.post(page("accounts_legalhold", "delete", hold.pk), {"post": "yes"}).status_code == 403
    actions = AuditEntry.objects.filter(object_type="accounts.legalhold").values_list("action", "actor")
    assert set(actions) == {("hold.placed", "user admin"), ("hold.released", "user admin")}


def test_a_viewer_neither_places_nor_releases(roles, owner):
    hold, viewer = hold_on(owner), client_of("viewer")
    assert viewer.get(page("accounts_legalhold", "change", hold.pk)).status_code == 200
    assert viewer.post(page("accounts_legalhold", "change", hold.pk), {"because": "x"}).status_code == 403
    assert viewer.get(page("accounts_legalhold", "add")).status_code == 403


def test_a_held_conversation_is_not_deleted(admin_client, conversation):
    hold = hold_on(conversation.owner)
    address = page("conversations_conversation", "delete", conversation.pk)
    shown = admin_client.get(address)
    assert f"legal hold {hold.pk}" in text_of(shown)
    assert "confirm-delete" not in shown.content.decode()
    told = admin_client.post(address, {"post": "yes"}, follow=True)
    assert f"Nothing of it is deleted: legal hold {hold.pk}" in text_of(told)
    assert Conversation.objects.exists()
    assert not AuditEntry.objects.filter(action="conversation.deleted").exists()


def test_a_held_user_is_deactivated_and_not_erased(admin_client, conversation, owner):
    hold = hold_on(owner)
    address = reverse("admin:auth_user_delete", args=[owner.pk])
    shown = admin_client.get(address).content.decode()
    assert f"legal hold {hold.pk}" in shown
    assert "Erase it all" not in shown
    assert "Deactivate" in shown
    told = admin_client.post(address, {"do": "erase", "name": owner.username}, follow=True)
    assert f"legal hold {hold.pk}" in text_of(told)
    assert get_user_model().objects.get(pk=owner.pk).is_active
    chosen = {"action": "delete_selected", "_selected_action": [owner.pk], "post": "yes"}
    assert f"legal hold {hold.pk}" in text_of(admin_client.post(reverse("admin:auth_user_changelist"), chosen))
    assert get_user_model().objects.filter(pk=owner.pk).exists()


def test_a_held_user_who_has_nothing_is_not_deleted_either(admin_client, owner):
    hold = hold_on(owner)
    told = admin_client.post(reverse("admin:auth_user_delete", args=[owner.pk]), {"post": "yes"}, follow=True)
    assert f"legal hold {hold.pk}" in text_of(told)
    assert get_user_model().objects.filter(pk=owner.pk).exists()


def test_a_held_agent_is_not_deleted(admin_client):
    clerk = Agent.objects.create(name="clerk")
    hold = holds.place(kind="agent", agent="clerk", reason="A matter.", by="anna")
    address = page("agent_agent", "delete", clerk.pk)
    assert f"legal hold {hold.pk}" in text_of(admin_client.get(address))
    assert admin_client.post(address, {"post": "yes"}).status_code in (200, 403)
    assert Agent.objects.filter(name="clerk").exists()
