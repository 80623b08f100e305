"""The expected load of every candidate at coming times: who still runs by then, and with how many tokens.

A request that has generated l tokens at `now` has, at rate v, l + v t at now + t, and lives with the probability
S(l + v t) / S(l); a pending one begins at its expected hand-off, until when it counts for nothing. Sums over requests
are expectations; the variance is that of independent lives.

Requests are gathered first, by candidate and by age (or by the time until their hand-off), in steps of some nine
percent: then the survival curves are asked for some hundred ages and not for every request, and the rest is a matrix
product. What that costs in accuracy is a few percent of the load at most where the curve has a cliff.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ballast_core.arrays import FloatArray, IntArray
from ballast_core.beliefs.survival_tables import SurvivalTables
from ballast_core.flights import NO_LIMIT, Flights
from ballast_core.view import View

_STEPS_PER_DOUBLING = 8
_FIRST_AGE = 64.0
_OLDEST = 65_536
_FIRST_DELAY_S = 0.1
_DELAYS = 64
"""Steps of the time to hand-off: up to 26 s, all later ones together."""
_PIECE = 200_000
"""Multiplications of a matrix product: OpenBLAS uses threads from 262,144 on."""


def _bucket(value: FloatArray, first: float) -> FloatArray:
    return np.asarray(np.floor(_STEPS_PER_DOUBLING * np.log2(1.0 + value / first)), np.float64)


def _middle(bucket: FloatArray, first: float) -> FloatArray:
    return np.asarray(first * (2.0 ** ((bucket + 0.5) / _STEPS_PER_DOUBLING) - 1.0), np.float64)


_BUCKET_OF_AGE: IntArray = _bucket(np.arange(_OLDEST + 1.0), _FIRST_AGE).astype(np.int64)
_AGES: int = int(_BUCKET_OF_AGE[-1]) + 1
_ROWS: int = _AGES + _DELAYS
_AGE_OF_ROW: FloatArray = np.append(_middle(np.arange(float(_AGES)), _FIRST_AGE), np.zeros(_DELAYS))
_AGE_OF_ROW[0] = 0.0  # most of the youngest have not begun
_DELAY_OF_ROW: FloatArray = np.append(np.zeros(_AGES), _middle(np.arange(float(_DELAYS)), _FIRST_DELAY_S))
_DELAY_OF_ROW[_AGES] = 0.0  # expected by now


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
    count, times = len(view.slots), len(delays_s)
    requests, tokens, variance = (np.zeros((count, times)) for _ in range(3))
    flights = view.flights
    if flights.count:
        place = view.place_of.take(flights.slot)
        rows = _rows(view, flights)
        held = (flights.prompt_tokens + flights.generated_tokens).astype(np.float64)
        tables = view.beliefs.lengths.tables(view.now_s)
        elapsed_s = np.maximum(delays_s[None, :] - _DELAY_OF_ROW[:, None], 0.0)
        grown = elapsed_s * tokens_per_s
        started = delays_s[None, :] >= _DELAY_OF_ROW[:, None]
        for chosen, class_slot, cap in _groups(flights):
            counts, sums, squares = _gather(place[chosen], rows[chosen], held[chosen], count)
            alive = np.where(started, _alive(tables, grown, class_slot, cap), 0.0)
            ended = alive * (1.0 - alive)
            # Sums of a request's tokens by then, m + g, and of their squares, m^2 + 2 m g + g^2.
            ended_grown = ended * grown
            by_count = _product(counts, np.hstack([alive, alive * grown, ended_grown * grown]))
            by_sum = _product(sums, np.hstack([alive, 2.0 * ended_grown]))
            requests += by_count[:, :times]
            tokens += by_sum[:, :times] + by_count[:, times : 2 * times]
            variance += _product(squares, ended) + by_sum[:, times:] + by_count[:, 2 * times :]
    return Projection(requests, tokens, variance)


def _rows(view: View, flights: Flights) -> IntArray:
    """The row of each request: by its age, or by the time to its hand-off."""
    rows = _BUCKET_OF_AGE.take(flights.generated_tokens, mode="clip")
    pending = np.flatnonzero(~flights.decoding)
    if len(pending):
        late_s = np.maximum(flights.handoff_at_s[pending] - view.now_s, 0.0)
        rows[pending] = _AGES + np.minimum(_bucket(late_s, _FIRST_DELAY_S), _DELAYS - 1).astype(np.int64)
    return rows


def _groups(flights: Flights) -> Iterator[tuple[slice | IntArray, int, float | None]]:
    """Requests of one class and about one limit (to nine percent) share a curve."""
    classes, limits = flights.class_slot, flights.limit_tokens
    if not classes.any() and int(limits.min()) == NO_LIMIT:
        yield slice(None), 0, None
        return
    limit_step = _BUCKET_OF_AGE.take(limits, mode="clip")
    limit_step[limits == NO_LIMIT] = _AGES
    keys, inverse = np.unique(classes * (_AGES + 1) + limit_step, return_inverse=True)
    for number, key in enumerate(keys):
        chosen: IntArray = np.flatnonzero(inverse == number)
        class_slot, step = divmod(int(key), _AGES + 1)
        yield chosen, class_slot, None if step == _AGES else float(limits[chosen].mean())


def _gather(place: IntArray, rows: IntArray, held: FloatArray, count: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Number, tokens and squared tokens by candidate and row; requests on no candidate are left out."""
    cells, size = place * _ROWS + rows, (count + 1) * _ROWS
    sums = (
        np.bincount(cells, minlength=size),
        np.bincount(cells, weights=held, minlength=size),
        np.bincount(cells, weights=held * held, minlength=size),
    )
    counts, tokens, squares = (each[: count * _ROWS].reshape(count, _ROWS).astype(np.float64) for each in sums)
    return counts, tokens, squares


def _product(left: FloatArray, right: FloatArray) -> FloatArray:
    """left @ right in pieces that a BLAS computes on the calling thread.

    Its threads would have to wake up for a tenth of a millisecond of work: on a busy machine that takes a hundred.
    """
    if left.size * right.shape[1] <= _PIECE:
        return np.asarray(left @ right, np.float64)
    rows = max(_PIECE // right.size, 1)
    return np.vstack([left[start : start + rows] @ right for start in range(0, len(left), rows)])


def _alive(tables: SurvivalTables, grown: FloatArray, class_slot: int, cap: float | None) -> FloatArray:
    ages = np.broadcast_to(_AGE_OF_ROW[:, None], grown.shape)
    return tables.conditional(ages, ages + grown, class_slot, cap)
