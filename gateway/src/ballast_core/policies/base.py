"""What a placement policy is: a frozen dataclass whose fields are its parameters, with one pure method."""

from __future__ import annotations

from dataclasses import field
from typing import Any, ClassVar, Protocol, TypeVar, cast

from ballast_core.arrays import FloatArray
from ballast_core.beliefs.kinds import Belief
from ballast_core.model import Request
from ballast_core.view import View

_T = TypeVar("_T", bound=bool | int | float | str)


def parameter(default: _T, explanation: str) -> _T:
    """A field of a policy, with the sentence that manifests and reference pages show for it."""
    made: Any = field(default=default, metadata=explained(explanation))
    return cast("_T", made)


def explained(explanation: str) -> dict[str, str]:
    """The metadata of a field without default, such as another policy: `field(metadata=explained("..."))`."""
    return {"explanation": explanation}


def check_within(parameters: object, **bounds: tuple[float, float]) -> None:
    """Each of these fields is from the least to the most of its bounds. Raises ValueError naming the first that is not.

    The most keeps a slip of the hand from costing all memory or time; no fleet needs as much.
    """
    for name, (least, most) in bounds.items():
        value = getattr(parameters, name)
        if not least <= value <= most:
            raise ValueError(f"{name}: must be from {least} to {most}, not {value!r}")


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
