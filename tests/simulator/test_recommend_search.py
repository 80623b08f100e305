"""`ballast recommend`'s search: what it drops early, what it never drops, and that its answer is that of full runs."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast_core.profiles import SHIPPED_PROFILES
from ballast_core.profiles.capacity import LengthStatistics
from ballast_sim.recommend import stretch as stretches
from ballast_sim.recommend.budget import parse_budget
from ballast_sim.recommend.candidates import Candidate
from ballast_sim.recommend.halving import MOST_KEPT, survivors
from ballast_sim.recommend.layouts import Layout, Part
from ballast_sim.recommend.question import Question
from ballast_sim.recommend.runner import Runner, Stopped
from ballast_sim.recommend.search import Answer, search
from ballast_sim.recommend.stretch import LEAST, Span, Stretch, busiest
from ballast_sim.recommend.variants import Variant, default_variant, variants
from ballast_sim.simulation.inputs.objective import Objective
from ballast_sim.simulation.inputs.source import WorkloadSource
from ballast_sim.simulation.runs.experiment import Outcome, RunSpec
from ballast_sim.simulation.runs.pool import OnProgress, Pool

pytestmark = pytest.mark.rotating(4, each=True)

A100, H20 = SHIPPED_PROFILES["a100-qwen3-32b"], SHIPPED_PROFILES["h20-qwen3-32b"]
SLO = Objective(ttft_s=2.0, tpot_s=0.05)
SMALL = parse_budget("a100=2,h20=2", "qwen3-32b")
WALL_TIMES = ("sim_wall_s", "decision_us")


def asked(source: WorkloadSource, **changes: Any) -> Question:
    return Question(source=source, hardware=SMALL, objective=SLO, attainment=0.99, **changes)


def answer_to(question: Question, jobs: int = 1) -> Answer:
    return search(question, jobs, threading.Event(), lambda what, done, runs: None)


def plain(answer: Answer) -> list[tuple[str, list[dict[str, Any]]]]:
    """Every candidate's figures but those of the clock on the wall."""
    return [
        (each.label, [{name: run[name] for name in run if name not in WALL_TIMES} for run in each.outcomes])
        for each in [*answer.candidates, *(one.tried for one in answer.dropped if one.tried is not None)]
    ]


def trace(folder: Path, rows: Sequence[tuple[float, int, int]]) -> Path:
    path = folder / "trace.csv"
    lines = [f"{arrival_s},{inputs},{outputs}" for arrival_s, inputs, outputs in rows]
    path.write_text("\n".join(["arrival_s,input_tokens,output_tokens", *lines]) + "\n")
    return path


# --- what goes on -----------------------------------------------------------------------------------------------------


def tried(
    attainment: float, strain: float, policy: str = "default", layout: int = 1, *, needs_warm_caches: bool = False
) -> Candidate:
    variant = default_variant()
    if policy != "default":
        variant = Variant(policy, variant.spec, needs_warm_caches=needs_warm_caches)
    figures = {"attainment": attainment, "ttft_s": {"p99": 2.0 * strain}, "tpot_s": {"p99": 0.0}}
    return Candidate(Layout((Part("P", A100, layout), Part("D", H20, 2)), 1.0), variant, (figures,))


def going(*candidates: Candidate) -> list[Candidate]:
    return survivors(candidates, 250, SLO)[0]


def test_what_is_clearly_worse_on_the_stretch_is_dropped() -> None:
    best = tried(0.95, 1.0)
    assert going(best, tried(0.89, 1.0, layout=2)) == [best]
    assert going(best, tried(0.95, 1.4, layout=2)) == [best]
    for near in (tried(0.91, 9.0, layout=2), tried(0.95, 1.2, layout=2)):
        assert going(near, best) == [best, near]


def test_what_is_worse_by_chance_goes_on() -> None:
    """Of 250 requests that half meet, 8 more or fewer are one standard error."""
    best = tried(0.50, 10.0)
    assert len(going(best, tried(0.44, 30.0, layout=2))) == 2
    assert len(going(best, tried(0.43, 10.0, layout=2))) == 1


def test_a_policy_that_shows_nothing_against_the_default_is_dropped() -> None:
    default = tried(0.95, 1.0)
    assert going(default, tried(0.95, 0.995, "queue")) == [default]
    faster, fuller = tried(0.95, 0.98, "queue"), tried(0.951, 1.1, "moves")
    assert set(map(id, going(default, faster, fuller))) == {id(default), id(faster), id(fuller)}


def test_a_policy_goes_on_together_with_the_default_of_its_layout() -> None:
    """The final rule compares the two at full length, also where the default is clearly worse on the stretch."""
    default, queue = tried(0.70, 1.4), tried(0.86, 1.3, "queue")
    kept, reasons = survivors([default, queue], 250, SLO)
    assert kept == [queue, default]
    assert not reasons


def test_a_policy_that_needs_warm_caches_goes_on_where_its_layout_does() -> None:
    """On Mooncake's prompts `lmetric` is the worst on the stretch, which starts on cold caches, and may be the best."""
    default, warm = tried(0.51, 8.4), tried(0.39, 14.3, "lmetric", needs_warm_caches=True)
    elsewhere = [tried(0.39, 15.4, layout=2), tried(0.42, 15.4, "lmetric", layout=2, needs_warm_caches=True)]
    assert going(default, warm, *elsewhere) == [default, warm]


def test_only_so_many_go_on() -> None:
    alike = [tried(1.0, 1.0 + number / 1000, layout=number + 1) for number in range(MOST_KEPT + 3)]
    kept, reasons = survivors(alike, 250, SLO)
    assert kept == alike[:MOST_KEPT]
    assert reasons.keys() == {each.label for each in alike[MOST_KEPT:]}


@given(
    st.lists(
        st.tuples(st.floats(0, 1), st.floats(0.01, 100), st.sampled_from(("default", "queue")), st.integers(1, 6)),
        min_size=1,
        unique_by=lambda each: each[2:],
    )
)
def test_the_best_on_the_stretch_always_goes_on_and_each_candidate_has_one_fate(
    drawn: list[tuple[float, float, str, int]],
) -> None:
    candidates = [tried(*each) for each in drawn]
    kept, reasons = survivors(candidates, 250, SLO)
    assert max(each.attainment for each in kept) >= max(each.attainment for each in candidates) - 0.002
    assert sorted([*(each.label for each in kept), *reasons]) == sorted(each.label for each in candidates)


# --- the stretch ------------------------------------------------------------------------------------------------------


def stretch_of(source: WorkloadSource) -> Span | None:
    requests = source.load(0, 1.0).requests
    return busiest(requests, asked(source), LengthStatistics.of(requests))


def test_the_stretch_is_where_the_most_work_arrives(tmp_path: Path) -> None:
    """Not where the most requests do."""
    many = [(0.1 * number, 10, 5) for number in range(1000)]
    long = [(100 + 0.2 * number, 8000, 5) for number in range(LEAST)]
    after = [(140 + 0.1 * number, 10, 5) for number in range(400)]
    source = WorkloadSource(trace=trace(tmp_path, [*many, *long, *after]))
    span = stretch_of(source)
    assert span == Span(1000, LEAST)
    part = Stretch.of(source, span).load(0, 2.0).requests
    assert [request.input_tokens for request in part] == [8000] * LEAST
    assert part[0].arrival_s == 0
    assert part[-1].arrival_s == pytest.approx(0.1 * (LEAST - 1))


def test_there_is_no_stretch_of_little_traffic_or_of_requests_that_live_long() -> None:
    """Decode endpoints would not fill up within it."""
    assert stretch_of(WorkloadSource(workload="chat", limit=2 * LEAST)) is not None
    assert stretch_of(WorkloadSource(workload="chat", limit=2 * LEAST - 1)) is None
    assert stretch_of(WorkloadSource(workload="sharegpt-reasoning", rate_rps=2.0, limit=2 * LEAST)) is None


# --- the runs ---------------------------------------------------------------------------------------------------------


class CountingPool(Pool):
    """A pool that keeps what it is asked to run."""

    def __init__(self, jobs: int) -> None:
        super().__init__(jobs)
        self.specs: list[RunSpec] = []

    def run(
        self, specs: Sequence[RunSpec], stop: threading.Event, on_progress: OnProgress | None = None
    ) -> list[Outcome | None]:
        self.specs += specs
        return super().run(specs, stop, on_progress)


def test_nothing_is_simulated_twice(tmp_path: Path) -> None:
    """Seeds that bring the same requests give the same run; it is made once and counts for each."""
    rows = [(0.3 * number, 500 + 7 * number % 300, 20 + number % 30) for number in range(60)]
    pool = CountingPool(1)
    question = asked(WorkloadSource(trace=trace(tmp_path, rows)), seeds=(3, 4))
    runner = Runner(question, pool, threading.Event(), lambda what, done, runs: None)
    layout = Layout((Part("P", A100, 1), Part("D", H20, 2)), 1.0)
    pairs = [(layout, variant) for variant in variants(layout, shares_prefixes=False)[:2]]
    first = runner.on_all("first", pairs[:1])
    both = runner.on_all("both", pairs)
    assert [(spec.policy.name, spec.seed) for spec in pool.specs] == [("default", 3), ("sibyl", 3)]
    assert first == both[:1]
    assert [run["seed"] for run in both[1].outcomes] == [3, 4]
    (other,) = Runner(asked(question.source, seeds=(4,)), Pool(1), threading.Event(), lambda *told: None).on_all(
        "other", pairs[:1]
    )
    assert decided(other.outcomes[0]) == decided(both[0].outcomes[1])
    assert (runner.runs, runner.requests) == (2, 120)


def decided(figures: Mapping[str, Any]) -> dict[str, Any]:
    return {name: figures[name] for name in figures if name not in WALL_TIMES}


def test_a_generated_workload_runs_with_every_seed() -> None:
    pool = CountingPool(1)
    question = asked(WorkloadSource(workload="chat", limit=30))
    runner = Runner(question, pool, threading.Event(), lambda what, done, runs: None)
    layout = Layout((Part("C", A100, 1),), 1.0)
    runner.on_all("all", [(layout, default_variant())])
    assert [spec.seed for spec in pool.specs] == [0, 1]


def test_the_longest_runs_begin_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what the same candidate took before: so no core waits long for another at the end of a stage."""
    took = {"default": 1.0, "sibyl": 5.0, "least-requests": 3.0}

    def pretend(pool: Pool, specs: Sequence[RunSpec], *rest: object) -> list[Outcome]:
        begun.append([spec.policy.name for spec in specs])
        return [Outcome({"sim_wall_s": took[spec.policy.name], "requests": 1, "seed": 0}) for spec in specs]

    begun: list[list[str]] = []
    monkeypatch.setattr(Pool, "run", pretend)
    question = asked(WorkloadSource(workload="chat", limit=30), seeds=(0,))
    runner = Runner(question, Pool(2), threading.Event(), lambda what, done, runs: None)
    layout = Layout((Part("P", A100, 1), Part("D", H20, 2)), 1.0)
    pairs = [(layout, variant) for variant in variants(layout, shares_prefixes=False)[:3]]
    runner.on_stretch("short", pairs, Span(0, 10))
    runner.on_all("long", pairs)
    assert begun[1] == ["sibyl", "least-requests", "default"]


def test_a_search_that_is_stopped_recommends_nothing() -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(Stopped):
        search(asked(WorkloadSource(workload="chat", limit=30)), 1, stop, lambda what, done, runs: None)


# --- the answer -------------------------------------------------------------------------------------------------------

SCENES = {
    "roomy": asked(WorkloadSource(workload="chat", rate_rps=1.0, limit=120), seeds=(0,)),
    "nearly full": asked(WorkloadSource(workload="chat", rate_rps=3.0, limit=150), seeds=(0,)),
    "overloaded": asked(WorkloadSource(workload="chat", rate_rps=6.0, limit=120), seeds=(0,)),
}


@pytest.fixture
def short_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a test needs few requests."""
    monkeypatch.setattr(stretches, "LEAST", 50)


@pytest.mark.rotating(4)
@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.usefixtures("short_stretches")
def test_the_answer_is_that_of_full_runs(scene: str) -> None:
    """The same candidate, the same figures, from far fewer requests."""
    short, full = answer_to(SCENES[scene]), answer_to(replace(SCENES[scene], full_length=True))
    assert short.stretch is not None
    assert full.stretch is None
    assert short.best.label == full.best.label
    assert decided(short.best.outcomes[0]) == decided(full.best.outcomes[0])
    assert short.growth == full.growth
    assert short.effort.requests < 0.8 * full.effort.requests


@pytest.mark.usefixtures("short_stretches")
def test_the_answer_does_not_depend_on_the_number_of_processes() -> None:
    one, two = (answer_to(SCENES["nearly full"], jobs) for jobs in (1, 2))
    assert plain(one) == plain(two)
    assert (one.growth, one.effort) == (two.growth, two.effort)
    assert [(each.shape, each.policy, each.why) for each in one.dropped] == [
        (each.shape, each.policy, each.why) for each in two.dropped
    ]


@pytest.mark.usefixtures("short_stretches")
def test_progress_counts_every_run_that_is_made_and_no_other() -> None:
    told: dict[str, list[tuple[int, int]]] = {}
    answer = search(
        SCENES["roomy"], 1, threading.Event(), lambda what, done, runs: told.setdefault(what, []).append((done, runs))
    )
    assert answer.meets
    for lines in told.values():
        assert lines[0][0] == 0
        done, runs = lines[-1]
        assert done == runs
    made = sum(runs for what, lines in told.items() for done, runs in lines if done == 0)
    assert made == answer.effort.runs
    assert [what for what in told if "the busiest 50 of 120 requests" in what]


@pytest.mark.parametrize(
    ("attained", "tried_at", "reach"),
    [
        ({1.0: 1.0, 1.5: 1.0, 2.0: 0.995}, (1.5, 2.0), 2.0),
        ({1.0: 1.0, 1.5: 0.99, 2.0: 0.9}, (1.5, 2.0), 1.5),
        ({1.0: 1.0, 1.25: 0.99, 1.5: 0.98, 2.0: 0.9}, (1.25, 1.5, 2.0), 1.25),
        ({1.0: 1.0, 1.25: 0.98, 1.5: 0.98, 2.0: 0.9}, (1.25, 1.5, 2.0), None),
        ({1.0: 1.0, 1.25: 1.0, 1.5: 0.98, 2.0: 1.0}, (1.25, 1.5, 2.0), 1.25),
        ({1.0: 0.98}, (), None),
    ],
)
def test_headroom_is_tried_as_far_as_it_decides(
    monkeypatch: pytest.MonkeyPatch, attained: dict[float, float], tried_at: tuple[float, ...], reach: float | None
) -> None:
    """Not at all where the answer does not meet the SLO at its own traffic."""

    def pretend(pool: Pool, specs: Sequence[RunSpec], *rest: object) -> list[Outcome]:
        figures = {"sim_wall_s": 1.0, "requests": 30, "seed": 0, "ttft_s": {"p99": 1.0}, "tpot_s": {"p99": 0.01}}
        return [Outcome({**figures, "attainment": attained[spec.rate_scale]}) for spec in specs]

    monkeypatch.setattr(Pool, "run", pretend)
    answer = answer_to(asked(WorkloadSource(workload="chat", limit=30)))
    assert tuple(growth for growth, _ in answer.growth) == tried_at
    assert answer.reach == reach


def test_what_meets_the_objective_is_not_passed_over_for_what_nearly_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy with more parts reaches 99 %, the default is within noise of it and does not."""

    def pretend(pool: Pool, specs: Sequence[RunSpec], *rest: object) -> list[Outcome]:
        figures = {"sim_wall_s": 1.0, "requests": 30, "seed": 0, "ttft_s": {"p99": 1.0}, "tpot_s": {"p99": 0.01}}
        return [
            Outcome({**figures, "attainment": 0.9905 if spec.policy.name == "ares migrations" else 0.9895})
            for spec in specs
        ]

    monkeypatch.setattr(Pool, "run", pretend)
    answer = answer_to(asked(WorkloadSource(workload="chat", limit=30)))
    assert answer.meets
    assert answer.best.variant.name == "ares migrations"


def test_headroom_is_tried_for_as_long_as_the_traffic_lasts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """40 requests in 20 s: 60 at 1.5 times the traffic, 80 at twice. One that fits no engine, beyond the 40, is left
    out."""
    rows = [(number / 2, 999_999 if number == 70 else 100, 20) for number in range(100)]
    lasted: dict[float, tuple[int, float]] = {}

    def pretend(pool: Pool, specs: Sequence[RunSpec], *rest: object) -> list[Outcome]:
        for spec in specs:
            requests = spec.setup.source.load(spec.seed, spec.rate_scale).requests
            lasted[spec.rate_scale] = len(requests), requests[-1].arrival_s
        figures = {"sim_wall_s": 1.0, "seed": 0, "ttft_s": {"p99": 1.0}, "tpot_s": {"p99": 0.01}, "attainment": 1.0}
        return [Outcome({**figures, "requests": 40}) for _ in specs]

    monkeypatch.setattr(Pool, "run", pretend)
    answer_to(asked(WorkloadSource(trace=trace(tmp_path, rows), limit=40)))
    assert lasted == {1.0: (40, 19.5), 1.5: (60, pytest.approx(19.7, abs=0.1)), 2.0: (79, 19.75)}
