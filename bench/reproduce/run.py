"""Rerun the five papers' experiments, as far as they are not known yet.

    python -m bench.reproduce.run                            the reduced set: 64 endpoints, two seeds
    python -m bench.reproduce.run --set full --record        everything; writes record, page and plots; some hours
    python -m bench.reproduce.run --set full --record --minutes 50     as much as fits; the next call goes on
    python -m bench.reproduce.run --set full --record --missing        what the committed record lacks, and no more
    python -m bench.reproduce.run --only 'ares/*'            one paper, or one experiment: sibyl/figure-8
    python -m bench.reproduce.run --only sibyl/figure-8 --show         print what is recorded, compute nothing
    python -m bench.reproduce.run --list                     experiments, runs, and what they may cost

Every run's figures are kept at once, under the digest of what was run and of the code that it depends on
(`$XDG_CACHE_HOME/ballast/reproduce`, else `build/reproduce`): whatever is stopped or killed loses only what was under
way, and the same command goes on. `--trust-code` also takes figures of other core or simulator code: after changes
that tests prove to alter no figure. Without --record the committed files stay as they are: page and plots go to a
folder that is named at the end.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from bench.common.processes import compute
from bench.common.store import Store, cache_folder
from bench.reproduce import record as recorded
from bench.reproduce import render
from bench.reproduce.form import Experiment
from bench.reproduce.papers import EXPERIMENTS
from bench.reproduce.plan import Carried, Job, Plan, carry_out
from bench.reproduce.record import CHECKOUT, FILE, Record

WRITE_EVERY_S = 600.0
"""How often a long run with --record writes the record on the way."""

NOISE_RATIO = 2e-5
"""Figures that differ by less are the same: the record keeps six digits."""


def main() -> int:
    options = _options()
    experiments = [each for name, each in EXPERIMENTS.items() if any(fnmatchcase(name, only) for only in options.only)]
    if not experiments:
        print(f"--only: no experiment matches; there are {', '.join(EXPERIMENTS)}")
        return 2
    earlier = recorded.read() if FILE.exists() else None
    if options.show:
        return _show(experiments, earlier)
    full = options.set == "full"
    store = Store(cache_folder("reproduce", CHECKOUT), trust_common=options.trust_code)
    plan = Plan(experiments, store, full, earlier if options.missing else None)
    if options.list:
        _list(plan)
        return 0
    _tell_skipped(plan)
    status = _compute(plan, options.jobs, options.minutes * 60, earlier if options.record else None, options.record)
    if options.record:
        record = _write(plan, earlier)
        print(f"{FILE.relative_to(CHECKOUT)} and {render.PAGE.relative_to(CHECKOUT)} agree")
    else:
        record = plan.record()
        folder = options.out or CHECKOUT / "build" / "reproduction"
        recorded.write(record, folder / FILE.name)
        render.write(record, folder / render.PAGE.name, folder / render.FOLDER.name)
    print("\n".join(render.terminal_lines(experiments, render.findings(record))))
    for name, reason in plan.failures.items():
        print(f"FAILED {name}: {reason}")
    if not options.record:
        print("\n" + "\n".join(compare(experiments, record, earlier)))
        print(f"page and plots of this run: {folder}")
    return status


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", choices=("reduced", "full"), default="reduced", help="which runs and seeds")
    parser.add_argument("--only", nargs="+", default=["*"], metavar="EXPERIMENT", help="names, with wildcards")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    parser.add_argument("--minutes", type=float, default=math.inf, help="start nothing after this long")
    parser.add_argument("--record", action="store_true", help="write the committed record, page and plots")
    parser.add_argument("--missing", action="store_true", help="leave out what the committed record has")
    parser.add_argument("--show", action="store_true", help="print what is recorded, compute nothing")
    parser.add_argument("--list", action="store_true", help="list experiments and expected costs, and do nothing")
    parser.add_argument("--trust-code", action="store_true", help="take figures of other core or simulator code, too")
    parser.add_argument("--out", type=Path, help="folder of page and plots without --record (build/reproduction)")
    return parser.parse_args()


def _show(experiments: list[Experiment], record: Record | None) -> int:
    if record is None:
        print(f"{FILE} is missing; leave out --show to compute")
        return 1
    print(f"recorded {record.date}, {record.machine}, {record.versions}")
    print("\n".join(render.terminal_lines(experiments, render.findings(record))))
    return 0


def _compute(plan: Plan, processes: int, budget_s: float, earlier: Record | None, writes: bool) -> int:
    written_s = time.monotonic()

    def finished(job: Job, carried: Carried) -> None:
        nonlocal written_s
        plan.finish(job, carried)
        minutes = plan.cpu_left_s() / 60 / processes
        print(f"{job.name}: {_progress(carried)}; about {minutes:.0f} min left", flush=True)
        if writes and time.monotonic() - written_s > WRITE_EVERY_S:
            _write(plan, earlier)
            written_s = time.monotonic()

    def failed(job: Job, error: Exception) -> None:
        plan.fail(job, error)
        print(f"FAILED {job.name}: {error!r}", flush=True)

    return compute(plan.take, carry_out, finished, failed, processes=processes, budget_s=budget_s)


def _progress(carried: Carried) -> str:
    shown = [
        f"{title} {carried.figures[name] * factor:.4g} {unit}"
        for name, title, factor, unit in (
            ("tpot_p99_s", "P99 TPOT", 1e3, "ms"),
            ("ttft_p99_s", "P99 TTFT", 1.0, "s"),
            ("goodput_rps", "goodput", 1.0, "/s"),
        )
        if name in carried.figures
    ]
    if not shown:
        shown = [f"{name} {value:.4g}" for name, value in list(carried.figures.items())[:3]]
    return ", ".join([*shown, f"{carried.cpu_s:.1f} s"])


def _write(plan: Plan, earlier: Record | None) -> Record:
    record = plan.record(earlier)
    recorded.write(record)
    render.write(record)
    return record


def compare(experiments: list[Experiment], record: Record, committed: Record | None) -> list[str]:
    """How figures compare with the committed ones: run by run with the same seed, where the same was run."""
    if committed is None:
        return ["there is no committed record to compare with"]
    same, other, gone, unlike = 0, 0, 0, list[str]()
    for experiment in experiments:
        theirs = committed.experiments.get(experiment.name, {})
        for name, run in record.experiments.get(experiment.name, {}).items():
            if name not in theirs:
                gone += len(run.seeds)
            elif theirs[name].of != run.of:
                other += len(run.seeds)
            else:
                for seed, done in run.seeds.items():
                    if seed not in theirs[name].seeds:
                        gone += 1
                        continue
                    worst = _furthest(done.figures, theirs[name].seeds[seed].figures)
                    if worst is None:
                        same += 1
                    else:
                        stale = " (other code)" if done.code != theirs[name].seeds[seed].code else ""
                        unlike.append(f"  {experiment.name} {name} seed {seed}: {worst}{stale}")
    lines = [f"against the committed figures: {same} runs give the same, {len(unlike)} differ"]
    if gone:
        lines.append(f"  {gone} are not in the committed record")
    if other:
        lines.append(f"  {other} are described otherwise there and are not compared")
    return lines + unlike


def _furthest(ours: Mapping[str, float], theirs: Mapping[str, float]) -> str | None:
    apart = {
        name: abs(value - theirs[name]) / max(abs(value), abs(theirs[name]))
        for name, value in ours.items()
        if name in theirs and value != theirs[name]
    }
    name = max(apart, key=lambda each: apart[each], default=None)
    if name is None or apart[name] <= NOISE_RATIO:
        return None
    return f"{name} {ours[name]:g}, committed {theirs[name]:g}"


def _list(plan: Plan) -> None:
    print(f"{'experiment':<34} {'runs':>5} {'left':>5} {'minutes left':>12}")
    for experiment in plan.experiments:
        left = [job for job in plan.left if job.experiment == experiment.name]
        total = sum(len(experiment.seeds_of(run, full=plan.full)) for run in experiment.runs if run.available)
        print(f"{experiment.name:<34} {total:>5} {len(left):>5} {sum(map(plan.cost_s, left)) / 60:>12.1f}")
    print(f"about {plan.cpu_left_s() / 60:.0f} minutes of processor time left")
    _tell_skipped(plan)


def _tell_skipped(plan: Plan) -> None:
    for reason, count in Counter(plan.skipped.values()).items():
        print(f"skipped {count} runs: each {reason}")


if __name__ == "__main__":
    sys.exit(main())
