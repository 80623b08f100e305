"""Many exchanges, one after the other and at once, and their ends."""

from __future__ import annotations

import asyncio

from ballast_conformance import messages, protocol
from ballast_conformance.bench import DUPLEX, Bench
from ballast_conformance.case import Cases
from ballast_conformance.cases.common import expect_own_body, expect_routed
from ballast_conformance.transcript import Transcript
from ballast_conformance.verdicts import Level, expect

CASES = Cases("streams")


@CASES.case("sequence", Level.MUST, protocol.GRPC, "One connection serves request after request.")
async def sequence(bench: Bench) -> None:
    for number in range(20):
        body = bench.body(f"request {number}")
        expect_own_body(await bench.ask(body), body)


@CASES.case("concurrent", Level.MUST, protocol.GRPC, "Streams at the same time do not get in each other's way.")
async def concurrent(bench: Bench) -> None:
    """Their messages are interleaved, and each gets its own body back."""
    connection = await bench.connection()
    bodies = [bench.body(f"stream {number} " * (number + 1)) for number in range(bench.plan.streams)]
    streams = [await bench.stream(connection) for _ in bodies]
    for stream, body in zip(streams, bodies, strict=True):
        await stream.send(messages.request_headers(bench.post(body), modes=DUPLEX))
    for stream, body in zip(streams, bodies, strict=True):
        await stream.send(messages.request_body(body[:25]))
    await streams[-1].quiet()  # time to read all of these before the rest comes
    for stream, body in zip(reversed(streams), reversed(bodies), strict=True):
        await stream.send(messages.request_body(body[25:], end=True))
    said = await asyncio.gather(*(bench.answered(stream) for stream in streams))
    for each, body in zip(said, bodies, strict=True):
        expect_own_body(each, body)


@CASES.case("connections", Level.MUST, protocol.GRPC, "Several connections are served at the same time.")
async def connections(bench: Bench) -> None:
    made = [await bench.connect() for _ in range(4)]
    said: list[Transcript] = await asyncio.gather(*(bench.ask(connection=each) for each in made))
    for each in said:
        expect_routed(each)


@CASES.case("slow", Level.MUST, protocol.STREAMING, "A request whose body is slow to come holds up no other.")
async def slow(bench: Bench) -> None:
    connection, body = await bench.connection(), bench.body()
    waiting = await bench.stream(connection)
    first = messages.request_headers(bench.post(body), modes=DUPLEX)
    await waiting.send(first, messages.request_body(body[:20]))
    expect_routed(await bench.ask(connection=connection), "another request is routed meanwhile")
    await waiting.send(messages.request_body(body[20:], end=True))
    expect_own_body(await bench.answered(waiting), body)


@CASES.case("cancel", Level.MUST, protocol.GRPC, "A stream that is cancelled in the middle of a body ends alone.")
async def cancel(bench: Bench) -> None:
    connection, body = await bench.connection(), bench.body()
    for _ in range(5):
        stream = await bench.stream(connection)
        first = messages.request_headers(bench.post(body), modes=DUPLEX)
        await stream.send(first, messages.request_body(body[:20]))
        stream.cancel()
    expect_routed(await bench.ask(connection=connection), "the connection's next request is routed")


@CASES.case("cancel-response", Level.MUST, protocol.GRPC, "So does one that is cancelled in the middle of a response.")
async def cancel_response(bench: Bench) -> None:
    connection, body = await bench.connection(), bench.body()
    for _ in range(5):
        stream = await bench.stream(connection)
        first = messages.request_headers(bench.post(body), modes=DUPLEX)
        await stream.send(first, messages.request_body(body, end=True))
        await stream.send(messages.response_headers(((":status", "200"),)), messages.response_body(b"data: x\n\n"))
        stream.cancel()
    expect_routed(await bench.ask(connection=connection), "the connection's next request is routed")


@CASES.case(
    "disconnect", Level.MUST, protocol.GRPC, "A connection that breaks in the middle of requests hurts no other."
)
async def disconnect(bench: Bench) -> None:
    other, body = await bench.connect(), bench.body()
    for _ in range(5):
        stream = await bench.stream(other)
        first = messages.request_headers(bench.post(body), modes=DUPLEX)
        await stream.send(first, messages.request_body(body[:20]))
    await other.aclose()
    expect_routed(await bench.ask(), "a request of another connection is routed")


@CASES.case("half-close", Level.MUST, protocol.GRPC, "When the proxy half-closes, the stream ends with status OK.")
async def half_close(bench: Bench) -> None:
    stream, body = await bench.stream(), bench.body()
    await stream.send(messages.request_headers(bench.post(body), modes=DUPLEX), messages.request_body(body, end=True))
    await stream.send(messages.response_headers(((":status", "200"),), end=True))
    await stream.until(lambda said: bool(said.of("response_headers")))
    said = await stream.finish()
    expect(said.end is not None and said.end.status == 0, "gRPC status OK", said)


@CASES.case("half-close-early", Level.MUST, protocol.GRPC, "A half-close before the request's end ends the stream.")
async def half_close_early(bench: Bench) -> None:
    stream, body = await bench.stream(), bench.body()
    first = messages.request_headers(bench.post(body), modes=DUPLEX)
    await stream.send(first, messages.request_body(body[:20]))
    said = await stream.finish()
    expect(said.end is not None, "an end, whatever its status", said)


@CASES.case("half-close-at-once", Level.MUST, protocol.GRPC, "A stream without any message ends, too.")
async def half_close_at_once(bench: Bench) -> None:
    stream = await bench.stream()
    said = await stream.finish()
    expect(said.end is not None, "an end, whatever its status", said)


@CASES.case("half-close-answered", Level.MUST, protocol.GRPC, "A half-close right after the request leaves its answer.")
async def half_close_answered(bench: Bench) -> None:
    """Both directions of a gRPC stream are closed each by itself."""
    stream, body = await bench.stream(), bench.body()
    modes = (protocol.FULL_DUPLEX_STREAMED, protocol.NO_BODY)
    await stream.send(messages.request_headers(bench.post(body), modes=modes), messages.request_body(body, end=True))
    said = await stream.finish()
    expect_own_body(said, body)
