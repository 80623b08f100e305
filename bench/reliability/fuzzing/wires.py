"""An event loop whose connections are objects in its own process, and the two ends of such a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import uvloop

_FIRST_PORT = 20_000


class Wire:
    """What a protocol of the gateway takes for its transport. `on_write` gets what it sends."""

    def __init__(self, protocol: asyncio.Protocol, on_write: Callable[[bytes], None]) -> None:
        self._protocol = protocol
        self._on_write = on_write
        self._loop = asyncio.get_running_loop()
        self._closing = False
        self._lost = False
        self.reading = True
        self.on_reading: Callable[[], None] | None = None
        """Called when the gateway reads again."""

    def connect(self) -> None:
        """Begin."""
        self._protocol.connection_made(cast("asyncio.BaseTransport", self))

    # --- what the gateway calls -------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """See `asyncio.WriteTransport`."""
        if not self._closing:
            self._on_write(bytes(data))

    def abort(self) -> None:
        """See `asyncio.WriteTransport`."""
        self.close()

    def close(self) -> None:
        """See `asyncio.BaseTransport`."""
        if not self._closing:
            self._closing = True
            self._loop.call_soon(self.lose, None)

    def is_closing(self) -> bool:
        """See `asyncio.BaseTransport`."""
        return self._closing

    def pause_reading(self) -> None:
        """See `asyncio.ReadTransport`."""
        self.reading = False

    def resume_reading(self) -> None:
        """See `asyncio.ReadTransport`."""
        self.reading = True
        if self.on_reading is not None:
            self._loop.call_soon(self.on_reading)

    def can_write_eof(self) -> bool:
        """See `asyncio.WriteTransport`."""
        return True

    def write_eof(self) -> None:
        """See `asyncio.WriteTransport`."""

    def get_write_buffer_size(self) -> int:
        """See `asyncio.WriteTransport`."""
        return 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """See `asyncio.BaseTransport`."""
        return ("127.0.0.1", 1) if name == "peername" else default

    # --- what the other end does ------------------------------------------------------------------------------------

    def give(self, data: bytes) -> None:
        """Bytes arrive."""
        if not self._closing and not self._lost:
            self._protocol.data_received(data)

    def lose(self, error: Exception | None) -> None:
        """The connection is gone."""
        if not self._lost:
            self._closing = self._lost = True
            self._protocol.connection_lost(error)

    @property
    def lost(self) -> bool:
        """Whether the gateway has been told that it is gone."""
        return self._lost


class WiredLoop(uvloop.Loop):
    """Outgoing connections go to `dial`; listeners by address are kept in `listeners`, to be called by `call`."""

    def __init__(self) -> None:
        super().__init__()
        self.dial: Callable[[asyncio.Protocol, str, int], Wire] | None = None
        """Makes the wire of a connection to a host and port. Raises OSError where nobody listens."""
        self.listeners: dict[int, Callable[[], asyncio.Protocol]] = {}

    async def create_connection(  # type: ignore[override]
        self, factory: Any, host: Any = None, port: Any = None, **more: Any
    ) -> Any:
        """See `asyncio.AbstractEventLoop`."""
        assert self.dial is not None
        protocol = factory()
        wire = self.dial(protocol, host, port)
        wire.connect()
        return wire, protocol

    async def create_server(  # type: ignore[override]
        self, factory: Any, host: Any = None, port: Any = None, **more: Any
    ) -> Any:
        """See `asyncio.AbstractEventLoop`; a listener that brings its own socket is a real one."""
        if more.get("sock") is not None:
            return await super().create_server(factory, host, port, **more)
        number = _FIRST_PORT + len(self.listeners)
        self.listeners[number] = factory
        return _Server(number)

    def call(self, port: int, on_write: Callable[[bytes], None]) -> Wire:
        """Connect to a listener."""
        wire = Wire(self.listeners[port](), on_write)
        wire.connect()
        return wire


class _Server:
    """What `create_server` returns."""

    def __init__(self, port: int) -> None:
        self.sockets = [self]
        self._port = port

    def getsockname(self) -> tuple[str, int]:
        return ("127.0.0.1", self._port)

    def close(self) -> None: ...

    async def wait_closed(self) -> None: ...
