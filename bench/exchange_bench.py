"""What one exchange costs the picker face without its transport: processor time, in this process, Envoy not needed.

From the bytes of Envoy's messages to the bytes of the answers: codec, session, prompt, driver, Director, decision log,
metrics and request log, but no gRPC and no sockets. The messages are those of a real Envoy 1.40 in full-duplex mode:
request headers, body, end of body, response headers, one chunk, end. `WINDOW` exchanges are open at any time beside the
requests in flight, and endpoints are scraped between two turns. The set-ups take turns; medians are shown. The stub
Director names a fixed pair of endpoints: what is above its row is the decision.

Run by `picker_bench.py`, before its part behind Envoy.
"""

from __future__ import annotations

import json
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TextIO, cast

from envoy.config.core.v3 import base_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from google.protobuf import struct_pb2
from prometheus_client import CollectorRegistry

from ballast_core import kernel
from ballast_core.directing.director import Director
from ballast_core.model import Endpoint, EndpointId, Observation, Role
from ballast_core.model.effects import Dispatch, Effect
from ballast_core.model.events import EndpointObserved, Event, RequestArrived
from ballast_gateway.decisions import DecisionLog
from ballast_gateway.driver import Driver
from ballast_gateway.logs import LineWriter, RequestLog
from ballast_gateway.metrics import Metrics
from ballast_gateway.picker import codec
from ballast_gateway.picker.exchange import ExchangeSettings
from ballast_gateway.picker.face import PickerFace
from ballast_gateway.picker.messages import Reply
from ballast_gateway.picker.transport import Session
from ballast_gateway.prompts import PromptReader
from ballast_gateway.records import RequestRecord
from bench.decision_bench import fleet

MODEL = "qwen3-32b"
DEFAULT, STUB = "ballast", "stub"
SIZES = ((4, 40), (100, 10_000))
"""(decode endpoints, requests in flight); a quarter as many prefill endpoints beside them."""
PROMPTS = {"100 tokens": 400, "4,000 tokens": 16_000}
"""Characters of a prompt."""
CHUNKS = 33
"""Chunks of the long answer, which tells what each one costs."""
WINDOW = 32
GOAL_US = 100.0
"""One exchange under the default policy, without the transport."""
TURN = 64
"""Exchanges before another set-up has its turn."""
LINE = "{:<16} {:<10} {:>9} {:>9}  {:<13} {:>12} {:>14}"


# --- what Envoy sends ---------------------------------------------------------------------------------------------


def _headers(**pairs: str) -> Any:
    values = [base_pb2.HeaderValue(key=key, raw_value=value.encode()) for key, value in pairs.items()]
    return pb.HttpHeaders(headers=base_pb2.HeaderMap(headers=values))


def _metadata() -> Any:
    fields = struct_pb2.Struct()
    fields.update({"x-gateway-destination-endpoint": "10.0.0.1:8000"})
    return base_pb2.Metadata(filter_metadata={"envoy.lb": fields})


def _bytes(**fields: Any) -> bytes:
    return bytes(pb.ProcessingRequest(**fields).SerializeToString())


def request_messages(request_id: str, chars: int) -> list[bytes]:
    """The request's half of an exchange."""
    words = 'All "happy" families are alike;\nevery unhappy family is unhappy in its own way. '
    document = {
        "model": MODEL,
        "prompt": (words * (chars // len(words) + 1))[:chars],
        "max_tokens": 500,
        "stream": True,
    }
    body = json.dumps(document).encode()
    sent = {
        ":authority": "llm.example.com",
        ":path": "/v1/completions",
        ":method": "POST",
        ":scheme": "http",
        "accept": "*/*",
        "accept-encoding": "gzip, deflate",
        "user-agent": "OpenAI/Python 2.8.0",
        "authorization": "Bearer sk-0123456789abcdef",
        "content-length": str(len(body)),
        "content-type": "application/json",
        "x-forwarded-proto": "http",
        "x-request-id": request_id,
    }
    modes = pb.ProtocolConfiguration(request_body_mode=4, response_body_mode=4)
    none = base_pb2.Metadata()
    return [
        _bytes(request_headers=_headers(**sent), metadata_context=none, protocol_config=modes),
        _bytes(request_body=pb.HttpBody(body=body), metadata_context=none),
        _bytes(request_body=pb.HttpBody(end_of_stream=True), metadata_context=none),
    ]


def response_messages(chunks: int) -> list[bytes]:
    """The response's half: a stream of so many chunks."""
    head = {":status": "200", "content-type": "text/event-stream", "x-envoy-upstream-service-time": "12"}
    event = b'data: {"id":"cmpl-0123456789abcdef","object":"text_completion","choices":[{"text":" token"}]}\n\n'
    return [
        _bytes(response_headers=_headers(**head), metadata_context=_metadata()),
        *[_bytes(response_body=pb.HttpBody(body=event), metadata_context=_metadata())] * chunks,
        _bytes(response_body=pb.HttpBody(end_of_stream=True), metadata_context=_metadata()),
    ]


# --- the picker, without its transport ----------------------------------------------------------------------------


class Nowhere:
    """Takes log lines."""

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        pass


class NoLoop:
    """The log's timer: lines are written once in a turn instead."""

    def call_later(self, delay_s: float, call: Callable[[], None]) -> None:
        pass


class StubDirector:
    """Places each request on the same two endpoints."""

    def __init__(self, like: Director) -> None:
        self.settings, self.ledger = like.settings, like.ledger
        self._prefill, self._decode = (
            Endpoint(EndpointId(f"{role}-0"), "10.0.0.1:8000", role) for role in (Role.PREFILL, Role.DECODE)
        )

    def on_event(self, event: Event, now_s: float) -> list[Effect]:
        if isinstance(event, RequestArrived):
            return [Dispatch(event.request.id, self._prefill, self._decode)]
        return []


@dataclass(frozen=True, slots=True)
class Load:
    """What an exchange carries."""

    prompt: str
    chunks: int

    def requests(self) -> Iterator[list[bytes]]:
        """The request's half of one exchange after the other; ids come again only when they are free."""
        made = [request_messages(f"c2c0f1b6-15dc-4d1a-abbc-{n:012x}", PROMPTS[self.prompt]) for n in range(2 * WINDOW)]
        while True:
            yield from made


class Picker:
    """One picker with the exchanges that are open on it."""

    def __init__(self, director: str, endpoints: int, in_flight: int, *, compiled: bool) -> None:
        self.director, self.endpoints, self.in_flight, self.compiled = director, endpoints, in_flight, compiled
        kernel.use(compiled)
        self._fleet = fleet(DEFAULT if director == STUB else director, endpoints, in_flight)
        deciding: Any = StubDirector(self._fleet.director) if director == STUB else self._fleet.director
        start_s = time.monotonic()
        self._metrics = metrics = Metrics(CollectorRegistry(), in_flight=lambda: len(deciding.ledger))
        self.driver = Driver(
            deciding,
            clock=lambda: time.monotonic() - start_s + 1.0,
            listeners=(DecisionLog(kept=1000, unix_s=0.0), metrics.effect),
            on_decision_s=metrics.decision,
        )
        self._lines = LineWriter(cast("TextIO", Nowhere()), cast("Any", NoLoop()))
        self._log = RequestLog(self._lines, unix_s=0.0)
        prompts = PromptReader(self.driver.abilities.beliefs)
        settings = ExchangeSettings(max_body_bytes=1 << 24, served_models=(MODEL,), prompts=prompts)
        self._face = PickerFace(self.driver, settings, new_id=lambda: "made", on_record=self.ended)
        self._open: deque[Session] = deque()

    def ended(self, record: RequestRecord) -> None:
        """As the gateway does."""
        self._metrics.request(record)
        self._log(record)

    def scrape(self) -> None:
        """Every endpoint answers."""
        self._lines.flush()
        if self.director != STUB:
            now_s = self.driver.now_s()
            for endpoint in self._fleet.endpoints:
                self.driver.feed(EndpointObserved(endpoint, Observation(now_s, running=100, waiting=0)))

    def turn_us(self, load: Load) -> float:
        """Processor time of an exchange: `TURN` begin, and as many end."""
        kernel.use(self.compiled)
        self.scrape()
        requests, response = load.requests(), response_messages(load.chunks)
        for _ in range(WINDOW):
            self._begin(next(requests))
        start_s = time.process_time()
        for _ in range(TURN):
            self._begin(next(requests))
            self._end(response)
        used_s = time.process_time() - start_s
        while self._open:
            self._end(response)
        return used_s / TURN * 1e6

    def _begin(self, messages: list[bytes]) -> None:
        session = self._face.open(_never)
        self._take(session, messages)
        self._open.append(session)

    def _end(self, messages: list[bytes]) -> None:
        session = self._open.popleft()
        self._take(session, messages)
        session.close(broken=False)

    def _take(self, session: Session, messages: list[bytes]) -> None:
        for message in messages:
            for reply in session.receive(codec.decode(message)):
                codec.encode(reply)


def _never(replies: list[Reply]) -> None:
    raise RuntimeError("no request is held here")


# --- turns --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One set-up; medians of the turns, in microseconds of processor time."""

    director: str
    arithmetic: str
    endpoints: int
    in_flight: int
    prompt: str
    exchange_us: float
    chunk_us: float


def pickers() -> Iterator[Picker]:
    """The stub, then each Director at each size, by numpy and by the compiled kernel where it is installed."""
    yield Picker(STUB, *SIZES[0], compiled=kernel.installed())
    for size in SIZES:
        yield Picker("least-requests", *size, compiled=kernel.installed())
        for compiled in (False, True) if kernel.installed() else (False,):
            yield Picker(DEFAULT, *size, compiled=compiled)


def measure(turns: int) -> list[Row]:
    """Every picker with every load, in turns."""
    cases = [(picker, Load(prompt, chunks)) for picker in pickers() for prompt in PROMPTS for chunks in (1, CHUNKS)]
    used_us: dict[tuple[Picker, Load], list[float]] = {case: [] for case in cases}
    for _ in range(turns):
        for picker, load in cases:
            used_us[picker, load].append(picker.turn_us(load))
    rows = []
    for picker, load in cases:
        if load.chunks > 1:
            continue
        us = statistics.median(used_us[picker, load])
        long_us = statistics.median(used_us[picker, Load(load.prompt, CHUNKS)])
        kernel.use(picker.compiled)
        rows.append(
            Row(
                director=picker.director,
                arithmetic="-" if picker.director != DEFAULT else kernel.name(),
                endpoints=picker.endpoints,
                in_flight=picker.in_flight,
                prompt=load.prompt,
                exchange_us=us,
                chunk_us=(long_us - us) / (CHUNKS - 1),
            )
        )
    return rows


def show(rows: list[Row]) -> None:
    """Print a table."""
    print(LINE.format("director", "by", "endpoints", "in flight", "prompt", "us/exchange", "us/more chunk"))
    for row in rows:
        values = row.director, row.arithmetic, row.endpoints, row.in_flight, row.prompt
        print(LINE.format(*values, f"{row.exchange_us:.0f}", f"{row.chunk_us:.1f}"))
    print(f"goal: {GOAL_US:.0f} us of an exchange under {DEFAULT}", flush=True)
