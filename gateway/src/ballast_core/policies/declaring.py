"""How a policy declares its parameters: fields of a frozen dataclass, each with the sentence that users read."""

from __future__ import annotations

from dataclasses import field
from typing import Any, TypeVar, cast

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
