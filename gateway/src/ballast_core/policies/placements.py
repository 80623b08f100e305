"""The shipped placements, each with its formula."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ballast_core.model import Request
from ballast_core.view import FloatArray, View


@dataclass(frozen=True, slots=True)
class RoundRobin:
    """Each candidate in its turn. cost_i = 0: the tie-break, least recently chosen, does the rest.

    Intent: distribution. Blind to load, to length and to hardware.
    """

    type: ClassVar[str] = "round-robin"

    def costs(self, view: View, request: Request) -> FloatArray:
        return np.zeros(len(view.endpoints))


@dataclass(frozen=True, slots=True)
class LeastRequests:
    """The fewest requests in flight, pending prefills included. cost_i = requests_i.

    Intent: balance by count. It compares raw counts, also across unlike hardware: a slow and a fast endpoint with
    as many requests cost the same. Example: requests (3, 1, 2) -> the second.
    """

    type: ClassVar[str] = "least-requests"

    def costs(self, view: View, request: Request) -> FloatArray:
        return view.requests.astype(np.float64)
