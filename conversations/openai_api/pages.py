"""Lists of items, a page at a time, as OpenAI's APIs have them: so many behind an item, in one order or the other."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request

from conversations.models import Message
from conversations.openai_api import ids
from conversations.openai_api.errors import InvalidValue
from conversations.openai_api.items import Item, items_of
from conversations.openai_api.values import as_one_of
from tools.models import ToolCall

LEAST, DEFAULT, MOST = 1, 20, 100

PARAMETERS = [
    OpenApiParameter("after", str, description="The last item of the page before."),
    OpenApiParameter(
        "limit", {"type": "integer", "minimum": LEAST, "maximum": MOST, "default": DEFAULT}, description="How many."
    ),
    OpenApiParameter("order", {"type": "string", "enum": ["asc", "desc"], "default": "desc"}),
]


@dataclass(frozen=True, kw_only=True)
class Page:
    """What of a list is asked for."""

    after: str
    limit: int
    is_descending: bool


def page_of(request: Request) -> Page:
    """Read from the query; raises what is wrong with it."""
    query: Mapping[str, Any] = request.query_params
    limit = query.get("limit", str(DEFAULT))
    if not (limit.isascii() and limit.isdigit() and LEAST <= int(limit[:9]) <= MOST):
        raise InvalidValue(f"limit has to be a whole number from {LEAST} to {MOST}.", param="limit")
    order = as_one_of(query.get("order", "desc"), "order", ("asc", "desc"))
    return Page(after=query.get("after", ""), limit=int(limit), is_descending=order == "desc")


def listed(rows: QuerySet[Message], page: Page) -> dict[str, Any]:
    """A page of the items of a conversation's messages."""
    ordered = rows.order_by("-seq" if page.is_descending else "seq")
    if page.after:
        seq = _seq_of(rows, page.after)
        ordered = ordered.filter(seq__lte=seq) if page.is_descending else ordered.filter(seq__gte=seq)
    found: list[Item] = []
    behind = not page.after
    while len(found) <= page.limit:
        part = list(ordered[: page.limit + 1])
        for item in _in_order(part, page):
            if behind:
                found.append(item)
            behind = behind or item["id"] == page.after
        if len(part) <= page.limit:
            break
        last = part[-1].seq
        ordered = ordered.filter(seq__lt=last) if page.is_descending else ordered.filter(seq__gt=last)
    return as_list(found[: page.limit], has_more=len(found) > page.limit)


def as_list(items: list[Item], *, has_more: bool = False) -> dict[str, Any]:
    """Items as a list; of an empty one the ids are empty, which OpenAI's package wants to be texts."""
    first, last = (items[0]["id"], items[-1]["id"]) if items else ("", "")
    return {"object": "list", "data": items, "first_id": first, "last_id": last, "has_more": has_more}


def _in_order(part: list[Message], page: Page) -> list[Item]:
    if not page.is_descending:
        return items_of(part)
    return items_of(part[::-1])[::-1]


def _seq_of(rows: QuerySet[Message], after: str) -> int:
    """The number of the message that an item is of."""
    message = message_of(rows, after)
    if message is None or message.seq is None:
        raise InvalidValue("after names no item of this list.", param="after")
    return message.seq


def message_of(rows: QuerySet[Message], item_id: str) -> Message | None:
    """The message that an item is of."""
    told = ids.read(item_id)
    if told is None:
        return None
    if told.kind == ids.HOSTS_CALL and told.place is None:
        call = ToolCall.objects.filter(pk=told.row_id).first()
        if call is None:
            return None
        asking = rows.filter(turn_id=call.turn_id, tool_calls__isnull=False).order_by("seq")
        return next((each for each in asking if any(one["id"] == call.call_id for one in each.tool_calls or ())), None)
    return rows.filter(pk=told.row_id).first()
