"""What a rescheduling policy is: once per interval it may choose running decodes to migrate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from ballast_core.arrays import BoolArray, FloatArray, IntArray
from ballast_core.beliefs.kinds import Belief


@dataclass(frozen=True, slots=True, eq=False)
class Decodes:
    """The running and pending decodes of all ready and draining endpoints. Shapes: (requests,) unless stated.

    A pending decode counts on the endpoint where it will decode, a migrating one on its target.
    """

    endpoint: IntArray
    """Index of its decode endpoint in the arrays of shape (endpoints,)."""
    tokens: FloatArray
    """Tokens that it holds now: prompt and output so far."""
    remaining_tokens: FloatArray
    """Output tokens to come, as predicted; 0 or more."""
    may_move: BoolArray
    """False if it is pending, is migrating or has just migrated, or if its state cannot be carried over."""
    takes: BoolArray
    """Whether the endpoint takes new requests; False if it drains. Shape (endpoints,)."""
    tokens_per_s: FloatArray
    """Output tokens per second of one request, shape (endpoints,)."""
    kv_tokens: FloatArray
    """Size of the endpoint's KV cache in tokens, shape (endpoints,)."""
    other_tokens: FloatArray
    """KV tokens that foreign requests hold there, shape (endpoints,)."""
    migration_s: FloatArray
    """Seconds to copy one token's KV between endpoints; inf: no link. Rows are sources, columns are targets.

    Shape (endpoints, endpoints).
    """
    migration_setup_s: float = 0.0
    """Seconds before the first byte of a copy."""
    moves_under_way: int = 0
    reported_tokens: FloatArray | None = None
    """KV tokens in use by each endpoint's own last report, 0 without one; shape (endpoints,). None: nobody asked."""
    free_decodes: IntArray | None = None
    """How many more decodes admission lets each endpoint take, shape (endpoints,); None: any number."""
    serves: BoolArray | None = None
    """Whether an endpoint serves a request's model, shape (requests, endpoints); None: all do, or nobody asked."""


@dataclass(frozen=True, slots=True)
class Move:
    """The migration of one running decode."""

    request: int
    """Index of the request in `Decodes`."""
    target: int
    """Index of the target endpoint in `Decodes`."""
    gain: float
    """By how much the policy's objective falls: above 0, unless the source drains."""


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """A policy's decision, and what it is based on."""

    moves: tuple[Move, ...]
    """In the order in which they were chosen, each on top of those before it; empty: no move."""
    loads: FloatArray
    """Load of each endpoint before any move, in the policy's own measure; shape (endpoints,)."""
    objective: float
    """The policy's objective before any move."""
    reason: str
    """Why there is no further move, for people."""


class Rescheduling(Protocol):
    """Chooses the decodes that should run on another endpoint."""

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
        """Seconds for which a request stays after a move, or after a failed one."""
        ...

    @property
    def predictor(self) -> str:
        """The predictor of remaining lengths: a key of `ballast_core.policies.remaining_lengths.PREDICTORS`."""
        ...

    def decide(self, decodes: Decodes) -> Round:
        """The moves of one round. Pure."""
        ...
