"""Ids for requests that bring none: 128 random bits each, as 32 hexadecimal digits."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Final

_BYTES: Final = 16
_AT_ONCE: Final = 256


def request_ids() -> Callable[[], str]:
    """Gives a new one at each call. Bits are asked of the system for many at once: a question takes as long as a tenth
    of a decision."""
    return _drawn().__next__


def _drawn() -> Iterator[str]:
    while True:
        drawn = os.urandom(_AT_ONCE * _BYTES).hex()
        yield from (drawn[at : at + 2 * _BYTES] for at in range(0, len(drawn), 2 * _BYTES))
