"""A client's connection to the agent: each request is either held, as on the proxy face, or passed on as it is."""

from __future__ import annotations

import asyncio
from typing import Protocol

from ballast_gateway.agent.passing import BadRequest, Links, Passage
from ballast_gateway.errors import ApiError, headers_too_large
from ballast_gateway.http.client import keep_alive
from ballast_gateway.http.requests import Reading
from ballast_gateway.http.server import ClientConnection, Server


class AgentServer(Server, Protocol):
    """What a connection needs of the agent's face."""

    links: Links
    not_passed_on: frozenset[bytes]
    """Headers that the engine gets from nobody."""

    def holds(self, head: bytes) -> bool:
        """Whether a request with this head, in lower case, is held."""
        ...

    def passage(self, change: int) -> None:
        """So many more requests are passed on now."""
        ...


class AgentConnection(ClientConnection):
    """Reads heads, and lets held requests take their usual way."""

    def __init__(self, server: AgentServer, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(server, loop)
        self._agent = server
        self._start = b""
        """A head that has begun to come."""
        self._passage: Passage | None = None
        self._unread_since_s: float | None = None
        """Since when the client is not read, because the engine takes nothing: its leaving would not be seen either."""

    def data_received(self, data: bytes) -> None:
        if self._discarding:
            return
        if self._passage is not None:
            self._pass_on(self._passage, data)
        elif self._request is None and not self._reader.requests and self._reader.reading is Reading.NOTHING:
            self._examine(self._start + data if self._start else data)
        else:
            super().data_received(data)

    def _examine(self, start: bytes) -> None:
        start = start.lstrip(b"\r\n") if start[:1] in (b"\r", b"\n") else start
        end = start.find(b"\r\n\r\n") + 4
        if end < 4:
            if len(start) > self._agent.max_header_bytes:
                self._refuse(headers_too_large(self._agent.max_header_bytes))
                return
            if not self._start:
                self._deadline_s = self._loop.time() + self._agent.request_timeout_s
            self._start = start
            return
        self._start = b""
        if self._agent.holds(start[:end].lower()):
            super().data_received(start)
            return
        try:
            passage = Passage(self._agent.links, self, start[:end], without=self._agent.not_passed_on)
        except BadRequest as refusal:
            self._refuse(refusal.error)
            return
        self._passage = passage
        self.head_sent = False  # of the answer before
        self._agent.passage(1)
        self.attach(passage)
        if len(start) > end:
            self._pass_on(passage, start[end:])
        if self._passage is passage:
            passage.start()

    def _pass_on(self, passage: Passage, data: bytes) -> None:
        try:
            passage.from_client(data)
        except BadRequest as refusal:
            passage.client_gone()
            self.not_passed(refusal.error)

    # --- called by the passage --------------------------------------------------------------------------------------

    def pass_back(self, data: bytes) -> None:
        """Bytes of the answer."""
        if not self._transport.is_closing():
            self.head_sent = True
            self._transport.write(data)

    def pause_sending(self) -> None:
        """The engine is slow."""
        if not self._transport.is_closing():
            self._unread_since_s = self._loop.time()
            self._transport.pause_reading()

    def resume_sending(self) -> None:
        """It has caught up."""
        self._unread_since_s = None
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def passed(self, *, keep_alive: bool, rest: bytes) -> None:
        """The answer is whole."""
        sent = self._passage is None or self._passage.sent
        self._end_passage()
        self._served = True
        self._deadline_s = self._loop.time() + self._agent.keep_alive_timeout_s
        if not sent:
            self.resume_sending()
            self._linger()  # to close over what still comes would reset the connection, and lose the answer
            return
        if not keep_alive or self._agent.closing:
            self._close()
            return
        self.resume_sending()
        if rest:
            self._start = rest  # before what may come in the meantime
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        if self._start and self._passage is None and not self.gone:
            self._examine(self._start)

    def not_passed(self, error: ApiError | None) -> None:
        """There is no answer, or no end of it."""
        begun = self.head_sent
        self._end_passage()
        if error is None or begun:
            self.abort()
        else:
            self._refuse(error)

    def _end_passage(self) -> None:
        if self._passage is not None:
            self.detach(self._passage)
            self._passage = None
            self.head_sent = False
            self._agent.passage(-1)

    # --- the connection ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        keep_alive(transport)  # idle ones are kept for long
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        passage = self._passage
        if passage is not None:
            self._end_passage()
            passage.client_gone()
        super().connection_lost(exc)

    def sweep(self, now_s: float) -> None:
        """A request that is passed on may take as long as it does."""
        if self._passage is None or self._stalled_since_s is not None:
            super().sweep(now_s)
        elif self._unread_since_s is not None and now_s - self._unread_since_s > self._agent.client_stall_timeout_s:
            self._transport.abort()

    def close_if_idle(self, *, fresh: bool) -> None:
        """Close the connection if no request is on its way."""
        if self._passage is None and not self._start:
            super().close_if_idle(fresh=fresh)

    def shut_down(self, error: ApiError) -> None:
        """The agent ends: so do the bytes."""
        if self._passage is not None:
            self.abort()
        else:
            super().shut_down(error)
