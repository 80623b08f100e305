"""The simulated fleet: every request ends once, time is conserved, the same seed gives the same log."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ballast_core.beliefs.kinds import Belief
from ballast_core.directing.settings import DirectorSettings
from ballast_core.model import Stage
from ballast_core.model.effects import Dispatch, Effect, Handoff
from ballast_core.policies.placement.registry import PLACEMENTS
from ballast_core.policies.registry import build_placement
from ballast_core.profiles import SHIPPED_PROFILES
from ballast_sim.simulation.figures.results import summarise
from ballast_sim.simulation.fleet.fleet import Fleet
from ballast_sim.simulation.inputs.objective import Objective
from ballast_sim.simulation.inputs.shapes import ShapeError, parse_shape

pytestmark = pytest.mark.rotating(4, each=True)


@dataclass(frozen=True, slots=True)
class Job:
    arrival_s: float
    input_tokens: int
    output_tokens: int
    hash_ids: Sequence[int] | None = None
    block_size: int | None = None
    max_tokens: int | None = None
    traffic_class: str = ""


def poisson(rate: float, count: int, seed: int) -> list[Job]:
    rng, now_s, jobs = random.Random(seed), 0.0, []
    for _ in range(count):
        now_s += rng.expovariate(rate)
        jobs.append(Job(now_s, rng.randint(1, 2000), rng.randint(1, 60)))
    return jobs


def simulate(
    shape: str,
    jobs: list[Job],
    policy: str = "least-requests",
    log: list[str] | None = None,
    *,
    learn: Belief = Belief.NONE,
    stepwise: bool = False,
    before_run: Callable[[Fleet], None] = lambda fleet: None,
) -> Fleet:
    placement = build_placement(policy)

    def note(effect: Effect, now_s: float) -> None:
        if log is not None and isinstance(effect, (Dispatch, Handoff)):
            source = effect.prefill.id if isinstance(effect, Dispatch) and effect.prefill else "-"
            costs = [trace.costs.tolist() for trace in effect.traces]
            log.append(f"{now_s!r} {type(effect).__name__} {effect.request_id} {source} {effect.decode.id} {costs}")

    director = DirectorSettings(prefill=placement, decode=placement, learn=learn, profiles=SHIPPED_PROFILES)
    fleet = Fleet(parse_shape(shape), director, on_effect=note, stepwise=stepwise)
    fleet.load(jobs)
    before_run(fleet)
    fleet.run()
    return fleet


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    policy=st.sampled_from(sorted(PLACEMENTS)),
    shape=st.sampled_from(["2P2D@a100-qwen3-32b", "1P3D@h20-qwen3-32b", "2F@a100-qwen3-32b"]),
)
def test_every_request_ends_once_with_all_its_tokens(seed: int, policy: str, shape: str) -> None:
    """Conservation: nothing is lost, nothing doubled, the books are empty and no KV block is lost."""
    jobs = poisson(8.0, 40, seed)
    fleet = simulate(shape, jobs, policy)
    assert [record.generated_tokens for record in fleet.records] == [job.output_tokens for job in jobs]
    assert fleet.open_requests == 0
    assert len(fleet.director.ledger) == 0
    assert all(fleet.director.ledger.requests[stage].sum() == 0 for stage in Stage)
    fleet.world.check_blocks()


def test_first_tokens_come_after_prefill_and_pull() -> None:
    """An idle fleet: TTFT is exactly prefill, link, and one step that computes the last prompt token again."""
    fleet = simulate("1P@a100-qwen3-32b,1D@h20-qwen3-32b", [Job(1.0, 1000, 5)])
    (record,) = fleet.records
    prefill, decode = (machine.profile for machine in fleet.world.machines)
    prefill_s = prefill.step_s(1000, 0, 1000 * 500, 0)
    pull_s = decode.link_setup_s + 1000 * decode.kv_bytes_per_token / (decode.link_gbps * 1e9 / 8)
    assert record.ttft_s == pytest.approx(prefill_s + pull_s + decode.step_s(1, 999, 0, 1), rel=1e-9)


def test_littles_law_holds_on_the_whole_fleet() -> None:
    """L = lambda W: the ledger is counted every 10 ms, the time in the system is that of the requests' records."""
    jobs = poisson(6.0, 600, 7)
    counts: list[int] = []
    fleet = simulate(
        "2P@a100-qwen3-32b,2D@h20-qwen3-32b",
        jobs,
        before_run=lambda fleet: fleet.every(0.01, lambda: counts.append(len(fleet.director.ledger))),
    )
    times_s = [record.last_token_s - record.arrival_s for record in fleet.records if record.last_token_s is not None]
    assert len(times_s) == len(jobs)
    mean_number = sum(counts) / len(counts)
    arrivals_per_s = len(jobs) / fleet.kernel.now_s
    assert mean_number > 3, "a fleet that is nearly empty shows nothing"
    assert mean_number == pytest.approx(arrivals_per_s * sum(times_s) / len(times_s), rel=1e-3)


@pytest.mark.rotating(2)
@pytest.mark.parametrize("policy", sorted(PLACEMENTS))
def test_the_same_workload_gives_the_same_log(policy: str) -> None:
    """Deterministic: decisions and token times are equal to the last bit."""
    logs: list[list[str]] = [[], []]
    shape, jobs = "2P@a100-qwen3-32b,3D@h20-qwen3-32b", poisson(9.0, 120, 5)
    outcomes = [simulate(shape, jobs, policy, log).records for log in logs]
    assert logs[0] == logs[1]
    assert outcomes[0] == outcomes[1]


@pytest.mark.rotating(2)
@pytest.mark.parametrize("policy", sorted(PLACEMENTS))
def test_leaps_and_silence_change_nothing(policy: str) -> None:
    """Engines that jump, and Directors that hear of tokens only where they ask: each step told gives the same run."""
    told: list[str] = []
    quiet: list[str] = []
    shape, jobs = "2P@a100-qwen3-32b,3D@h20-qwen3-32b", long_outputs(9.0, 80, 6)
    loud = simulate(shape, jobs, policy, told, learn=Belief.PROGRESS, stepwise=True)
    fast = simulate(shape, jobs, policy, quiet)
    assert fast.records == loud.records
    assert quiet == told


def long_outputs(rate: float, count: int, seed: int) -> list[Job]:
    rng = random.Random(seed)
    return [Job(job.arrival_s, job.input_tokens, rng.randint(1, 400)) for job in poisson(rate, count, seed)]


def test_a_shared_prefix_is_computed_once_per_engine() -> None:
    """Requests with equal prefix ids hit the prefix cache of the endpoint that computed it."""
    ids = [1, 2, 3, 4]
    jobs = [Job(float(k), 64 + 5, 4, hash_ids=ids, block_size=16) for k in range(4)]
    fleet = simulate("1F@a100-qwen3-32b", jobs)
    assert [record.cached_tokens for record in fleet.records] == [0, 64, 64, 64]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot read ''"),
        ("4X@h20-qwen3-32b", "cannot read '4X@h20-qwen3-32b'"),
        ("0P4D@h20-qwen3-32b", "asks for 0 endpoints"),
        ("2P4D", "names no profile"),
        ("2P4D@tpu", "unknown profile 'tpu'; 29 are known, see `ballast profiles`"),
        ("4D@h20-qwen3-32b", "needs at least one prefill"),
    ],
)
def test_a_shape_that_cannot_serve_is_refused_with_the_reason(text: str, message: str) -> None:
    """The message names the part and the fix."""
    with pytest.raises(ShapeError, match=message):
        parse_shape(text)


def test_a_request_larger_than_any_kv_cache_is_refused() -> None:
    """It is named before anything runs."""
    with pytest.raises(ValueError, match="request 1: 200000 \\+ 5 tokens do not fit"):
        simulate("1P@a100-qwen3-32b,1D@h20-qwen3-32b", [Job(0.0, 5, 5), Job(0.0, 200_000, 5)])


def test_results_count_what_happened() -> None:
    """An objective that nobody can miss is met by all; one that nobody can meet by none."""
    fleet = simulate("2P@a100-qwen3-32b,2D@h20-qwen3-32b", poisson(6.0, 50, 3))
    figures = summarise(fleet, Objective.parse("ttft=1000,tpot=1000"))
    assert (figures["requests"], figures["completed"], figures["attainment"]) == (50, 50, 1.0)
    assert summarise(fleet, Objective(ttft_s=1e-9))["goodput_rps"] == 0.0
    ttft = figures["ttft_s"]
    assert isinstance(ttft, dict)
    assert ttft["p50"] <= ttft["p90"] <= ttft["p99"] <= ttft["p999"]


@pytest.mark.parametrize("text", ["ttft=0", "tpot=fast", "latency=2", "ttft", "e2e=inf"])
def test_an_unreadable_objective_is_refused(text: str) -> None:
    """The message quotes the part."""
    with pytest.raises(ValueError, match="slo: cannot read"):
        Objective.parse(text)


def test_requests_that_have_ended_leave_no_reference_cycles() -> None:
    """They would stay until the end of the run, with their blocks and contents: a run collects no cycles."""
    fleets, found = [], []
    gc.collect()
    gc.disable()
    try:
        for count in (10, 40):
            fleets.append(simulate("1P1D@h20-qwen3-32b", poisson(2.0, count, 3)))
            found.append(gc.collect())
    finally:
        gc.enable()
    assert found[0] == found[1]
