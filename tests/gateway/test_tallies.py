"""Counters and histograms of the byte path: exported as prometheus_client exports its own."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from ballast_gateway.tallies import Counts, Spreads

BOUNDS = (0.005, 0.25, 1, 320)
values = st.floats(0, 400) | st.sampled_from(BOUNDS)


def page(registry: CollectorRegistry) -> str:
    """Without the times at which series were made."""
    return re.sub(r"(_created(?:\{.*\})?) .*", r"\1", generate_latest(registry).decode())


@given(st.lists(st.tuples(st.sampled_from(["a", 'b"\n']), st.sampled_from(["x", ""]), values), max_size=12))
def test_the_page_is_that_of_prometheus_client(taken: list[tuple[str, str, float]]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    counts, plain_counts = Counts(ours, "c", "Text.", ("one", "two")), Counts(ours, "d", "Text.")
    spreads = Spreads(ours, "h_seconds", "Text.", ("one",), bounds=BOUNDS)
    plain_spread = Spreads(ours, "i_seconds", "Text.", bounds=BOUNDS)
    counter = Counter("c", "Text.", ("one", "two"), registry=theirs)
    plain_counter = Counter("d", "Text.", registry=theirs)
    histogram = Histogram("h_seconds", "Text.", ("one",), buckets=BOUNDS, registry=theirs)
    plain_histogram = Histogram("i_seconds", "Text.", buckets=BOUNDS, registry=theirs)
    for one, two, value in taken:
        counts.of(one, two).inc(value)
        counter.labels(one, two).inc(value)
        plain_counts.of().inc()
        plain_counter.inc()
        spreads.of(one).observe(value)
        histogram.labels(one).observe(value)
        plain_spread.of().observe(value)
        plain_histogram.observe(value)
    assert page(ours) == page(theirs)
