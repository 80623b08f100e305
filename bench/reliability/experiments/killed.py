"""An engine dies by kill -9 in the middle of its work, and comes back after two seconds.

60 requests run, 45 of them streams, when one of three decodes, or one of two prefills, dies; 40 more arrive in the four
seconds after that.
"""

from __future__ import annotations

import asyncio

from bench.reliability.kit.asking import Ask, ask
from bench.reliability.kit.client import at_rate
from bench.reliability.kit.lab import Lab
from bench.reliability.kit.tally import Row, tally

BEFORE, AFTER = 60, 40
CASES = {"decode": "d0", "prefill": "p0"}


async def run(lab: Lab) -> list[Row]:
    """A row for each role."""
    await lab.start_engines("p0", "p1", "d0", "d1", "d2")
    return [await _case(lab, case, CASES[case]) for case in lab.cases(*CASES)]


async def _case(lab: Lab, case: str, name: str) -> Row:
    engine = lab.engines[name]
    running = [_ask(number, lab.options.seed) for number in range(BEFORE)]
    later = [_ask(BEFORE + number, lab.options.seed) for number in range(AFTER)]
    async with lab.gateway() as gateway:
        first = asyncio.create_task(at_rate(gateway.port, running, 40.0, bound_s=60.0))
        await asyncio.sleep(BEFORE / 40.0 + 0.5 if name.startswith("d") else BEFORE / 80.0)
        hit_s = asyncio.get_running_loop().time()
        await engine.kill()
        second = asyncio.create_task(at_rate(gateway.port, later, AFTER / 4.0, bound_s=60.0, name="late"))
        await asyncio.sleep(2.0)
        await engine.start()
        return tally(case, [*(await first), *(await second)], hit_s=hit_s)


def _ask(number: int, seed: int) -> Ask:
    return ask(number, output_tokens=200, stream=number % 4 != 0, chat=number % 3 == 0, seed=seed)
