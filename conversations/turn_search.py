"""Finds turns: by what was said and called in them, and by what became of them.

A page looks at a stretch of so many turns, the newest first, and gives those that match: what is read for it does not
grow with what is kept. Where few match, pages are short, and the next one goes on behind the stretch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db.models import Exists, F, OuterRef, Q, QuerySet, TextField
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast

from conversations import search
from conversations.feedback_models import Feedback
from conversations.models import Turn
from nanohost.accounts.models import ApiKey
from nanohost.lib.ids import first_id_at
from tools.models import ToolCall

# So many turns are looked at for a page.
STRETCH = 1_000


@dataclass(frozen=True)
class Page:
    """``turns``: those that match, the newest first. ``after``: the turn that the next page begins behind; None if
    there are no further ones."""

    turns: list[Turn]
    after: UUID | None


def find(
    rows: "QuerySet[Turn]",
    wanted: Mapping[str, Any],
    *,
    limit: int,
    after: UUID | None = None,
    owner_id: int | None = None,
) -> Page:
    """Those of ``rows`` that match, at most ``limit``. ``wanted``: values of ``FILTERS``; ``words`` that were said; and
    ``since`` and ``until``, between which they were asked, the latter outside. ``after``: a page's. ``owner_id``: whose
    they are."""
    rows = rows.order_by("-pk")
    if owner_id is not None:
        rows = rows.filter(owner_id=owner_id)
    if after is not None:
        rows = rows.filter(pk__lt=after)
    if "until" in wanted:
        rows = rows.filter(pk__lt=first_id_at(wanted["until"]))
    if "since" in wanted:
        rows = rows.filter(pk__gte=first_id_at(wanted["since"]))
    last = None
    if "words" in wanted:
        rows = rows.filter(pk__in=search.find_turns(wanted["words"], owner_id=owner_id))
    elif last := rows.values_list("pk", flat=True)[STRETCH - 1 : STRETCH].first():
        rows = rows.filter(pk__gte=last)
    for name, matches in FILTERS.items():
        if name in wanted:
            rows = matches(rows, wanted[name])
    found = list(rows[: limit + 1])
    if len(found) > limit:
        return Page(found[:limit], after=found[limit - 1].pk)
    return Page(found, after=last)


def _tagged(rows: "QuerySet[Turn]", tag: str) -> "QuerySet[Turn]":
    name, _, value = tag.partition(":")
    text = Cast(KeyTextTransform(name, "conversation__metadata"), TextField())
    return rows.alias(tag=text).filter(tag=value)


def _called(**of: Any) -> Exists:
    return Exists(ToolCall.objects.filter(turn_id=OuterRef("pk"), **of))


def _of_a_key(rows: "QuerySet[Turn]", prefix: str) -> "QuerySet[Turn]":
    return rows.filter(api_key_id__in=ApiKey.objects.filter(prefix=prefix).values("pk"))


def _took(rows: "QuerySet[Turn]", seconds: float) -> "QuerySet[Turn]":
    return rows.filter(ended_at__gte=F("created_at") + timedelta(seconds=seconds))


# By the names of what is asked for.
FILTERS: dict[str, "Callable[[QuerySet[Turn], Any], QuerySet[Turn]]"] = {
    "status": lambda rows, status: rows.filter(status=status),
    "error": lambda rows, code: rows.filter(error_code=code),
    "agent": lambda rows, name: rows.filter(conversation__agent__name=name),
    "model": lambda rows, name: rows.filter(Q(model=name) | Q(fallback_model=name)),
    "key": _of_a_key,
    "tool": lambda rows, name: rows.filter(_called(tool_name=name)),
    "rule": lambda rows, name: rows.filter(_called(rule=name)),
    "feedback": lambda rows, rating: rows.filter(Exists(Feedback.objects.filter(turn=OuterRef("pk"), rating=rating))),
    "tag": _tagged,
    "least_cost": lambda rows, millionths: rows.filter(cost__gte=millionths),
    "least_seconds": _took,
}
