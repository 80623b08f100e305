"""gRPC health (`grpc.health.v1`), on a port of its own so that probes answer when the main port is busy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from grpc_health.v1 import health_pb2

from ballast_gateway.h2.calls import Call, Handler, Status
from ballast_gateway.h2.server import Server
from ballast_gateway.picker import codec
from ballast_gateway.tls.certificates import Tls

_LIVENESS: Final = "liveness"
_SERVICES: Final = frozenset({"", _LIVENESS, "readiness", codec.SERVICE})
_WATCH_EVERY_S: Final = 0.5
_MAX_MESSAGE_BYTES: Final = 4096


async def listen_health(
    ready: Callable[[], bool], *, host: str, port: int, tls: Tls | None = None, shared: bool = False
) -> Server:
    """Serve health: `liveness` always, the other services while `ready()`. Raises `OSError` if the port is taken."""

    def check(call: Call) -> Handler:
        return _Check(call, ready)

    def watch(call: Call) -> Handler:
        return _Watch(call, ready)

    methods = {"/grpc.health.v1.Health/Check": check, "/grpc.health.v1.Health/Watch": watch}
    server = Server(methods, max_message_bytes=_MAX_MESSAGE_BYTES)
    await server.listen(host, port, tls=tls, shared=shared)
    return server


def _status(service: str, ready: Callable[[], bool]) -> Any:
    statuses = health_pb2.HealthCheckResponse
    if service not in _SERVICES:
        return statuses.SERVICE_UNKNOWN
    return statuses.SERVING if service == _LIVENESS or ready() else statuses.NOT_SERVING


def _answer(status: Any) -> list[bytes]:
    return [health_pb2.HealthCheckResponse(status=status).SerializeToString()]


class _Check:
    """One request, one answer."""

    def __init__(self, call: Call, ready: Callable[[], bool]) -> None:
        self._call = call
        self._ready = ready

    def message(self, raw: bytes) -> None:
        service = health_pb2.HealthCheckRequest.FromString(raw).service
        if service in _SERVICES:
            self._call.write(_answer(_status(service, self._ready)))
            self._call.finish()
        else:
            self._call.finish(Status.NOT_FOUND, f"unknown service {service!r}")

    def ended(self) -> None:
        self._call.finish(Status.INTERNAL, "no request came")

    def closed(self, *, broken: bool) -> None:
        pass


class _Watch:
    """One request; an answer for each change, looked for every so often."""

    def __init__(self, call: Call, ready: Callable[[], bool]) -> None:
        self._call = call
        self._ready = ready
        self._service: str | None = None
        self._reported: Any = None
        self._timer: asyncio.TimerHandle | None = None

    def message(self, raw: bytes) -> None:
        if self._service is None:
            self._service = health_pb2.HealthCheckRequest.FromString(raw).service
            self._look()

    def ended(self) -> None:
        if self._service is None:
            self._call.finish(Status.INTERNAL, "no request came")

    def closed(self, *, broken: bool) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        status = _status(self._service or "", self._ready)
        if status != self._reported:
            self._reported = status
            self._call.write(_answer(status))
        self._timer = asyncio.get_running_loop().call_later(_WATCH_EVERY_S, self._look)
