"""Ballast's own placement: against its formula in plain Python, and what it must prefer."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ballast_core.arrays import FloatArray
from ballast_core.director import Director
from ballast_core.model import Request, Role, Stage
from ballast_core.policies.ballast import Ballast
from ballast_core.policies.projection import project
from tests.support.placement_states import NOW_S, Flight, State, ask, asks, build, costs, flights, states, view

quick = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def surviving(made: Director, now: float, later: float, limit: int | None) -> float:
    tables = made.beliefs.lengths.tables(NOW_S)
    cap = None if limit is None else float(limit)
    return float(tables.conditional(np.array([now]), np.array([later]), 0, cap)[0])


def exact(made: Director, delays_s: FloatArray, tokens_per_s: float) -> list[list[list[float]]]:
    """Requests, tokens and variance by candidate and time: one request after the other, at its exact age."""
    slots = list(made.inventory.candidates(Stage.DECODE).slots)
    sums = [[[0.0, 0.0, 0.0] for _ in delays_s] for _ in slots]
    for entry in made.ledger:
        late_s = 0.0
        if not made.ledger.flights.decoding[entry.row]:
            late_s = max(0.0, float(made.ledger.flights.handoff_at_s[entry.row]) - NOW_S)
        for number, delay_s in enumerate(delays_s):
            if delay_s < late_s:
                continue
            grown = (delay_s - late_s) * tokens_per_s
            age = entry.generated_tokens
            alive = surviving(made, age, age + grown, entry.request.max_output_tokens)
            held = entry.request.prompt_tokens + age + grown
            cell = sums[slots.index(entry.decode_slot)][number]
            cell[0] += alive
            cell[1] += held * alive
            cell[2] += held * held * alive * (1 - alive)
    return sums


@quick
@given(flying=st.lists(flights, min_size=1, max_size=25))
def test_the_gathered_projection_is_close_to_that_of_each_request(flying: list[Flight]) -> None:
    """Ages and delays in steps of nine percent, on a curve without cliffs; exact for now."""
    unlimited = [Flight(at=f.at, prompt=f.prompt, generated=f.generated, decoding_s=f.decoding_s) for f in flying]
    made = build(State(endpoints=5, flights=unlimited))
    delays: FloatArray = np.array([0.0, 1.0, 5.0, 20.0])
    got = project(view(made), delays, 30.0)
    want = np.array(exact(made, delays, 30.0))
    count = len(unlimited)
    np.testing.assert_allclose(got.requests, want[:, :, 0], atol=0.12 * count + 0.02)
    np.testing.assert_allclose(got.requests[:, 0], want[:, 0, 0], rtol=1e-9)
    np.testing.assert_allclose(got.tokens[:, 0], want[:, 0, 1], rtol=1e-9)
    held = np.maximum(want[:, :, 1], want[:, :1, 1])
    np.testing.assert_allclose(got.tokens, want[:, :, 1], atol=float(0.12 * held.sum() + 100))
    assert (got.variance >= -1e-6).all()


def excess(mean: float, spread: float) -> float:
    sure = max(spread, 1.0)
    z = min(max(mean / sure, -8.0), 8.0)
    normal = mean / (1 + math.exp(-1.702 * z)) + sure * math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    return max(normal, 0.0)


def formula(made: Director, request: Request, handoff_s: float | None) -> list[float]:
    """The docstring, endpoint by endpoint and piece by piece, on the same projection."""
    shown = view(made, request, handoff_s=handoff_s)
    tables = made.beliefs.lengths.tables(NOW_S)
    ages, tokens = tables.life_nodes(8, 0, request.max_output_tokens)
    models = [made.beliefs.step_times.model(int(slot)).profile for slot in shown.slots]
    kv = [float(size) for size in shown.kv_tokens]

    def step(at: int, count: float, held: float) -> float:
        share = 1 / max(held / kv[at], 1.0)
        return models[at].step_s(count * share, held * share, 0, count * share)  # type: ignore[arg-type]

    demand = [float(shown.tokens[at]) + request.prompt_tokens for at in range(len(kv))]
    now_s = [step(at, float(shown.requests[at]) + 1, demand[at]) for at in range(len(kv))]
    typical_s = float(np.median(now_s))
    load = project(shown, float(shown.handoff_s.min()) + ages * typical_s, 1 / typical_s)
    answer = []
    for at in range(len(kv)):
        total = 0.0
        for piece, age in enumerate(ages):
            n, c = float(load.requests[at, piece]), float(load.tokens[at, piece])
            spread, own = math.sqrt(float(load.variance[at, piece])), request.prompt_tokens + float(age)
            after = step(at, n + 1, c + own)
            running, running_after = n / max(c / kv[at], 1), (n + 1) / max((c + own) / kv[at], 1)
            stalled = (excess(c + own - kv[at], spread) - excess(c - kv[at], spread)) * (n + 1) / (c + own)
            total += tokens * (running_after * after - running * step(at, n, c) + stalled * after)
        waiting = excess(demand[at] - kv[at], math.sqrt(float(load.variance[at, 0])))
        total += 8 * tokens * now_s[at] / kv[at] * waiting
        if handoff_s is None:
            total += float(shown.prefill_s[at]) + float(shown.own_prefill_s[at]) * float(shown.decoding_requests[at])
        answer.append(total)
    return answer


@quick
@given(state=states, request=asks, handoff_s=st.sampled_from([None, 0.0, 0.7]))
def test_costs_are_those_of_the_formula(state: State, request: Request, handoff_s: float | None) -> None:
    """Vectorised or not, on random fleets of unlike hardware."""
    made = build(state)
    assert costs(Ballast(), made, request, handoff_s=handoff_s) == pytest.approx(
        formula(made, request, handoff_s), rel=1e-6, abs=1e-9
    )


def chosen(state: State, request: Request | None = None, handoff_s: float | None = 0.1) -> int:
    weighed = costs(Ballast(), state, request, handoff_s=handoff_s)
    return weighed.index(min(weighed))


LONG = [4000] * 200
"""Output lengths learned: everybody generates 4,000 tokens."""


def test_young_requests_weigh_what_they_will_become() -> None:
    """Where SIBYL and least-tokens see an empty endpoint: ten requests that begin against ten that are about to end."""
    flying = [Flight(at=0, prompt=100, generated=1)] * 10 + [Flight(at=1, prompt=100, generated=3900)] * 10
    assert chosen(State(endpoints=2, flights=flying, ended=LONG)) == 1


def test_a_long_prompt_goes_where_it_fits() -> None:
    """Fewer requests, but no room for the prompt: it would wait for KV at its hand-off."""
    crowded = [Flight(at=0, prompt=45_000, generated=10)] * 4
    spread = [Flight(at=1, prompt=1_000, generated=10)] * 6
    state = State(endpoints=2, flights=[*crowded, *spread], ended=[300] * 200)
    assert chosen(state, ask(40_000, blocks=False)) == 1


def test_faster_hardware_takes_more_requests() -> None:
    """An A100 pair multiplies matrices faster than an H20: at equal counts it is cheaper."""
    flying = [Flight(at=at % 2, prompt=500, generated=50) for at in range(120)]
    state = State(endpoints=2, hardware=("h20-qwen3-32b", "a100-qwen3-32b"), flights=flying, ended=[400] * 200)
    assert chosen(state) == 1


def test_pending_requests_are_load() -> None:
    """What is still in prefill elsewhere will decode here."""
    flying = [Flight(at=0, generated=None, due_s=0.2)] * 5 + [Flight(at=1, generated=5)] * 3
    assert chosen(State(endpoints=2, flights=flying, ended=LONG)) == 1


def test_an_endpoint_that_prefills_itself_counts_its_prefill_queue() -> None:
    """Colocated: the same decode load, but one has 30,000 tokens to prefill first."""
    state = State(endpoints=2, role=Role.FLEXIBLE, queued=(30_000, 0), ended=[50] * 100)
    assert chosen(state, handoff_s=None) == 1


def test_a_shorter_life_costs_less() -> None:
    """The request's own max_tokens is known."""
    made = build(State(endpoints=1, flights=[Flight(prompt=500, generated=20)] * 5, ended=LONG))
    short, whole = (costs(Ballast(), made, ask(limit=limit))[0] for limit in (100, None))
    assert 0 < short < whole / 10


def test_prefill_goes_where_it_ends_first() -> None:
    """Queue and hardware in seconds."""
    state = State(endpoints=2, role=Role.PREFILL, queued=(9000, 0), hardware=("a100-qwen3-32b",))
    first, second = costs(Ballast(), state, ask(1000), stage=Stage.PREFILL)
    assert first > second > 0
