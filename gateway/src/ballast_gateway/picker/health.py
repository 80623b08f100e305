"""gRPC health (`grpc.health.v1`), on a port of its own so that probes answer when the main port is busy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2

from ballast_gateway.picker import codec
from ballast_gateway.picker.grpc_transport import GrpcTransport, start

_LIVENESS: Final = "liveness"
_SERVICES: Final = frozenset({"", _LIVENESS, "readiness", codec.SERVICE})
_WATCH_EVERY_S: Final = 0.5


async def listen_health(ready: Callable[[], bool], *, host: str, port: int) -> GrpcTransport:
    """Serve health: `liveness` always, the other services while `ready()`. Raises `OSError` if the port is taken."""
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    methods = {
        "Check": grpc.unary_unary_rpc_method_handler(
            _check(ready), health_pb2.HealthCheckRequest.FromString, health_pb2.HealthCheckResponse.SerializeToString
        ),
        "Watch": grpc.unary_stream_rpc_method_handler(
            _watch(ready), health_pb2.HealthCheckRequest.FromString, health_pb2.HealthCheckResponse.SerializeToString
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("grpc.health.v1.Health", methods),))
    return GrpcTransport(server, await start(server, host, port))


def _status(service: str, ready: Callable[[], bool]) -> Any:
    statuses = health_pb2.HealthCheckResponse
    if service not in _SERVICES:
        return statuses.SERVICE_UNKNOWN
    return statuses.SERVING if service == _LIVENESS or ready() else statuses.NOT_SERVING


def _check(ready: Callable[[], bool]) -> Any:
    async def check(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        if request.service not in _SERVICES:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"unknown service {request.service!r}")
        return health_pb2.HealthCheckResponse(status=_status(request.service, ready))

    return check


def _watch(ready: Callable[[], bool]) -> Any:
    async def watch(request: Any, _: Any) -> AsyncIterator[Any]:
        reported = None
        while True:
            status = _status(request.service, ready)
            if status != reported:
                reported = status
                yield health_pb2.HealthCheckResponse(status=status)
            await asyncio.sleep(_WATCH_EVERY_S)

    return watch
