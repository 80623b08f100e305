"""Placements by turns, at random or by the number of requests, each with its formula."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import ClassVar

import numpy as np

from ballast_core.arrays import FloatArray, HashArray
from ballast_core.beliefs.kinds import Belief
from ballast_core.model import Request, RequestId
from ballast_core.state.view import View


@dataclass(frozen=True, slots=True)
class RoundRobin:
    """Each candidate in turn. cost_i = 0: the tie-break, least recently chosen, decides.

    Intent: even distribution. It ignores load, length and hardware. Example: requests (3, 1, 2) -> costs (0, 0, 0), the
    least recently chosen.
    """

    type: ClassVar[str] = "round-robin"
    needs: ClassVar[Belief] = Belief.NONE

    def costs(self, view: View, request: Request) -> FloatArray:
        return np.zeros(len(view.endpoints))


@dataclass(frozen=True, slots=True)
class Random:
    """Any candidate. cost_i = hash(request id, endpoint id), uniform on [0, 1): one request always draws the same.

    Intent: a baseline without state, which gateways need not share. It ignores load and hardware.
    Example: hashes (0.71, 0.12, 0.45) -> the second, whatever runs there.
    """

    type: ClassVar[str] = "random"
    needs: ClassVar[Belief] = Belief.NONE

    def costs(self, view: View, request: Request) -> FloatArray:
        return lots(request.id, view.id_hashes)


@dataclass(frozen=True, slots=True)
class PowerOfTwo:
    """The better of two random candidates: two are drawn as by `random`, cost_i = requests_i, the others inf.

    Intent: nearly the balance of least-requests, without herding on stale loads (Mitzenmacher 2001). It compares raw
    counts, also across unlike hardware. Example: requests (9, 1, 4), the first and the third drawn -> the third.
    """

    type: ClassVar[str] = "power-of-two"
    needs: ClassVar[Belief] = Belief.NONE

    def costs(self, view: View, request: Request) -> FloatArray:
        drawn = np.argsort(lots(request.id, view.id_hashes), kind="stable")[:2]
        costs = np.full(len(view.endpoints), np.inf)
        costs[drawn] = view.requests[drawn]
        return costs


@dataclass(frozen=True, slots=True)
class LeastRequests:
    """The fewest requests in flight, pending prefills included. cost_i = requests_i.

    Intent: balance by count. It compares raw counts, also across unlike hardware: a slow and a fast endpoint with
    equally many requests cost the same. Example: requests (3, 1, 2) -> the second.
    """

    type: ClassVar[str] = "least-requests"
    needs: ClassVar[Belief] = Belief.NONE

    def costs(self, view: View, request: Request) -> FloatArray:
        return view.requests.astype(np.float64)


def lots(request_id: RequestId, id_hashes: HashArray) -> FloatArray:
    """A random number on [0, 1) for each endpoint by hashing (splitmix64's finaliser), the same on every machine."""
    seed = np.uint64(int.from_bytes(blake2b(request_id.encode(), digest_size=8).digest(), "little"))
    mixed = id_hashes ^ seed
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53
