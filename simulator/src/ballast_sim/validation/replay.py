"""Our engine on a golden file's settings and requests."""

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

from ballast_sim.engine import (
    Batch,
    BlockHashes,
    CoarseEngine,
    Engine,
    EngineConfig,
    EngineRequest,
    Finished,
    StepEnded,
    TokensAdvanced,
    TraceContent,
    UniqueContent,
)
from ballast_sim.validation.golden import Golden, GoldenRequest, Step, golden_config

STOP_MARGIN_TOKENS = 50  # max_tokens beyond the stop token, in files made with early_stop


def _engine_request(row: GoldenRequest, summary: dict[str, Any], config: EngineConfig) -> EngineRequest:
    content: BlockHashes
    if row.hash_ids and row.hash_block:
        content = TraceContent(row.hash_ids, row.hash_block, row.input_tokens, config.block_size, row.request_id)
    else:
        content = UniqueContent(row.request_id)
    stop_after = row.output_tokens if summary["early_stop"] else None
    return EngineRequest(
        request_id=str(row.request_id),
        input_tokens=row.input_tokens,
        max_tokens=row.output_tokens + (STOP_MARGIN_TOKENS if summary["early_stop"] else 0),
        stop_after=stop_after,
        content=content,
        arrival_s=row.arrival_s,
        priority=row.priority,
        pull=row.pull,
        hold=row.hold,
    )


@dataclass(slots=True)
class Replay:
    """What our engine did with a golden file's requests."""

    steps: list[Step]
    token_times_s: dict[int, list[float]]
    finished: dict[int, Finished]
    expired_leases: int = 0


class _Script:
    """All calls of the engine, in order of time; at one time, arrivals come first."""

    def __init__(self, golden: Golden, config: EngineConfig, engine: Engine) -> None:
        self._engine = engine
        self._due: list[tuple[float, int, int, Callable[[float], object]]] = []
        self._numbers = count()
        for row in golden.requests:
            request = _engine_request(row, golden.summary, config)
            self._schedule(row.arrival_s, 0, lambda now_s, request=request: engine.add(request, now_s))  # type: ignore[misc]
            if row.abort_s is not None:
                self._schedule(row.abort_s, 1, lambda now_s, name=request.request_id: engine.abort(name, now_s))  # type: ignore[misc]

    def _schedule(self, at_s: float, rank: int, call: Callable[[float], object]) -> None:
        heapq.heappush(self._due, (at_s, rank, next(self._numbers), call))

    def next_s(self) -> float:
        """When the next call is due; infinity at the end."""
        return self._due[0][0] if self._due else math.inf

    def call(self) -> None:
        """Make the call that is due next."""
        at_s, _, _, call = heapq.heappop(self._due)
        call(at_s)

    def handed_over(self, row: GoldenRequest, end: Finished) -> None:
        """Schedule what the other engine does with the handle."""
        engine, name = self._engine, end.request_id
        pulled_after_s = math.inf if row.pulled_after_s is None else row.pulled_after_s
        for after_s in row.heartbeats_after_s:
            if after_s < pulled_after_s:
                self._schedule(end.at_s + after_s, 1, lambda now_s: engine.extend_lease(name, now_s))
        if row.pulled_after_s is not None:
            self._schedule(end.at_s + row.pulled_after_s, 1, lambda now_s: engine.release(name, now_s))


def replay(golden: Golden, *, coarse: bool = False) -> Replay:
    """Run our engine on a golden file's settings and requests: step by step, or `coarse`, from change to change."""
    steps: list[Step] = []
    config = golden_config(golden.summary)
    kind = CoarseEngine if coarse else Engine
    engine = kind(config, on_step=lambda now_s, batch: steps.append(_observed(now_s, batch)))
    rows = {row.request_id: row for row in golden.requests}
    result = Replay(steps, {request_id: [] for request_id in rows}, {})
    script = _Script(golden, config, engine)
    while True:
        due_s = engine.next_event_s()
        if script.next_s() <= due_s < math.inf or script.next_s() < due_s:
            script.call()
            continue
        if due_s == math.inf:
            result.expired_leases = engine.expired_leases
            return result
        for event in engine.advance(due_s):
            match event:
                case StepEnded():
                    for request_id in event.tokens:
                        result.token_times_s[int(request_id)].append(event.at_s)
                case TokensAdvanced():
                    result.token_times_s[int(event.request_id)] += event.times_s
                case Finished():
                    number = int(event.request_id)
                    result.finished[number] = event
                    if event.hand_off is not None:
                        script.handed_over(rows[number], event)
                case _:
                    pass


def _observed(now_s: float, batch: Batch) -> Step:
    prefills = tuple(
        (tokens, context, int(state.request_id)) for state, tokens, context, _, decode in batch.chunks if not decode
    )
    return Step(
        now_s,
        batch.starts_s,
        batch.ends_s - batch.starts_s,
        batch.decodes,
        batch.decode_context_tokens,
        prefills,
        batch.resumed,
        batch.preempted,
    )
