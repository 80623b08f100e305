"""A lean HTTP/1.1 client for streamed completions: one httptools parser per connection, connections kept for reuse.

httpx costs about 0.8 ms of CPU a request and more per chunk; load at 1,500 tokens a second beside the servers under
test would then measure the client.
"""

import asyncio
import errno
import json
import math
import re
import ssl
import time
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import SplitResult, urlsplit

import httptools

from ballast_sim.settings import SettingError

MOST_IDLE_S = 4.0
"""How long a connection may have been idle and is used again. vLLM's server closes them after 5 s, and a request that
meets the close has no answer."""
_OWN_LIMITS = frozenset({errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL})
"""Why this machine may open no connection, whatever the server does: open files, or ports."""
_RARE = re.compile(rb'"usage"\s*:\s*\{|"error"')


@dataclass(slots=True)
class StreamOutcome:
    """What came back. Times are those of the monotonic clock; None where that did not happen."""

    status: int = 0
    first_token_s: float | None = None
    last_token_s: float | None = None
    chunks: int = 0
    late_gaps: int = 0
    """Times between two chunks above the client's `late_after_s`."""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    done: bool = False
    error: str | None = None


class _Connection(asyncio.Protocol):
    """One connection; carries one request at a time."""

    def __init__(self, late_after_s: float) -> None:
        self._late_after_s = late_after_s
        self._outcome = StreamOutcome()
        self._finished: asyncio.Future[None] | None = None
        self._buffer = b""
        self._body: list[bytes] = []
        self._streaming = False
        self.reusable = True
        self.idle_since_s = 0.0
        self.transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.reusable = False
        if not self._outcome.done:
            self._outcome.error = self._outcome.error or "the connection was closed before the answer was complete"
        self._finish()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._outcome.error = f"the answer is not valid HTTP: {error}"
            self.close()

    def send(self, data: bytes) -> "tuple[StreamOutcome, asyncio.Future[None]]":
        assert self.transport is not None
        self._outcome = StreamOutcome()
        self._buffer, self._body, self._streaming = b"", [], False
        self._parser = httptools.HttpResponseParser(self)
        self._finished = asyncio.get_running_loop().create_future()
        self.transport.write(data)
        return self._outcome, self._finished

    def close(self) -> None:
        self.reusable = False
        if self.transport is not None:
            self.transport.abort()
        self._finish()

    def _finish(self) -> None:
        if self._finished is not None and not self._finished.done():
            self._finished.set_result(None)

    # -- httptools ---------------------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type":
            self._streaming = value.lower().startswith(b"text/event-stream")

    def on_headers_complete(self) -> None:
        self._outcome.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        if not self._streaming:
            self._body.append(data)
            return
        now_s = time.monotonic()
        events = (self._buffer + data).replace(b"\r\n", b"\n").split(b"\n\n")
        self._buffer = events.pop()
        for event in events:
            data = _data(event)
            if data.startswith(b"{"):
                if _RARE.search(data):
                    self._rare(data, now_s)
                else:
                    self._token(now_s)
            elif data == b"[DONE]":
                self._outcome.done = True

    def _token(self, now_s: float) -> None:
        outcome = self._outcome
        before_s = outcome.last_token_s
        if before_s is None:
            outcome.first_token_s = now_s
        elif now_s - before_s > self._late_after_s:
            outcome.late_gaps += 1
        outcome.last_token_s = now_s
        outcome.chunks += 1

    def _rare(self, data: bytes, now_s: float) -> None:
        """A chunk with usage, or an error in the middle of a stream."""
        outcome = self._outcome
        try:
            value = json.loads(data)
        except ValueError:
            outcome.error = "a chunk of the stream is not JSON"
            return
        if value.get("error") is not None:
            outcome.error = _error_text(value) or "the stream ended with an error"
            return
        usage = value.get("usage")
        if isinstance(usage, dict):
            outcome.prompt_tokens = _count(usage, "prompt_tokens")
            outcome.output_tokens = _count(usage, "completion_tokens")
        if value.get("choices"):
            self._token(now_s)

    def on_message_complete(self) -> None:
        outcome = self._outcome
        self.reusable = self.reusable and self._parser.should_keep_alive()
        if outcome.status >= 400 or not self._streaming:
            outcome.error = outcome.error or _refusal(b"".join(self._body))
        elif not outcome.done:
            outcome.error = outcome.error or "the stream ended without [DONE]"
        outcome.done = True
        self._finish()


def _data(event: bytes) -> bytes:
    """What the lines `data:` of an event hold; other fields and comments say nothing here."""
    return b"\n".join(line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:"))


def _count(usage: dict[str, Any], name: str) -> int | None:
    value = usage.get(name)
    return value if isinstance(value, int) else None


def _refusal(body: bytes) -> str:
    try:
        text = _error_text(json.loads(body))
    except ValueError:
        text = None
    return text or body[:200].decode("utf-8", "replace") or "an empty answer"


def _error_text(value: Any) -> str | None:
    error = value.get("error") if isinstance(value, dict) else None
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        return cast("str", error["message"])
    return error if isinstance(error, str) else None


def _address(base_url: str) -> tuple[str, int, SplitResult]:
    """Host, port and the parsed URL. Raises SettingError."""
    try:
        parts = urlsplit(base_url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise SettingError("url", f"{base_url!r}: {error}") from None
    if not base_url.isascii():
        raise SettingError("url", f"{base_url!r}: write what is not ASCII with percent signs")
    if parts.scheme not in ("http", "https") or not host:
        raise SettingError("url", f"{base_url!r} is not an http:// or https:// URL with a host")
    usual = 443 if parts.scheme == "https" else 80
    return host, usual if port is None else port, parts


class StreamClient:
    """Sends completion requests to one base URL."""

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        connect_timeout_s: float = 10.0,
        late_after_s: float = math.inf,
    ) -> None:
        """Raises SettingError naming what is wrong with the URL or the key."""
        self._host, self._port, parts = _address(base_url)
        if api_key and not (api_key.isascii() and api_key.isprintable()):
            raise SettingError("api_key", "must be one line of ASCII letters, digits and signs")
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        prefix = parts.path.rstrip("/").removesuffix("/v1")
        authorization = f"authorization: Bearer {api_key}\r\n" if api_key else ""
        self._head = (
            f"POST {prefix}/v1/completions HTTP/1.1\r\nhost: {parts.netloc}\r\ncontent-type: application/json\r\n"
            f"{authorization}accept: text/event-stream\r\n"
        )
        self._connect_timeout_s = connect_timeout_s
        self._late_after_s = late_after_s
        self._idle: list[_Connection] = []

    async def completion(self, body: bytes, timeout_s: float, request_id: str) -> StreamOutcome:
        """Send one request and read its stream to the end. Never raises for what a server or network does."""
        loop = asyncio.get_running_loop()
        try:
            connection = await self._connection(loop)
        except (OSError, TimeoutError, ValueError) as error:  # ValueError: a host that cannot be a name
            reason = error.strerror if isinstance(error, OSError) and error.strerror else (str(error) or "timed out")
            if isinstance(error, OSError) and error.errno in _OWN_LIMITS:
                return StreamOutcome(error=f"this machine has no more connections: {reason}: not sent")
            return StreamOutcome(error=f"cannot connect to {self._host}:{self._port}: {reason}")
        head = f"{self._head}x-request-id: {request_id}\r\ncontent-length: {len(body)}\r\n\r\n"
        outcome, finished = connection.send(head.encode() + body)
        try:
            async with asyncio.timeout(timeout_s):
                await finished
        except TimeoutError:
            outcome.error = f"no complete answer within {timeout_s:g} s"
            connection.close()
        except asyncio.CancelledError:
            connection.close()
            raise
        if connection.reusable:
            connection.idle_since_s = time.monotonic()
            self._idle.append(connection)
        else:
            connection.close()
        return outcome

    async def _connection(self, loop: asyncio.AbstractEventLoop) -> _Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable and time.monotonic() - connection.idle_since_s < MOST_IDLE_S:
                return connection
            connection.close()
        async with asyncio.timeout(self._connect_timeout_s):
            _, connection = await loop.create_connection(
                lambda: _Connection(self._late_after_s), self._host, self._port, ssl=self._tls
            )
        return connection

    def close(self) -> None:
        """Close the idle connections."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()
