"""An engine whose every byte the test chooses: raw HTTP/1.1 on loopback, with vLLM's gauges on /metrics."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

METRICS = b"""# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 0.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="tiny"} 0.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.0
"""
HANDLE = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_engine_id": "engine-1",
    "remote_block_ids": [[1, 2, 3]],
    "remote_host": "127.0.0.1",
    "remote_port": 5600,
    "remote_request_id": "cmpl-x",
}


@dataclass(frozen=True, slots=True)
class Asked:
    """One request to generate, as it came over the wire."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    raw: bytes


Script = Callable[[Asked, asyncio.StreamWriter], Awaitable[None]]


def json_reply(body: object, status: int = 200, extra: bytes = b"") -> bytes:
    raw = json.dumps(body).encode()
    return (
        b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n" % (status, extra, len(raw))
        + raw
    )


def completion(text: str = "hello", tokens: int = 1, **more: object) -> dict[str, object]:
    return {
        "id": "cmpl-1",
        "object": "text_completion",
        "choices": [{"index": 0, "text": text, "finish_reason": "length"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": tokens, "total_tokens": 3 + tokens},
        **more,
    }


async def prefill_script(asked: Asked, writer: asyncio.StreamWriter) -> None:
    """A well-behaved prefill engine: one token and a handle."""
    writer.write(json_reply(completion("a", kv_transfer_params=HANDLE)))


async def decode_script(asked: Asked, writer: asyncio.StreamWriter) -> None:
    """A well-behaved decode engine: three tokens, streamed if asked so; with ids and usage if asked for both."""
    if asked.body.get("stream_options") and asked.body.get("return_token_ids"):
        events = vllm_events(["a", "b", "c"], usage=True)
        writer.write(SSE_HEAD + b"".join(chunk(event) for event in events) + b"0\r\n\r\n")
    elif asked.body.get("stream"):
        writer.write(SSE_HEAD + b"".join(chunk(event) for event in sse_events(["a", "b", "c"])) + b"0\r\n\r\n")
    else:
        writer.write(json_reply(completion("abc", tokens=3)))


SSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"


def sse_events(texts: list[str]) -> list[bytes]:
    """One event for each text, and [DONE]."""
    events = [
        b"data: %b\n\n" % json.dumps({"choices": [{"index": 0, "text": text, "finish_reason": None}]}).encode()
        for text in texts
    ]
    return [*events, b"data: [DONE]\n\n"]


def vllm_events(texts: list[str], *, prompt: Sequence[int] = (1, 2, 3), usage: bool = False) -> list[bytes]:
    """The stream of a completion byte by byte as vLLM writes it, with token ids: one a text, 10 and so on."""
    front = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "tiny"}
    documents: list[dict[str, Any]] = []
    for number, text in enumerate(texts):
        last = number == len(texts) - 1
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": "length" if last else None}
        choice |= {"stop_reason": None, "prompt_token_ids": None if number else list(prompt)}
        documents.append({**front, "choices": [{**choice, "token_ids": [7 + len(prompt) + number]}]})
    if usage:
        total = len(prompt) + len(texts)
        counts = {"prompt_tokens": len(prompt), "total_tokens": total, "completion_tokens": len(texts)}
        documents.append({**front, "choices": [], "usage": counts})
    bodies = [json.dumps(document, separators=(",", ":")).encode() for document in documents]
    return [*(b"data: %b\n\n" % body for body in bodies), b"data: [DONE]\n\n"]


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@dataclass(slots=True)
class ScriptedEngine:
    """Records what it is asked and answers by its script."""

    script: Script
    port: int = 0
    asked: list[Asked] = field(default_factory=list)
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a client left while its request was being answered."""
    connections: int = 0
    metrics: bytes = METRICS
    scrapes: int = 0
    metrics_status: int = 200
    close_after: bool = False
    """Close every connection after one answer, without saying so."""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


@asynccontextmanager
async def scripted_engine(script: Script) -> AsyncIterator[ScriptedEngine]:
    """A running one."""
    engine = ScriptedEngine(script)
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        engine.connections += 1
        try:
            while await _serve_one(engine, reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 25)
    engine.port = server.sockets[0].getsockname()[1]
    try:
        yield engine
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _serve_one(engine: ScriptedEngine, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    line = await reader.readline()
    if not line:
        return False
    method, path, _ = line.decode("latin-1").split(" ", 2)
    headers: dict[str, str] = {}
    while (header := await reader.readline()) not in (b"\r\n", b""):
        name, _, value = header.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    raw = await reader.readexactly(int(headers.get("content-length", "0")))
    if method == "GET":
        engine.scrapes += 1
        writer.write(
            b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (engine.metrics_status, len(engine.metrics))
            + engine.metrics
        )
        return True
    asked = Asked(path, headers, json.loads(raw), raw)
    engine.asked.append(asked)
    work = asyncio.ensure_future(engine.script(asked, writer))
    left = asyncio.ensure_future(reader.read(1))
    try:
        await asyncio.wait({work, left}, return_when=asyncio.FIRST_COMPLETED)
        if left.done() and not work.done():
            engine.hung_up.set()
            return False
        try:
            await work
            await writer.drain()
        except ConnectionError:
            engine.hung_up.set()
            raise
        return not (writer.is_closing() or engine.close_after)
    finally:
        work.cancel()
        left.cancel()
        await asyncio.gather(work, left, return_exceptions=True)


@asynccontextmanager
async def silent_server() -> AsyncIterator[str]:
    """Accepts connections and never sends a byte. Yields its address."""
    writers: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: writers.append(writer), "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(0)
