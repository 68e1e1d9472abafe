"""Changing what the admin decides about a tool: the one place that does, so that every change stands in the log."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy

from django.conf import settings
from django.db import transaction
from django.forms.models import model_to_dict

from nanohost.accounts import audit
from tools import registry
from tools.models import SettingChange, ToolSetting

logger = logging.getLogger(__name__)

# Whom the log names where it was no person; no user's name has blanks.
BY_SETTING = "the setting TOOLS_ENABLED"

# What people set.
FIELDS = (
    "enabled",
    "grants",
    "timeout_seconds",
    "max_input_bytes",
    "max_output_bytes",
    "calls_per_minute_conversation",
    "calls_per_minute_owner",
    "approval",
    "four_eyes",
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
        was, became = ({name: values[name] for name in changed} for values in (before, after))
        SettingChange.objects.create(tool_name=tool_name, changed_by=by[:200], before=was, after=became)
        because = by if by == BY_SETTING else ""
        audit.record("tool_setting.changed", about=setting, name=tool_name, before=was, after=became, reason=because)


def follow_setting() -> None:
    """Enable the tools that TOOLS_ENABLED names, with the permissions they declare, and disable those that it enabled
    before and names no longer. The last word counts: a tool that a person enabled, disabled or granted something since
    is left as it is.
    """
    decisions = SettingChange.objects.filter(after__has_any_keys=["enabled", "grants"])
    given = set(decisions.filter(changed_by=BY_SETTING).values_list("tool_name", flat=True))
    known = ToolSetting.objects.filter(name__in=given | set(settings.TOOLS_ENABLED)).order_by("name")
    for name in known.values_list("name", flat=True):
        with changing(name, by=BY_SETTING) as setting:  # which nobody else changes meanwhile
            last = decisions.filter(tool_name=name).order_by("-id").values_list("changed_by", flat=True).first()
            if last in (None, BY_SETTING):
                _follow(setting)
            elif name in settings.TOOLS_ENABLED and not _is_as_named(setting):
                logger.warning("TOOLS_ENABLED names %s, but %s has decided otherwise: it stays as it is", name, last)


def _is_as_named(setting: ToolSetting) -> bool:
    return setting.enabled and set(setting.grants) >= set(registry.get(setting.name).permissions)


def _follow(setting: ToolSetting) -> None:
    if setting.name not in settings.TOOLS_ENABLED:
        if setting.enabled:
            logger.warning("%s is disabled: TOOLS_ENABLED names it no longer", setting.name)
        setting.enabled, setting.grants = False, []
    elif not _is_as_named(setting):
        needed = registry.get(setting.name).permissions
        granted = f", and granted {', '.join(needed)}," if needed else ""
        logger.warning("%s is enabled%s by TOOLS_ENABLED", setting.name, granted)
        setting.enabled, setting.grants = True, sorted({*setting.grants, *needed})
