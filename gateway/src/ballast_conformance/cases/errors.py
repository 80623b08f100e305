"""What cannot be routed, and what is no request at all."""

from __future__ import annotations

from collections.abc import AsyncIterator

from ballast_conformance import messages, protocol
from ballast_conformance.bench import DUPLEX, Bench
from ballast_conformance.case import Cases
from ballast_conformance.cases.common import expect_routed
from ballast_conformance.dialogue import Dialogue
from ballast_conformance.messages import subset
from ballast_conformance.transcript import Transcript, request_answered
from ballast_conformance.verdicts import Level, Skipped, expect

CASES = Cases("errors")


async def _malformed(bench: Bench) -> AsyncIterator[tuple[str, Transcript]]:
    """Bodies of a completions request that are none."""
    bodies = {
        "no JSON": b"{'model': nonsense",
        "cut off": bench.body()[:-20],
        "an array": b"[1, 2, 3]",
        "no UTF-8": b'{"model": "\xff\xfe"}',
        "empty": b"",
        "deep": b'{"a":' * 5000,
    }
    for name, body in bodies.items():
        yield name, await bench.ask(body)


@CASES.case("malformed-answered", Level.MUST, protocol.REQUEST, "A malformed body is answered, one way or other.")
async def malformed_answered(bench: Bench) -> None:
    async for name, said in _malformed(bench):
        answered = said.silent_s is None and (said.end is None or said.end.status is not None)
        expect(answered, f"a reply, or the stream's end ({name})", said)


@CASES.case("malformed-4xx", Level.SHOULD, protocol.IMMEDIATE, "A malformed body gets an ImmediateResponse 4xx.")
async def malformed_4xx(bench: Bench) -> None:
    """The client's mistake: routed on, an engine would say so; a failed stream is a 500 to the client."""
    async for name, said in _malformed(bench):
        if said.destination is None:
            status = said.status
            expect(status is not None and 400 <= status < 500, f"4xx, or the engine is asked ({name})", said)


@CASES.case("malformed-next", Level.MUST, protocol.REQUEST, "After malformed bodies the picker goes on.")
async def malformed_next(bench: Bench) -> None:
    async for _ in _malformed(bench):
        pass
    expect_routed(await bench.ask(), "the next request is routed")


@CASES.case("immediate-alone", Level.MUST, protocol.IMMEDIATE, "An ImmediateResponse is the only answer to a request.")
async def immediate_alone(bench: Bench) -> None:
    stream, body = await bench.stream(), bench.body()
    first = messages.request_headers(bench.post(body), modes=DUPLEX, metadata=subset([]))
    await stream.send(first, messages.request_body(body, end=True, metadata=subset([])))
    await stream.until(request_answered)
    said = await stream.quiet()
    if said.immediate is None:
        raise Skipped("no ImmediateResponse came")
    expect(said.kinds() == ["immediate_response"], "one reply", said)


@CASES.case("shed", Level.MUST, protocol.TO_PROXY, "A request that is dropped gets an ImmediateResponse 429.")
async def shed(bench: Bench) -> None:
    if not bench.plan.flood:
        raise Skipped("needs leave to have requests shed, see --flood")
    objective = bench.plan.objective
    extra = () if objective is None else ((protocol.OBJECTIVES[0], objective),)
    connection, body = await bench.connection(), bench.body()
    for sent in range(1, bench.plan.flood + 1):
        stream = await bench.stream(connection)
        await stream.send(messages.request_headers(bench.post(body, extra), modes=DUPLEX))
        await stream.send(messages.request_body(body, end=True))
        said = await stream.until(request_answered)
        if said.destination is None:
            expect(said.status == 429, f"429 where request {sent} is dropped", said)
            return
    raise Skipped(f"none of {bench.plan.flood} requests in flight was shed")


async def _survives(bench: Bench, stream: Dialogue, what: str) -> None:
    """The stream ends or is answered, and the picker goes on."""
    await stream.half_close()
    said = await stream.until(lambda said: said.end is not None)
    expect(said.end is not None, f"the stream ends after {what}", said)
    expect_routed(await bench.ask(connection=await bench.connect()), f"a request is routed after {what}")


@CASES.case("no-protobuf", Level.MUST, protocol.GRPC, "A message that cannot be read ends its stream alone.")
async def no_protobuf(bench: Bench) -> None:
    stream = await bench.stream()
    await stream.send_raw((b"\xff\xff\xff\xff nonsense",))
    await _survives(bench, stream, "bytes that are no message")
    expect_routed(await bench.ask(), "other streams of the connection go on")


@CASES.case("empty-message", Level.MUST, protocol.REQUEST, "A message without a request does not hang or hurt.")
async def empty_message(bench: Bench) -> None:
    stream = await bench.stream()
    await stream.send_raw((b"",))
    await _survives(bench, stream, "a message without a request")


@CASES.case("out-of-order", Level.MUST, protocol.REQUEST, "Messages out of order do not hang or hurt.")
async def out_of_order(bench: Bench) -> None:
    body = bench.body()
    orders = {
        "a response first": [messages.response_headers(((":status", "200"),))],
        "trailers first": [messages.request_trailers()],
        "a body first": [messages.request_body(body, end=True)],
        "headers twice": [messages.request_headers(bench.post(body))] * 2,
        "a response before the body's end": [
            messages.request_headers(bench.post(body)),
            messages.request_body(body[:20]),
            messages.response_headers(((":status", "413"),), end=True),
        ],
    }
    for name, wrong in orders.items():
        stream = await bench.stream()
        await stream.send(*wrong)
        await _survives(bench, stream, name)
