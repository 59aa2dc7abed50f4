"""A collector of spans for tests: it serves the OpenTelemetry protocol over HTTP and keeps what it receives."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

__all__ = ["Collector", "ReceivedSpan", "collector"]

PATIENCE_S = 60.0


@dataclass(frozen=True)
class ReceivedSpan:
    """Ids in hexadecimal digits, `parent` empty for the first span of a trace. `links`: trace ids."""

    name: str
    trace: str
    span: str
    parent: str
    service: str
    instance: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    links: tuple[str, ...]


class Collector:
    def __init__(self) -> None:
        self.address = ""
        self.bodies: list[bytes] = []
        self._lock = threading.Lock()

    @property
    def spans(self) -> list[ReceivedSpan]:
        with self._lock:
            bodies = list(self.bodies)
        return [span for body in bodies for span in _spans(ExportTraceServiceRequest.FromString(body))]

    def add(self, body: bytes) -> None:
        with self._lock:
            self.bodies.append(body)

    def wait(self, trace: str, enough: Callable[[list[ReceivedSpan]], bool]) -> list[ReceivedSpan]:
        """The spans of the trace, in order of their start, once they are enough."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            found = sorted((span for span in self.spans if span.trace == trace), key=lambda span: span.start_ns)
            if enough(found):
                return found
            assert time.monotonic() < deadline, f"not all spans came: {[span.name for span in found]}"
            time.sleep(0.05)


def _spans(request: ExportTraceServiceRequest) -> Iterator[ReceivedSpan]:
    for resource in request.resource_spans:
        of = {each.key: each.value.string_value for each in resource.resource.attributes}
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield ReceivedSpan(
                    span.name,
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    of["service.name"],
                    of["service.instance.id"],
                    span.start_time_unix_nano,
                    span.end_time_unix_nano,
                    {each.key: getattr(each.value, each.value.WhichOneof("value") or "string_value") for each in span.attributes},
                    tuple(link.trace_id.hex() for link in span.links),
                )


@contextmanager
def collector() -> Iterator[Collector]:
    """Serves at a free port of loopback."""
    found = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.add(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.address = f"http://127.0.0.1:{server.server_address[1]}/v1/traces"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
