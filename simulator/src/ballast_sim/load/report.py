"""The report of a load run. Latencies and rates are in workload time: wall time divided by `time_scale`."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ballast_sim.simulation.inputs.objective import Objective

MAX_FAILURES_LISTED = 100

MOST_LATE_S = 0.1
"""How late requests may leave (P99): a twentieth of the usual TTFT objective. Beyond it waits are the client's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestResult:
    """One request. Times are seconds from the start of the run, in workload time."""

    request_id: str
    arrival_s: float
    input_tokens: int
    asked_tokens: int
    prompt_tokens: int | None = None
    """Tokens of the prompt as the server counted them; None where it did not say."""
    received_tokens: int = 0
    first_token_s: float | None = None
    last_token_s: float | None = None
    late_gaps: int = 0
    """Gaps between its tokens above the objective's `tbt_s`; 0 without one."""
    failed_s: float | None = None
    """When it was known that it would not complete."""
    status: int = 0
    reason: str | None = None
    kind: str | None = None

    @property
    def completed(self) -> bool:
        """Whether it got all the tokens that it asked for."""
        return self.reason is None

    @property
    def ttft_s(self) -> float | None:
        """Arrival to first token."""
        return None if self.first_token_s is None else self.first_token_s - self.arrival_s

    @property
    def e2e_s(self) -> float | None:
        """Arrival to last token."""
        return None if self.last_token_s is None else self.last_token_s - self.arrival_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time per token after the first; None with fewer than two."""
        if self.first_token_s is None or self.last_token_s is None or self.received_tokens < 2:
            return None
        return (self.last_token_s - self.first_token_s) / (self.received_tokens - 1)

    def meets(self, objective: Objective) -> bool:
        """Whether it completed within every threshold; one token has no TPOT and no gap, and meets both."""
        measured = ((objective.ttft_s, self.ttft_s), (objective.tpot_s, self.tpot_s), (objective.e2e_s, self.e2e_s))
        within = all(limit is None or value is None or value <= limit for limit, value in measured)
        return self.completed and within and objective.allows(self.late_gaps, self.received_tokens)


@dataclass(frozen=True, slots=True)
class Failure:
    """One request that did not complete, and why."""

    request_id: str
    reason: str
    status: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """The whole run."""

    requests: int
    completed: int
    failed: int
    failures: tuple[Failure, ...]
    errors: dict[str, int]
    """How many requests failed, by kind."""
    reasons: dict[str, str]
    """The first reason of each kind."""
    ttft_s: dict[str, float]
    tpot_s: dict[str, float]
    e2e_s: dict[str, float]
    input_tokens: int
    """Of the completed requests' prompts, as the server counted them where it said so."""
    asked_input_tokens: int
    """The same by the workload."""
    output_tokens: int
    asked_output_tokens: int
    throughput_tok_s: float
    rate_rps: float
    completed_rps: float
    goodput_rps: float | None
    attainment: float | None
    slo: dict[str, float] | None
    time_scale: float
    span_s: float
    wall_s: float
    late_s: dict[str, float]
    interrupted: bool

    def as_json(self) -> dict[str, Any]:
        """The object that `--json` writes; `failures` lists the first 100."""
        value = {name: getattr(self, name) for name in self.__slots__}
        value["failures"] = [
            {"id": failure.request_id, "reason": failure.reason, "status": failure.status} for failure in self.failures
        ]
        return value


def distribution(values: Sequence[float]) -> dict[str, float]:
    """Mean and percentiles; empty where there is nothing to sum up."""
    if not values:
        return {}
    p50, p90, p99, p999 = np.percentile(values, [50, 90, 99, 99.9])
    mean = float(np.mean(values))
    return {"mean": mean, "p50": float(p50), "p90": float(p90), "p99": float(p99), "p999": float(p999)}


def build_report(
    results: Sequence[RequestResult],
    *,
    objective: Objective | None,
    time_scale: float,
    wall_s: float,
    late_s: Sequence[float] = (),
    interrupted: bool = False,
) -> LoadReport:
    """Sum up. Rates are over the time from the first arrival to the end of the last request, or to the interruption.

    Requests that failed count, too: a server that stops answering serves nothing in the time that it had.
    """
    done = [result for result in results if result.completed]
    failed = [result for result in results if not result.completed]
    start_s = min((result.arrival_s for result in results), default=0.0)
    ends_s = [wall_s / time_scale] if interrupted else []
    ends_s += [
        moment_s
        for result in results
        for moment_s in (result.arrival_s, result.last_token_s, result.failed_s)
        if moment_s is not None
    ]
    span_s = max(max(ends_s) - start_s, 1e-9) if results else 0.0
    arrivals_s = max((result.arrival_s for result in results), default=0.0) - start_s
    met = sum(result.meets(objective) for result in results) if objective is not None else 0
    output_tokens = sum(result.received_tokens for result in results)
    failures = tuple(Failure(result.request_id, result.reason or "", result.status) for result in failed)
    return LoadReport(
        requests=len(results),
        completed=len(done),
        failed=len(failed),
        failures=failures[:MAX_FAILURES_LISTED],
        errors=dict(Counter(result.kind or "other" for result in failed)),
        reasons={result.kind or "other": result.reason or "" for result in reversed(failed)},
        ttft_s=distribution([value for result in done if (value := result.ttft_s) is not None]),
        tpot_s=distribution([value for result in done if (value := result.tpot_s) is not None]),
        e2e_s=distribution([value for result in done if (value := result.e2e_s) is not None]),
        input_tokens=sum(
            result.input_tokens if result.prompt_tokens is None else result.prompt_tokens for result in done
        ),
        asked_input_tokens=sum(result.input_tokens for result in done),
        output_tokens=output_tokens,
        asked_output_tokens=sum(result.asked_tokens for result in results),
        throughput_tok_s=output_tokens / span_s if results else 0.0,
        rate_rps=(len(results) - 1) / arrivals_s if arrivals_s > 0 else 0.0,
        completed_rps=len(done) / span_s if results else 0.0,
        goodput_rps=(met / span_s if results else 0.0) if objective is not None else None,
        attainment=(met / len(results) if results else 0.0) if objective is not None else None,
        slo=_thresholds(objective),
        time_scale=time_scale,
        span_s=span_s,
        wall_s=wall_s,
        late_s=distribution(late_s),
        interrupted=interrupted,
    )


def _thresholds(objective: Objective | None) -> dict[str, float] | None:
    if objective is None:
        return None
    named = {"ttft": objective.ttft_s, "tpot": objective.tpot_s, "e2e": objective.e2e_s, "tbt": objective.tbt_s}
    return {name: value for name, value in named.items() if value is not None}
