"""What vLLM's gauges show of the requests and the KV cache."""

from collections.abc import Sequence
from typing import NamedTuple

from ballast_sim.engine.requests import RequestState, Status
from ballast_sim.engine.vllm.state import SchedulerState


class EngineLoad(NamedTuple):
    """Requests by state (`deferred` ones, whose KV is being pulled, wait too), KV usage."""

    running: int
    waiting: int
    deferred: int
    kv_usage_ratio: float


def engine_load(state: SchedulerState, new: Sequence[RequestState], kv_usage_ratio: float) -> EngineLoad:
    """`new` requests were not taken in by the scheduler yet; they count as waiting."""
    running, waiting = len(state.running), len(state.waiting) + len(state.skipped_waiting)
    deferred = sum(1 for request in state.skipped_waiting if request.status is Status.PULLING)
    return EngineLoad(running, waiting + len(new), deferred, kv_usage_ratio)


def transfer_stages(state: SchedulerState) -> dict[str, int]:
    """Waiting requests by the stage of their pull (vLLM's num_requests_kv_fetch_by_stage)."""
    pulling = [request.pull_reported for request in state.skipped_waiting if request.status is Status.PULLING]
    return {
        "waiting_to_start": sum(not request.pull_tried for request in state.waiting),
        "in_progress": pulling.count(False),
        "completed_waiting": pulling.count(True),
    }
