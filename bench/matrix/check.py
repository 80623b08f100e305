"""Recompute some runs of the recorded matrix, drawn at random, and check that the page agrees with the record.

    python -m bench.matrix.check --seed "$(git rev-parse HEAD)"
    python -m bench.matrix.check --cells "mooncake/*" --write

A run whose code has not changed must give the recorded figures but for float noise (a millionth; the record keeps
seven digits). A run whose code has changed is stale: it is named, and must be near the recorded figures: mean TPOT
within 2 %, P99 TPOT and P99 TTFT within 10 % (0.1 s of TTFT pass), nothing lost. Beyond that the page misleads, and the
matrix is to be made again: all of it (`make matrix`), or some cells (`--cells`). With `--write` the runs that differ
too much take the place of the recorded ones, with the code that they come from. Only what this machine has the traces
for is drawn, and only runs at the recorded rates.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from multiprocessing import get_context
from typing import Any

from bench.common.store import rounded
from bench.matrix import record as recorded
from bench.matrix.cells import CELLS
from bench.matrix.measure import RunJob, pair_of, placements
from bench.matrix.record import Record, Run
from bench.matrix.render import differing
from bench.matrix.results import Figures
from bench.matrix.run import carry_out
from bench.matrix.state import settings_of

NOISE_RATIO = 1e-6
STALE_MEAN_RATIO = 1.02
STALE_TAIL_RATIO = 1.1
STALE_TTFT_S = 0.1
LONGEST_RUN_S = 20.0
EXACT = (
    "tpot_p99_s",
    "ttft_p99_s",
    "tpot_mean_s",
    "ttft_mean_s",
    "goodput_rps",
    "preemptions",
    "completed",
    "rejected",
)


@dataclass(frozen=True, slots=True)
class Check:
    """A run to recompute, and what was recorded of it."""

    job: RunJob
    run: Run

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.job.cell.name} {self.job.policy} seed {self.job.seed}"

    @property
    def stale(self) -> bool:
        """Whether the code has changed since."""
        return self.run.code != self.job.code


def checks(record: Record) -> Iterator[Check]:
    """All recorded runs that this machine can recompute as they were described."""
    known = set(placements())
    for cell in CELLS:
        recorded_cell = record.cells.get(cell.name)
        if recorded_cell is None or not cell.workload.available:
            continue
        capacity = record.capacities[f"{cell.workload.name}/{cell.fleet.kind}"].capacity
        if settings_of(cell, capacity) != recorded_cell.settings:
            continue
        for (policy, seed), run in recorded_cell.runs.items():
            if policy in known and [repr(p) for p in _parts(policy)] == record.policies[policy]:
                yield Check(RunJob(cell, policy, seed, capacity.full_ratio), run)


def _parts(policy: str) -> tuple[object, object]:
    pair = pair_of(policy)
    return pair.suite.prefill, pair.suite.decode


def short(check: Check) -> bool:
    """Whether it is recomputed here; the others take minutes each."""
    return check.run.figures.cpu_s <= LONGEST_RUN_S


def draw(candidates: list[Check], seed: str, budget_s: float) -> list[Check]:
    """Some at random, of different cells as long as there are, that take about `budget_s` in all; one at least."""
    rng = random.Random(seed)
    shuffled = sorted(candidates, key=lambda check: check.name)
    rng.shuffle(shuffled)
    seen: set[str] = set()
    chosen: list[Check] = []
    for check in shuffled:
        cost_s = check.run.figures.cpu_s
        if check.job.cell.name in seen or not short(check) or (chosen and cost_s > budget_s):
            continue
        seen.add(check.job.cell.name)
        chosen.append(check)
        budget_s -= cost_s
    return chosen


def problems(then: Figures, now: Figures, *, stale: bool) -> list[str]:
    """What differs by more than it may."""
    found = []
    for field in EXACT:
        old, new = float(getattr(then, field)), float(getattr(now, field))
        if not stale:
            if abs(new - old) > NOISE_RATIO * max(abs(old), abs(new)):
                found.append(f"{field} was {old:g} and is {new:g}")
        elif not _near(field, old, new):
            found.append(f"{field} was {old:g} and is {new:g}, too far for changed code")
    return found


def _near(field: str, old: float, new: float) -> bool:
    match field:
        case "tpot_mean_s":
            return _within(old, new, STALE_MEAN_RATIO)
        case "tpot_p99_s":
            return _within(old, new, STALE_TAIL_RATIO)
        case "ttft_p99_s":
            return _within(old, new, STALE_TAIL_RATIO) or abs(old - new) <= STALE_TTFT_S
        case "completed" | "rejected":
            return old == new
        case _:
            return True


def _within(old: float, new: float, ratio: float) -> bool:
    return old / ratio <= new <= old * ratio


def renewed(record: Record, check: Check, now: Figures) -> None:
    """Put a run's new figures into the record."""
    kept: dict[str, Any] = {
        name: rounded(value) if isinstance(value, float) else value for name, value in asdict(now).items()
    }
    record.cells[check.job.cell.name].runs[check.job.policy, check.job.seed] = Run(Figures(**kept), check.job.code)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", default="", help="what the draw depends on: a commit, or a date")
    parser.add_argument("--seconds", type=float, default=100.0, help="recorded processor time of the runs, about")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    parser.add_argument(
        "--cells", default="", metavar="GLOB", help="all runs of these cells, in place of some at random"
    )
    parser.add_argument("--write", action="store_true", help="put runs that differ too much into the record anew")
    options = parser.parse_args()
    record = recorded.read()
    failed = False
    for path in differing(record):
        failed = True
        print(f"{path.name} is not what the record says; run `make matrix-render`")
    candidates = list(checks(record))
    total = sum(len(cell.runs) for cell in record.cells.values())
    stale = sum(check.stale for check in candidates)
    print(f"{total} runs recorded; {len(candidates)} can be recomputed here, of which {stale} come from other code")
    if not candidates:
        print("the record describes other cells than bench/matrix/cells.py; run `make matrix`")
        return 1
    chosen = (
        [check for check in candidates if fnmatch(check.job.cell.name, options.cells) and short(check)]
        if options.cells
        else draw(candidates, options.seed, options.seconds)
    )
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        for check, now in zip(chosen, pool.map(carry_out, [check.job for check in chosen]), strict=True):
            assert isinstance(now, Figures)
            found = problems(check.run.figures, now, stale=check.stale)
            if found and options.write:
                renewed(record, check, now)
                found.append("recorded anew")
            else:
                failed = failed or bool(found)
            print(f"{check.name}{' (stale)' if check.stale else ''}: {'; '.join(found) or 'as recorded'}", flush=True)
    if options.write:
        recorded.write(record)
        print("run `make matrix-render`")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
