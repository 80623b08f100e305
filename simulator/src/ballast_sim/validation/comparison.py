"""How far our run is from the recorded one: the first step that differs, P99 errors, missing tokens."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ballast_sim.validation.golden import Golden, GoldenRequest, Step
from ballast_sim.validation.replay import Replay, replay


@dataclass(frozen=True, slots=True)
class Comparison:
    """How far our run is from the recorded one. A ratio is ours / golden - 1."""

    file: str
    requests: int
    steps_ours: int
    steps_golden: int
    first_differing_step: int | None
    ttft_p99_error_ratio: float
    tpot_p99_error_ratio: float
    token_time_error_s: dict[str, float]
    cached_tokens_ours: int
    cached_tokens_golden: int
    preemptions_ours: int
    preemptions_golden: int
    expired_leases_ours: int
    expired_leases_golden: int
    differing_hand_offs: int
    missing_tokens: int

    def within(self, tolerance_ratio: float) -> bool:
        """Whether both P99 errors are small enough and no token is missing."""
        worst = max(abs(self.ttft_p99_error_ratio), abs(self.tpot_p99_error_ratio))
        return self.missing_tokens == 0 and worst <= tolerance_ratio

    def as_json(self) -> dict[str, Any]:
        """The row that `ballast validate --json` prints."""
        return {
            "file": self.file,
            "requests": self.requests,
            "steps": {"ours": self.steps_ours, "golden": self.steps_golden},
            "first_differing_step": self.first_differing_step,
            "ttft_p99_error_ratio": self.ttft_p99_error_ratio,
            "tpot_p99_error_ratio": self.tpot_p99_error_ratio,
            "token_time_error_s": self.token_time_error_s,
            "cached_tokens": {"ours": self.cached_tokens_ours, "golden": self.cached_tokens_golden},
            "preemptions": {"ours": self.preemptions_ours, "golden": self.preemptions_golden},
            "expired_leases": {"ours": self.expired_leases_ours, "golden": self.expired_leases_golden},
            "differing_hand_offs": self.differing_hand_offs,
            "missing_tokens": self.missing_tokens,
        }


def first_difference(ours: Sequence[Step], golden: Sequence[Step]) -> int | None:
    """Number of the first step that differs in work or time; None where the runs are the same."""
    for number, (mine, theirs) in enumerate(zip(ours, golden, strict=False)):
        if not (mine.same_work(theirs) and mine.same_time(theirs)):
            return number
    return None if len(ours) == len(golden) else min(len(ours), len(golden))


def compare(golden: Golden) -> Comparison:
    """Replay a golden file and measure the difference."""
    ours = replay(golden)
    errors: list[float] = []
    missing = 0
    for row in golden.requests:
        mine = ours.token_times_s[row.request_id]
        missing += abs(len(row.token_times_s) - len(mine))
        errors += [abs(a - b) for a, b in zip(mine, row.token_times_s, strict=False)]
    golden_times = {row.request_id: row.token_times_s for row in golden.requests}
    ttft = [_p99(_ttfts(golden.requests, times)) for times in (ours.token_times_s, golden_times)]
    tpot = [_p99(_tpots(times.values())) for times in (ours.token_times_s, golden_times)]
    # A request that left before its first token has no count of cached tokens.
    counted = [row for row in golden.requests if row.cached_tokens is not None and row.request_id in ours.finished]
    quantiles = np.quantile(errors, [0.5, 0.99, 1.0]) if errors else [math.nan] * 3
    return Comparison(
        file=golden.path.name,
        requests=len(golden.requests),
        steps_ours=len(ours.steps),
        steps_golden=len(golden.steps),
        first_differing_step=first_difference(ours.steps, golden.steps),
        ttft_p99_error_ratio=_error_ratio(*ttft),
        tpot_p99_error_ratio=_error_ratio(*tpot),
        token_time_error_s=dict(zip(("p50", "p99", "max"), (float(q) for q in quantiles), strict=True)),
        cached_tokens_ours=sum(ours.finished[row.request_id].stats.cached_tokens for row in counted),
        cached_tokens_golden=sum(row.cached_tokens or 0 for row in counted),
        preemptions_ours=sum(end.stats.preemptions for end in ours.finished.values()),
        preemptions_golden=sum(row.preemptions for row in golden.requests),
        expired_leases_ours=ours.expired_leases,
        expired_leases_golden=golden.summary.get("expired_leases", 0),
        differing_hand_offs=sum(row.hand_off != _hand_off(ours, row) for row in golden.requests),
        missing_tokens=missing,
    )


def _hand_off(ours: Replay, row: GoldenRequest) -> tuple[int, int] | None:
    """What our handle covers: tokens and blocks."""
    end = ours.finished.get(row.request_id)
    return None if end is None or end.hand_off is None else (end.hand_off.tokens, len(end.hand_off.blocks))


def _ttfts(
    requests: Iterable[GoldenRequest], times: "dict[int, list[float]] | dict[int, Sequence[float]]"
) -> list[float]:
    return [times[row.request_id][0] - row.arrival_s for row in requests if times[row.request_id]]


def _tpots(times: Iterable[Sequence[float]]) -> list[float]:
    return [(row[-1] - row[0]) / (len(row) - 1) for row in times if len(row) > 1]


def _p99(values: Sequence[float]) -> float:
    return float(np.quantile(values, 0.99)) if values else math.nan


def _error_ratio(ours: float, golden: float) -> float:
    if math.isnan(ours) and math.isnan(golden):
        return 0.0  # no request of the file has a second token
    return ours / golden - 1 if golden > 0 else math.inf
