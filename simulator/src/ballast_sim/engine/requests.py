"""Requests inside the engine: what was submitted, and how far it has come (vLLM's v1/request.py)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from ballast_sim.engine.content import BlockHashes
from ballast_sim.engine.events import RequestStats


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """A request as submitted to the engine.

    It ends after `max_tokens` outputs, or after `stop_after` of them by a stop token, which asynchronous scheduling
    does not foresee. `pull` reads the prompt's KV from another engine, all of it or that of the first `pull_tokens`
    tokens, and computes the rest here; `hold` keeps this request's KV for another engine to pull. Lower `priority` goes
    first where the policy is "priority" or an `ordering` is set; `expected_output_tokens` (a predictor's estimate) and
    `deadline_s` (of the first token) are read by orders only. `tbt_slo_s` replaces the engine's own `tbt_slo_s` for
    this request's decode. `marks` reports it as `mark_as` (`request_id` if that is None; not at all if it is
    empty), with `mark_from` tokens more than it has here.
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
    mark_as: str | None = None
    mark_from: int = 0
    adapter: str = ""
    """Name of its LoRA adapter; empty for the base model."""


class TimedStep(Protocol):
    """A composed step. Its end is final only once the step has started."""

    ends_s: float


class Status(IntEnum):
    """Lifecycle of a request. PULLING is vLLM's WAITING_FOR_REMOTE_KVS."""

    WAITING = 0
    PULLING = 1
    PREEMPTED = 2
    RUNNING = 3
    FINISHED = 4


class RequestState:
    """The scheduler's record of a request.

    `computed` is vLLM's num_computed_tokens, `placeholders` its num_output_placeholders, `blocks` the block table: all
    three include the steps in flight. `num_tokens` and `output_tokens` count what finished steps have returned.
    """

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
        "request_id",
        "scheduled_s",
        "spec",
        "stale",
        "status",
    )

    def __init__(self, spec: EngineRequest, max_model_len: int) -> None:
        """`max_tokens` is cut to what the model's length leaves, as vLLM does."""
        self.spec = spec
        self.request_id = spec.request_id
        self.content = spec.content
        self.input_tokens = spec.input_tokens
        self.max_tokens = min(spec.max_tokens, max_model_len - spec.input_tokens)
        self.ends_after = min(self.max_tokens, spec.stop_after or self.max_tokens)
        self.length_limit = self.input_tokens + self.max_tokens
        self.key: tuple[int, float, float, str] = (
            spec.priority,
            spec.arrival_s,
            spec.arrival_s,
            spec.request_id,
        )
        self.status = Status.WAITING
        self.blocks: list[int] = []
        self.cached_blocks = 0
        self.num_tokens = spec.input_tokens
        self.output_tokens = 0
        self.computed = 0
        self.placeholders = 0
        self.in_flight = 0
        self.stale = 0  # tokens still in flight from before its preemption
        self.last_step = 0
        self.order = 0  # number of its last admission
        self.joined = 0  # see `coarse.cohort`
        self.preemptions = 0
        self.pull_tried = not spec.pull
        self.pull_tokens = spec.input_tokens if spec.pull_tokens is None else spec.pull_tokens
        self.pull_reported = False
        self.pull_failed = False
        self.pulled_tokens = 0
        self.prefill_steps: list[tuple[TimedStep, int]] | None = [] if spec.hold else None
        self.cached_tokens = 0
        # Written by `papers.ranks`.
        self.hit_tokens = 0  # prompt tokens found in the prefix cache
        self.reach = 0  # the most tokens ever computed, as of its last preemption
        self.crosses_at = 0  # its rank changes when so many tokens have been computed
        self.attained_at_dispatch = 0  # work attained when it last began to run
        self.evictable = False
        self.forced_preemptions = 0
        self.scheduled_s: float | None = None
        self.first_token_s: float | None = None
        self.last_token_s: float | None = None

    def __lt__(self, other: RequestState) -> bool:
        """By `key`: (priority, the order's key or else the arrival, arrival, id)."""
        return self.key < other.key

    def stats(self) -> RequestStats:
        """The request's life so far."""
        return RequestStats(
            arrival_s=self.spec.arrival_s,
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
