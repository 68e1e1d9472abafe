"""The admin console: pages that open with real and hostile rows, what may be changed there, and what may not."""

from urllib.parse import urlencode

import pytest
from django import forms
from django.apps import apps
from django.contrib.auth.models import Permission as UserPermission
from django.db import connection
from django.db.models import JSONField
from django.http import QueryDict
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from agent.models import DEFAULT_AGENT, Agent, AgentVersion
from conversations.models import Conversation, Message, Turn, Worker
from nanohost.accounts.models import ApiKey, AuditEntry
from nanohost.console.site import model_pages
from nanohost.lib.ids import new_id
from tests.support.console_client import HOSTILE, make_rows, page
from tests.support.factories import OwnerFactory
from tests.support.tool_calls import ask
from tools.models import SettingChange, ToolCall, ToolSetting

pytestmark = pytest.mark.django_db

READ_ONLY = [
    "conversations_conversation",
    "conversations_turn",
    "conversations_message",
    "conversations_worker",
    "conversations_compaction",
    "conversations_deferredmessage",
    "agent_agentversion",
    "memory_memoryversion",
    "memory_historyentry",
    "scheduler_schedulerun",
    "scheduler_checkin",
    "tools_toolcall",
    "tools_settingchange",
    "tools_mcptool",
    "tools_customtool",
]
PAGES = [
    *READ_ONLY,
    "accounts_apikey",
    "tools_toolsetting",
    "tools_mcpserver",
    "agent_agent",
    "memory_memory",
    "scheduler_schedule",
]


@pytest.fixture
def rows(db):
    make_rows(2)


def row_of(name):
    app, model = name.split("_")
    return apps.get_model(app, model).objects.order_by("-pk").first()


def assert_harmless(response):
    assert response.status_code == 200
    assert HOSTILE not in response.content.decode()


# --- every page opens, and shows hostile text as text ------------------------------------------------------------


@pytest.mark.parametrize("name", PAGES)
def test_a_list_opens(admin_client, rows, name):
    assert_harmless(admin_client.get(page(name)))


@pytest.mark.parametrize("name", PAGES)
def test_a_rows_page_opens(admin_client, rows, name):
    response = admin_client.get(page(name, "change", row_of(name).pk))
    assert_harmless(response)
    assert "&lt;script&gt;" in response.content.decode()


@pytest.mark.parametrize("name", PAGES)
def test_a_search_opens_whatever_is_searched_for(admin_client, rows, name):
    for words in ["0", "x y", HOSTILE, "'; --", "0190-", str(new_id()), "\x00", "%", "ü" * 300]:
        assert_harmless(admin_client.get(page(name), {"q": words}))


def test_turns_and_calls_are_found_by_the_ids_logs_show(admin_client, rows):
    turn = Turn.objects.first()
    for name, words in [
        ("conversations_turn", str(turn.pk)),
        ("conversations_turn", turn.pk.hex),
        ("conversations_turn", str(turn.conversation_id)),
        ("conversations_message", str(turn.pk)),
        ("conversations_conversation", str(turn.conversation_id)),
        ("tools_toolcall", str(turn.pk)),
    ]:
        assert admin_client.get(page(name), {"q": words}).context["cl"].queryset.count() in (1, 2), (name, words)
        assert admin_client.get(page(name), {"q": str(new_id())}).context["cl"].queryset.count() == 0


@pytest.mark.parametrize(
    ("name", "query"),
    [
        ("conversations_turn", {"status": "failed"}),
        ("conversations_turn", {"error_code": "turn_timeout"}),
        ("tools_toolcall", {"status": "REJECTED", "rule": "not_enabled", "tool_name": "time"}),
        ("tools_toolcall", {"rule": "rate:owner"}),
        ("tools_toolcall", {"created_at__year": "2025"}),
        ("tools_settingchange", {"tool_name": "time"}),
        ("accounts_apikey", {"revoked_at__isnull": "True"}),
    ],
)
def test_a_filter_opens(admin_client, rows, name, query):
    assert_harmless(admin_client.get(page(name), query))


def test_a_turns_page_shows_its_messages_and_its_tool_calls(admin_client, rows):
    turn = Turn.objects.first()
    Message.objects.filter(turn=turn, seq=2).update(content="It is late.")
    ToolCall.objects.filter(turn_id=turn.pk).update(tool_name="time", result="23:59")
    shown = admin_client.get(page("conversations_turn", "change", turn.pk)).content.decode()
    assert "It is late." in shown
    assert "23:59" in shown
    assert page("tools_toolcall", "change", ToolCall.objects.get(turn_id=turn.pk).pk) in shown
    assert page("conversations_conversation", "change", turn.conversation_id) in shown


def test_conversations_turns_and_calls_are_linked(admin_client, rows):
    call = ToolCall.objects.first()
    shown = admin_client.get(page("tools_toolcall", "change", call.pk)).content.decode()
    assert page("conversations_turn", "change", call.turn_id) in shown
    assert page("conversations_conversation", "change", call.conversation_id) in shown
    shown = admin_client.get(page("conversations_conversation", "change", call.conversation_id)).content.decode()
    for name, field in [("conversations_turn", "conversation"), ("tools_toolcall", "conversation_id")]:
        link = f"{page(name)}?{field}__exact={call.conversation_id}"
        assert link in shown
        assert admin_client.get(link).context["cl"].queryset.count() == 1


def test_the_page_of_a_call_outlives_its_conversation(admin_client, rows):
    call = ToolCall.objects.first()
    Conversation.objects.filter(pk=call.conversation_id).delete()
    shown = admin_client.get(page("tools_toolcall", "change", call.pk)).content.decode()
    gone = page("conversations_turn", "change", call.turn_id)
    assert gone in shown
    assert b"Perhaps it was deleted?" in admin_client.get(gone, follow=True).content


def test_the_lists_queries_do_not_grow_with_their_rows(admin_client):
    counted = []
    for more in (5, 45):
        make_rows(more)
        counted.append({name: queries_of(admin_client, page(name)) for name in PAGES})
    assert counted[0] == counted[1]
    assert max(counted[0].values()) <= 12


def queries_of(client, address):
    with CaptureQueriesContext(connection) as queries:
        client.get(address)
    return len(queries)


def test_a_turns_pages_queries_do_not_grow_with_its_rows(admin_client, rows):
    turn = Turn.objects.first()
    address = page("conversations_turn", "change", turn.pk)
    with_few = queries_of(admin_client, address)
    for number in range(20):
        Message.objects.create(
            conversation_id=turn.conversation_id, turn=turn, seq=100 + number, role="tool", content="x"
        )
        call = ask("time")
        ToolCall.objects.filter(pk=call.pk).update(turn_id=turn.pk, position=100 + number, call_id=f"c{number}")
    assert queries_of(admin_client, address) <= with_few <= 18


# --- who gets in -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*PAGES, "django_celery_beat_periodictask"])
def test_strangers_are_sent_to_the_login(client, name):
    response = client.get(page(name))
    assert response.status_code == 302
    assert response.url == f"{reverse('admin:login')}?next={page(name)}"


@pytest.mark.parametrize("name", PAGES)
def test_a_user_who_is_no_staff_is_sent_to_the_login(client, owner, name):
    client.force_login(owner)
    assert client.get(page(name)).status_code == 302


def test_the_schedulers_own_pages_stay(admin_client):
    for model in ("periodictask", "intervalschedule", "crontabschedule"):
        assert admin_client.get(page(f"django_celery_beat_{model}")).status_code == 200


# --- what is read-only -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", READ_ONLY)
def test_what_happened_cannot_be_added_changed_or_deleted(admin_client, rows, name):
    row = row_of(name)
    before = row.__class__.objects.filter(pk=row.pk).values().get()
    assert admin_client.get(page(name, "add")).status_code == 403
    assert admin_client.post(page(name, "add"), {"name": "x"}).status_code == 403
    assert admin_client.post(page(name, "change", row.pk), {"status": "x", "name": "x"}).status_code == 403
    if name != "conversations_conversation":  # which admins may delete
        assert admin_client.post(page(name, "delete", row.pk), {"post": "yes"}).status_code == 403
    admin_client.post(page(name), {"action": "delete_selected", "_selected_action": [row.pk], "post": "yes"})
    assert row.__class__.objects.filter(pk=row.pk).values().get() == before


def test_tools_are_neither_added_nor_deleted(admin_client, rows):
    setting = ToolSetting.objects.first()
    assert admin_client.post(page("tools_toolsetting", "add"), {"name": "x"}).status_code == 403
    assert admin_client.post(page("tools_toolsetting", "delete", setting.pk), {"post": "yes"}).status_code == 403


# --- tools -------------------------------------------------------------------------------------------------------


@pytest.fixture
def append_line(tool_settings):
    return ToolSetting.objects.get(name="append_line")


def save(client, setting, **data):
    return client.post(page("tools_toolsetting", "change", setting.pk), {"approval": "never", **data})


def rule_now():
    return ask("append_line", path="/nowhere", line="one").rule


def test_what_the_admin_decides_about_a_tool_counts_at_once(admin_client, append_line):
    assert rule_now() == "not_enabled"
    assert save(admin_client, append_line, enabled="on").status_code == 302
    assert rule_now() == "permission:FS_WRITE"
    save(admin_client, append_line, enabled="on", grants=["FS_READ", "FS_WRITE"])
    assert rule_now() == ""
    assert ToolSetting.objects.get(pk=append_line.pk).grants == ["FS_READ", "FS_WRITE"]
    save(admin_client, append_line, grants=["FS_WRITE"])
    assert rule_now() == "not_enabled"


@pytest.mark.parametrize("grant", ["SHELL", "EVERYTHING", ""])
def test_no_other_permission_can_be_granted(admin_client, append_line, grant):
    assert save(admin_client, append_line, enabled="on", grants=[grant]).status_code == 200
    append_line.refresh_from_db()
    assert (append_line.enabled, append_line.grants) == (False, [])


def test_a_tools_page_shows_what_it_is_and_why_it_may_not_run(admin_client, append_line):
    shown = admin_client.get(page("tools_toolsetting", "change", append_line.pk)).content.decode()
    assert "Append a line to a file: a side effect that can be counted." in shown
    assert "No, not_enabled: " in shown
    assert "is never run twice for one call" in shown
    assert shown.count('type="checkbox" name="grants"') == 3


def test_a_tools_limits_are_set_and_taken_back(admin_client, append_line):
    limits = {
        "timeout_seconds": 0.5,
        "max_input_bytes": 100,
        "max_output_bytes": 200,
        "calls_per_minute_conversation": 3,
        "calls_per_minute_owner": 30,
    }
    for values in (limits, dict.fromkeys(limits, "")):
        assert save(admin_client, append_line, **values).status_code == 302
        expected = {name: value or None for name, value in values.items()}
        assert ToolSetting.objects.filter(pk=append_line.pk).values(*limits).get() == expected


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("timeout_seconds", "0", "greater than or equal to 0.1"),
        ("timeout_seconds", "601", "less than or equal to 600"),
        ("timeout_seconds", "nan", "Enter a number."),
        ("timeout_seconds", "soon", "Enter a number."),
        ("max_input_bytes", "0", "greater than or equal to 1"),
        ("max_input_bytes", "101", "TOOL_MAX_INPUT_BYTES, the ceiling, is 100 bytes."),
        ("max_output_bytes", "201", "TOOL_MAX_OUTPUT_BYTES, the ceiling, is 200 bytes."),
        ("calls_per_minute_conversation", "0", "greater than or equal to 1"),
        ("calls_per_minute_owner", "10001", "less than or equal to 10000"),
        ("calls_per_minute_owner", "1.5", "Enter a whole number."),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused_with_its_reason(
    admin_client, append_line, settings, field, value, told
):
    settings.TOOL_MAX_INPUT_BYTES, settings.TOOL_MAX_OUTPUT_BYTES = 100, 200
    refused = save(admin_client, append_line, enabled="on", **{field: value})
    assert (refused.status_code, list(refused.context["adminform"].form.errors)) == (200, [field])
    assert told in refused.content.decode()
    append_line.refresh_from_db()
    assert (append_line.enabled, SettingChange.objects.count()) == (False, 0)


def test_a_ceiling_that_was_lowered_keeps_nobody_from_disabling_a_tool(admin_client, append_line, settings):
    ToolSetting.objects.filter(pk=append_line.pk).update(enabled=True, max_input_bytes=1000)
    settings.TOOL_MAX_INPUT_BYTES = 100
    shown = admin_client.get(page("tools_toolsetting", "change", append_line.pk)).content.decode()
    assert "100 bytes in" in shown
    assert save(admin_client, append_line, max_input_bytes="1000").status_code == 302
    append_line.refresh_from_db()
    assert (append_line.enabled, append_line.max_input_bytes) == (False, 1000)


def test_the_limits_in_effect_are_shown(admin_client, append_line, settings):
    settings.TOOL_TIMEOUT_SECONDS = 3
    address = page("tools_toolsetting", "change", append_line.pk)
    assert "3 s · 65536 bytes in, 65536 out" in admin_client.get(address).content.decode()
    ToolSetting.objects.update(timeout_seconds=7, max_output_bytes=9, calls_per_minute_owner=5)
    assert "7 s · 65536 bytes in, 9 out · 5 a minute for one owner" in admin_client.get(address).content.decode()


def test_selected_tools_are_enabled_and_disabled(admin_client, append_line):
    for action, enabled in [("enable", True), ("disable", False)]:
        admin_client.post(page("tools_toolsetting"), {"action": action, "_selected_action": [append_line.pk]})
        append_line.refresh_from_db()
        assert append_line.enabled is enabled


def staff_with(*permissions):
    staff = OwnerFactory(username="staff", is_staff=True)
    staff.user_permissions.set(UserPermission.objects.filter(codename__in=permissions))
    return staff


def test_whoever_may_only_look_enables_nothing_and_revokes_nothing(client, owner, append_line):
    client.force_login(staff_with("view_toolsetting", "view_apikey"))
    key, _ = ApiKey.objects.issue(owner=owner)
    for name, action, row in [("tools_toolsetting", "enable", append_line), ("accounts_apikey", "revoke", key)]:
        assert client.get(page(name)).status_code == 200
        client.post(page(name), {"action": action, "_selected_action": [row.pk]})
    assert save(client, append_line, enabled="on").status_code == 403
    assert not ToolSetting.objects.get(pk=append_line.pk).enabled
    assert ApiKey.objects.get(pk=key.pk).revoked_at is None


# --- agents ------------------------------------------------------------------------------------------------------


def agent_form(**changes):
    return {"system_prompt": "Be kind.", "model": "", "max_tool_rounds": "", "max_turn_tokens": "", **changes}


def test_an_agent_is_made_and_changed(admin_client):
    assert admin_client.post(page("agent_agent", "add"), agent_form(name="clerk", tools=["time"])).status_code == 302
    clerk = Agent.objects.get(name="clerk")
    assert (clerk.tools, clerk.every_tool) == (["time"], False)
    changed = agent_form(every_tool="on", max_tool_rounds="5", name="renamed")
    assert admin_client.post(page("agent_agent", "change", clerk.pk), changed).status_code == 302
    clerk.refresh_from_db()
    assert (clerk.name, clerk.every_tool, clerk.tools, clerk.max_tool_rounds) == ("clerk", True, [], 5)


@pytest.mark.parametrize("wrong", [{"tools": ["no_such_tool"]}, {"max_tool_rounds": "-1"}, {"name": "two words"}])
def test_an_agent_that_makes_no_sense_is_refused(admin_client, wrong):
    assert admin_client.post(page("agent_agent", "add"), agent_form(name="clerk") | wrong).status_code == 200
    assert not Agent.objects.exclude(name=DEFAULT_AGENT).exists()


def test_an_agent_keeps_a_tool_whose_code_is_gone(admin_client, agent):
    Agent.objects.filter(pk=agent.pk).update(tools=["gone"])
    admin_client.post(page("agent_agent", "change", agent.pk), agent_form(tools=["gone", "time"]))
    assert set(Agent.objects.get(pk=agent.pk).tools) == {"time", "gone"}


def test_the_default_agent_cannot_be_deleted(admin_client, agent):
    assert admin_client.post(page("agent_agent", "delete", agent.pk), {"post": "yes"}).status_code == 403
    chosen = {"action": "delete_selected", "_selected_action": [agent.pk], "post": "yes"}
    admin_client.post(page("agent_agent"), chosen)
    assert Agent.objects.filter(pk=agent.pk).exists()


# --- API keys ----------------------------------------------------------------------------------------------------


def test_no_page_shows_a_key_or_its_digest(admin_client, owner):
    row, key = ApiKey.objects.issue(owner=owner)
    for address in (page("accounts_apikey"), page("accounts_apikey", "change", row.pk)):
        shown = admin_client.get(address).content.decode()
        assert row.prefix in shown
        assert row.digest not in shown
        assert key.split("_", 2)[2] not in shown


def test_a_key_is_revoked(admin_client, owner):
    row, key = ApiKey.objects.issue(owner=owner)
    _, other = ApiKey.objects.issue(owner=owner)
    admin_client.post(page("accounts_apikey"), {"action": "revoke", "_selected_action": [row.pk]})
    assert ApiKey.objects.recognise(key) is None
    assert ApiKey.objects.recognise(other) is not None


# --- workers -----------------------------------------------------------------------------------------------------


def test_a_worker_that_was_not_heard_of_is_shown_dead(admin_client):
    worker = Worker.objects.create(name="host:1:1", version="0", heartbeat_at=timezone.now(), turns_most=8)
    address = page("conversations_worker", "change", worker.pk)
    assert 'title="True"' in admin_client.get(address).content.decode()
    Worker.objects.update(heartbeat_at=timezone.now() - timezone.timedelta(minutes=1))
    assert 'title="False"' in admin_client.get(address).content.decode()


def test_a_change_of_an_agent_makes_a_version_that_tells_what_changed(admin_client, agent):
    form = {"system_prompt": "", "model": "", "every_tool": "on", "document_soul": f"Be patient. {HOSTILE}"}
    form |= {"written_documents": agent.written_documents}
    assert admin_client.post(page("agent_agent", "change", agent.pk), form).status_code == 302
    agent.refresh_from_db()
    assert (agent.version, agent.documents) == (2, {"SOUL": f"Be patient. {HOSTILE}"})
    version = AgentVersion.objects.get(agent=agent, number=2)
    assert (version.changed, version.made_by) == ("SOUL", "admin")
    shown = admin_client.get(page("agent_agentversion", "change", version.pk)).content.decode()
    assert "<ins>+Be patient. &lt;script&gt;" in shown
    admin_client.post(page("agent_agent", "change", agent.pk), form)
    assert AgentVersion.objects.filter(agent=agent).count() == 2  # nothing was changed


def test_a_document_that_is_too_long_is_refused(admin_client, agent):
    answer = admin_client.post(page("agent_agent", "change", agent.pk), {"document_user": "x" * 40_001})
    assert "at most 40000 characters" in answer.content.decode()


def test_a_list_is_exported_as_it_is_narrowed_and_the_audit_log_is_told(admin_client, rows):
    call = ask("time")
    ToolCall.objects.filter(pk=call.pk).update(arguments="=1+1", tool_name="needle")
    address = page("tools_toolcall", "export")
    answer = admin_client.get(address, {"tool_name__exact": "needle"})
    head, *lines = b"".join(answer.streaming_content).decode().splitlines()
    assert head.startswith("id,created_at,tool_name")
    assert len(lines) == 1
    assert ",'=1+1," in lines[0]
    assert AuditEntry.objects.filter(action="list.exported").count() == 1


def test_changes_of_settings_are_exported(admin_client):
    SettingChange.objects.all().delete()
    for tool_name in ("needle", "other"):
        SettingChange.objects.create(tool_name=tool_name, changed_by="=boss", before={}, after={"enabled": True})
    address = page("tools_settingchange", "export")
    listed = admin_client.get(page("tools_settingchange")).content.decode()
    assert 'href="export.csv' in listed
    answer = admin_client.get(address, {"tool_name__exact": "needle"})
    head, line = b"".join(answer.streaming_content).decode().splitlines()
    assert head == "changed_at,tool_name,changed_by,before,after"
    assert ',needle,\'=boss,{},"{""enabled"": true}"' in line
    assert AuditEntry.objects.filter(action="list.exported", object_type="tools.settingchange").count() == 1


def test_a_turn_names_its_key(admin_client, rows, owner):
    key, _ = ApiKey.objects.issue(owner=owner)
    turn = Turn.objects.first()
    Turn.objects.filter(pk=turn.pk).update(api_key_id=key.pk)
    shown = admin_client.get(page("conversations_turn", "change", turn.pk)).content.decode()
    assert page("accounts_apikey", "change", key.pk) in shown


def json_fields(request):
    """Of every page by which rows are added or changed: its form, whether it is of a row, and the column of JSON."""
    for model, own in model_pages().items():
        for row in (None, model()):
            if own.has_change_permission(request, row) if row else own.has_add_permission(request):
                form = own.get_form(request, row, change=row is not None)
                for column in model._meta.concrete_fields:
                    if isinstance(column, JSONField) and column.name in form.base_fields:
                        yield form, column


@pytest.mark.parametrize("empty", ["", "null", '""', "[]", "{}"])
def test_no_form_stores_what_is_left_empty_as_another_kind_of_json(rf, empty):
    """Of an empty list an empty list, of an empty object an empty object; and null where a column may be that."""
    request = rf.get("/")
    request.user = OwnerFactory(is_superuser=True, is_staff=True)
    seen, wrong = set(), []
    for form_class, column in json_fields(request):
        form = form_class(QueryDict(urlencode({column.name: empty})))
        refused, stored = column.name in form.errors, getattr(form.instance, column.name)
        is_right = isinstance(stored, type(column.get_default())) or (stored is None and column.null)
        if not (is_right or refused) or (refused and isinstance(form.fields[column.name], forms.JSONField)):
            wrong.append((str(column), empty, stored, form.errors.get(column.name)))
        seen.add(str(column))
    assert seen >= {"agent.Agent.approvals", "tools.McpServer.arguments", "conversations.ReplaySet.graders"}
    assert wrong == []
