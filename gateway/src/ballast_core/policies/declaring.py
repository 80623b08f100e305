"""How a policy declares its parameters: fields of a frozen dataclass, each with an explanation for users."""

from __future__ import annotations

from dataclasses import field
from typing import Any, TypeVar, cast

_T = TypeVar("_T", bound=bool | int | float | str)


def parameter(default: _T, explanation: str) -> _T:
    """A field of a policy, with the explanation that manifests and reference pages show."""
    made: Any = field(default=default, metadata=explained(explanation))
    return cast("_T", made)


def explained(explanation: str) -> dict[str, str]:
    """The metadata of a field without a default, such as another policy: `field(metadata=explained("..."))`."""
    return {"explanation": explanation}


def check_within(parameters: object, **bounds: tuple[float, float]) -> None:
    """Check fields against their inclusive bounds. Raises ValueError naming the first field outside.

    Upper bounds are far above what any fleet needs: they keep a typing error from taking all memory or time.
    """
    for name, (least, most) in bounds.items():
        value = getattr(parameters, name)
        if not least <= value <= most:
            raise ValueError(f"{name}: must be from {least} to {most}, not {value!r}")
