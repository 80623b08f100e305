"""gRPC health, on a port of its own or beside ext_proc."""

from __future__ import annotations

from grpc_health.v1 import health_pb2

from ballast_conformance import protocol
from ballast_conformance.bench import Bench
from ballast_conformance.case import Cases
from ballast_conformance.grpc_call import NOT_FOUND, Call, End
from ballast_conformance.http2 import connect
from ballast_conformance.verdicts import Failed, Level, Skipped, expect

CASES = Cases("health")
_STATUS = health_pb2.HealthCheckResponse
_NAMES = {getattr(_STATUS, name): name for name in ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")}


async def _check(bench: Bench, service: str, method: str = protocol.HEALTH_CHECK) -> tuple[str, End | None]:
    """The first status of a service, and how the call ended if none came."""
    at = bench.health
    if at is None:
        raise Skipped("no health service found, see --health")
    connection = await connect(at.host, at.port, tls=at.tls, timeout_s=bench.plan.timeout_s)
    try:
        call = Call(connection, method, str(at))
        await call.send((health_pb2.HealthCheckRequest(service=service).SerializeToString(),))
        await call.half_close()
        heard = await call.receive(bench.plan.timeout_s)
    except TimeoutError:
        raise Failed("a status", f"nothing for {bench.plan.timeout_s:g} s") from None
    finally:
        await connection.aclose()
    if isinstance(heard, End):
        return str(heard), heard
    return _NAMES.get(_STATUS.FromString(heard).status, "a status of the future"), None


async def _expect_serving(bench: Bench, service: str) -> None:
    seen, _ = await _check(bench, service)
    expect(seen == "SERVING", f"SERVING of service {service!r}", seen)


@CASES.case("liveness", Level.MUST, protocol.HEALTH, "The service `liveness` is SERVING.")
async def liveness(bench: Bench) -> None:
    await _expect_serving(bench, "liveness")


@CASES.case("readiness", Level.MUST, protocol.HEALTH, "The service `readiness` is SERVING when the picker routes.")
async def readiness(bench: Bench) -> None:
    await _expect_serving(bench, "readiness")


@CASES.case("ext-proc", Level.MUST, protocol.HEALTH, "So is `envoy.service.ext_proc.v3.ExternalProcessor`.")
async def ext_proc(bench: Bench) -> None:
    await _expect_serving(bench, protocol.SERVICE)


@CASES.case("overall", Level.SHOULD, protocol.GRPC_HEALTH, "So is the server as a whole, whose name is empty.")
async def overall(bench: Bench) -> None:
    await _expect_serving(bench, "")


@CASES.case(
    "unknown", Level.SHOULD, protocol.GRPC_HEALTH, "A service that nobody knows is NOT_FOUND or SERVICE_UNKNOWN."
)
async def unknown(bench: Bench) -> None:
    seen, end = await _check(bench, "no.such.Service")
    refused = seen == "SERVICE_UNKNOWN" if end is None else end.status == NOT_FOUND
    expect(refused, "NOT_FOUND or SERVICE_UNKNOWN", seen)


@CASES.case("watch", Level.MAY, protocol.GRPC_HEALTH, "Watch tells the status at once.")
async def watch(bench: Bench) -> None:
    seen, _ = await _check(bench, "readiness", protocol.HEALTH_WATCH)
    expect(seen == "SERVING", "SERVING of service 'readiness'", seen)
