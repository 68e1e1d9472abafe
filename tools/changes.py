"""Changing what the admin decides about a tool: the one place that does, so that every change stands in the log."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy

from django.db import transaction
from django.forms.models import model_to_dict

from tools.models import SettingChange, ToolSetting

# What people set.
FIELDS = (
    "enabled",
    "grants",
    "timeout_seconds",
    "max_input_bytes",
    "max_output_bytes",
    "calls_per_minute_conversation",
    "calls_per_minute_owner",
)


@contextmanager
def changing(tool_name: str, *, by: str) -> Iterator[ToolSetting]:
    """A tool's setting, locked; what is set on it inside is stored and logged in the same transaction.

        with changing("time", by="anna") as setting:
            setting.enabled = False

    What changes nothing is not logged. Raises ``ToolSetting.DoesNotExist``, and ``ValidationError`` for a changed field
    that makes no sense; then nothing is stored.
    """
    with transaction.atomic():
        # Locked before it is read: between the two, somebody else's change would be logged as ours.
        setting = ToolSetting.objects.select_for_update().get(name=tool_name)
        before = deepcopy(model_to_dict(setting, FIELDS))
        yield setting
        after = model_to_dict(setting, FIELDS)
        changed = [name for name in FIELDS if after[name] != before[name]]
        if not changed:
            return
        setting.clean_fields(exclude={"id", "name", "updated_at", *FIELDS} - set(changed))
        setting.save(update_fields=[*changed, "updated_at"])
        SettingChange.objects.create(
            tool_name=tool_name,
            changed_by=by[:200],
            before={name: before[name] for name in changed},
            after={name: after[name] for name in changed},
        )
