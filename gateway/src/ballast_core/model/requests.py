"""Requests: what is known at arrival, how they are bound to endpoints, and how they end."""

from __future__ import annotations

from enum import StrEnum
from typing import NewType

from ballast_core.model.prompt_tokens import PromptTokens
from ballast_core.values import value

RequestId = NewType("RequestId", str)
"""Names one client request from arrival to end; unique among the requests in flight."""


class Binding(StrEnum):
    """When the decode endpoint of a disaggregated request becomes final."""

    EARLY = "early"
    """At dispatch: for push connectors, and for sidecars that run both legs themselves."""
    LATE = "late"
    """When prefill ends; the choice at dispatch is provisional. For pull connectors such as NIXL."""


@value
class Request:
    """What is known about a request when it arrives."""

    id: RequestId
    prompt_tokens: int
    """Exact if the prompt came as token ids, otherwise the gateway's estimate."""
    max_output_tokens: int | None = None
    model: str = ""
    priority: int = 0
    """Lower is more urgent, as in vLLM."""
    subset: frozenset[str] | None = None
    """Addresses that the proxy allows (GIE's subset hint); None allows all."""
    block_hashes: tuple[int, ...] = ()
    """Hashes of the prompt's leading whole blocks (`beliefs.block_hashes`); empty if not known."""
    block_size: int = 0
    """Tokens per block. All requests share one size; hashes of blocks of another size are ignored."""
    tokens: PromptTokens | None = None
    """The prompt as engines will see it; None if not known, or if no endpoint reports what it caches."""
    traffic_class: str = ""
    """Requests of one class share a survival curve (model, adapter, objective); empty: the pooled curve."""
    expected_output_tokens: float | None = None
    """Output length that a predictor expects (an oracle in simulations); None: only the survival curve is known."""
    expected_thinking_tokens: float | None = None
    """How many of those tokens, the first ones, are thinking: nothing waits for each of them. None: not known."""
    movable: bool = True
    """Whether its decode may migrate to another endpoint. False if its state cannot be carried over."""
    ttft_objective_s: float | None = None
    """Seconds from arrival in which the first token is due; None: no objective."""
    objective: str = ""
    """Name of the objective of its class, for those who look on; empty: none."""
    divisible: bool = True
    """Whether its prompt may be cut. False if its driver cannot identify the tokens of a part."""
    tenant: str = ""
    """Whose request it is: waiting requests of different tenants take turns. Empty: of all who are not told apart."""

    @property
    def names_prefix(self) -> bool:
        """Whether cached prefixes of it can be found at all."""
        return self.tokens is not None or bool(self.block_hashes)


class Outcome(StrEnum):
    """How a request ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    """The client disconnected."""


class RejectReason(StrEnum):
    """Why a request gets no endpoint. One table at the edge maps each reason to an HTTP and a gRPC code."""

    NO_ENDPOINTS = "no-endpoints"
    """No ready endpoint has the needed role and is allowed by the request's subset."""
    SATURATED = "saturated"
    """Too many requests are in flight or wait, or this one has waited too long for capacity."""
    UPSTREAM_FAILED = "upstream-failed"
    """Every endpoint that was tried failed before the first token."""
    UPSTREAM_REFUSED = "upstream-refused"
    """The endpoints that were tried gave the same 4xx, or one of them did where others had lately agreed with it."""
    RETRY_BUDGET = "retry-budget"
    """A leg failed, and retries are a larger share of the traffic already than they may be."""
    BREAKS_ENGINES = "breaks-engines"
    """Two endpoints broke off with this request and have given no sign of life since."""


class ShedCause(StrEnum):
    """What made a request one too many."""

    IN_FLIGHT = "in-flight"
    """As many requests as may be are in flight."""
    QUEUE_FULL = "queue-full"
    """As many requests as may be wait."""
    BACKLOG = "backlog"
    """The work that waits would take too long."""
    WAITED = "waited"
    """It has waited as long as it may."""
