"""Where work of a turn's stands in a trace, and the spans of model calls; see :mod:`nanohost.lib.traces`."""

from uuid import UUID

from django.conf import settings

from agent.llm.base import Completion, ModelRequest
from agent.spending import bills
from agent.spending.bills import Bill
from conversations.models import Turn
from nanohost.lib import traces


def context_of(turn_id: UUID | str) -> str:
    """The context that a turn is stored with; empty if it has none, or is gone."""
    return Turn.objects.filter(pk=turn_id).values_list("traceparent", flat=True).first() or ""


def end_call(
    span: traces.Span,
    conversation_id: UUID,
    request: ModelRequest,
    answered: tuple[Completion, Bill] | None,
    error: str,
) -> None:
    """The span of a model's answer, or of none; its content only where it is logged as well."""
    model, (said, bill) = request.model, answered or (Completion(), bills.NOTHING)
    finish = ("length",) if said.is_cut else ("tool_calls",) if said.tool_calls else ("stop",)
    usage, tells = said.usage, settings.LOG_CONTENT
    traces.end(
        span,
        traces.CHAT,
        model,
        said.provider or None,
        conversation_id,
        usage.prompt_tokens if answered else None,
        usage.completion_tokens if answered else None,
        usage.cached_tokens or None,
        finish if answered else None,
        bill.cost if answered else None,
        list(request.messages) if tells else None,
        [said.as_message()] if tells and answered else None,
        about=model,
        error=error,
    )
