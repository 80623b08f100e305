"""Libra's predictor, in leaps for many endpoints, against one endpoint taken pass by pass."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ballast_core.arrays import FloatArray, IntArray
from ballast_core.beliefs.stacked_profiles import StackedProfiles
from ballast_core.policies.placement.virtual_batches import Limits, Parts, finish_s
from ballast_core.profiles import A100_QWEN3_32B, H20_QWEN3_32B, HardwareProfile
from tests.support.virtual_endpoint import OneEndpoint, Part

pytestmark = pytest.mark.rotating(4, each=True)

INF = math.inf
HARDWARE = (H20_QWEN3_32B, A100_QWEN3_32B)


class Law:
    """The law of ballast_core.profiles for endpoints of this hardware."""

    def __init__(self, hardware: list[HardwareProfile]) -> None:
        self._stacked = StackedProfiles()
        for slot, profile in enumerate(hardware):
            self._stacked.put(slot, profile)
        self.calls = 0

    def __call__(
        self, at: IntArray, tokens: FloatArray, context: FloatArray, pairs: FloatArray, decodes: FloatArray
    ) -> FloatArray:
        self.calls += 1
        return self._stacked.step_s(at, tokens, context, pairs, decodes)


def predicted(queues: list[list[Part]], budget: int, most: int, law: Law, wanted: int | None = None) -> FloatArray:
    shape = (len(queues), max(len(queue) for queue in queues))
    prefill, decode, context, ready_s = (np.zeros(shape) for _ in range(4))
    ready_s += INF
    for row, queue in enumerate(queues):
        for column, part in enumerate(queue):
            prefill[row, column], decode[row, column] = part.prefill, part.decode
            context[row, column], ready_s[row, column] = part.context, part.ready_s
    limits = Limits(np.full(shape[0], float(budget)), np.full(shape[0], float(most)))
    return finish_s(Parts(prefill, decode, context, ready_s), limits, law, wanted=wanted)


some_parts = st.lists(
    st.builds(
        Part,
        prefill=st.just(0) | st.integers(1, 700),
        decode=st.just(0) | st.integers(1, 300),
        context=st.integers(0, 20_000),
        ready_s=st.just(0.0) | st.floats(0.001, 4.0),
    ),
    min_size=1,
    max_size=9,
)


@settings(max_examples=120, deadline=None)
@given(
    queues=st.lists(some_parts, min_size=1, max_size=4),
    budget=st.sampled_from([7, 64, 2048]),
    most=st.sampled_from([1, 2, 5, 256]),
)
def test_leaps_end_where_steps_do(queues: list[list[Part]], budget: int, most: int) -> None:
    """Every part of every endpoint, to a billionth; also where only one column is asked for."""
    hardware = [HARDWARE[row % 2] for row in range(len(queues))]
    every = predicted(queues, budget, most, Law(hardware))
    one = predicted(queues, budget, most, Law(hardware), wanted=0)
    last = max(len(queue) for queue in queues) - 1
    some = predicted(queues, budget, most, Law(hardware), wanted=last)
    assert list(some[:, last]) == pytest.approx(list(every[:, last]), rel=1e-9)
    for row, queue in enumerate(queues):
        OneEndpoint(queue, budget, most, hardware[row]).run()
        expected = [part.finished_s for part in queue]
        assert list(every[row, : len(queue)]) == pytest.approx(expected, rel=1e-9)
        assert np.isinf(every[row, len(queue) :]).all()
        assert one[row, 0] == pytest.approx(expected[0], rel=1e-9)


def test_decodes_alone_are_one_sum() -> None:
    """Three requests of 2, 3 and 3 tokens: passes of 3, 3, 2 decodes, contexts growing by one each."""
    parts = [Part(decode=2, context=100), Part(decode=3, context=200), Part(decode=3, context=300)]
    step = H20_QWEN3_32B.step_s
    two = step(3, 600, 0, 3) + step(3, 603, 0, 3)
    law = Law([H20_QWEN3_32B])
    assert list(predicted([parts], 8192, 256, law)[0]) == pytest.approx(
        [two, two + step(2, 504, 0, 2), two + step(2, 504, 0, 2)]
    )
    assert law.calls == 2


def test_a_prompt_takes_what_decodes_leave_of_the_budget() -> None:
    """Budget 100, two decodes: 98 tokens of the prompt, then the other 52; it decodes from the third pass on."""
    parts = [Part(decode=9, context=10), Part(decode=9, context=20), Part(prefill=150, decode=1)]
    step = H20_QWEN3_32B.step_s
    expected = (
        step(100, 30, 98 * 49, 2) + step(54, 32, 52 * (98 + 26), 2) + step(3, 34 + 150, 0, 3)
    )  # fmt: skip
    assert predicted([parts], 100, 256, Law([H20_QWEN3_32B]))[0, 2] == pytest.approx(expected)


def test_at_most_so_many_are_active() -> None:
    """N_max 1: one after the other, in order of readiness, not of columns."""
    parts = [Part(decode=5, context=10, ready_s=0.001), Part(decode=5, context=10)]
    late, early = predicted([parts], 8192, 1, Law([H20_QWEN3_32B]))[0]
    assert late == pytest.approx(2 * early)


def test_an_idle_endpoint_waits_for_what_is_to_come() -> None:
    """And a part that comes between two passes is in the next one."""
    step_s = H20_QWEN3_32B.step_s(1, 10, 0, 1)
    law = Law([H20_QWEN3_32B])
    assert predicted([[Part(decode=1, context=10, ready_s=3.0)]], 8192, 256, law)[0, 0] == pytest.approx(3.0 + step_s)
    busy = [Part(decode=50, context=10), Part(decode=1, context=10, ready_s=2.5 * step_s)]
    joined = predicted([busy], 8192, 256, law)[0, 1]
    assert 4 * step_s < joined < 4.2 * step_s


def test_the_cost_does_not_grow_with_tokens() -> None:
    """A hundred requests of ten thousand tokens each: as many questions to the law as of ten tokens each."""
    calls = []
    for tokens in (10, 10_000):
        law = Law([H20_QWEN3_32B])
        predicted([[Part(decode=tokens + k, context=10) for k in range(100)]], 8192, 256, law)
        calls.append(law.calls)
    assert calls[0] == calls[1] == 2


def test_a_later_split_moves_work_from_the_second_endpoint_to_the_first() -> None:
    """What a search for the split point asks: the time to the end of either part of 1,024 + 1,024 tokens, for each s.

    Equal lengths in prompt and output: split at the prompt's end the second part takes longer, and where both take
    equally long lies behind it (figure 5 of the paper; its 1,358 is for other hardware and load).
    """

    def both(split: int) -> tuple[float, float]:
        first = Part(prefill=min(split, 1024), decode=max(split - 1024, 0))
        second = Part(prefill=max(1024 - split, 0), decode=2048 - max(split, 1024), context=split)
        ends_s = predicted([[first], [second]], 8192, 256, Law([H20_QWEN3_32B] * 2))
        return float(ends_s[0, 0]), float(ends_s[1, 0])

    times = [both(split) for split in range(256, 2048, 64)]
    assert all(earlier[0] < later[0] for earlier, later in itertools.pairwise(times))
    assert all(earlier[1] > later[1] for earlier, later in itertools.pairwise(times))
    at_prompt = both(1024)
    assert at_prompt[0] < at_prompt[1]
    balanced = min(range(256, 2048, 64), key=lambda split: abs(both(split)[0] - both(split)[1]))
    assert 1024 < balanced < 2048
