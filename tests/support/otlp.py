"""An OTLP/HTTP receiver on a thread: what a collector would get, read back into plain values."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import threading
from base64 import b64decode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final


@dataclass(slots=True)
class Received:
    """One span."""

    name: str
    trace_id: str
    id: str
    parent: str
    start_ns: int
    end_ns: int
    kind: int
    attributes: dict[str, Any]
    events: dict[str, int]
    """Name -> time in ns."""
    error: str
    """Description of its status if that is an error."""
    resource: dict[str, Any]
    state: str

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9


@dataclass(slots=True)
class Receiver:
    """What has come; `hangs` makes it take requests and answer none, `discards` keep nothing."""

    url: str = ""
    spans: list[Received] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)
    hangs: threading.Event = field(default_factory=threading.Event)
    closed: threading.Event = field(default_factory=threading.Event)
    discards: bool = False
    batches: int = 0
    protobuf: list[bytes] = field(default_factory=list)
    """Bodies in protobuf: read by `from_protobuf`."""

    def take(self, headers: dict[str, str], body: bytes) -> None:
        self.batches += 1
        if self.discards:
            return
        if headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        self.headers.append(headers)
        self.raw.append(body)
        if headers["content-type"] == "application/x-protobuf":
            self.protobuf.append(body)
            return
        self.read(json.loads(body))

    def read(self, said: dict[str, Any]) -> None:
        """One request in JSON."""
        for of_resource in said["resourceSpans"]:
            resource = _values(of_resource["resource"]["attributes"])
            for of_scope in of_resource["scopeSpans"]:
                self.spans += [_span(each, resource) for each in of_scope["spans"]]

    def roots(self) -> list[Received]:
        """Spans of whole requests."""
        return [span for span in self.spans if span.kind == 2]

    def children(self, of: Received) -> list[Received]:
        """In the order in which they began."""
        found = [span for span in self.spans if span.parent == of.id and span.trace_id == of.trace_id]
        return sorted(found, key=lambda span: span.start_ns)


def _values(pairs: list[dict[str, Any]]) -> dict[str, Any]:
    kinds = {"intValue": int, "doubleValue": float}
    return {
        pair["key"]: kinds.get(kind, lambda value: value)(value)
        for pair in pairs
        for kind, value in pair["value"].items()
    }


def _span(said: dict[str, Any], resource: dict[str, Any]) -> Received:
    status = said.get("status", {})
    return Received(
        name=said["name"],
        trace_id=said["traceId"],
        id=said["spanId"],
        parent=said.get("parentSpanId", ""),
        start_ns=int(said["startTimeUnixNano"]),
        end_ns=int(said["endTimeUnixNano"]),
        kind=said["kind"],
        attributes=_values(said.get("attributes", [])),
        events={event["name"]: int(event["timeUnixNano"]) for event in said.get("events", [])},
        error=status.get("message", "") if status.get("code") == 2 else "",
        resource=resource,
        state=said.get("traceState", ""),
    )


OFFICIAL: Final = next(iter(sorted((Path(__file__).parents[2] / ".tools").glob("otlp-*"))), None)
"""OpenTelemetry's own messages in a folder of their own: they cannot be installed beside those of xds-protos."""
_DECODE: Final = """
import sys
import opentelemetry
opentelemetry.__path__ = [sys.argv[1] + "/opentelemetry"]
from google.protobuf.json_format import MessageToJson
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
for line in sys.stdin:
    message = ExportTraceServiceRequest.FromString(bytes.fromhex(line))
    print(MessageToJson(message, indent=None, use_integers_for_enums=True))
"""


def from_protobuf(bodies: Sequence[bytes]) -> list[dict[str, Any]]:
    """What OpenTelemetry's own package reads, in OTLP's JSON: ids are hexadecimal there."""
    assert OFFICIAL is not None
    said = subprocess.run(
        [sys.executable, "-c", _DECODE, str(OFFICIAL)],
        input="\n".join(body.hex() for body in bodies),
        capture_output=True,
        text=True,
        check=True,
    )
    requests = [json.loads(line) for line in said.stdout.splitlines()]
    for request in requests:
        for span in _spans(request):
            for holder in (span, *span.get("links", ())):
                for name in {"traceId", "spanId", "parentSpanId"} & holder.keys():
                    holder[name] = b64decode(holder[name]).hex()
    return requests


def _spans(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for of_resource in request["resourceSpans"]:
        for of_scope in of_resource["scopeSpans"]:
            yield from of_scope["spans"]


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver that listens."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if receiver.hangs.is_set():
                receiver.closed.wait(30)
                return
            assert self.path == "/v1/traces", self.path
            receiver.take({name.lower(): value for name, value in self.headers.items()}, body)
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    receiver.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield receiver
    finally:
        receiver.closed.set()
        server.shutdown()
        server.server_close()
