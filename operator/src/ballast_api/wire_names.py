"""Names of headers and of Envoy metadata, once for operator, proxy face and picker face. All in lower case.

Sources: Gateway API Inference Extension `docs/proposals/004-endpoint-picker-protocol` (v1.0.0); llm-d's router and
sidecar, `pkg/common/routing`; vLLM 0.32 `entrypoints`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

METADATA_NAMESPACE: Final = "envoy.lb"
"""Namespace of the metadata in which picker and Envoy name the chosen endpoint and the one that served."""
MODEL_NAME = "x-gateway-model-name"
"""Header in which clients, or a body-based router in front, repeat the request's model for routes (GIE)."""
SUBSET_NAMESPACE: Final = "envoy.lb.subset_hint"
"""Namespace of the metadata in which Envoy names the endpoints to pick from."""

DESTINATION: Final = "x-gateway-destination-endpoint"
"""Picker -> Envoy, as header and as metadata: `ip:port`. Names that begin with it belong to the protocol, too."""
SUBSET: Final = "x-gateway-destination-endpoint-subset"
"""Envoy -> picker, metadata: the only endpoints to pick from."""
SERVED: Final = "x-gateway-destination-endpoint-served"
"""Envoy -> picker, metadata of the response phase: the endpoint that served in the end."""
UPSTREAM_ATTRIBUTE: Final = "upstream.address"
"""Envoy -> picker: the same as one of Envoy's own attributes, where its ext_proc filter is told to send it."""

REQUEST_ID: Final = "x-request-id"
OBJECTIVES: Final = ("x-llm-d-inference-objective", "x-gateway-inference-objective")
"""Client -> gateway: the name of a request's objective; the first is llm-d's, the second the inference extension's."""
PRIORITY: Final = "x-vllm-priority"
"""Client or gateway -> vLLM: a request's turn where the engine schedules by priority, lower first. Wins over the
body's `priority`."""

DEADLINE: Final = "x-envoy-expected-rq-timeout-ms"
"""Client or proxy -> gateway: milliseconds until it gives the request up. Envoy sets it on what it sends upstream."""

PREFILLER: Final = "x-prefiller-host-port"
"""Picker -> llm-d's sidecar in the decode pod: where to prefill."""
PLAN: Final = "x-ballast-plan"
"""Picker -> Ballast's agent in the decode pod: all that was decided about the request, signed (docs/pod-api.md)."""
LOAD_REPORT: Final = "endpoint-load-metrics"
"""vLLM -> gateway: an ORCA load report, where the request asked for one."""

CONTROL_HEADERS: Final = (
    DESTINATION,
    SUBSET,
    SERVED,
    PLAN,
    # llm-d's sidecar, today's names
    PREFILLER,
    "x-encoder-hosts-ports",
    "x-kv-cache-source-host-port",
    "x-data-parallel-host-port",
    # llm-d's sidecar, the names before and after these
    "x-prefiller-url",
    "x-llm-d-prefiller-host-port",
    "x-llm-d-encoder-hosts-ports",
    "x-llm-d-kv-cache-source-host-port",
    # vLLM: which rank computes, and whether the answer reports the engine's load
    "x-data-parallel-rank",
    f"{LOAD_REPORT}-format",
)
"""What decides where a request goes, whose KV it reads, or what an engine reveals: never taken from a client."""

_CONTROL: Final = frozenset(CONTROL_HEADERS)


def control_headers(names: Collection[str]) -> list[str]:
    """Those of a request's headers that no client may set: in the table, or with a name that extends `DESTINATION`."""
    if _CONTROL.isdisjoint(names) and DESTINATION not in "\n".join(names):  # as nearly always
        return []
    return [name for name in names if name in _CONTROL or name.startswith(DESTINATION)]
