"""Whole (not streamed) answers, and one of three decodes dies, hangs or talks garbage while it has many of them.

60 requests for 200 tokens arrive in a second and a half, half of them chats; half a second later the decode is killed
(kill -9), is stopped (SIGSTOP), or sends an event of garbage after every fifth token of what it answers from the start.
"""

from __future__ import annotations

import asyncio

from bench.reliability.kit.asking import ask
from bench.reliability.kit.client import Outcome, at_rate
from bench.reliability.kit.lab import Lab
from bench.reliability.kit.tally import Row, percentile, tally

REQUESTS, RATE, TOKENS, BOUND_S = 60, 40.0, 200, 40.0
GARBAGE = {"fault": "garbage", "garbage": "broken-token-ids", "after": 5}
CASES = ("decode, kill -9", "decode, SIGSTOP", "decode, garbage")


async def run(lab: Lab) -> list[Row]:
    """A row for each way to fail."""
    await lab.start_engines("p0", "p1", "d0", "d1", "d2")
    return [await _case(lab, case) for case in lab.cases(*CASES)]


async def _case(lab: Lab, case: str) -> Row:
    engine, seed = lab.engines["d0"], lab.options.seed
    asks = [ask(at, output_tokens=TOKENS, stream=False, chat=at % 2 == 0, seed=seed) for at in range(REQUESTS)]
    if case.endswith("garbage"):
        await engine.misbehave(GARBAGE)
    try:
        async with lab.gateway() as gateway:
            running = asyncio.create_task(at_rate(gateway.port, asks, RATE, bound_s=BOUND_S))
            await asyncio.sleep(REQUESTS / RATE + 0.5)
            if case.endswith("kill -9"):
                await engine.kill()
            elif case.endswith("SIGSTOP"):
                engine.stop()
            return tally(case, outcomes := await running, notes=_times(outcomes))
    finally:
        if case.endswith("kill -9"):
            await engine.start()
        elif case.endswith("SIGSTOP"):
            engine.go_on()
        else:
            await engine.misbehave()


def _times(outcomes: list[Outcome]) -> dict[str, object]:
    took = [each.ended_s - each.asked_s for each in outcomes if each.ended_s]
    return {"answers took, p50 and longest": f"{percentile(took, 0.5):.1f}, {max(took, default=0.0):.1f} s"}
