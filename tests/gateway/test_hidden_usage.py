"""A usage that only the gateway asked for stays with it, and the client's bytes are those of its own request."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast_gateway.proxy.hidden_usage import HiddenUsage
from tests.support.engine_sim import FAST, engine_sim
from tests.support.gateway_kit import running_gateway
from tests.support.scripted_engine import SSE_HEAD, Asked, chunk, scripted_engine

DONE = b"data: [DONE]\n\n"
PRINT = {"system_fingerprint": "v"}


def event(text: str, finish: str | None = None, **more: Any) -> bytes:
    return written({"id": "1", "choices": [{"index": 0, "text": text, "finish_reason": finish}], **more})


def usage(**more: Any) -> bytes:
    return written({"id": "1", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}, **more})


def written(document: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % json.dumps(document, separators=(",", ":")).encode()


def shown(stream: bytes, cuts: list[int]) -> bytes:
    hidden, got = HiddenUsage(), b""
    for start, end in pairwise(sorted({0, len(stream), *(min(cut, len(stream)) for cut in cuts)})):
        got += hidden.feed(stream[start:end])
    return got + hidden.close()


CUTS = st.lists(st.integers(0, 700), max_size=12)


@given(CUTS)
def test_a_usage_at_the_end_is_taken_out_however_the_bytes_come(cuts: list[int]) -> None:
    """What vLLM says beside it, it would have said in the event before. Nothing else changes, whatever texts say."""
    events = event("a"), b": ping\n\n", event('"usage":{"x":1}'), event("b", usage=None)
    asked = [*events, event("c", "stop"), usage(**PRINT), DONE]
    assert shown(b"".join(asked), cuts) == b"".join([*events, event("c", "stop", **PRINT), DONE])


@given(CUTS)
@pytest.mark.parametrize(
    "stream",
    [
        event("a", usage={"completion_tokens": 1}) + event("b", "stop") + usage() + DONE,
        event("a") + event("b", "stop", usage={"completion_tokens": 2}) + usage() + DONE,
        event("a") + event("b", "stop") + event("", usage={"completion_tokens": 2}) + DONE,
        (event("a") + event("b", "stop") + usage()).replace(b"\n\n", b"\r\n\r\n"),
        event("a") + event("b", "stop") + DONE,
        event("a") + event("b", "stop") + b": ping\n\n" + DONE,
        event("a") + event("b", "stop") + b"data: [DONE]",
        event("a") + event("b", "stop"),
        event("a") + b'data: {"id":"1","cho',
        b"no event at all",
    ],
    ids=[
        "forced",
        "forced at the end",
        "beside a choice",
        "line ends",
        "no usage",
        "comment",
        "no blank line",
        "no end",
        "cut",
        "garbage",
    ],
)
def test_what_else_comes_is_passed_on(stream: bytes, cuts: list[int]) -> None:
    """An engine that gives usages unasked (`--enable-force-include-usage`) does so to everybody."""
    assert shown(stream, cuts) == stream


def test_an_event_without_an_end_is_not_kept_for_ever() -> None:
    hidden = HiddenUsage()
    assert hidden.feed(event("a")) == event("a")
    assert sum(len(hidden.feed(b"x" * 65_536)) for _ in range(64)) == 64 * 65_536
    assert not hidden.gives_whole


def test_a_last_event_that_is_broken_gets_nothing_put_in() -> None:
    broken = b'data: {"id":"1","choices":[{"index":0,"finish_reason":"length","pro\n\n'
    assert shown(broken + usage(**PRINT) + DONE, []) == broken + DONE


def test_the_first_event_may_be_long() -> None:
    """It may have the log-probabilities of a long prompt."""
    long = event("a", prompt_logprobs="x" * 3_000_000)
    assert shown(long + event("b", "stop") + usage() + DONE, [1_000_000, 2_000_000]) == long + event("b", "stop") + DONE


@pytest.mark.parametrize(
    "options", [None, {}, {"include_usage": False, "continuous_usage_stats": True}, {"include_usage": True}]
)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_tokens_are_counted_where_an_event_has_several(
    tmp_path: Path, path: str, options: dict[str, bool] | None
) -> None:
    """In a stream that is not held. The client gets what its engine would have given it."""
    async with engine_sim(profile=FAST, stream_interval=4) as (server, _):
        addresses = {"f0": f"127.0.0.1:{server.port}"}
        body: dict[str, Any] = {"model": "m", "max_tokens": 41, "ignore_eos": True, "seed": 1, "stream": True}
        body |= {"prompt": [5] * 20} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "a"}]}
        body |= {} if options is None else {"stream_options": options}
        async with running_gateway(tmp_path, addresses, model={"servedNames": ["m"]}) as gateway:
            async with httpx.AsyncClient(timeout=30) as client:
                head = {"x-request-id": "same"}
                answers = [
                    await client.post(f"{url}{path}", json=body, headers=head)
                    for url in (f"http://127.0.0.1:{server.port}", gateway.url)
                ]
            alone, ours = ([undated(line) for line in answer.text.splitlines()] for answer in answers)
            assert ours == alone
            (entry,) = gateway.requests()
            assert entry["output_tokens"] == 41


def undated(line: str) -> object:
    """An event but for when it was made, in its order."""
    if not line.startswith("data: {"):
        return line
    return [(key, value) for key, value in json.loads(line[6:]).items() if key != "created"]


async def test_the_first_token_is_reported_also_where_it_is_the_last(tmp_path: Path) -> None:
    """Its event waits for the usage, which may come in a read of its own."""

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD)
        for each in (event("a", "length"), usage(), DONE):
            writer.write(chunk(each))
            await asyncio.sleep(0.05)
        writer.write(b"0\r\n\r\n")

    async with scripted_engine(script) as engine, running_gateway(tmp_path, {"f0": engine.address}) as gateway:
        body = {"model": "tiny", "prompt": "a", "max_tokens": 1, "seed": 1, "stream": True}
        async with httpx.AsyncClient(timeout=30) as client:
            answer = await client.post(f"{gateway.url}/v1/completions", json=body)
        assert answer.content == event("a", "length") + DONE
        (entry,) = gateway.requests()
        assert (entry["output_tokens"], "ttft_s" in entry) == (1, True)
