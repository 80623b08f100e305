"""What a partition policy is: it cuts one request's tokens into segments for several endpoints (Libra section 3.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from ballast_core.beliefs.kinds import Belief
from ballast_core.model.segments import Segment
from ballast_core.model.traces import PlacementTrace
from ballast_core.state.book import Book
from ballast_core.state.view import View


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


class Planner(Protocol):
    """Plans one request after the other, with what it keeps between two of them."""

    def plan(self, view: View, book: Book) -> Plan | None:
        """The segments of `view.request`, in order, over endpoints of the view; None if it shows none.

        Neighbouring segments have different endpoints, ends rise and lie within the request, the last one is None.
        `book`: the micro-requests that are planned and not done. The plan depends on both alone: what a planner keeps
        saves time only.
        """
        ...


class Partition(Protocol):
    """Chooses endpoints and cuts of a request that may run on several flexible endpoints."""

    type: ClassVar[str]

    @property
    def needs(self) -> Belief:
        """The beliefs that it reads."""
        ...

    def planner(self) -> Planner:
        """What plans by these parameters, with nothing kept yet."""
        ...
