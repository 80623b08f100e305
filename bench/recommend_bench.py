"""What `ballast recommend` costs, and what it answers: processor and wall time, runs, simulated requests.

The defaults (2,000 requests, a100=4,h20=8, ttft=2,tpot=0.05, two seeds, all cores) on the recorded traces of
`../shared/traces`; what is not there is skipped. `--full-length` asks the same with every candidate at full length and
says whether the answers agree. `--study` asks `STUDY` both ways: other budgets, SLOs and rates, with fewer requests.
"""

from __future__ import annotations

import argparse
import resource
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

from ballast_core.profiles import SHIPPED_PROFILES
from ballast_sim.recommend.budget import parse_budget
from ballast_sim.recommend.question import Question
from ballast_sim.recommend.search import Answer, search
from ballast_sim.simulation.inputs.objective import Objective
from ballast_sim.simulation.inputs.source import WorkloadSource
from ballast_sim.simulation.runs.pool import default_jobs

TRACES = Path(__file__).resolve().parents[2] / "shared" / "traces"
AZURE, MOONCAKE = "azure23_conv_w1.csv.gz", "mooncake_conversation_w1.jsonl.gz"
SERVEGEN, REASONING = "servegen_large_w1.csv.gz", "servegen_r1_w1.csv.gz"
MIXED, SMALL, EQUAL = "a100=4,h20=8", "a100=2,h20=2", "a100=8"
LINE = "{:<18} {:>4} {:<12} {:<18} {:<12} {:>5} {:>8} {:>7} {:>7}  {}"


@dataclass(frozen=True, slots=True)
class Case:
    """A question; `traffic` is a file of `TRACES` or a built-in workload."""

    traffic: str
    budget: str = MIXED
    slo: str = "ttft=2,tpot=0.05"
    limit: int = 2000
    rate_scale: float = 1.0

    @property
    def name(self) -> str:
        """Of the traffic, shortened."""
        return self.traffic.split("_", maxsplit=1)[0]

    def question(self) -> Question | None:
        """None where the trace is not there."""
        trace = TRACES / self.traffic if "." in self.traffic else None
        if trace is not None and not trace.exists():
            return None
        return Question(
            source=WorkloadSource(trace=trace, workload="" if trace else self.traffic, limit=self.limit),
            hardware=parse_budget(self.budget, "qwen3-32b", SHIPPED_PROFILES),
            objective=Objective.parse(self.slo),
            attainment=0.99,
            rate_scale=self.rate_scale,
        )


GOAL = (Case(AZURE), Case(MOONCAKE))
STUDY = (
    *(
        Case(traffic, budget, slo, 800, rate_scale)
        for traffic, rate_scale in ((AZURE, 1.0), ("chat", 1.0))
        for budget in (MIXED, SMALL)
        for slo in ("ttft=2,tpot=0.05", "ttft=5,tpot=0.03")
    ),
    *(
        Case(SERVEGEN, budget, slo, 1600)
        for budget in (MIXED, "a100=4,h20=16")
        for slo in ("ttft=2,tpot=0.05", "ttft=4,tpot=0.1")
    ),
    *(
        Case(MOONCAKE, budget, slo, 500, rate_scale)
        for budget, rate_scale in ((MIXED, 0.25), (EQUAL, 0.15))
        for slo in ("ttft=10,tpot=0.05", "ttft=30,tpot=0.1")
    ),
    Case(REASONING, slo="ttft=5,tpot=0.05", limit=600, rate_scale=0.3),
    Case("multi-turn", SMALL, limit=800),
    Case("libra-code", SMALL, limit=800),
    Case("mix-2", "a100=2,h20=4", limit=400),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """An answer and what it cost, worker processes included."""

    answer: Answer
    processor_s: float
    wall_s: float


def measure(question: Question, jobs: int) -> Measured:
    """One search."""
    started_s, before_s = time.perf_counter(), _processor_s()
    answer = search(question, jobs, threading.Event(), lambda what, done, runs: None)
    return Measured(answer, _processor_s() - before_s, time.perf_counter() - started_s)


def _processor_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def show(case: Case, how: str, measured: Measured) -> None:
    """One line."""
    answer = measured.answer
    said = f"{answer.best.label}: {answer.best.attainment:.2%}"
    print(
        LINE.format(
            case.name,
            f"x{case.rate_scale:g}",
            case.budget,
            case.slo,
            how,
            answer.effort.runs,
            answer.effort.requests,
            f"{measured.processor_s:.1f}",
            f"{measured.wall_s:.1f}",
            said,
        ),
        flush=True,
    )


def ask(case: Case, jobs: int, *, both: bool) -> bool:
    """Prints what one case costs. False where full length answers otherwise."""
    question = case.question()
    if question is None:
        print(f"{case.name}: skipped, {TRACES / case.traffic} is not there")
        return True
    short = measure(question, jobs)
    show(case, "", short)
    if not both:
        return True
    full = measure(replace(question, full_length=True), jobs)
    same = full.answer.best.label == short.answer.best.label
    show(case, "full length", full)
    verdict = "the same answer" if same else "ANOTHER ANSWER"
    print(f"  {verdict}, {full.processor_s / short.processor_s:.1f} times the processor time", flush=True)
    return same


def main() -> int:
    """Exit status 1 where an answer differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full-length", action="store_true", help="also with every candidate at full length")
    parser.add_argument("--study", action="store_true", help="the cases of the study, both ways")
    parser.add_argument("--only", nargs="*", help="cases of these names")
    parser.add_argument("--jobs", type=int, default=default_jobs())
    options = parser.parse_args()
    titles = ("traffic", "rate", "GPUs", "SLO", "", "runs", "requests", "cpu s", "wall s", "answer")
    print(LINE.format(*titles))
    cases = [case for case in (STUDY if options.study else GOAL) if not options.only or case.name in options.only]
    same = [ask(case, options.jobs, both=options.study or options.full_length) for case in cases]
    if options.study:
        print(f"{sum(same)} of {len(same)} answers are those of full length")
    return 0 if all(same) else 1


if __name__ == "__main__":
    sys.exit(main())
