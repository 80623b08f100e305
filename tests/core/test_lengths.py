"""Predictors of remaining length: each against what it should say, one request at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast_core.beliefs.survival_tables import Buckets, SurvivalTables
from ballast_core.model import Request, RequestId
from ballast_core.policies.remaining_lengths import PREDICTORS, Hinted, Survival
from ballast_core.state.flights import NO_LIMIT, Flights
from ballast_core.state.ledger import Ledger

TABLES = SurvivalTables(Buckets(step_tokens=10, count=20), np.exp(-np.arange(21) * 10 / 80.0))

requests = st.lists(
    st.tuples(
        st.integers(0, 300),
        st.one_of(st.none(), st.integers(1, 400)),
        st.one_of(st.none(), st.floats(0.0, 500.0)),
    ),
    min_size=1,
    max_size=8,
)


def flights_of(rows: list[tuple[int, int | None, float | None]]) -> Flights:
    """(tokens so far, limit, hint of all tokens)"""
    flights = Flights()
    for generated, limit, hint in rows:
        row = flights.add(
            slot=0, prompt_tokens=10, limit_tokens=limit, handoff_at_s=0.0, now_s=0.0, expected_tokens=hint
        )
        flights.progress(row, generated, 1.0)
    return flights


@given(requests)
def test_survival_is_the_expectation_of_each(rows: list[tuple[int, int | None, float | None]]) -> None:
    """E[min(L, limit) - l | L > l], asked for one by one."""
    flights = flights_of(rows)
    told = Survival().remaining_tokens(flights, np.arange(len(rows)), TABLES)
    for row, (generated, limit, _) in enumerate(rows):
        alone = TABLES.expected_remaining(np.array([float(generated)]), 0, None if limit is None else float(limit))
        assert told[row] == pytest.approx(alone[0])


@given(requests)
def test_hints_count_down_until_they_are_used_up(rows: list[tuple[int, int | None, float | None]]) -> None:
    """Then, and where there are none, survival; never beyond the request's own limit."""
    flights = flights_of(rows)
    told = Hinted().remaining_tokens(flights, np.arange(len(rows)), TABLES)
    otherwise = Survival().remaining_tokens(flights, np.arange(len(rows)), TABLES)
    for row, (generated, limit, hint) in enumerate(rows):
        left = None if hint is None else min(hint, NO_LIMIT if limit is None else limit) - generated
        expected = left if left is not None and left > 0 else otherwise[row]
        assert told[row] == pytest.approx(expected)
        assert told[row] >= 0


def test_the_last_word_of_a_predictor_counts() -> None:
    """A hint of the request, then what a predictor says after 50 tokens; nonsense is as good as none."""
    ledger = Ledger(1)
    entry = ledger.open(Request(RequestId("r"), 10, expected_output_tokens=100.0), 0.0)
    ledger.assign(entry, None, 0, 0.0)
    ledger.progressed(entry, 50, 1.0)
    hinted, row = PREDICTORS["hinted"](), np.array([entry.row])
    assert hinted.remaining_tokens(ledger.flights, row, TABLES) == pytest.approx(50.0)
    ledger.hint(entry, 400.0)
    ledger.progressed(entry, 60, 2.0)
    assert hinted.remaining_tokens(ledger.flights, row, TABLES) == pytest.approx(390.0)
    for nonsense in (-1.0, float("nan"), float("inf")):
        ledger.hint(entry, nonsense)
        assert hinted.remaining_tokens(ledger.flights, row, TABLES) == Survival().remaining_tokens(
            ledger.flights, row, TABLES
        )
