"""Requests as the engine sees them: what was asked, and how far it has come."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from ballast_sim.engine.content import BlockHashes
from ballast_sim.engine.events import RequestStats

if TYPE_CHECKING:
    from ballast_sim.engine.batch import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """What is asked of the engine.

    It ends after `max_tokens` outputs, or after `stop_after` of them by a stop token, which asynchronous scheduling
    does not foresee. `pull` takes the prompt's KV from another engine, all of it or that of the first `pull_tokens`
    tokens, and computes the rest here; `hold` keeps this one's KV for another engine to pull. Lower `priority` goes
    first where the policy is "priority" or an order is set; `expected_output_tokens` (what a predictor says) and
    `deadline_s` of its first token are read by orders only. `tbt_slo_s` relaxes, or tightens, what its decode asks of
    an engine that has a `tbt_slo_s` itself.
    """

    request_id: str
    input_tokens: int
    max_tokens: int
    content: BlockHashes
    arrival_s: float
    priority: int = 0
    stop_after: int | None = None
    pull: bool = False
    pull_tokens: int | None = None
    hold: bool = False
    tbt_slo_s: float | None = None
    expected_output_tokens: float | None = None
    deadline_s: float | None = None


class Status(IntEnum):
    """Where a request is; from FINISHED on it is over."""

    WAITING = 0
    PULLING = 1
    PREEMPTED = 2
    RUNNING = 3
    FINISHED = 4


class RequestState:
    """The scheduler's own account of a request; names follow vLLM's v1/request.py."""

    __slots__ = (
        "attained_at_dispatch",
        "blocks",
        "cached_blocks",
        "cached_tokens",
        "computed",
        "content",
        "crosses_at",
        "ends_after",
        "evictable",
        "first_token_s",
        "forced_preemptions",
        "hit_tokens",
        "in_flight",
        "input_tokens",
        "joined",
        "key",
        "last_step",
        "last_token_s",
        "length_limit",
        "max_tokens",
        "num_tokens",
        "order",
        "output_tokens",
        "placeholders",
        "preemptions",
        "prefill_steps",
        "pull_failed",
        "pull_reported",
        "pull_tokens",
        "pull_tried",
        "pulled_tokens",
        "reach",
        "request",
        "request_id",
        "scheduled_s",
        "stale",
        "status",
    )

    def __init__(self, request: EngineRequest, max_model_len: int) -> None:
        """`max_tokens` is cut to what the model's length leaves, as vLLM does."""
        self.request = request
        self.request_id = request.request_id
        self.content = request.content
        self.input_tokens = request.input_tokens
        self.max_tokens = min(request.max_tokens, max_model_len - request.input_tokens)
        self.ends_after = min(self.max_tokens, request.stop_after or self.max_tokens)
        self.length_limit = self.input_tokens + self.max_tokens
        self.key: tuple[int, float, float, str] = (
            request.priority,
            request.arrival_s,
            request.arrival_s,
            request.request_id,
        )
        self.status = Status.WAITING
        self.blocks: list[int] = []
        self.cached_blocks = 0
        self.num_tokens = request.input_tokens
        self.output_tokens = 0
        self.computed = 0
        self.placeholders = 0
        self.in_flight = 0
        self.stale = 0
        self.last_step = 0
        self.order = 0  # of admission
        self.joined = 0  # see `cohort`
        self.preemptions = 0
        self.pull_tried = not request.pull
        self.pull_tokens = request.input_tokens if request.pull_tokens is None else request.pull_tokens
        self.pull_reported = False
        self.pull_failed = False
        self.pulled_tokens = 0
        self.prefill_steps: list[tuple[Batch, int]] | None = [] if request.hold else None
        self.cached_tokens = 0
        # What `ordering` knows of it.
        self.hit_tokens = 0  # of the prompt, without computing
        self.reach = 0  # the most tokens that were ever computed, when it last stopped running
        self.crosses_at = 0  # the tokens computed at which its rank changes
        self.attained_at_dispatch = 0
        self.evictable = False
        self.forced_preemptions = 0
        self.scheduled_s: float | None = None
        self.first_token_s: float | None = None
        self.last_token_s: float | None = None

    def __lt__(self, other: RequestState) -> bool:
        """By rank: (priority, the order's key or else the arrival, arrival, id)."""
        return self.key < other.key

    def stats(self) -> RequestStats:
        """The request's life so far."""
        return RequestStats(
            arrival_s=self.request.arrival_s,
            scheduled_s=self.scheduled_s,
            first_token_s=self.first_token_s,
            last_token_s=self.last_token_s,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            cached_tokens=self.cached_tokens,
            pulled_tokens=self.pulled_tokens,
            preemptions=self.preemptions,
            forced_preemptions=self.forced_preemptions,
        )
