"""A tiny HTTP/1.1 server on loopback that records what it is asked: the pod behind a proxy, without an engine.

It answers scrapes with the number of requests that it is answering, and does not record them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as it arrived. Repeated headers are joined by a comma."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    trailers: dict[str, str]


@dataclass(slots=True)
class Upstream:
    """Answers JSON that names itself; with `"stream": true` in the body, server-sent events, one per release."""

    port: int = 0
    seen: list[Seen] = field(default_factory=list)
    status: int = 200
    events: int = 3
    paced: asyncio.Semaphore | None = None
    """If set, one event is sent per permit."""
    held: asyncio.Event | None = None
    """If set, streams wait for it after their first event."""
    running: int = 0
    refuse: Callable[[], None] = lambda: None
    """Take no more connections, and close those that are open."""
    broken: int = 0
    """Connections that the other side broke off in the middle of an answer."""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


@asynccontextmanager
async def upstream() -> AsyncIterator[Upstream]:
    """A running one."""
    made = Upstream()
    connections: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        try:
            while await _one(made, reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            connections.discard(task)
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, limit=1 << 24)
    made.port = server.sockets[0].getsockname()[1]

    def refuse() -> None:
        server.close()
        for task in list(connections):
            task.cancel()

    made.refuse = refuse
    try:
        yield made
    finally:
        server.close()
        for task in list(connections):
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


async def _one(made: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    line = await reader.readline()
    if not line:
        return False
    method, path, _ = line.decode("latin-1").split(" ", 2)
    headers = await _headers(reader)
    trailers: dict[str, str] = {}
    if headers.get("transfer-encoding") == "chunked":
        body, trailers = await _chunked(reader)
    else:
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    if path == "/metrics":
        page = "".join(f"vllm:{name} {value}\n" for name, value in _gauges(made)).encode()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(page) + page)
        await writer.drain()
        return True
    made.seen.append(Seen(method, path, headers, body, trailers))
    made.running += 1
    try:
        await _answer(made, body, reader, writer)
    finally:
        made.running -= 1
    return True


def _gauges(made: Upstream) -> list[tuple[str, int]]:
    return [("num_requests_running", made.running), ("num_requests_waiting", 0), ("kv_cache_usage_perc", 0)]


async def _answer(made: Upstream, body: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        streaming = bool(json.loads(body).get("stream"))
    except (ValueError, AttributeError):
        streaming = False
    if streaming:
        await _stream(made, reader, writer)
    else:
        answer = json.dumps({"served_by": made.address, "body_bytes": len(body)}).encode()
        head = f"HTTP/1.1 {made.status} X\r\ncontent-type: application/json\r\ncontent-length: {len(answer)}\r\n\r\n"
        writer.write(head.encode() + answer)
    await writer.drain()


async def _headers(reader: asyncio.StreamReader) -> dict[str, str]:
    headers: dict[str, str] = {}
    while line := (await reader.readline()).rstrip(b"\r\n"):
        name, _, value = line.decode("latin-1").partition(":")
        key, text = name.lower(), value.strip()
        headers[key] = f"{headers[key]},{text}" if key in headers else text
    return headers


async def _chunked(reader: asyncio.StreamReader) -> tuple[bytes, dict[str, str]]:
    chunks: list[bytes] = []
    while size := int(await reader.readline(), 16):
        chunks.append(await reader.readexactly(size))
        await reader.readexactly(2)
    return b"".join(chunks), await _headers(reader)


async def _stream(made: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    gone = asyncio.create_task(reader.read(1))
    try:
        for n in range(made.events):
            if made.paced is not None:
                permit = asyncio.create_task(made.paced.acquire())
                await asyncio.wait({permit, gone}, return_when=asyncio.FIRST_COMPLETED)
                permit.cancel()
                if gone.done():
                    made.broken += 1
                    raise ConnectionResetError
            event = f"data: {json.dumps({'n': n, 'served_by': made.address})}\n\n".encode()
            writer.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")
            await writer.drain()
            if made.held is not None:
                await made.held.wait()
    finally:
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
    writer.write(b"0\r\n\r\n")
