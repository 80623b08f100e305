"""How long the event loop waits while a large body is read on the thread, for each body of `bench.reliability greedy`.

In processor time of the process, which other work on the machine does not change. A row: processor time for a body, the
longest wait of a loop that wakes each millisecond, and the wait that 99 of 100 moments are below. Prints a table.
"""

from __future__ import annotations

import asyncio
import sys
import time
from itertools import accumulate

import uvloop

from ballast_gateway.openai_body import InvalidBody
from ballast_gateway.proxy.bodies import read_generation
from ballast_gateway.proxy.large_bodies import LargeBodies
from bench.reliability.experiments.greedy import CASES

BODIES = 8


def _read(body: bytes) -> None:
    try:
        read_generation(body, chat=False)
    except InvalidBody:
        return


async def waits_s(body: bytes) -> list[float]:
    """Processor time between two turns of the loop, while so many bodies are read one after another; sorted."""
    bodies: LargeBodies[None] = LargeBodies(asyncio.get_running_loop())
    left = BODIES
    for _ in range(BODIES):

        def done(outcome: asyncio.Future[None]) -> None:
            nonlocal left
            left -= 1

        bodies.read("client", lambda: _read(body), done)
    waits = []
    last_s = time.process_time()
    while left:
        await asyncio.sleep(0.001)
        now_s = time.process_time()
        waits.append(now_s - last_s)
        last_s = now_s
    bodies.close()
    return sorted(waits)


async def main() -> None:
    """The table."""
    sys.setswitchinterval(0.001)  # as `ballast gateway` does
    sys.stdout.write(f"{'':26}{'ms a body':>10}{'longest ms':>12}{'p99 ms':>8}\n")
    for case, build in CASES.items():
        body = build()
        if not body or case == "slow bodies":
            continue
        waits = await waits_s(body)
        whole_s = sum(waits)
        p99_s = next(wait for wait, so_far in zip(waits, accumulate(waits), strict=True) if so_far >= 0.99 * whole_s)
        sys.stdout.write(f"{case:26}{1e3 * whole_s / BODIES:10.1f}{1e3 * waits[-1]:12.1f}{1e3 * p99_s:8.1f}\n")


if __name__ == "__main__":
    uvloop.run(main())
