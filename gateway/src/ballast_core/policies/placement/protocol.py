"""What a placement policy is: a frozen dataclass whose fields are its parameters, with one pure method."""

from __future__ import annotations

from typing import ClassVar, Protocol

from ballast_core.arrays import FloatArray
from ballast_core.beliefs.kinds import Belief
from ballast_core.model import Request
from ballast_core.state.view import View


class Placement(Protocol):
    """Chooses an endpoint for one stage of a request.

    Contract, tested for every registered policy: the same view and request give the same costs, and reordering the
    candidates reorders the costs in the same way. The Director breaks ties: least recently chosen, then endpoint id.
    """

    type: ClassVar[str]

    @property
    def needs(self) -> Belief:
        """The beliefs that it reads. The Director learns only those; only some of them need reports of tokens."""
        ...

    def costs(self, view: View, request: Request) -> FloatArray:
        """One cost per candidate, shape (len(view.endpoints),): the lowest wins, inf means ineligible."""
        ...
