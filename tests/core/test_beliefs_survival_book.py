"""Curves by traffic class: own data first, the pooled curve where there is little, a bounded number of classes."""

from __future__ import annotations

import numpy as np
import pytest

from ballast_core.arrays import FloatArray
from ballast_core.beliefs.survival import EmaSurvival
from ballast_core.beliefs.survival_book import POOLED, SurvivalBook, SurvivalSettings


def book(max_classes: int = 4, refresh_s: float = 0.0, idle_s: float = 100.0) -> SurvivalBook:
    return SurvivalBook(SurvivalSettings(max_classes=max_classes, refresh_s=refresh_s, idle_s=idle_s))


def teach(target: SurvivalBook, key: str, tokens: float, times: int = 200, now_s: float = 0.0) -> None:
    for _ in range(times):
        target.ended(key, tokens, censored=False, now_s=now_s)


def mean(target: SurvivalBook, slot: int, now_s: float = 0.0) -> float:
    return float(target.tables(now_s).expected_remaining(np.zeros(1), slot)[0])


def test_classes_keep_their_own_curves() -> None:
    target = book()
    teach(target, "chat", 200)
    teach(target, "reasoning", 4000)
    assert mean(target, target.slot("chat", 0.0)) == pytest.approx(200, abs=40)
    assert mean(target, target.slot("reasoning", 0.0)) == pytest.approx(4000, rel=0.05)
    assert 500 < mean(target, POOLED) < 3500


def test_a_class_that_has_seen_nothing_reads_the_pooled_curve() -> None:
    target = book()
    teach(target, "chat", 200)
    fresh = target.slot("new", 0.0)
    ages: FloatArray = np.arange(0.0, 1000.0, 100.0)
    tables = target.tables(0.0)
    np.testing.assert_allclose(tables.survival(ages, fresh), tables.survival(ages, POOLED), rtol=1e-6)
    assert tables.effective_samples(np.zeros(1), fresh)[0] == 0


def test_a_few_ends_move_a_class_from_the_pooled_curve_towards_its_own() -> None:
    target = book()
    teach(target, "chat", 200, times=500)
    means = []
    for _ in range(4):
        teach(target, "rare", 1000, times=1)
        means.append(mean(target, target.slot("rare", 0.0)))
    assert means == sorted(means)
    assert 300 < means[0] < 900
    assert means[-1] > 900


def test_classes_beyond_the_bound_share_the_pooled_curve_until_one_is_idle() -> None:
    target = book(max_classes=2, idle_s=100.0)
    assert [target.slot(key, 0.0) for key in ("a", "b", "c")] == [1, 2, POOLED]
    teach(target, "c", 50, times=3)
    assert target.slot("b", 90.0) == 2
    assert target.slot("c", 150.0) == 1
    assert target.slot("a", 150.0) == POOLED


def test_a_slot_given_to_another_class_forgets_the_first_at_once() -> None:
    target = book(max_classes=1, refresh_s=1e9, idle_s=100.0)
    teach(target, "short", 10, times=300)
    slot = target.slot("short", 0.0)
    before = target.tables(0.0).effective_samples(np.zeros(1), slot)[0]
    assert target.slot("other", 200.0) == slot
    assert before > 200
    assert target.tables(200.0).effective_samples(np.zeros(1), slot)[0] == 0


def test_no_class_at_all_is_a_book_of_one_curve() -> None:
    target = book(max_classes=0)
    assert target.slot("a", 0.0) == POOLED
    teach(target, "a", 100)
    assert mean(target, POOLED) == pytest.approx(100, abs=30)


def test_tables_are_rebuilt_at_most_as_often_as_asked() -> None:
    target = book(refresh_s=1.0)
    teach(target, "a", 100)
    first = target.tables(0.0)
    teach(target, "a", 100)
    assert target.tables(0.5) is first
    assert target.tables(1.0) is not first
    assert target.tables(9.0) is target.tables(10.0)


def test_progress_in_flight_reaches_class_and_pool() -> None:
    target = book()
    a, b = target.slot("a", 0.0), target.slot("b", 0.0)
    target.aged(np.array([a, a, b, POOLED]), np.zeros(4), np.array([64.0, 128.0, 64.0, 64.0]), 1.0)
    tables = target.tables(1.0)
    assert tables.effective_samples(np.zeros(1), POOLED)[0] == pytest.approx(4)
    assert tables.effective_samples(np.zeros(1), a)[0] == pytest.approx(2)
    assert tables.effective_samples(np.array([100.0]), a)[0] == pytest.approx(1)
    assert tables.effective_samples(np.zeros(1), b)[0] == pytest.approx(1)


def test_the_papers_estimator_can_stand_in() -> None:
    target = SurvivalBook(SurvivalSettings(estimator=EmaSurvival, refresh_s=0.0))
    teach(target, "a", 100, times=2000)
    assert target.tables(0.0).survival(np.array([200.0]), target.slot("a", 0.0))[0] < 1e-3


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="max_classes: must be 0 or more"):
        SurvivalSettings(max_classes=-1)
    with pytest.raises(ValueError, match="refresh_s: must be 0 or more"):
        SurvivalSettings(refresh_s=-1)
