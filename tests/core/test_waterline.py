"""How far coming requests fill a fleet: against placing them one by one, and at its edges."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast_core.policies.placement.waterline import waterline

positive = st.floats(0.1, 10.0)


@given(
    costs=st.lists(positive, min_size=1, max_size=8),
    slopes=st.lists(positive, min_size=8, max_size=8),
    coming=st.floats(0.0, 50.0),
)
def test_everything_that_comes_finds_its_place_below_the_line(
    costs: list[float], slopes: list[float], coming: float
) -> None:
    used = slopes[: len(costs)]
    line = float(waterline(np.array([costs]), np.array([used]), np.array([coming]))[0])
    placed = sum(max(line - cost, 0.0) / slope for cost, slope in zip(costs, used, strict=True))
    assert placed == pytest.approx(coming, abs=1e-6)
    assert line >= min(costs) - 1e-12


def test_many_small_requests_placed_greedily_end_at_the_line() -> None:
    costs, slopes, share = np.array([1.0, 2.0, 7.0]), np.array([0.5, 1.0, 0.1]), 0.001
    line = waterline(costs[None, :], slopes[None, :], np.array([4.0]))[0]
    for _ in range(4000):
        cheapest = int(np.argmin(costs))
        costs[cheapest] += slopes[cheapest] * share
    assert costs[:2] == pytest.approx(line, abs=2e-3)
    assert costs[2] == 7.0


def test_each_time_has_its_own_line_and_none_without_requests() -> None:
    costs = np.array([[3.0, 1.0], [3.0, 1.0]])
    assert waterline(costs, np.ones((2, 2)), np.array([0.0, 4.0])).tolist() == [1.0, 4.0]


def test_a_cost_that_rounding_lets_fall_with_load_still_gives_a_line() -> None:
    assert np.isfinite(waterline(np.array([[1.0, 1.0]]), np.array([[-1e-18, 0.0]]), np.array([5.0]))).all()
