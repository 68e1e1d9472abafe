"""What stands in the audit log: who has done what, by every way there is to do it."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.contrib.admin import site
from django.contrib.auth.models import Group, Permission, User
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django_celery_beat.models import IntervalSchedule, PeriodicTask

from agent.models import Agent
from conversations.engine import intake, turn_control
from memory import documents
from nanohost.accounts import audit, keys
from nanohost.accounts.models import ApiKey, AuditEntry, AuditSeal
from nanohost.console import people
from nanohost.console.audit_log import ACTIONS
from nanohost.console.roles import VIEWER, sync_roles
from nanohost.lib import append_only
from nanohost.lib.admin import MAX_LISTED, ModelAdmin
from scheduler import series
from tests.support.factories import AgentFactory
from tests.support.hosts import ROOT
from tests.support.working import advance, settle
from tools.changes import changing
from tools.models import ToolCall

pytestmark = pytest.mark.django_db(transaction=True)


def entries(*actions: str) -> list[tuple[str, str, str]]:
    """Who, what, to what; the oldest first."""
    found = AuditEntry.objects.order_by("id")
    if actions:
        found = found.filter(action__in=actions)
    return list(found.values_list("actor", "action", "object_name"))


def last() -> AuditEntry:
    return AuditEntry.objects.latest("id")


# --- the gate ----------------------------------------------------------------------------------------------------


def test_each_decision_of_the_gate_and_how_each_call_ended(say: Any, tool_settings: Any) -> None:
    tool_settings("echo")
    calls = '{"name": "echo", "arguments": {"value": 1}}, {"name": "nonsense"}'
    turn = say(f'{{"script": [{{"call": [{calls}]}}, {{"say": "done"}}]}}')
    settle([turn])
    assert entries("tool.admitted", "tool.refused", "tool.ended") == [
        ("agent default", "tool.admitted", "echo"),
        ("agent default", "tool.refused", "nonsense"),
        ("agent default", "tool.ended", "echo"),
    ]
    call = ToolCall.objects.get(tool_name="echo")
    entry = AuditEntry.objects.get(action="tool.ended")
    assert (entry.object_type, entry.object_id, entry.request_id) == ("tools.toolcall", str(call.pk), turn.request_id)
    told = json.loads(entry.after)
    assert (told["status"], told["argumentsHash"], told["turn"]) == ("SUCCESS", call.arguments_hash, str(turn.pk))


def test_a_call_that_is_ended_by_others_is_told_of_too(say: Any, tool_settings: Any) -> None:
    tool_settings("echo")
    turn = advance(say('{"script": [{"call": [{"name": "echo", "arguments": {"value": 1}}]}]}'))
    turn_control.cancel_turn(turn)
    assert entries("tool.ended") == [("agent default", "tool.ended", "echo")]
    assert json.loads(last().after)["status"] == "FAILED"


# --- what people change ------------------------------------------------------------------------------------------


def in_the_console(client: Client, page: str, key: object, **form: Any) -> None:
    answer = client.post(reverse(f"admin:{page}", args=[key] if key else []), form)
    assert answer.status_code in (200, 302), answer.content


def test_what_is_changed_in_the_console_has_the_name_of_who_did_it(admin_client: Client, owner: Any) -> None:
    key, _ = keys.make(owner=owner)
    in_the_console(admin_client, "accounts_apikey_change", key.pk, scopes=["chat"], name="shop")
    entry = last()
    assert (entry.actor, entry.action, entry.object_id) == ("user admin", "key.changed", str(key.pk))
    assert (json.loads(entry.before)["scopes"], json.loads(entry.after)["scopes"]) == (["chat", "read"], ["chat"])
    listed = reverse("admin:accounts_apikey_changelist")
    admin_client.post(listed, {"action": "revoke", "_selected_action": [key.pk]})
    assert entries("key.revoked") == [("user admin", "key.revoked", str(key))]


def test_over_the_api_it_has_the_name_of_the_key(owner: Any) -> None:
    row, text = ApiKey.objects.issue(owner=owner, scopes=["chat", "read", "schedules"])
    client = Client(headers={"Authorization": f"Bearer {text}"})
    body = {"prompt": "Hello, Anna Petrowna", "cron": "0 9 * * *"}
    made = client.post("/api/v1/schedules", body, content_type="application/json", secure=True)
    assert made.status_code == 201
    entry = last()
    assert (entry.actor, entry.action) == (f"key {row} of owner", "schedule.made")
    assert "Petrowna" not in entry.after, "what was said may be erased; the log stays"
    began = client.post("/api/v1/conversations", {}, content_type="application/json", secure=True)
    talk = began.json()["conversationId"]
    client.delete(f"/api/v1/conversations/{talk}", secure=True)
    assert (last().action, last().object_id) == ("conversation.deleted", talk)


def test_settings_agents_and_schedules(owner: Any, tool_settings: Any) -> None:
    tool_settings("echo")
    with audit.acting("user boss"):
        with changing("echo", by="boss") as setting:
            setting.enabled = False
        agent = Agent.objects.get(name="default")
        agent.system_prompt = "Be brief."
        agent.save_version(by="boss")
        schedule = series.create(owner_id=owner.pk, prompt="Hello", cron="0 9 * * *")
        series.update(schedule, cron="0 10 * * *")
        series.pause(schedule)
        series.resume(schedule)
        series.run_now(schedule)
        series.cancel(schedule)
    told = [action for actor, action, _ in entries() if actor == "user boss"]
    assert told == [
        *("tool_setting.changed", "agent.changed", "schedule.made", "schedule.changed", "schedule.paused"),
        *("schedule.resumed", "schedule.run_by_hand", "schedule.cancelled"),
    ]
    changed = AuditEntry.objects.get(action="schedule.changed")
    assert (json.loads(changed.before), json.loads(changed.after)) == (
        {"expression": "0 9 * * *"},
        {"expression": "0 10 * * *"},
    )


def test_memory_that_is_restored_or_dismissed(owner: Any) -> None:
    whose = {"agent": "default", "owner_id": owner.pk}
    write = partial(documents.rewrite, **whose, source="api", checked=False)
    clean = write(base=0, content="- tea")
    write(base=1, content="- tea and roses", tainted_by="a page")
    aside = documents.rewrite(**whose, base=2, content="- roses", source="import", doubt="It drops much.")
    with audit.acting("user boss"):
        for _ in range(2):
            documents.restore(clean, by="boss")
            documents.dismiss(aside, by="boss")
    restored, dismissed = AuditEntry.objects.filter(actor="user boss").order_by("id")
    assert (restored.action, dismissed.action) == ("memory.restored", "memory.dismissed")
    assert json.loads(restored.before) == {"version": 2, "taintedBy": "a page"}
    assert json.loads(restored.after) == {"version": 3, "content of": clean.pk, "taintedBy": ""}
    assert (dismissed.object_type, dismissed.object_id) == ("memory.memoryversion", str(aside.pk))


@pytest.mark.parametrize("by", ["console", "shell"])
def test_the_intake_is_told_of_once_however_it_is_paused(admin_client: Client, by: str) -> None:
    if by == "console":
        admin_client.post(reverse("queue_intake"), {"reason": "A deploy."})
    else:
        call_command("intake", "pause", "--because", "A deploy.", stdout=StringIO())
    (told,) = AuditEntry.objects.filter(object_type="conversations.intakepause")
    assert (told.action, told.reason) == ("intake.paused", "A deploy.")


def test_the_intake_that_is_paused_and_resumed() -> None:
    with audit.acting("user boss"):
        for _ in range(2):
            intake.pause(by="boss", because="A deploy.")
        for _ in range(2):
            intake.resume(by="anna")
    paused, resumed = AuditEntry.objects.filter(action__startswith="intake.").order_by("id")
    assert (paused.actor, paused.action, paused.reason) == ("user boss", "intake.paused", "A deploy.")
    assert (resumed.action, json.loads(resumed.after)) == ("intake.resumed", {"by": "anna"})
    assert json.loads(resumed.before)["because"] == "A deploy."


def test_users_roles_and_jobs(admin_client: Client) -> None:
    sync_roles()
    AuditEntryCount = AuditEntry.objects.count
    before = AuditEntryCount()
    sync_roles()
    assert AuditEntryCount() == before, "nothing has changed"
    with audit.acting("user boss"):
        anna = User.objects.create_user("anna", password="correct horse")
        anna.set_password("battery staple")
        anna.save()
        anna.is_staff = True
        anna.save()
        anna.save(update_fields=["last_login"])
        anna.groups.add(Group.objects.get(name=VIEWER))
        anna.groups.clear()
        every_hour = IntervalSchedule.objects.create(every=1, period="hours")
        PeriodicTask.objects.create(name="job", task="x", interval=every_hour)
        anna.delete()
    told = [(action, name) for actor, action, name in entries() if actor == "user boss" and action != "job.made"]
    assert told == [
        *(("user.made", "anna"), ("user.changed", "anna"), ("user.changed", "anna")),
        *(("user.given", "anna"), ("user.taken", "anna"), ("user.deleted", "anna")),
    ]
    assert entries("job.made") == [("user boss", "job.made", "job: every hour")]
    rows = " ".join(map(str, AuditEntry.objects.values_list("before", "after")))
    assert "pbkdf2" not in rows
    assert '"password": "[redacted]"' in rows


def test_who_is_deactivated(admin_client: Client, owner: Any) -> None:
    anna, ben = User.objects.create_user("anna"), User.objects.create_user("ben")
    in_the_console(admin_client, "auth_user_changelist", None, action="deactivate", _selected_action=[anna.pk])
    keys.make(owner=ben)
    in_the_console(admin_client, "auth_user_delete", ben.pk, do="deactivate")
    assert entries("user.changed") == [("user admin", "user.changed", name) for name in ("anna", "ben")]
    assert (json.loads(last().before), json.loads(last().after)) == ({"is_active": True}, {"is_active": False})


def test_jobs_that_are_switched_off_and_on_and_run_by_hand(admin_client: Client) -> None:
    every_hour = IntervalSchedule.objects.create(every=1, period="hours")
    job = PeriodicTask.objects.create(name="job", task="scheduler.tasks.tick", interval=every_hour)
    for action in ("disable_tasks", "disable_tasks", "enable_tasks", "run_tasks"):
        in_the_console(
            admin_client, "django_celery_beat_periodictask_changelist", None, action=action, _selected_action=[job.pk]
        )
    told = AuditEntry.objects.filter(object_id=str(job.pk), actor="user admin").order_by("id")
    assert [(entry.action, entry.after) for entry in told] == [
        ("job.changed", '{"enabled": false}'),
        ("job.changed", '{"enabled": true}'),
        ("job.run_by_hand", ""),
    ]


@pytest.mark.parametrize("together", [False, True])
def test_an_agent_that_is_deleted(admin_client: Client, together: bool) -> None:
    agents = [AgentFactory(name="agent-1"), AgentFactory(name="agent-2")]  # by their names, as the list of them has it
    if together:
        chosen = {"action": "delete_selected", "_selected_action": [agent.pk for agent in agents], "post": "yes"}
        in_the_console(admin_client, "agent_agent_changelist", None, **chosen)
    else:
        for agent in agents:
            in_the_console(admin_client, "agent_agent_delete", agent.pk, post="yes")
    assert entries("agent.deleted") == [("user admin", "agent.deleted", agent.name) for agent in agents]
    assert json.loads(last().before) == agents[1].profile()


def test_what_is_deleted_together_is_told_of_one_by_one(admin_client: Client) -> None:
    times = [IntervalSchedule.objects.create(every=number, period="days") for number in (5, 6)]
    chosen = {"action": "delete_selected", "_selected_action": [each.pk for each in times], "post": "yes"}
    in_the_console(admin_client, "django_celery_beat_intervalschedule_changelist", None, **chosen)
    assert sorted(entries("console.deleted")) == [("user admin", "console.deleted", f"every {n} days") for n in (5, 6)]


def test_members_that_are_given_and_taken_from_the_other_side() -> None:
    role, anna = Group.objects.create(name="readers"), User.objects.create_user("anna")
    may = Permission.objects.get(codename="view_apikey")
    role.user_set.add(anna)
    may.group_set.add(role)
    may.user_set.set([anna])
    role.user_set.clear()
    may.group_set.clear()
    told = AuditEntry.objects.filter(action__regex="given|taken").order_by("id")
    assert [(entry.action, entry.object_name, entry.after) for entry in told] == [
        ("user.given", "anna", '{"groups": ["readers"]}'),
        ("role.given", "readers", f'{{"permissions": ["{may}"]}}'),
        ("user.given", "anna", f'{{"permissions": ["{may}"]}}'),
        ("user.taken", "anna", '{"groups": ["readers"]}'),
        ("role.taken", "readers", f'{{"permissions": ["{may}"]}}'),
    ]


def test_who_is_erased_leaves_no_name(owner: Any) -> None:
    owner.email = "anna@example.org"
    owner.save()
    start = AuditEntry.objects.count()
    assert people.erase(owner, seconds=60)
    later = AuditEntry.objects.order_by("id")[start:]
    assert "user.erased" in [entry.action for entry in later]
    assert not [entry for entry in later if "anna@" in f"{entry.before}{entry.after}" or entry.object_name == "owner"]


def test_who_signs_in_and_who_fails_to(client: Client) -> None:
    User.objects.create_superuser("boss", password="correct horse")
    login = reverse("admin:login")
    client.post(login, {"username": "boss", "password": "battery staple"}, REMOTE_ADDR="203.0.113.9")
    failed = last()
    assert (failed.action, json.loads(failed.after)) == ("sign_in_failed", {"address": "203.0.113.9"})
    assert "boss" not in f"{failed.actor}{failed.object_name}"
    client.post(login, {"username": "boss", "password": "correct horse"})
    assert (last().actor, last().action) == ("user boss", "signed_in")
    client.post(reverse("admin:logout"))
    assert (last().actor, last().action) == ("user boss", "signed_out")


def test_an_export_is_told_of(admin_client: Client, say: Any) -> None:
    conversation = say("Hello").conversation
    for kind in ("json", "jsonl"):
        page = f"/admin/conversations/conversation/{conversation.pk}/export.{kind}"
        assert b"".join(admin_client.get(page).streaming_content)
        assert (last().actor, last().action) == ("user admin", "conversation.exported")
        assert last().object_id == str(conversation.pk)


def test_files_of_usage_and_of_the_log_are_exports_too(admin_client: Client, owner: Any) -> None:
    row, text = ApiKey.objects.issue(owner=owner, scopes=["read"])
    admin_client.get(reverse("usage_csv"))
    Client(headers={"Authorization": f"Bearer {text}"}).get("/api/v1/usage?format=csv", secure=True)
    with audit.acting("manage.py boss"):
        call_command("audit", "export", stdout=StringIO())
    assert entries("usage.exported", "audit.exported") == [
        ("user admin", "usage.exported", ""),
        (f"key {row} of owner", "usage.exported", ""),
        ("manage.py boss", "audit.exported", ""),
    ]


def test_what_is_done_in_the_console_beside_that(admin_client: Client, say: Any) -> None:
    conversation = say("Hello").conversation
    admin_client.post(reverse("admin:conversations_conversation_cancel_turn", args=[conversation.pk, 1]))
    entry = last()
    assert (entry.actor, entry.action) == ("user admin", "console.changed")
    assert (entry.object_id, entry.reason) == (str(conversation.pk), "Cancelled turn 1.")
    turns = [say("Hello again"), say("And again")]
    chosen = {"action": "cancel_turns", "_selected_action": [turn.pk for turn in turns]}
    admin_client.post(reverse("admin:conversations_turn_changelist"), chosen | {"confirmed": "yes", "reason": "Spam."})
    told = AuditEntry.objects.filter(object_id__in=[str(turn.pk) for turn in turns], action="console.changed")
    assert [entry.reason for entry in told] == ["Cancelled: Spam."] * 2


def test_the_lists_choices_are_all_there_are() -> None:
    """Whoever records something new adds it to the filters."""
    named = set()
    for path in tracked_sources():
        named |= set(re.findall(r'audit\.record\(\s*"([a-z_.]+)"', path.read_text()))
        named |= set(re.findall(r'_note\(\s*"([a-z_.]+)"', path.read_text()))
    assert named <= set(ACTIONS)
    assert len(named) > 15


def tracked_sources() -> list[Path]:
    packages = ("agent", "conversations", "memory", "nanohost", "scheduler", "tools")
    return [path for package in packages for path in (ROOT / package).rglob("*.py")]


# --- the page ----------------------------------------------------------------------------------------------------


def test_the_log_is_searched_and_shown_and_cannot_be_changed(admin_client: Client, owner: Any) -> None:
    key, _ = keys.make(owner=owner, name="shop")
    with audit.acting("user <b>eve</b>"):
        keys.change(key, scopes=["chat"])
        keys.revoke(key, reason="It <i>leaked</i>.")
    audit.seal()
    page = reverse("admin:accounts_auditentry_changelist")
    shown = admin_client.get(page, {"action": "key.revoked"}).content.decode()
    assert "It &lt;i&gt;leaked&lt;/i&gt;." in shown
    assert "<b>eve</b>" not in shown
    assert "scopes: " not in shown
    assert "→" in admin_client.get(page, {"q": str(key.pk), "action": "key.changed"}).content.decode()
    entry = AuditEntry.objects.get(action="key.changed")
    detail = admin_client.get(reverse("admin:accounts_auditentry_change", args=[entry.pk])).content.decode()
    assert AuditSeal.objects.get(entry_id=entry.pk).hash in detail
    assert admin_client.get(reverse("admin:accounts_auditentry_add")).status_code == 403
    assert admin_client.post(reverse("admin:accounts_auditentry_delete", args=[entry.pk])).status_code == 403


def test_each_object_s_history_is_what_the_log_tells_of_it(admin_client: Client, owner: Any) -> None:
    key, _ = keys.make(owner=owner, name="shop")
    keys.make(owner=owner, name="other")
    keys.change(key, scopes=["chat"])
    page = admin_client.get(reverse("admin:accounts_apikey_change", args=[key.pk])).content.decode()
    history = reverse("admin:accounts_apikey_history", args=[key.pk])
    assert f'href="{history}"' in page
    shown = admin_client.get(history, follow=True)
    assert [entry.action for entry in shown.context["cl"].result_list] == ["key.changed", "key.made"]
    User.objects.filter(pk=owner.pk).delete()
    gone = admin_client.get(reverse("admin:auth_user_history", args=[owner.pk]), follow=True)
    assert "user.deleted" in [entry.action for entry in gone.context["cl"].result_list]


def test_users_agents_and_conversations_lead_to_their_history(admin_client: Client, owner: Any, say: Any) -> None:
    conversation = say("hello").conversation
    AgentFactory.create(name="other")
    audit.record("user.changed", about=owner)
    audit.record("agent.changed", about=conversation.agent)
    audit.record("conversation.exported", about=conversation)
    pages = {
        "auth_user": (owner.pk, ["auth_user_change"], "user.changed"),
        "agent_agent": (conversation.agent_id, ["agent_agent_change", "agent_agent_whole"], "agent.changed"),
        "conversations_conversation": (
            conversation.pk,
            ["conversations_conversation_change", "conversations_conversation_transcript"],
            "conversation.exported",
        ),
    }
    for name, (key, shown_on, action) in pages.items():
        history = reverse(f"admin:{name}_history", args=[key])
        for page in shown_on:
            shown = admin_client.get(reverse(f"admin:{page}", args=[key])).content.decode()
            assert f'href="{history}"' in shown, page
        told = admin_client.get(history, follow=True).context["cl"].result_list
        assert action in [entry.action for entry in told]
        assert {entry.object_id for entry in told} == {str(key)}


def test_the_history_of_every_kind_of_page_is_the_log_s() -> None:
    others = {
        model._meta.label
        for model, page in site._registry.items()
        if type(page).history_view is not ModelAdmin.history_view
    }
    assert others == set()


def test_the_log_is_told_only_to_who_may_see_it(client: Client, owner: Any) -> None:
    key, _ = keys.make(owner=owner, name="shop")
    viewer = User.objects.create_user("viewer of keys", is_staff=True)
    viewer.user_permissions.add(Permission.objects.get(codename="view_apikey"))
    client.force_login(viewer)
    answer = client.get(reverse("admin:accounts_apikey_history", args=[key.pk]))
    assert (answer.status_code, "key.made" in answer.content.decode()) == (200, False)
    assert client.get(reverse("admin:tools_toolsetting_history", args=[1])).status_code in (302, 403)


def test_the_log_is_searched_by_time(admin_client: Client) -> None:
    began = AuditEntry.objects.count()
    for day in range(1, 6):
        AuditEntry.objects.create(actor="boss", action="signed_in", at=datetime(2026, 1, day, 12, tzinfo=UTC))
    page = reverse("admin:accounts_auditentry_changelist")

    def days(**when: str) -> list[int]:
        shown = admin_client.get(page, {"action": "signed_in", **when}).context["cl"].result_list
        return [entry.at.day for entry in shown if entry.actor == "boss"]

    assert days(**{"from": "2026-01-02T12:00", "until": "2026-01-04T12:00"}) == [3, 2]
    assert days(**{"from": "2026-01-04", "until": ""}) == [5, 4]
    assert days(until="2026-01-02 13:00") == [2, 1]
    assert days(**{"from": "2099-01-01"}) == days(until="1999-01-01") == []
    assert days(**{"from": "0001-01-01T00:00"}) == [5, 4, 3, 2, 1]
    assert admin_client.get(page, {"until": "9999-12-31T23:59"}).status_code == 200
    shown = admin_client.get(page, {"from": "2026-01-02T12:00", "action": "signed_in"}).content.decode()
    assert 'name="from" value="2026-01-02T12:00"' in shown
    assert '<input type="hidden" name="action" value="signed_in">' in shown
    assert AuditEntry.objects.count() >= began + 5


@pytest.mark.parametrize("said", ["yesterday", "2026-13-45", "<b>", "0000-00-00", "9" * 10_000])
def test_what_is_no_time_is_told_and_narrows_nothing(admin_client: Client, said: str) -> None:
    AuditEntry.objects.create(actor="boss", action="signed_in")
    shown = admin_client.get(reverse("admin:accounts_auditentry_changelist"), {"until": said})
    assert "is no time: say it as 2026-01-31T09:30" in shown.content.decode()
    assert shown.context["cl"].result_list
    assert "<b>" not in shown.content.decode()


def test_a_range_that_ends_before_it_begins_is_told(admin_client: Client) -> None:
    AuditEntry.objects.create(actor="boss", action="signed_in")
    page = reverse("admin:accounts_auditentry_changelist")
    for until in ("2026-01-01", "2026-01-02T00:00"):
        shown = admin_client.get(page, {"from": "2026-01-02", "until": until})
        assert "“Until” has to be later than “From”" in shown.content.decode()
        assert not shown.context["cl"].result_list
    right = admin_client.get(page, {"from": "2026-01-02", "until": "2026-01-03"}).content.decode()
    assert "has to be later" not in right


@pytest.fixture
def found(admin_client: Client) -> Callable[..., list[str]]:
    """The reasons of the entries that a search finds, the newest first."""

    def search(q: str, **filters: str) -> list[str]:
        page = reverse("admin:accounts_auditentry_changelist")
        return [entry.reason for entry in admin_client.get(page, {"q": q, **filters}).context["cl"].result_list]

    return search


def test_the_log_is_searched_for_who_for_what_it_is_about_and_for_a_request(found: Any) -> None:
    shop = {"object_type": "accounts.apikey", "object_id": "7", "object_name": "nh_ab12cd34_… (the shop)"}
    of = {
        "anna": {"actor": "user anna", "action": "key.made", **shop},
        "agent": {"actor": "agent default", "action": "tool.ended", "request_id": "4f1c"},
        "both": {"actor": "user anna", "action": "key.revoked", "request_id": "4f1c", **shop},
        "other": {"actor": "user anna smith", "action": "key.made", "object_id": "71", "object_name": "the shop"},
    }
    for reason, entry in of.items():
        AuditEntry.objects.create(reason=reason, **entry)
    for term in ("user anna", "anna", " user anna "):
        assert found(term) == ["both", "anna"]
    assert found("agent default") == found("default") == ["agent"]
    assert found("user anna smith") == ["other"]
    assert found("7") == found(shop["object_name"]) == ["both", "anna"]
    assert found("4f1c") == ["both", "agent"]
    assert found("4f1c", action="key.revoked") == ["both"]
    assert found("anna smit") == found("user") == found("anna default") == found("%") == []


def test_of_very_many_that_are_found_the_newest_are_listed(found: Any) -> None:
    seldom = [AuditEntry(actor="user boss", action="key.made", reason=str(number)) for number in (1, 2)]
    often = (AuditEntry(actor="user boss", action="signed_in", reason="in") for _ in range(MAX_LISTED + 1))
    AuditEntry.objects.bulk_create([*seldom, *often])
    assert found("user boss")[:2] == ["in", "in"]
    assert found("user boss", action="key.made") == ["2", "1"]


@pytest.mark.embedded(reason="the plans are SQLite's; for those of PostgreSQL see tests/plans")
@pytest.mark.parametrize("filters", [{}, {"action": "signed_in"}, {"from": "2026-01-02", "until": "2026-02-02"}])
def test_a_search_goes_by_index_in_its_order(found: Any, filters: dict[str, str]) -> None:
    AuditEntry.objects.create(actor="user boss", action="signed_in", at=datetime(2026, 1, 3, tzinfo=UTC))
    plans: list[list[str]] = []

    def explain(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.startswith("SELECT") and 'FROM "accounts_auditentry"' in sql:
            # Past the wrapper, and with parameters as Django's own cursor passes them.
            steps = connection.connection.execute(f"EXPLAIN QUERY PLAN {sql}".replace("%s", "?"), params)
            plans.append([step[-1] for step in steps])
        return execute(sql, params, many, context)

    with connection.execute_wrapper(explain):
        assert len(found("boss", **filters)) == 1
    assert len(plans) > 8
    assert not [plan for plan in plans if any("SCAN accounts" in step or "TEMP B-TREE" in step for step in plan)]


# --- from outside ------------------------------------------------------------------------------------------------


def test_an_export_is_verified_by_the_script_of_the_docs(admin_client: Client, owner: Any, tmp_path: Path) -> None:
    for number in range(5):
        keys.make(owner=owner, name=f"shop „{number}“ \u2028 <&>")
    audit.seal()
    answer = admin_client.get(reverse("admin:audit_export"))
    lines = b"".join(answer.streaming_content).decode().split("\n")[:-1]
    assert last().action == "audit.exported"
    (script,) = re.findall(r"```python\n(# verify.py.*?)```", (ROOT / "docs/control.md").read_text(), re.DOTALL)
    (tmp_path / "verify.py").write_text(script)
    assert len(script.splitlines()) <= 30

    def verified(lines: list[str]) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(tmp_path / "verify.py")]
        return subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, check=False)

    told = verified(lines)
    assert (told.returncode, told.stdout.split()[-1]) == (0, audit.head().hash)
    changed = json.loads(lines[2]) | {"actor": "somebody else"}
    for tampered in (
        [*lines[:2], json.dumps(changed), *lines[3:]],
        [*lines[:2], *lines[3:]],
        [lines[1], lines[0], *lines[2:]],
    ):
        assert verified(tampered).returncode == 1


class Minutes:
    """A worker's clock, which goes on as it is told, and what it has told of the head by then."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._place, self._now, self._sealer = place, time.monotonic(), audit.Sealer(place)
        monkeypatch.setattr(audit, "time", self)

    def monotonic(self) -> float:
        return self._now

    def told_after(self, seconds: float) -> list[int]:
        self._now += seconds
        self._sealer.seal_and_tell()
        return [json.loads(line)["auditNumber"] for line in self._place.read_text().splitlines()]


def test_a_head_is_told_once_a_minute_at_most_and_at_once_after_a_quiet_one(
    owner: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Minutes(tmp_path / "heads.jsonl", monkeypatch)
    keys.make(owner=owner)
    first = worker.told_after(0)
    assert first == [audit.head().number]
    keys.make(owner=owner)
    assert worker.told_after(30) == first
    second = worker.told_after(31)  # with nothing new
    assert second == [*first, audit.head().number]
    assert worker.told_after(61) == second
    keys.make(owner=owner)
    assert worker.told_after(8) == [*second, audit.head().number]


def test_a_head_that_another_worker_sealed_is_told_and_is_seldom_looked_for(
    owner: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Minutes(tmp_path / "heads.jsonl", monkeypatch)
    keys.make(owner=owner)
    first = worker.told_after(0)
    keys.make(owner=owner)
    audit.seal()
    assert worker.told_after(61) == [*first, audit.head().number]
    worker.told_after(61)
    with CaptureQueriesContext(connection) as asked:
        worker.told_after(8)
    assert len(asked) == 1


def test_the_command_verifies_and_names_what_is_wrong(owner: Any, capsys: Any, tmp_path: Path, settings: Any) -> None:
    settings.AUDIT_HEADS = tmp_path / "heads.jsonl"
    for _ in range(3):
        keys.make(owner=owner)
    audit.seal()
    sealer = audit.Sealer(settings.AUDIT_HEADS)
    sealer.tell()
    call_command("audit", "verify")
    assert "is whole" in capsys.readouterr().out
    call_command("audit", "export")
    assert len(capsys.readouterr().out.splitlines()) == AuditSeal.objects.count()
    audit.seal()
    sealer.tell()
    for model in (AuditEntry, AuditSeal):
        append_only.unprotect(connection, model)
    try:
        cut = AuditSeal.objects.latest("number")
        AuditEntry.objects.filter(pk=cut.entry_id).delete()
        AuditSeal.objects.filter(number=cut.number).delete()
        with pytest.raises(CommandError, match=f"number {cut.number} was recorded"):
            call_command("audit", "verify")
        with pytest.raises(CommandError, match="no line with a head"):
            call_command("audit", "verify", "--heads", __file__)
        AuditEntry.objects.filter(pk=AuditSeal.objects.get(number=2).entry_id).update(reason="x")
        with pytest.raises(CommandError, match="number 2"):
            call_command("audit", "verify")
    finally:
        audit.guard()


def test_a_host_makes_the_guards_again_that_are_missing() -> None:
    append_only.unprotect(connection, AuditEntry)
    audit.guard()
    audit.record("host.started")
    with pytest.raises(Exception, match="only added"), connection.cursor() as cursor:
        cursor.execute("DELETE FROM accounts_auditentry")
