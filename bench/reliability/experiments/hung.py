"""An engine hangs while it has work, as a process (SIGSTOP) or with live /metrics: who notices, and when?

60 requests run, 45 of them streams, when one of three decodes, or one of two prefills, stops; 16 more arrive in the
second after that. Nothing wakes the engine before the bound has passed.
"""

from __future__ import annotations

import argparse
import asyncio

from bench.reliability.kit.asking import Ask, ask
from bench.reliability.kit.client import at_rate
from bench.reliability.kit.engines import Engine
from bench.reliability.kit.lab import Lab
from bench.reliability.kit.tally import Row, tally

BEFORE, AFTER = 60, 16
CASES = {
    "decode, SIGSTOP": ("d0", "stop"),
    "decode, live metrics": ("d0", "freeze"),
    "prefill, SIGSTOP": ("p0", "stop"),
    "prefill, live metrics": ("p0", "freeze"),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Beside the usual ones."""
    parser.add_argument("--bound", type=float, default=30.0, help="seconds after which a request counts as stuck")


async def run(lab: Lab) -> list[Row]:
    """A row for each way to hang."""
    await lab.start_engines("p0", "p1", "d0", "d1", "d2")
    return [await _case(lab, case, *CASES[case]) for case in lab.cases(*CASES)]


async def _case(lab: Lab, case: str, name: str, how: str) -> Row:
    engine, bound_s = lab.engines[name], lab.options.bound
    running = [_ask(number, lab.options.seed) for number in range(BEFORE)]
    later = [_ask(BEFORE + number, lab.options.seed) for number in range(AFTER)]
    async with lab.gateway() as gateway:
        first = asyncio.create_task(at_rate(gateway.port, running, 40.0, bound_s=bound_s))
        await asyncio.sleep(BEFORE / 40.0 + 0.5 if name.startswith("d") else BEFORE / 80.0)
        hit_s = asyncio.get_running_loop().time()
        await _hang(engine, how)
        try:
            second = await at_rate(gateway.port, later, float(AFTER), bound_s=bound_s, name="late")
            outcomes = [*(await first), *second]
        finally:
            await _wake(engine, how)
        return tally(case, outcomes, hit_s=hit_s)


def _ask(number: int, seed: int) -> Ask:
    return ask(number, output_tokens=200, stream=number % 4 != 0, chat=number % 3 == 0, seed=seed)


async def _hang(engine: Engine, how: str) -> None:
    if how == "stop":
        engine.stop()
    else:
        await engine.misbehave({"fault": "freeze"})


async def _wake(engine: Engine, how: str) -> None:
    if how == "stop":
        engine.go_on()
    else:
        await engine.misbehave()
