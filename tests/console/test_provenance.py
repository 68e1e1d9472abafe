"""Where it came from, walked link by link in the admin: what is remembered, then its turn, model and messages."""

import html
import json
import re

import pytest

from conversations.models import Compaction, Conversation, Message
from memory.models import HistoryEntry, MemoryVersion
from tests.support.compacting import compact
from tests.support.console_client import page
from tests.support.working import settle

pytestmark = pytest.mark.django_db(transaction=True)


def field(client, name, row, column):
    """What a row's page shows in a field that is only read: its words, and where its first link leads."""
    shown = client.get(page(name, "change", row.pk)).content.decode()
    found = re.search(rf'>{column}</label>.*?class="readonly[^"]*">(.*?)</div>', shown, re.DOTALL)
    link = re.search('<a href="([^"]*)"', found[1])
    return " ".join(re.sub("<[^>]*>", " ", found[1]).split()), html.unescape(link[1]) if link else None


def test_a_fact_that_a_tool_remembered_leads_to_its_turn_its_model_and_its_messages(
    admin_client, agent, conversation, say, tool_settings, settings
):
    tool_settings("remember")
    type(agent).objects.filter(pk=agent.pk).update(every_tool=True)
    settings.LLM_MODELS = ["gpt-4.1-mini", "mock-2"]
    call = {"call": [{"name": "remember", "arguments": {"fact": "Takes tea."}}]}
    (turn,) = settle([say(json.dumps({"script": [call, {"say": "Noted."}]}), model="mock-2")])
    version = MemoryVersion.objects.get(source="remember")
    words, link = field(admin_client, "memory_memoryversion", version, "Turn")
    assert (words, link) == (str(turn.pk), page("conversations_turn", "change", turn.pk))
    assert field(admin_client, "memory_memoryversion", version, "Model")[0] == f"{turn.model}, by its turn"
    assert field(admin_client, "memory_memoryversion", version, "Conversation")[1] == page(
        "conversations_conversation", "change", conversation.pk
    )
    _, link = field(admin_client, "memory_memoryversion", version, "Messages")
    listed = admin_client.get(link).context["cl"].queryset
    assert set(listed) == set(turn.messages.all())


def test_what_a_compaction_made_leads_to_it_and_to_its_messages(admin_client, conversation, say, fill):
    settle([say("Roses are red.")])
    fill(60)
    row = compact(conversation)
    assert (row.first_seq, row.status) == (1, "done")
    conversation.refresh_from_db()
    summary = Message.objects.get(conversation=conversation, seq=conversation.summary_seq)
    of_compaction = page("conversations_compaction", "change", row.pk)
    assert field(admin_client, "conversations_message", summary, "Made of")[1] == of_compaction
    version, entry = MemoryVersion.objects.get(), HistoryEntry.objects.get()
    assert field(admin_client, "memory_memoryversion", version, "Made with the summary of")[1] == of_compaction
    for name, made in (("memory_memoryversion", version), ("memory_historyentry", entry)):
        words, link = field(admin_client, name, made, "Messages")
        assert words == f"1 to {row.through_seq}"
        address, place = link.split("#")
        assert f'id="{place}"' in admin_client.get(address).content.decode()
        assert field(admin_client, name, made, "Model")[0] == row.model
        assert field(admin_client, name, made, "Turn")[1] == page("conversations_turn", "change", row.turn_id)


def test_what_came_of_nothing_here_says_so(admin_client, owner):
    version = MemoryVersion.objects.create(agent="default", owner=owner, number=1, base=0, source="person")
    for column in ("Conversation", "Turn", "Messages", "Model", "Made with the summary of"):
        assert field(admin_client, "memory_memoryversion", version, column) == ("–", None)


def test_what_was_deleted_is_remembered_all_the_same(admin_client, conversation, fill, say):
    settle([say("Roses are red.")])
    fill(60)
    compact(conversation)
    Conversation.objects.all().delete()
    assert not Compaction.objects.exists()
    version = MemoryVersion.objects.get()
    assert field(admin_client, "memory_memoryversion", version, "Made with the summary of")[0] == "–"
    assert field(admin_client, "memory_memoryversion", version, "Turn")[0] == str(version.turn_id)
