"""Other ways in which a proxy may show bodies, and proxies that do not say how."""

from __future__ import annotations

from ballast_conformance import messages, protocol
from ballast_conformance.bench import DUPLEX, Bench
from ballast_conformance.case import Cases
from ballast_conformance.cases.body import expect_whole
from ballast_conformance.cases.common import expect_routed
from ballast_conformance.transcript import headers_answered, request_answered
from ballast_conformance.verdicts import Level, expect

CASES = Cases("modes")


@CASES.case("not-told", Level.SHOULD, protocol.CONFIG, "Without protocol_config, full duplex is taken for granted.")
async def not_told(bench: Bench) -> None:
    stream, body = await bench.stream(), bench.body()
    await stream.send(messages.request_headers(bench.post(body), modes=None), messages.request_body(body, end=True))
    said = await bench.answered(stream)
    expect_whole(said, body)
    expect(said.ended("request_body"), "StreamedBodyResponse with end_of_stream", said)


@CASES.case(
    "buffered", Level.MAY, protocol.MODES, "BUFFERED: one reply to headers and body each, routed by the latter."
)
async def buffered(bench: Bench) -> None:
    stream, body = await bench.stream(), bench.body()
    modes = (protocol.BUFFERED, protocol.NO_BODY)
    await stream.send(messages.request_headers(bench.post(body), modes=modes))
    said = await stream.until(headers_answered)
    expect(headers_answered(said), "a reply to the headers, before the body", said)
    await stream.send(messages.request_body(body, end=True))
    said = await stream.replies(2)
    expect(said.kinds() == ["request_headers", "request_body"], "one reply to each message", said)
    expect_routed(said)
    expect(not said.streamed("request_body"), "no StreamedBodyResponse", said)


@CASES.case("streamed", Level.MAY, protocol.MODES, "STREAMED: the headers' reply routes, each chunk has a reply.")
async def streamed(bench: Bench) -> None:
    stream, body = await bench.stream(), bench.body()
    modes = (protocol.STREAMED, protocol.NO_BODY)
    await stream.send(messages.request_headers(bench.post(body), modes=modes))
    said = await stream.until(headers_answered)
    expect_routed(said, "the reply to the headers routes")
    await stream.send(messages.request_body(body[:20]), messages.request_body(body[20:], end=True))
    said = await stream.replies(3)
    expect(said.kinds()[1:] == ["request_body"] * 2, "one reply to each chunk", said)
    expect(not said.streamed("request_body"), "no StreamedBodyResponse", said)


@CASES.case("none", Level.MAY, protocol.MODES, "NONE: the headers' reply routes, no body is waited for.")
async def none(bench: Bench) -> None:
    stream = await bench.stream()
    modes = (protocol.NO_BODY, protocol.NO_BODY)
    await stream.send(messages.request_headers(bench.post(bench.body()), modes=modes))
    expect_routed(await stream.until(headers_answered), "the reply to the headers routes")


@CASES.case("response-buffered", Level.MAY, protocol.MODES, "A BUFFERED response: one reply to its body, no stream.")
async def response_buffered(bench: Bench) -> None:
    stream, body = await bench.stream(), bench.body()
    modes = (protocol.FULL_DUPLEX_STREAMED, protocol.BUFFERED)
    await stream.send(messages.request_headers(bench.post(body), modes=modes), messages.request_body(body, end=True))
    expect_routed(await stream.until(request_answered))
    await stream.send(messages.response_headers(((":status", "200"),)), messages.response_body(b"{}", end=True))
    said = await stream.until(lambda said: bool(said.of("response_body")))
    expect(len(said.of("response_body")) == 1, "one response_body reply", said)
    expect(not said.streamed("response_body"), "no StreamedBodyResponse", said)


@CASES.case("observability", Level.SHOULD, protocol.REQUEST, "A stream in observability mode is not failed.")
async def observability(bench: Bench) -> None:
    """Its replies are ignored, so it must only end well."""
    stream, body = await bench.stream(), bench.body()
    shown = [messages.request_headers(bench.post(body), modes=DUPLEX), messages.request_body(body, end=True)]
    for message in shown:
        message.observability_mode = True
    await stream.send(*shown)
    said = await stream.finish()
    expect(said.end is not None and said.end.status == 0, "the stream ends with status OK", said)
