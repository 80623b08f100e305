"""Histograms of the requests that decode: kept up to date or counted afresh, they are the same to the last bit."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ballast_core.state.age_histograms import AGE_OF_BUCKET, AGES, AgeHistograms, class_of, is_limited, log_bucket
from ballast_core.state.flights import Flights

Counted = dict[int, tuple[list[list[float]], list[list[float]], list[list[float]], int, int]]


def content(histograms: AgeHistograms) -> Counted:
    histograms.update()
    return {
        each.group: (each.counts.tolist(), each.held.tolist(), each.squares.tolist(), each.total, each.limits)
        for each in histograms
    }


steps = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "start", "start", "progress", "progress", "remove", "look"]),
        st.integers(0, 10**6),
        st.sampled_from([None, None, 100, 5_000, 5_001, 2**62]),
    ),
    max_size=120,
)


@given(steps=steps)
def test_kept_up_to_date_they_are_what_counting_afresh_gives(steps: list[tuple[str, int, int | None]]) -> None:
    """After any arrivals, hand-offs, tokens and ends, on endpoints that come into use one after the other."""
    flights = Flights()
    kept = AgeHistograms(flights)
    for number, (step, pick, limit) in enumerate([*steps, ("look", 0, None)]):
        row = pick % max(flights.count, 1)
        if step == "add":
            slot, class_slot, now_s = min(pick, number) % 9, pick % 3 // 2, float(number)
            flights.add(
                slot=slot,
                prompt_tokens=pick,
                limit_tokens=limit,
                handoff_at_s=now_s,
                now_s=now_s,
                class_slot=class_slot,
            )
        elif step == "look":
            fresh = AgeHistograms(flights)
            got, want = content(kept), content(fresh)
            assert got.keys() == want.keys()
            for group, (counts, held, squares, total, limits) in want.items():
                rows = len(counts)  # endpoints that nothing is on any more keep their empty rows
                assert [part[:rows] for part in got[group][:3]] == [counts, held, squares]
                assert not any(sum(map(sum, part[rows:])) for part in got[group][:3])
                assert got[group][3:] == (total, limits)
        elif flights.count:
            if step == "start":
                flights.start_decoding(row, float(number))
            elif step == "progress" and flights.decoding[row]:
                flights.progress(row, pick % 90_000, float(number))
            elif step == "remove":
                flights.remove(row)


def test_by_hand() -> None:
    """Two that decode with like limits, one without a limit, one that is pending and does not count."""
    flights = Flights()
    for slot, prompt, limit in ((1, 100, 1000), (1, 300, 1010), (0, 50, None), (0, 70, None)):
        flights.add(slot=slot, prompt_tokens=prompt, limit_tokens=limit, handoff_at_s=0.0, now_s=0.0, class_slot=2)
    for row in range(3):
        flights.start_decoding(row, 1.0)
    flights.progress(1, 200, 2.0)
    histograms = AgeHistograms(flights)
    histograms.update()
    unlimited, limited = sorted(histograms, key=lambda each: is_limited(each.group))
    assert [class_of(each.group) for each in histograms] == [2, 2]
    assert unlimited.cap_tokens is None
    assert limited.cap_tokens == 1005
    bucket = int(log_bucket(np.array([200.0]), 64.0)[0])
    assert limited.ages == bucket + 1
    assert AGE_OF_BUCKET[bucket - 1] < 200 < AGE_OF_BUCKET[bucket + 1]
    counts, held, squares = (np.zeros((2, AGES)) for _ in range(3))
    counts[1, [0, bucket]] = 1
    held[1, [0, bucket]] = 100, 500
    squares[1, [0, bucket]] = 100**2, 500**2
    np.testing.assert_array_equal(limited.counts, counts)
    np.testing.assert_array_equal(limited.held, held)
    np.testing.assert_array_equal(limited.squares, squares)
    assert unlimited.held[0, 0] == 50
