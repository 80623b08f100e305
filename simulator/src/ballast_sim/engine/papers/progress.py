"""How far running requests have come: what orders and budgets read besides the scheduler's state.

A coarse engine books requests in steady decode together, so their own counters lag; its cohort implements the same
protocol.
"""

import math
from typing import NamedTuple, Protocol

from ballast_sim.engine.requests import RequestState


class BookedDecodes(NamedTuple):
    """Decodes of the next step that are scheduled together: how many, their contexts, their least time between tokens.

    `least_tbt_slo_s` is infinite where there are none, or where the engine has no `tbt_slo_s`.
    """

    decodes: int
    context_tokens: int
    least_tbt_slo_s: float


NONE_BOOKED = BookedDecodes(0, 0, math.inf)


class Progress(Protocol):
    """Progress of running requests, tokens in flight included."""

    def reach(self, request: RequestState) -> int:
        """The most tokens of a request that were ever computed."""
        ...

    def is_ending(self, request: RequestState) -> bool:
        """Whether the request's last token is in flight."""
        ...

    def settle(self) -> None:
        """Bring the counters of all requests up to date; called before requests are displaced."""
        ...

    def booked_decodes(self) -> BookedDecodes:
        """Decodes of the next step that are scheduled together, ahead of the rest of the running list."""
        ...


class RequestProgress:
    """Each request's counters are up to date: nothing is booked together."""

    __slots__ = ()

    def reach(self, request: RequestState) -> int:
        """See `Progress.reach`."""
        return max(request.reach, request.computed)

    def is_ending(self, request: RequestState) -> bool:
        """See `Progress.is_ending`."""
        placeholders = request.placeholders
        return placeholders > 0 and request.computed + 2 - placeholders >= request.length_limit

    def settle(self) -> None:
        """Nothing to do."""

    def booked_decodes(self) -> BookedDecodes:
        """None."""
        return NONE_BOOKED
