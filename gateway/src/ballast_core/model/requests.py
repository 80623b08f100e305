"""Requests: what is known at arrival, how they are bound to endpoints, and how they end."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NewType

RequestId = NewType("RequestId", str)
"""Names one client request from arrival to end; unique among the requests in flight."""


class Binding(StrEnum):
    """When the decode endpoint is fixed (design section 3, hand-off)."""

    EARLY = "early"
    """At arrival: push connectors, and sidecars that run both legs themselves."""
    LATE = "late"
    """At arrival for the projection, and again when prefill ends: pull connectors such as NIXL."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is known of a request when it arrives."""

    id: RequestId
    prompt_tokens: int
    """Exact when the prompt came as token ids, else the gateway's estimate."""
    max_output_tokens: int | None = None
    model: str = ""
    priority: int = 0
    """Lower is more urgent, as in vLLM."""
    subset: frozenset[str] | None = None
    """Addresses that the proxy allows (GIE's subset hint); None allows all."""
    block_hashes: tuple[int, ...] = ()
    """Names of the prompt's whole leading blocks (`beliefs.block_hashes`); empty if they are not known."""
    block_size: int = 0
    """Tokens of one such block; one size for all requests, others are taken as not known."""
    traffic_class: str = ""
    """Requests whose output lengths are learned together (model, adapter, objective); empty: with all others."""
    expected_output_tokens: float | None = None
    """Output tokens that a predictor foresees (an oracle in simulations); None: only the survival curve is known."""
    expected_thinking_tokens: float | None = None
    """How many of the first ones of these are thinking, which nobody waits for token by token; None: not known."""
    movable: bool = True
    """Whether it may go on at another endpoint after its first token: not where its state cannot be carried over."""
    ttft_objective_s: float | None = None
    """Within which its first token is due; None: nobody said."""
    divisible: bool = True
    """Whether its prompt may be cut: not where its driver cannot name the tokens of a part."""


class Outcome(StrEnum):
    """How a request ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    """The client went away."""


class RejectReason(StrEnum):
    """Why a request gets no endpoint. One table at the edge maps these to HTTP and gRPC codes."""

    NO_ENDPOINTS = "no-endpoints"
    """No endpoint of the needed role is ready and allowed."""
    SATURATED = "saturated"
    """The limit of requests in flight is reached."""
    UPSTREAM_FAILED = "upstream-failed"
    """Every endpoint that was tried failed before the first token."""
