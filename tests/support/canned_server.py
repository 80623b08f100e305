"""A server that answers each connection with the same bytes, whatever it is asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager


@asynccontextmanager
async def canned_server(*parts: bytes, pause_s: float = 0.0) -> AsyncIterator[str]:
    """Sends the parts, with a pause after each, and closes. Yields its address, `host:port`."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await reader.read(1 << 16)
            await _send(writer, parts, pause_s)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _send(writer: asyncio.StreamWriter, parts: Sequence[bytes], pause_s: float) -> None:
    for part in parts:
        writer.write(part)
        await writer.drain()
        await asyncio.sleep(pause_s)
