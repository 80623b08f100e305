"""The API server for programs outside the namespace: a relay, not a route.

A socket belongs to the network namespace it was made in. `up` makes a listening socket on the machine's loopback and
hands it down; the supervisor accepts on it and connects to the API server from inside. So nothing else of the machine
is reachable from the cluster, nothing else of the cluster from the machine, and the relay ends with the cluster.
"""

import asyncio
import contextlib
import socket

_CHUNK_BYTES = 1 << 16


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while chunk := await reader.read(_CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except OSError:
        # One side went away: drop the other at once, so that neither end waits for nothing.
        writer.close()


class Relay:
    """Copies bytes between connections accepted on `listener` and `address` (host, port)."""

    def __init__(self, listener: socket.socket, address: tuple[str, int]) -> None:
        self._listener = listener
        self._address = address
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, sock=self._listener)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection(*self._address)
        except OSError:
            writer.close()
            return
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_copy(reader, upstream_writer))
                group.create_task(_copy(upstream_reader, writer))
        finally:
            for stream in (writer, upstream_writer):
                stream.close()
                with contextlib.suppress(OSError):
                    await stream.wait_closed()
