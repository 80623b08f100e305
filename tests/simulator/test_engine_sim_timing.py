"""engine-sim and the engine on a virtual clock are one thing: the same requests get their tokens at the same times."""

import asyncio
import statistics
import time
from dataclasses import dataclass, replace

import pytest

from ballast_sim.engine import EngineEvent, EngineRequest, Finished, StepEnded
from ballast_sim.engine_sim.options import ServerOptions
from ballast_sim.engine_sim.text import GeneratedContent
from ballast_sim.workloads import generate
from tests.support.engine_sim import FAST, engine_sim
from tests.support.engines import Run, started
from tests.support.virtual_clock import VirtualClock


@dataclass(frozen=True, slots=True)
class Logged:
    """One row of the request log that both sides replay."""

    arrival_s: float
    prompt: list[int]
    max_tokens: int
    priority: int


def request_log(count: int) -> list[Logged]:
    """A busy stretch of chat, part of it sharing a prefix, with three priorities."""
    shared = list(range(5000, 5160))
    rows: list[Logged] = []
    for number, row in enumerate(generate("chat", rate_rps=60, duration_s=60, seed=5, limit=count)):
        prompt = shared if number % 3 == 0 else []
        own = range(10_000 + 10_000 * number, 10_000 + 10_000 * number + min(row.input_tokens, 1500))
        rows.append(Logged(row.arrival_s, [*prompt, *own], min(row.output_tokens, 120), number % 3))
    return rows


def on_the_engine(log: list[Logged], options: ServerOptions) -> Run:
    """Replay the log on a bare engine."""
    settings = options.engine_config()
    return started(
        settings,
        [
            EngineRequest(
                request_id=str(number),
                input_tokens=len(row.prompt),
                max_tokens=row.max_tokens,
                content=GeneratedContent(list(row.prompt), settings.block_size, 0),
                arrival_s=row.arrival_s,
                priority=row.priority,
            )
            for number, row in enumerate(log)
        ],
    ).until()


def body(number: int, row: Logged, stream: bool = True) -> dict[str, object]:
    """The log's row as a request to the server."""
    return {
        "prompt": row.prompt,
        "max_tokens": row.max_tokens,
        "priority": row.priority,
        "request_id": str(number),
        "ignore_eos": True,
        "stream": stream,
    }


async def test_the_server_gives_every_token_at_the_time_at_which_the_engine_gives_it() -> None:
    """One log, two ways: over HTTP into a server whose clock is virtual, and straight into an engine. Exactly equal."""
    log, clock = request_log(80), VirtualClock()
    times: dict[str, list[float]] = {}
    cached: dict[str, int] = {}

    def observe(event: EngineEvent) -> None:
        if isinstance(event, StepEnded):
            for request_id in event.tokens:
                times.setdefault(request_id.split("-")[1], []).append(round(event.at_s, 9))
        elif isinstance(event, Finished):
            cached[event.request_id.split("-")[1]] = event.stats.cached_tokens

    small = replace(FAST, kv_tokens=8192)
    async with engine_sim(profile=small, clock=clock, observe=observe, policy="priority") as (server, client):
        answers = []
        for number, row in enumerate(log):
            clock.advance(row.arrival_s)
            seen = len(server.service.sinks) + len(cached)
            answers.append(asyncio.ensure_future(client.post("/v1/completions", json=body(number, row))))
            while len(server.service.sinks) + len(cached) == seen:  # noqa: ASYNC110 - until the server has it
                await asyncio.sleep(0)
        while not clock.idle:
            clock.advance(clock.time() + 1)
            await asyncio.sleep(0)
        texts = [(await answer).text for answer in answers]
        expected = on_the_engine(log, server.options)
    assert times == expected.token_times_s
    assert cached == {name: end.stats.cached_tokens for name, end in expected.finished.items()}
    assert sum(cached.values()) > 0
    assert any(end.stats.preemptions for end in expected.finished.values()), "the log must be hard enough to tell"
    for text, row in zip(texts, log, strict=True):
        assert text.count("data: {") == row.max_tokens


@pytest.mark.rotating(3)
async def test_on_the_wall_clock_tokens_come_when_the_engine_says() -> None:
    """The same at half speed on the real clock: the median request lasts what the engine says, and never less.

    A busy machine only adds to it, so the quickest of three goes counts.
    """
    log, scale = request_log(40), 2.0

    async def median_ratio() -> float:
        ratios: list[float] = []
        async with engine_sim(time_scale=scale, policy="priority") as (server, client):
            expected = on_the_engine(log, server.options).token_times_s
            start_s = time.monotonic()

            async def send(number: int, row: Logged) -> None:
                await asyncio.sleep(max(0.0, start_s + row.arrival_s * scale - time.monotonic()))
                chunks = 0
                async with client.stream("POST", "/v1/completions", json=body(number, row)) as response:
                    async for line in response.aiter_lines():
                        chunks += line.startswith("data: {")
                assert chunks == row.max_tokens
                measured_s = time.monotonic() - start_s - row.arrival_s * scale
                ratios.append(measured_s / ((expected[str(number)][-1] - row.arrival_s) * scale))

            await asyncio.gather(*(send(number, row) for number, row in enumerate(log)))
        return statistics.median(ratios)

    for _ in range(3):
        ratio = await median_ratio()
        assert ratio > 0.95
        if ratio < 1.5:
            break
    assert ratio < 1.5
