"""The response's phases, which a picker sees and passes on."""

from __future__ import annotations

from ballast_conformance import messages, protocol
from ballast_conformance.bench import DUPLEX, OK_HEADERS, SSE_HEADERS, Bench
from ballast_conformance.case import Cases
from ballast_conformance.cases.common import UNKNOWN_ENDPOINT, expect_routed
from ballast_conformance.dialogue import Dialogue
from ballast_conformance.messages import Metadata, Pairs
from ballast_conformance.transcript import request_answered, text_of
from ballast_conformance.verdicts import Level, expect

CASES = Cases("response")
KIND = "response_body"
_TOKENS = [
    *(f'data: {{"id":"c","choices":[{{"index":0,"text":"t{number}"}}]}}\n\n'.encode() for number in range(6)),
    b"data: [DONE]\n\n",
]
_ANSWER = b'{"id" : "c", "choices" : [{"index" : 0, "text" : "done"}], "usage" : {"completion_tokens" : 1}}'


async def _routed(bench: Bench, modes: tuple[int, int] = DUPLEX) -> Dialogue:
    """A stream whose request is routed."""
    stream, body = await bench.stream(), bench.body()
    await stream.send(messages.request_headers(bench.post(body), modes=modes), messages.request_body(body, end=True))
    expect_routed(await stream.until(request_answered))
    return stream


async def _headers(stream: Dialogue, headers: Pairs, *, end: bool = False, metadata: Metadata | None = None) -> None:
    """Send the response's headers, and see them answered."""
    await stream.send(messages.response_headers(headers, end=end, metadata=metadata))
    said = await stream.until(lambda said: bool(said.of("response_headers")))
    expect(len(said.of("response_headers")) == 1, "one response_headers reply", said)


@CASES.case("headers", Level.MUST, protocol.REQUEST, "The response's headers are answered.")
async def headers(bench: Bench) -> None:
    stream = await _routed(bench)
    await _headers(stream, OK_HEADERS)


@CASES.case("headers-untouched", Level.SHOULD, protocol.STREAMING, "The status and type of the response stay.")
async def headers_untouched(bench: Bench) -> None:
    stream = await _routed(bench)
    await _headers(stream, OK_HEADERS)
    mutation = stream.said.of("response_headers")[0].response.header_mutation
    sent = dict(OK_HEADERS)
    now = sent | {option.header.key.lower(): text_of(option.header) for option in mutation.set_headers}
    changed = [name for name in sent if now[name] != sent[name] or name in mutation.remove_headers]
    expect(not changed, "left alone", f"changes {', '.join(changed)}")


@CASES.case("headers-alone", Level.MUST, protocol.REQUEST, "A response without a body ends with its headers.")
async def headers_alone(bench: Bench) -> None:
    stream = await _routed(bench)
    await _headers(stream, ((":status", "204"),), end=True)
    said = await stream.quiet()
    expect(not said.of(KIND), "no response_body", said)


@CASES.case("body", Level.MUST, protocol.DUPLEX, "A whole answer comes back byte for byte, to its end.")
async def body(bench: Bench) -> None:
    stream = await _routed(bench)
    await _headers(stream, OK_HEADERS)
    await stream.send(messages.response_body(_ANSWER[:50]), messages.response_body(_ANSWER[50:], end=True))
    said = await stream.until(lambda said: said.ended(KIND))
    expect(said.body(KIND) == _ANSWER and said.ended(KIND), f"{len(_ANSWER)} bytes and their end", said)


@CASES.case(
    "stream", Level.MUST, protocol.STREAMING, "A streamed answer comes back byte for byte, in order, to its end."
)
async def token_stream(bench: Bench) -> None:
    stream = await _routed(bench)
    await _headers(stream, SSE_HEADERS)
    for at, token in enumerate(_TOKENS):
        await stream.send(messages.response_body(token, end=at == len(_TOKENS) - 1))
    said = await stream.until(lambda said: said.ended(KIND))
    whole = said.body(KIND) == b"".join(_TOKENS) and said.ended(KIND)
    expect(whole, f"{len(_TOKENS)} events and their end", f"{len(said.body(KIND))} bytes, {said}")


@CASES.case("live", Level.MUST, protocol.STREAMING, "Each token comes back before the next is sent.")
async def live(bench: Bench) -> None:
    stream = await _routed(bench)
    await _headers(stream, SSE_HEADERS)
    for at, token in enumerate(_TOKENS[:-1]):
        await stream.send(messages.response_body(token))
        sent = b"".join(_TOKENS[: at + 1])
        said = await stream.until(lambda said, sent=sent: len(said.body(KIND)) >= len(sent))  # type: ignore[misc]
        expect(said.body(KIND) == sent, f"token {at + 1} before the next", said)


@CASES.case("chunks-streamed", Level.MUST, protocol.DUPLEX, "Chunks of the response come back as StreamedBodyResponse.")
async def chunks_streamed(bench: Bench) -> None:
    stream = await _routed(bench)
    await _headers(stream, SSE_HEADERS)
    await stream.send(*(messages.response_body(token) for token in _TOKENS), messages.response_body(b"", end=True))
    said = await stream.until(lambda said: said.ended(KIND))
    others = [
        part for part in said.of(KIND) if part.response.body_mutation.WhichOneof("mutation") != "streamed_response"
    ]
    expect(bool(said.of(KIND)) and not others, "every body reply has body_mutation.streamed_response", said)


@CASES.case("trailers", Level.MUST, protocol.REQUEST, "Trailers are answered, after the body.")
async def trailers(bench: Bench) -> None:
    stream = await _routed(bench)
    await _headers(stream, SSE_HEADERS)
    await stream.send(*(messages.response_body(token) for token in _TOKENS), messages.response_trailers())
    said = await stream.until(lambda said: bool(said.of("response_trailers")))
    expect(said.kinds()[-1:] == ["response_trailers"], "response_trailers as the last reply", said)
    expect(said.body(KIND) == b"".join(_TOKENS), "the body before them", said)


@CASES.case("trailers-end", Level.MUST, protocol.DUPLEX, "Before trailers no chunk says end_of_stream.")
async def trailers_end(bench: Bench) -> None:
    stream = await _routed(bench)
    await _headers(stream, SSE_HEADERS)
    await stream.send(*(messages.response_body(token) for token in _TOKENS), messages.response_trailers())
    said = await stream.until(lambda said: bool(said.of("response_trailers")))
    expect(not said.ended(KIND), "no end_of_stream: trailers follow", said)


@CASES.case("error", Level.MUST, protocol.REQUEST, "An engine's error passes, with its body.")
async def error(bench: Bench) -> None:
    stream = await _routed(bench)
    await _headers(stream, ((":status", "500"), ("content-type", "application/json")))
    await stream.send(messages.response_body(b'{"error":"x"}', end=True))
    said = await stream.until(lambda said: said.ended(KIND) or said.immediate is not None)
    expect(said.body(KIND) == b'{"error":"x"}', "the engine's body", said)


@CASES.case("served", Level.MUST, protocol.FEEDBACK, "The endpoint that served may be told, and is taken in.")
async def served(bench: Bench) -> None:
    stream = await _routed(bench)
    first = stream.said.endpoints[0]
    await _headers(stream, OK_HEADERS, end=True, metadata=messages.served(first))
    said = await stream.finish()
    expect(said.end is not None and said.end.status == 0, "the stream ends with status OK", said)


@CASES.case("served-elsewhere", Level.MUST, protocol.FEEDBACK, "It may be another one than was picked.")
async def served_elsewhere(bench: Bench) -> None:
    stream = await _routed(bench)
    await _headers(stream, OK_HEADERS, end=True, metadata=messages.served(UNKNOWN_ENDPOINT))
    said = await stream.finish()
    expect(said.end is not None and said.end.status == 0, "the stream ends with status OK", said)
    expect_routed(await bench.ask(), "the next request is routed")


@CASES.case("not-shown", Level.MUST, protocol.MODES, "A proxy may show no response and half-close after the request.")
async def not_shown(bench: Bench) -> None:
    stream = await _routed(bench, (protocol.FULL_DUPLEX_STREAMED, protocol.NO_BODY))
    said = await stream.finish()
    expect(said.end is not None and said.end.status == 0, "the stream ends with status OK", said)
