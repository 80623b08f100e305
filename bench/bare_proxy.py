"""The least that a P/D proxy does: the floor beside which `proxy_bench.py` shows the gateway.

Reads a request, asks the prefill endpoint for one token and a KV handle, sends the decode endpoint the request with
that handle, and passes the bytes of its answer on. No policy, no checks, no log, no metrics, no timeouts, no retries.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import deque
from itertools import cycle
from typing import Any, cast

import httptools
import uvloop

ASK = {"do_remote_decode": True, "do_remote_prefill": False}
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: e\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"


class Upstream(asyncio.Protocol):
    """A connection to an engine. The client's connection takes its bytes and its end."""

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.client: Client | None = None
        self.whole = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        client = self.client
        if client is None:
            return
        if client.decoding:
            client.transport.write(data)
        self.parser.feed_data(data)
        if self.whole:
            self.whole, self.client = False, None
            client.leg_ended(self)

    def on_body(self, part: bytes) -> None:
        if self.client is not None and not self.client.decoding:
            self.client.reply += part

    def on_message_complete(self) -> None:
        self.whole = True


class Client(asyncio.Protocol):
    """A client's connection, one request at a time."""

    def __init__(self, proxy: BareProxy) -> None:
        self.proxy = proxy
        self.parser = httptools.HttpRequestParser(self)
        self.body = self.reply = b""
        self.decoding = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, part: bytes) -> None:
        self.body += part

    def on_message_complete(self) -> None:
        self.request: dict[str, Any] = json.loads(self.body)
        self.body = self.reply = b""
        self.decoding = False
        prefill = self.request | {"max_tokens": 1, "stream": False, "kv_transfer_params": ASK}
        self.proxy.send(next(self.proxy.prefills), prefill, self)

    def leg_ended(self, upstream: Upstream) -> None:
        """The engine's answer is whole."""
        self.proxy.put(upstream)
        if not self.decoding:
            self.decoding = True
            decode = self.request | {"kv_transfer_params": json.loads(self.reply)["kv_transfer_params"]}
            self.proxy.send(next(self.proxy.decodes), decode, self)


class BareProxy:
    """Endpoints in turn, and a pool of connections to each."""

    def __init__(self, prefills: list[int], decodes: list[int]) -> None:
        self.prefills, self.decodes = cycle(prefills), cycle(decodes)
        self._idle: dict[int, deque[Upstream]] = {port: deque() for port in (*prefills, *decodes)}
        self._of: dict[Upstream, int] = {}
        self._connecting: set[asyncio.Task[None]] = set()

    def send(self, port: int, document: dict[str, Any], client: Client) -> None:
        """Send a leg's request, over a new connection if none is idle."""
        body = json.dumps(document, separators=(",", ":")).encode()
        head = (
            b"POST /v1/completions HTTP/1.1\r\nhost: e\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        )
        payload = head % len(body) + body
        if self._idle[port]:
            self._begin(self._idle[port].pop(), payload, client)
        else:
            task = asyncio.get_running_loop().create_task(self._connect(port, payload, client))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    def put(self, upstream: Upstream) -> None:
        """Take a connection back."""
        self._idle[self._of[upstream]].append(upstream)

    def _begin(self, upstream: Upstream, payload: bytes, client: Client) -> None:
        upstream.client = client
        upstream.transport.write(payload)

    async def _connect(self, port: int, payload: bytes, client: Client) -> None:
        _, upstream = await asyncio.get_running_loop().create_connection(Upstream, "127.0.0.1", port)
        self._of[upstream] = port
        self._begin(upstream, payload, client)


async def serve(ports: list[int]) -> None:
    """The first half of the ports prefills, the other half decodes. Says its own port on standard output."""
    half = len(ports) // 2
    proxy = BareProxy(ports[:half], ports[half:])
    server = await asyncio.get_running_loop().create_server(lambda: Client(proxy), "127.0.0.1", 0, backlog=1024)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve([int(port) for port in sys.argv[1:]]))
