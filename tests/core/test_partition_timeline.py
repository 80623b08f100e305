"""The timeline with one part more, against the same virtual batches taken pass by pass from the beginning."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ballast_core.policies.partition.timeline import Pace, Part, Timeline
from ballast_core.profiles import A100_QWEN3_32B, H20_QWEN3_32B
from tests.support.virtual_endpoint import OneEndpoint
from tests.support.virtual_endpoint import Part as Plain

INF = float("inf")
parts = st.builds(
    Part,
    prefill_tokens=st.one_of(st.just(0), st.integers(0, 60)),
    decode_tokens=st.one_of(st.just(0), st.integers(0, 30)),
    context_tokens=st.integers(0, 500),
)
paces = st.builds(
    lambda law, budget, most, prompt, memory: Pace(
        law, replace(law, max_num_batched_tokens=budget), max_requests=most, prompt_tokens=prompt, kv_tokens=memory
    ),
    st.sampled_from([A100_QWEN3_32B, H20_QWEN3_32B]),
    st.sampled_from([1, 7, 32, 8192]),
    st.sampled_from([1, 2, 5, 256]),
    st.sampled_from([INF, 1.0, 5.0, 20.0]),
    st.sampled_from([INF, 100.0, 700.0, 2000.0]),
)


def from_scratch(queue: list[Part], pace: Pace) -> float:
    """Pass by pass."""
    plain = [Plain(part.prefill_tokens, part.decode_tokens, part.context_tokens) for part in queue]
    one = OneEndpoint(plain, pace.token_budget, pace.most, pace.decoding)
    one.prompt, one.memory = pace.prompt_tokens, pace.kv_tokens
    one.run()
    return max((part.finished_s for part in plain), default=0.0)


@settings(max_examples=400)
@given(st.lists(parts, max_size=12), parts, paces)
def test_one_part_more_is_as_from_scratch(queue: list[Part], part: Part, pace: Pace) -> None:
    """Exact: shared passes, places and KV memory that have to be waited for, parts of nothing."""
    timeline = Timeline(queue, pace)
    assert timeline.end_s == pytest.approx(from_scratch(queue, pace), rel=1e-9)
    assert timeline.end_with_s(part) == pytest.approx(from_scratch([*queue, part], pace), rel=1e-9)


class Beside(OneEndpoint):
    """With decodes of others in each pass, which never end."""

    others = 0
    others_tokens = 0

    def one_pass(self) -> None:
        before_s, decodes = self.now_s, len(self.decoding)
        waiting = sum(each.prefill for each in self.waiting)
        super().one_pass()
        computed, law = waiting - sum(each.prefill for each in self.waiting), self.profile
        alone_s, beside_s = (law.step_s(computed + decodes + more, 0, 0, decodes + more) for more in (0, self.others))
        self.now_s += beside_s - alone_s + law.k_ms_per_kv_token / 1e3 * self.others_tokens
        assert self.now_s > before_s


filled = parts.filter(lambda part: part.prefill_tokens + part.decode_tokens > 0)


@given(st.lists(filled, max_size=8), filled, st.integers(1, 5), st.integers(0, 5000))
def test_decodes_of_others_stay(queue: list[Part], part: Part, others: int, tokens: int) -> None:
    """In each pass as many of them, with as much context; they take tokens of the budget and places."""
    limits = Pace(
        H20_QWEN3_32B,
        replace(H20_QWEN3_32B, max_num_batched_tokens=32),
        max_requests=8,
        others=others,
        others_tokens=float(tokens),
    )
    plain = [Plain(each.prefill_tokens, each.decode_tokens, each.context_tokens) for each in [*queue, part]]
    one = Beside(plain, limits.token_budget, limits.most, H20_QWEN3_32B)
    one.others, one.others_tokens = others, tokens
    one.run()
    assert Timeline(queue, limits).end_with_s(part) == pytest.approx(one.now_s, rel=1e-9)


def test_the_sums_by_hand() -> None:
    """Two decodes of 3 and 5 tokens and 100 of context each; a third one of 4, and a prompt of 10 with 2."""
    law = A100_QWEN3_32B
    timeline = Timeline([Part(0, 3, 100), Part(0, 5, 100)], Pace(law, law))
    step = law.step_s
    both = [step(2, 200 + 2 * k, 0, 2) for k in range(3)]
    one = [step(1, 103 + k, 0, 1) for k in range(2)]
    assert timeline.end_s == pytest.approx(sum(both) + sum(one))
    three = [step(3, 250 + 3 * k, 0, 3) for k in range(3)]
    two = step(2, 103 + 53, 0, 2)
    assert timeline.end_with_s(Part(0, 4, 50)) == pytest.approx(sum(three) + two + step(1, 104, 0, 1))
    mixed = step(12, 200, 10 * 5, 2)
    after = [step(3, 202 + 10, 0, 3), step(3, 215, 0, 3)]
    assert timeline.end_with_s(Part(10, 2, 0)) == pytest.approx(mixed + sum(after) + sum(one))


def test_a_part_waits_for_memory() -> None:
    """Of 1,000 tokens the decode holds 800 + 40 / 2; a prompt of 300 waits until it has ended, one of 100 does not."""
    law = A100_QWEN3_32B
    timeline = Timeline([Part(0, 40, 800)], Pace(law, law, kv_tokens=1000.0))
    assert timeline.end_with_s(Part(100, 0, 0)) == pytest.approx(
        timeline.end_s + law.step_s(101, 800, 100 * 50, 1) - law.step_s(1, 800, 0, 1)
    )
    assert timeline.end_with_s(Part(300, 0, 0)) == pytest.approx(timeline.end_s + law.step_s(300, 0, 300 * 150, 0))


def test_prompts_of_many_small_passes_leave_decodes_more_tokens() -> None:
    """A prompt of 1,000 in passes of 50: 20 passes, after which a decode of 20 tokens is done."""
    law = A100_QWEN3_32B
    timeline = Timeline([Part(0, 20, 0)], Pace(law, law, prompt_tokens=50.0))
    passes = [law.step_s(51, k, 50 * (50 * k + 25), 1) for k in range(20)]
    assert timeline.end_with_s(Part(1000, 0, 0)) == pytest.approx(sum(passes))
