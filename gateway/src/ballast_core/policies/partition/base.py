"""What partition policies share: which endpoints they weigh, how long a request will be, and how a plan is made."""

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
    """Places of so many endpoints, lowest loads first; ties to the least recently chosen, then to the smallest id."""
    order: IntArray = np.lexsort((book.turns(view.slots), loads))
    return order[:number]


def trace(policy: str, view: View, loads: FloatArray, chosen: int) -> PlacementTrace:
    """Why an endpoint: the loads that were compared."""
    return PlacementTrace(Stage.DECODE, policy, view.endpoints[chosen].id, view.endpoints, loads)


def foreseen_tokens(view: View, margin_tokens: int) -> int:
    """Output tokens that the request will have, and the margin, within its limit; 1 at least.

    A predictor's word where the request carries one, else what the survival curve expects.
    """
    request = view.request
    limit = math.inf if request.max_output_tokens is None else float(request.max_output_tokens)
    expected = request.expected_output_tokens
    if expected is None:
        class_slot = view.beliefs.lengths.known_slot(request.traffic_class or None)
        tables = view.beliefs.lengths.tables(view.now_s)
        expected = float(tables.expected_remaining(np.zeros(1), class_slot, np.array([limit]))[0])
    return max(math.ceil(min(expected + margin_tokens, limit, NO_LIMIT)), 1)
