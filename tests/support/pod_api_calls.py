"""Calls of the pod API as a gateway makes them, and a holder that writes down what it is told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from ballast_api.signatures import PROOF, RECIPIENT, Signed
from ballast_gateway.podapi import messages
from ballast_gateway.podapi.messages import Body, Message, Part, Snapshot
from ballast_gateway.podapi.refusals import OrderRefused
from tests.support.gateway_kit import Answer, raw_exchange

TOKEN = b"0123456789abcdef-fleet"


@dataclass
class NotedHolder:
    """Accepts all, or refuses all with `refuses`."""

    orders: list[Body | bool] = field(default_factory=list)
    refuses: OrderRefused | None = None
    is_ready: bool = True

    def ready(self) -> bool:
        return self.is_ready

    def _note(self, order: Body | bool) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.orders.append(order)

    move = leave = cancel = drain = take_inventory = _note


def call_bytes(method: str, target: str, body: bytes = b"", *headers: str, token: bytes = TOKEN, to: str = "") -> bytes:
    """A call that is signed for this recipient."""
    authorization = Signed(token, method, target, body, time.time(), to=to).authorization
    return request_bytes(method, target, body, f"authorization: {authorization}", *headers)


def request_bytes(method: str, target: str, body: bytes, *headers: str) -> bytes:
    """A call with these headers."""
    lines = [f"{method} {target} HTTP/1.1", "host: holder", f"content-length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


async def call(port: int, method: str, target: str, body: bytes = b"", *, token: bytes = TOKEN) -> Answer:
    """The answer to a signed call, whose own proof is right unless it is a 401. It is signed once there is a
    connection: on a machine that stands still for minutes a signature grows too old."""
    signed: list[Signed] = []
    to = await recipient_of(port)

    def request() -> bytes:
        signed.append(Signed(token, method, target, body, time.time(), to=to))
        return request_bytes(method, target, body, f"authorization: {signed[0].authorization}")

    (answer,) = await raw_exchange(port, request, answers=1)
    assert answer.status == 401 or signed[0].is_proof(answer.headers[PROOF])
    return answer


async def recipient_of(port: int) -> str:
    """For whom to sign there."""
    (answer,) = await raw_exchange(port, call_bytes("GET", messages.STATE), answers=1)
    return answer.headers[RECIPIENT]


async def order(port: int, target: str, body: Body, method: str = "POST") -> Answer:
    """A signed order."""
    return await call(port, method, target, messages.write(body))


class Lines:
    """Reads chunked lines."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, patience_s: float) -> None:
        self.reader, self.writer, self.patience_s = reader, writer, patience_s
        self._lines: list[bytes] = []
        self._seq: int | None = None

    async def raw(self) -> bytes:
        """The next line. Raises `EOFError`."""
        while not self._lines:
            async with asyncio.timeout(self.patience_s):
                head = await self.reader.readline()
                if not head.strip() or int(head, 16) == 0:
                    raise EOFError
                chunk = (await self.reader.readexactly(int(head, 16) + 2))[:-2]
            assert chunk.endswith(b"\n")
            self._lines = chunk.splitlines()
        return self._lines.pop(0)

    async def next(self) -> Message:
        """The next one; they are numbered without a gap."""
        message = messages.decode(await self.raw())
        step = 0 if isinstance(message, Part) else 1
        assert self._seq is None or message.seq == self._seq + step
        self._seq = message.seq
        return message

    async def until(self, kind: type[Message]) -> Message:
        """The next one of this kind."""
        while not isinstance(message := await self.next(), kind):
            pass
        return message


@asynccontextmanager
async def listening(
    port: int, patience_s: float = 20.0, headers: tuple[str, ...] = ()
) -> AsyncIterator[tuple[Snapshot, Lines]]:
    """A reader of events, which waits as long for each, and what it was sent first."""
    to = await recipient_of(port)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 25)
    try:
        writer.write(call_bytes("GET", messages.EVENTS, b"", *headers, to=to))
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        lines = Lines(reader, writer, patience_s)
        snapshot = await lines.next()
        assert isinstance(snapshot, Snapshot)
        yield snapshot, lines
    finally:
        writer.close()
