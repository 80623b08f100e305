"""One gateway, its engines and a client, all in one process and without sockets; and what must hold of them.

1. What a client gets is HTTP/1.1 that a strict parser takes: a head before any byte, one answer for one request.
2. The tokens that it gets are numbered from 0, none missing, none twice; all of them where the answer ends well.
3. An engine is given exactly the tokens that the client has seen, as JSON.
4. Each request ends once, and leaves nothing in the ledger.
5. No exception leaves its place: none comes to the event loop, none is logged, no answer is our 500.

The second and third hold for answers that are changed in their parts; of one that is changed byte by byte, or that says
what is not so, no text can be known.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import httptools

from ballast_api.gateway_settings import GatewaySettings
from ballast_gateway.app import Gateway
from bench.reliability.fuzzing import answers, mutations
from bench.reliability.fuzzing.answers import Reply, WrongIds
from bench.reliability.fuzzing.wires import Wire, WiredLoop

MODELS = b'{"object":"list","data":[{"id":"tiny","object":"model","max_model_len":4096}]}'
METRICS = b"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0\n"
ENDPOINTS = {"p0": "prefill", "p1": "prefill", "d0": "decode", "d1": "decode", "d2": "decode", "f0": "flexible"}
PATIENCE_S = 5.0


@dataclass(slots=True)
class Case:
    """One request: what is asked, and what engines do with it."""

    name: str
    rng: Random
    body: dict[str, Any] = field(default_factory=dict)
    chat: bool = False
    tokens: int = 0
    mutated: int = 0
    """Answers that were mutated."""
    lied: bool = False
    raw: bool = False
    problems: list[str] = field(default_factory=list)
    happened: list[str] = field(default_factory=list)
    """For whoever looks into a failure."""


class Engine:
    """One connection of an engine: takes requests, answers them."""

    def __init__(self, world: World, protocol: asyncio.Protocol, address: str) -> None:
        self._world = world
        self._address = address
        self._buffer = b""
        self._waiting: list[Callable[[], None]] = []
        self.wire = Wire(protocol, self._read)
        self.wire.on_reading = self._go_on

    def _read(self, data: bytes) -> None:
        self._buffer += data
        head, separator, body = self._buffer.partition(b"\r\n\r\n")
        if not separator:
            return
        at = head.lower().find(b"content-length: ")
        length = int(head[at + 16 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if len(body) >= length:
            self._buffer = body[length:]
            self._answer(head, body[:length])

    def _answer(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"GET "):
            page = MODELS if b"/v1/models" in head.partition(b"\r\n")[0] else METRICS
            self._send((b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(page), page),), "")
            return
        delivery = self._world.answer(self._address, head, body)
        self._send(delivery.pieces, delivery.ends)

    def _send(self, pieces: tuple[bytes, ...], ends: str) -> None:
        self._waiting += [lambda piece=piece: self.wire.give(piece) for piece in pieces]  # type: ignore[misc]
        if ends:
            error = ConnectionResetError(104, "Connection reset by peer") if ends == "reset" else None
            self._waiting.append(lambda: self.wire.lose(error))
        asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        if self._waiting and self.wire.reading and not self.wire.is_closing():
            self._waiting.pop(0)()
            if self._waiting:
                asyncio.get_running_loop().call_soon(self._go_on)


class _Answer:
    """The client's side: parses strictly what it gets."""

    def __init__(self) -> None:
        self.status = 0
        self.body = b""
        self.heads = self.wholes = 0
        self.problem = ""
        self.over = False
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        """Bytes arrive."""
        if self.wholes:
            self.problem = self.problem or f"bytes after the end: {data[:80]!r}"
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.problem = self.problem or f"not HTTP: {error}: {data[:80]!r}"
            self.over = True

    def on_headers_complete(self) -> None:
        self.heads += 1
        self.status = self._parser.get_status_code()

    def on_body(self, part: bytes) -> None:
        self.body += part

    def on_message_complete(self) -> None:
        self.wholes += 1
        self.over = True


class _Complaints(logging.Handler):
    """Keeps what is logged as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(logging.Formatter().format(record))


class World:
    """Everything around the gateway. `one` tries a request; the loop must be a `WiredLoop`."""

    def __init__(self, folder: Path, seed: int, settings: dict[str, Any] | None = None) -> None:
        entries = [
            {"name": name, "address": f"127.0.0.1:{1 + number}", "role": role}
            for number, (name, role) in enumerate(ENDPOINTS.items())
        ]
        file = folder / "endpoints.yaml"
        file.write_text(json.dumps({"endpoints": entries}), encoding="utf-8")
        data: dict[str, Any] = {
            "model": {"servedNames": ["tiny"]},
            "discovery": {"file": str(file)},
            "listeners": {"host": "127.0.0.1", "proxy": 0, "admin": 0},
            "scrape": {"intervalS": 3600.0},
            "health": {"maxEjectedRatio": 0.0, "retryRatio": 100.0},
            **(settings or {}),
        }
        self._settings = GatewaySettings.parse(data)
        self._seed = seed
        self._complaints = _Complaints()
        self._case: Case | None = None
        self._ended: list[str] = []

    async def __aenter__(self) -> World:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, WiredLoop)
        self._loop = loop
        loop.dial = self._dial
        loop.set_exception_handler(self._escaped)
        logging.getLogger().addHandler(self._complaints)
        self._gateway = Gateway(self._settings, out=io.StringIO())
        self._listen = self._gateway._ended
        self._gateway._ended = self._note_end  # type: ignore[method-assign]
        await self._gateway.start()
        async with asyncio.timeout(PATIENCE_S):
            while not all(  # noqa: ASYNC110 - what is waited for has no event of its own
                member.state == "ready" for member in self._gateway.fleet.members.values()
            ):
                await asyncio.sleep(0.01)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._gateway.close()
        logging.getLogger().removeHandler(self._complaints)

    def _dial(self, protocol: asyncio.Protocol, host: str, port: int) -> Wire:
        if self._case is not None and self._case.rng.random() < 0.02:
            raise ConnectionRefusedError(111, "Connection refused")
        return Engine(self, protocol, f"{host}:{port}").wire

    def _escaped(self, _: object, context: dict[str, Any]) -> None:
        self._complaints.lines.append(f"{context.get('exception')!r}: {context.get('message')}")

    def _note_end(self, record: Any) -> None:
        self._ended.append(record.id)
        if record.reason == "internal-error":
            self._complaints.lines.append("an answer of ours is 500")
        self._listen(record)

    # --- engines ----------------------------------------------------------------------------------------------------

    def answer(self, address: str, head: bytes, body: bytes) -> mutations.Delivery:
        """What the engine at this address answers; notes what is wrong with what it is given."""
        case = self._case
        if case is None:
            return mutations.delivered(Reply(status=b"HTTP/1.1 503 X"), Random(0), mutate=False)
        try:
            document = json.loads(body)
            ids = answers.given_ids(document, chat=case.chat)
        except (ValueError, KeyError, TypeError, WrongIds) as error:
            case.happened.append(f"{address} was asked {body[:500]!r}")
            if not (case.raw or case.lied):
                case.problems.append(f"what an engine was given: {error!r}")
            return mutations.delivered(Reply(status=b"HTTP/1.1 400 X"), Random(0), mutate=False)
        done = len(ids) - len(answers.PROMPT)
        reply = answers.reply_to(document, chat=case.chat, tokens=max(case.tokens, done), ids=ids)
        rng = case.rng
        mutate = rng.random() < 0.75
        names = []
        if mutate:
            case.mutated += 1
            for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
                mutation = rng.choice(mutations.OF_PARTS)
                mutation(reply, rng)
                names.append(mutation.__name__)
        delivery = mutations.delivered(reply, rng, mutate=mutate)
        case.lied, case.raw = case.lied or reply.lies, case.raw or reply.raw
        case.happened.append(f"{address} was asked {body[:300]!r} and answered ({names}, {delivery.ends or 'stays'}):")
        case.happened += [f"    {piece[:400]!r}" for piece in delivery.pieces[:40]]
        return delivery

    # --- clients ----------------------------------------------------------------------------------------------------

    async def one(self, number: int) -> Case:
        """Try request number `number`, which with the seed decides everything; its problems are none if all is well."""
        case = self._case = self._new_case(number)
        answer = _Answer()
        raw = json.dumps(case.body).encode()
        path = "/v1/chat/completions" if case.chat else "/v1/completions"
        head = f"POST {path} HTTP/1.1\r\nhost: g\r\nx-request-id: {case.name}\r\ncontent-length: {len(raw)}\r\n\r\n"
        wire = self._loop.call(self._gateway.ports["proxy"], answer.feed)
        wire.give(head.encode() + raw)
        leaves = case.rng.random() < 0.03
        self._tease(wire, case, leaves=leaves)
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not (answer.over or wire.lost or self._complaints.lines):  # noqa: ASYNC110 - whichever comes first, at any turn
                    await asyncio.sleep(0)
        except TimeoutError:
            case.problems.append("no end")
        wire.lose(None)
        for _ in range(6):
            await asyncio.sleep(0)
        self._judge(case, answer, left=leaves)
        self._case = None
        return case

    def _new_case(self, number: int) -> Case:
        rng = Random(zlib.crc32(f"{self._seed} {number}".encode()) + number)
        case = Case(f"c{number}", rng, chat=rng.random() < 0.4, tokens=rng.choice([1, 2, 5, 12]))
        case.body = {"model": "tiny", "stream": rng.random() < 0.75, "max_tokens": case.tokens}
        case.body |= {"messages": [{"role": "user", "content": "abc"}]} if case.chat else {"prompt": "abc"}
        if case.body["stream"] and rng.random() < 0.4:
            case.body["stream_options"] = {"include_usage": True}
        if rng.random() < 0.15:
            case.body["return_token_ids"] = True
        if rng.random() < 0.2:
            case.body |= {"seed": 1, "temperature": 0.8}
        return case

    def _tease(self, wire: Wire, case: Case, *, leaves: bool) -> None:
        """The client may be slow for a while, or leave."""
        protocol, rng = wire._protocol, case.rng
        if rng.random() < 0.1:
            protocol.pause_writing()
            self._loop.call_later(0.001, protocol.resume_writing)
        if leaves:
            self._loop.call_later(0.0005 * rng.random(), wire.lose, None)

    def _judge(self, case: Case, answer: _Answer, *, left: bool) -> None:
        problems = case.problems
        problems += [answer.problem] if answer.problem else []
        problems += [f"it has {answer.heads} heads"] if answer.heads > 1 else []
        if not (case.raw or case.lied):
            problems += self._judge_tokens(case, answer)
        if self._ended.count(case.name) != 1:
            problems.append(f"it ended {self._ended.count(case.name)} times")
        if in_flight := len(self._gateway.driver.director.ledger):
            problems.append(f"the ledger has {in_flight} requests")
        problems += self._complaints.lines
        self._complaints.lines.clear()
        self._ended.clear()
        if problems:
            with suppress(ValueError):
                case.happened.insert(0, f"asked {json.dumps(case.body)}")
            case.happened.append(f"the client got {answer.status}: {answer.body[:3000]!r}")

    @staticmethod
    def _judge_tokens(case: Case, answer: _Answer) -> list[str]:
        if answer.status != 200:
            return []
        numbers = answers.shown(answer.body)
        if numbers != list(range(len(numbers))):
            return [f"tokens lost or doubled: {numbers}"]
        ends_well = answer.wholes and (not case.body["stream"] or answer.body.rstrip().endswith(answers.DONE))
        if ends_well and len(numbers) != case.tokens:
            return [f"it ends well with {len(numbers)} of {case.tokens} tokens"]
        return []
