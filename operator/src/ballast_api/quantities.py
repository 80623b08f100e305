"""Kubernetes' quantities, such as `4Gi` and `500m`."""

from __future__ import annotations

import re
from typing import Final

QUANTITY: Final = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
    r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)
"""As in the schemas of Kubernetes' own tools."""
_QUANTITY: Final = re.compile(QUANTITY)


def is_quantity(value: object) -> bool:
    """Whether the API server takes it for one: a number, or a text of that shape."""
    if isinstance(value, str):
        return _QUANTITY.match(value) is not None
    return isinstance(value, (int, float)) and not isinstance(value, bool)
