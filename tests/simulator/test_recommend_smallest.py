"""The smallest fleet: one engine less misses the SLO, nothing beyond the budget is tried, and cost is not GPUs."""

import json
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast_core.profiles.capacity import LengthStatistics
from ballast_sim.recommend.budget import parse_budget
from ballast_sim.recommend.question import Question
from ballast_sim.recommend.smallest import Counts, Family, families, minimize, smallest
from ballast_sim.simulation.inputs.objective import Objective
from ballast_sim.simulation.inputs.source import WorkloadSource

BUDGET = parse_budget("a100=8,h20=8", "qwen3-32b")
A100, H20 = BUDGET


@given(
    needed=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    start=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    prices=st.tuples(st.integers(1, 5), st.integers(1, 5)),
)
def test_no_engine_can_be_spared(needed: Counts, start: Counts, prices: tuple[int, int]) -> None:
    """Whatever the start is, where a stage's engines help until it has enough."""

    def trial(several: Sequence[Counts]) -> list[float]:
        return [sum(min(1.0, have / need) for have, need in zip(counts, needed, strict=True)) / 2 for counts in several]

    def price(counts: Counts) -> float:
        return sum(count * each for count, each in zip(counts, prices, strict=True))

    found = smallest(start, allows=lambda counts: max(counts) <= 12, price=price, trial=trial, wanted=1.0)
    assert found == needed
    below = price(needed)
    assert smallest(needed, allows=lambda _: True, price=price, trial=trial, wanted=1.0, below=below) is None


def test_what_the_budget_does_not_have_is_not_tried() -> None:
    tried: list[Counts] = []

    def trial(several: Sequence[Counts]) -> list[float]:
        tried.extend(several)
        return [0.0] * len(several)

    family = Family((("P", H20), ("D", H20)))
    found = smallest((1, 1), allows=family.allows, price=sum, trial=trial, wanted=0.99)
    assert found is None
    assert max(map(sum, tried)) == 8
    assert len(tried) == len(set(tried))


@pytest.mark.parametrize("needed", [9, 10, 11, 17, 24])
def test_the_last_engines_of_a_budget_are_tried(needed: int) -> None:
    """A step of several engines that the budget does not pay for whole is a smaller one; so is one that is too dear."""

    def trial(several: Sequence[Counts]) -> list[float]:
        return [min(1.0, count / needed) for (count,) in several]

    found = smallest((needed - 1,), allows=lambda counts: counts[0] <= needed, price=sum, trial=trial, wanted=1.0)
    assert found == (needed,)
    found = smallest((needed - 1,), allows=lambda _: True, price=sum, trial=trial, wanted=1.0, below=needed + 0.5)
    assert found == (needed,)


def test_engines_go_to_the_stage_that_lacks_them_where_the_budget_has_no_more() -> None:
    def trial(several: Sequence[Counts]) -> list[float]:
        return [(min(1.0, prefill / 2) + min(1.0, decode / 6)) / 2 for prefill, decode in several]

    family = Family((("P", H20), ("D", H20)))
    assert smallest((6, 2), allows=family.allows, price=sum, trial=trial, wanted=1.0) == (2, 6)


@given(
    rate_rps=st.floats(0.01, 1e6),
    shared=st.booleans(),
    h20=st.integers(2, 40),
    lengths=st.builds(
        LengthStatistics,
        input_tokens=st.floats(1, 20_000),
        output_tokens=st.floats(1, 5000),
        input_pairs=st.just(1e6),
        context_tokens=st.floats(1, 20_000),
    ),
)
def test_a_search_starts_within_the_budget(
    *, rate_rps: float, shared: bool, h20: int, lengths: LengthStatistics
) -> None:
    kinds = parse_budget(f"a100=8,h20={h20}", "qwen3-32b")
    family = Family((("P", kinds[1]), ("D", kinds[1 if shared else 0])))
    start = family.start(lengths, rate_rps, 0.05)
    assert min(start) >= 1
    assert family.allows(start)


def test_cached_prefixes_may_fit_where_arithmetic_has_no_room(tmp_path: Path) -> None:
    """Every prompt begins with the same 3,072 tokens: one engine carries what would need several without its cache."""
    rows = [
        {"arrival_s": number / 2, "input_tokens": 3272, "output_tokens": 20, "hash_ids": list(range(6))}
        for number in range(150)
    ]
    path = tmp_path / "shared.jsonl"
    path.write_text("".join(json.dumps(row | {"block_size": 512}) + "\n" for row in rows))
    hardware = parse_budget("h20=2", "qwen3-32b")
    question = Question(WorkloadSource(trace=path), hardware, Objective(ttft_s=2.0, tpot_s=0.05), 0.99, seeds=(0,))
    answer = minimize(question, None, 1, threading.Event(), lambda what, done, runs: None)
    assert answer.meets


def test_a_price_is_of_gpus_or_of_money() -> None:
    family = Family((("P", A100), ("D", H20)))
    assert family.price((2, 3), None) == 2 * 2 + 3
    assert family.price((2, 3), {"a100-qwen3-32b": 3.5, "h20-qwen3-32b": 1.0}) == 10.0


def test_families_are_every_kind_for_every_stage_that_the_budget_has() -> None:
    words = {"".join(letter + each.profile.name[0] for letter, each in family.stages) for family in families(BUDGET)}
    assert words == {"PaDa", "PaDh", "PhDa", "PhDh", "Ca", "Ch"}
    single = families(parse_budget("h20=1", "qwen3-32b"))
    assert [[letter for letter, _ in family.stages] for family in single] == [["C"]]
