"""Answers that end as if they were whole and are not, of requests that cannot go on elsewhere token by token."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ballast_gateway.proxy.sse import TokenMeter
from tests.support.gateway_kit import post, raw_exchange, running_gateway
from tests.support.scripted_engine import (
    SSE_HEAD,
    Asked,
    chunk,
    decode_script,
    json_reply,
    prefill_script,
    scripted_engine,
    sse_events,
)

PATH = "/v1/completions"
TIED: dict[str, Any] = {"model": "tiny", "prompt": "hello", "max_tokens": 3, "seed": 1, "temperature": 0.5}
UNFRAMED = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n"
WHOLE = json_reply({"choices": [{"index": 0, "text": "abc", "finish_reason": "length"}]}).partition(b"\r\n\r\n")[2]


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
    asked: list[str] = []

    async def once(request: Asked, writer: asyncio.StreamWriter) -> None:
        asked.append(request.path)
        if len(asked) > 1:
            await decode_script(request, writer)
            return
        writer.write(bad)
        writer.close()

    async with (
        scripted_engine(prefill_script) as prefill,
        scripted_engine(once) as first,
        scripted_engine(once) as second,
        running_gateway(tmp_path, {"p0": prefill.address, "d0": first.address, "d1": second.address}) as gateway,
    ):
        (answer,) = await raw_exchange(gateway.port, post(PATH, TIED), answers=1)
        assert answer.status == 200
        assert answer.json()["choices"][0]["text"] == "abc"
        assert len(asked) == 2


@pytest.mark.parametrize("status", [102, 103, 199])
@pytest.mark.parametrize("stream", [True, False])
async def test_an_interim_answer_with_a_body_is_not_passed_on(tmp_path: Path, status: int, stream: bool) -> None:
    """It can have none: its bytes would be an answer without a head. The client gets the other engine's."""
    asked: list[str] = []

    async def once(request: Asked, writer: asyncio.StreamWriter) -> None:
        asked.append(request.path)
        if len(asked) > 1:
            await decode_script(request, writer)
            return
        writer.write(SSE_HEAD.replace(b" 200 OK", b" %d X" % status))
        await asyncio.sleep(0.05)
        writer.write(b"".join(chunk(event) for event in sse_events(["x"])))

    async with (
        scripted_engine(prefill_script) as prefill,
        scripted_engine(once) as first,
        scripted_engine(once) as second,
        running_gateway(tmp_path, {"p0": prefill.address, "d0": first.address, "d1": second.address}) as gateway,
    ):
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
