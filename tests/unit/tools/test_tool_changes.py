"""The change log of tools: who changed what, and when; whoever it is, and whatever happens at the same moment."""

import ast
import os
import pwd
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.core.exceptions import ValidationError
from django.core.management import call_command
from django.db import connection, connections
from django.urls import reverse

from nanohost.lib.clock import from_now
from tests.support.sources import ROOT, tracked_files
from tests.support.wait import wait_until
from tools.changes import changing
from tools.models import SettingChange, ToolSetting, sync_settings

pytestmark = pytest.mark.django_db


@pytest.fixture
def append_line(tool_settings):
    return ToolSetting.objects.get(name="append_line")


def logged():
    """Who changed what, in order: (tool, who, before, after)."""
    return list(SettingChange.objects.order_by("id").values_list("tool_name", "changed_by", "before", "after"))


# --- who changes them --------------------------------------------------------------------------------------------


def test_a_change_is_logged_with_what_was_changed_alone(append_line):
    with changing("append_line", by="anna") as setting:
        setting.enabled, setting.max_input_bytes, setting.grants = True, 100, []
    assert logged() == [
        (
            "append_line",
            "anna",
            {"enabled": False, "max_input_bytes": None},
            {"enabled": True, "max_input_bytes": 100},
        )
    ]
    assert SettingChange.objects.filter(changed_at__range=(from_now(-60), from_now(0))).exists()


def test_a_list_that_is_changed_in_place_is_seen(append_line):
    with changing("append_line", by="anna") as setting:
        setting.grants.append("FS_WRITE")
    assert logged() == [("append_line", "anna", {"grants": []}, {"grants": ["FS_WRITE"]})]


def test_what_changes_nothing_is_not_logged(append_line):
    before = append_line.updated_at
    with changing("append_line", by="anna") as setting:
        setting.enabled, setting.grants = False, []
    append_line.refresh_from_db()
    assert (logged(), append_line.updated_at) == ([], before)


def test_what_makes_no_sense_is_neither_stored_nor_logged(append_line):
    def enable_with(**nonsense):
        with changing("append_line", by="anna") as setting:
            setting.enabled = True
            vars(setting).update(nonsense)

    for nonsense in ({"grants": ["SHELL"]}, {"timeout_seconds": 601}, {"calls_per_minute_owner": 0}):
        with pytest.raises(ValidationError):
            enable_with(**nonsense)
    append_line.refresh_from_db()
    assert (logged(), append_line.enabled) == ([], False)


def test_what_fails_in_the_middle_is_neither_stored_nor_logged(append_line):
    def fail():
        with changing("append_line", by="anna") as setting:
            setting.enabled = True
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    append_line.refresh_from_db()
    assert (logged(), append_line.enabled) == ([], False)


def test_the_admins_form_and_its_actions_log_the_user(admin_client, append_line):
    address = reverse("admin:tools_toolsetting_change", args=[append_line.pk])
    admin_client.post(
        address, {"enabled": "on", "approval": "never", "grants": ["FS_WRITE"], "calls_per_minute_owner": "7"}
    )
    chosen = {"_selected_action": [append_line.pk]}
    admin_client.post(reverse("admin:tools_toolsetting_changelist"), {"action": "disable", **chosen})
    admin_client.post(reverse("admin:tools_toolsetting_changelist"), {"action": "enable", **chosen})
    before = {"enabled": False, "grants": [], "calls_per_minute_owner": None}
    after = {"enabled": True, "grants": ["FS_WRITE"], "calls_per_minute_owner": 7}
    assert logged() == [
        ("append_line", "admin", before, after),
        ("append_line", "admin", {"enabled": True}, {"enabled": False}),
        ("append_line", "admin", {"enabled": False}, {"enabled": True}),
    ]


def test_the_command_logs_the_systems_user(append_line, capsys, monkeypatch):
    monkeypatch.setenv("USER", "somebody else")
    monkeypatch.setenv("LOGNAME", "somebody else")
    call_command("tools", "allow", "append_line", "--grant", "FS_WRITE")
    call_command("tools", "allow", "append_line")
    call_command("tools", "deny", "append_line")
    who = f"manage.py, {pwd.getpwuid(os.getuid()).pw_name}"
    nothing, everything = {"enabled": False, "grants": []}, {"enabled": True, "grants": ["FS_WRITE"]}
    assert logged() == [
        ("append_line", who, nothing, everything),
        ("append_line", who, everything, nothing),
    ]


def test_a_fresh_tools_row_is_no_change(db):
    sync_settings()
    assert logged() == []
    assert list(ToolSetting.objects.filter(enabled=True).values_list("name", flat=True)) == ["time"]


# --- the console -------------------------------------------------------------------------------------------------


def test_a_tools_page_leads_to_its_changes(admin_client, append_line):
    for name in ("append_line", "time"):
        with changing(name, by="anna") as setting:
            setting.timeout_seconds = 7
    link = f"{reverse('admin:tools_settingchange_changelist')}?tool_name__exact=append_line"
    shown = admin_client.get(reverse("admin:tools_toolsetting_change", args=[append_line.pk])).content.decode()
    assert link in shown
    found = admin_client.get(link)
    assert [change.tool_name for change in found.context["cl"].queryset] == ["append_line"]
    assert "timeout_seconds: null → 7" in found.content.decode()


# --- at the same moment ------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_of_changes_at_the_same_moment_each_begins_where_another_ended(append_line):
    start = threading.Barrier(4)

    def race(worker):
        start.wait()
        try:
            for number in range(5):
                with changing("append_line", by=f"worker-{worker}") as setting:
                    setting.max_input_bytes = 1 + 10 * worker + number
        finally:
            connections.close_all()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(race, range(4)))
    values = [None, *(after["max_input_bytes"] for _, _, _, after in logged())]
    assert len(values) == 21
    assert [before["max_input_bytes"] for _, _, before, _ in logged()] == values[:-1]
    assert ToolSetting.objects.get(name="append_line").max_input_bytes == values[-1]


@pytest.mark.django_db(transaction=True)
@pytest.mark.production(reason="SQLite has one writer at a time")
def test_whoever_changes_while_another_does_waits_and_tells_what_was_before(append_line):
    def deny():
        try:
            call_command("tools", "deny", "append_line")
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as other:
        with changing("append_line", by="anna") as setting:
            setting.enabled, setting.grants = True, ["FS_READ"]
            setting.save()  # so that there is something to wait for
            late = other.submit(deny)
            wait_until(lambda: late.done() or somebody_waits_for_us())
        late.result(timeout=10)
    assert logged()[-1][2:] == ({"enabled": True, "grants": ["FS_READ"]}, {"enabled": False, "grants": []})


def somebody_waits_for_us():
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_locks WHERE NOT granted AND transactionid = pg_current_xact_id()::xid")
        return cursor.fetchone()


@pytest.mark.django_db(transaction=True)
def test_what_a_form_did_not_change_stays_as_another_left_it(admin_client, append_line, monkeypatch):
    """Between the form's look at the row and its own change, another changes something else."""
    from tools.admin import ToolSettingAdmin

    save = ToolSettingAdmin.save_model

    def after_another(*arguments):
        with changing("append_line", by="anna") as setting:
            setting.grants = ["FS_WRITE"]
        save(*arguments)

    monkeypatch.setattr(ToolSettingAdmin, "save_model", after_another)
    admin_client.post(
        reverse("admin:tools_toolsetting_change", args=[append_line.pk]), {"enabled": "on", "approval": "never"}
    )
    assert [(who, after) for _, who, _, after in logged()] == [
        ("anna", {"grants": ["FS_WRITE"]}),
        ("admin", {"enabled": True}),
    ]
    assert ToolSetting.objects.get(name="append_line").grants == ["FS_WRITE"]


# --- nobody else writes them -------------------------------------------------------------------------------------

WRITES = {
    f"{prefix}{name}"
    for name in ("save", "save_base", "create", "update", "delete", "bulk_create", "bulk_update")
    for prefix in ("", "a")
} | {"get_or_create", "update_or_create", "aget_or_create", "aupdate_or_create", "_raw_delete", "raw"}
# Where a row of tools' settings is written, and how.
WRITERS = {
    "tools/changes.py": {"setting.save"},
    # Rows of tools that are new, which are not enabled.
    "tools/models.py": {"ToolSetting.objects.bulk_create"},
    "tools/mcp/catalogue.py": {"ToolSetting.objects.get_or_create"},
    "tools/custom/catalogue.py": {"ToolSetting.objects.get_or_create"},
}


def writes(source: str) -> Iterator[str]:
    """What may write a row of tools' settings, in a module that knows them: each writing call of nothing else's."""
    tree = ast.parse(source)
    if "tools_toolsetting" in source or "tools.ToolSetting" in source:
        yield "by its table's or its model's name"
    known = {"ToolSetting", "setting"} | {
        each.asname
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for each in node.names
        if each.asname and each.name in ("ToolSetting", "models", "tools.models")
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in WRITES:
            path = ast.unparse(node)
            if known & set(path.replace("(", ".").replace(")", ".").split(".")):
                yield path


@pytest.mark.shapeless(reason="it reads the source")
def test_nobody_but_the_change_log_writes_a_tools_settings():
    sources = {str(path.relative_to(ROOT)): path for path in tracked_files() if path.suffix == ".py"}
    product = {
        name: path for name, path in sources.items() if not name.startswith("tests/") and "/migrations/" not in name
    }
    found = {name: set(writes(path.read_text())) for name, path in product.items()}
    assert len(found) > 80
    assert {name: what for name, what in found.items() if what} == WRITERS


@pytest.mark.shapeless(reason="it reads the source")
@pytest.mark.parametrize(
    "planted",
    [
        "from tools.models import ToolSetting\nToolSetting.objects.update(enabled=True)",
        "from tools.models import ToolSetting as Setting\nSetting.objects.filter(name='time').update(enabled=True)",
        "from tools import models\nmodels.ToolSetting.objects.create(name='x')",
        "import tools.models as m\nm.ToolSetting.objects.get_or_create(name='x')",
        "tool, setting = gate.admit('time', agent_tools=every)\nsetting.save()",
        "ToolSetting(name='x').save()",
        "class A:\n    async def f(self):\n        await ToolSetting.objects.aupdate(enabled=True)",
        "apps.get_model('tools.ToolSetting').objects.update(enabled=True)",
        "cursor.execute('UPDATE tools_toolsetting SET enabled = true')",
    ],
)
def test_a_planted_write_is_found(planted):
    assert list(writes(planted))


@pytest.mark.shapeless(reason="it reads the source")
@pytest.mark.parametrize(
    "innocent",
    [
        "from tools.models import ToolSetting\nToolSetting.objects.filter(name='time').first()",
        "ToolCall.objects.bulk_create(requested)",
        "with changing('time', by='anna') as setting:\n    setting.enabled = True",
        "digest.update(text)",
    ],
)
def test_what_is_innocent_is_not_reported(innocent):
    assert not list(writes(innocent))
