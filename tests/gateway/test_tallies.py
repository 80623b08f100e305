"""Counts of the event loop say at an export what prometheus_client's own would say."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from ballast_api.metric_making import counter, histogram
from ballast_gateway.tallies import Spreads, Tallies

BOUNDS = (0.005, 0.01, 0.5, 1, 40)
COUNTER, PLAIN_COUNTER = "ballast_gateway_dispatches_total", "ballast_gateway_handoffs_total"
HISTOGRAM = "ballast_gateway_time_to_first_token_seconds"
PLAIN_HISTOGRAM = "ballast_gateway_decision_seconds"
VALUES = st.sampled_from([*BOUNDS, 0.0, 0.004, 41.0, 1e300, math.inf]) | st.floats(0, 100)


def exported(registry: CollectorRegistry) -> str:
    """The text, without the times at which series began, which only prometheus_client's own have."""
    lines = generate_latest(registry).decode().splitlines()
    return "\n".join(line for line in lines if not re.search(r"_created\b", line))


@given(st.lists(st.tuples(st.sampled_from("ab"), VALUES), max_size=30))
def test_the_export_is_that_of_the_library(seen: list[tuple[str, float]]) -> None:
    """All lines alike, also before anything is counted."""
    ours, library = CollectorRegistry(), CollectorRegistry()
    counts, spread = Tallies(COUNTER, ours), Spreads(HISTOGRAM, ours, BOUNDS)
    plain, plain_spread = Tallies(PLAIN_COUNTER, ours), Spreads(PLAIN_HISTOGRAM, ours, BOUNDS)
    their_counts, their_spread = counter(COUNTER, library), histogram(HISTOGRAM, library, BOUNDS)
    their_plain, their_plain_spread = counter(PLAIN_COUNTER, library), histogram(PLAIN_HISTOGRAM, library, BOUNDS)
    for name, value in seen:
        counts.labels("decode", "decode", name).inc()
        their_counts.labels("decode", "decode", name).inc()
        spread.labels(name).observe(value)
        their_spread.labels(name).observe(value)
        plain.inc(2)
        their_plain.inc(2)
        plain_spread.observe(value)
        their_plain_spread.observe(value)
    assert exported(ours) == exported(library)


def test_what_is_not_declared_is_refused() -> None:
    """Names, kinds and the number of labels, as early as with the library."""
    registry = CollectorRegistry()
    with pytest.raises(KeyError):
        Tallies("ballast_gateway_unknown_total", registry)
    with pytest.raises(ValueError, match="declared as a histogram"):
        Tallies(HISTOGRAM, registry)
    with pytest.raises(ValueError, match="declared as a counter"):
        Spreads(COUNTER, registry, BOUNDS)
    with pytest.raises(ValueError, match="has the labels"):
        Tallies(COUNTER, registry).labels("decode")
