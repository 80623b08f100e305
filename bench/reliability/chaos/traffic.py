"""The traffic of a chaos run: arrivals and lengths of a public trace, and prompts whose answers are known."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ballast_sim.workloads import WorkloadRequest, load_workload, scale_arrivals
from bench.reliability.kit.asking import Ask, ask

TRACE = Path(__file__).parents[4] / "shared/traces/azure23_conv_w1.csv.gz"
"""Azure's conversations of 2023, beside the checkout; without it, the built-in workload `chat`."""
LONGEST_INPUT, LONGEST_OUTPUT = 3000, 200
"""Longer ones are cut: an engine takes 20 ms a token."""
REPLAYABLE, STREAMS, CHATS, LEAVING = 0.8, 0.75, 0.4, 0.04
"""Shares of the requests: can go on elsewhere, are streams, are chats, and whose client leaves before the end."""
BURST = 30


@dataclass(frozen=True)
class Arrival:
    """A request and when it comes, in seconds since the start."""

    at_s: float
    ask: Ask
    leaves_after_s: float | None = None


def source() -> str:
    """Where arrivals and lengths come from."""
    return TRACE.name if TRACE.exists() else "the built-in workload chat"


def arrivals(seed: int, seconds: float, rps: float) -> list[Arrival]:
    """Requests at this mean rate, with the trace's own bursts."""
    rng = np.random.default_rng([seed, 10])
    return [_arrival(number, each, seed, rng) for number, each in enumerate(_requests(seed, seconds, rps, rng))]


def burst(seed: int, number: int) -> list[Arrival]:
    """Requests that come at once, within half a second."""
    rng = np.random.default_rng([seed, 11, number])
    requests = [
        WorkloadRequest(arrival_s=float(rng.uniform(0, 0.5)), input_tokens=400, output_tokens=60) for _ in range(BURST)
    ]
    return [_arrival(100_000 * (number + 1) + at, each, seed, rng) for at, each in enumerate(requests)]


def _requests(seed: int, seconds: float, rps: float, rng: np.random.Generator) -> list[WorkloadRequest]:
    if TRACE.exists():
        workload = load_workload(trace=TRACE, duration_s=math.inf, seed=seed)
    else:
        workload = load_workload(workload="chat", rate_rps=rps, duration_s=seconds, seed=seed)
    scaled = scale_arrivals(workload, rps * workload[-1].arrival_s / len(workload))
    start_s = float(rng.uniform(0.0, max(0.0, scaled[-1].arrival_s - seconds)))
    return [
        WorkloadRequest(
            arrival_s=each.arrival_s - start_s, input_tokens=each.input_tokens, output_tokens=each.output_tokens
        )
        for each in scaled
        if start_s <= each.arrival_s < start_s + seconds
    ]


def _arrival(number: int, request: WorkloadRequest, seed: int, rng: np.random.Generator) -> Arrival:
    drawn = rng.random(5)
    made = ask(
        number,
        prompt_tokens=max(2, min(request.input_tokens, LONGEST_INPUT)),
        output_tokens=max(1, min(request.output_tokens, LONGEST_OUTPUT)),
        replayable=bool(drawn[0] < REPLAYABLE),
        stream=bool(drawn[1] < STREAMS),
        chat=bool(drawn[2] < CHATS),
        seed=seed,
    )
    return Arrival(request.arrival_s, made, 3.0 * float(drawn[4]) if drawn[3] < LEAVING else None)
