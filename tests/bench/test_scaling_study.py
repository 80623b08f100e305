"""The study of scaling policies: its traffic follows the shapes that the page describes, its tables are means."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from bench.scaling_study import _RATES, GPUS, SCENARIOS, TRACES, contenders, tables


def test_every_fixed_split_of_the_gpus_is_a_contender() -> None:
    fixed = [each.shape for each in contenders() if each.policy.type == "fixed"]
    assert fixed == [f"{k}P{GPUS - k}D" for k in range(1, GPUS)]


def test_rates_never_leave_0_to_1() -> None:
    for rate in _RATES.values():
        assert all(0 < rate(share / 100) <= 1 for share in range(100))


def test_tables_have_the_mean_of_the_seeds() -> None:
    def row(seed: int, attainment: float) -> dict[str, Any]:
        figures = {"attainment": attainment, "requests": 100, "gpu_hours": 1.5, "changes": 2}
        return {"scenario": "flash crowd", "contender": "ballast", "seed": seed, **figures}

    rows = {("flash crowd", "ballast", seed): row(seed, share) for seed, share in ((0, 0.9), (1, 1.0))}
    assert "| ballast | 95.0% | 90.0% to 100.0% | 5 of 100 | 1.500 | 2.0 |" in tables(rows)


@pytest.mark.shared
@pytest.mark.skipif(not TRACES.is_dir(), reason="no public traces")
def test_phases_follow_each_other_and_share_no_blocks() -> None:
    phases = SCENARIOS["shifting mix"]
    one, other = (phases.load(seed, 1.0).requests for seed in (0, 1))
    assert one != other
    assert all(before.arrival_s <= after.arrival_s for before, after in pairwise(one))
    assert one[-1].arrival_s <= sum(phase.lasts_s for phase in phases.phases)
