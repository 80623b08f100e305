"""How many requests may be sent again: a budget for the whole fleet, and which refusals are worth asking another one.

A retry budget (as Finagle's, Linkerd's and Envoy's) bounds the load that failures add: retries in a sliding window are
at most a share of the requests in it and in flight, plus a small floor. Answers that have begun may overdraw it, by as
many as there are requests in flight: to break them off costs their clients more. Two are free: leaving an endpoint
that has been ejected, which is an evacuation, bounded by what ran there; and a retry after no connection came about,
which has cost no engine anything (gRPC's transparent retries).
"""

from __future__ import annotations

from typing import Final

from ballast_core.model import EndpointId

WINDOW_S: Final = 10.0
"""The share holds over the last one to two windows."""
FLOOR: Final = 10
"""Retries that are allowed in any case."""
CREDIT_S: Final = 10.0
"""For how long an agreement speaks for an endpoint."""
_MOST_CREDIT: Final = 9


class RetryBudget:
    """Counts requests and retries. Times are seconds on the Director's clock."""

    def __init__(self, ratio: float) -> None:
        self.ratio = ratio
        """Retries as a share of the requests."""
        self._turns_s = 0.0
        self._requests = self._requests_before = 0
        self._retries = self._retries_before = 0

    def arrived(self, now_s: float) -> None:
        """A request has come."""
        if now_s >= self._turns_s:
            self._turn(now_s)
        self._requests += 1

    def left(self, in_flight: int, now_s: float) -> int:
        """How many retries are allowed at the moment."""
        if now_s >= self._turns_s:
            self._turn(now_s)
        allowed = FLOOR + int(self.ratio * (self._requests + self._requests_before + in_flight))
        return allowed - self._retries - self._retries_before

    def spend(self) -> None:
        """A retry is made."""
        self._retries += 1

    def _turn(self, now_s: float) -> None:
        fresh = now_s < self._turns_s + WINDOW_S
        self._requests_before, self._requests = self._requests if fresh else 0, 0
        self._retries_before, self._retries = self._retries if fresh else 0, 0
        self._turns_s = now_s + WINDOW_S


class Credit:
    """Which endpoints' refusals are believed without a second opinion.

    Each time that another endpoint gives the same 4xx, the next few of them are believed: 1, then 3, 7 and 9, for ten
    seconds. A flood of bad requests then costs a tenth of them a second engine's work. The first contradiction ends it.
    """

    def __init__(self) -> None:
        self._given: dict[tuple[EndpointId, int], tuple[int, int, float]] = {}
        """By endpoint and status: refusals still to be believed, how many they were, until when."""

    def believes(self, endpoint_id: EndpointId, status: int, now_s: float) -> bool:
        """Whether this refusal needs no second opinion. Uses the credit up."""
        left, size, until_s = self._given.get((endpoint_id, status), (0, 0, 0.0))
        if left <= 0 or now_s >= until_s:
            return False
        self._given[endpoint_id, status] = left - 1, size, until_s
        return True

    def agreed(self, endpoint_id: EndpointId, status: int, now_s: float) -> None:
        """Another endpoint has given the same answer to the same request."""
        _, size, until_s = self._given.get((endpoint_id, status), (0, 0, 0.0))
        size = min(2 * size + 1, _MOST_CREDIT) if now_s < until_s else 1
        self._given[endpoint_id, status] = size, size, now_s + CREDIT_S

    def contradicted(self, endpoint_id: EndpointId, status: int) -> None:
        """Another endpoint has served what this one refused."""
        self._given.pop((endpoint_id, status), None)

    def forget(self, endpoint_id: EndpointId) -> None:
        """The endpoint is gone."""
        for key in [key for key in self._given if key[0] == endpoint_id]:
            del self._given[key]
