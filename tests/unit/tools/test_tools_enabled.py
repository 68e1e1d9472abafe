"""TOOLS_ENABLED: tools by configuration alone, within the ceilings, and never over a person's head."""

import pytest
from django.core.management import CommandError

from nanohost.preparation import refuse_bad_tools
from tests.support.tool_calls import ask
from tools.changes import BY_SETTING, changing, follow_setting
from tools.models import SettingChange, ToolSetting, sync_settings

pytestmark = pytest.mark.django_db


@pytest.fixture
def start(settings):
    """``start("http_get")``: what a start with this setting does of it."""

    def begin(*names):
        settings.TOOLS_ENABLED = list(names)
        refuse_bad_tools()
        sync_settings()
        follow_setting()

    return begin


def enabled():
    """The tools that are, with their grants."""
    return dict(ToolSetting.objects.filter(enabled=True).values_list("name", "grants"))


def logged():
    return list(SettingChange.objects.order_by("id").values_list("tool_name", "changed_by", "after"))


def test_what_it_names_is_enabled_and_granted_what_it_declares(start, caplog):
    start("http_get", "remember")
    assert enabled() == {"time": [], "http_get": ["NET_HTTP"], "remember": []}
    assert logged() == [
        ("http_get", BY_SETTING, {"enabled": True, "grants": ["NET_HTTP"]}),
        ("remember", BY_SETTING, {"enabled": True}),
    ]
    assert "http_get is enabled, and granted NET_HTTP, by TOOLS_ENABLED" in caplog.text
    assert ask("remember", fact="x").rule == ""
    start("http_get", "remember")
    assert len(logged()) == 2


def test_what_a_person_decided_afterwards_stays_and_each_start_says_so(start, caplog):
    start("http_get", "remember")
    with changing("http_get", by="anna") as setting:
        setting.grants = []
    with changing("remember", by="manage.py, root") as setting:
        setting.enabled = False
    for _ in range(2):
        caplog.clear()
        start("http_get", "remember")
        assert enabled() == {"time": [], "http_get": []}
        assert "TOOLS_ENABLED names remember, but manage.py, root has decided otherwise" in caplog.text
        assert "TOOLS_ENABLED names http_get, but anna has decided otherwise" in caplog.text
    start()
    assert enabled() == {"time": [], "http_get": []}


def test_what_a_person_denied_before_it_was_named_stays_denied(start):
    start()
    for decided in (True, False):
        with changing("remember", by="anna") as setting:
            setting.enabled = decided
    start("remember")
    assert enabled() == {"time": []}


def test_a_person_who_agrees_is_not_contradicted(start, caplog):
    start()
    with changing("remember", by="anna") as setting:
        setting.enabled = True
    start("remember")
    assert "remember" not in caplog.text
    start()
    assert "remember" in enabled()


def test_another_decision_about_a_tool_leaves_it_to_the_setting(start):
    start("remember")
    with changing("remember", by="anna") as setting:
        setting.timeout_seconds = 5
    start()
    assert enabled() == {"time": []}


def test_what_it_names_no_longer_it_takes_back(start, caplog):
    start("http_get", "remember")
    start("remember")
    assert enabled() == {"time": [], "remember": []}
    assert logged()[-1] == ("http_get", BY_SETTING, {"enabled": False, "grants": []})
    assert "http_get is disabled: TOOLS_ENABLED names it no longer" in caplog.text
    start("http_get")
    assert enabled() == {"time": [], "http_get": ["NET_HTTP"]}


def test_time_is_enabled_at_first_whatever_it_names_and_a_person_may_deny_it(start):
    start("time")
    assert (enabled(), logged()) == ({"time": []}, [])
    with changing("time", by="anna") as setting:
        setting.enabled = False
    start("time")
    assert enabled() == {}


@pytest.mark.parametrize(
    ("names", "ceiling", "says"),
    [
        (["recal_history"], {}, "TOOLS_ENABLED names no tool: recal_history; there are: "),
        (["remember"], {"TOOLS_ALLOWED": ["time"]}, "TOOLS_ENABLED names remember, which is outside TOOLS_ALLOWED."),
        (
            ["time", "http_get"],
            {"PERMISSIONS_GRANTED": ["FS_READ"]},
            "TOOLS_ENABLED names http_get, which needs NET_HTTP: that is outside PERMISSIONS_GRANTED.",
        ),
        (["shell"], {}, "TOOLS_ENABLED names shell, which needs SHELL: that is outside PERMISSIONS_GRANTED."),
    ],
)
def test_a_start_refuses_what_could_not_take_effect(start, settings, names, ceiling, says):
    for name, value in ceiling.items():
        setattr(settings, name, value)
    with pytest.raises(CommandError) as refused:
        start(*names)
    assert str(refused.value).startswith(says)
    assert not ToolSetting.objects.filter(enabled=True).exclude(name="time").exists()
