"""`bench/recorded/reproduction.json`: every figure of the report with the code, machine and day that it comes from."""

from __future__ import annotations

import datetime
import json
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

from ballast_sim.simulation.runs.experiment import versions
from bench.common.store import Code
from bench.reproduce.form import Experiment, Task
from bench.reproduce.results import Results

CHECKOUT = Path(__file__).parents[2]
FILE = CHECKOUT / "bench" / "recorded" / "reproduction.json"
DIGITS = 6


@dataclass(frozen=True, slots=True)
class Done:
    """One run with one seed."""

    code: Code
    cpu_s: float
    """Of the machine that computed it."""
    figures: Mapping[str, float]


@dataclass(slots=True)
class RecordedRun:
    """`of` is the digest of what was run."""

    of: str
    seeds: dict[int, Done] = field(default_factory=dict)


@dataclass(slots=True)
class Record:
    """By experiment and run."""

    versions: dict[str, str]
    date: str
    machine: str
    experiments: dict[str, dict[str, RecordedRun]] = field(default_factory=dict)

    @classmethod
    def begun(cls) -> Record:
        """Empty, made here and now."""
        return cls(
            versions=versions(),
            date=datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
            machine=f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}",
        )

    def results(self, experiment: Experiment) -> Results:
        """What its analysis works on."""
        runs = self.experiments.get(experiment.name, {})
        lasting = {
            run.name: lifetimes
            for run in experiment.runs
            if run.name in runs and (lifetimes := _lifetimes(runs[run.name], run.task)) is not None
        }
        figures = {name: {seed: done.figures for seed, done in run.seeds.items()} for name, run in runs.items()}
        return Results(figures, lasting)


P99_LIFETIMES = ("e2e_p99_s", "long_p99_s")
"""Figures that tell how long the longest requests live; the first that a run has."""


def _lifetimes(run: RecordedRun, task: Task) -> float | None:
    """The fewest of its seeds: for how long requests arrived over the P99 lifetime of one."""
    found = []
    for done in run.seeds.values():
        arrivals_s = done.figures.get("arrivals_s", task.arrivals_s)
        lifetime_s = next((done.figures[name] for name in P99_LIFETIMES if name in done.figures), None)
        if arrivals_s is None or not lifetime_s:
            return None
        found.append(arrivals_s / lifetime_s)
    return min(found, default=None)


def kept(figures: Mapping[str, float], names: Iterable[str]) -> dict[str, float]:
    """What is recorded of a run's figures, rounded as it is recorded."""
    return {name: float(f"{figures[name]:.{DIGITS}g}") for name in names if name in figures}


def write(record: Record, path: Path = FILE) -> None:
    """As JSON with a line for each run, in one move."""
    codes: dict[Code, int] = {}
    experiments = {name: _experiment_text(runs, codes) for name, runs in record.experiments.items()}
    lines = [
        f'"versions": {json.dumps(record.versions)}',
        f'"date": {json.dumps(record.date)}',
        f'"machine": {json.dumps(record.machine)}',
        f'"codes": {json.dumps([astuple(code) for code in codes])}',
        '"experiments": {\n' + ",\n".join(f"{json.dumps(name)}: {text}" for name, text in experiments.items()) + "\n}",
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    part.replace(path)


def _experiment_text(runs: Mapping[str, RecordedRun], codes: dict[Code, int]) -> str:
    names = sorted({name for run in runs.values() for done in run.seeds.values() for name in done.figures})
    lines = [f'"figures": {json.dumps(names)}']
    for name, run in runs.items():
        seeds = {
            str(seed): [codes.setdefault(done.code, len(codes)), done.cpu_s, *map(done.figures.get, names)]
            for seed, done in sorted(run.seeds.items())
        }
        lines.append(f"{json.dumps('run ' + name)}: {json.dumps({'of': run.of, 'seeds': seeds})}")
    return "{\n" + ",\n".join(lines) + "\n}"


def read(path: Path = FILE) -> Record:
    """Raises ValueError naming the file where it is no record; FileNotFoundError."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        codes = [Code(*code) for code in data["codes"]]
        experiments = {
            name: {
                key.removeprefix("run "): _run(value, known["figures"], codes)
                for key, value in known.items()
                if key.startswith("run ")
            }
            for name, known in data["experiments"].items()
        }
        return Record(data["versions"], data["date"], data["machine"], experiments)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ValueError(f"{path}: is no reproduction record that this version can read ({error!r})") from None


def _run(value: Mapping[str, Any], names: list[str], codes: list[Code]) -> RecordedRun:
    seeds = {}
    for seed, (code, cpu_s, *numbers) in value["seeds"].items():
        figures = {name: number for name, number in zip(names, numbers, strict=True) if number is not None}
        seeds[int(seed)] = Done(codes[code], cpu_s, figures)
    return RecordedRun(value["of"], seeds)
