"""Streams of a real vLLM whose events have several tokens: they go on elsewhere, and are counted."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tests.support.gateway_kit import RunningGateway, running_gateway
from tests.support.real_vllm import PATIENT, one_engine
from tests.support.streams import heard

STREAMS = 12
CREATED = re.compile(r'"created":[0-9]+,')


@asynccontextmanager
async def breaking(port: int) -> AsyncIterator[tuple[int, list[int]]]:
    """A way to an engine on which streams break after so many of their bytes: the next one that is in the list."""
    after: list[int] = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", port)

        async def forth() -> None:
            while data := await reader.read(65536):
                there_writer.write(data)
            there_writer.close()

        async def back() -> None:
            left: int | None = None
            while data := await there_reader.read(256):
                if left is None and b"text/event-stream" in data and after:
                    left = after.pop()
                if left is not None and (left := left - len(data)) <= 0:
                    break
                writer.write(data)
            writer.close()
            there_writer.close()

        await asyncio.gather(forth(), back(), return_exceptions=True)

    async with await asyncio.start_server(take, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1], after


@pytest.mark.vllm
@pytest.mark.rotating(2)
async def test_a_stream_of_several_tokens_an_event_goes_on_at_the_token(tmp_path: Path) -> None:
    """Greedy: the text and the usage of one engine, wherever it broke. The model speaks bytes at random, so most tokens
    end inside of a character, and the last event says nothing of where: `/detokenize` does.
    """
    body = {"model": "tiny", "max_tokens": 150, "temperature": 0, "ignore_eos": True}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    with one_engine(tmp_path, "--stream-interval", "3") as engine:
        async with breaking(engine.port) as (port, after):
            addresses = {"f0": f"127.0.0.1:{port}", "f1": f"127.0.0.1:{engine.port}"}
            policy = {"prefill": {"type": "round-robin"}, "decode": {"type": "round-robin"}}
            async with (
                running_gateway(tmp_path, addresses, policy=policy, ready_s=PATIENT["ready_s"]) as gateway,
                httpx.AsyncClient(timeout=300, trust_env=False) as client,
            ):
                rescues = 0
                for number in range(STREAMS):
                    asked = {**body, "prompt": list(range(700 + number, 900 + number))}
                    alone = await heard(client, f"{engine.url}/v1/completions", asked, f"r{number}")
                    after[:] = [6_000 + 411 * number]
                    saved = await heard(client, f"{gateway.url}/v1/completions", asked, f"r{number}")
                    assert saved == alone, number
                    rescues += gateway.requests()[-1].get("rescues", 0)
                await _is_counted_unseen(client, engine.url, gateway)
    assert rescues >= STREAMS // 3


async def _is_counted_unseen(client: httpx.AsyncClient, engine_url: str, gateway: RunningGateway) -> None:
    """A stream that is not held: the usage that the gateway asks for is all that differs, and nobody sees it."""
    asked = {"model": "tiny", "max_tokens": 31, "seed": 1, "ignore_eos": True, "stream": True}
    for path, prompt in (
        ("/v1/completions", {"prompt": list(range(700, 900))}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Tell me of the sea."}]}),
    ):
        answers = [
            await client.post(f"{url}{path}", json=asked | prompt, headers={"x-request-id": "same"})
            for url in (engine_url, gateway.url)
        ]
        alone, ours = (CREATED.sub("", answer.text) for answer in answers)
        assert ours == alone
        assert gateway.requests()[-1]["output_tokens"] == 31
