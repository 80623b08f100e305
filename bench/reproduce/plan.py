"""Which runs a set has, which of them are known, and which comes next."""

from __future__ import annotations

import dataclasses
import gc
import signal
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType

from bench.common.store import Code, Store, digest_of
from bench.reproduce.form import Experiment, Run, Task
from bench.reproduce.record import Done, Record, RecordedRun, kept

LONGEST_RUN_S = 3600.0
"""Wall time after which a run is given up, so that one that never ends cannot hold up all others."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run with one seed."""

    experiment: str
    run: str
    seed: int
    task: Task
    figures: tuple[str, ...]

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.experiment} {self.run} seed {self.seed}"

    @property
    def description(self) -> Mapping[str, object]:
        """Under which its figures are kept: the same task in two experiments is done once."""
        return {**self.task.description, "seed": self.seed}


@dataclass(frozen=True, slots=True)
class Carried:
    """What a job came to."""

    figures: Mapping[str, float]
    cpu_s: float


def carry_out(job: Job) -> Carried:
    """In a worker. Raises TimeoutError for a run that takes an hour, and whatever the task raises."""
    signal.signal(signal.SIGALRM, _give_up)
    signal.setitimer(signal.ITIMER_REAL, LONGEST_RUN_S)
    started_s = time.process_time()
    gc.disable()  # a run leaves few cycles behind: collecting them costs more time than keeping them costs memory
    try:
        figures = dict(job.task.carry_out(job.seed))
    finally:
        gc.enable()
        signal.setitimer(signal.ITIMER_REAL, 0)
    return Carried(figures, round(time.process_time() - started_s, 2))


def _give_up(number: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"no end after {LONGEST_RUN_S:g} s")


@dataclass(slots=True)
class Plan:
    """A set of experiments' runs, filled from a store and by finished jobs.

    Runs take turns by seed, so that a set cut short says something about each experiment: everything with the first
    seed, then the reduced set with the others, then the rest.
    """

    experiments: Sequence[Experiment]
    store: Store
    full: bool
    earlier: Record | None = None
    """A record whose runs are not done again."""
    known: dict[tuple[str, str], dict[int, Done]] = field(default_factory=dict)
    left: list[Job] = field(default_factory=list)
    """In the order in which they are to be done."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Runs of the set that this machine cannot do, with the reason."""
    under_way: list[Job] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Take what the store has."""
        turns: list[tuple[bool, bool, int, int, Job]] = []
        for number, experiment, run in self._runs():
            seeds = experiment.seeds_of(run, full=self.full)
            if seeds and not run.available:
                assert run.needs is not None
                self.skipped[f"{experiment.name} {run.name}"] = f"needs {run.needs.name} of ../shared/traces"
                continue
            code = run.task.code if seeds else Code("", "")
            recorded = self._recorded(experiment, run) if seeds else frozenset[int]()
            for turn, seed in enumerate(seeds):
                if seed in recorded:
                    continue
                job = Job(experiment.name, run.name, seed, run.task, experiment.figures)
                if not self._recall(job, code):
                    turns.append((turn > 0, turn > 0 and not run.reduced, turn, number, job))
        self.left = [job for *_, job in sorted(turns, key=lambda entry: entry[:-1])]

    def _runs(self) -> Iterator[tuple[int, Experiment, Run]]:
        number = 0
        for experiment in self.experiments:
            for run in experiment.runs:
                number += 1
                yield number, experiment, run

    def _recorded(self, experiment: Experiment, run: Run) -> frozenset[int]:
        """Seeds of the run that the earlier record has, run as it would be now."""
        runs = {} if self.earlier is None else self.earlier.experiments.get(experiment.name, {})
        before = runs.get(run.name)
        if before is None or before.of != digest_of(run.task.description):
            return frozenset()
        return frozenset(before.seeds)

    def _recall(self, job: Job, code: Code) -> bool:
        found = self.store.get(job.description, code)
        if found is None:
            return False
        self._keep(job, Done(found[1], found[0]["cpu_s"], found[0]["figures"]))
        return True

    def _keep(self, job: Job, done: Done) -> None:
        figures = kept(done.figures, job.figures)
        self.known.setdefault((job.experiment, job.run), {})[job.seed] = dataclasses.replace(done, figures=figures)

    def take(self) -> Job | None:
        """The next job that is not known, nor the same as one under way."""
        busy = [job.description for job in self.under_way]
        for job in tuple(self.left):
            if job.description in busy:
                continue
            self.left.remove(job)
            if self._recall(job, job.task.code):  # the same task of another experiment, done since
                continue
            self.under_way.append(job)
            return job
        return None

    def finish(self, job: Job, carried: Carried) -> None:
        """Keep a result, on disk first."""
        self.under_way.remove(job)
        code = job.task.code
        self.store.put(job.description, code, {"figures": dict(carried.figures), "cpu_s": carried.cpu_s})
        self._keep(job, Done(code, carried.cpu_s, carried.figures))

    def fail(self, job: Job, error: Exception) -> None:
        """Not to be tried again in this call."""
        self.under_way.remove(job)
        self.failures[job.name] = repr(error)

    def cpu_left_s(self) -> float:
        """About how much processor time the rest takes: what the same run took with another seed, or its own guess."""
        once = {digest_of(job.description): job for job in (*self.left, *self.under_way)}
        return sum(map(self.cost_s, once.values()))

    def cost_s(self, job: Job) -> float:
        """Of one job, about."""
        costs = [done.cpu_s for done in self.known.get((job.experiment, job.run), {}).values()]
        if costs:
            return statistics.fmean(costs)
        return next(
            run.cost_s
            for experiment in self.experiments
            if experiment.name == job.experiment
            for run in experiment.runs
            if run.name == job.run
        )

    def record(self, earlier: Record | None = None) -> Record:
        """All that is known; and from an earlier record what was run as it would be now and is not known here.

        Experiments that are not in this plan stay as they were.
        """
        record = Record.begun()
        mine = {experiment.name for experiment in self.experiments}
        for experiment in self.experiments:
            runs: dict[str, RecordedRun] = {}
            for run in experiment.runs:
                before = None
                if earlier is not None:
                    before = earlier.experiments.get(experiment.name, {}).get(run.name)
                of = digest_of(run.task.description)
                if not run.available and before is not None:
                    runs[run.name] = before
                    continue
                seeds = dict(before.seeds) if before is not None and before.of == of else {}
                seeds |= self.known.get((experiment.name, run.name), {})
                seeds = {seed: done for seed, done in sorted(seeds.items()) if seed in experiment.seeds}
                if seeds:
                    runs[run.name] = RecordedRun(of, seeds)
            if runs:
                record.experiments[experiment.name] = runs
        if earlier is not None:
            for name, runs in earlier.experiments.items():
                if name not in mine:
                    record.experiments[name] = runs
        return record
