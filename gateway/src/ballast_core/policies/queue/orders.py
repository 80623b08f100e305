"""Orders by arrival, deadline, length and attained service: the baselines of UniBoost (its section 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ballast_core.beliefs.kinds import Belief
from ballast_core.policies.declaring import check_within, parameter
from ballast_core.policies.queue.protocol import FixedOrder, Service, Work

_LENGTHS_IN_SECONDS = Belief.PREFILL_TIMES | Belief.RATES
ENGINE_PRIORITY = "Whether it is sent to engines as priorities, for vLLM's --scheduling-policy priority."
_UNKNOWN = "Output length of a request without a prediction, in tokens, 1 to 10000000."
_UNKNOWN_BOUNDS = (1, 10_000_000)


@dataclass(frozen=True, slots=True)
class Fcfs(FixedOrder):
    """First come, first served: key = arrival (s). The order of stock vLLM; it preempts no running request."""

    type: ClassVar[str] = "fcfs"
    needs: ClassVar[Belief] = Belief.NONE
    engine_priority: ClassVar[bool] = False
    needs_lengths: ClassVar[bool] = False
    preemption_margin: ClassVar[float] = 0.0

    def key(self, work: Work, service: Service) -> float:
        """Arrival (s)."""
        return work.arrived_s


@dataclass(frozen=True, slots=True)
class EarliestDeadline(FixedOrder):
    """The earliest deadline first: key = time at which the first token is due (s).

    A request without an objective is due default_objective_s after its arrival. So only more urgent requests that
    arrive within that time overtake it. It preempts no running request.
    """

    type: ClassVar[str] = "edf"
    needs: ClassVar[Belief] = Belief.NONE
    needs_lengths: ClassVar[bool] = False
    preemption_margin: ClassVar[float] = 0.0
    default_objective_s: float = parameter(5.0, "TTFT objective of a request that has none, in seconds, 0 or more.")
    engine_priority: bool = parameter(False, ENGINE_PRIORITY)

    def __post_init__(self) -> None:
        if not 0 <= self.default_objective_s < float("inf"):
            raise ValueError(f"default_objective_s: must be finite and 0 or more, not {self.default_objective_s!r}")

    def key(self, work: Work, service: Service) -> float:
        """Deadline (s)."""
        return work.arrived_s + self.default_objective_s if work.deadline_s is None else work.deadline_s


@dataclass(frozen=True, slots=True)
class ShortestPrompt(FixedOrder):
    """The shortest uncached prompt first: key = its tokens. Output is not considered, and long prompts may starve."""

    type: ClassVar[str] = "shortest-prompt"
    needs: ClassVar[Belief] = Belief.NONE
    needs_lengths: ClassVar[bool] = False
    preemption_margin: ClassVar[float] = 0.0
    engine_priority: bool = parameter(False, ENGINE_PRIORITY)

    def key(self, work: Work, service: Service) -> float:
        """Uncached prompt tokens."""
        return float(work.uncached_tokens)


@dataclass(frozen=True, slots=True)
class ShortestJob(FixedOrder):
    """The least total work first: key = uncached prompt / v_p + expected output / v_d (s).

    v_p: prompt tokens per second; v_d: output tokens per second of one request. UniBoost's LTR+ has perfect lengths;
    here lengths are predictions. Its aging is omitted, so long requests may starve. It preempts no running request.
    """

    type: ClassVar[str] = "sjf"
    needs: ClassVar[Belief] = _LENGTHS_IN_SECONDS
    needs_lengths: ClassVar[bool] = True
    preemption_margin: ClassVar[float] = 0.0
    unknown_output_tokens: int = parameter(256, _UNKNOWN)
    engine_priority: bool = parameter(False, ENGINE_PRIORITY)

    def __post_init__(self) -> None:
        check_within(self, unknown_output_tokens=_UNKNOWN_BOUNDS)

    def key(self, work: Work, service: Service) -> float:
        """Total work (s)."""
        return service.seconds(work.uncached_tokens, _output_tokens(work, self.unknown_output_tokens))


@dataclass(frozen=True, slots=True)
class ShortestRemaining(FixedOrder):
    """The least remaining work first: key = prompt left / v_p + expected output left / v_d (s).

    v_p: prompt tokens per second; v_d: output tokens per second of one request. A request that has outlived its
    prediction has one token left. As in UniBoost's TRAIL+, a running request may be preempted until it has generated
    the share protected_after of its expected output.
    """

    type: ClassVar[str] = "srpt"
    needs: ClassVar[Belief] = _LENGTHS_IN_SECONDS
    needs_lengths: ClassVar[bool] = True
    preemption_margin: ClassVar[float] = 0.0
    unknown_output_tokens: int = parameter(256, _UNKNOWN)
    protected_after: float = parameter(0.6, "Share of the expected output after which none is preempted, 0 to 1.")
    engine_priority: bool = parameter(False, ENGINE_PRIORITY)

    def __post_init__(self) -> None:
        check_within(self, unknown_output_tokens=_UNKNOWN_BOUNDS)
        if not 0 <= self.protected_after <= 1:
            raise ValueError(f"protected_after: must be from 0 to 1, not {self.protected_after!r}")

    def key(self, work: Work, service: Service) -> float:
        """Remaining work (s)."""
        output = _output_tokens(work, self.unknown_output_tokens)
        prompt = max(work.uncached_tokens - work.prefilled_tokens, 0)
        return service.seconds(prompt, max(output - work.generated_tokens, 1.0))

    def may_evict(self, work: Work, attained_at_dispatch_tokens: int) -> bool:
        """True until the share `protected_after` of its expected output exists."""
        return work.generated_tokens < self.protected_after * _output_tokens(work, self.unknown_output_tokens)


@dataclass(frozen=True, slots=True)
class LeastAttained(FixedOrder):
    """The least attained service first: key = prompt computed / v_p + output so far / v_d (s).

    v_p: prompt tokens per second; v_d: output tokens per second of one request. UniBoost's MLFQ+ without levels. It
    serves requests that were never served first come, first served, and equal requests in turns of one step, unless
    preemption_margin_s keeps the running one.
    """

    type: ClassVar[str] = "las"
    needs: ClassVar[Belief] = _LENGTHS_IN_SECONDS
    engine_priority: ClassVar[bool] = False
    needs_lengths: ClassVar[bool] = False
    preemption_margin_s: float = parameter(0.0, "Seconds of service less that a request needs to preempt, 0 or more.")

    def __post_init__(self) -> None:
        if not 0 <= self.preemption_margin_s < float("inf"):
            raise ValueError(f"preemption_margin_s: must be finite and 0 or more, not {self.preemption_margin_s!r}")

    @property
    def preemption_margin(self) -> float:
        """`preemption_margin_s`, in seconds of service."""
        return self.preemption_margin_s

    def key(self, work: Work, service: Service) -> float:
        """Attained service (s)."""
        return service.seconds(work.prefilled_tokens, work.generated_tokens)

    def may_evict(self, work: Work, attained_at_dispatch_tokens: int) -> bool:
        """True."""
        return True


def _output_tokens(work: Work, unknown: int) -> float:
    expected = work.expected_output_tokens
    return max(unknown if expected is None else expected, 1.0)
