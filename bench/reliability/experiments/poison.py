"""A request that kills every decode engine that gets it (as kill -9 does), among 60 that run: how many engines die?

The others are streams of 100 tokens at two prefills and three decodes. The deadly request is counted apart.
"""

from __future__ import annotations

import asyncio

from bench.reliability.kit.asking import ask
from bench.reliability.kit.client import at_rate
from bench.reliability.kit.lab import Lab
from bench.reliability.kit.tally import Row, tally

OTHERS = 60
DEADLY = "POISON for whoever reads it"
DIE = {"fault": "die", "scope": {"prompt": "POISON", "legs": "decode"}}
CASES = ("the deadly request", "the others")


async def run(lab: Lab) -> list[Row]:
    """A row for the deadly request, and one for the others."""
    decodes = (await lab.start_engines("p0", "p1", "d0", "d1", "d2"))[2:]
    await asyncio.gather(*(engine.misbehave(DIE) for engine in decodes))
    others = [ask(number, output_tokens=100, seed=lab.options.seed) for number in range(OTHERS)]
    deadly = ask(OTHERS, output_tokens=100, seed=lab.options.seed, prompt=DEADLY)
    async with lab.gateway() as gateway:
        running = asyncio.create_task(at_rate(gateway.port, others, 40.0, bound_s=60.0))
        await asyncio.sleep(OTHERS / 40.0 + 0.3)
        hit_s = asyncio.get_running_loop().time()
        killers = await at_rate(gateway.port, [deadly], 1.0, bound_s=60.0, name="deadly")
        outcomes = await running
        died = sum(not engine.program.running for engine in decodes)
    found = {
        CASES[0]: tally(CASES[0], killers, notes={"engines that died": f"{died} of {len(decodes)}"}),
        CASES[1]: tally(CASES[1], outcomes, hit_s=hit_s),
    }
    return [found[case] for case in lab.cases(*CASES)]
