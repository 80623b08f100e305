"""An agent's own figures: few, and kept as plain numbers."""

from __future__ import annotations

from collections import Counter

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


def exposition(counts: Counts, *, held: int, passing: int, readers: int, cut_off: int, refused_calls: int) -> bytes:
    """Prometheus' text (0.0.4). `refused_calls`: of the pod API, for want of a signature."""
    moves = {str(outcome): counts.moves[str(outcome)] for outcome in MoveOutcome}
    return "".join(
        [
            _metric("requests_held", "gauge", "Requests that are held now.", held),
            _metric("requests_passing", "gauge", "Requests that are passed to the engine as they are, now.", passing),
            _metric("requests_passed_total", "counter", "Requests that were passed on as they are.", counts.passed),
            _by("requests_total", "Held requests that are over.", "outcome", counts.ends),
            _by("refusals_total", "Requests that were refused.", "reason", counts.refusals),
            _by("leg_failures_total", "Legs that failed.", "fault", counts.faults),
            _by("migrations_total", "Moves of running decodes.", "outcome", moves),
            _metric("rescues_total", "counter", "Streams that went on after their engine had failed.", counts.rescues),
            _metric("output_tokens_total", "counter", "Output tokens of held requests.", counts.output_tokens),
            _metric("pod_api_readers", "gauge", "Gateways that listen to events.", readers),
            _metric("pod_api_readers_cut_off_total", "counter", "Readers of events that were too slow.", cut_off),
            _metric("pod_api_refused_total", "counter", "Calls that were not signed as they must be.", refused_calls),
        ]
    ).encode()


def _metric(name: str, kind: str, what: str, value: int) -> str:
    return f"# HELP ballast_agent_{name} {what}\n# TYPE ballast_agent_{name} {kind}\nballast_agent_{name} {value}\n"


def _by(name: str, what: str, label: str, values: dict[str, int]) -> str:
    lines = [f'ballast_agent_{name}{{{label}="{each}"}} {count}\n' for each, count in sorted(values.items())]
    return f"# HELP ballast_agent_{name} {what}\n# TYPE ballast_agent_{name} counter\n{''.join(lines)}"
