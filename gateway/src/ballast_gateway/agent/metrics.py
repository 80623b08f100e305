"""An agent's own figures: few, and kept as plain numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ballast_api.metric_declaring import Metric
from ballast_api.metrics import METRICS
from ballast_gateway.records import MoveOutcome, RequestRecord


class Counts:
    """What has happened since the start."""

    def __init__(self) -> None:
        self.passed = 0
        """Requests that went to the engine as they came."""
        self.ends: Counter[str] = Counter()
        """Held requests that are over, by outcome."""
        self.refusals: Counter[str] = Counter()
        """By code."""
        self.faults: Counter[str] = Counter()
        """Of legs, by kind."""
        self.moves: Counter[str] = Counter()
        """By outcome."""
        self.pause_s = 0.0
        """In which clients of moved streams saw nothing, in all."""
        self.rescues = 0
        self.output_tokens = 0

    def refuse(self, code: str) -> None:
        """A request was refused."""
        self.refusals[code] += 1

    def ended(self, record: RequestRecord) -> None:
        """A held request is over."""
        self.ends[record.outcome] += 1
        self.output_tokens += record.output_tokens
        self.rescues += record.rescues
        for fault in record.faults:
            self.faults[str(fault)] += 1
        for move in record.moves:
            self.moves[str(move.outcome)] += 1
            self.pause_s += move.pause_s or 0.0


def exposition(counts: Counts, *, held: int, passing: int, readers: int, cut_off: int, refused_calls: int) -> bytes:
    """Prometheus' text (0.0.4). `refused_calls`: of the pod API, for want of a signature."""
    moves = {str(outcome): counts.moves[str(outcome)] for outcome in MoveOutcome}
    return "".join(
        [
            _metric("requests_held", held),
            _metric("requests_passing", passing),
            _metric("requests_passed_total", counts.passed),
            _by("requests_total", counts.ends),
            _by("refusals_total", counts.refusals),
            _by("leg_failures_total", counts.faults),
            _by("migrations_total", moves),
            _metric("migration_pause_seconds_total", round(counts.pause_s, 6)),
            _metric("rescues_total", counts.rescues),
            _metric("output_tokens_total", counts.output_tokens),
            _metric("pod_api_readers", readers),
            _metric("pod_api_readers_cut_off_total", cut_off),
            _metric("pod_api_refused_total", refused_calls),
        ]
    ).encode()


def _metric(name: str, value: float) -> str:
    metric = METRICS[f"ballast_agent_{name}"]
    return f"{_head(metric)}{metric.name} {value}\n"


def _by(name: str, values: Mapping[str, int]) -> str:
    metric = METRICS[f"ballast_agent_{name}"]
    (label,) = metric.labels
    return _head(metric) + "".join(f'{metric.name}{{{label}="{each}"}} {values[each]}\n' for each in sorted(values))


def _head(metric: Metric) -> str:
    return f"# HELP {metric.name} {metric.about}\n# TYPE {metric.name} {metric.kind}\n"
