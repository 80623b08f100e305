"""Accepts connections, looks at the first byte of each, and gives it to its protocol with TLS or without.

0x16 is a TLS handshake (RFC 8446 section 5.1); no request of HTTP/1 or HTTP/2 begins with it. The byte is looked at in
the socket and left there, so what follows is the event loop's own transport, of either kind.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from ballast_gateway.tls.certificates import Tls

_log = logging.getLogger(__name__)

_HANDSHAKE: Final = b"\x16"
_AT_ONCE: Final = 64
"""Connections that are accepted in one turn of the loop."""
_NO_ROOM_S: Final = 1.0
"""Without descriptors for more, as asyncio waits."""
_REFRESH_S: Final = 0.5
_SHUTDOWN_S: Final = 5.0
"""For a client's own goodbye."""


class Listening(Protocol):
    """Takes connections until it is closed."""

    @property
    def sockets(self) -> Sequence[socket.socket]: ...
    def close(self) -> None: ...


async def listening(
    factory: Callable[[], asyncio.Protocol],
    host: str,
    port: int,
    *,
    backlog: int,
    tls: Tls | None,
    shared: bool = False,
) -> Listening:
    """Serve connections by protocols of `factory`; without `tls` in plaintext only. `shared`: with other processes that
    listen there, among which the system deals out connections. Raises `OSError` if the address is taken."""
    if tls is None:
        loop = asyncio.get_running_loop()
        return await loop.create_server(factory, host, port, backlog=backlog, reuse_port=shared or None)
    listener = TlsListener(factory, tls)
    await listener.listen(host, port, backlog=backlog, shared=shared)
    return listener


class TlsListener:
    """Listens until it is closed. Make it, then `listen`."""

    def __init__(
        self,
        factory: Callable[[], asyncio.Protocol],
        tls: Tls,
        *,
        handshake_s: float = 10.0,
        newcomers: int = 1024,
    ) -> None:
        """`handshake_s`: from a connection to the end of its handshake, or to its first byte. `newcomers`: connections
        that have not come so far; when there are more, the oldest is closed."""
        self._factory = factory
        self._tls = tls
        self._handshake_s = handshake_s
        self._most = newcomers
        self._loop = asyncio.get_running_loop()
        self._newcomers: dict[_Newcomer, None] = {}
        self._refreshing: asyncio.TimerHandle | None = None
        self.sockets: list[socket.socket] = []

    async def listen(self, host: str, port: int, *, backlog: int, shared: bool = False) -> None:
        """Raises `OSError` if the address is taken."""
        found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, _, _, _, address in dict.fromkeys(found):
                self.sockets.append(_bound(family, address, backlog, shared))
        except OSError:
            self.close()
            raise
        for listening in self.sockets:
            self._loop.add_reader(listening, self._accept, listening)
        self._refresh()

    def close(self) -> None:
        """Accept nothing more; what is not through its handshake is closed. Connections that are live on."""
        for listening in self.sockets:
            self._loop.remove_reader(listening)
            listening.close()
        self.sockets = []
        for newcomer in list(self._newcomers):
            newcomer.drop(None)
        if self._refreshing is not None:
            self._refreshing.cancel()

    def _refresh(self) -> None:
        self._refreshing = self._loop.call_later(_REFRESH_S, self._refresh)  # first: a fault must not be the last look
        self._tls.certificates.refresh()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                accepted, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                _log.error("connections cannot be accepted", extra={"problem": str(error)})
                self._loop.remove_reader(listening)
                self._loop.call_later(_NO_ROOM_S, self._accept_again, listening)
                return
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if len(self._newcomers) >= self._most:
                next(iter(self._newcomers)).drop("crowded")
            self._newcomers[_Newcomer(self, accepted)] = None

    def _accept_again(self, listening: socket.socket) -> None:
        if listening in self.sockets:
            self._loop.add_reader(listening, self._accept, listening)


class _Newcomer:
    """A connection whose protocol has not begun."""

    def __init__(self, listener: TlsListener, accepted: socket.socket) -> None:
        self._listener = listener
        self._socket = accepted
        self._loop = loop = listener._loop
        self._task: asyncio.Task[None] | None = None
        self._timer = loop.call_later(listener._handshake_s, self.drop, "timeout")
        loop.add_reader(accepted, self._look)

    def _look(self) -> None:
        try:
            first = self._socket.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        self._loop.remove_reader(self._socket)
        if not first:
            self.drop("gone")
        elif first != _HANDSHAKE and self._listener._tls.required:
            self.drop("plaintext")
        else:
            self._task = self._loop.create_task(self._hand_over(first == _HANDSHAKE))

    async def _hand_over(self, encrypted: bool) -> None:
        """A failure is the client's as a rule: it is counted, and shown where messages of the least weight are."""
        factory, tls = self._listener._factory, self._listener._tls
        try:
            if encrypted:
                context = await tls.certificates.context()
                await self._loop.connect_accepted_socket(
                    factory, self._socket, ssl=context, ssl_shutdown_timeout=_SHUTDOWN_S
                )
            else:
                await self._loop.connect_accepted_socket(factory, self._socket)
        except OSError as error:  # of ssl, too
            _log.debug("a TLS handshake failed", extra={"problem": str(error)})
            self._over("gone" if isinstance(error, ConnectionError) else "tls")
            self._socket.close()
        except asyncio.CancelledError:
            self._socket.close()
            raise
        except Exception:
            _log.exception("a connection could not begin")
            self._over("tls")
            self._socket.close()
        else:
            self._over(None)

    def drop(self, reason: str | None) -> None:
        """Close it."""
        self._over(reason)
        if self._task is None:
            self._loop.remove_reader(self._socket)
            self._socket.close()
        else:
            self._task.cancel()

    def _over(self, reason: str | None) -> None:
        self._timer.cancel()
        self._listener._newcomers.pop(self, None)
        if reason is not None:
            self._listener._tls.certificates.refused[reason] += 1


def _bound(family: int, address: object, backlog: int, shared: bool) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setblocking(False)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, os.name == "posix")
        if shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(address)  # type: ignore[arg-type]
        bound.listen(backlog)
    except OSError as error:
        bound.close()
        said = f"error while attempting to bind on address {address!r}: {(error.strerror or str(error)).lower()}"
        raise OSError(error.errno, said) from None
    return bound
