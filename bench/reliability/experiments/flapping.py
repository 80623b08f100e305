"""Engines come and go: each second up and down, with their connections reset, for twelve seconds.

Ten requests a second, three of four as streams of 60 tokens, at two prefills and three decodes: one decode flaps, one
prefill, or all prefills at once.
"""

from __future__ import annotations

import asyncio

from bench.reliability.kit.asking import ask
from bench.reliability.kit.client import at_rate
from bench.reliability.kit.lab import Lab
from bench.reliability.kit.tally import Row, tally

CASES = {"one decode": ("d0",), "one prefill": ("p0",), "all prefills": ("p0", "p1")}
FLAP = {"fault": "flap", "down_s": 1.0, "up_s": 1.0, "cut": True}


async def run(lab: Lab) -> list[Row]:
    """A row for each set of engines."""
    await lab.start_engines("p0", "p1", "d0", "d1", "d2")
    return [await _case(lab, case) for case in lab.cases(*CASES)]


async def _case(lab: Lab, case: str) -> Row:
    engines = [lab.engines[name] for name in CASES[case]]
    asks = [ask(at, output_tokens=60, stream=at % 4 != 0, chat=at % 3 == 0, seed=lab.options.seed) for at in range(120)]
    async with lab.gateway() as gateway:
        await asyncio.gather(*(engine.misbehave(FLAP) for engine in engines))
        try:
            outcomes = await at_rate(gateway.port, asks, 10.0, bound_s=60.0)
        finally:
            await asyncio.gather(*(engine.misbehave() for engine in engines))
        return tally(case, outcomes)
