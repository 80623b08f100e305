"""What a paper's part of the report is made of: claims, and experiments whose findings speak about them.

A module of a paper reads like this:

    CLAIM = Claim(name="sibyl/tail-against-rr", where="section 5.4, figure 9", says="P99 TPOT is 24.5 % below ...")

    def analyse(results: Results) -> Finding:
        ours = results.change("sibyl", "round-robin", "tpot_p99_s")
        return Finding(rows=[Row(claim=CLAIM.name, setting=Setting.THEIRS, what="P99 TPOT against round-robin",
                                 paper="-24.5 %", ours=ours, unit="% change", verdict=judge_change(ours, -24.5))])

    EXPERIMENT = Experiment(name="sibyl/figure-9", title=..., text=..., runs=[Run("sibyl", simulated(...)), ...],
                            analyse=analyse)
    PAPER = Paper(name="sibyl", ..., claims=(CLAIM,), experiments=(EXPERIMENT,))

An analysis is a pure function of results; where runs are missing its measurements are None, and rows that carry None
are shown as not computed. All that is quoted from a paper stands in claims and rows, all that is ours comes from
results: prose of a finding takes its numbers from them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from bench.common.store import Code
from bench.reproduce.plots import Drawing
from bench.reproduce.results import Measured, Results
from bench.reproduce.verdicts import Verdict

REDUCED_SEEDS = (0, 1)
FULL_SEEDS = (0, 1, 2)
"""The reduced set's come first, so that its runs are among those of the full set."""
MANY_SEEDS = tuple(range(12))
"""For short runs on few endpoints, whose tails hang on a handful of requests."""

STANDARD_FIGURES = (
    "requests",
    "completed",
    "ttft_mean_s",
    "ttft_p50_s",
    "ttft_p99_s",
    "tpot_mean_s",
    "tpot_p50_s",
    "tpot_p99_s",
    "tpot_p999_s",
    "e2e_mean_s",
    "e2e_p99_s",
    "goodput_rps",
    "throughput_tok_s",
    "preemptions",
    "arrivals_s",
)
"""What is recorded of a run unless its experiment names more."""


class Setting(StrEnum):
    """Under which assumptions a row was measured."""

    THEIRS = "their set-up"
    REALISTIC = "realistic"
    BEYOND = "not in the paper"
    """A result that no claim of the paper is about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A headline of a paper. `name` is `PAPER/SLUG`."""

    name: str
    where: str
    """Section, figure, table."""
    says: str
    """The claim in the paper's terms, with its numbers."""
    short: str
    """The same in a few words, without the numbers: for the page of verdicts."""
    number: str
    """The paper's number, in short."""
    cannot: str = ""
    """Why nothing here can be compared with it; empty where an experiment does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A number of ours beside the paper's."""

    what: str
    ours: Measured | None
    unit: str
    """`% change` (signed), `%` of a share, `ms`, `s`, `x` of a ratio, `req/s`, empty for a count ..."""
    paper: str = ""
    """The paper's value, as text; empty where it has none."""
    setting: Setting
    claim: str | None = None
    verdict: Verdict | None = None
    """None for a row that only informs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A chart under its experiment; the file is named after the experiment and `name`."""

    name: str
    caption: str
    charts: Sequence[Drawing]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The results of an experiment. `text` is Markdown: what is seen, and why, with numbers from the results."""

    rows: Sequence[Row]
    plots: Sequence[Plot] = ()
    text: str = ""


class Task(Protocol):
    """One piece of work for each seed. `bench.reproduce.tasks` has the two kinds that there are."""

    @property
    def description(self) -> Mapping[str, object]:
        """All that the figures depend on, but seed and code. Can be JSON."""
        ...

    @property
    def code(self) -> Code:
        """Digests of the code that the figures depend on."""
        ...

    @property
    def arrivals_s(self) -> float | None:
        """For how long requests arrive, about; None where only the run itself can tell."""
        ...

    def carry_out(self, seed: int) -> Mapping[str, float]:
        """Figures by name. Seconds, shares, counts; the same for the same seed on any machine, but for float noise."""
        ...


@dataclass(frozen=True, slots=True)
class Run:
    """A named task of an experiment, done with every seed."""

    name: str
    task: Task
    reduced: bool = True
    """Whether it belongs to the reduced set, too."""
    needs: Path | None = None
    """A file without which it is left out, such as a trace of `../shared`; such runs are never in the reduced set."""
    cost_s: float = 10.0
    """Processor seconds, about: for the first guess of how long all takes."""

    @property
    def available(self) -> bool:
        """Whether this machine has what it needs."""
        return self.needs is None or self.needs.exists()


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Runs and their analysis. `name` is `PAPER/SLUG`, the slug such as `figure-8`."""

    name: str
    title: str
    text: str
    """The set-up in words, and where it departs from the paper's."""
    runs: Sequence[Run]
    analyse: Callable[[Results], Finding]
    figures: tuple[str, ...] = STANDARD_FIGURES
    """What is recorded of a run; an analysis can ask for no other."""
    seeds: tuple[int, ...] = FULL_SEEDS
    reduced_seeds: tuple[int, ...] = REDUCED_SEEDS
    """Empty where the reduced set leaves it out."""

    @property
    def command(self) -> str:
        """What prints its figures."""
        return f"python -m bench.reproduce.run --only {self.name} --show"

    def seeds_of(self, run: Run, *, full: bool) -> tuple[int, ...]:
        """With which seeds a run is to be done; none where the set does not have it."""
        if full:
            return self.seeds
        return self.reduced_seeds if run.reduced and run.needs is None else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    """One paper's part of the report."""

    name: str
    title: str
    set_up: str
    """Markdown: their set-up, what ours shares with it, what the paper leaves open and how it was decided."""
    claims: tuple[Claim, ...]
    experiments: tuple[Experiment, ...]
    verdict: Callable[[Mapping[str, Results]], str] = field(default=lambda results: "")
    """Markdown under the paper's heading: what holds and what does not, from the results by experiment."""
