"""The picker face for a client of real gRPC, without a proxy: streams, cancellation, health, drain.

Over the gateway's own transport and over grpc.aio, the reference: the same messages and the same books.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any

import grpc
import pytest
from envoy.config.core.v3 import base_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from grpc_health.v1 import health_pb2

from ballast_api.gateway_settings import Limits
from ballast_core.model import Outcome, Role
from ballast_gateway.driver import Driver
from ballast_gateway.picker import codec, h2_transport
from ballast_gateway.picker.exchange import ExchangeSettings
from ballast_gateway.picker.face import PickerFace
from ballast_gateway.picker.transport import Listen
from tests.support import grpc_transport, picker_builders
from tests.support.core_builders import director
from tests.support.picker_builders import MODEL, RunningPicker, endpoint_at

ENDPOINTS = [endpoint_at("10.0.0.1:8000"), endpoint_at("10.0.0.2:8000")]
BODY = f'{{"model":"{MODEL}","prompt":"hello"}}'.encode()
BUFFERED = pb.ProtocolConfiguration(request_body_mode=2, response_body_mode=1)


Start = Callable[..., AbstractAsyncContextManager[RunningPicker]]


@pytest.fixture(params=[h2_transport.listen, grpc_transport.listen], ids=["own", "grpc.aio"])
def listen(request: pytest.FixtureRequest) -> Listen:
    chosen: Listen = request.param
    return chosen


@pytest.fixture
def picker(listen: Listen) -> Start:
    return partial(picker_builders.picker, listen=listen)


@asynccontextmanager
async def channel(port: int) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as made:
        yield made


def process(made: grpc.aio.Channel) -> Any:
    method: Any = made.stream_stream(
        codec.METHOD, pb.ProcessingRequest.SerializeToString, pb.ProcessingResponse.FromString
    )
    return method()


def headers(extra: dict[str, str] | None = None, *, end: bool = False, config: Any = None) -> Any:
    values = {":path": "/v1/completions", ":method": "POST"} | (extra or {})
    pairs = [base_pb2.HeaderValue(key=key, raw_value=value.encode()) for key, value in values.items()]
    return pb.ProcessingRequest(
        request_headers=pb.HttpHeaders(headers=base_pb2.HeaderMap(headers=pairs), end_of_stream=end),
        protocol_config=config,
    )


def body(raw: bytes = BODY) -> Any:
    return pb.ProcessingRequest(request_body=pb.HttpBody(body=raw, end_of_stream=True))


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 (what is awaited are the server's own steps)
            await asyncio.sleep(0.01)


async def routed(call: Any) -> Any:
    """Send a request through a full-duplex stream; returns the headers' answer."""
    await call.write(headers())
    await call.write(body())
    answer = await call.read()
    await call.read()
    return answer


def destination(answer: Any) -> str:
    return str(answer.dynamic_metadata["envoy.lb"]["x-gateway-destination-endpoint"])


async def health(port: int, service: str) -> Any:
    async with channel(port) as made:
        check = made.unary_unary(
            "/grpc.health.v1.Health/Check",
            health_pb2.HealthCheckRequest.SerializeToString,
            health_pb2.HealthCheckResponse.FromString,
        )
        return (await check(health_pb2.HealthCheckRequest(service=service))).status


async def test_a_request_is_picked_followed_and_ended(picker: Start) -> None:
    """From headers to the end of the response, on one stream."""
    async with picker(ENDPOINTS) as running, channel(running.server.port) as made:
        call = process(made)
        answer = await routed(call)
        assert destination(answer) == running.picked[0].decode == "10.0.0.1:8000"
        assert running.in_flight == 1
        await call.write(pb.ProcessingRequest(response_headers=pb.HttpHeaders()))
        await call.read()
        await call.write(pb.ProcessingRequest(response_body=pb.HttpBody(body=b"x", end_of_stream=True)))
        echo = await call.read()
        assert echo.response_body.response.body_mutation.streamed_response.body == b"x"
        await until(lambda: running.in_flight == 0)
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK
        assert [event.outcome for event in running.finished] == [Outcome.COMPLETED]


async def test_a_disaggregated_request_names_its_prefiller(picker: Start) -> None:
    """For sidecars that fetch the KV cache themselves."""
    endpoints = [endpoint_at("10.0.0.1:8000", Role.PREFILL), endpoint_at("10.0.0.2:8000", Role.DECODE)]
    async with picker(endpoints) as running, channel(running.server.port) as made:
        answer = await routed(process(made))
        changes = answer.request_headers.response.header_mutation.set_headers
        values = {change.header.key: change.header.raw_value for change in changes}
        assert values["x-prefiller-host-port"] == b"10.0.0.1:8000"
        assert values["x-gateway-destination-endpoint"] == b"10.0.0.2:8000"


async def test_a_cancelled_stream_frees_the_ledger(picker: Start) -> None:
    """Exactly once, and as the client's doing."""
    async with picker(ENDPOINTS) as running, channel(running.server.port) as made:
        call = process(made)
        await routed(call)
        assert running.in_flight == 1
        call.cancel()
        await until(lambda: running.in_flight == 0)
        assert [event.outcome for event in running.finished] == [Outcome.CANCELLED]


async def test_a_request_whose_response_is_not_shown_is_booked_until_a_scrape_shows_its_end(picker: Start) -> None:
    """However long that takes; the log has it at once."""
    request_only = pb.ProtocolConfiguration(request_body_mode=4, response_body_mode=0)
    async with picker(ENDPOINTS) as running, channel(running.server.port) as made:
        call = process(made)
        await call.write(headers(config=request_only))
        await call.write(body())
        await call.done_writing()
        assert len([answer async for answer in call]) == 2
        await until(lambda: running.finished)
        assert [event.outcome for event in running.finished] == [Outcome.COMPLETED]
        for endpoint in ENDPOINTS:
            running.scraped(endpoint, running=1)
        assert running.in_flight == 1
        assert running.all_idle()


async def test_two_requests_of_one_id_are_two_requests(picker: Start) -> None:
    """Ids of clients need not be unique."""
    async with picker(ENDPOINTS) as running, channel(running.server.port) as made:
        calls = [process(made) for _ in range(2)]
        for call in calls:
            await call.write(headers({"x-request-id": "same"}))
            await call.write(body())
            await call.read()
        assert running.in_flight == 2
        assert [event.request_id for event in running.picked] == ["same", "same"]
        for call in calls:
            call.cancel()
        await until(lambda: running.in_flight == 0)


@pytest.mark.parametrize(
    ("limit", "endpoints", "status", "reason"),
    [(10, [], 503, "no-endpoints"), (1, ENDPOINTS, 429, "saturated")],
)
async def test_what_cannot_be_placed_is_answered(
    picker: Start, limit: int, endpoints: list[Any], status: int, reason: str
) -> None:
    """503 without an endpoint, 429 beyond the limit; the stream ends cleanly."""
    async with picker(endpoints, limits=Limits(max_in_flight=limit)) as running, channel(running.server.port) as made:
        kept = process(made)
        if endpoints:
            await routed(kept)
        call = process(made)
        await call.write(headers())
        await call.write(body())
        answer = (await call.read()).immediate_response
        assert answer.status.code == status
        assert {h.header.key: h.header.raw_value for h in answer.headers.set_headers}["retry-after"] in (b"1", b"2")
        assert await call.code() is grpc.StatusCode.OK
        assert [(event.status, event.reason) for event in running.refused] == [(status, reason)]
        kept.cancel()


async def test_an_observer_gets_no_answers(picker: Start) -> None:
    """In observability mode the proxy does not listen, so nothing is picked."""
    async with picker(ENDPOINTS) as running, channel(running.server.port) as made:
        call = process(made)
        message = headers(end=True)
        message.observability_mode = True
        await call.write(message)
        await call.done_writing()
        assert [answer async for answer in call] == []
        assert running.picked == []


async def test_a_broken_message_ends_its_own_stream_only(picker: Start) -> None:
    """The next stream is served."""
    async with picker(ENDPOINTS) as running, channel(running.server.port) as made:
        as_bytes: Any = bytes
        method: Any = made.stream_stream(codec.METHOD, as_bytes, as_bytes)
        broken = method()
        await broken.write(b"\xff\xff\xff")
        assert await broken.code() is not grpc.StatusCode.OK
        assert destination(await routed(process(made))) == running.picked[-1].decode


async def test_a_body_beyond_the_limit_is_refused_also_in_one_message(picker: Start) -> None:
    """413, not a broken stream."""
    async with picker(ENDPOINTS, limits=Limits(max_body_bytes=1000)) as running, channel(running.server.port) as made:
        call = process(made)
        await call.write(headers(config=BUFFERED))
        await call.read()
        await call.write(body(b"x" * 1001))
        assert (await call.read()).immediate_response.status.code == 413


async def serving(running: RunningPicker) -> dict[str, bool]:
    services = ("", "liveness", "readiness", codec.SERVICE)
    port = running.server.health_port
    return {name: await health(port, name) == health_pb2.HealthCheckResponse.SERVING for name in services}


async def test_health_follows_readiness_and_drain(picker: Start) -> None:
    """Liveness always; the rest only while requests can be placed and the gateway stays."""
    ready = False
    async with picker(ENDPOINTS, ready=lambda: ready) as running:
        alive = {"": False, "liveness": True, "readiness": False, codec.SERVICE: False}
        assert await serving(running) == alive
        ready = True
        assert await serving(running) == dict.fromkeys(alive, True)
        running.server.drain()
        assert await serving(running) == alive
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await health(running.server.health_port, "unknown")
        assert error.value.code() is grpc.StatusCode.NOT_FOUND


async def test_health_can_be_watched(picker: Start) -> None:
    """Each change is sent; an unknown service is reported as such."""
    ready = False
    async with picker(ENDPOINTS, ready=lambda: ready) as running, channel(running.server.health_port) as made:
        watch: Any = made.unary_stream(
            "/grpc.health.v1.Health/Watch",
            health_pb2.HealthCheckRequest.SerializeToString,
            health_pb2.HealthCheckResponse.FromString,
        )
        call, unknown = watch(health_pb2.HealthCheckRequest()), watch(health_pb2.HealthCheckRequest(service="x"))
        statuses = health_pb2.HealthCheckResponse
        assert (await call.read()).status == statuses.NOT_SERVING
        ready = True
        assert (await call.read()).status == statuses.SERVING
        assert (await unknown.read()).status == statuses.SERVICE_UNKNOWN
        call.cancel()
        unknown.cancel()


async def test_running_streams_may_finish_while_the_server_closes(picker: Start) -> None:
    """Until the grace is over."""
    async with picker(ENDPOINTS) as running, channel(running.server.port) as made:
        call = process(made)
        await routed(call)
        closing = asyncio.create_task(running.server.aclose(grace_s=20))
        await call.write(pb.ProcessingRequest(response_headers=pb.HttpHeaders(end_of_stream=True)))
        assert (await call.read()).HasField("response_headers")
        await call.done_writing()
        await closing
        assert [event.outcome for event in running.finished] == [Outcome.COMPLETED]


async def test_a_request_that_is_held_when_the_picker_ends_is_told_so(picker: Start) -> None:
    """503 and the reason, at the end of the grace."""
    async with picker((), limits=Limits(hold_s=60)) as running, channel(running.server.port) as made:
        call = process(made)
        await call.write(headers())
        await call.write(body())
        await until(lambda: running.in_flight == 1)
        closing = asyncio.create_task(running.server.aclose(grace_s=0.1))
        answer = (await call.read()).immediate_response
        assert answer.status.code == 503
        assert json.loads(answer.body)["error"]["code"] == "gateway-shutdown"
        await closing
        assert running.in_flight == 0


async def test_a_taken_port_is_an_os_error(listen: Listen) -> None:
    """So that the process can name the port and stop."""
    face = PickerFace(Driver(director()), ExchangeSettings(max_body_bytes=1000), new_id=lambda: "id")
    first = await listen(face.open, host="127.0.0.1", port=0, max_message_bytes=1 << 20)
    with pytest.raises(OSError, match=str(first.port)):
        await listen(face.open, host="127.0.0.1", port=first.port, max_message_bytes=1 << 20)
    await first.aclose(0)
