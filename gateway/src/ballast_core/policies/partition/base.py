"""What partition policies share: the choice of endpoints, the expected length, and traces."""

from __future__ import annotations

import math

import numpy as np

from ballast_core.arrays import FloatArray, IntArray
from ballast_core.model import Stage
from ballast_core.model.traces import PlacementTrace
from ballast_core.state.book import Book
from ballast_core.state.flights import NO_LIMIT
from ballast_core.state.view import View


def least_loaded(view: View, book: Book, loads: FloatArray, number: int) -> IntArray:
    """Indices of `number` endpoints, lowest load first; ties go to the least recently chosen, then the smallest id."""
    order: IntArray = np.lexsort((book.turns(view.slots), loads))
    return order[:number]


def trace(policy: str, view: View, loads: FloatArray, chosen: int) -> PlacementTrace:
    """The trace of one chosen endpoint: the loads that were compared."""
    return PlacementTrace(Stage.DECODE, policy, view.endpoints[chosen].id, view.endpoints, loads)


def expected_output_tokens(view: View, margin_tokens: int) -> int:
    """Expected output tokens of the request plus the margin, within its limit; at least 1.

    This is the request's own prediction if it has one, otherwise the expectation of the survival curve.
    """
    request = view.request
    limit = math.inf if request.max_output_tokens is None else float(request.max_output_tokens)
    expected = request.expected_output_tokens
    if expected is None:
        class_slot = view.beliefs.lengths.known_slot(request.traffic_class or None)
        tables = view.beliefs.lengths.tables(view.now_s)
        expected = float(tables.expected_remaining(np.zeros(1), class_slot, np.array([limit]))[0])
    return max(math.ceil(min(expected + margin_tokens, limit, NO_LIMIT)), 1)
