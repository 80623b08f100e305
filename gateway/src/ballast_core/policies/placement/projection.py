"""The expected load of every candidate at coming times: who still runs by then, and with how many tokens.

A request that has generated l tokens at `now` has, at rate v, l + v t at now + t, and lives with the probability
S(l + v t) / S(l); a pending one begins at its expected hand-off, until when it counts for nothing. Sums over requests
are expectations; the variance is that of independent lives.

Requests are gathered by candidate and by age (`AgeHistograms`), pending ones by the time until their hand-off, in steps
of some nine percent: then the survival curves are asked for some hundred ages and not for every request, and the rest
is a matrix product. What that costs in accuracy is a few percent of the load at most where the curve has a cliff.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ballast_core.arrays import FloatArray, IntArray
from ballast_core.beliefs.survival_tables import SurvivalTables
from ballast_core.state.age_histograms import (
    AGE_OF_BUCKET,
    AgeHistogram,
    by_group,
    class_of,
    is_limited,
    log_bucket,
    log_middle,
)
from ballast_core.state.view import View

_FIRST_DELAY_S = 0.1
_DELAYS = 64
"""Steps of the time to hand-off: up to 26 s, all later ones together."""
_PIECE = 200_000
"""Multiplications of a matrix product: OpenBLAS uses threads from 262,144 on."""
DELAY_OF_ROW: FloatArray = log_middle(np.arange(float(_DELAYS)), _FIRST_DELAY_S)
DELAY_OF_ROW[0] = 0.0  # expected by now


@dataclass(frozen=True, slots=True, eq=False)
class Projection:
    """Shapes: (candidates, times)."""

    requests: FloatArray
    """Expected number of requests that decode, or wait to."""
    tokens: FloatArray
    """Expected tokens of their prompts and outputs by then."""
    variance: FloatArray
    """Of the tokens, in tokens squared."""


def project(view: View, delays_s: FloatArray, tokens_per_s: float) -> Projection:
    """The candidates' load `delays_s` from now, shape (times,); all requests decode at one rate."""
    histograms = view.age_histograms
    histograms.update()
    tables = view.beliefs.lengths.tables(view.now_s)
    load = np.zeros((3, view.capacity, len(delays_s)))
    for histogram in histograms:
        _add_decoding(load[:, : histograms.slots], histogram, tables, delays_s * tokens_per_s)
    pending = np.flatnonzero(~view.flights.decoding)
    if len(pending):
        _add_pending(load, view, pending, delays_s, tokens_per_s)
    requests, tokens, variance = load.take(view.slots, axis=1)
    return Projection(requests, tokens, variance)


def _add_decoding(load: FloatArray, histogram: AgeHistogram, tables: SurvivalTables, grown: FloatArray) -> None:
    """Add those who decode now and have `grown` by so many tokens, shape (times,), if they still live."""
    used, times = histogram.ages, len(grown)
    ages = AGE_OF_BUCKET[:used, None]
    alive = tables.conditional(ages, ages + grown, class_of(histogram.group), histogram.cap_tokens)
    both = np.empty((used, 2 * times))
    both[:, :times] = alive
    both[:, times:] = alive * (1.0 - alive)
    by_count = _product(histogram.counts[:, :used], both)
    by_held = _product(histogram.held[:, :used], both)
    requests, tokens, variance = load
    # Sums of a request's tokens by then, m + g, and of their squares, m^2 + 2 m g + g^2.
    requests += by_count[:, :times]
    tokens += by_held[:, :times] + grown * by_count[:, :times]
    variance += _product(histogram.squares[:, :used], both[:, times:])
    variance += grown * (2.0 * by_held[:, times:] + grown * by_count[:, times:])


def _add_pending(load: FloatArray, view: View, pending: IntArray, delays_s: FloatArray, tokens_per_s: float) -> None:
    """Add those who begin at their hand-off, unless that is later."""
    flights, tables = view.flights, view.beliefs.lengths.tables(view.now_s)
    late_s = flights.handoff_at_s[pending]
    late_s -= view.now_s
    rows = log_bucket(np.maximum(late_s, 0.0, out=late_s), _FIRST_DELAY_S)
    np.minimum(rows, _DELAYS - 1, out=rows)
    used, slots = int(rows.max()) + 1, view.age_histograms.slots
    cells, held = flights.slot[pending], flights.prompt_tokens[pending].astype(np.float64)
    cells *= used
    cells += rows
    wait_s = DELAY_OF_ROW[:used, None]
    grown = np.maximum(delays_s - wait_s, 0.0) * tokens_per_s
    started = delays_s >= wait_s
    for group, chosen in by_group(view.age_histograms.groups[pending]):
        cap = float(flights.limit_tokens[pending[chosen]].mean()) if is_limited(group) else None
        alive = tables.conditional(np.zeros((1, 1)), grown, class_of(group), cap)
        alive *= started
        _add_rows(load[:, :slots], alive, grown, _gather(cells[chosen], held[chosen], slots, used))


def _add_rows(
    load: FloatArray, alive: FloatArray, grown: FloatArray, sums: tuple[FloatArray, FloatArray, FloatArray]
) -> None:
    """As for those who decode, but what they have grown by differs from row to row."""
    requests, tokens, variance = load
    counts, held, squares = sums
    times = alive.shape[1]
    ended = alive * (1.0 - alive)
    ended_grown = ended * grown
    by_count = _product(counts, np.hstack([alive, alive * grown, ended_grown * grown]))
    by_held = _product(held, np.hstack([alive, 2.0 * ended_grown]))
    requests += by_count[:, :times]
    tokens += by_held[:, :times] + by_count[:, times : 2 * times]
    variance += _product(squares, ended) + by_held[:, times:] + by_count[:, 2 * times :]


def _gather(cells: IntArray, held: FloatArray, slots: int, used: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Number, tokens and squared tokens by slot and row."""
    size = slots * used
    counts, tokens, squares = (
        np.asarray(np.bincount(cells, weights=weights, minlength=size), np.float64).reshape(slots, used)
        for weights in (np.ones_like(held), held, held * held)
    )
    return counts, tokens, squares


def _product(left: FloatArray, right: FloatArray) -> FloatArray:
    """left @ right in pieces that a BLAS computes on the calling thread.

    Its threads would have to wake up for a tenth of a millisecond of work: on a busy machine that takes a hundred.
    """
    if left.shape[0] * right.size <= _PIECE:
        return np.asarray(left @ right, np.float64)
    rows = max(_PIECE // right.size, 1)
    answer = np.empty((len(left), right.shape[1]))
    for start in range(0, len(left), rows):
        np.matmul(left[start : start + rows], right, out=answer[start : start + rows])
    return answer
