"""The request's body in full duplex, the mode that the endpoint-picker protocol is built on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ballast_conformance import messages, protocol
from ballast_conformance.bench import DUPLEX, Bench
from ballast_conformance.case import Cases
from ballast_conformance.cases.common import expect_routed, same_document
from ballast_conformance.transcript import Transcript, request_answered
from ballast_conformance.verdicts import Level, Skipped, expect

CASES = Cases("body")
KIND = "request_body"
_ORDER = ("request_headers", "request_body", "request_trailers")


def _cut(body: bytes, size: int) -> list[bytes]:
    return [body[at : at + size] for at in range(0, len(body), size)]


def expect_whole(said: Transcript, body: bytes) -> None:
    """Raise `Failed` unless the body came back, to its end; a picker may rewrite the model's name."""
    expect_routed(said)
    back = b"".join(part.body for part in said.streamed(KIND)) or _classic(said)
    expect(same_document(back, body), f"a body of {len(body)} bytes comes back whole", f"{len(back)} bytes, {said}")


def _in_order(said: Transcript) -> bool:
    places = [_ORDER.index(kind) for kind in said.kinds() if kind in _ORDER]
    return places == sorted(places)


def _classic(said: Transcript) -> bytes:
    """The body of answers that are not streamed: judged by a case of its own."""
    return b"".join(part.response.body_mutation.body for part in said.of(KIND))


@CASES.case("whole", Level.MUST, protocol.DUPLEX, "The whole body comes back; only the model's name may change.")
async def whole(bench: Bench) -> None:
    body = bench.body()
    expect_whole(await bench.ask(body), body)


@CASES.case("bytes", Level.SHOULD, protocol.STREAMING, "A body that needs no change comes back byte for byte.")
async def same_bytes(bench: Bench) -> None:
    body = bench.body()
    said = await bench.ask(body)
    expect_routed(said)
    back = said.body(KIND) or _classic(said)
    expect(back == body, f"the same {len(body)} bytes", f"{len(back)} bytes, written anew")


@CASES.case("content-length", Level.MUST, protocol.MUTATION, "Where a length changes, so does Content-Length.")
async def content_length(bench: Bench) -> None:
    body = bench.body()
    said = await bench.ask(body)
    expect_routed(said)
    if "content-length" in said.removed_headers():
        return
    stated, back = said.header("content-length") or str(len(body)), len(said.body(KIND) or _classic(said))
    if not back:
        raise Skipped("no body came back")
    expect(stated == str(back), f"Content-Length {back}, or none", f"Content-Length {stated} on {back} bytes")


@CASES.case("streamed-response", Level.MUST, protocol.DUPLEX, "Chunks come back as StreamedBodyResponse.")
async def streamed_response(bench: Bench) -> None:
    said = await bench.ask()
    expect_routed(said)
    parts = said.of(KIND)
    others = [part for part in parts if part.response.body_mutation.WhichOneof("mutation") != "streamed_response"]
    expect(bool(parts) and not others, "every body reply has body_mutation.streamed_response", said)


@CASES.case("end-of-stream", Level.MUST, protocol.DUPLEX, "The last chunk, and it alone, says end_of_stream.")
async def end_of_stream(bench: Bench) -> None:
    stream = await bench.stream()
    await _post(bench, stream, [bench.body()])
    await stream.until(request_answered)
    said = await stream.quiet()
    expect_routed(said)
    ends = [chunk.end_of_stream for chunk in said.streamed(KIND)]
    expect(ends.count(True) == 1 and ends[-1], "end_of_stream on the last chunk only", ends or said)


@CASES.case(
    "nothing-after-end", Level.MUST, protocol.DUPLEX, "After the last chunk, nothing more comes for the request."
)
async def nothing_after_end(bench: Bench) -> None:
    stream = await bench.stream()
    await _post(bench, stream, [bench.body()])
    await stream.until(request_answered)
    expect_routed(stream.said)
    count = len(stream.said.replies)
    said = await stream.quiet()
    expect(len(said.replies) == count, "silence until the response begins", said)


@CASES.case("order", Level.MUST, protocol.DUPLEX, "The headers' reply comes before the body.")
async def order(bench: Bench) -> None:
    body = bench.body()
    said = await bench.ask(body, chunks=_cut(body, 40))
    expect_routed(said)
    expect(_in_order(said), "headers, then body", said)


@CASES.case("one-headers-reply", Level.MUST, protocol.REQUEST, "The headers are answered once.")
async def one_headers_reply(bench: Bench) -> None:
    said = await bench.ask()
    expect(len(said.of("request_headers")) == 1, "one request_headers reply", said)


@CASES.case("chunks", Level.MUST, protocol.DUPLEX, "A body of many small chunks comes back whole.")
async def chunks(bench: Bench) -> None:
    body = bench.body("word " * 100)
    expect_whole(await bench.ask(body, chunks=_cut(body, 7)), body)


@CASES.case("empty-chunks", Level.MUST, protocol.DUPLEX, "Empty chunks in the middle and at the end change nothing.")
async def empty_chunks(bench: Bench) -> None:
    body = bench.body()
    said = await bench.ask(body, chunks=[b"", body[:20], b"", body[20:], b""])
    expect_whole(said, body)
    expect(said.ended(KIND), "a last chunk with end_of_stream", said)


@CASES.case("large", Level.MUST, protocol.DUPLEX, "A large body comes back whole.")
async def large(bench: Bench) -> None:
    body = bench.body("many words " * (bench.plan.large_bytes // 11))
    said = await bench.ask(body, chunks=_cut(body, protocol.MOST_CHUNK_BYTES))
    expect_whole(said, body)
    expect(said.ended(KIND), "a last chunk with end_of_stream", said)


@CASES.case("chunk-size", Level.SHOULD, protocol.DUPLEX, "Chunks are not larger than 64 KiB.")
async def chunk_size(bench: Bench) -> None:
    body = bench.body("many words " * (bench.plan.large_bytes // 11))
    said = await bench.ask(body, chunks=_cut(body, protocol.MOST_CHUNK_BYTES))
    expect_routed(said)
    most = max((len(chunk.body) for chunk in said.streamed(KIND)), default=0)
    if not most:
        raise Skipped("no streamed chunk came")
    expect(most <= protocol.MOST_CHUNK_BYTES, f"at most {protocol.MOST_CHUNK_BYTES} bytes", f"{most} bytes")


@CASES.case("early", Level.MUST, protocol.DUPLEX, "The body does not end before the client has ended it.")
async def early(bench: Bench) -> None:
    stream, body = await bench.stream(), bench.body()
    await stream.send(messages.request_headers(bench.post(body), modes=DUPLEX), messages.request_body(body[:30]))
    await stream.quiet()
    ended = stream.said.ended(KIND)
    await stream.send(messages.request_body(body[30:], end=True))
    said = await bench.answered(stream)
    expect_routed(said)
    expect(not ended, "end_of_stream after the client's", "end_of_stream before it")


@CASES.case("trailers", Level.MUST, protocol.DUPLEX, "Trailers end a body: headers, body and trailers are answered.")
async def trailers(bench: Bench) -> None:
    body = bench.body()
    said = await bench.ask(body, chunks=_cut(body, 40), trailers=True)
    expect_whole(said, body)
    expect(len(said.of("request_trailers")) == 1, "one request_trailers reply", said)
    expect(_in_order(said), "headers, body, trailers", said)


@CASES.case("trailers-end", Level.MUST, protocol.DUPLEX, "Before trailers no chunk says end_of_stream.")
async def trailers_end(bench: Bench) -> None:
    body = bench.body()
    said = await bench.ask(body, chunks=_cut(body, 40), trailers=True)
    expect_routed(said)
    expect(not said.ended(KIND), "no end_of_stream: trailers follow", "end_of_stream on a chunk")


@CASES.case("without-length", Level.MUST, protocol.DUPLEX, "A body without Content-Length is served alike.")
async def without_length(bench: Bench) -> None:
    stream, body = await bench.stream(), bench.body()
    await stream.send(messages.request_headers(bench.post(None), modes=DUPLEX))
    await stream.send(*(messages.request_body(part) for part in _cut(body, 50)), messages.request_body(b"", end=True))
    said = await bench.answered(stream)
    expect_whole(said, body)
    expect(said.ended(KIND), "a last chunk with end_of_stream", said)


@CASES.case(
    "early-body-flag", Level.MUST, protocol.CONFIG, "A body sent without waiting for the headers' reply is served."
)
async def early_body_flag(bench: Bench) -> None:
    stream, body = await bench.stream(), bench.body()
    first = messages.request_headers(bench.post(body), modes=DUPLEX, early_body=True)
    await stream.send(first, messages.request_body(body, end=True))
    expect_whole(await bench.answered(stream), body)


async def _post(bench: Bench, stream: Any, parts: Sequence[bytes]) -> None:
    await stream.send(messages.request_headers(bench.post(b"".join(parts)), modes=DUPLEX))
    last = len(parts) - 1
    await stream.send(*(messages.request_body(part, end=at == last) for at, part in enumerate(parts)))
