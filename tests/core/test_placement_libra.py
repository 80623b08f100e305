"""Libra as a placement: its queues and parts in plain Python, pass by pass, and what it must prefer."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ballast_core.directing.director import Director
from ballast_core.model import Observation, Request, Role, Stage
from ballast_core.policies.placement.libra import Libra
from ballast_core.profiles import A100_QWEN3_32B, H20_QWEN3_32B
from tests.support.placement_states import NOW_S, Flight, State, ask, build, costs, flights, view
from tests.support.virtual_endpoint import OneEndpoint, Part

HUNDRED = [100] * 400
"""Output lengths that were seen."""

small = st.builds(
    State,
    endpoints=st.just(3),
    hardware=st.just(("h20-qwen3-32b", "a100-qwen3-32b", "")),
    role=st.sampled_from([Role.DECODE, Role.FLEXIBLE]),
    flights=st.lists(flights, max_size=8),
    queued=st.lists(st.integers(0, 9000), min_size=3, max_size=3),
    cached_blocks=st.lists(st.integers(0, 64), min_size=3, max_size=3),
    ended=st.just(HUNDRED),
)
requests = st.builds(ask, st.integers(1, 4000), limit=st.none() | st.integers(1, 300), blocks=st.booleans())


def to_come(made: Director, age: int, limit: int | None, margin: int) -> int:
    """Expected output tokens still to come, and the margin, within the limit."""
    tables = made.beliefs.lengths.tables(NOW_S)
    cap = math.inf if limit is None else float(limit)
    expected = float(tables.expected_remaining(np.array([float(age)]), 0, np.array([cap]))[0]) + margin
    return max(math.ceil(min(expected, cap - age)), 1)


def formula(made: Director, request: Request, handoff_s: float | None, policy: Libra) -> list[float]:
    """The decode stage, endpoint by endpoint: its queue, then its own part."""
    shown, answer = view(made, request, handoff_s=handoff_s), []
    books = made.ledger.flights
    for at, slot in enumerate(int(slot) for slot in shown.slots):
        entries = sorted(
            (entry for entry in made.ledger if entry.decode_slot == slot),
            key=lambda e: float(books.handoff_at_s[e.row]),
        )
        waiting = [entry for entry in entries if not books.decoding[entry.row]]
        queued, pending = int(made.ledger.uncached_tokens[slot]), sum(e.request.prompt_tokens for e in waiting)
        others = queued if handoff_s is not None else max(queued - pending, 0)
        parts = [Part(prefill=others)] if others else []
        for entry in entries:
            output = to_come(made, entry.generated_tokens, entry.request.max_output_tokens, policy.margin_tokens)
            part = Part(decode=output, context=entry.request.prompt_tokens + entry.generated_tokens)
            if entry in waiting and handoff_s is None:
                part.prefill = math.ceil(entry.request.prompt_tokens * min(queued / pending, 1.0))
                part.context -= part.prefill
            elif entry in waiting:
                part.ready_s = max(float(books.handoff_at_s[entry.row]) - NOW_S, 0.0)
            parts.append(part)
        own = Part(decode=to_come(made, 0, request.max_output_tokens, policy.margin_tokens), ready_s=handoff_s or 0.0)
        if handoff_s is None:
            own.prefill = max(request.prompt_tokens - int(shown.matched_tokens[at]), 1)
        own.context = request.prompt_tokens - own.prefill
        profile = made.beliefs.step_times.model(slot).profile
        budget = int(made.beliefs.hardware.token_budget(np.array([slot]))[0])
        OneEndpoint([*parts, own], budget, policy.max_requests, profile).run()
        answer.append(own.finished_s)
    return answer


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    state=small,
    request=requests,
    handoff_s=st.sampled_from([None, 0.0, 0.7]),
    policy=st.builds(Libra, max_requests=st.sampled_from([2, 256]), margin_tokens=st.sampled_from([0, 20])),
)
def test_costs_are_those_of_passes_taken_one_by_one(
    state: State, request: Request, handoff_s: float | None, policy: Libra
) -> None:
    """On random fleets of unlike hardware, at arrival, at hand-off, and where endpoints prefill themselves."""
    made = build(state)
    expected = formula(made, request, handoff_s, policy)
    assert costs(policy, made, request, handoff_s=handoff_s) == pytest.approx(expected, rel=1e-8)


def test_the_worked_example() -> None:
    """An idle H20 against one with a request of 30 tokens to go: 50 passes either way, 30 of them longer."""
    flying = [Flight(at=1, prompt=1000, generated=70, limit=100)]
    made = build(State(endpoints=2, flights=flying, ended=[5000] * 400))
    policy, request = Libra(margin_tokens=20), ask(200, limit=50, blocks=False)
    step = H20_QWEN3_32B.step_s
    alone = sum(step(1, 200 + k, 0, 1) for k in range(50))
    beside = sum(step(2, 1270 + 2 * k, 0, 2) for k in range(30)) + sum(step(1, 230 + k, 0, 1) for k in range(20))
    idle, busy = costs(policy, made, request, handoff_s=0.0)
    assert idle == pytest.approx(alone)
    assert busy == pytest.approx(beside)
    assert (round(idle, 3), round(busy, 3)) == (0.853, 0.857)


def test_prefill_ends_first_where_queue_and_hardware_say_so() -> None:
    """5,000 tokens wait on an A100 pair, none on an H20; 4,000 own ones, in passes of 8,192 tokens."""
    state = State(endpoints=2, role=Role.PREFILL, hardware=("a100-qwen3-32b", "h20-qwen3-32b"), queued=(5000, 0))
    a100, h20 = costs(Libra(), state, ask(4000, blocks=False), stage=Stage.PREFILL)
    first = A100_QWEN3_32B.step_s(8192, 0, 5000 * 2500 + 3192 * 1596, 0)
    second = A100_QWEN3_32B.step_s(808, 0, 808 * (3192 + 404), 0)
    assert a100 == pytest.approx(first + second)
    assert h20 == pytest.approx(H20_QWEN3_32B.step_s(4000, 0, 4000 * 2000, 0))
    assert h20 > a100


ROUND = {
    "16 ms": replace(H20_QWEN3_32B, overhead_ms=0, a_ms=16, d_ms_per_token=0, k_ms_per_kv_token=0, s_ms_per_pair=0),
    "8000/s": replace(
        H20_QWEN3_32B, overhead_ms=0, a_ms=1e-6, d_ms_per_token=0.125, k_ms_per_kv_token=0, s_ms_per_pair=0
    ),
}
"""0.05 ms more for each decode in both."""


def test_the_prompt_in_service_counts_for_what_is_left_of_it() -> None:
    """8,000 tokens queued at 8,000 a second, half a second ago: 4,000 and the 1,000 own ones are left."""
    made = build(State(endpoints=1, role=Role.PREFILL, hardware=("8000/s",), profiles=ROUND, queued=(8000,)))
    slot = int(made.inventory.candidates(Stage.PREFILL).slots[0])
    made.ledger.prefilling_since_s[slot] = NOW_S - 0.5
    assert costs(Libra(), made, ask(1000, blocks=False), stage=Stage.PREFILL) == pytest.approx([5000 / 8000])


def test_several_prompts_queue_one_behind_the_other() -> None:
    """Three of 3,000 tokens and 1,000 own ones, two at a time."""
    flying = [Flight(prompt=3000, generated=None)] * 3
    state = State(endpoints=1, role=Role.FLEXIBLE, hardware=("8000/s",), profiles=ROUND, flights=flying)
    found = costs(Libra(max_requests=2), state, ask(1000, blocks=False), stage=Stage.PREFILL)
    assert found == pytest.approx([10_000 / 8000])


def test_what_decodes_beside_a_prefill_slows_it_down() -> None:
    """A pass of 16 ms, and 0.05 ms for each of four decodes."""
    state = State(endpoints=1, role=Role.FLEXIBLE, hardware=("16 ms",), profiles=ROUND, flights=[Flight()] * 4)
    assert costs(Libra(), state, ask(1000, blocks=False), stage=Stage.PREFILL) == pytest.approx([0.0162])


def test_requests_of_others_are_taken_to_stay() -> None:
    """Five that only the endpoint itself knows of: 50 passes of 16 ms and six decodes, against one decode."""
    made = build(State(endpoints=2, hardware=("16 ms",), profiles=ROUND, ended=[5000] * 400))
    slot = int(made.inventory.candidates(Stage.DECODE).slots[0])
    for _ in range(2):  # an excess counts when it is seen twice
        made.ledger.observed(slot, Observation(NOW_S, running=5, waiting=0))
    found = costs(Libra(), made, ask(200, limit=50, blocks=False), handoff_s=0.0)
    assert found == pytest.approx([50 * 0.0163, 50 * 0.01605])


def test_short_remaining_lives_count_for_less() -> None:
    """Ten requests with ten tokens to go each, against five with a thousand."""
    ending = [Flight(at=0, prompt=100, generated=90, limit=100)] * 10
    young = [Flight(at=1, prompt=100, generated=1, limit=1001)] * 5
    state = State(endpoints=2, flights=[*ending, *young], ended=[5000] * 400)
    first, second = costs(Libra(), state, ask(100, limit=500, blocks=False), handoff_s=0.1)
    assert first < second


def test_equal_endpoints_cost_the_same_to_the_last_bit() -> None:
    """So that ties go round by turns."""
    state = State(endpoints=3, flights=[Flight(at=at, prompt=700, generated=5) for at in range(3)], ended=HUNDRED)
    assert len(set(costs(Libra(), state, handoff_s=0.3))) == 1


def test_numbers_that_cannot_be_are_refused() -> None:
    """The message names the field."""
    with pytest.raises(ValueError, match="max_requests: must be from 1 to 65536, not 0"):
        Libra(max_requests=0)
    with pytest.raises(ValueError, match="margin_tokens: must be from 0 to 1000000, not -1"):
        Libra(margin_tokens=-1)
