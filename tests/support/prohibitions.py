"""What forbids a call of ``append_line``, each with the rule that says so."""

from typing import Any

from tools.models import ToolSetting


def outside_the_ceiling(settings: Any) -> None:
    settings.TOOLS_ALLOWED = ["time"]


def not_enabled(settings: Any) -> None:
    ToolSetting.objects.filter(name="append_line").update(enabled=False)


def setting_deleted(settings: Any) -> None:
    ToolSetting.objects.filter(name="append_line").delete()


def outside_the_permissions_ceiling(settings: Any) -> None:
    settings.PERMISSIONS_GRANTED = ["NET_HTTP"]


def not_granted(settings: Any) -> None:
    ToolSetting.objects.filter(name="append_line").update(grants=["FS_READ"])


def too_large(settings: Any) -> None:
    settings.TOOL_MAX_INPUT_BYTES = 10


PROHIBITIONS = [
    (outside_the_ceiling, "not_in_ceiling"),
    (not_enabled, "not_enabled"),
    (setting_deleted, "not_enabled"),
    (outside_the_permissions_ceiling, "permission_ceiling:FS_WRITE"),
    (not_granted, "permission:FS_WRITE"),
    (too_large, "input_size"),
]
