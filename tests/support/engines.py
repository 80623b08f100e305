"""Builders for engine tests: quiet defaults, a timer whose steps all last the same, and a driver that records."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ballast_sim.engine import (
    Batch,
    Engine,
    EngineConfig,
    EngineRequest,
    Finished,
    PullStarted,
    StepEnded,
    TraceContent,
    UniqueContent,
)

STEP_S = 0.01


@dataclass(frozen=True, slots=True)
class FixedTimer:
    """Every step lasts the same."""

    lasts_s: float = STEP_S

    def step_s(self, tokens: int, decode_context_tokens: float, prefill_pairs: float, decodes: int) -> float:
        """See `StepTimer`."""
        assert tokens > 0
        return self.lasts_s


def config(**changes: Any) -> EngineConfig:
    """A small synchronous engine: blocks of 4 tokens, 100 of them."""
    settings: dict[str, Any] = {
        "timer": FixedTimer(),
        "kv_blocks": 101,
        "block_size": 4,
        "max_model_len": 64,
        "max_num_batched_tokens": 64,
        "max_num_seqs": 16,
        "async_scheduling": False,
        **changes,
    }
    settings["max_model_len"] = min(settings["max_model_len"], (settings["kv_blocks"] - 1) * settings["block_size"])
    return EngineConfig(**settings)


def request(name: int, input_tokens: int, max_tokens: int, at_s: float = 0.0, **changes: Any) -> EngineRequest:
    """A request whose prompt no other shares; with `ids`, blocks of 4 tokens, shared where the ids are equal."""
    ids = changes.pop("ids", None)
    content = UniqueContent(name) if ids is None else TraceContent(ids, 4, input_tokens, 4, name)
    return EngineRequest(
        request_id=str(name),
        input_tokens=input_tokens,
        max_tokens=max_tokens,
        content=content,
        arrival_s=at_s,
        **changes,
    )


@dataclass(slots=True)
class Recorded:
    """One step: (tokens, context, request) of each chunk in order; decodes and prefills alike."""

    composed_s: float
    starts_s: float
    chunks: list[tuple[int, int, str]]
    resumed: int
    preempted: int


@dataclass(slots=True)
class Run:
    """Everything that an engine did."""

    engine: Engine
    steps: list[Recorded] = field(default_factory=list)
    token_times_s: dict[str, list[float]] = field(default_factory=dict)
    finished: dict[str, Finished] = field(default_factory=dict)
    pulls: list[PullStarted] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    check: bool = True

    def until(self, until_s: float = math.inf) -> "Run":
        """Go on until nothing is due before `until_s`."""
        while (due_s := self.engine.next_event_s()) <= until_s and due_s < math.inf:
            self.step(due_s)
        return self

    def step(self, at_s: float) -> None:
        """Do what is due."""
        for event in self.engine.advance(at_s):
            self.times_s.append(event.at_s)
            match event:
                case StepEnded():
                    for name in event.tokens:
                        self.token_times_s.setdefault(name, []).append(round(event.at_s, 9))
                case Finished():
                    assert event.request_id not in self.finished, "a request ended twice"
                    self.finished[event.request_id] = event
                case PullStarted():
                    self.pulls.append(event)
        if self.check:
            self.engine.check_blocks()

    def chunks(self) -> list[list[tuple[int, int, str]]]:
        """Only what each step computed."""
        return [step.chunks for step in self.steps]


def started(settings: EngineConfig, requests: Iterable[EngineRequest] = (), check: bool = True) -> Run:
    """An engine under observation. The requests are added in order of arrival, each at its time.

    `check` looks at every KV block after every event, which is slow for long runs.
    """
    steps: list[Recorded] = []

    def on_step(now_s: float, batch: Batch) -> None:
        chunks = [(tokens, context, state.request_id) for state, tokens, context, _, _ in batch.chunks]
        steps.append(Recorded(round(now_s, 9), round(batch.starts_s, 9), chunks, batch.resumed, batch.preempted))

    run = Run(Engine(settings, on_step), steps, check=check)
    for item in requests:
        while run.engine.next_event_s() < item.arrival_s:
            run.step(run.engine.next_event_s())
        run.engine.add(item, item.arrival_s)
    return run
