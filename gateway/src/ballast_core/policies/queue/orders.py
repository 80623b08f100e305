"""Orders by arrival, deadline, length and attained service: the baselines of UniBoost (its section 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ballast_core.beliefs.kinds import Belief
from ballast_core.policies.declaring import check_within, parameter
from ballast_core.policies.queue.protocol import FixedOrder, Service, Work

_LENGTHS_IN_SECONDS = Belief.PREFILL_TIMES | Belief.RATES
TOLD = "Whether engines that schedule by priority are told of it: vLLM's --scheduling-policy priority."
_UNKNOWN = "Output tokens of a request for which nobody foresees any, 1 to 10000000."
_UNKNOWN_BOUNDS = (1, 10_000_000)


@dataclass(frozen=True, slots=True)
class Fcfs(FixedOrder):
    """First come, first served: key = arrival (s). What stock vLLM does; nobody who runs gives way."""

    type: ClassVar[str] = "fcfs"
    needs: ClassVar[Belief] = Belief.NONE
    engine_priority: ClassVar[bool] = False
    needs_lengths: ClassVar[bool] = False
    preemption_margin: ClassVar[float] = 0.0

    def key(self, work: Work, service: Service) -> float:
        """Its arrival."""
        return work.arrived_s


@dataclass(frozen=True, slots=True)
class EarliestDeadline(FixedOrder):
    """The first to be due goes first: key = when its first token is due (s).

    One without an objective is due default_objective_s after its arrival, so it is overtaken by the more urgent ones
    that arrive in that time and by no others. Nobody who runs gives way.
    """

    type: ClassVar[str] = "edf"
    needs: ClassVar[Belief] = Belief.NONE
    needs_lengths: ClassVar[bool] = False
    preemption_margin: ClassVar[float] = 0.0
    default_objective_s: float = parameter(5.0, "TTFT objective of a request that has none, in seconds, 0 or more.")
    engine_priority: bool = parameter(False, TOLD)

    def __post_init__(self) -> None:
        if not 0 <= self.default_objective_s < float("inf"):
            raise ValueError(f"default_objective_s: must be finite and 0 or more, not {self.default_objective_s!r}")

    def key(self, work: Work, service: Service) -> float:
        """When it is due."""
        return work.arrived_s + self.default_objective_s if work.deadline_s is None else work.deadline_s


@dataclass(frozen=True, slots=True)
class ShortestPrompt(FixedOrder):
    """The shortest uncached prompt first: key = tokens of it. The rest of the work is not foreseen; may starve."""

    type: ClassVar[str] = "shortest-prompt"
    needs: ClassVar[Belief] = Belief.NONE
    needs_lengths: ClassVar[bool] = False
    preemption_margin: ClassVar[float] = 0.0
    engine_priority: bool = parameter(False, TOLD)

    def key(self, work: Work, service: Service) -> float:
        """Its uncached prompt."""
        return float(work.uncached_tokens)


@dataclass(frozen=True, slots=True)
class ShortestJob(FixedOrder):
    """The least work in all goes first: key = uncached prompt / v_p + expected output / v_d (s).

    v_p prompt tokens a second, v_d output tokens a second of one request. UniBoost's LTR+ has perfect lengths, here it
    has whatever fills them; its aging against starvation is left out, so a long one may starve. Nobody gives way.
    """

    type: ClassVar[str] = "sjf"
    needs: ClassVar[Belief] = _LENGTHS_IN_SECONDS
    needs_lengths: ClassVar[bool] = True
    preemption_margin: ClassVar[float] = 0.0
    unknown_output_tokens: int = parameter(256, _UNKNOWN)
    engine_priority: bool = parameter(False, TOLD)

    def __post_init__(self) -> None:
        check_within(self, unknown_output_tokens=_UNKNOWN_BOUNDS)

    def key(self, work: Work, service: Service) -> float:
        """All of its work."""
        return service.seconds(work.uncached_tokens, _output_tokens(work, self.unknown_output_tokens))


@dataclass(frozen=True, slots=True)
class ShortestRemaining(FixedOrder):
    """The least work left goes first: key = prompt left / v_p + expected output left / v_d (s).

    v_p prompt tokens a second, v_d output tokens a second of one request; one that has outlived its expectation has one
    token left. UniBoost's TRAIL+: who runs gives way until protected_after of its expected output exists.
    """

    type: ClassVar[str] = "srpt"
    needs: ClassVar[Belief] = _LENGTHS_IN_SECONDS
    needs_lengths: ClassVar[bool] = True
    preemption_margin: ClassVar[float] = 0.0
    unknown_output_tokens: int = parameter(256, _UNKNOWN)
    protected_after: float = parameter(0.6, "Share of the expected output after which nobody is evicted, 0 to 1.")
    engine_priority: bool = parameter(False, TOLD)

    def __post_init__(self) -> None:
        check_within(self, unknown_output_tokens=_UNKNOWN_BOUNDS)
        if not 0 <= self.protected_after <= 1:
            raise ValueError(f"protected_after: must be from 0 to 1, not {self.protected_after!r}")

    def key(self, work: Work, service: Service) -> float:
        """What is left of its work."""
        output = _output_tokens(work, self.unknown_output_tokens)
        prompt = max(work.uncached_tokens - work.prefilled_tokens, 0)
        return service.seconds(prompt, max(output - work.generated_tokens, 1.0))

    def may_evict(self, work: Work, attained_at_dispatch_tokens: int) -> bool:
        """Until most of its output exists."""
        return work.generated_tokens < self.protected_after * _output_tokens(work, self.unknown_output_tokens)


@dataclass(frozen=True, slots=True)
class LeastAttained(FixedOrder):
    """The least served goes first: key = prompt computed / v_p + output so far / v_d (s).

    v_p prompt tokens a second, v_d output tokens a second of one request. UniBoost's MLFQ+ without levels. Among
    requests that were never served it is first come, first served; with equal ones it shares like a round robin, one
    step each, unless preemption_margin_s keeps who runs.
    """

    type: ClassVar[str] = "las"
    needs: ClassVar[Belief] = _LENGTHS_IN_SECONDS
    engine_priority: ClassVar[bool] = False
    needs_lengths: ClassVar[bool] = False
    preemption_margin_s: float = parameter(0.0, "Seconds of service less that one needs to take a place, 0 or more.")

    def __post_init__(self) -> None:
        if not 0 <= self.preemption_margin_s < float("inf"):
            raise ValueError(f"preemption_margin_s: must be finite and 0 or more, not {self.preemption_margin_s!r}")

    @property
    def preemption_margin(self) -> float:
        """In seconds of service."""
        return self.preemption_margin_s

    def key(self, work: Work, service: Service) -> float:
        """The service that it had."""
        return service.seconds(work.prefilled_tokens, work.generated_tokens)

    def may_evict(self, work: Work, attained_at_dispatch_tokens: int) -> bool:
        """Always."""
        return True


def _output_tokens(work: Work, unknown: int) -> float:
    expected = work.expected_output_tokens
    return max(unknown if expected is None else expected, 1.0)
