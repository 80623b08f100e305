"""Each placement against its formula in plain Python, and the worked examples of its documentation."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ballast_core.beliefs.prefill_time import PrefillTimes
from ballast_core.model import Request, Role, Stage
from ballast_core.policies.placement.cache_aware import (
    DynamoCost,
    LeastUncachedTokens,
    LinearKv,
    PredictedTtft,
    RangeFilterKv,
)
from ballast_core.policies.placement.loads import Ils, LeastRequestsRunning, LeastTokens, VllmJsq
from ballast_core.policies.placement.placements import LeastRequests, PowerOfTwo, Random, RoundRobin
from ballast_core.profiles import A100_QWEN3_32B, H20_QWEN3_32B
from tests.support.placement_states import BLOCK, Flight, State, ask, asks, build, costs, states

quick = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
near = pytest.approx


def of(state: State, at: int) -> list[Flight]:
    """Its flights on one endpoint."""
    return [flight for flight in state.flights if flight.at % state.endpoints == at]


def queued(state: State, at: int) -> int:
    waiting = [flight.prompt for flight in of(state, at) if flight.generated is None]
    return sum(waiting) + (state.queued[at] if at < len(state.queued) else 0)


def queued_pairs(state: State, at: int) -> float:
    """Of prompts without any hit."""
    waiting = [flight.prompt for flight in of(state, at) if flight.generated is None]
    return sum(tokens**2 / 2 for tokens in [*waiting, *state.queued[at : at + 1]])


def requests(state: State, at: int) -> int:
    return len(of(state, at)) + bool(at < len(state.queued) and state.queued[at])


def tokens(state: State, at: int) -> int:
    held = sum(flight.prompt + (flight.generated or 0) for flight in of(state, at))
    return held + (state.queued[at] if at < len(state.queued) else 0)


def matched(state: State, request: Request, at: int) -> int:
    if not request.block_hashes or at >= len(state.cached_blocks):
        return 0
    return min(state.cached_blocks[at], len(request.block_hashes)) * BLOCK


@quick
@given(state=states, request=asks)
def test_counts_of_requests_and_tokens(state: State, request: Request) -> None:
    """least-requests, least-requests-running, least-tokens, ils, vllm-jsq."""
    each = range(state.endpoints)
    running = [[flight for flight in of(state, at) if flight.generated is not None] for at in each]
    assert costs(LeastRequests(), state, request) == [requests(state, at) for at in each]
    assert costs(LeastRequestsRunning(), state, request) == [len(running[at]) for at in each]
    assert costs(LeastTokens(), state, request) == [tokens(state, at) for at in each]
    assert costs(Ils(), state, request) == [
        sum(flight.prompt + (flight.generated or 0) for flight in running[at]) for at in each
    ]
    assert costs(VllmJsq(), state, request) == [4 * waiting + running for waiting, running in state.observed]


@quick
@given(state=states, request=asks, weight=st.floats(0, 1), limit=st.integers(0, 12))
def test_combinations_of_cache_and_load(state: State, request: Request, weight: float, limit: int) -> None:
    """linear-kv, range-filter-kv, dynamo-cost."""
    each = range(state.endpoints)
    batch, hits = [requests(state, at) for at in each], [matched(state, request, at) for at in each]
    most = max(batch)
    linear = [
        weight * (1 - hits[at] / request.prompt_tokens) + (1 - weight) * (batch[at] / most if most else 0)
        for at in each
    ]
    assert costs(LinearKv(kv_weight=weight), state, request) == near(linear)
    chosen = costs(RangeFilterKv(max_range=limit), state, request)
    if most - min(batch) > limit:
        expected = [at for at in each if batch[at] == min(batch)]
    else:
        best = max(hits)
        fewest = min(batch[at] for at in each if hits[at] == best)
        expected = [at for at in each if hits[at] == best and batch[at] == fewest]
    assert [at for at in each if chosen[at] == min(chosen)] == expected
    prefill = [queued(state, at) + request.prompt_tokens - hits[at] for at in each]
    held = [tokens(state, at) for at in each]
    dynamo = [
        weight * (prefill[at] / max(prefill) if max(prefill) else 0)
        + (1 - weight) * (held[at] / max(held) if max(held) else 0)
        for at in each
    ]
    assert costs(DynamoCost(prefill_weight=weight), state, request) == near(dynamo)


@quick
@given(state=states, request=asks)
def test_least_uncached_tokens_in_seconds(state: State, request: Request) -> None:
    """Queue and own prompt over the rate of full steps, endpoint by endpoint."""
    made = build(state)
    rates = made.beliefs.prefill_times.tokens_per_s(made.inventory.candidates(Stage.DECODE).slots)
    expected = [
        (queued(state, at) + request.prompt_tokens - matched(state, request, at)) / rates[at]
        for at in range(state.endpoints)
    ]
    assert costs(LeastUncachedTokens(), made, request, handoff_s=None) == near(expected)


def test_prefill_rates_are_those_of_the_profiles() -> None:
    """An A100 pair prefills about three times as fast as an H20: the same queue costs a third."""
    state = State(endpoints=2, role=Role.FLEXIBLE, hardware=("h20-qwen3-32b", "a100-qwen3-32b"), queued=(8192, 8192))
    h20, a100 = costs(LeastUncachedTokens(), state, ask(8192, blocks=False), handoff_s=None)
    assert h20 == near(2 * H20_QWEN3_32B.step_s(8192, 0, 0, 0))
    assert a100 == near(2 * A100_QWEN3_32B.step_s(8192, 0, 0, 0))


@quick
@given(state=states, request=asks)
def test_predicted_ttft_is_queue_and_own_prefill_or_one_step(state: State, request: Request) -> None:
    """On an endpoint that prefills it, and on one that only decodes."""
    made = build(state)
    slots = made.inventory.candidates(Stage.DECODE).slots
    times: PrefillTimes = made.beliefs.prefill_times
    own = costs(PredictedTtft(), made, request, handoff_s=None)
    after = costs(PredictedTtft(), made, request, handoff_s=0.7)
    for at in range(state.endpoints):
        hit = float(matched(state, request, at))
        expected = times.duration_s(
            slots[at : at + 1],
            request.prompt_tokens - hit,
            queued(state, at),
            queued_pairs=queued_pairs(state, at),
            cached_tokens=hit,
        )
        assert own[at] == near(float(expected[0]))
        profile = made.beliefs.step_times.model(int(slots[at])).profile
        count = requests(state, at) + 1
        context = tokens(state, at) + request.prompt_tokens
        assert after[at] == near(0.7 + profile.step_s(count, context, 0, count))


def test_worked_examples() -> None:
    """The numbers in the docstrings."""
    counts = State(flights=[Flight(at=at) for at in (0, 0, 0, 1, 2, 2)])
    assert costs(LeastRequests(), counts) == [3, 1, 2]
    assert costs(RoundRobin(), counts) == [0, 0, 0]
    pending = [Flight(at=0), Flight(at=0), *[Flight(at=0, generated=None)] * 3, *[Flight(at=1)] * 3]
    assert costs(LeastRequestsRunning(), State(endpoints=2, flights=pending)) == [2, 3]
    invisible = [Flight(at=0, prompt=900), Flight(at=1, prompt=400), Flight(at=1, prompt=5000, generated=None)]
    assert costs(Ils(), State(endpoints=2, flights=invisible)) == [900, 400]
    assert costs(LeastTokens(), State(endpoints=2, flights=invisible)) == [900, 5400]
    assert costs(VllmJsq(), State(endpoints=2, observed=((2, 1), (0, 8)))) == [9, 8]
    cached = State(endpoints=2, flights=[Flight(at=at) for at in (0, 0, 0, 0, 1, 1)], cached_blocks=(16, 0))
    assert costs(LinearKv(), cached, ask(512)) == near([0.65, 0.85])


def test_a_range_of_loads_beyond_the_threshold_makes_the_filter_forget_the_cache() -> None:
    """LMetric figure 13."""
    flights = [Flight(at=0)] * 6 + [Flight(at=1)] * 3
    near_balance = State(endpoints=2, flights=flights, cached_blocks=(32, 0))
    first, second = costs(RangeFilterKv(max_range=4), near_balance)
    assert first < second
    first, second = costs(RangeFilterKv(max_range=2), near_balance)
    assert first > second


def test_random_spreads_evenly_and_remembers() -> None:
    """Over many requests each endpoint wins its share; the same request draws the same lots."""
    made, wins = build(State(endpoints=4)), [0, 0, 0, 0]
    for number in range(2000):
        drawn = costs(Random(), made, ask(name=f"r{number}"))
        assert all(0 <= lot < 1 for lot in drawn)
        wins[drawn.index(min(drawn))] += 1
    assert all(abs(count - 500) < 100 for count in wins)


def test_power_of_two_takes_the_emptier_of_two() -> None:
    """Two candidates have a cost, their requests; each pair comes up."""
    made, pairs = build(State(endpoints=3, flights=[Flight(at=at) for at in (0, 0, 1)])), set()
    for number in range(200):
        drawn = costs(PowerOfTwo(), made, ask(name=f"r{number}"))
        pair = tuple(at for at, cost in enumerate(drawn) if cost < float("inf"))
        assert [drawn[at] for at in pair] == [(2, 1, 0)[at] for at in pair]
        pairs.add(pair)
    assert pairs == {(0, 1), (0, 2), (1, 2)}
