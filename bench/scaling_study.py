"""Does the scaling policy pay? Its figures beside fixed splits of the same GPUs and two autoscalers that others use.

Three kinds of traffic, scaled to a fleet of six H200: a mix that shifts from short answers to long ones to long
prompts and back (azure23, servegen_r1, mooncake, azure23), a diurnal day in 900 s, and a flash crowd. The
simulator runs the production policy in its loop, three seeds each. `python -m bench.scaling_study` runs what is missing
and prints the tables; `--write` puts them into docs/scaling/study.md. The traces are those of `../shared/traces`.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import random
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ballast_core.policies.scaling.ballast import BallastScaling
from ballast_core.policies.scaling.baselines import FixedScaling, MeansScaling, UtilisationScaling
from ballast_core.policies.scaling.protocol import Clamps, Scaling
from ballast_sim.simulation.autoscaling.settings import Autoscaling, Rehearsing
from ballast_sim.simulation.inputs.objective import Objective
from ballast_sim.simulation.inputs.shapes import parse_shape
from ballast_sim.simulation.inputs.source import Load, WorkloadSource, trace_requests
from ballast_sim.simulation.policies.choice import parse_policies
from ballast_sim.simulation.runs.experiment import RunSpec, Setup, run
from ballast_sim.workloads import WorkloadRequest, spread_equal_arrivals

ROOT = Path(__file__).resolve().parents[1]
TRACES = Path(__file__).parents[2] / "shared" / "traces"
PAGE = ROOT / "docs" / "scaling" / "study.md"
BEGIN, END = "<!-- tables: python -m bench.scaling_study --write -->", "<!-- end of tables -->"

PROFILE = "h200-qwen3-32b"
GPUS = 6
SLO = Objective(ttft_s=6.0, tpot_s=0.05)
ATTAINMENT = 0.9
STARTUP_S = 60.0
SEEDS = (0, 1, 2)

AZURE, REASONING, MOONCAKE = "azure23_conv_w1.csv.gz", "servegen_r1_w1.csv.gz", "mooncake_conversation_w1.jsonl.gz"


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of one trace: `rate_rps` arrivals for `lasts_s` seconds, ramping linearly from the phase before."""

    trace: str
    lasts_s: float
    rate_rps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases(WorkloadSource):
    """Phases one after another. Arrivals are Poisson; lengths and prefixes are the traces' own, in their order."""

    phases: tuple[Phase, ...] = ()
    shape: str = ""
    """Of the rate: `steps`, `diurnal` or `flash`."""

    @property
    def name(self) -> str:
        """For tables."""
        return self.shape

    def load(self, seed: int, rate_scale: float) -> Load:
        """Each seed reads other parts of the traces."""
        rng, made, start_s = random.Random(f"{self.shape} {seed}"), [], 0.0
        for number, phase in enumerate(self.phases):
            rows = _rows(phase.trace)
            row = (seed * len(rows)) // len(SEEDS) + number * 17
            at_s = start_s
            most = phase.rate_rps * rate_scale
            while (at_s := at_s + rng.expovariate(most)) < start_s + phase.lasts_s:
                if rng.random() < _RATES[self.shape]((at_s - start_s) / phase.lasts_s):
                    made.append(_moved(rows[row % len(rows)], at_s, number))
                    row += 1
            start_s += phase.lasts_s
        return Load(tuple(made), {})


def _diurnal(share: float) -> float:
    """From a quarter of the peak at night to all of it at noon: one day."""
    return 0.25 + 0.75 * (0.5 - 0.5 * math.cos(2 * math.pi * share))


def _flash(share: float) -> float:
    """A third of the peak, and from 40 % of the time on the peak for 20 % of it, reached within 2 %."""
    if 0.4 <= share < 0.42:
        return 1 / 3 + (share - 0.4) / 0.02 * 2 / 3
    return 1.0 if 0.42 <= share < 0.6 else 1 / 3


_RATES: Mapping[str, Callable[[float], float]] = {"steps": lambda share: 1.0, "diurnal": _diurnal, "flash": _flash}


@functools.lru_cache(maxsize=4)
def _rows(name: str) -> tuple[WorkloadRequest, ...]:
    longest = 200_000
    rows = spread_equal_arrivals(trace_requests(TRACES / name), seed=0)
    return tuple(row for row in rows if row.input_tokens + row.output_tokens <= longest)


def _moved(row: WorkloadRequest, at_s: float, phase: int) -> WorkloadRequest:
    """At another time; blocks of different phases are never the same."""
    blocks = None if row.hash_ids is None else tuple(each * 16 + phase for each in row.hash_ids)
    return replace(row, arrival_s=at_s, hash_ids=blocks, session=None, turn=None)


SCENARIOS: Mapping[str, Phases] = {
    "shifting mix": Phases(
        shape="steps",
        phases=(
            Phase(AZURE, 120.0, 20.0),
            Phase(REASONING, 480.0, 2.4),
            Phase(MOONCAKE, 420.0, 1.1),
            Phase(AZURE, 100.0, 20.0),
        ),
    ),
    "diurnal day": Phases(shape="diurnal", phases=(Phase(AZURE, 900.0, 16.0),)),
    "flash crowd": Phases(shape="flash", phases=(Phase(AZURE, 750.0, 18.0),)),
}


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to run the fleet."""

    name: str
    shape: str
    policy: Scaling
    least: int = 1
    rehearses: bool = False


def contenders() -> list[Contender]:
    """Fixed splits of all GPUs, two autoscalers of others, and ours."""
    fixed = [Contender(f"fixed {k}P{GPUS - k}D", f"{k}P{GPUS - k}D", FixedScaling()) for k in range(1, GPUS)]
    return [
        *fixed,
        Contender("utilisation (HPA)", "3P3D", UtilisationScaling()),
        Contender("means (Dynamo's rule)", "3P3D", MeansScaling()),
        Contender("ballast, roles only", f"{GPUS}F", BallastScaling(rehearse=False), least=GPUS),
        Contender("ballast, roles only, rehearsed", f"{GPUS}F", BallastScaling(), least=GPUS, rehearses=True),
        Contender("ballast", f"{GPUS}F", BallastScaling(rehearse=False)),
        Contender("ballast, rehearsed", f"{GPUS}F", BallastScaling(), rehearses=True),
        Contender("ballast, down after 180 s", f"{GPUS}F", BallastScaling(rehearse=False, down_s=180.0)),
        Contender("ballast, roles fixed", "3P3D", BallastScaling(rehearse=False)),
    ]


def figures_of(scenario: str, contender: Contender, seed: int) -> dict[str, Any]:
    """One run."""
    shape = contender.shape
    scaling = Autoscaling(
        policy=contender.policy,
        least=contender.least,
        clamps=Clamps(gpu_budget=GPUS),
        attainment=ATTAINMENT,
        startup_s=STARTUP_S,
        rehearsing=Rehearsing() if contender.rehearses else None,
    )
    setup = Setup(
        machines=parse_shape(shape, PROFILE),
        shape=shape,
        source=SCENARIOS[scenario],
        objective=SLO,
        autoscaling=scaling,
    )
    found = run(RunSpec(setup=setup, policy=parse_policies("ballast")[0], seed=seed)).figures
    scaled: Any = found["autoscaling"]
    return {
        "scenario": scenario,
        "contender": contender.name,
        "seed": seed,
        **{name: found[name] for name in ("requests", "attainment", "rejected", "broken", "sim_wall_s")},
        **{name: scaled[name] for name in ("gpu_hours", "peak_gpus", "changes")},
        "decisions": scaled["decisions"],
    }


def key_of(row: Mapping[str, Any]) -> tuple[str, str, int]:
    """What makes a row."""
    return row["scenario"], row["contender"], row["seed"]


def run_missing(rows: dict[tuple[str, str, int], dict[str, Any]], wanted: argparse.Namespace) -> None:
    """Run what `rows` lacks; each row is kept in the file as soon as it is there."""
    asked = [
        (scenario, contender, seed)
        for seed in SEEDS
        for scenario in SCENARIOS
        for contender in contenders()
        if wanted.only in scenario
        and any(part in contender.name for part in wanted.contender.split("+"))
        and not any(part in contender.name for part in wanted.skip.split("+") if part)
        and (scenario, contender.name, seed) not in rows
    ]
    with ProcessPoolExecutor(wanted.jobs) as pool:
        for done in as_completed([pool.submit(figures_of, *each) for each in asked]):
            last = done.result()
            rows[key_of(last)] = last
            print(line_of([last]), f"{last['sim_wall_s']:.0f} s", file=sys.stderr, flush=True)
            wanted.rows.write_text(json.dumps(list(rows.values()), indent=1), encoding="utf-8")


def line_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line of a table: means over seeds, and the least and most attainment."""
    shares = [row["attainment"] for row in rows]
    mean = {name: statistics.fmean(row[name] for row in rows) for name in ("gpu_hours", "changes", "requests")}
    missed = statistics.fmean((1 - row["attainment"]) * row["requests"] for row in rows)
    return (
        f"| {rows[0]['contender']} | {len(rows)} "
        f"| {statistics.fmean(shares):.1%} | {min(shares):.1%} to {max(shares):.1%} "
        f"| {missed:.0f} of {mean['requests']:.0f} | {mean['gpu_hours']:.3f} | {mean['changes']:.1f} |"
    )


def tables(rows: Mapping[tuple[str, str, int], dict[str, Any]]) -> str:
    """A table for each scenario, in Markdown."""
    parts = []
    for scenario in SCENARIOS:
        parts += [f"**{scenario.capitalize()}**", ""]
        parts += [
            "| | seeds | attainment | least to most | missed | GPU-hours | changes |",
            "| --- | --- | --- | --- | --- | --- | --- |",
        ]
        for contender in contenders():
            some = [row for key, row in sorted(rows.items()) if key[:2] == (scenario, contender.name)]
            if some:
                parts.append(line_of(some))
        parts.append("")
    return "\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--only", default="", help="scenarios whose name has this in it")
    parser.add_argument("--contender", default="", help="contenders whose name has one of these (a+b) in it")
    parser.add_argument("--skip", default="", help="contenders whose name has one of these (a+b) in it are left out")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--rows", type=Path, default=Path("scaling-study.json"), help="where rows are kept")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/scaling/study.md")
    wanted = parser.parse_args(arguments)
    rows: dict[tuple[str, str, int], dict[str, Any]] = {}
    if wanted.rows.exists():
        rows = {key_of(row): row for row in json.loads(wanted.rows.read_text(encoding="utf-8"))}
    run_missing(rows, wanted)
    print(tables(rows))
    if wanted.write:
        text = PAGE.read_text(encoding="utf-8")
        before, after = text.split(BEGIN, 1)[0], text.split(END, 1)[1]
        PAGE.write_text(f"{before}{BEGIN}\n\n{tables(rows)}\n{END}{after}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
