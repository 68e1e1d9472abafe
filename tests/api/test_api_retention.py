"""What the API says of a conversation that a legal hold keeps, and of one whose messages were deleted by their age."""

import pytest
from django.test import Client

from conversations.models import Conversation
from nanohost.accounts import holds
from nanohost.accounts.models import WIDE, ApiKey
from tests.support.ageing import age, go, keep
from tests.support.working import settle

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def api(owner):
    _, key = ApiKey.objects.issue(owner=owner, **WIDE)
    return Client(headers={"Authorization": f"Bearer {key}"})


def test_a_held_conversation_is_not_deleted(api, conversation):
    hold = holds.place(kind="conversation", conversation_id=conversation.pk, reason="A secret matter.", by="anna")
    address = f"/api/v1/conversations/{conversation.pk}"
    refused = api.delete(address)
    assert (refused.status_code, refused.json()["code"]) == (409, "legal_hold")
    assert f"legal hold {hold.pk}" in refused.json()["detail"]
    assert "secret" not in refused.content.decode()
    holds.release(hold, reason="Settled.", by="anna")
    assert api.delete(address).status_code == 204
    assert not Conversation.objects.exists()


def test_what_is_left_of_a_conversation_is_listed(api, say, agent, conversation):
    settle([say("one")])
    age(40)
    settle([say("two")])
    keep(agent, messages=30)
    go()
    address = f"/api/v1/conversations/{conversation.pk}"
    shown = api.get(f"{address}/messages").json()
    assert [each["content"] for each in shown["results"]][:1] == ["two"]
    assert len(api.get(f"{address}/turns").json()["results"]) == 2
    assert api.get(address).status_code == api.get(f"{address}/summaries").status_code == 200
