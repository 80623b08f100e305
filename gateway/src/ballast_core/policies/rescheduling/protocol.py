"""What a rescheduling policy is: once in an interval it may name running decodes to move."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from ballast_core.arrays import BoolArray, FloatArray, IntArray
from ballast_core.beliefs.kinds import Belief


@dataclass(frozen=True, slots=True, eq=False)
class Decodes:
    """The decodes, running and to come, of all endpoints that may give or take some. Shapes: (requests,) unless said.

    One whose prefill is not over counts where it will decode; one that moves counts where it moves to.
    """

    endpoint: IntArray
    """Index of the endpoint that decodes it, into the arrays of shape (endpoints,)."""
    tokens: FloatArray
    """Tokens that it holds now: prompt and output so far."""
    remaining_tokens: FloatArray
    """Output tokens to come, as the predictor says; 0 or more."""
    may_move: BoolArray
    """Not pending ones, those that move or have just moved, nor those whose state cannot be carried over."""
    takes: BoolArray
    """Whether the endpoint takes new work: not one that drains, which all should leave. Shape (endpoints,)."""
    tokens_per_s: FloatArray
    """Output tokens a second of one request, shape (endpoints,)."""
    kv_tokens: FloatArray
    """KV tokens that the endpoint may hold in all, shape (endpoints,)."""
    other_tokens: FloatArray
    """KV tokens that it holds beside these requests: those of other gateways, shape (endpoints,)."""
    migration_s: FloatArray
    """Seconds that the copy of one token's KV takes between endpoints: rows give, columns take; inf: no link.

    Shape (endpoints, endpoints).
    """
    migration_setup_s: float = 0.0
    """Seconds that a copy costs before its first byte."""
    moves_under_way: int = 0
    free_places: IntArray | None = None
    """Decodes that admission lets each endpoint take yet, shape (endpoints,); None: any number."""


@dataclass(frozen=True, slots=True)
class Move:
    """One running decode to another endpoint."""

    request: int
    """Index into `Decodes`."""
    target: int
    """Index of the endpoint."""
    gain: float
    """What the policy's objective falls by: above 0, unless the source drains."""


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """What a policy found, and why."""

    moves: tuple[Move, ...]
    """In the order in which they were chosen, each with the ones before it done; empty: leave all as it is."""
    loads: FloatArray
    """Load of each endpoint before any move, as the policy weighs it; shape (endpoints,)."""
    objective: float
    """Before any move."""
    reason: str
    """Why there are no more moves, for people."""


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

    @property
    def min_stay_s(self) -> float:
        """A request that has moved, or could not, is not moved again for so long."""
        ...

    @property
    def predictor(self) -> str:
        """Who foretells remaining lengths: a name of `ballast_core.policies.remaining_lengths.PREDICTORS`."""
        ...

    def decide(self, decodes: Decodes) -> Round:
        """What to move now. Pure."""
        ...
