"""Engines' answers, mutated by a seed, against the real gateway without sockets: nothing of it may escape.

Heads, chunked framing, events, bodies and KV handles are changed in their parts or byte by byte, cut into reads, and
end by a close or a reset anywhere. One input is one mutated answer. `--first N --inputs 1` repeats one request.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import re
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bench.reliability.fuzzing.wires import WiredLoop
from bench.reliability.fuzzing.world import Case, World
from bench.reliability.kit.lab import Lab
from bench.reliability.kit.tally import Row

SHOWN = 5


@dataclass(frozen=True)
class Found:
    """What came of some requests."""

    requests: int
    inputs: int
    kinds: Counter[str]
    """Problems, by their beginnings."""
    examples: tuple[str, ...]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Beside the usual ones."""
    parser.add_argument("--inputs", type=int, default=20_000, help="mutated answers")
    parser.add_argument("--first", type=int, default=0, help="number of the first request")
    parser.add_argument("--processes", type=int, default=2)


async def run(lab: Lab) -> list[Row]:
    """One row; `broken` counts the requests of which something did not hold."""
    options = lab.options
    processes = max(1, min(options.processes, options.inputs))
    share = -(-options.inputs // processes)
    firsts = [options.first + number * share for number in range(processes)]
    begun_s = time.monotonic()
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        loop = asyncio.get_running_loop()
        found = await asyncio.gather(*(loop.run_in_executor(pool, fuzz, options.seed, each, share) for each in firsts))
    requests = sum(each.requests for each in found)
    bad = sum(sum(each.kinds.values()) for each in found)
    kinds: Counter[str] = sum((each.kinds for each in found), Counter())
    examples = [example for each in found for example in each.examples][:SHOWN]
    notes: dict[str, object] = {"mutated answers": sum(each.inputs for each in found)}
    notes["requests a second"] = round(requests / (time.monotonic() - begun_s))
    failed = f"seed {options.seed}\n" + "\n".join(examples) if bad else ""
    case = f"fuzz-engines, seed {options.seed}"
    return [Row(case, requests, requests - bad, bad, 0, 0, {}, reasons=dict(kinds), notes=notes, failed=failed)]


def fuzz(seed: int, first: int, inputs: int) -> Found:
    """Try requests from this number on, until so many answers have been mutated."""
    with asyncio.Runner(loop_factory=WiredLoop) as runner:
        return runner.run(_fuzz(seed, first, inputs))


async def _fuzz(seed: int, first: int, inputs: int) -> Found:
    number, mutated = first, 0
    kinds: Counter[str] = Counter()
    examples: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        async with World(Path(folder), seed) as world:
            while mutated < inputs:
                case = await world.one(number)
                mutated += case.mutated
                number += 1
                if case.problems:
                    kind = re.sub(r"\d+|0x[0-9a-f]+", "N", case.problems[0].splitlines()[0])[:100]
                    kinds[kind] += 1
                    if kinds[kind] == 1 and len(examples) < SHOWN:
                        examples.append(_told(number - 1, case))
                if number - first > 20 * inputs:
                    sys.exit("requests reach no engine any more")
    return Found(number - first, mutated, kinds, tuple(examples))


def _told(number: int, case: Case) -> str:
    return "\n".join([f"--first {number} --inputs 1", *case.problems, *(f"  {line}" for line in case.happened)])
