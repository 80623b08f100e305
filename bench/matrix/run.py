"""Compute what the matrix lacks, and write the record and docs/matrix.md.

    python -m bench.matrix.run                      all of it, on all cores
    python -m bench.matrix.run --minutes 50         as much as fits; the next call goes on
    python -m bench.matrix.run --only 'ballast/*'   one placement everywhere (on its own seeds)
    python -m bench.matrix.run --list               the cells and what they may cost

Every result is kept at once, under the digest of what it depends on, so that a run that is stopped loses nothing and
an edited placement costs only its own runs. `--trust-code` also takes results of other core or simulator code: after
changes that tests prove to alter no figure. Ctrl-C writes what there is.
"""

from __future__ import annotations

import argparse
import os
import sys

from bench.common.processes import compute as in_processes
from bench.common.store import Store, cache_folder
from bench.matrix import record as recorded
from bench.matrix.cells import CELLS
from bench.matrix.measure import RunJob, placements
from bench.matrix.plan import expected_left
from bench.matrix.record import CHECKOUT, FILE, Record
from bench.matrix.render import PAGE, write
from bench.matrix.results import Capacity, Figures
from bench.matrix.state import Choice, Job, Matrix, capacity_name


def main() -> int:
    options = _options()
    if options.report:
        return _write_page(recorded.read())
    available = [cell for cell in CELLS if cell.workload.available]
    store = Store(cache_folder("matrix", CHECKOUT), trust_common=options.trust_code)
    earlier = recorded.read() if FILE.exists() else None
    if earlier is not None:
        earlier.feed(store)
    matrix = Matrix(available, placements(), store, options.only)
    if options.list:
        _list(matrix)
        return 0
    left_out = {cell.workload.name for cell in CELLS} - {cell.workload.name for cell in available}
    if left_out:
        print(f"without their traces in ../shared, as recorded before: {', '.join(sorted(left_out))}")
    status = compute(matrix, options.jobs, options.minutes * 60)
    record = matrix.record()
    if earlier is not None:
        _carry_over(earlier, record, left_out)
        _tell_of_losses(earlier, record)
    recorded.write(record)
    return _write_page(record) or status


def _write_page(record: Record) -> int:
    write(record)
    print(f"{FILE.relative_to(CHECKOUT)}, {PAGE.relative_to(CHECKOUT)} and its data files agree")
    return 0


def _tell_of_losses(earlier: Record, record: Record) -> None:
    def keys(known: Record) -> set[tuple[str, str, int]]:
        return {(name, *key) for name, cell in known.cells.items() for key in cell.runs}

    gone = keys(earlier) - keys(record)
    if gone:
        print(f"left out {len(gone)} runs that were recorded with other code or settings and are not computed anew yet")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=_choice, default=Choice(), metavar="PLACEMENT/WORKLOAD", help="with wildcards")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start nothing after this long")
    parser.add_argument("--trust-code", action="store_true", help="take results of other common code, too")
    parser.add_argument("--report", action="store_true", help="compute nothing, write the page anew from the record")
    parser.add_argument("--list", action="store_true", help="list cells and expected costs, and do nothing")
    return parser.parse_args()


def _choice(text: str) -> Choice:
    try:
        return Choice.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def compute(matrix: Matrix, jobs: int, budget_s: float) -> int:
    """Until nothing is missing, the time is up, or Ctrl-C. Returns the exit status: 1 where a run failed."""

    def finished(job: Job, result: Figures | Capacity) -> None:
        matrix.finish(job, result)
        minutes = matrix.cpu_left_s() / 60 / jobs
        print(f"{_name(job)}: {_told(result)}; about {minutes:.0f} min left", flush=True)

    def failed(job: Job, error: Exception) -> None:
        print(f"FAILED {_name(job)}: {error!r}", flush=True)

    return in_processes(matrix.take, carry_out, finished, failed, processes=jobs, budget_s=budget_s)


def carry_out(job: Job) -> Figures | Capacity:
    """In a worker."""
    return job.carry_out()


def _name(job: Job) -> str:
    return (
        f"{job.cell.name} {job.policy} seed {job.seed}"
        if isinstance(job, RunJob)
        else f"capacity of {capacity_name(job)}"
    )


def _told(result: Figures | Capacity) -> str:
    if isinstance(result, Capacity):
        return f"{result.rate_rps:.3g} requests/s after {result.probes} probes, {result.cpu_s:.0f} s"
    return f"P99 TPOT {result.tpot_p99_s * 1e3:.1f} ms, P99 TTFT {result.ttft_p99_s:.2f} s, {result.cpu_s:.1f} s"


def _list(matrix: Matrix) -> None:
    print(f"{'cell':<36} {'endpoints':<54} {'requests':>8} {'runs left':>9} {'s a run':>8}")
    for cell in matrix.cells:
        left, cost_s = expected_left(matrix.figures(cell), matrix.placements), matrix.cost_s(cell)
        print(f"{cell.name:<36} {cell.fleet.shape:<54} {cell.workload.limit:>8} {left:>9.0f} {cost_s:>8.1f}")
    print(f"about {matrix.cpu_left_s() / 60:.0f} minutes of processor time, capacities included")


def _carry_over(earlier: Record, record: Record, workloads: set[str]) -> None:
    """What this machine cannot compute stays as it was recorded."""
    for name, cell in earlier.cells.items():
        if name.partition("/")[0] in workloads:
            record.cells[name] = cell
    for name, capacity in earlier.capacities.items():
        if name.partition("/")[0] in workloads:
            record.capacities[name] = capacity
    record.policies = {**earlier.policies, **record.policies}


if __name__ == "__main__":
    sys.exit(main())
