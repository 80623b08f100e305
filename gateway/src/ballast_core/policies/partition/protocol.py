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
    """Prompt and expected output in tokens; 0 if not predicted."""
    probes: int = 0
    """Number of predictions that the search made."""
    gap_s: float = 0.0
    """Difference of the endpoints' predicted completion times under this plan."""
    traces: tuple[PlacementTrace, ...] = ()
    """How the endpoints were chosen."""


class Planner(Protocol):
    """Plans one request after another, and may keep results in between."""

    def plan(self, view: View, book: Book) -> Plan | None:
        """The segments of `view.request`, in order, over endpoints of the view; None if the view has no endpoint.

        Neighbouring segments have different endpoints; ends rise and are within the request; the last end is None.
        `book`: the micro-requests that are planned and not done. The plan depends only on view and book: what a planner
        keeps only saves time.
        """
        ...


class Partition(Protocol):
    """Chooses the endpoints and the cuts of a request that may run on several flexible endpoints."""

    type: ClassVar[str]

    @property
    def needs(self) -> Belief:
        """The beliefs that it reads."""
        ...

    def planner(self) -> Planner:
        """A new planner with these parameters."""
        ...
