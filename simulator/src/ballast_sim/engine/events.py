"""What an engine reports to its driver. Times are seconds on the engine's clock."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class FinishReason(StrEnum):
    """Why a request ended; the values are vLLM's."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(slots=True)
class StepEnded:
    """A step's output has been processed: each request named in `tokens` got one more output token.

    A coarse engine leaves out requests in steady decode, and steps in which no other request gets a token.
    """

    at_s: float
    tokens: Sequence[str]
    scheduled_tokens: int


@dataclass(frozen=True, slots=True)
class TokensAdvanced:
    """A coarse engine's report of a request in steady decode: after `first` output tokens one more with each step.

    It comes late, when the steady decode of the request ends, but before any other event of the request.
    """

    at_s: float
    request_id: str
    first: int
    ends_s: Sequence[float]
    """When the engine's steps ended; more are appended as it goes on. Requests that decode together share it."""
    start: int
    """The step of the first of these tokens, as an index of `ends_s`."""
    stop: int
    """The step after that of the last one."""
    marked: int
    """Output tokens up to which `marks` has reported the request."""

    @property
    def times_s(self) -> Sequence[float]:
        """When each of the tokens came."""
        return self.ends_s[self.start : self.stop]


@dataclass(frozen=True, slots=True)
class PullStarted:
    """Blocks for `tokens` are allocated and their KV is being read from another engine.

    0 tokens: the prefix cache here holds all that was to be pulled, so the other engine can free its KV.
    """

    at_s: float
    request_id: str
    tokens: int
    first: int = 0
    """Leading tokens found in the prefix cache here, which are not pulled."""


@dataclass(frozen=True, slots=True)
class HandOff:
    """A finished request whose KV blocks stay until they are pulled or the lease ends.

    `prefill_ends`: when each step of its prefill ended, and how many tokens were computed by then.
    """

    blocks: tuple[int, ...]
    tokens: int
    expires_at_s: float
    prefill_ends: tuple[tuple[float, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStats:
    """A request's life. `scheduled_s` and `first_token_s` are None where it never got so far."""

    arrival_s: float
    scheduled_s: float | None
    first_token_s: float | None
    last_token_s: float | None
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    pulled_tokens: int
    preemptions: int
    forced_preemptions: int = 0
    """Preemptions for want of KV while the order allowed no eviction."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A request ended: its last event."""

    at_s: float
    request_id: str
    reason: FinishReason
    stats: RequestStats
    hand_off: HandOff | None = None


EngineEvent = StepEnded | TokensAdvanced | PullStarted | Finished
