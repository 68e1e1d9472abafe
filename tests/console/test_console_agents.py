"""An agent on one page: what it is and was, may use, remembers, did last, and when it is spoken to."""

import re

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from agent.models import Agent, AgentVersion
from conversations.engine import inbox
from conversations.engine.incoming import Incoming
from conversations.models import Turn
from conversations.statuses import TurnStatus
from memory import documents
from nanohost.console import agents
from scheduler import series, ticking
from tests.support.factories import OwnerFactory
from tests.support.working import settle
from tools.models import ToolSetting

pytestmark = pytest.mark.django_db(transaction=True)

HOSTILE = "<script>alert(1)</script>\u202e"


def look(client, agent, **query):
    answer = client.get(reverse("admin:agent_agent_whole", args=[agent.pk]), query)
    assert answer.status_code == 200
    return answer.content.decode()


def section(html, name):
    """The part of the page under a heading."""
    begin = html.index(f'<h2 id="{name}">')
    return html[begin : html.index("</section>", begin)]


@pytest.fixture
def clerk(db):
    clerk = Agent(name="clerk", model="model-1", tools=["time", "of_an_earlier_release"])
    clerk.save_version(by="anna")
    clerk.documents = {"SOUL": "You are patient."}
    clerk.save_version(by="ben")
    clerk.documents, clerk.max_tool_rounds = {"SOUL": "You are brief."}, 7
    clerk.save_version(by="cleo")
    return clerk


def test_what_it_is(admin_client, clerk, settings):
    html = look(admin_client, clerk)
    profile = section(html, "profile")
    assert "model-1" in profile
    assert "<td>7</td>" in profile
    assert f"LLM_CONTEXT_WINDOW, {settings.LLM_CONTEXT_WINDOW}" in profile
    assert f"{clerk.prompt_tokens():,}" in profile
    assert "You are brief." in section(html, "documents")


def test_what_it_was_and_what_differs(admin_client, clerk):
    versions = section(look(admin_client, clerk), "versions")
    for text in ("<ins>+You are brief.</ins>", "<del>-You are patient.</del>", "SOUL", "cleo", "ben", "anna"):
        assert text in versions
    between = section(look(admin_client, clerk, older="1", newer="2"), "versions")
    assert "<ins>+You are patient.</ins>" in between
    assert "brief" not in between
    for older, newer in [("x", "99"), ("77", "3"), ("-1", "9" * 20)]:
        assert look(admin_client, clerk, older=older, newer=newer)
    assert "One of these two versions is no longer kept." in look(admin_client, clerk, newer="99")


def test_what_it_may_use(admin_client, clerk, tool_settings):
    tool_settings("time", "echo")
    tools = section(look(admin_client, clerk), "tools")
    rows = {row.split("</td>")[0].split(">")[-1]: row for row in tools.split("<tr>")}
    assert "<td>yes</td>" in rows["time"]
    assert "no, not_for_agent" in rows["echo"]
    assert "no longer registered by any code" in tools
    assert f"{reverse('admin:simulator')}?tool=time&amp;agent=clerk" in tools
    ToolSetting.objects.update(enabled=False)
    assert "<td>yes</td>" not in section(look(admin_client, clerk), "tools")


def test_what_it_remembers_when_it_is_spoken_to_and_what_it_did(admin_client, clerk, owner):
    documents.rewrite(agent="clerk", owner_id=owner.pk, base=0, content="- roses", source="person", checked=False)
    series.create(owner_id=owner.pk, agent="clerk", prompt="Wake up.", description="the morning", every_seconds=3600)
    once = series.create(owner_id=owner.pk, agent="clerk", prompt="Once.", at="2099-05-05T09:00")
    ticking.fire(once, now=once.at)
    conversation = inbox.start_conversation(owner_id=owner.pk, agent="clerk", metadata={})
    (turn,) = settle([inbox.receive(Incoming("hello"), conversation=conversation, request_id="r")])
    html = look(admin_client, clerk)
    assert owner.username in section(html, "memories")
    schedules = section(html, "schedules")
    assert "the morning" in schedules
    assert "<td>ended</td>" in schedules
    turns = section(html, "turns")
    assert "succeeded" in turns
    version = AgentVersion.objects.get(agent=clerk, number=turn.agent_version)
    assert reverse("admin:agent_agentversion_change", args=[version.pk]) in turns
    assert reverse("admin:conversations_conversation_transcript", args=[conversation.pk]) in turns


def test_a_turn_that_failed_is_asked_again_from_here(admin_client, clerk, owner):
    conversation = inbox.start_conversation(owner_id=owner.pk, agent="clerk", metadata={})
    turn = inbox.receive(Incoming("hello"), conversation=conversation, request_id="r")
    assert "Ask again" not in section(look(admin_client, clerk), "turns")
    Turn.objects.filter(pk=turn.pk).update(status=TurnStatus.FAILED, error_code="llm_unavailable")
    (action,) = re.findall(r'formaction="([^"]+)">Ask again<', section(look(admin_client, clerk), "turns"))
    assert admin_client.post(action).status_code == 302
    (again,) = conversation.turns.exclude(pk=turn.pk)
    turns = section(look(admin_client, clerk), "turns")
    assert f'asked again as <a href="{reverse("admin:conversations_turn_change", args=[again.pk])}"' in turns
    assert "Ask again</button>" not in turns


def test_of_other_agents_it_shows_nothing(admin_client, clerk, agent, say, owner):
    settle([say("hello")])
    documents.rewrite(agent=agent.name, owner_id=owner.pk, base=0, content="- x", source="person", checked=False)
    html = look(admin_client, clerk)
    assert "The agent writes what it learns" in html
    assert f"None among the latest {agents.LATEST_TURNS} turns" in html


def test_a_turn_shows_the_version_it_ran_with(admin_client, agent, say):
    (turn,) = settle([say("hello")])
    agent.system_prompt = "Be kind."
    agent.save_version(by="anna")
    first = AgentVersion.objects.get(agent=agent, number=1)
    page = admin_client.get(reverse("admin:conversations_turn_change", args=[turn.pk])).content.decode()
    assert reverse("admin:agent_agentversion_change", args=[first.pk]) in page
    first.delete()
    page = admin_client.get(reverse("admin:conversations_turn_change", args=[turn.pk])).content.decode()
    assert "version 1, which is not kept" in page


def test_whatever_people_and_models_write_is_text(admin_client, clerk):
    owner = OwnerFactory(username=HOSTILE)
    clerk.system_prompt, clerk.documents, clerk.model = HOSTILE, {"SOUL": HOSTILE}, HOSTILE
    clerk.tools = [HOSTILE]
    clerk.save_version(by=HOSTILE)
    documents.rewrite(agent="clerk", owner_id=owner.pk, base=0, content=HOSTILE, source="person", checked=False)
    series.create(owner_id=owner.pk, agent="clerk", prompt=HOSTILE, description=HOSTILE, every_seconds=3600)
    html = look(admin_client, clerk)
    assert "<script>alert" not in html
    assert html.count("&lt;script&gt;alert(1)") > 8
    assert "\u202e" not in section(html, "documents")


def test_the_page_costs_as_many_statements_however_much_there_is(admin_client, clerk):
    def more(number):
        for _ in range(number):
            owner = OwnerFactory()
            clerk.system_prompt = f"Owner {owner.pk}."
            clerk.save_version(by="anna")
            documents.rewrite(agent="clerk", owner_id=owner.pk, base=0, content="- x", source="person", checked=False)
            series.create(owner_id=owner.pk, agent="clerk", prompt="x", every_seconds=3600)
            conversation = inbox.start_conversation(owner_id=owner.pk, agent="clerk", metadata={})
            inbox.receive(Incoming("hello"), conversation=conversation, request_id="r")

    def spent():
        with CaptureQueriesContext(connection) as queries:
            look(admin_client, clerk)
        return len(queries)

    more(2)
    few = spent()
    more(25)
    assert (
        spent() == few <= 18
    )  # one counts what waits for consent, at the side of each page; one asks for tools of MCP servers


def test_an_agent_that_is_gone_is_not_there(admin_client, clerk):
    address = reverse("admin:agent_agent_whole", args=[clerk.pk])
    clerk.delete()
    assert admin_client.get(address).status_code == 404


def test_an_agent_is_called_as_people_like_and_its_model_is_suggested_with_who_answers(admin_client, clerk, settings):
    settings.LLM_MODELS = [settings.LLM_MODEL_DEFAULT, "model-2", HOSTILE]
    form = reverse("admin:agent_agent_change", args=[clerk.pk])
    page = admin_client.get(form).content.decode()
    assert 'list="suggested"' in page
    assert '<option value="model-2">mock</option>' in page
    assert "<script>alert" not in page
    said = {"display_name": "Ms. Clerk & Sons", "model": "model-2", "taint": "approve", "approvals": "{}"}
    assert admin_client.post(form, {**said, "name": "other"}).status_code == 302
    clerk.refresh_from_db()
    assert (clerk.name, clerk.called, clerk.model) == ("clerk", "Ms. Clerk & Sons", "model-2")
    assert "<title>Ms. Clerk &amp; Sons" in admin_client.get(form).content.decode()
    assert '<option value="clerk">Ms. Clerk &amp; Sons</option>' in admin_client.get(reverse("chat")).content.decode()
    assert AgentVersion.objects.get(agent=clerk, number=4).profile["display_name"] == "Ms. Clerk & Sons"


def form_of(client, agent):
    """The agent's page, and what its form sends."""
    page = client.get(reverse("admin:agent_agent_change", args=[agent.pk]))
    form = page.context["adminform"].form
    said = {name: form[name].value() for name in form.fields}
    seen = re.search(r'name="seen_version" value="(\d+)"', page.content.decode())
    return {name: value for name, value in said.items() if value not in (None, False)} | {"seen_version": seen[1]}


def test_a_page_that_was_opened_before_somebody_else_saved_undoes_nothing_unless_that_is_meant(admin_client, clerk):
    """Such as a tool that was taken away meanwhile."""
    address = reverse("admin:agent_agent_change", args=[clerk.pk])
    clerk.tools = ["time"]
    clerk.save_version(by="cleo")
    mine, theirs = form_of(admin_client, clerk), form_of(admin_client, clerk)
    assert admin_client.post(address, theirs | {"tools": []}).status_code == 302
    refused = admin_client.post(address, mine | {"display_name": "Ms. Clerk"})
    assert "Nothing was saved: there is a version 5" in refused.content.decode()
    clerk.refresh_from_db()
    assert (clerk.version, clerk.tools, clerk.display_name) == (5, [], "")
    again = re.search(r'name="seen_version" value="(\d+)"', refused.content.decode())[1]
    assert admin_client.post(address, mine | {"display_name": "Ms. Clerk", "seen_version": again}).status_code == 302
    clerk.refresh_from_db()
    assert (clerk.version, clerk.tools, clerk.display_name) == (6, ["time"], "Ms. Clerk")
    for nonsense in ("x", "-1", "9" * 400, "\x00"):
        assert "Nothing was saved" in admin_client.post(address, mine | {"seen_version": nonsense}).content.decode()
