"""The papers' own physics: Eq. 15, closed forms, algorithm 3 as printed, and whole fleets on top."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ballast_core.directing.settings import DirectorSettings
from ballast_core.model import Stage
from ballast_core.model.effects import Dispatch, Effect, Handoff
from ballast_core.policies.placement.registry import PLACEMENTS
from ballast_core.policies.registry import build_placement
from ballast_core.profiles import SHIPPED_PROFILES
from ballast_core.profiles.capacity import LengthStatistics
from ballast_sim.engine import EngineRequest, Finished, StepEnded, UniqueContent
from ballast_sim.physics import PHYSICS
from ballast_sim.physics.laws import ARES_LINEAR, SIBYL_HELD, SIBYL_PRINTED, DecodeLaw, LinearStep, SibylThroughput
from ballast_sim.physics.sharing import SharingEngine
from ballast_sim.simulation.fleet.fleet import Fleet
from ballast_sim.simulation.inputs.failures import parse_failures
from ballast_sim.simulation.inputs.fleet_settings import FleetSettings
from ballast_sim.simulation.inputs.shapes import parse_shape
from ballast_sim.workloads import WorkloadRequest, generate

LAWS: dict[str, DecodeLaw] = {"printed": SIBYL_PRINTED, "held": SIBYL_HELD, "ares": ARES_LINEAR}
PAPERS = sorted(set(PHYSICS) - {"vllm"})


# --- the laws ---------------------------------------------------------------------------------------------------------


def test_eq_15_has_the_papers_peak_and_falls_below_zero_beyond_105() -> None:
    """1,177 tokens/s at N = 52.9, as the roots of its derivative say; 106 sequences would go backwards."""
    law = SIBYL_PRINTED
    peak = -law.beta / (2 * law.alpha)
    assert peak == pytest.approx(52.9, abs=0.05)
    assert np.polyval([law.alpha, law.beta, law.gamma], peak) == pytest.approx(1177, abs=0.5)
    assert max(range(1, 106), key=law.tokens_per_s) == 53
    assert law.tokens_per_s(1) == pytest.approx(36.59)
    assert law.tokens_per_s(105) == pytest.approx(29.1, abs=0.1)
    assert law.tokens_per_s(106) < 0


@pytest.mark.parametrize("sequences", [54, 105, 106, 256])
def test_held_throughput_stays_at_its_maximum(sequences: int) -> None:
    """As printed up to the peak, and constant beyond it."""
    assert SIBYL_HELD.tokens_per_s(53) == SIBYL_PRINTED.tokens_per_s(53)
    assert SIBYL_HELD.tokens_per_s(sequences) == SIBYL_HELD.tokens_per_s(53)


def test_a_law_under_which_a_full_batch_stands_still_is_refused() -> None:
    """The paper's 256 sequences with Eq. 15 as printed."""
    with pytest.raises(ValueError, match="max_num_seqs: a batch of 256 would not advance"):
        SibylThroughput(max_num_seqs=256)


def test_ares_line_goes_through_the_papers_point() -> None:
    """18.23 ms with half of the KV cache in use; the whole cache holds what 24 GB leave."""
    kv_tokens = 2 * (0.01823 - ARES_LINEAR.step_s) / ARES_LINEAR.token_s
    assert 200_000 < kv_tokens < 260_000
    assert ARES_LINEAR.step_s == pytest.approx(9.7e-3, rel=0.01)
    bytes_per_s = 57_344 / ARES_LINEAR.token_s
    assert 0.7 < bytes_per_s / 1.008e12 < 0.85  # of the card's memory bandwidth


@given(steps=st.integers(1, 500), sequences=st.integers(1, 256), context=st.integers(0, 10**6))
def test_a_linear_step_time_adds_up_as_stepping_does(steps: int, sequences: int, context: int) -> None:
    """Each step takes the context of its start, which grows by the batch."""
    law = LinearStep(step_s=0.01, token_s=1e-7)
    stepped = sum(0.01 + 1e-7 * (sequences + context + sequences * step) for step in range(steps))
    assert law.seconds(steps, sequences, sequences + context) == pytest.approx(stepped, rel=1e-9)


@given(
    law=st.sampled_from(list(LAWS.values())),
    tokens=st.floats(0, 1e5),
    sequences=st.integers(1, 105),
    context=st.floats(0, 1e6),
)
def test_time_and_tokens_are_inverse(law: DecodeLaw, tokens: float, sequences: int, context: float) -> None:
    """For every batch that a law lets run."""
    seconds = law.seconds(tokens, sequences, sequences + context)
    assert law.tokens(seconds, sequences, sequences + context) == pytest.approx(tokens, rel=1e-9, abs=1e-9)


# --- the engine -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Task:
    """Of algorithm 3."""

    start_s: float
    output_tokens: int
    remaining: float = 0.0
    end_s: float = math.nan


def algorithm_3(law: SibylThroughput, tasks: list[Task]) -> None:
    """ADVANCEINSTANCE as the paper prints it, to the end; guarded for an empty batch and for one that is full."""
    pending = sorted(tasks, key=lambda task: task.start_s)
    running: list[Task] = []
    time_s = 0.0
    while pending or running:
        speed = law.tokens_per_s(len(running)) / len(running) if running else 0.0
        finish_s = min(task.remaining for task in running) / speed if running else math.inf
        admits = pending and len(running) < law.max_num_seqs
        start_s = max(0.0, pending[0].start_s - time_s) if admits else math.inf
        step_s = min(finish_s, start_s)
        for task in running:
            task.remaining -= step_s * speed
        time_s += step_s
        if start_s <= finish_s:
            pending[0].remaining = pending[0].output_tokens
            running.append(pending.pop(0))
        else:
            done = min(running, key=lambda task: task.remaining)
            done.end_s = time_s
            running.remove(done)


def engine(law: DecodeLaw, mark_every_tokens: int = 0) -> SharingEngine:
    return SharingEngine(law, lambda tokens: tokens / 1000, 190_000, mark_every_tokens)


def leg(name: str, tokens: int, *, pull: bool = True, hold: bool = False, input_tokens: int = 100) -> EngineRequest:
    return EngineRequest(
        request_id=name,
        input_tokens=input_tokens,
        max_tokens=tokens,
        content=UniqueContent(0),
        arrival_s=0.0,
        pull=pull,
        hold=hold,
    )


def drain(one: SharingEngine) -> dict[str, Finished]:
    """Advance it to the end."""
    ended: dict[str, Finished] = {}
    while (due_s := one.next_event_s()) < math.inf:
        for event in one.advance(due_s):
            if isinstance(event, Finished):
                ended[event.request_id] = event
    one.check_blocks()
    return ended


@settings(max_examples=60, deadline=None)
@given(
    law=st.sampled_from([SIBYL_PRINTED, SIBYL_HELD, SibylThroughput(max_num_seqs=3)]),
    tasks=st.lists(st.tuples(st.floats(0, 30), st.integers(1, 600)), min_size=1, max_size=60),
)
def test_the_engine_ends_requests_when_algorithm_3_does(law: SibylThroughput, tasks: list[tuple[float, int]]) -> None:
    """On random starts and lengths, batches that empty and batches that are full."""
    ordered = sorted(tasks)
    plain = [Task(start_s, tokens) for start_s, tokens in ordered]
    algorithm_3(law, plain)
    one, ends = engine(law), dict[str, float]()
    for place, (start_s, tokens) in enumerate(ordered):
        while one.next_event_s() <= start_s:
            ends |= {e.request_id: e.at_s for e in one.advance(one.next_event_s()) if isinstance(e, Finished)}
        one.advance(start_s)
        one.add(leg(str(place), tokens), start_s)
    ends |= {name: event.at_s for name, event in drain(one).items()}
    assert [ends[str(place)] for place in range(len(plain))] == pytest.approx([task.end_s for task in plain], rel=1e-9)


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
@pytest.mark.parametrize("count", [1, 53, 105])
def test_a_batch_that_begins_together_ends_together(law: DecodeLaw, count: int) -> None:
    """N requests of 200 tokens: all at the law's time for 200 tokens of a batch of N."""
    one = engine(law)
    for place in range(count):
        one.add(leg(str(place), 200), 0.0)
    ends = drain(one)
    expected_s = law.seconds(200, count, 100 * count)
    assert [event.at_s for event in ends.values()] == pytest.approx([expected_s] * count)
    assert ends["0"].stats.first_token_s == pytest.approx(law.seconds(1, count, 100 * count))


def test_the_106th_sequence_waits_for_an_end() -> None:
    """As printed: it would bring the batch to a stop."""
    one = engine(SIBYL_PRINTED)
    for place in range(106):
        one.add(leg(str(place), 10 if place == 0 else 50), 0.0)
    assert (one.load(0.0).running, one.load(0.0).waiting) == (105, 1)
    first_end_s = SIBYL_PRINTED.seconds(10, 105, 0)
    ends = drain(one)
    assert ends["0"].at_s == pytest.approx(first_end_s)
    assert ends["105"].stats.scheduled_s == pytest.approx(first_end_s)


def test_prefills_do_not_wait_for_each_other() -> None:
    """Each is its own delay; a leg to hand off ends with it, another request has its first token then."""
    one = engine(SIBYL_HELD)
    for name, tokens in (("a", 3000), ("b", 1000), ("c", 2000)):
        one.add(leg(name, 1, pull=False, hold=True, input_tokens=tokens), 0.0)
    one.add(leg("whole", 11, pull=False, input_tokens=500), 0.0)
    ends = drain(one)
    assert {name: event.at_s for name, event in ends.items() if name != "whole"} == {"b": 1.0, "c": 2.0, "a": 3.0}
    assert ends["whole"].stats.first_token_s == 0.5
    assert ends["whole"].at_s == pytest.approx(0.5 + SIBYL_HELD.seconds(10, 1, 0))


def test_progress_is_marked_at_the_time_of_its_token() -> None:
    """Multiples of 16 below the last token, in order, also across a change of the batch."""
    one = engine(SIBYL_HELD, mark_every_tokens=16)
    one.add(leg("a", 50), 0.0)
    half_s = SIBYL_HELD.seconds(24, 1, 0)
    assert [mark[1:] for mark in one.marks(half_s, inclusive=True)] == [("a", 16)]
    one.advance(half_s)
    one.add(leg("b", 50), half_s)
    ((at_s, name, tokens),) = one.marks(half_s + SIBYL_HELD.seconds(15, 2, 0), inclusive=True)
    assert at_s == pytest.approx(half_s + SIBYL_HELD.seconds(8, 2, 0))
    assert (name, tokens) == ("a", 32)
    drain(one)
    assert [mark[1:] for mark in one.marks(1e9, inclusive=True)] == [("b", 16), ("a", 48), ("b", 32), ("b", 48)]


@given(st.sampled_from(sorted(LAWS)), st.lists(st.tuples(st.floats(0, 40), st.integers(2, 300)), max_size=20))
@settings(max_examples=60, deadline=None)
def test_there_are_no_marks_before_it_says_so(law: str, legs: list[tuple[float, int]]) -> None:
    """Asked only from `silent_until_s` on, as the world does, it has the marks that it has when asked all the time."""
    often, seldom = (engine(LAWS[law], mark_every_tokens=16) for _ in range(2))
    arrivals = sorted((at_s, number, tokens) for number, (at_s, tokens) in enumerate(legs))
    found: tuple[list[object], list[object]] = [], []
    silent_until_s = 0.0
    for tick in range(400):
        now_s = tick / 4
        while arrivals and arrivals[0][0] <= now_s:
            at_s, number, tokens = arrivals.pop(0)
            for one in (often, seldom):
                one.advance(at_s)
                one.add(leg(str(number), tokens), at_s)
            silent_until_s = 0.0
        events = [one.advance(now_s) for one in (often, seldom)]
        if events[1]:
            silent_until_s = 0.0
        found[0].extend(often.marks(now_s, inclusive=True))
        if silent_until_s <= now_s:
            found[1].extend(seldom.marks(now_s, inclusive=True))
            silent_until_s = seldom.silent_until_s
    assert found[0] == found[1]
    assert bool(found[0]) == any(tokens > 16 for _, tokens in legs) or not legs


def test_a_slow_engine_takes_its_factor_longer() -> None:
    """Half of the tokens at full speed, half at a third of it."""
    one = engine(SIBYL_HELD)
    one.add(leg("a", 100), 0.0)
    half_s = SIBYL_HELD.seconds(50, 1, 0)
    assert [type(event) for event in one.advance(half_s)] == [StepEnded]
    one.slow(3.0, half_s)
    assert drain(one)["a"].at_s == pytest.approx(4 * half_s)


# --- fleets -----------------------------------------------------------------------------------------------------------


def fleet_of(physics: str, policy: str, **extra: object) -> Fleet:
    machines, placement = parse_shape("1P@a100-qwen3-32b,3D@h20-qwen3-32b"), build_placement(policy)
    return Fleet(
        machines,
        DirectorSettings(prefill=placement, decode=placement, profiles=SHIPPED_PROFILES),
        FleetSettings(
            physics=physics,
            failures=parse_failures(extra.get("script", []), [machine.endpoint.id for machine in machines]),
        ),
        on_effect=extra.get("on_effect"),  # type: ignore[arg-type]
    )


def simulate(physics: str, workload: list[WorkloadRequest], policy: str = "sibyl", **extra: object) -> Fleet:
    fleet = fleet_of(physics, policy, **extra)
    fleet.load(workload)
    fleet.run()
    return fleet


def reasoning(count: int, seed: int, rate: float = 3.0) -> list[WorkloadRequest]:
    return generate("sharegpt-reasoning", rate_rps=rate, duration_s=math.inf, limit=count, seed=seed)


@pytest.mark.parametrize("physics", PAPERS)
@pytest.mark.parametrize("policy", ["sibyl", "ballast", "ils"])
def test_the_same_seed_gives_the_same_log(physics: str, policy: str) -> None:
    """Every decision with its time, and every record, to the last bit."""
    logs: list[list[tuple[float, str]]] = [[], []]
    runs = []
    for log in logs:

        def note(effect: Effect, now_s: float, log: list[tuple[float, str]] = log) -> None:
            if isinstance(effect, (Dispatch, Handoff)):
                log.append((now_s, f"{type(effect).__name__} {effect.request_id} {effect.decode.id}"))

        runs.append(simulate(physics, reasoning(60, 4), policy, on_effect=note).records)
    assert len(logs[0]) == 120
    assert logs[0] == logs[1]
    assert runs[0] == runs[1]


@settings(max_examples=25, deadline=None)
@given(
    physics=st.sampled_from(PAPERS),
    policy=st.sampled_from(sorted(PLACEMENTS)),
    seed=st.integers(0, 2**32),
    crash_s=st.floats(0, 60),
    down_s=st.floats(0.1, 30),
)
def test_every_request_ends_once_under_every_physics(
    physics: str, policy: str, seed: int, crash_s: float, down_s: float
) -> None:
    """With a crash in between; a completed request has all its tokens, and the ledger is empty."""
    rng = random.Random(seed)
    workload = [
        WorkloadRequest(arrival_s=place / 2, input_tokens=rng.randint(1, 900), output_tokens=rng.randint(1, 400))
        for place in range(80)
    ]
    script = [
        {"at_s": crash_s, "endpoint": rng.randrange(4), "kind": "crash", "down_s": down_s},
        {"at_s": crash_s / 2, "endpoint": 1, "kind": "slow", "factor": 4, "for_s": down_s},
    ]
    fleet = simulate(physics, workload, policy, script=script)
    for record in fleet.records:
        assert [record.completed, record.rejected is not None, record.broken].count(True) == 1
        assert record.generated_tokens == record.output_tokens or not record.completed
    fleet.world.check_blocks()
    assert len(fleet.director.ledger) == 0
    assert not any(fleet.director.ledger.requests[stage].any() for stage in Stage)


def test_hand_off_comes_exactly_one_prefill_delay_after_arrival() -> None:
    """For all policies alike, however many arrive at once (algorithm 2 sets the delay in one branch only)."""
    at_once = [WorkloadRequest(arrival_s=0.0, input_tokens=500, output_tokens=10) for _ in range(20)]
    delay_s = SHIPPED_PROFILES["a100-qwen3-32b"].step_s(500, 0, 500 * 500 / 2, 0)
    for policy in ("round-robin", "ils", "sibyl"):
        times: list[float] = []
        simulate(
            "sibyl-held",
            at_once,
            policy,
            on_effect=lambda effect, now_s, times=times: times.append(now_s) if isinstance(effect, Handoff) else None,
        )
        assert times == [delay_s] * 20


def test_gateways_hear_of_progress() -> None:
    """With the next scrape the ledger knows of every multiple of 16, learned at its own time."""
    fleet = fleet_of("sibyl-held", "sibyl")
    fleet.load([WorkloadRequest(arrival_s=0.0, input_tokens=100, output_tokens=50)])
    handed_s = SHIPPED_PROFILES["a100-qwen3-32b"].step_s(100, 0, 5000, 0)
    reached_s = handed_s + SIBYL_HELD.seconds(32, 1, 0)
    fleet.run(reached_s + 0.2)
    assert fleet.records[0].generated_tokens == 32
    assert list(fleet.director.ledger.flights.generated_tokens) == [32]
    assert list(fleet.director.ledger.flights.progress_at_s) == [pytest.approx(reached_s)]


@pytest.mark.parametrize("policy", ["round-robin", "sibyl"])
def test_a_broken_stream_counts_the_tokens_that_came(policy: str) -> None:
    """Whether or not gateways follow progress."""
    handed_s = SHIPPED_PROFILES["a100-qwen3-32b"].step_s(100, 0, 5000, 0)
    crash_s = handed_s + SIBYL_HELD.seconds(20.5, 1, 0)
    script = [{"at_s": crash_s, "endpoint": "d000", "kind": "crash", "down_s": 1}]
    one = [WorkloadRequest(arrival_s=0.0, input_tokens=100, output_tokens=50)]
    (record,) = simulate("sibyl-held", one, policy, script=script).records
    assert (record.broken, record.generated_tokens) == (True, 20)


def test_capacity_by_arithmetic_is_that_of_the_best_batch() -> None:
    """Eq. 15's peak over the mean output; prefill sets no limit."""
    lengths = LengthStatistics(input_tokens=100, output_tokens=1000, input_pairs=0, context_tokens=600)
    profiles = [SHIPPED_PROFILES["h20-qwen3-32b"]] * 4
    for name in ("sibyl-printed", "sibyl-held"):
        assert PHYSICS[name].decode_rps(profiles, lengths) == pytest.approx(4 * 1176.6 / 1000, rel=1e-3)
    assert PHYSICS["sibyl-held"].prefill_rps(profiles, lengths) == math.inf


def test_an_unknown_physics_is_refused() -> None:
    """With the names that exist."""
    with pytest.raises(ValueError, match="physics: unknown physics 'sibyl'; known: ares-linear, sibyl-held"):
        FleetSettings(physics="sibyl")
