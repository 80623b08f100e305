"""Answers that end as if they were whole and are not, of requests that cannot go on elsewhere token by token."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import httptools
import pytest

from ballast_gateway.http.responses import ResponseReader
from ballast_gateway.proxy.sse import TokenMeter
from tests.support.gateway_kit import RunningGateway, post, raw_exchange, running_gateway
from tests.support.scripted_engine import (
    SSE_HEAD,
    Asked,
    Script,
    chunk,
    decode_script,
    json_reply,
    prefill_script,
    scripted_engine,
    sse_events,
    vllm_events,
)

PATH = "/v1/completions"
TIED: dict[str, Any] = {"model": "tiny", "prompt": "hello", "max_tokens": 3, "seed": 1, "temperature": 0.5}
UNFRAMED = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n"
WHOLE = json_reply({"choices": [{"index": 0, "text": "abc", "finish_reason": "length"}]}).partition(b"\r\n\r\n")[2]


@asynccontextmanager
async def first_is_bad(tmp_path: Path, bad: Script) -> AsyncIterator[tuple[RunningGateway, list[str]]]:
    """A gateway before two decode engines: whichever is asked first answers so, later ones are good. And who was."""
    asked: list[str] = []

    async def once(request: Asked, writer: asyncio.StreamWriter) -> None:
        asked.append(request.path)
        await (decode_script if len(asked) > 1 else bad)(request, writer)

    async with (
        scripted_engine(prefill_script) as prefill,
        scripted_engine(once) as first,
        scripted_engine(once) as second,
        running_gateway(tmp_path, {"p0": prefill.address, "d0": first.address, "d1": second.address}) as gateway,
    ):
        yield gateway, asked


async def test_a_stream_that_ends_without_done_is_broken_off(tmp_path: Path) -> None:
    """Its client learns that the answer is not whole."""

    async def ends_early(_: Asked, writer: asyncio.StreamWriter) -> None:
        events = sse_events(["a", "b"])
        writer.write(SSE_HEAD + b"".join(chunk(event) for event in events if b"[DONE]" not in event) + b"0\r\n\r\n")

    async with (
        scripted_engine(prefill_script) as prefill,
        scripted_engine(ends_early) as decode,
        running_gateway(tmp_path, {"p0": prefill.address, "d0": decode.address}) as gateway,
    ):
        (answer,) = await raw_exchange(gateway.port, post(PATH, TIED | {"stream": True}), answers=1)
        assert (answer.status, answer.whole) == (200, False)
        assert b"upstream-broke" in answer.body
        entry = gateway.request()
        assert (entry["outcome"], entry["reason"]) == ("failed", "upstream-broke")


BODIES = {
    "no object": b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n{this is",
    "cut off, without a length": UNFRAMED + WHOLE[:-10],
}


@pytest.mark.parametrize("bad", BODIES.values(), ids=BODIES.keys())
async def test_a_whole_answer_that_is_no_completion_is_asked_for_elsewhere(tmp_path: Path, bad: bytes) -> None:
    """The client gets the other engine's."""

    async def script(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(bad)
        writer.close()

    async with first_is_bad(tmp_path, script) as (gateway, asked):
        (answer,) = await raw_exchange(gateway.port, post(PATH, TIED), answers=1)
        assert answer.status == 200
        assert answer.json()["choices"][0]["text"] == "abc"
        assert len(asked) == 2


@pytest.mark.parametrize("status", [102, 103, 199])
@pytest.mark.parametrize("stream", [True, False])
async def test_an_interim_answer_with_a_body_is_not_passed_on(tmp_path: Path, status: int, stream: bool) -> None:
    """It can have none: its bytes would be an answer without a head. The client gets the other engine's."""

    async def script(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD.replace(b" 200 OK", b" %d X" % status))
        await asyncio.sleep(0.05)
        writer.write(b"".join(chunk(event) for event in sse_events(["x"])))

    async with first_is_bad(tmp_path, script) as (gateway, asked):
        (answer,) = await raw_exchange(gateway.port, post(PATH, TIED | {"stream": stream}), answers=1)
        assert (answer.status, answer.whole, len(asked)) == (200, True, 2)
        assert b'"x"' not in answer.body


@pytest.mark.parametrize(
    ("stream", "whole"),
    [
        (b'data: {"choices":[{"text":"a"}]}\n\ndata: [DONE]\n\n', True),
        (b'data: {"choices":[{"text":"a"}]}\n\ndata: [DONE]', True),
        (b'data: {"choices":[{"text":"a"}]}\r\n\r\ndata: [DONE]\r\n\r\n', True),
        (b'data: {"choices":[{"text":"a"}]}\n\n', False),
        (b'data: {"choices":[{"text":"a"}]}\n\ndata: [DO', False),
        (b'data: [DONE]\n\ndata: {"choices":[{"text":"a"}]}\n\n', False),
    ],
)
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_stream_is_whole_when_done_came_last(stream: bytes, whole: bool, size: int) -> None:
    meter = TokenMeter()
    for at in range(0, len(stream), size):
        meter.feed(stream[at : at + size])
    assert meter.is_whole is whole


def event(text: str, finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "text": text, "finish_reason": finish_reason}
    return b"data: %b\n\n" % json.dumps({"id": "c", "choices": [choice]}, separators=(",", ":")).encode()


ABORTED_STREAM = SSE_HEAD + chunk(event("", "abort")) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
ABORTED = {
    "whole": json_reply({"choices": [{"index": 0, "text": "x", "finish_reason": "abort"}]}),
    "one of two": json_reply({"choices": [{"finish_reason": "stop", "text": "y"}, {"finish_reason": "abort"}]}),
    "a stream's first event": ABORTED_STREAM,
}


@pytest.mark.parametrize("bad", ABORTED.values(), ids=ABORTED.keys())
async def test_an_answer_that_its_engine_aborted_is_asked_for_elsewhere(tmp_path: Path, bad: bytes) -> None:
    """vLLM answers 200 with what there was when it is paused or ends."""
    stream = bad == ABORTED_STREAM

    async def script(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(bad)

    async with first_is_bad(tmp_path, script) as (gateway, asked):
        (answer,) = await raw_exchange(gateway.port, post(PATH, TIED | {"stream": stream}), answers=1)
        assert (answer.status, answer.whole, len(asked)) == (200, True, 2)
        assert b"abort" not in answer.body
        assert gateway.request()["outcome"] == "completed"


async def test_a_stream_that_its_engine_aborts_is_broken_off(tmp_path: Path) -> None:
    """What the client has cannot go on elsewhere; it must not look whole."""
    script = SSE_HEAD + chunk(event("a")), chunk(event("", "abort")) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
    answer, entry = await _one_stream(tmp_path, *script)
    assert (b'"abort"' in answer.body, b"upstream-broke" in answer.body, answer.whole) == (False, True, False)
    assert (entry["outcome"], entry["reason"]) == ("failed", "upstream-broke")


async def test_no_event_of_ours_follows_half_an_event_of_the_engine(tmp_path: Path) -> None:
    """Half an error event has passed before it is known for one: then the connection is cut, and no more is said."""
    rest = chunk(b'age":"boom"}}\n\n') + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
    answer, _ = await _one_stream(tmp_path, SSE_HEAD + chunk(event("a")), chunk(b'data: {"error":{"mess'), rest)
    assert answer.body.startswith(event("a"))
    assert (answer.body.count(b"data: "), answer.whole) == (2, False)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_usage_beyond_what_was_asked_for_is_not_believed(tmp_path: Path, stream: bool) -> None:
    """Else one engine that lies locks a tenant out, and spoils every sum."""
    usage = {"prompt_tokens": 3, "completion_tokens": 999_999_999_999_999}
    whole = json_reply({"choices": [{"index": 0, "text": "a", "finish_reason": "length"}], "usage": usage})
    told = b"data: %b\n\n" % json.dumps({"choices": [], "usage": usage}).encode()
    events = [event("a", "length"), told, b"data: [DONE]\n\n"]
    script = SSE_HEAD + b"".join(map(chunk, events)) + b"0\r\n\r\n" if stream else whole
    _, entry = await _one_stream(tmp_path, script, stream=stream)
    assert entry["output_tokens"] == TIED["max_tokens"]


@pytest.mark.parametrize("more", [{}, {"max_completion_tokens": 1}, {"max_output_tokens": 1, "n": 2}])
async def test_a_field_that_the_engine_does_not_read_lowers_no_count(tmp_path: Path, more: dict[str, int]) -> None:
    """vLLM's completions read `max_tokens`: who names another limit beside it has used what the engine says."""
    usage = {"prompt_tokens": 3, "completion_tokens": 900}
    whole = json_reply({"choices": [{"index": 0, "text": "a", "finish_reason": "length"}], "usage": usage})
    _, entry = await _one_stream(tmp_path, whole, asks=TIED | {"max_tokens": 1000} | more)
    assert entry["output_tokens"] == 900


async def test_what_a_client_wrote_and_an_engine_repeats_is_no_abort(tmp_path: Path) -> None:
    """`/v1/responses` repeats metadata and tools as JSON."""
    body = {"object": "response", "status": "completed", "metadata": {"finish_reason": "abort"}, "output": []}
    async with (
        scripted_engine(lambda _, writer: _write(writer, json_reply(body))) as flexible,
        running_gateway(tmp_path, {"f0": flexible.address}) as gateway,
    ):
        asks = {"model": "tiny", "input": "hello", "store": False}
        (answer,) = await raw_exchange(gateway.port, post("/v1/responses", asks), answers=1)
        assert (answer.status, answer.json()["metadata"], len(flexible.asked)) == (200, {"finish_reason": "abort"}, 1)


async def test_what_an_engine_writes_stands_in_no_log(tmp_path: Path) -> None:
    """Only at debug: it may hold what the client sent."""
    events = [each.replace(b'"text":"b"', b'"text":["a secret"]') for each in vllm_events(["a", "b", "c"], usage=True)]
    script = SSE_HEAD + b"".join(map(chunk, events)) + b"0\r\n\r\n"
    body = {"model": "tiny", "prompt": "hello", "max_tokens": 3}
    with logged() as lines:
        _, entry = await _one_stream(tmp_path, script, asks=body)
    assert "secret" not in json.dumps(entry) + "".join(lines)
    assert any("makes no whole answer" in line for line in lines)


HELD = {"model": "tiny", "prompt": "hello", "max_tokens": 3, "stream": True}


@pytest.mark.rotating(3)
@pytest.mark.parametrize(
    "asks", [HELD, TIED | {"stream": True}, HELD | {"stream": False}], ids=["held", "tied", "whole"]
)
@pytest.mark.parametrize("then", ["hangs", "breaks"])
async def test_what_came_to_its_last_event_is_whole(tmp_path: Path, asks: dict[str, Any], then: str) -> None:
    """Whatever the engine does between [DONE] and the end of its HTTP answer; one that hangs there is left."""

    async def script(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + b"".join(map(chunk, vllm_events(["a", "b", "c"], usage=True))))
        await writer.drain()
        if then == "hangs":
            await asyncio.Event().wait()
        await asyncio.sleep(0.05)
        writer.close()

    async with (
        scripted_engine(prefill_script) as prefill,
        scripted_engine(script) as decode,
        running_gateway(tmp_path, {"p0": prefill.address, "d0": decode.address}) as gateway,
    ):
        (answer,) = await raw_exchange(gateway.port, post(PATH, asks), answers=1)
        assert (answer.status, answer.whole, b"error" in answer.body) == (200, True, False)
        entry = gateway.request()
        assert (entry["outcome"], entry["output_tokens"]) == ("completed", 3)
        assert gateway.gateway.proxy is not None
        assert gateway.gateway.proxy.in_flight == 0
        if then == "hangs":
            async with asyncio.timeout(30):
                await decode.hung_up.wait()


OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n"
ENDLESS = {
    "a header's value": (OK + b"x: ", b"a"),
    "a header's name": (OK, b"a"),
    "headers": (OK, b"x: a\r\n"),
    "a chunk's extension": (CHUNKED + b"1;", b"a"),
    "a trailer's value": (CHUNKED + b"1\r\na\r\n0\r\nx: ", b"a"),
    "trailers": (CHUNKED + b"0\r\n", b"x: a\r\n"),
}


@pytest.mark.parametrize(("begin", "again"), ENDLESS.values(), ids=ENDLESS.keys())
@pytest.mark.parametrize("reads", [1, 100, 5_000])
def test_what_is_no_body_is_bounded(begin: bytes, again: bytes, reads: int) -> None:
    """The parser keeps a value until its end, and copies it with each read."""
    reader = ResponseReader()
    reader.feed(begin)

    def read_on() -> None:
        for _ in range(reads):
            reader.feed(again * (200_000 // len(again) // reads))

    with pytest.raises(httptools.HttpParserError, match="65536 bytes of headers"):
        read_on()


@pytest.mark.parametrize("size", [100, 3_000, 1_000_000])
def test_a_large_body_and_a_large_head_are_read(size: int) -> None:
    body = b"x" * 300_000
    head = OK + b"x: %b\r\ncontent-length: %d\r\n\r\n" % (b"a" * 60_000, len(body))
    answers = head + body + CHUNKED + b"".join(map(chunk, [body] * 3)) + b"0\r\nx: %b\r\n\r\n" % (b"a" * 60_000)
    reader, got = ResponseReader(), 0
    for answer, length in ((answers[: len(head) + len(body)], 1), (answers[len(head) + len(body) :], 3)):
        reader.begin()
        for at in range(0, len(answer), size):
            got += len(reader.feed(answer[at : at + size]))
        assert (reader.whole, reader.reusable) == (True, True)
        assert got == len(body) * length
        got = 0


async def test_a_head_without_an_end_is_left(tmp_path: Path) -> None:
    """It is no answer: another engine is asked at once, and the bad one's memory is not ours."""

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(OK + b"x: ")
        with suppress(ConnectionError):
            for _ in range(1_000):
                writer.write(b"a" * 10_000)
                await writer.drain()

    async with first_is_bad(tmp_path, script) as (gateway, asked):
        (answer,) = await raw_exchange(gateway.port, post(PATH, TIED), answers=1)
        assert (answer.status, len(asked)) == (200, 2)
        assert gateway.request()["outcome"] == "completed"


@contextmanager
def logged() -> Iterator[list[str]]:
    """What is logged at info and above, with all of each record."""
    lines: list[str] = []
    handler = logging.Handler(logging.INFO)
    handler.emit = lambda record: lines.append(f"{record.__dict__!r}")  # type: ignore[method-assign]
    logging.getLogger("ballast_gateway").addHandler(handler)
    try:
        yield lines
    finally:
        logging.getLogger("ballast_gateway").removeHandler(handler)


async def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)


async def _one_stream(
    tmp_path: Path, *parts: bytes, stream: bool = True, asks: dict[str, Any] | None = None
) -> tuple[Any, dict[str, Any]]:
    """The answer to a request whose only decode engine sends these parts, a moment apart; and its line in the log."""

    async def script(_: Asked, writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.05)

    async with (
        scripted_engine(prefill_script) as prefill,
        scripted_engine(script) as decode,
        running_gateway(tmp_path, {"p0": prefill.address, "d0": decode.address}) as gateway,
    ):
        body = TIED | {"stream": stream} if asks is None else asks
        (answer,) = await raw_exchange(gateway.port, post(PATH, body), answers=1)
        return answer, gateway.request()
