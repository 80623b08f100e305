"""The smallest fleet: one engine less misses the SLO, nothing beyond the budget is tried, and cost is not GPUs."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast_sim.recommend.budget import parse_budget
from ballast_sim.recommend.smallest import Counts, Family, families, smallest

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


def test_a_price_is_of_gpus_or_of_money() -> None:
    family = Family((("P", A100), ("D", H20)))
    assert family.price((2, 3), None) == 2 * 2 + 3
    assert family.price((2, 3), {"a100-qwen3-32b": 3.5, "h20-qwen3-32b": 1.0}) == 10.0


def test_families_are_every_kind_for_every_stage_that_the_budget_has() -> None:
    words = {"".join(letter + each.profile.name[0] for letter, each in family.stages) for family in families(BUDGET)}
    assert words == {"PaDa", "PaDh", "PhDa", "PhDh", "Ca", "Ch"}
    single = families(parse_budget("h20=1", "qwen3-32b"))
    assert [[letter for letter, _ in family.stages] for family in single] == [["C"]]
