"""What a rescheduling policy is: once in an interval it may name running decodes to move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from ballast_core.arrays import BoolArray, FloatArray, IntArray
from ballast_core.beliefs.kinds import Belief


@dataclass(frozen=True, slots=True, eq=False)
class Decodes:
    """The running decodes of all endpoints that may give or take some. Shapes: (requests,) unless said."""

    endpoint: IntArray
    """Index of the endpoint that decodes it, into the arrays of shape (endpoints,)."""
    tokens: FloatArray
    """Tokens that it holds now: prompt and output so far."""
    remaining_tokens: FloatArray
    """Output tokens to come, as the predictor says; 0 or more."""
    may_move: BoolArray
    """Not those that are moving already, nor those whose state cannot be carried over."""
    tokens_per_s: FloatArray
    """Output tokens a second of one request, shape (endpoints,)."""
    kv_tokens: FloatArray
    """KV tokens that the endpoint may hold in all, shape (endpoints,)."""
    pending_tokens: FloatArray
    """KV tokens promised beside these: pending prefills and decodes on their way in, shape (endpoints,)."""
    migration_s: FloatArray
    """Seconds that the copy of one token's KV takes between endpoints: rows give, columns take; inf: no link.

    Shape (endpoints, endpoints).
    """
    migration_setup_s: float = 0.0
    """Seconds that a copy costs before its first byte."""
    moves_under_way: int = 0


@dataclass(frozen=True, slots=True)
class Move:
    """One running decode to another endpoint."""

    request: int
    """Index into `Decodes`."""
    target: int
    """Index of the endpoint."""
    gain: float
    """What the policy's objective falls by; above 0."""


class Rescheduling(Protocol):
    """Names the decodes that should run elsewhere."""

    type: ClassVar[str]

    @property
    def needs(self) -> Belief:
        """The beliefs that it reads."""
        ...

    @property
    def interval_s(self) -> float:
        """Seconds between two rounds."""
        ...

    def moves(self, decodes: Decodes) -> Sequence[Move]:
        """What to move now, the best first; empty: nothing is better than to leave all as it is. Pure."""
        ...
