"""In the running program, on either shape: "Remind me tomorrow at 8" in a chat, seen in the admin, fired, as
docs/schedules.md shows it; and the check-in beside it."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import httpx2
import pytest

from tests.support.api_client import chat, eventually, start
from tests.support.hosts import PREPARED, Host
from tests.support.scripts import script

HURRY = """
from agent.models import Agent
from django.contrib.auth import get_user_model
from django_celery_beat.models import IntervalSchedule, PeriodicTask

second = IntervalSchedule.objects.create(every=1, period="seconds")
for job in PeriodicTask.objects.filter(name__in=["tick", "heartbeat"]):
    job.interval = second
    job.save()
Agent.objects.create(name="gardener", documents={"HEARTBEAT": %r}, check_in_owner=get_user_model().objects.get())
Agent.objects.create(name="idler", documents={"HEARTBEAT": "# Tasks"}, check_in_owner=get_user_model().objects.get())
"""

TOLD = {"heartbeat": "told"}


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A host whose beat runs jobs every second, with one agent that has something to do by itself, and one that has
    not."""
    host = Host(tmp_path_factory.mktemp("hasty"), beat=True)
    document = "Look after the plants.\n" + script({"say": "The plants are dry."})
    assert host.manage("shell", "--no-imports", "-c", HURRY % document).stderr == ""
    host.start()
    host.allow("schedule")
    yield host
    host.kill()


@pytest.fixture
def client(hasty: Host) -> Iterator[httpx2.Client]:
    with hasty.client() as client:
        yield client


def messages(client: httpx2.Client, conversation_id: str) -> list[str]:
    found = client.get(f"/conversations/{conversation_id}/messages?limit=100").json()["results"]
    return [message["content"] for message in found]


def test_a_reminder_is_asked_for_seen_and_run(hasty, client):
    conversation_id, today = start(client), datetime.now(UTC).date()
    answer = chat(client, conversation_id, "Remind me tomorrow at 8 to call Anna.").json()["assistantMessage"]
    assert re.search(r"Remind the user to call Anna\.; it runs .* 08:00:00 \+0000 \(UTC\)\.$", answer)
    (schedule,) = [each for each in client.get("/schedules").json()["results"] if "Anna" in each["prompt"]]
    at = datetime.fromisoformat(schedule["nextAt"])
    assert at - datetime.combine(today, at.time(), UTC) in (timedelta(days=1), timedelta(days=2))  # it may be midnight
    assert (at.hour, at.minute, schedule["conversationId"]) == (8, 0, conversation_id)
    with httpx2.Client(base_url=hasty.address, follow_redirects=True) as browser:
        browser.get("/admin/login/")
        form = {"username": "admin", "password": PREPARED["NANOHOST_ADMIN_PASSWORD"], "next": "/admin/"}
        browser.post("/admin/login/", data=form | {"csrfmiddlewaretoken": browser.cookies["csrftoken"]})
        page = browser.get("/admin/scheduler/schedule/").text
        assert "Remind the user to call Anna." in page
        assert f'title="{at:%Y-%m-%d} 08:00:00 UTC"' in page
    run = client.post(f"/schedules/{schedule['scheduleId']}/run").json()
    assert (run["state"], run["byHand"]) == ("fired", True)
    eventually(lambda: messages(client, conversation_id)[-1] == "You said: Remind the user to call Anna.")


def test_a_reminder_comes_by_itself_once(hasty, client):
    conversation_id = start(client)
    for seconds in (4, 12, 36, 108):  # as many as a busy machine needs to be asked before that time
        soon = (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat(timespec="seconds")
        wanted = {"action": "create", "prompt": "Remind the user of the tea.", "at": soon}
        asked = script({"call": [{"name": "schedule", "arguments": wanted}]}, {"say": "{results}"})
        if "Created." in chat(client, conversation_id, asked).json()["assistantMessage"]:
            break
    eventually(lambda: messages(client, conversation_id)[-1] == "You said: Remind the user of the tea.", seconds=180)
    (schedule,) = [each for each in client.get("/schedules").json()["results"] if "tea" in each["prompt"]]
    assert schedule["state"] == "ended"
    (run,) = client.get(f"/schedules/{schedule['scheduleId']}/runs").json()["results"]
    assert run["state"] == "fired"
    assert messages(client, conversation_id).count("Remind the user of the tea.") == 1


def test_a_check_in_asks_who_has_something_to_do_and_nobody_else(hasty, client):
    def told() -> list[str]:
        found = client.get("/conversations").json()["results"]
        return [text for each in found if each["metadata"] == TOLD for text in messages(client, each["conversationId"])]

    eventually(told, seconds=60)
    states = "SELECT name, state FROM scheduler_heartbeat had JOIN agent_agent agent ON agent.id = had.agent_id"
    found = {(row["name"], row["state"]) for row in hasty.sql(states)}
    assert {("gardener", "told"), ("idler", "nothing")} <= found
    assert set(told()) == {"The plants are dry."}
