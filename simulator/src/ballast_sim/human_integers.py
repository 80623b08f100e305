"""Whole numbers as vLLM's command line takes them."""

from __future__ import annotations

import re
from typing import Final

_SUFFIXED: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)([kmgtKMGT])")
_POWERS: Final = {"k": 1, "m": 2, "g": 3, "t": 4}


def human_integer(text: str) -> int:
    """8192, 8k or 25.6k (thousands), 8K (1,024s), and m, g, t likewise. Raises `ValueError`."""
    match = _SUFFIXED.fullmatch(text.strip())
    if match is None:
        return int(text)
    number, suffix = match.groups()
    power = _POWERS[suffix.lower()]
    try:
        return int(float(number) * 1000**power) if suffix.islower() else int(number) * 1024**power
    except OverflowError:
        raise ValueError(f"{text!r} is too large") from None
