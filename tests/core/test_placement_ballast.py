"""Ballast's own placement: against its formula in plain Python, and what it must prefer."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ballast_core.arrays import FloatArray
from ballast_core.beliefs.survival_tables import Buckets, SurvivalTables
from ballast_core.directing.director import Director
from ballast_core.model import Request, Role, Stage
from ballast_core.policies.placement.ballast import Ballast
from ballast_core.policies.placement.projection import project
from ballast_core.state.age_histograms import AGE_OF_BUCKET, BUCKET_OF_AGE
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


def level(costs: list[float], slopes: list[float], coming: float) -> float:
    """Bisection on the amount that raises everybody below the level to it."""
    low, high = min(costs), max(costs) + coming * max(slopes) + 1.0
    for _ in range(200):
        middle = (low + high) / 2
        placed = sum(max(middle - cost, 0.0) / slope for cost, slope in zip(costs, slopes, strict=True))
        low, high = (middle, high) if placed <= coming else (low, middle)
    return low


def harmonic_tokens(made: Director, age: float = 0.0) -> float:
    """1 / E[1 / L | L > age], token by token where outputs are short and in steps of a few percent beyond."""
    tables = made.beliefs.lengths.tables(NOW_S)
    edges = np.unique(np.concatenate([np.arange(0.0, 64.0), np.round(np.geomspace(64.0, 60_000.0, 400))]))
    edges = np.concatenate([[age], edges[edges > age]])
    alive = tables.survival(edges)
    ended = np.maximum(alive[:-1] - alive[1:], 0.0)
    middles = np.maximum(np.sqrt(edges[:-1] * edges[1:]), 1.0)
    return float(ended.sum() / (ended / middles).sum())


def requests_at_risk(made: Director) -> dict[int, float]:
    """By slot: each request by how much less a pause matters to it than to a new one."""
    risks, _ = made.beliefs.lengths.tables(NOW_S).risks(AGE_OF_BUCKET)
    found: dict[int, float] = {}
    for entry in made.ledger:
        assert entry.decode_slot is not None
        decodes = made.ledger.flights.decoding[entry.row]
        weight = float(risks[BUCKET_OF_AGE[entry.generated_tokens]]) if decodes else 1.0
        found[entry.decode_slot] = found.get(entry.decode_slot, 0.0) + weight
    return found


def short_lives(made: Director, lives: list[float], tokens: float) -> list[float]:
    """Of `tokens` each, as those of a quarter of the harmonic mean length."""
    _, harmonic = made.beliefs.lengths.tables(NOW_S).risks(AGE_OF_BUCKET)
    return [life / tokens * harmonic / 4 for life in lives]


@quick
@given(ended=st.lists(st.integers(1, 5000), min_size=1, max_size=80), age=st.sampled_from([0, 1, 10, 100, 1000]))
def test_a_pause_matters_by_the_harmonic_mean_of_what_lengths_may_be(ended: list[int], age: int) -> None:
    """E[1 / L | L > age] H against sums over the survival curve, and 1 for a new request."""
    made = build(State(endpoints=1, ended=ended))
    risks, harmonic = made.beliefs.lengths.tables(NOW_S).risks(AGE_OF_BUCKET)
    assert risks[0] == 1.0
    assert harmonic == pytest.approx(harmonic_tokens(made), rel=0.15)
    bucket = int(BUCKET_OF_AGE[age])
    at = float(AGE_OF_BUCKET[bucket])
    assert risks[bucket] / harmonic == pytest.approx(1 / harmonic_tokens(made, at), rel=0.15)


def test_where_nothing_is_known_to_end_all_requests_are_alike() -> None:
    tables = SurvivalTables(Buckets(step_tokens=1000, count=80), np.ones(81))
    risks, harmonic = tables.risks(AGE_OF_BUCKET)
    assert set(risks.tolist()) == {1.0}
    assert harmonic > 0


def formula(made: Director, request: Request, handoff_s: float | None) -> list[float]:
    """The docstring, endpoint by endpoint and piece by piece, on the same projection."""
    shown = view(made, request, handoff_s=handoff_s)
    tables = made.beliefs.lengths.tables(NOW_S)
    middles, tokens = tables.life_nodes(8, 0, request.max_output_tokens)
    ages = [0.0, *map(float, middles)]
    weights = [tokens / 2, tokens / 2, *[tokens] * 7]
    models = [made.beliefs.step_times.model(int(slot)).profile for slot in shown.slots]
    kv = [float(size) for size in shown.kv_tokens]
    prompt = request.prompt_tokens

    def step(at: int, count: float, held: float) -> float:
        share = 1 / max(held / kv[at], 1.0)
        return models[at].step_s(count * share, held * share, 0, count * share)  # type: ignore[arg-type]

    endpoints = range(len(kv))
    now_s = [step(at, float(shown.requests[at]) + 1, float(shown.tokens[at]) + prompt) for at in endpoints]
    typical_s = float(np.median(now_s))

    def burden(at: int, count: float, held: float) -> float:
        taken_s = step(at, count, held)
        return count / max(held / kv[at], 1.0) * taken_s * (taken_s / typical_s) ** 3

    load = project(shown, float(shown.handoff_s.min()) + np.array(ages) * typical_s, 1 / typical_s)
    mean = float(load.tokens.sum()) / max(float(load.requests.sum()), 1.0) or float(prompt)
    answer = [0.0 for _ in endpoints]
    unfit = [0.0 for _ in endpoints]
    for piece, age in enumerate(ages):
        own = prompt + age
        marginal, slopes = [], []
        for at in endpoints:
            n, c = float(load.requests[at, piece]), float(load.tokens[at, piece])
            spread = math.sqrt(float(load.variance[at, piece]))
            stalled = (excess(c + own - kv[at], spread) - excess(c - kv[at], spread)) * (n + 1) / (c + own)
            unfit[at] = max(unfit[at], stalled * (n + 1))
            marginal += [burden(at, n + 1, c + own) - burden(at, n, c) + stalled * step(at, n + 1, c + own)]
            curve = [burden(at, n + more, c + more * mean) for more in range(3)]
            slopes += [max(curve[2] - 2 * curve[1] + curve[0], 1e-9)]
        coming = max(float(load.requests[:, 0].sum() - load.requests[:, piece].sum()), 0.0)
        filled = level(marginal, slopes, coming)
        for at in endpoints:
            answer[at] += weights[piece] * max(marginal[at], filled)
    lives: list[float] = []
    for at in endpoints:
        contexts = [
            (float(load.tokens[at, piece]) + prompt + age) / (float(load.requests[at, piece]) + 1)
            for piece, age in enumerate(ages)
        ]
        context = np.array([sum(contexts) / len(contexts)])
        answer[at] += unfit[at] * float(made.beliefs.prefill_times.duration_s(shown.slots[at : at + 1], context)[0])
        n, c = float(load.requests[at, 0]), float(load.tokens[at, 0])
        life_s = 8 * tokens * step(at, n + 1, c + prompt)
        missing = c + prompt + 16 * (n + 1) - kv[at]
        wait_s = (max(missing, c / max(n, 1.0)) if missing > 0 else 0.0) * life_s / kv[at]
        answer[at] += wait_s * max(life_s / float(shown.own_prefill_s[at]), 1.0)
        lives.append(life_s)
    if handoff_s is None:
        lives, at_risk = short_lives(made, lives, 8 * tokens), requests_at_risk(made)
        own_s = [float(seconds) for seconds in shown.own_prefill_s]
        for at in endpoints:
            queue_s = float(shown.prefill_s[at]) - own_s[at]
            answer[at] += float(shown.prefill_s[at])
            held_up = (lives[at] + queue_s + own_s[at]) ** 4 - (lives[at] + queue_s) ** 4
            m = at_risk.get(int(shown.slots[at]), 0.0) + float(shown.foreign_requests[at])
            answer[at] += m * held_up / float(np.median(lives)) ** 3
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


def test_room_now_beats_a_quieter_endpoint_that_is_full() -> None:
    """A short prompt's TTFT would be its wait for KV: what it would save in decode steps does not weigh that up."""
    full = [Flight(at=0, prompt=38_000, generated=10)] * 5
    busy = [Flight(at=1, prompt=1_000, generated=10)] * 30
    state = State(endpoints=2, flights=[*full, *busy], ended=[300] * 200)
    assert chosen(state, ask(500, blocks=False), handoff_s=0.0) == 1


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
