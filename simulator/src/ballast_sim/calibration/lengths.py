"""Survival curves learned online from the first part of a workload, scored on the rest.

Learning is what a gateway does (`ballast_core.directing.learning`): every second the life of requests in flight
counts, and each end when it comes. Requests generate `tokens_per_s`, no engine runs. Learning stops when the first
held-back request arrives: what has not ended by then is known to have lived so long, no more.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np

from ballast_core.arrays import FloatArray
from ballast_core.beliefs.survival import CensoringAwareSurvival, EmaSurvival, SurvivalEstimator
from ballast_core.beliefs.survival_book import POOLED, SurvivalBook, SurvivalSettings
from ballast_core.beliefs.survival_tables import Buckets, SurvivalTables
from ballast_sim.calibration.scores import MIN_SURVIVORS, CurveScore, score_curves
from ballast_sim.simulation.inputs.source import DEFAULT_RATE_RPS, SourceError, WorkloadSource, trace_requests
from ballast_sim.workloads import NoArrivals, WorkloadRequest, clip, read_lengths

ESTIMATORS: Final = MappingProxyType[str, Callable[[Buckets], SurvivalEstimator]](
    {"ema": EmaSurvival, "censoring-aware": CensoringAwareSurvival}
)
"""SIBYL's (section 4.2) and our default."""

PAPER_FIGURES: Final = MappingProxyType(
    {
        "sharegpt-reasoning": "below 14 %, the vast majority below 5 %",
        "zeta": "below 9 %",
        "sibyl-random": "negligible but for the longest contexts",
    }
)
"""SIBYL's own figures of figure 7 (section 5.2), by the built-in workload with the shape of its data."""

_LIMITED_RATIO: Final = 0.5
_LIMIT_QUANTILES: Final = (0.25, 0.5, 0.75, 0.9)
_TICK_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthSettings:
    """How a workload is split and learned from."""

    held_back_ratio: float = 0.5
    """Share of the requests, the last ones to arrive, that is scored and not learned from."""
    tokens_per_s: float = 30.0
    """How fast each request generates."""
    seed: int = 0
    """Of the `max_tokens` that some requests carry."""

    def __post_init__(self) -> None:
        """Raises ValueError naming the field."""
        if not 0 < self.held_back_ratio < 1:
            raise ValueError(f"held_back_ratio: must be above 0 and below 1, not {self.held_back_ratio!r}")
        if not 0 < self.tokens_per_s < math.inf:
            raise ValueError(f"tokens_per_s: must be above 0, not {self.tokens_per_s!r}")


@dataclass(frozen=True, slots=True)
class ClassScore:
    """One client's held-back requests, by its own curve and by the one of all traffic."""

    client: int
    held_back: int
    brier: float
    brier_pooled: float
    surface_mean: float
    surface_mean_pooled: float


@dataclass(frozen=True, slots=True, eq=False)
class LengthScore:
    """One estimator under one condition."""

    estimator: str
    limited: bool
    """Whether half of the requests learned from carried a max_tokens that may have cut them; scored are whole ones."""
    by_class: bool
    """A curve for each client (as many as a gateway keeps), or one for all."""
    learned_ends: int
    """Requests that had ended when learning stopped."""
    cut: int
    """Of these, by their max_tokens."""
    held_back: int
    score: CurveScore
    classes: tuple[ClassScore, ...] = ()
    """Of clients that have a curve of their own, the one with the most held-back requests first."""


def workload_in_order(source: WorkloadSource, seed: int) -> Sequence[WorkloadRequest]:
    """Every request in order of arrival. A file of lengths only is taken row by row, `rate_rps` of them a second.

    Raises TraceError, or ValueError naming an argument.
    """
    if source.trace is not None:
        try:
            trace_requests(source.trace)
        except NoArrivals:
            return _rows_in_order(source.trace, source)
    return source.load(seed, 1.0).requests


def _rows_in_order(path: Path, source: WorkloadSource) -> list[WorkloadRequest]:
    rate_rps = DEFAULT_RATE_RPS if source.rate_rps is None else source.rate_rps
    if not 0 < rate_rps < math.inf:
        raise SourceError("rate_rps", f"must be above 0 and finite, not {rate_rps:g}")
    rows = [
        WorkloadRequest(arrival_s=index / rate_rps, input_tokens=input_tokens, output_tokens=output_tokens)
        for index, (input_tokens, output_tokens) in enumerate(read_lengths(path))
    ]
    return clip(rows, math.inf if source.duration_s is None else source.duration_s, source.limit)


def score_lengths(requests: Sequence[WorkloadRequest], settings: LengthSettings | None = None) -> list[LengthScore]:
    """Every estimator, with and without limits, with one curve for all and, where there are clients, one for each.

    `requests` in order of arrival. Raises ValueError where too few are there to be split.
    """
    settings = settings or LengthSettings()
    first = round(len(requests) * (1 - settings.held_back_ratio))
    if first < 1 or len(requests) - first < 1:
        raise ValueError(f"held_back_ratio: {len(requests)} requests cannot be split; give more requests")
    known, held_back = requests[:first], requests[first:]
    until_s = held_back[0].arrival_s
    groupings = (False, True) if any(request.client is not None for request in requests) else (False,)
    found = []
    for limited in (False, True):
        limits = _limits(known, settings.seed) if limited else [None] * len(known)
        for name, estimator in ESTIMATORS.items():
            for by_class in groupings:
                book = SurvivalBook(SurvivalSettings(estimator=estimator))
                ends, cut = _learn(
                    book, known, limits, by_class=by_class, until_s=until_s, tokens_per_s=settings.tokens_per_s
                )
                tables = book.tables(until_s)
                score = score_curves(tables, _lengths_by_slot(book, held_back, by_class))
                classes = _class_scores(book, tables, held_back) if by_class else ()
                found.append(LengthScore(name, limited, by_class, ends, cut, len(held_back), score, classes))
    return found


def _limits(requests: Sequence[WorkloadRequest], seed: int) -> list[int | None]:
    """Half of the requests carry a max_tokens: a quartile of all lengths or their 90th percentile, not the longest."""
    rng = random.Random(f"limits {seed}")
    lengths = [request.output_tokens for request in requests]
    longest = max(lengths)
    choices = [int(limit) for limit in np.quantile(lengths, _LIMIT_QUANTILES) if 1 <= limit < longest] or [longest]
    return [rng.choice(choices) if rng.random() < _LIMITED_RATIO else None for _ in requests]


def _key(request: WorkloadRequest, by_class: bool) -> int | None:
    return request.client if by_class else None


def _learn(
    book: SurvivalBook,
    requests: Sequence[WorkloadRequest],
    limits: Sequence[int | None],
    *,
    by_class: bool,
    until_s: float,
    tokens_per_s: float,
) -> tuple[int, int]:
    """Report to `book` what a gateway reports by `until_s`. Returns how many requests ended, and how many were cut."""
    arrivals_s = np.array([request.arrival_s for request in requests])
    whole = np.array([request.output_tokens for request in requests], np.float64)
    capped = np.array([np.inf if limit is None else float(limit) for limit in limits])
    lengths = np.minimum(whole, capped)
    cut = capped <= whole
    ends_s = arrivals_s + lengths / tokens_per_s
    order = np.argsort(ends_s, kind="stable")
    counted = np.zeros(len(requests))
    slots = np.zeros(len(requests), np.int64)
    ended = arrived = 0
    now_s = float(arrivals_s[0])
    while now_s < until_s:
        now_s = min(now_s + _TICK_S, until_s)
        while arrived < len(requests) and arrivals_s[arrived] <= now_s:
            slots[arrived] = book.slot(_key(requests[arrived], by_class), float(arrivals_s[arrived]))
            arrived += 1
        while ended < len(order) and ends_s[order[ended]] <= now_s:
            index = order[ended]
            book.ended(
                _key(requests[index], by_class),
                float(lengths[index]),
                censored=bool(cut[index]),
                now_s=float(ends_s[index]),
                counted_tokens=float(counted[index]),
            )
            ended += 1
        running = np.flatnonzero(ends_s[:arrived] > now_s)
        lived = np.floor((now_s - arrivals_s[running]) * tokens_per_s)
        book.aged(slots[running], counted[running], lived, now_s)
        counted[running] = lived
    return ended, int(cut[order[:ended]].sum())


def _lengths_by_slot(book: SurvivalBook, requests: Sequence[WorkloadRequest], by_class: bool) -> dict[int, FloatArray]:
    """Held-back output lengths by the slot of their curve."""
    by_slot: dict[int, list[float]] = {}
    for request in requests:
        slot = book.known_slot(_key(request, by_class)) if by_class else POOLED
        by_slot.setdefault(slot, []).append(float(request.output_tokens))
    return {slot: np.array(lengths) for slot, lengths in sorted(by_slot.items())}


def _class_scores(
    book: SurvivalBook, tables: SurvivalTables, requests: Sequence[WorkloadRequest]
) -> tuple[ClassScore, ...]:
    by_client: dict[int, list[float]] = {}
    for request in requests:
        if request.client is not None and book.known_slot(request.client) != POOLED:
            by_client.setdefault(request.client, []).append(float(request.output_tokens))
    found = []
    for client, values in sorted(by_client.items(), key=lambda item: (-len(item[1]), item[0])):
        lengths = np.array(values)
        if len(lengths) >= MIN_SURVIVORS:
            own, pooled = (score_curves(tables, {slot: lengths}) for slot in (book.known_slot(client), POOLED))
            found.append(
                ClassScore(client, len(values), own.brier, pooled.brier, own.surface_mean, pooled.surface_mean)
            )
    return tuple(found)
