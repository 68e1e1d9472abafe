"""Custom tools in the console and by the command: what they say and what was flagged is shown, then allowed."""

from io import StringIO

import pytest
from django.contrib.auth.models import Permission, User
from django.core.management import CommandError, call_command
from django.test import Client

from nanohost.accounts.models import AuditEntry
from nanohost.console.roles import ADMIN, OPERATOR, VIEWER, sync_roles
from tests.support.console_client import client_of, page
from tests.support.factories import OwnerFactory
from tools.custom import looking
from tools.custom.models import CustomTool
from tools.models import ToolSetting
from tools.workspace.store import open_workspace

pytestmark = pytest.mark.django_db(transaction=True)

SOURCE = """import os
class Shout(Tool):
    description = "Shout <b>a text</b>."
    parameters = {"type": "object"}
    def execute(self):
        return "A"
"""


@pytest.fixture
def put(settings, tmp_path):
    settings.CUSTOM_TOOLS, settings.WORKSPACES_DIR = True, tmp_path / "workspaces"
    owner = OwnerFactory()

    def write(source: str, file: str = "shout.py") -> CustomTool:
        with open_workspace(agent="default", owner_id=owner.pk) as workspace:
            workspace.write(f"tools/{file}", source.encode(), trusted=True)
        looking.look_at_all()
        return CustomTool.objects.get(file=file)

    return write


def shown(client, tool):
    return client.get(page("tools_customtool", "change", tool.pk)).content.decode()


def see(client, tool, **form):
    return client.post(page("tools_customtool", "see", tool.pk), {"hash": tool.hash} | form, follow=True)


def command(*arguments):
    out = StringIO()
    call_command("tools", *arguments, stdout=out)
    return out.getvalue()


def test_what_it_says_and_what_was_flagged_is_shown_and_then_it_is_allowed(admin_client, put):
    tool = put(SOURCE)
    said = shown(admin_client, tool)
    assert "line 1: import os" in said
    assert "The scan has flagged 1 place in it." in said
    assert "Shout &lt;b&gt;a text&lt;/b&gt;." in said
    assert "was seen and is enabled" in see(admin_client, tool, decision="allow").content.decode()
    assert ToolSetting.objects.get(name="custom_shout").enabled
    assert [each.action for each in AuditEntry.objects.filter(action__startswith="custom_").order_by("pk")] == [
        "custom_tool.found",
        "custom_tool.seen",
    ]
    tool = put(SOURCE.replace('"A"', '"B"'))
    said = shown(admin_client, tool)
    assert "changed since it was seen" in said
    assert "+        return &quot;B&quot;" in said
    assert "Nothing was done" in see(admin_client, tool, hash="0" * 64).content.decode()
    assert not CustomTool.objects.get().is_seen


@pytest.mark.parametrize(("role", "sees"), [(VIEWER, 0), (OPERATOR, 0), (ADMIN, 1)])
def test_who_may_say_that_they_have_seen_it(role, sees, put):
    tool = put(SOURCE)
    sync_roles()
    client = client_of(role)
    address = page("tools_customtool", "see", tool.pk)
    assert (f'action="{address}"' in shown(client, tool)) is bool(sees)
    assert client.post(address, {"hash": tool.hash}).status_code == (302 if sees else 403)
    assert client.get(address).status_code == 405


def test_seeing_a_tool_enables_it_only_for_those_who_may_enable_tools(put):
    tool = put(SOURCE)
    reader = User.objects.create_user("reader", is_staff=True)
    reader.user_permissions.set(Permission.objects.filter(codename__in=["view_customtool", "change_customtool"]))
    client = Client()
    client.force_login(reader)
    assert "Seen, not allowed" in shown(client, tool)
    assert "Seen, allow<" not in shown(client, tool)
    assert see(client, tool, decision="allow").status_code == 403
    assert not CustomTool.objects.get().is_seen
    assert see(client, tool, decision="seen").status_code == 200
    assert CustomTool.objects.get().is_seen
    assert not ToolSetting.objects.get(name="custom_shout").enabled


def test_what_cannot_be_a_tool_says_why_and_is_not_allowed(admin_client, put):
    tool = put("x = 1")
    said = shown(admin_client, tool)
    assert "it has no class that is derived from Tool" in said
    assert page("tools_customtool", "see", tool.pk) not in said


def test_the_command_lists_shows_and_sees(put):
    put(SOURCE)
    put("x = 1", "none.py")
    listed = command("custom")
    assert "custom_shout\tnew\t1 flagged\t" in listed
    assert "custom_none\tcannot be a tool: it has no class" in listed
    told = command("see", "custom_shout")
    assert "+import os" in told
    assert "flagged: line 1: import os" in told
    assert "Next: manage.py tools allow custom_shout" in told
    assert "custom_shout is allowed; each call waits for consent." in command("allow", "custom_shout")
    assert "custom_shout\tseen" in command("custom")
    with pytest.raises(CommandError, match="cannot be a tool"):
        command("see", "custom_none")
    with pytest.raises(CommandError, match="No file of a workspace"):
        command("see", "custom_nothing")


def test_a_terminal_is_told_nothing_that_it_would_do(put):
    put(SOURCE + "# \x1b[2J\n")
    assert "\x1b" not in command("see", "custom_shout")


def test_where_it_is_not_wanted_the_command_says_so(put, settings):
    settings.CUSTOM_TOOLS = False
    with pytest.raises(CommandError, match="CUSTOM_TOOLS"):
        command("custom")
