"""Counts of what became of requests: a row for each case, and the table of an experiment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from bench.reliability.kit.client import Fate, Outcome


@dataclass(frozen=True)
class Row:
    """One case. Times in seconds; None where nothing was measured."""

    case: str
    requests: int
    whole: int
    broken: int
    wrong: int
    stuck: int
    refused: dict[str, int]
    """By status."""
    garbled: int = 0
    left: int = 0
    ttft_p50_s: float | None = None
    ttft_p99_s: float | None = None
    pause_p50_s: float | None = None
    """Median of the longest time without a token, over the streams that the fault could hit and that came through."""
    pause_max_s: float | None = None
    reasons: dict[str, int] = field(default_factory=dict)
    """What was said of requests that are not whole."""
    notes: dict[str, object] = field(default_factory=dict)
    """What else this experiment counts."""
    failed: str = ""
    """Why the run counts as failed; empty if it does not."""


def tally(
    case: str,
    outcomes: Iterable[Outcome],
    *,
    hit_s: float | None = None,
    notes: dict[str, object] | None = None,
    failed: str = "",
) -> Row:
    """The row of a case. `hit_s`: when the fault struck; pauses are those of streams that ran then."""
    all_ = list(outcomes)
    fates = Counter(each.fate for each in all_)
    whole = [each for each in all_ if each.fate is Fate.WHOLE]
    ttfts = [each.ttft_s for each in whole if each.ask.stream and each.ttft_s is not None]
    pauses = [each.pause_s for each in whole if hit_s is not None and _paused_by(each, hit_s)]
    reasons = Counter(f"{each.fate}: {each.reason}" for each in all_ if each.fate not in (Fate.WHOLE, Fate.LEFT))
    return Row(
        case=case,
        requests=len(all_),
        whole=fates[Fate.WHOLE],
        broken=fates[Fate.BROKEN],
        wrong=fates[Fate.WRONG],
        stuck=fates[Fate.STUCK],
        refused=dict(Counter(str(each.status) for each in all_ if each.fate is Fate.REFUSED)),
        garbled=fates[Fate.GARBLED],
        left=fates[Fate.LEFT],
        ttft_p50_s=percentile(ttfts, 0.5),
        ttft_p99_s=percentile(ttfts, 0.99),
        pause_p50_s=percentile(pauses, 0.5),
        pause_max_s=max(pauses, default=None),
        reasons=dict(reasons),
        notes=notes or {},
        failed=failed,
    )


def _paused_by(outcome: Outcome, hit_s: float) -> bool:
    """Whether its longest pause began about when the fault struck, and stands out."""
    return outcome.pause_s > 0.1 and hit_s - 0.2 <= outcome.paused_at_s <= hit_s + 1.0


def percentile(values: Sequence[float], share: float) -> float | None:
    """The value below which this share lies."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else None


def table(rows: Sequence[Row]) -> str:
    """For people to read."""
    width = max([len(row.case) for row in rows], default=0) + 2
    heads = ("asked", "whole", "broken", "wrong", "stuck", "refused", "ttft p50", "p99", "pause p50", "max")
    lines = ["".ljust(width) + "".join(head.rjust(10) for head in heads)]
    for row in rows:
        refused = " ".join(f"{count}x{status}" for status, count in sorted(row.refused.items())) or "0"
        counts = [str(count) for count in (row.requests, row.whole, row.broken, row.wrong, row.stuck)]
        times = [_seconds(s) for s in (row.ttft_p50_s, row.ttft_p99_s, row.pause_p50_s, row.pause_max_s)]
        lines.append(row.case.ljust(width) + "".join(cell.rjust(10) for cell in [*counts, refused, *times]))
        lines += [f"{'':4}{count} {reason}" for reason, count in row.reasons.items()]
        lines += [f"{'':4}{name}: {value}" for name, value in row.notes.items()]
        lines += [f"{'':4}FAILED: {row.failed}"] if row.failed else []
    return "\n".join(lines) + "\n"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"
