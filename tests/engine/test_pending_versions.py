"""Sets of cases that run by themselves, and changes of agents that wait for them."""

from datetime import timedelta

import pytest
from django.utils import timezone

from agent.models import Agent, AgentVersion
from conversations.engine.replaying import evaluations, replay_sets
from conversations.models import ReplayRun, ReplaySet
from nanohost.console.roles import ADMIN, OPERATOR, sync_roles
from nanohost.lib.clock import from_now
from tests.support.console_client import client_of, page
from tests.support.openai_server import completion
from tests.support.replaying import run as work_on
from tests.support.working import settle

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def guarded(agent, say):
    """A set of one case, run when the agent is changed, whose changes wait for it."""
    agent.is_evaluated_first = True
    agent.save_version(by="anna")
    (turn,) = settle([say("Name a flower.")])
    graders = [{"kind": "contains", "texts": ["rose"]}]
    of_set = replay_sets.create("flowers", graders=graders, cases=[(turn, None)])
    ReplaySet.objects.update(agent=agent, on_change=True, seen_version=agent.version)
    of_set.refresh_from_db()
    return of_set


def propose(agent, prompt, model=""):
    changed = Agent.objects.get(pk=agent.pk)
    changed.system_prompt, changed.model = prompt, model
    return changed.propose_version(by="anna")


def work_off():
    work_on(*ReplayRun.objects.latest("pk").replays.values_list("pk", flat=True))


def test_a_change_is_live_once_its_set_has_passed_with_it_and_not_before(guarded, agent, model):
    version = propose(agent, "You love roses.", "better-model")
    assert [evaluations.look_after() for _ in range(2)] == [1, 0], "started once"
    model.answer(completion("A rose."))
    work_off()
    asked = model.requests[-1].body
    assert asked["model"] == "better-model"
    assert "You love roses." in asked["messages"][0]["content"]
    agent.refresh_from_db()
    assert agent.system_prompt == ""
    assert [evaluations.look_after() for _ in range(2)] == [1, 0]
    agent.refresh_from_db()
    version.refresh_from_db()
    assert (agent.system_prompt, agent.model, version.state) == ("You love roses.", "better-model", "passed")
    assert agent.version > version.number
    assert agent.is_evaluated_first
    assert ReplayRun.objects.count() == 1, "what has become live was evaluated already"


def test_a_change_that_fails_its_set_is_refused_and_says_why(guarded, agent, model):
    version = propose(agent, "You love weeds.")
    evaluations.look_after()
    model.answer(completion("A weed."))
    work_off()
    evaluations.look_after()
    agent.refresh_from_db()
    version.refresh_from_db()
    assert (agent.system_prompt, version.state) == ("", "refused")
    assert version.why == "Of flowers, 0 of 1 passed; 1 of them have to."
    assert not version.make_live()
    assert Agent.objects.get().system_prompt == ""


def test_what_was_evaluated_is_what_becomes_live_or_nothing_does(guarded, agent, model):
    version = propose(agent, "You love roses.")
    evaluations.look_after()
    agent.documents = {"USER": "Anna"}  # as a tool does
    agent.save_version(by="a tool")
    model.answer(completion("A rose."))
    work_off()
    evaluations.decide()
    agent.refresh_from_db()
    version.refresh_from_db()
    assert (agent.system_prompt, agent.documents, version.state) == ("", {"USER": "Anna"}, "refused")
    earlier, later = propose(agent, "one"), propose(agent, "two")
    earlier.refresh_from_db()
    assert (earlier.state, later.state) == ("refused", "pending")
    assert propose(agent, "") is None
    guarded.delete()
    evaluations.decide()
    later.refresh_from_db()
    assert "No set of cases" in later.why


def test_a_set_runs_after_a_change_that_waits_for_nothing(guarded, agent):
    agent.system_prompt, agent.is_evaluated_first = "New.", False
    agent.save_version(by="anna")
    assert [evaluations.look_after() for _ in range(2)] == [1, 0]
    assert ReplayRun.objects.get().changes["version"] == agent.version


def test_a_set_runs_by_the_clock_once_for_each_time_that_comes(guarded):
    long_ago = timezone.now() - timedelta(days=3)
    ReplaySet.objects.update(every_hours=24, next_at=long_ago, on_change=False)
    assert [evaluations.look_after() for _ in range(2)] == [1, 0]
    of_set = ReplaySet.objects.get()
    assert timezone.now() < of_set.next_at <= timezone.now() + timedelta(hours=25)
    of_set.cases.all().delete()
    ReplaySet.objects.update(next_at=from_now(-1))
    assert evaluations.look_after() == 0, "there is nothing to run"
    assert ReplaySet.objects.get().next_at > timezone.now()
    assert ReplayRun.objects.count() == 1


def test_the_console_makes_a_change_wait_and_goes_back_to_a_version(guarded, agent):
    sync_roles()
    admin, operator = client_of(ADMIN), client_of(OPERATOR)
    form = page("agent_agent", "change", agent.pk)
    given = {"system_prompt": "You love roses.", "is_evaluated_first": "on", "taint": agent.taint}
    given |= {"tools": [], "fallback_models": "[]", "approvals": "{}", "written_documents": ["USER"]}
    answer = admin.post(form, given, follow=True)
    assert "waits for its evaluation" in answer.content.decode(), answer.content.decode()[:2000]
    version = AgentVersion.objects.get(state="pending")
    assert Agent.objects.get().system_prompt == ""
    versions = page("agent_agentversion")
    back = {"action": "go_back", "_selected_action": [str(version.pk)]}
    assert "is pending" in admin.post(versions, back, follow=True).content.decode()
    version.refuse("no")
    admin.post(versions, back)
    assert Agent.objects.get().system_prompt == ""
    admin.post(form, {name: value for name, value in given.items() if name != "is_evaluated_first"})
    assert Agent.objects.get().system_prompt == "You love roses."
    first = AgentVersion.objects.filter(agent=agent, state="live").order_by("number").first()
    back["_selected_action"] = [str(first.pk)]
    operator.post(versions, back)
    assert Agent.objects.get().system_prompt == "You love roses."
    admin.post(versions, back)
    now = Agent.objects.get()
    assert (now.system_prompt, now.is_evaluated_first) == ("", False)
    assert now.version > first.number
