"""``/metrics`` for Prometheus: read from the database when it is asked for, so that all web nodes tell the same."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_safe
from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

import nanohost
from agent.llm.providers import PROVIDERS
from agent.models import ProviderOutage
from conversations import events
from conversations.engine import intake
from conversations.models import Turn
from conversations.statuses import FINAL, TurnStatus
from nanohost.console import attention, figures, monitors, queue
from nanohost.lib import traces
from tools.models import OPEN_CALL, CallStatus


@csrf_exempt
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """The figures, in Prometheus' text format; for this machine, and for whoever knows the token."""
    if refused := monitors.refusal(request):
        return refused
    registry = CollectorRegistry()
    if "application/openmetrics-text" in request.headers.get("Accept", ""):
        registry.register(HostCollector(exemplars=_exemplars()))
        text = openmetrics.generate_latest(registry)  # type: ignore[no-untyped-call]  # the package's is not
        return HttpResponse(text, content_type=openmetrics.CONTENT_TYPE_LATEST)
    registry.register(HostCollector())
    return HttpResponse(generate_latest(registry), content_type=CONTENT_TYPE_PLAIN_0_0_4)


# So many of the latest turns are looked through for one of each bucket.
_MAX_LOOKED_AT = 200


def _exemplars() -> dict[tuple[str, float], Exemplar]:
    """The trace of a recent turn that took as long, by its model and the bound of its bucket."""
    if not traces.is_on:
        return {}
    found: dict[tuple[str, float], Exemplar] = {}
    latest = Turn.objects.order_by("-created_at").values_list(
        "model", "traceparent", "status", "created_at", "ended_at"
    )
    for model, traceparent, status, began, ended in latest[:_MAX_LOOKED_AT]:
        if not ended or status != TurnStatus.SUCCEEDED or not (trace := traces.trace_id(traceparent)):
            continue
        seconds = max(0.0, (ended - began).total_seconds())
        bound = next((each for each in figures.BOUNDS if seconds <= each), math.inf)
        found.setdefault((model, float(bound)), Exemplar({"trace_id": trace}, seconds, ended.timestamp()))
    return found


class HostCollector(Collector):
    """What the host tells of itself. docs/operations.md explains each; docs/monitoring uses them. ``exemplars``: traces
    of turns, by model and bound of time."""

    def __init__(self, exemplars: Mapping[tuple[str, float], Exemplar] = MappingProxyType({})) -> None:
        self._exemplars = exemplars

    def collect(self) -> Iterator[Metric]:
        """Read the figures."""
        total, now = figures.look(), queue.look()
        yield from self._of_turns(total.turns)
        yield _family(
            CounterMetricFamily,
            "nanohost_tool_calls",
            "Tool calls that ended, by status.",
            "status",
            {str(status): total.calls.get(status, 0) for status in CallStatus if status not in OPEN_CALL},
        )
        yield _family(GaugeMetricFamily, "nanohost_turns_open", "Turns without an outcome yet.", "status", now.turns)
        yield _family(
            GaugeMetricFamily, "nanohost_tool_calls_open", "Tool calls without an outcome yet.", "status", now.calls
        )
        oldest = "How long the oldest queued turn has waited; 0 if none waits."
        yield GaugeMetricFamily("nanohost_queue_oldest_seconds", oldest, value=now.oldest_seconds)
        yield _family(GaugeMetricFamily, "nanohost_workers_alive", "Live workers, by queue.", "queue", now.workers)
        yield GaugeMetricFamily(
            "nanohost_counted_timestamp_seconds",
            "When the counters were last counted.",
            value=total.counted_at.timestamp() if total.counted_at else 0,
        )
        deaf = "1 while the web node that answers hears nothing of what happens in turns, else 0."
        yield GaugeMetricFamily("nanohost_news_deaf", deaf, value=int(events.transport().is_deaf()))
        paused = "1 while no new turns are accepted, else 0."
        yield GaugeMetricFamily("nanohost_intake_paused", paused, value=int(intake.current_pause() is not None))
        yield _family(
            GaugeMetricFamily,
            "nanohost_provider_resting",
            "1 while a provider of models is left alone, for it has failed for several turns in a row; else 0.",
            "provider",
            dict.fromkeys(PROVIDERS, 0) | {row.provider: int(bool(row.until)) for row in ProviderOutage.objects.all()},
        )
        hits = Counter(need.name for need in attention.needs())
        yield _family(
            GaugeMetricFamily,
            "nanohost_condition",
            "What needs attention, by condition: the number of things it affects; 0 if none.",
            "condition",
            {name: hits[name] for name in attention.CONDITIONS},
        )
        yield _family(GaugeMetricFamily, "nanohost_info", "1, with the version.", "version", {nanohost.__version__: 1})

    def _of_turns(self, by_model: dict[str, Any]) -> Iterator[Metric]:
        every = figures.total_of(by_model.values())
        yield _family(
            CounterMetricFamily,
            "nanohost_turns",
            "Turns that ended, by outcome.",
            "outcome",
            {str(status): every.get(status, 0) for status in FINAL},
        )
        tokens = CounterMetricFamily(
            "nanohost_tokens", "Tokens that turns have used, by model and kind.", labels=["model", "kind"]
        )
        took = HistogramMetricFamily(
            "nanohost_turn_seconds", "From a question to its answer, by model.", labels=["model"]
        )
        calls = SummaryMetricFamily(
            "nanohost_model_call_seconds", "From a prompt to a model's whole answer, by model.", labels=["model"]
        )
        for model, each in by_model.items():
            # Hours that an earlier release counted know nothing of calls.
            calls.add_metric([model], each.get("model_calls", 0), each.get("model_ms", 0) / 1000)
            for kind in ("prompt", "completion"):
                tokens.add_metric([model, kind], each[f"{kind}_tokens"])
            within = [*zip(figures.BOUNDS, each["within"], strict=True), (math.inf, each["succeeded"])]
            buckets: list[Any] = [
                (_bound(float(bound)), count, self._exemplars.get((model, float(bound)))) for bound, count in within
            ]
            took.add_metric([model], buckets, each["seconds"])
        yield tokens
        yield took
        yield calls


def _bound(seconds: float) -> str:
    return "+Inf" if seconds == math.inf else str(seconds)


def _family(
    kind: type[CounterMetricFamily | GaugeMetricFamily], name: str, told: str, label: str, values: dict[str, Any]
) -> Metric:
    family = kind(name, told, labels=[label])
    for value, number in values.items():
        family.add_metric([value], number)
    return family
