"""Arrivals of a workload, and the record of each request of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ballast_core.model import EndpointId
from ballast_sim.simulation.requests.splits import Split


class Arrival(Protocol):
    """A request of a workload."""

    @property
    def arrival_s(self) -> float:
        """Seconds since the start."""
        ...

    @property
    def input_tokens(self) -> int:
        """Tokens of the prompt."""
        ...

    @property
    def output_tokens(self) -> int:
        """Tokens that it will generate: known to the engine, hidden from the policies."""
        ...

    @property
    def hash_ids(self) -> Sequence[int] | None:
        """Ids of the prompt's prefix blocks, or None."""
        ...

    @property
    def block_size(self) -> int | None:
        """Tokens of one such block."""
        ...

    @property
    def max_tokens(self) -> int | None:
        """The client's limit on its output, or None."""
        ...

    @property
    def traffic_class(self) -> str:
        """What it is learned together with; empty if that is not known."""
        ...


@dataclass(slots=True)
class Record:
    """The outcome of one request. Times are seconds of the run; None where that did not happen."""

    index: int
    arrival_s: float
    input_tokens: int
    output_tokens: int
    max_tokens: int | None = None
    """As recorded."""
    gateway: int = 0
    arrived: bool = False
    prefill: EndpointId | None = None
    decode: EndpointId | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    generated_tokens: int = 0
    cached_tokens: int | None = None
    """Prompt tokens that the cache of its prefill endpoint held; None before its prefill has ended."""
    preemptions: int = 0
    rejected: str | None = None
    broken: bool = False
    """Whether its stream broke after the first token."""
    migrations: int = 0
    """How often it migrated to another endpoint."""
    dispatches: int = 0
    """How often it was dispatched; more than once after failed legs."""
    newest_token_s: float | None = None
    """When the client got its newest token, of those reported so far."""
    late_gaps: int = 0
    """Gaps between tokens above the run's objective; 0 without one."""
    split: Split | None = None
    """How its last dispatch cut it; None where it was not cut."""
    optimal: bool | None = None
    """Whether the decode endpoint assigned at arrival was the least loaded (KV in use) when prefill ended."""

    @property
    def completed(self) -> bool:
        """Whether every token came."""
        return self.last_token_s is not None

    @property
    def ttft_s(self) -> float | None:
        """Time to first token."""
        return None if self.first_token_s is None else self.first_token_s - self.arrival_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time per output token after the first; None for one token."""
        if self.last_token_s is None or self.first_token_s is None or self.generated_tokens < 2:
            return None
        return (self.last_token_s - self.first_token_s) / (self.generated_tokens - 1)

    @property
    def e2e_s(self) -> float | None:
        """Arrival to last token."""
        return None if self.last_token_s is None else self.last_token_s - self.arrival_s
