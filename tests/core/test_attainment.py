"""Attainment: what a request was, what the last minutes were, and when an objective counts as met or missed."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from ballast_core.attainment import (
    WINDOWS_S,
    Counts,
    Ended,
    Objective,
    Seen,
    Threshold,
    Why,
    Windows,
    judge,
    standing,
)

BOTH = Objective("both", ttft_s=1.0, tpot_s=0.1)
ALL = Objective("all", ttft_s=1.0, tpot_s=0.1, e2e_s=5.0)
SERVED, MISSED, UNSEEN = Ended.SERVED, Ended.MISSED, Ended.UNSEEN


@pytest.mark.parametrize(
    ("objective", "seen", "expected"),
    [
        pytest.param(ALL, Seen(SERVED, 1.0, 0.1, 5.0, 20), (True, True, True, True), id="at each bound"),
        pytest.param(ALL, Seen(SERVED, 1.1, 0.1, 5.0, 20), (False, True, True, False), id="late first token"),
        pytest.param(ALL, Seen(SERVED, 0.5, 0.2, 5.0, 20), (True, False, True, False), id="slow tokens"),
        pytest.param(ALL, Seen(SERVED, 0.5, 0.1, 5.1, 20), (True, True, False, False), id="long"),
        pytest.param(ALL, Seen(SERVED, 0.5, None, 0.5, 1), (True, True, True, True), id="one token"),
        pytest.param(BOTH, Seen(SERVED, 0.5, 0.1, 99.0, 20), (True, True, True, True), id="what is not set is met"),
        pytest.param(ALL, Seen(MISSED, None, None, 0.0, 0), (False, False, False, False), id="shed"),
        pytest.param(ALL, Seen(MISSED, 0.5, 0.05, 2.0, 9), (True, False, False, False), id="broke after its start"),
        pytest.param(ALL, Seen(UNSEEN, None, None, 0.0, None), (None, None, None, None), id="nobody saw it"),
        pytest.param(
            Objective("ttft", ttft_s=1.0), Seen(UNSEEN, None, None, 0.0, None), (None, True, True, None), id="unseen"
        ),
        pytest.param(ALL, Seen(SERVED, None, None, 0.9, 1), (True, True, True, True), id="whole before it was due"),
        pytest.param(ALL, Seen(SERVED, None, None, 4.0, 1), (None, True, True, None), id="first token not seen"),
        pytest.param(ALL, Seen(SERVED, None, None, 9.0, 1), (None, True, False, False), id="late whatever was unseen"),
        pytest.param(ALL, Seen(SERVED, 0.5, None, 4.0, None), (True, None, True, None), id="tokens not counted"),
    ],
)
def test_a_request_against_its_objective(
    objective: Objective, seen: Seen, expected: tuple[bool | None, bool | None, bool | None, bool | None]
) -> None:
    """By threshold: TTFT, TPOT, E2E, jointly."""
    assert judge(objective, seen) == expected


def test_windows_count_what_ended_within_them() -> None:
    """Against a list of all ends, at any time, also after hours of silence; a window is right to a slot of 5 s."""
    rng = random.Random(7)
    windows, ends, now_s = Windows(), list[tuple[float, bool | None]](), 1e6
    for number in range(4000):
        now_s += rng.choice([0.0, 0.3, 2.0, 40.0]) if number % 500 else rng.choice([900.0, 5000.0])
        within = rng.choice([True, False, None])
        windows.count((within, True, True, within), now_s)
        ends.append((now_s, within))
        if number % 37:
            continue
        at_s = now_s + rng.choice([0.0, 100.0, 4000.0])
        now_s = max(now_s, at_s)
        found = windows.over(now_s)
        for window_s in WINDOWS_S:
            first_slot = int(now_s // 5) - window_s // 5 + 1
            tally = Counter(within for end_s, within in ends if end_s // 5 >= first_slot)
            assert found[window_s][Threshold.JOINT] == Counts(tally[True], tally[False], tally[None])
            assert found[window_s][Threshold.TPOT] == Counts(tally.total())
    tally = Counter(within for _, within in ends)
    assert windows.totals[9:] == [tally[True], tally[False], tally[None]]


def test_counts_add_up_over_gateways() -> None:
    """The windows of one gateway are the sums of those of two that share its requests."""
    one, parts = Windows(), (Windows(), Windows())
    for number in range(500):
        judgement = (number % 3 > 0, True, number % 5 > 0, number % 15 not in {0, 3, 5, 6, 9, 10, 12})
        one.count(judgement, 1000.0 + number)
        parts[number % 2].count(judgement, 1000.0 + number)
    whole, (left, right) = one.over(1500.0), [part.over(1500.0) for part in parts]
    for window_s, each in itertools.product(WINDOWS_S, Threshold):
        assert left[window_s][each].plus(right[window_s][each]) == whole[window_s][each]


@pytest.mark.parametrize(
    ("counts", "lower", "upper"),
    [
        (Counts(), 0.0, 1.0),
        (Counts(within=81, outside=182), 0.2535, 0.3682),
        (Counts(within=15, outside=133), 0.0598, 0.1644),
        (Counts(outside=20), 0.0, 0.2005),
        (Counts(within=1, outside=28), 0.0018, 0.1963),
        (Counts(within=20), 0.7995, 1.0),
    ],
    ids=str,
)
def test_the_interval_is_wilsons(counts: Counts, lower: float, upper: float) -> None:
    """The values of Newcombe's table I, method 4."""
    assert counts.interval() == pytest.approx((lower, upper), abs=1e-4)


def test_what_is_not_known_widens_the_interval_to_both_sides() -> None:
    """As if all of it had been outside, and as if all of it had been within."""
    found = Counts(within=900, outside=50, unknown=50).interval()
    assert found == (Counts(within=900, outside=100).interval()[0], Counts(within=950, outside=50).interval()[1])
    assert Counts(unknown=1000).interval() == (0.0, 1.0)


def joint(five_minutes: Counts, half_hour: Counts | None = None, hour: Counts | None = None) -> dict[int, Counts]:
    half_hour = half_hour or five_minutes
    return {60: Counts(), 300: five_minutes, 1800: half_hour, 3600: hour or half_hour}


@pytest.mark.parametrize(
    ("found", "before", "met", "why"),
    [
        pytest.param(joint(Counts()), True, None, Why.NO_TRAFFIC, id="no traffic"),
        pytest.param(joint(Counts(within=1000)), None, True, Why.MET, id="met"),
        pytest.param(joint(Counts(900, 100)), True, False, Why.MISSED, id="missed"),
        pytest.param(joint(Counts(within=5)), None, None, Why.TOO_FEW, id="too few to say"),
        pytest.param(joint(Counts(within=5)), True, True, Why.STAYS, id="too few to change it"),
        pytest.param(joint(Counts(within=5)), False, None, Why.TOO_FEW, id="nothing speaks for a miss any more"),
        pytest.param(joint(Counts(8, 1)), True, None, Why.TOO_FEW, id="nothing speaks for it any more"),
        pytest.param(joint(Counts(8, 1)), False, False, Why.STAYS, id="still missed"),
        pytest.param(joint(Counts(within=5), Counts(900, 100)), True, False, Why.MISSED, id="a longer window decides"),
        pytest.param(joint(Counts(within=1000), Counts(2000, 500)), False, True, Why.MET, id="the newest window first"),
        pytest.param(joint(Counts(unknown=1000)), True, None, Why.UNSEEN, id="nobody sees outputs"),
        pytest.param(joint(Counts(within=300, unknown=700)), None, None, Why.UNSEEN, id="most are not seen"),
        pytest.param(joint(Counts(0, 500, 500)), None, False, Why.MISSED, id="missed whatever was not seen"),
    ],
)
def test_an_objective_stands_by_its_interval(
    found: dict[int, Counts], before: bool | None, met: bool | None, why: Why
) -> None:
    """At a target of 99 %."""
    result = standing(found, 0.99, before)
    assert (result.met, result.why) == (met, why)


def test_a_target_of_one_is_met_where_none_was_outside() -> None:
    """No sample proves it."""
    assert standing(joint(Counts(within=3)), 1.0, None).met is True
    assert standing(joint(Counts(3000, 1)), 1.0, True).met is False


@pytest.mark.parametrize("share", [0.983, 0.986, 0.994, 0.997])
def test_noise_does_not_make_it_flap(share: float) -> None:
    """Ten hours of steady traffic near the target: once decided, it stays, though the share of 5 minutes crosses it."""
    rng, windows, before, changes, crossed = random.Random(f"{share}"), Windows(), None, 0, Counter[bool]()
    for number in range(72_000):
        now_s = 0.5 * number
        within = rng.random() < share
        windows.count((True, True, True, within), now_s)
        if number % 30 == 0 and number > 1200:
            found = {window_s: counts[Threshold.JOINT] for window_s, counts in windows.over(now_s).items()}
            now = standing(found, 0.99, before).met
            crossed[(found[300].share or 0) >= 0.99] += 1
            changes += now is not before and before is not None
            before = now if now is not None else before
    assert before is (share > 0.99)
    assert min(crossed[True], crossed[False]) > 10
    assert changes <= 2
