"""Runs of `ballast simulate` below the command line: rates, capacity, conversations, stale views, interruption."""

import itertools
import multiprocessing
import random
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast_core.directing.settings import DirectorSettings
from ballast_core.model import Binding
from ballast_core.policies.placement.registry import PLACEMENTS
from ballast_core.policies.registry import build_placement
from ballast_core.profiles import SHIPPED_PROFILES
from ballast_sim.simulation.capacity.search import (
    GROWTH_RATIO,
    CapacityError,
    Interrupted,
    growth,
    highest_sustained,
    hopeless,
    measure_capacity,
)
from ballast_sim.simulation.figures.balance import Balance
from ballast_sim.simulation.figures.timeline import MAX_SAMPLES, Timeline
from ballast_sim.simulation.fleet.fleet import Fleet
from ballast_sim.simulation.inputs.fleet_settings import FleetSettings
from ballast_sim.simulation.inputs.objective import Objective
from ballast_sim.simulation.inputs.shapes import parse_shape
from ballast_sim.simulation.inputs.source import WorkloadSource, scale_sessions, turns
from ballast_sim.simulation.policies.choice import default_prefill, least_requests, parse_policies
from ballast_sim.simulation.requests.records import Record
from ballast_sim.simulation.runs.experiment import Outcome, RunSpec, Setup, build_fleet, run
from ballast_sim.simulation.runs.pool import Pool, run_all
from ballast_sim.workloads import WorkloadRequest, generate

SHAPE = "2P@a100-qwen3-32b,2D@h20-qwen3-32b"
CHAT = WorkloadSource(workload="chat", limit=120)


def setup(shape: str = SHAPE, source: WorkloadSource = CHAT, **fleet: float) -> Setup:
    """A small set-up; policies do not see output lengths."""
    settings = replace(FleetSettings(known_limits=False), **fleet)  # type: ignore[arg-type]
    return Setup(machines=parse_shape(shape), shape=shape, source=source, fleet=settings)


def decided(outcome: Outcome) -> dict[str, object]:
    """Without what depends on the machine's speed."""
    return {key: value for key, value in outcome.figures.items() if key not in ("decision_us", "sim_wall_s")}


# --- the search for the capacity --------------------------------------------------------------------------------------


@given(
    limit=st.floats(0.05, 50),
    start=st.floats(0.05, 50),
)
def test_the_search_finds_the_limit_to_one_percent(limit: float, start: float) -> None:
    """From any start that is not fifty times too high; never above the limit; no rate is probed twice."""
    asked: list[float] = []

    def probe(scale: float) -> bool:
        asked.append(scale)
        return scale <= limit

    if limit < start / 40:
        return
    found, probes, bounded = highest_sustained(probe, start, bound=1000.0)
    assert limit / 1.0101 <= found <= limit
    assert not bounded
    assert probes == len(asked) == len(set(asked))


def test_the_search_stops_at_the_bound_or_says_that_there_is_nothing() -> None:
    """Everything is sustained: the bound. Nothing is: an error."""
    assert highest_sustained(lambda scale: True, 1.0, 3.0)[::2] == (3.0, True)
    assert highest_sustained(lambda scale: True, 7.0, 3.0) == (3.0, 1, True)
    with pytest.raises(CapacityError, match="not even 2 %"):
        highest_sustained(lambda scale: False, 1.0, 3.0)


@given(excess=st.floats(0.0, 0.5), noise=st.integers(0, 1000))
def test_waiting_grows_as_fast_as_arrivals_exceed_service(excess: float, noise: int) -> None:
    """A fluid queue that serves 1/(1 + x) of what arrives: TTFT rises by x seconds a second."""
    rng = random.Random(noise)
    ages = [(float(t), 0.5 + excess * t + rng.random() * 0.2) for t in range(600)]
    assert growth(ages) == pytest.approx(excess, abs=0.002)
    assert (growth(ages) < GROWTH_RATIO) == (excess < GROWTH_RATIO) or abs(excess - GROWTH_RATIO) < 0.002


def test_too_few_requests_tell_nothing_of_growth() -> None:
    """Neither do requests of one instant."""
    assert growth([(0.0, 1.0), (1.0, 9.0)]) == 0.0
    assert growth([(5.0, float(k)) for k in range(100)]) == 0.0


def test_the_measured_capacity_sustains_its_rate_and_not_much_more() -> None:
    """P99 TTFT holds at the capacity; at 1.5 times it the objective is missed."""
    wanted = replace(setup(), objective=Objective(ttft_s=3.0))
    capacity = measure_capacity(wanted)
    assert not capacity.bounded
    assert capacity.rate_rps is not None
    for factor, holds in ((1.0, True), (1.5, False)):
        spec = RunSpec(setup=wanted, policy=least_requests(), rate_scale=capacity.rate_scale * factor)
        ttft = run(spec).figures["ttft_s"]
        assert isinstance(ttft, dict)
        assert (ttft["p99"] <= 3.0) == holds


@given(
    waited=st.lists(st.floats(0.0, 10.0), min_size=1, max_size=400),
    known=st.integers(0, 400),
    wanted=st.floats(0.1, 9.0),
)
def test_a_probe_is_given_up_only_when_its_percentile_is_lost(waited: list[float], known: int, wanted: float) -> None:
    """Whatever the requests still to come do."""
    fleet = Fleet(
        parse_shape("1F@a100-qwen3-32b"),
        DirectorSettings(
            prefill=build_placement("round-robin"), decode=build_placement("round-robin"), profiles=SHIPPED_PROFILES
        ),
    )
    fleet.records[:] = [
        Record(k, 0.0, 1, 1, arrived=k < known, first_token_s=wait_s if k < known else None)
        for k, wait_s in enumerate(waited)
    ]
    if hopeless(fleet, wanted):
        best = waited[:known] + [0.0] * (len(waited) - known)
        assert np.percentile(best, 99) > wanted


def test_a_search_can_be_stopped() -> None:
    """It raises; there is no half capacity."""
    with pytest.raises(Interrupted):
        measure_capacity(setup(), beat=lambda share: True)


# --- conversations ----------------------------------------------------------------------------------------------------


def test_in_a_closed_loop_the_next_turn_waits_for_the_one_before() -> None:
    """It arrives when that one has ended and the logged interval has passed, whatever the load."""
    source = WorkloadSource(workload="multi-turn", limit=80, closed_loop=True)
    spec = RunSpec(setup=setup(source=source), policy=least_requests(), rate_scale=3.0)
    load = source.load(spec.seed, spec.rate_scale)
    fleet = build_fleet(spec, load)
    fleet.run()
    assert fleet.open_requests == 0
    assert load.turn_after
    for place, (previous, gap_s) in load.turn_after.items():
        ended_s = fleet.records[previous].last_token_s
        assert ended_s is not None
        assert fleet.records[place].arrival_s == pytest.approx(ended_s + gap_s)


def test_balance_is_sampled_until_the_last_turn_of_a_closed_loop_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is later than the last logged arrival."""
    sampled_s: list[float] = []
    monkeypatch.setattr(Balance, "sample", lambda _, fleet: sampled_s.append(fleet.kernel.now_s))
    source = WorkloadSource(workload="multi-turn", limit=40, closed_loop=True)
    last_s = run(RunSpec(setup=setup(source=source), policy=least_requests())).figures["arrivals_s"]
    assert isinstance(last_s, float)
    assert last_s > 1.05 * source.load(0, 1.0).requests[-1].arrival_s
    assert sampled_s == [float(k) for k in range(int(last_s) + 1)]


def test_sessions_start_faster_but_think_no_faster() -> None:
    """The rate scales the starts; intervals within a session stay."""
    requests = generate("multi-turn", duration_s=300, seed=2)
    moved = scale_sessions(requests, 2.0)
    assert [request.arrival_s for request in moved] == sorted(request.arrival_s for request in moved)
    gaps = [sorted(gap_s for _, gap_s in turns(some).values()) for some in (requests, moved)]
    assert gaps[0] == pytest.approx(gaps[1])
    first = {request.session: request.arrival_s for request in requests if request.turn == 0}
    assert {request.session: request.arrival_s * 2 for request in moved if request.turn == 0} == pytest.approx(first)


def test_a_shared_prefix_pays_with_a_closed_loop() -> None:
    """Conversations carry their history: some of it is cached where the session was prefilled before."""
    source = WorkloadSource(workload="multi-turn", limit=100, closed_loop=True)
    figures = run(RunSpec(setup=setup(source=source), policy=least_requests())).figures
    hits = figures["kv_hit_ratio"]
    assert isinstance(hits, float)
    assert 0.2 < hits < 0.95


# --- gateways and what they see ---------------------------------------------------------------------------------------


def test_gateways_share_the_requests_and_see_only_their_own() -> None:
    """Three replicas: each gets its part, each closes its books, none knows the others' ledger."""
    spec = RunSpec(setup=setup(gateways=3), policy=least_requests())
    fleet = build_fleet(spec, CHAT.load(0, 1.0))
    fleet.run()
    shares = [sum(record.gateway == gateway for record in fleet.records) for gateway in range(3)]
    assert min(shares) > 20
    assert sum(shares) == 120
    assert all(record.completed for record in fleet.records)


def test_the_seed_fixes_losses_and_routes() -> None:
    """Half the scrapes lost, two gateways: the same figures twice, others with another seed."""
    spec = RunSpec(setup=setup(gateways=2, scrape_loss_ratio=0.5, scrape_delay_s=1.0), policy=parse_policies("ils")[0])
    assert decided(run(spec)) == decided(run(spec))
    assert decided(run(spec)) != decided(run(replace(spec, seed=1)))


def test_lost_scrapes_leave_the_director_without_observations() -> None:
    """All lost: it goes by its own books, and every request completes."""
    fleet = Fleet(
        parse_shape(SHAPE),
        DirectorSettings(
            prefill=build_placement("least-requests"),
            decode=build_placement("least-requests"),
            profiles=SHIPPED_PROFILES,
        ),
        FleetSettings(scrape_loss_ratio=1.0),
    )
    fleet.load(generate("chat", duration_s=10, seed=1))
    fleet.run()
    assert all(record.completed for record in fleet.records)
    assert not any(fleet.director.inventory.observed_at_s > 0)


@pytest.mark.parametrize("exact", [True, False])
def test_policies_see_output_lengths_only_where_asked(exact: bool) -> None:
    """By default a request carries no max_tokens; a limit is never below its output."""
    spec = RunSpec(setup=setup(), policy=least_requests())
    spec = replace(spec, setup=replace(spec.setup, fleet=FleetSettings(known_limits=exact, max_tokens=50)))
    fleet = build_fleet(spec, CHAT.load(0, 1.0))
    seen = [fleet.foresight.limit_tokens(record) for record in fleet.records]
    outputs = [record.output_tokens for record in fleet.records]
    assert seen == (outputs if exact else [max(50, output) for output in outputs])


# --- runs and processes -----------------------------------------------------------------------------------------------


@pytest.mark.rotating(2)
@pytest.mark.parametrize("policy", sorted(PLACEMENTS))
def test_every_registered_placement_runs_and_repeats(policy: str) -> None:
    """As decode placement, on mixed hardware, both bindings; the same figures twice."""
    few = WorkloadSource(workload="chat", limit=40)
    for binding in Binding:
        spec = RunSpec(setup=setup(source=few), policy=parse_policies(policy)[0], binding=binding)
        first = run(spec)
        assert first.figures["completed"] == 40
        assert decided(first) == decided(run(spec))


def test_a_name_alone_places_decodes_beside_the_default_prefill() -> None:
    """Both are spelled out in the figures; a pair is taken as it is."""
    alone, pair = parse_policies("round-robin,least-requests/round-robin")
    assert alone.placements == f"{default_prefill()}/round-robin"
    assert pair.placements == "least-requests/round-robin"
    assert [alone.name, pair.name] == ["round-robin", "least-requests/round-robin"]


def test_a_stopped_run_counts_what_had_arrived() -> None:
    """Stopped when a third has ended: no request that was still to come is counted."""
    outcome = run(RunSpec(setup=setup(), policy=least_requests()), beat=lambda share: share > 0.33)
    assert outcome.interrupted
    completed, requests = outcome.figures["completed"], outcome.figures["requests"]
    assert isinstance(completed, int)
    assert isinstance(requests, int)
    assert 0.33 * 120 < completed <= requests < 120


@pytest.mark.rotating(3)
def test_progress_ends_at_one_for_every_run() -> None:
    """Also where two processes share the runs."""
    specs = [RunSpec(setup=setup(), policy=least_requests(), seed=seed) for seed in range(3)]
    for jobs in (1, 2):
        told: dict[int, float] = {}
        outcomes = run_all(specs, jobs, threading.Event(), told.__setitem__)
        assert told == {0: 1.0, 1: 1.0, 2: 1.0}
        assert [outcome.figures["seed"] for outcome in outcomes if outcome] == [0, 1, 2]


@pytest.mark.rotating(3)
def test_a_pool_runs_several_batches_on_the_same_processes() -> None:
    """And ends them."""
    specs = [RunSpec(setup=setup(), policy=least_requests(), seed=seed) for seed in range(2)]
    with Pool(2) as pool:
        before = {process.pid for process in multiprocessing.active_children()}
        first = pool.run(specs, threading.Event())
        started = {process.pid for process in multiprocessing.active_children()} - before
        told: dict[int, float] = {}
        second = pool.run(specs[1:], threading.Event(), told.__setitem__)
        assert {process.pid for process in multiprocessing.active_children()} - before == started
    assert told == {0: 1.0}
    assert [outcome.figures["seed"] for outcome in [*first, *second] if outcome] == [0, 1, 1]
    assert not started & {process.pid for process in multiprocessing.active_children()}


def test_nothing_runs_once_it_is_stopped() -> None:
    """Every outcome is missing."""
    stop = threading.Event()
    stop.set()
    assert run_all([RunSpec(setup=setup(), policy=least_requests())] * 2, 1, stop) == [None, None]


def test_an_error_in_a_worker_process_reaches_the_caller(tmp_path: Path) -> None:
    """With its message."""
    missing = WorkloadSource(trace=tmp_path / "none.csv")
    spec = RunSpec(setup=setup(source=missing), policy=least_requests())
    with pytest.raises(ValueError, match="cannot be read"):
        run_all([spec, spec], 2, threading.Event())


# --- load over time, rates --------------------------------------------------------------------------------------------


def test_a_timeline_stays_bounded_and_even() -> None:
    """However long a run is: at most so many samples, all at the same distance."""
    fleet = build_fleet(RunSpec(setup=setup(), policy=least_requests()), CHAT.load(0, 1.0))
    timeline = Timeline.of(fleet.world, 1.0)
    for second in range(5 * MAX_SAMPLES):
        timeline.sample(fleet.world, float(second))
    assert MAX_SAMPLES / 2 <= len(timeline.times_s) <= MAX_SAMPLES
    gaps = {round(later - earlier, 6) for earlier, later in itertools.pairwise(timeline.times_s)}
    assert len(gaps) == 1
    assert len(timeline.running) == len(timeline.kv_usage_ratio) == len(timeline.times_s)


def test_lengths_are_drawn_with_the_arrivals_asked_for(tmp_path: Path) -> None:
    """From the file's rows only, at the rate; others for another seed."""
    path = tmp_path / "lengths.csv"
    path.write_text("input_tokens,output_tokens\n10,2\n20,3\n")
    source = WorkloadSource(trace=path, rate_rps=5.0, duration_s=400)
    load = source.load(1, 2.0)
    assert {(request.input_tokens, request.output_tokens) for request in load.requests} == {(10, 2), (20, 3)}
    assert load.rate_rps == pytest.approx(10, rel=0.1)
    assert load != source.load(2, 2.0)


def test_the_rate_is_that_of_the_arrivals() -> None:
    """Gaps over span; a single instant has none."""
    times = (0.0, 1.0, 4.0)
    requests = tuple(WorkloadRequest(arrival_s=at_s, input_tokens=1, output_tokens=1) for at_s in times)
    loaded = WorkloadSource(workload="chat", limit=3).load(0, 1.0)
    assert replace(loaded, requests=requests).rate_rps == 0.5
    assert replace(loaded, requests=requests[:1]).rate_rps is None
