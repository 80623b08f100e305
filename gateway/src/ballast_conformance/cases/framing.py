"""How gRPC messages lie in HTTP/2 frames, and what HTTP/2 asks of every server."""

from __future__ import annotations

from ballast_conformance import messages, protocol
from ballast_conformance.bench import DUPLEX, Bench
from ballast_conformance.case import Cases
from ballast_conformance.cases.common import expect_own_body, expect_routed
from ballast_conformance.http2 import frame
from ballast_conformance.transcript import request_answered
from ballast_conformance.verdicts import Level, Skipped, expect

CASES = Cases("framing")
_UNKNOWN_FRAME = 0xF7
_WINDOW = 64
_OPENINGS = 50


@CASES.case("split", Level.MUST, protocol.GRPC, "A message may be cut into frames at any place.")
async def split(bench: Bench) -> None:
    body = bench.body()
    for size in (1, 3, 7):
        stream = await bench.stream()
        first = messages.request_headers(bench.post(body), modes=DUPLEX)
        await stream.send(first, messages.request_body(body, end=True), frame_bytes=size)
        expect_own_body(await bench.answered(stream), body)


@CASES.case("joined", Level.MUST, protocol.GRPC, "A frame may hold several messages.")
async def joined(bench: Bench) -> None:
    stream, body = await bench.stream(), bench.body()
    parts = [body[at : at + 20] for at in range(0, len(body), 20)]
    first = messages.request_headers(bench.post(body), modes=DUPLEX)
    await stream.send(
        first, *(messages.request_body(part) for part in parts), messages.request_body(b"", end=True), joined=True
    )
    expect_own_body(await bench.answered(stream), body)


@CASES.case("last-frame", Level.MUST, protocol.GRPC, "The frame with the last message may end the stream.")
async def last_frame(bench: Bench) -> None:
    stream, body = await bench.stream(), bench.body()
    modes = (protocol.FULL_DUPLEX_STREAMED, protocol.NO_BODY)
    first = messages.request_headers(bench.post(body), modes=modes)
    await stream.send(first, messages.request_body(body, end=True), end=True)
    said = await stream.until(lambda said: said.end is not None)
    expect_own_body(said, body)
    expect(said.end is not None, "the end of the stream", said)


@CASES.case("window", Level.MUST, protocol.http2("6.9"), "The picker sends no more than the proxy's window allows.")
async def window(bench: Bench) -> None:
    connection = await bench.connect(window=_WINDOW, withhold=True)
    stream, body = await bench.stream(connection), bench.body("word " * 100)
    first = messages.request_headers(bench.post(body), modes=DUPLEX)
    await stream.send(first, messages.request_body(body, end=True))
    await stream.quiet()
    expect(not connection.overrun, f"at most {_WINDOW} bytes", f"{_WINDOW + connection.overrun} bytes or more")


@CASES.case("window-opens", Level.MUST, protocol.http2("6.9"), "It goes on when the window opens, by however little.")
async def window_opens(bench: Bench) -> None:
    connection = await bench.connect(window=_WINDOW, withhold=True)
    stream, body = await bench.stream(connection), bench.body()
    first = messages.request_headers(bench.post(body), modes=DUPLEX)
    await stream.send(first, messages.request_body(body, end=True))
    for _ in range(_OPENINGS):
        if request_answered(await stream.quiet()):
            break
        connection.allow(stream.call.stream, _WINDOW)
    expect_own_body(stream.said, body)


@CASES.case("ping", Level.MUST, protocol.http2("6.7"), "PING is acknowledged.")
async def ping(bench: Bench) -> None:
    connection = await bench.connection()
    answered = await bench.within(connection.ping(b"ballast!"))
    expect(answered, "a PING with ACK", connection.ended or "none")


@CASES.case("unknown-frame", Level.MUST, protocol.http2("4.1"), "Frames of unknown types are passed over.")
async def unknown_frame(bench: Bench) -> None:
    connection = await bench.connection()
    connection.raw(frame(_UNKNOWN_FRAME, 0xFF, 0, b"of the future"))
    expect_routed(await bench.ask(connection=connection), "the next request is routed")


@CASES.case("alpn", Level.MUST, protocol.http2("3.2"), "Over TLS, HTTP/2 is agreed on by ALPN.")
async def alpn(bench: Bench) -> None:
    connection = await bench.connection()
    if not connection.secure:
        raise Skipped("the picker listens without TLS")
    expect(connection.alpn == "h2", "h2", connection.alpn or "no protocol")
