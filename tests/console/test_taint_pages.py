"""Taint in the console and over the API: where it came from is shown, and what it would change."""

import json
import re

import pytest
from django.test import Client
from django.urls import reverse

from agent.models import Agent
from conversations.engine import inbox
from conversations.engine.incoming import Incoming
from conversations.models import Conversation, Message
from memory import documents, log
from memory.models import Memory
from nanohost.accounts.models import WIDE, ApiKey, AuditEntry
from tests.support.console_client import HOSTILE, page
from tests.support.factories import AgentFactory
from tests.support.hosts import KEY
from tests.support.scripts import script
from tests.support.working import settle
from tools.models import ToolSetting

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def tainted(conversation):
    """The conversation, which a note of an agent has tainted."""
    assert inbox.note(conversation_id=conversation.pk, content="Hello.", by_agent=True)
    assert inbox.note(conversation_id=conversation.pk, content="Roses.", by_agent=True, tainted_by=HOSTILE)
    conversation.refresh_from_db()
    return conversation


def read(client, address, **query):
    answer = client.get(address, query)
    assert answer.status_code == 200, answer.content[:2000]
    return answer.content.decode()


def test_a_transcript_says_where_it_came_from(admin_client, tainted):
    html = read(admin_client, reverse("admin:conversations_conversation_transcript", args=[tainted.pk]))
    assert 'id="tainted"' in html
    assert 'href="?before=3#taint-2"' in html
    assert 'id="taint-2"' in html
    assert "<script>alert" not in html


def test_a_call_s_result_is_where_it_points_to(admin_client, owner, tool_settings):
    tool_settings("fetch", grants=["NET_HTTP"])
    chat = inbox.start_conversation(owner_id=owner.pk, agent=AgentFactory().name, metadata={})
    said = script({"call": [{"name": "fetch", "arguments": {"url": "x"}}]}, {"say": "Done."})
    settle([inbox.receive(Incoming(said), conversation=chat, request_id="request-1")])
    html = read(admin_client, reverse("admin:conversations_conversation_transcript", args=[chat.pk]))
    (target,) = re.findall(r'id="to-taint" href="[^"]*#([^"]+)"', html)
    assert html.count(f'id="{target}"') == 1


def test_a_transcript_without_says_nothing_of_it(admin_client, conversation):
    html = read(admin_client, reverse("admin:conversations_conversation_transcript", args=[conversation.pk]))
    assert 'id="tainted"' not in html


def test_the_list_finds_those_that_are_tainted(admin_client, tainted, owner):
    other = inbox.start_conversation(owner_id=owner.pk, metadata={})
    html = read(admin_client, page("conversations_conversation"), tainted="yes")
    assert str(tainted.pk) in html
    assert str(other.pk) not in html


def test_the_list_of_agents_names_those_that_are_off(admin_client, agent):
    assert 'id="unguarded"' not in read(admin_client, page("agent_agent"))
    old = AgentFactory(name="clerk", taint="off")
    html = read(admin_client, page("agent_agent"))
    assert f'<a href="{page("agent_agent", "change", old.pk)}">clerk</a>' in html[html.index('id="unguarded"') :]
    for one, words in {old: "they run all the same", agent: "each needs consent"}.items():
        assert words in read(admin_client, reverse("admin:agent_agent_whole", args=[one.pk]))


def test_a_change_of_it_is_a_version_and_an_entry(admin_client, agent):
    form = {"system_prompt": "", "model": "", "every_tool": "on", "taint": "refuse"}
    assert admin_client.post(page("agent_agent", "change", agent.pk), form).status_code == 302
    assert Agent.objects.get(pk=agent.pk).taint == "refuse"
    entry = AuditEntry.objects.filter(action="agent.changed").latest("pk")
    assert (json.loads(entry.before)["taint"], json.loads(entry.after)["taint"]) == ("approve", "refuse")


def ask_simulator(client, **given):
    form = {"tool": "append_line", "agent": "default", "arguments": '{"path": "x", "line": "one"}'} | given
    return client.post(reverse("admin:simulator"), form).content.decode()


def test_the_simulator_says_what_it_would_change(admin_client, agent, tool_settings, conversation):
    tool_settings("append_line", grants=["FS_WRITE"])
    tool_settings("time")
    html = ask_simulator(admin_client, conversation=conversation.pk)
    assert "Yes: it would run" in html
    assert "the rule <bdi>consent:tainted</bdi> would require it" in html
    Agent.objects.filter(pk=agent.pk).update(taint="refuse")
    html = ask_simulator(admin_client, conversation=conversation.pk)
    assert "the rule <bdi>tainted</bdi> would refuse it" in html
    assert "It would run anyway." in ask_simulator(admin_client, tool="time", arguments="{}")
    Agent.objects.filter(pk=agent.pk).update(taint="off")
    assert "It would run anyway." in ask_simulator(admin_client)
    ToolSetting.objects.update(enabled=False)
    assert "It is refused in any case." in ask_simulator(admin_client)


def test_the_simulator_knows_what_has_entered_a_conversation(admin_client, tainted, tool_settings):
    tool_settings("append_line", grants=["FS_WRITE"])
    html = ask_simulator(admin_client, conversation=tainted.pk)
    assert "the rule <bdi>consent:tainted</bdi> wants it" in html
    assert "that is already in the answer above" in html
    assert "<script>alert" not in html


# --- memory ------------------------------------------------------------------------------------------------------


def save(client, **form):
    head = Memory.objects.get()
    form = {"content": head.content, "read_version": head.version} | form
    assert client.post(page("memory_memory", "change", head.pk), form).status_code == 302


def test_who_has_read_a_memory_may_trust_it(admin_client, owner):
    of = {"agent": "default", "owner_id": owner.pk}
    documents.rewrite(**of, base=0, content="- roses", source="remember", tainted_by="a page")
    save(admin_client, content="- roses, red ones")
    assert Memory.objects.get().tainted_by == "a page"
    save(admin_client, trusted="on")
    assert Memory.objects.get().tainted_by == ""
    entry = AuditEntry.objects.get(action="memory.trusted")
    assert (entry.actor, entry.object_type) == ("user admin", "memory.memory")
    assert json.loads(entry.before)["taintedBy"] == "a page"


# --- over the API ------------------------------------------------------------------------------------------------


@pytest.fixture
def api(owner):
    ApiKey.objects.register(KEY, owner=owner, **WIDE)
    return Client(headers={"Authorization": f"Bearer {KEY}"})


def test_a_conversation_says_so(api, tainted, owner):
    said = api.get(f"/api/v1/conversations/{tainted.pk}").json()["tainted"]
    assert said == {"seq": 2, "by": Conversation.objects.get(pk=tainted.pk).tainted_by}
    fresh = inbox.start_conversation(owner_id=owner.pk, metadata={})
    listed = {each["conversationId"]: each["tainted"] for each in api.get("/api/v1/conversations").json()["results"]}
    assert (listed[str(fresh.pk)], listed[str(tainted.pk)]) == (None, said)


def test_memory_and_history_say_so(api, owner):
    of = {"agent": "default", "owner_id": owner.pk}
    assert api.get("/api/v1/agents/default/memory").json()["tainted"] is None
    documents.rewrite(**of, base=0, content="- roses", source="remember", tainted_by="a page")
    assert api.get("/api/v1/agents/default/memory").json()["tainted"] == "long-term memory, version 1, learnt in a page"
    version = {"content": "- tulips", "version": 1}
    api.put("/api/v1/agents/default/memory", version, content_type="application/json")
    assert api.get("/api/v1/agents/default/memory").json()["tainted"]
    for words, marked in {"roses": "a page", "tulips": ""}.items():
        log.append(**of, content=words, happened_at=owner.date_joined, tainted_by=marked)
        (found,) = api.get(f"/api/v1/agents/default/history?q={words}").json()["results"]
        assert found["tainted"] == (marked or None)


def test_a_message_of_before_says_nothing(conversation):
    assert inbox.note(conversation_id=conversation.pk, content="Hello.")
    assert Message.objects.get().tainted_by is None
