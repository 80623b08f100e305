"""What a partition policy is: it cuts one request's tokens into segments for several endpoints (Libra section 3.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from ballast_core.beliefs.kinds import Belief
from ballast_core.decision import PlacementTrace
from ballast_core.model import Endpoint
from ballast_core.view import View

if TYPE_CHECKING:
    from ballast_core.partition.book import Book


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of one request's tokens that one endpoint computes: a micro-request in Libra's words.

    Positions count prompt and output tokens from the first prompt token. A cut at P is plain disaggregation, one below
    P leaves the rest of the prompt to the next segment, one above P moves the decode at a planned token.
    """

    endpoint: Endpoint
    end_tokens: int | None
    """Position before which it hands over; None: it goes on to the end of the request."""
    tbt_slo_s: float | None = None
    """Time between tokens that suffices for this stretch (section 4.4: the think part); None: the endpoint's own."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How one request is cut. One segment: it stays whole."""

    segments: tuple[Segment, ...]
    length_tokens: int = 0
    """Prompt and output as foreseen; 0 if nobody asked."""
    probes: int = 0
    """Predictions that it took."""
    gap_s: float = 0.0
    """Difference of the endpoints' predicted completion times under this plan."""
    traces: tuple[PlacementTrace, ...] = ()
    """Why these endpoints."""


class Partition(Protocol):
    """Chooses endpoints and cuts of a request that may run on several flexible endpoints."""

    type: ClassVar[str]

    @property
    def needs(self) -> Belief:
        """The beliefs that it reads."""
        ...

    def plan(self, view: View, book: Book) -> Plan | None:
        """The segments of `view.request`, in order, over endpoints of the view; None if it shows none. Pure.

        Neighbouring segments have different endpoints, ends rise and lie within the request, the last one is None.
        `book`: the micro-requests that are planned and not done.
        """
        ...
