"""What is exported by OTLP: batches of spans and log lines, and the figures of ``/metrics``, from a thread of its own.

The queue is bounded (:mod:`nanohost.lib.traces`), and a collector that is away is tried again with longer and longer
waits; what does not fit meanwhile is dropped, counted and told. Nothing here is on the way of a turn.
"""

import gzip
import json
import logging
import os
import random
import re
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

from . import traces
from .redaction import is_plain, redact, redact_json

logger = logging.getLogger(__name__)

SCOPE = "nanohost"

# A batch that was not taken is sent again after so many seconds, twice as many each time, and not more often.
FIRST_WAIT, LONGEST_WAIT, MAX_TRIES = 1.0, 30.0, 6
# So long an end of the process waits for what is left.
LAST_SECONDS = 3.0
# Of what is exported of one text, in characters.
MAX_TEXT = 32 * 1024

_MAY_BE_SENT_AGAIN = (429, 502, 503, 504)
_IDS = re.compile(r"(?<=/)(?:[0-9a-f]{8}-[0-9a-f-]{27}|[0-9]+|[A-Za-z]+_[0-9a-f]{16,})(?=/|$)")


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where batches go. ``urls``: by signal: traces, metrics, logs; those that are not exported are missing.
    ``seconds``: for a request. ``every``, ``metrics_every``: seconds between batches of spans and lines, and between
    those of figures. ``batch``: most spans in one.
    """

    urls: Mapping[str, str]
    headers: Mapping[str, str] = field(repr=False)
    service: str
    version: str
    attributes: Mapping[str, str]
    seconds: float = 10.0
    compresses: bool = False
    certificate: str = ""
    every: float = 1.0
    metrics_every: float = 60.0
    batch: int = 512


class Exporter:
    """The thread that exports. ``figures``: families of metrics as Prometheus' client has them, asked for in it."""

    def __init__(self, target: Target, *, figures: Callable[[], Iterable[Any]] | None = None) -> None:
        self._target, self._figures = target, figures
        self._stopping = threading.Event()
        self._resource = resource(target)
        self._told_at, self._told_dropped = 0.0, 0
        self._client: Any = None
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Send what is left, within a few seconds."""
        self._stopping.set()
        self._thread.join(LAST_SECONDS)

    def _run(self) -> None:
        figures_at = time.monotonic() + min(self._target.every, self._target.metrics_every)
        while not self._stopping.wait(self._target.every):
            self._export()
            if self._figures and "metrics" in self._target.urls and time.monotonic() >= figures_at:
                figures_at = time.monotonic() + self._target.metrics_every
                self._export_figures()
        self._export()

    def _export(self) -> None:
        for signal, waiting, encode in (("traces", traces.ended, spans), ("logs", traces.lines, log_lines)):
            while batch := _taken(waiting, self._target.batch):
                if signal in self._target.urls:
                    self._send(signal, len(batch), lambda: encode(batch, self._resource))  # noqa: B023 -- called at once
        if (dropped := traces.dropped) != self._told_dropped:
            self._tell(f"{dropped - self._told_dropped} spans and lines were dropped: too many waited")
            self._told_dropped = dropped

    def _export_figures(self) -> None:
        assert self._figures
        figures = self._figures
        self._send("metrics", 0, lambda: metrics(figures(), self._resource))

    def _send(self, signal: str, count: int, encode: Callable[[], bytes]) -> None:
        """Send a batch; never raises."""
        try:
            self._post(signal, count, encode())
        except Exception as error:
            traces.dropped += count
            self._told_dropped += count
            self._tell(f"{signal} could not be exported ({type(error).__name__}); {count} were dropped")

    def _post(self, signal: str, count: int, body: bytes) -> None:
        headers = {"Content-Type": "application/x-protobuf", "User-Agent": f"nanohost/{self._target.version}"}
        if self._target.compresses:
            body, headers["Content-Encoding"] = gzip.compress(body, 1), "gzip"
        wait = FIRST_WAIT
        for tries in range(1, MAX_TRIES + 1):
            said, after = self._try(self._target.urls[signal], body, headers)
            if not said:
                return
            if after is None or tries == MAX_TRIES or self._stopping.is_set():
                break
            self._tell(f"{signal} could not be exported ({said}); it is tried again")
            self._stopping.wait(max(after, wait * random.uniform(1, 1.3)))  # noqa: S311 -- no secret
            wait = min(2 * wait, LONGEST_WAIT)
        traces.dropped += count
        self._told_dropped += count
        self._tell(f"{signal} could not be exported ({said}); {count} were dropped")

    def _try(self, url: str, body: bytes, headers: Mapping[str, str]) -> tuple[str, float | None]:
        """Why it was not taken, or "", and after how many seconds it may be sent again; None: never."""
        import httpx2

        self._client = self._client or _client(self._target)
        try:
            answer = self._client.post(url, content=body, headers={**self._target.headers, **headers})
        except httpx2.HTTPError as error:
            return type(error).__name__, 0.0
        if 200 <= answer.status_code < 300:
            return "", None
        after = answer.headers.get("retry-after", "")
        again = min(float(after), LONGEST_WAIT) if re.fullmatch("[0-9]{1,5}", after) else 0.0
        return f"it answered {answer.status_code}", again if answer.status_code in _MAY_BE_SENT_AGAIN else None

    def _tell(self, said: str) -> None:
        """Once a minute at most: a collector that is away is no news."""
        if time.monotonic() >= self._told_at:
            self._told_at = time.monotonic() + 60
            logger.warning("telemetry: %s", said)


def _client(target: Target) -> Any:
    import httpx2

    verify: Any = ssl.create_default_context(cafile=target.certificate) if target.certificate else True
    return httpx2.Client(timeout=target.seconds, trust_env=False, verify=verify, follow_redirects=False)


def _taken(waiting: deque[Any], most: int) -> list[Any]:
    batch: list[Any] = []
    with suppress(IndexError):
        while len(batch) < most:
            batch.append(waiting.popleft())
    return batch


# --- the exporter of this process --------------------------------------------------------------------------------

_target: Target | None = None
_exporter: Exporter | None = None
_lock = threading.Lock()


def configure(target: Target) -> None:
    """What :func:`start` exports to."""
    global _target
    _target = target


def start(*, figures: Callable[[], Iterable[Any]] | None = None) -> None:
    """Begin to export, if this process does not yet."""
    global _exporter
    with _lock:
        if _target and _exporter is None:
            _exporter = Exporter(_target, figures=figures)


def stop() -> None:
    """Send what is left, and export no more."""
    global _exporter
    with _lock:
        if _exporter:
            _exporter.stop()
        _exporter = None


def _forget() -> None:
    """A fork has no thread."""
    global _exporter, _lock
    _exporter, _lock = None, threading.Lock()
    traces.ended.clear()
    traces.lines.clear()


os.register_at_fork(after_in_child=_forget)


def attributes_of(raw: str) -> dict[str, str]:
    """``key=value,key=value``, percent-encoded, as OTEL_RESOURCE_ATTRIBUTES and OTEL_EXPORTER_OTLP_HEADERS have them;
    raises ValueError, which does not tell a value."""
    found = {}
    for each in filter(None, (part.strip() for part in raw.split(","))):
        key, sign, value = each.partition("=")
        if not sign or not key.strip():
            raise ValueError("expected key=value, separated by commas")
        found[unquote(key.strip())] = unquote(value.strip())
    return found


# --- encoding ----------------------------------------------------------------------------------------------------


def resource(target: Target) -> Any:
    """What tells of this process."""
    from opentelemetry.proto.resource.v1.resource_pb2 import Resource

    made = Resource()
    told: dict[str, Any] = {
        "service.version": target.version,
        "service.instance.id": uuid4().hex,
        "host.name": socket.gethostname(),
        "process.pid": os.getpid(),
        **target.attributes,
        "service.name": target.service,
        "telemetry.sdk.name": SCOPE,
        "telemetry.sdk.language": "python",
    }
    for key, value in told.items():
        _add(made.attributes, key, value)
    return made


def spans(batch: Sequence[traces.Ended], of: Any) -> bytes:
    """An ExportTraceServiceRequest."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    from opentelemetry.proto.trace.v1.trace_pb2 import Status

    request = ExportTraceServiceRequest()
    holder = request.resource_spans.add(resource=of)
    scope = holder.scope_spans.add()
    scope.scope.name = SCOPE
    shown = _shown(batch)
    for (trace, span, parent, began), ended, kind, about, error, values in batch:
        made = scope.spans.add(
            trace_id=bytes.fromhex(trace),
            span_id=bytes.fromhex(span),
            parent_span_id=b"" if parent == "0" * 16 else bytes.fromhex(parent),
            name=shown(_name(kind, about, values)),
            kind=kind.role,
            start_time_unix_nano=began,
            end_time_unix_nano=max(began, ended),
            flags=1,
        )
        for key, value in zip(kind.keys, values, strict=False):
            if value is not None and value != "":
                _add(made.attributes, key, value, shown)
        if kind is traces.REQUEST:
            _add(made.attributes, "http.route", _route(values[1]), shown)
        if kind.operation:
            _add(made.attributes, "gen_ai.operation.name", kind.operation)
        if error:
            made.status.code = Status.StatusCode.STATUS_CODE_ERROR
            _add(made.attributes, "error.type", error, shown)
    return _bytes(request)


def _bytes(request: Any) -> bytes:
    return bytes(request.SerializeToString())


def _name(kind: traces.Kind, about: str, values: Sequence[Any]) -> str:
    if kind is traces.REQUEST:
        return f"{values[0]} {_route(values[1])}"
    return f"{kind.name} {about}" if about else kind.name


def _route(path: str) -> str:
    """The path without what makes each one different."""
    return _IDS.sub("{id}", path)


def _shown(batch: Sequence[traces.Ended]) -> Callable[[str], str]:
    """What is done with each text of a batch: most batches hold no secret, and are looked through at once."""
    values = [value for *_, values in batch for value in values]
    if any(isinstance(value, (list, dict)) for value in values):
        return redact
    texts = [about for _, _, _, about, _, _ in batch]
    for value in values:
        if type(value) is tuple:  # of short words
            texts += map(str, value)
        elif type(value) is str:
            texts.append(value)
    return (lambda text: text) if is_plain("\n".join(texts)) else redact


def _add(attributes: Any, key: str, value: Any, shown: Callable[[str], str] = lambda text: text) -> None:
    made = attributes.add(key=key).value
    if type(value) is str:  # as most are
        made.string_value = _text(shown(value))
    elif isinstance(value, bool):
        made.bool_value = value
    elif isinstance(value, int):
        made.int_value = value
    elif isinstance(value, float):
        made.double_value = value
    elif isinstance(value, tuple):
        for each in value:
            made.array_value.values.add().string_value = _text(shown(str(each)))
    elif isinstance(value, (list, dict)):
        made.string_value = _text(redact_json(json.dumps(value, ensure_ascii=False, default=str)))
    else:
        made.string_value = _text(shown(str(value)))


def _text(text: str) -> str:
    return text[:MAX_TEXT] if text.isascii() else text[:MAX_TEXT].encode("utf-8", "replace").decode()


def log_lines(batch: Sequence[tuple[int, int, str, str]], of: Any) -> bytes:
    """An ExportLogsServiceRequest; the lines were redacted when they were written."""
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

    request = ExportLogsServiceRequest()
    scope = request.resource_logs.add(resource=of).scope_logs.add()
    scope.scope.name = SCOPE
    for at, level, line, trace in batch:
        made = scope.log_records.add(
            time_unix_nano=at,
            observed_time_unix_nano=at,
            # Python's 10 to 50 are OTLP's 5, 9, 13, 17 and 21.
            severity_number=max(1, min(21, 4 * (level // 10) + 1)),
            severity_text=logging.getLevelName(level),
            trace_id=bytes.fromhex(trace),
        )
        made.body.string_value = _text(line)
    return _bytes(request)


def metrics(families: Iterable[Any], of: Any) -> bytes:
    """An ExportMetricsServiceRequest of families of Prometheus' client."""
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    request = ExportMetricsServiceRequest()
    # All web nodes tell the same of the host: not one of them, or a sum would count it several times.
    whole = type(of)()
    of_process = ("service.instance.id", "process.pid", "host.name")
    whole.attributes.extend(each for each in of.attributes if each.key not in of_process)
    scope = request.resource_metrics.add(resource=whole).scope_metrics.add()
    scope.scope.name = SCOPE
    now = time.time_ns()
    for family in families:
        made = scope.metrics.add(name=family.name, description=family.documentation)
        _WRITERS.get(family.type, _write_gauge)(made, family, now)
    return _bytes(request)


def _write_gauge(made: Any, family: Any, now: int) -> None:
    made.gauge.SetInParent()
    _write_numbers(made.gauge.data_points, family, now)


def _write_sum(made: Any, family: Any, now: int) -> None:
    made.sum.aggregation_temporality, made.sum.is_monotonic = 2, True
    _write_numbers(made.sum.data_points, family, now)


def _write_numbers(points: Any, family: Any, now: int) -> None:
    for sample in family.samples:
        point = points.add(time_unix_nano=now, as_double=float(sample.value))
        _label(point, sample.labels)


def _write_summary(made: Any, family: Any, now: int) -> None:
    made.summary.SetInParent()
    for labels, parts in _by_labels(family):
        point = made.summary.data_points.add(time_unix_nano=now, count=int(parts["_count"]), sum=float(parts["_sum"]))
        _label(point, labels)


def _write_histogram(made: Any, family: Any, now: int) -> None:
    made.histogram.aggregation_temporality = 2
    for labels, parts in _by_labels(family):
        buckets = sorted((float(le), int(count)) for le, count in parts["_bucket"].items())
        counts = [count for _, count in buckets]
        point = made.histogram.data_points.add(
            time_unix_nano=now,
            count=counts[-1] if counts else 0,
            sum=float(parts.get("_sum", 0)),
            explicit_bounds=[bound for bound, _ in buckets if bound != float("inf")],
            # Each of Prometheus' has those below it as well.
            bucket_counts=[count - below for count, below in zip(counts, [0, *counts], strict=False)],
        )
        _label(point, labels)


_WRITERS: dict[str, Callable[[Any, Any, int], None]] = {
    "counter": _write_sum,
    "histogram": _write_histogram,
    "summary": _write_summary,
}


def _by_labels(family: Any) -> Iterable[tuple[dict[str, str], dict[str, Any]]]:
    found: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
    for sample in family.samples:
        labels = {name: value for name, value in sample.labels.items() if name != "le"}
        parts = found.setdefault(tuple(labels.items()), {"_bucket": {}})
        suffix = sample.name.removeprefix(family.name)
        if suffix == "_bucket":
            parts["_bucket"][sample.labels["le"]] = sample.value
        else:
            parts[suffix] = sample.value
    return [(dict(labels), parts) for labels, parts in found.items()]


def _label(point: Any, labels: Mapping[str, str]) -> None:
    for key, value in labels.items():
        _add(point.attributes, key, value, redact)
