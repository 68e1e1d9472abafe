"""A collector of OpenTelemetry's: a strict receiver of OTLP over HTTP on loopback, which keeps what it is sent."""

import gzip
import re
import threading
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from google.protobuf.unknown_fields import UnknownFieldSet
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

REQUESTS = {
    "/v1/traces": ExportTraceServiceRequest,
    "/v1/metrics": ExportMetricsServiceRequest,
    "/v1/logs": ExportLogsServiceRequest,
}


@dataclass(frozen=True)
class Span:
    """A span as it was received. ``process``: the id of the service's instance that has sent it."""

    name: str
    trace: str
    id: str
    parent: str
    kind: int
    began: int
    ended: int
    failed: bool
    process: str
    attributes: dict[str, Any] = field(hash=False)


class Collector:
    """Answers 200 unless it is told otherwise: the statuses in order. What breaks the protocol stands in ``faults``."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.raw = bytearray()
        self.headers: list[dict[str, str]] = []
        self.answers: list[int] = []
        self.refused = Counter[int]()
        self.metrics: dict[str, Any] = {}
        self.lines: list[Any] = []
        self._spans: dict[str, Span] = {}
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def spans(self, trace: str = "", name: str = "") -> list[Span]:
        """Those of a trace, in the order in which they began, whose names begin so."""
        with self._lock:
            found = [each for each in self._spans.values() if trace in ("", each.trace) and each.name.startswith(name)]
        return sorted(found, key=lambda each: each.began)

    def take(self, path: str, headers: dict[str, str], body: bytes) -> int:
        with self._lock:
            if self.answers and (status := self.answers.pop(0)) != 200:
                self.refused[status] += 1
                return status
            self.headers.append(headers)
            if path not in REQUESTS or headers.get("content-type") != "application/x-protobuf":
                self.faults.append(f"{path} {headers.get('content-type')}")
                return 415
            if headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            self.raw += body
            request = REQUESTS[path]()
            request.ParseFromString(body)
            self._read(path, request)
        return 200

    def _read(self, path: str, request: Any) -> None:
        if len(UnknownFieldSet(request)):
            self.faults.append(f"{path}: fields that the protocol has not")
        if path == "/v1/traces":
            for each in request.resource_spans:
                process = self._process(each.resource)
                for scope in each.scope_spans:
                    for span in scope.spans:
                        self._keep(span, process)
        elif path == "/v1/logs":
            for each in request.resource_logs:
                self._process(each.resource)
                self.lines += [line for scope in each.scope_logs for line in scope.log_records]
        else:
            for each in request.resource_metrics:
                for scope in each.scope_metrics:
                    self.metrics |= {metric.name: metric for metric in scope.metrics}

    def _process(self, resource: Any) -> str:
        told = _attributes(resource.attributes)
        if not told.get("service.name"):
            self.faults.append("a resource without service.name")
        return str(told.get("service.instance.id", ""))

    def _keep(self, span: Any, process: str) -> None:
        if len(span.trace_id) != 16 or len(span.span_id) != 8 or len(span.parent_span_id) not in (0, 8):
            self.faults.append(f"{span.name}: ids that are none")
        if not 0 < span.start_time_unix_nano <= span.end_time_unix_nano or not span.name or not span.kind:
            self.faults.append(f"{span.name}: no times, name or kind")
        if span.span_id.hex() in self._spans:
            self.faults.append(f"{span.name}: sent twice")
        self._spans[span.span_id.hex()] = Span(
            name=span.name,
            trace=span.trace_id.hex(),
            id=span.span_id.hex(),
            parent=span.parent_span_id.hex(),
            kind=span.kind,
            began=span.start_time_unix_nano,
            ended=span.end_time_unix_nano,
            failed=span.status.code == 2,
            process=process,
            attributes=_attributes(span.attributes),
        )

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                length = self.headers.get("content-length", "")
                body = self.rfile.read(int(length)) if re.fullmatch("[0-9]{1,9}", length) else b""
                status = collector.take(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
                self.send_response(status)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", "0")
                if status in (429, 503):
                    self.send_header("Retry-After", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing to standard error."""

        return Handler


def _attributes(told: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in told:
        kind = each.value.WhichOneof("value")
        value = getattr(each.value, kind)
        found[each.key] = [one.string_value for one in value.values] if kind == "array_value" else value
    return found
