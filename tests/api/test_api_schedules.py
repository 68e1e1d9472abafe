"""Schedules over the API, in a running host."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from tests.support.api_client import eventually, problem

YEARLY = {"prompt": "Hello", "cron": "0 9 24 12 *", "zone": "Europe/Berlin"}


def create(api, **wishes):
    answer = api.post("/schedules", json=YEARLY | wishes)
    assert answer.status_code == 201, answer.text
    return answer.json()["scheduleId"]


def runs_of(api, schedule):
    return api.get(f"/schedules/{schedule}/runs").json()["results"]


def test_a_schedule_is_made_shown_and_listed(api, conversation_id):
    wishes = {"conversationId": conversation_id, "description": "Eve", "missed": "all", "missedMost": 3, "maxRuns": 5}
    answer = api.post("/schedules", json=YEARLY | wishes | {"deliverTo": {"destination": "origin"}})
    made = answer.json()
    assert answer.headers["location"] == f"/api/v1/schedules/{made['scheduleId']}"
    assert made == api.get(f"/schedules/{made['scheduleId']}").json() == api.get("/schedules").json()["results"][0]
    shown = {name: made[name] for name in ("kind", "state", "nextAt", "at", "everySeconds", "runs", "endsAt", *wishes)}
    eve = datetime(datetime.now(UTC).year, 12, 24, 8, tzinfo=UTC)
    eve = eve if eve > datetime.now(UTC) else eve.replace(year=eve.year + 1)
    cron = {"kind": "cron", "at": None, "everySeconds": None, "nextAt": f"{eve:%Y-%m-%dT%H:%M:%SZ}"}
    assert made["deliverTo"] == {}  # its origin is where it speaks anyway
    assert shown == wishes | cron | {"state": "active", "runs": 0, "endsAt": None}


@pytest.mark.parametrize(
    ("wishes", "code", "detail"),
    [
        ({"cron": "0 0 30 2 *"}, "invalid_schedule", "never matches"),
        ({"at": "2020-01-01T09:00", "cron": None}, "invalid_schedule", "09:00:00 (Europe/Berlin) has passed"),
        ({"everySeconds": 60}, "invalid_schedule", "Only one of a time, an interval and a cron expression"),
        ({"cron": None}, "invalid_schedule", "A schedule needs its times"),
        ({"zone": "Nowhere"}, "invalid_schedule", "There is no zone named 'Nowhere'"),
        ({"agent": "nobody"}, "invalid_schedule", "There is no agent named 'nobody'"),
        ({"prompt": " "}, "invalid_request", "prompt"),
        ({"everySeconds": "60"}, "invalid_request", "everySeconds"),
        ({"everySeconds": True}, "invalid_request", "everySeconds"),
        ({"maxRuns": 0}, "invalid_request", "maxRuns"),
        ({"missed": "sometimes"}, "invalid_request", "missed"),
        ({"crno": "0 9 * * *"}, "invalid_request", "There is no such field"),
        ({"deliverTo": "me"}, "invalid_request", "deliverTo"),
        ({"deliverTo": {"mail": "a@example.org"}}, "invalid_request", "deliverTo"),
        ({"deliverTo": {"destination": "boss"}}, "invalid_schedule", "There is no destination named 'boss'"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_with_its_reason(api, wishes, code, detail):
    before = len(api.get("/schedules?limit=200").json()["results"])
    assert detail in problem(api.post("/schedules", json=YEARLY | wishes), 400, code)["detail"]
    assert len(api.get("/schedules?limit=200").json()["results"]) == before


def test_a_change_leaves_what_it_does_not_name(api):
    schedule = create(api, maxRuns=5)
    changed = api.patch(f"/schedules/{schedule}", json={"cron": "30 9 24 12 *", "endsAt": None, "maxRuns": None}).json()
    assert (changed["cron"], changed["maxRuns"], changed["zone"]) == ("30 9 24 12 *", None, "Europe/Berlin")
    told = problem(api.patch(f"/schedules/{schedule}", json={"conversationId": None}), 400, "invalid_request")
    assert "There is no such field" in told["detail"]


def test_it_is_paused_resumed_and_cancelled(api):
    schedule = create(api)
    paused = api.post(f"/schedules/{schedule}/pause").json()
    assert (paused["state"], paused["nextAt"], paused["pausedBecause"]) == ("paused", None, "Paused by hand.")
    resumed = api.post(f"/schedules/{schedule}/resume", json={}).json()
    assert (resumed["state"], resumed["pausedBecause"]) == ("active", None)
    assert api.delete(f"/schedules/{schedule}").status_code == 204
    problem(api.get(f"/schedules/{schedule}"), 404, "not_found")
    assert schedule not in api.get("/schedules").text


def test_a_run_by_hand_is_answered_and_stands_in_the_ledger(api, conversation_id):
    schedule = create(api, conversationId=conversation_id)
    run = api.post(f"/schedules/{schedule}/run")
    assert (run.status_code, run.json()["byHand"], run.json()["conversationId"]) == (202, True, conversation_id)
    turn = eventually(lambda: (turn := api.get(f"/turns/{run.json()['turnId']}").json())["endedAt"] and turn)
    assert turn["assistantMessage"] == "You said: Hello"
    assert [each["turnId"] for each in runs_of(api, schedule)] == [turn["turnId"]]


def test_the_ledger_comes_in_pages_the_latest_first(api):
    schedule = create(api)
    made = [api.post(f"/schedules/{schedule}/run").json()["runId"] for _ in range(3)]
    page = api.get(f"/schedules/{schedule}/runs?limit=2").json()
    assert [run["runId"] for run in page["results"]] == made[:0:-1]
    assert [run["runId"] for run in api.get(page["next"]).json()["results"]] == made[:1]


def test_times_are_previewed_with_what_a_change_of_the_clock_does(api):
    shown = api.post("/schedules/preview", json={"cron": "30 2 * * SUN", "zone": "Europe/Berlin", "maxRuns": 60}).json()
    assert len(shown["times"]) == 10
    assert all("T02:30:00+0" in each["local"] or each["note"] for each in shown["times"])
    assert (
        api.get(f"/schedules/{create(api, maxRuns=2)}/preview").json()["times"][1]["local"].endswith("T09:00:00+01:00")
    )
    told = problem(api.post("/schedules/preview", json={"cron": "61 * * * *"}), 400, "invalid_schedule")
    assert told["detail"] == "The cron expression '61 * * * *' cannot be read: its minute is not valid."


def test_what_has_ended_is_neither_paused_nor_resumed(host, api):
    schedule = create(api, cron=None, at=(datetime.now(UTC) + timedelta(days=1)).isoformat())
    host.sql("UPDATE scheduler_schedule SET active = ?, next_at = NULL WHERE id = ?", False, UUID(schedule))
    for change in ("pause", "resume"):
        problem(api.post(f"/schedules/{schedule}/{change}"), 409, "schedule_ended")
