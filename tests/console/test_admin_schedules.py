"""Schedules in the admin: made and changed by series' own rules, toggled, run; their ledger."""

import re

import pytest
from django.contrib.auth.models import Permission
from django.urls import reverse

from agent.models import DEFAULT_AGENT, Agent
from conversations.models import Turn
from scheduler import series
from scheduler.models import Schedule, ScheduleRun
from scheduler.times import zone_of

pytestmark = pytest.mark.django_db

LIST = reverse("admin:scheduler_schedule_changelist")
ADD = reverse("admin:scheduler_schedule_add")


@pytest.fixture
def schedule(owner, agent):
    return series.create(owner_id=owner.pk, prompt="Hello", cron="30 2 * * *", zone="Europe/Berlin", max_runs=9)


def page_of(schedule):
    return reverse("admin:scheduler_schedule_change", args=[schedule.pk])


def form(**values):
    blank = {"description": "", "prompt": "Hello", "conversation_id": "", "deliver_to": "", "expression": ""}
    return blank | {"every_seconds": "", "at": "", "zone": "", "missed": "once", "missed_most": 10, **values}


def form_of(schedule, **values):
    shown = {"expression": schedule.expression, "zone": schedule.zone, "max_runs": schedule.max_runs}
    return form(**shown | values)


def act(client, schedule, action):
    return client.post(LIST, {"action": action, "_selected_action": [str(schedule.pk)]}, follow=True).content.decode()


def test_a_schedule_is_made(admin_client, owner):
    agent = Agent.objects.get(name=DEFAULT_AGENT)
    wanted = form(owner=owner.pk, agent=agent.pk, at="2126-05-04T09:00", zone="Asia/Kolkata", deliver_to="")
    assert admin_client.post(ADD, wanted).status_code == 302
    made = Schedule.objects.get()
    assert (made.kind, made.next_at.isoformat()) == ("at", "2126-05-04T03:30:00+00:00")
    assert (made.owner, made.deliver_to) == (owner, {})


@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "Pacific/Niue"])
def test_no_time_that_is_taken_breaks_the_pages(admin_client, owner, zone):
    last = {"at": "9998-12-31T23:59:59Z", "ends_at": "9998-12-31T23:59:59Z"}
    made = series.create(owner_id=owner.pk, prompt="Hello", zone=zone, **last)
    for page in (LIST, page_of(made), reverse("admin:agent_agent_whole", args=[made.agent_id])):
        assert admin_client.get(page).status_code == 200


def test_what_makes_no_sense_is_refused_with_its_sentence(admin_client, owner, schedule):
    agent = Agent.objects.get(name=DEFAULT_AGENT)
    told = admin_client.post(ADD, form(owner=owner.pk, agent=agent.pk, expression="0 0 30 2 *")).content.decode()
    assert "never matches: there is no such day." in told
    told = admin_client.post(page_of(schedule), form_of(schedule, zone="Mars/Phobos")).content.decode()
    assert "There is no zone named" in told
    assert Schedule.objects.get() == schedule


def test_a_blank_form_says_nothing_of_errors_and_shows_where_to_write(admin_client, owner):
    shown = admin_client.get(ADD).content.decode()
    assert "There is no zone" not in shown
    assert "What it did" not in shown
    for name in ("at", "ends_at"):
        (field,) = re.findall(rf'<input[^>]*name="{name}"[^>]*>', shown)
        assert 'type="datetime-local"' in field
        assert re.search(r'class="[^"]*\bborder\b', field)
    (zones,) = re.findall(r'<select name="zone".*?</select>', shown, re.DOTALL)
    offered = re.findall(r'<option value="([^"]*)"', zones)
    assert {"", "Europe/Berlin", "Asia/Kolkata", "UTC"} <= set(offered)
    assert all(zone_of(name) for name in offered if name)


def test_what_a_browser_shows_of_a_schedule_it_sends_back_unchanged(admin_client, owner):
    zone = "America/New_York"  # where 1:30 comes twice on that day, and the second one is meant
    at = "2126-11-03T01:30:00-05:00"
    made = series.create(owner_id=owner.pk, prompt="Hello", at=at, zone=zone)
    shown = admin_client.get(page_of(made)).content.decode()
    assert 'value="2126-11-03T01:30:00"' in shown
    changed = form(at="2126-11-03T01:30:00", zone=zone, description="renamed")
    assert admin_client.post(page_of(made), changed).status_code == 302
    found = Schedule.objects.get()
    assert (found.description, found.at, found.zone) == ("renamed", made.at, zone)


def test_a_zone_that_is_gone_is_shown_and_can_be_changed(admin_client, schedule):
    Schedule.objects.update(zone="Europe/Atlantis")
    assert "Europe/Atlantis (this zone no longer exists)" in admin_client.get(page_of(schedule)).content.decode()
    assert admin_client.post(page_of(schedule), form_of(schedule, zone="UTC")).status_code == 302
    assert Schedule.objects.get().zone == "UTC"


def test_a_change_is_made_by_what_was_changed_alone(admin_client, schedule):
    Schedule.objects.update(missed="all")  # by somebody else, since the form was shown
    changed = form_of(schedule, every_seconds=600, missed="all")
    assert admin_client.post(page_of(schedule), changed).status_code == 302
    found = Schedule.objects.get()
    assert (found.kind, found.expression, found.every_seconds, found.max_runs) == ("every", "", 600, 9)
    assert found.revision == schedule.revision + 1


def test_the_page_shows_its_next_times_and_what_a_change_of_the_clock_does(admin_client, schedule):
    Schedule.objects.update(expression="30 2 * 3 SUN#5,SUN#4", max_runs=None)
    shown = admin_client.get(page_of(schedule)).content.decode()
    assert shown.count("does not exist on that day") > 1


def test_schedules_are_paused_resumed_run_and_cancelled(admin_client, schedule):
    act(admin_client, schedule, "pause")
    assert Schedule.objects.get().state == "paused"
    assert "1 schedules are resumed." in act(admin_client, schedule, "resume")
    act(admin_client, schedule, "run_now")
    assert ScheduleRun.objects.get().turn_id == Turn.objects.get().pk
    act(admin_client, schedule, "cancel")
    assert Schedule.objects.get().state == "cancelled"
    assert "There is no schedule with that id" in act(admin_client, schedule, "resume")
    assert admin_client.post(page_of(schedule), form_of(schedule, prompt="x")).status_code == 403


def buttons_of(client, schedule):
    """The address and the fields of each form of the page that acts on the schedule, by its button."""
    page = client.get(page_of(schedule)).content.decode()
    form = re.search(r'<form class="told buttons".*?action="([^"]*)"(.*?)</form>', page, re.DOTALL)
    if form is None:
        return {}
    chosen = {"_selected_action": re.search(r'name="_selected_action" value="([^"]*)"', form[2])[1]}
    names = re.findall(r'name="action" value="(\w+)"', form[2])
    return {name: (form[1], chosen | {"action": name}) for name in names}


def test_it_is_paused_resumed_run_and_cancelled_from_its_page(admin_client, schedule, owner):
    other = series.create(owner_id=owner.pk, prompt="Another", every_seconds=600)
    steps = [("pause", "paused"), ("resume", "active"), ("run_now", "active"), ("cancel", "cancelled")]
    for name, state in steps:
        buttons = buttons_of(admin_client, schedule)
        assert set(buttons) == {"run_now", "cancel", "resume" if name == "resume" else "pause"}
        address, fields = buttons[name]
        answer = admin_client.post(address, fields, follow=True)
        assert list(answer.context["cl"].queryset) == [schedule]  # its line, with its next time, its last and its lag
        schedule.refresh_from_db()
        assert schedule.state == state
    assert ScheduleRun.objects.get().by_hand
    assert buttons_of(admin_client, schedule) == {}
    other.refresh_from_db()
    assert other.state == "active"


def test_the_list_shows_the_last_time_and_its_lag(admin_client, schedule):
    series.run_now(schedule)
    assert ScheduleRun.objects.update(lag_ms=1234, state="failed") == 1
    shown = admin_client.get(LIST).content.decode()
    assert "1234 ms" in shown
    assert ": failed" in shown
    ledger = admin_client.get(reverse("admin:scheduler_schedulerun_changelist"), {"schedule__exact": schedule.pk})
    assert str(Turn.objects.get().pk) in ledger.content.decode()


def test_the_page_of_one_whose_zone_is_gone_opens(admin_client, schedule):
    Schedule.objects.update(zone="Europe/Atlantis", ends_at="2126-05-04T09:00Z")
    assert "There is no zone named" in admin_client.get(page_of(schedule)).content.decode()
    assert admin_client.get(LIST).status_code == 200


def test_whoever_may_only_look_changes_nothing(client, owner, schedule):
    type(owner).objects.filter(pk=owner.pk).update(is_staff=True)
    owner.user_permissions.add(Permission.objects.get(codename="view_schedule"))
    client.force_login(owner)
    assert client.get(page_of(schedule)).status_code == 200
    assert buttons_of(client, schedule) == {}
    assert client.post(page_of(schedule), form_of(schedule, prompt="x")).status_code == 403
    act(client, schedule, "pause")
    assert Schedule.objects.get().state == "active"
