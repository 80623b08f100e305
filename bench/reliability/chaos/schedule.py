"""Which fault strikes what, when and for how long: follows from a seed alone.

Each lane has one fault at a time, with a pause after it: decodes, prefills, gateways, pickers, traffic. So one decode
of three, one prefill of two and one of two gateways are well at every instant, and a request that can go on always has
somewhere to go.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

DECODES, PREFILLS = ("d0", "d1", "d2"), ("p0", "p1")


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong. Seconds since the start."""

    at_s: float
    lane: str
    target: str
    kind: str
    lasts_s: float = 0.0
    commands: tuple[dict[str, Any], ...] = field(default_factory=tuple)
    """What engine-sim is told, where it is to misbehave."""

    def __str__(self) -> str:
        """A line of the timeline."""
        what = ", ".join(str(each) for each in self.commands) or self.kind
        return f"{self.at_s:7.2f} s  {self.target}: {what}" + (f" for {self.lasts_s:.2f} s" if self.lasts_s else "")


def _some(rng: np.random.Generator) -> dict[str, Any]:
    """Hits one to all of the requests."""
    return {"share": float(rng.choice([0.3, 0.6, 1.0])), "seed": int(rng.integers(1000))}


def _commands(kind: str, rng: np.random.Generator) -> tuple[dict[str, Any], ...]:
    """What engine-sim is told for a kind; nothing for what is done to its process."""
    after, scope = int(rng.integers(0, 40)), _some(rng)
    match kind:
        case "reset":
            return ({"fault": "reset", "after": ["request", "head", after][int(rng.integers(3))], "scope": scope},)
        case "misconfigure":
            faults: list[dict[str, Any]] = [
                {"fault": "wrong-key", "scope": {"paths": ["/v1/completions", "/v1/chat/completions"]}},
                {"fault": "wrong-model"},
                {"fault": "small-context", "tokens": 256},
                {"fault": "status", "status": 429},
                {"fault": "status", "status": int(rng.choice([500, 502, 503]))},
            ]
            return (faults[int(rng.integers(len(faults)))],)
        case "error-event" | "end" | "chunk-framing":
            return ({"fault": kind, "after": after % 20, "scope": scope},)
        case "garbage":
            garbage = str(rng.choice(["not-json", "broken-token-ids", "not-sse"]))
            return ({"fault": "garbage", "garbage": garbage, "after": after % 20, "scope": scope},)
        case "content-length":
            return ({"fault": "content-length", "off_by": int(rng.choice([-16, 16])), "scope": scope},)
        case "hang":
            return ({"fault": "hang", "after": ["request", "head", after][int(rng.integers(3))], "scope": scope},)
        case "trickle":
            return ({"fault": "trickle", "size": 24, "pause_s": 0.005, "scope": scope},)
        case "slow":
            return ({"fault": "slow", "factor": 4, "scope": scope},)
        case "freeze":
            return ({"fault": "freeze"},)
        case "flap":
            return ({"fault": "flap", "down_s": 0.7, "up_s": 0.7, "cut": True},)
    return ()


OF_ENGINES = (
    *("kill", "stop", "freeze", "hang", "reset", "misconfigure", "misconfigure", "error-event", "end", "garbage"),
    *("content-length", "chunk-framing", "trickle", "slow", "flap", "terminate"),
)
"""Kinds of faults of an engine; kill, stop and terminate are done to its process."""


def _engines(lane: str, targets: Sequence[str], rng: np.random.Generator, seconds: float) -> Iterator[Fault]:
    """Every kind once before any comes again."""
    at_s = float(rng.uniform(1.0, 2.0))
    while True:
        for kind in rng.permutation(OF_ENGINES).tolist():
            lasts_s = float(rng.uniform(1.0, 4.0))
            if at_s + lasts_s > seconds:
                return
            yield Fault(at_s, lane, str(rng.choice(targets)), kind, lasts_s, _commands(kind, rng))
            at_s += lasts_s + float(rng.uniform(0.5, 2.5))


def _turns(lane: str, targets: Sequence[str], kind: str, rng: np.random.Generator, every_s: float) -> Iterator[Fault]:
    """One after the other."""
    at_s, turn = float(rng.uniform(0.3, 0.6)) * every_s, 0
    while True:
        yield Fault(at_s, lane, targets[turn % len(targets)], kind)
        at_s += float(rng.uniform(0.8, 1.2)) * every_s
        turn += 1


def schedule(seed: int, seconds: float, gateways: Sequence[str], pickers: Sequence[str] = ()) -> list[Fault]:
    """All faults of a run, by time."""
    rngs = [np.random.default_rng([seed, lane]) for lane in range(5)]
    faults = [*_engines("decodes", DECODES, rngs[0], seconds), *_engines("prefills", PREFILLS, rngs[1], seconds)]
    turns = [
        _turns("gateways", gateways, "restart", rngs[2], 20.0),
        _turns("traffic", ["clients"], "burst", rngs[3], 15.0),
    ]
    if pickers:
        turns.append(_turns("pickers", pickers, "kill", rngs[4], 8.0))
    for lane in turns:
        for fault in lane:
            if fault.at_s > seconds - 1.0:
                break
            faults.append(fault)
    return sorted(faults, key=lambda fault: fault.at_s)
