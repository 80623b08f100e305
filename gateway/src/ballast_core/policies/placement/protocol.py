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
    candidates reorders the costs alike. The Director breaks ties: least recently chosen first, then endpoint id.
    """

    type: ClassVar[str]

    @property
    def needs(self) -> Belief:
        """The beliefs that it reads: the Director learns those, and hears of tokens only where some are asked for."""
        ...

    def costs(self, view: View, request: Request) -> FloatArray:
        """One cost per candidate, shape (len(view.endpoints),); lower wins, inf = ineligible."""
        ...
