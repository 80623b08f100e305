"""What a placement policy is: a frozen dataclass whose fields are its parameters, with one pure method."""

from __future__ import annotations

from typing import ClassVar, Protocol

from ballast_core.model import Request
from ballast_core.view import FloatArray, View


class Placement(Protocol):
    """Chooses an endpoint for one stage of a request.

    Contract, tested for every registered policy: the same view and request give the same costs, and reordering the
    candidates reorders the costs alike. The Director breaks ties: least recently chosen first, then endpoint id.
    """

    type: ClassVar[str]

    def costs(self, view: View, request: Request) -> FloatArray:
        """One cost per candidate, shape (len(view.endpoints),); lower wins, inf = ineligible."""
        ...
