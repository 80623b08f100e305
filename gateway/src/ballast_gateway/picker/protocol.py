"""Names on the wire of the endpoint-picker protocol, once.

Gateway API Inference Extension, `docs/proposals/004-endpoint-picker-protocol` (v1.0.0), and llm-d's router.
"""

from __future__ import annotations

from typing import Final

METADATA_NAMESPACE: Final = "envoy.lb"
SUBSET_NAMESPACE: Final = "envoy.lb.subset_hint"

DESTINATION: Final = "x-gateway-destination-endpoint"
"""Picker -> proxy, as header and as metadata: `ip:port`."""
SUBSET: Final = "x-gateway-destination-endpoint-subset"
"""Proxy -> picker, metadata: the only endpoints to pick from."""
SERVED: Final = "x-gateway-destination-endpoint-served"
"""Proxy -> picker, metadata of the response phase: the endpoint that served in the end."""
PREFILLER: Final = "x-prefiller-host-port"
"""Picker -> llm-d sidecar in the decode pod: where to prefill."""
REQUEST_ID: Final = "x-request-id"
PRIORITY: Final = "x-vllm-priority"
"""Picker -> engine: when a request's turn is, lower first, where the engine schedules by priority."""
OBJECTIVES: Final = ("x-llm-d-inference-objective", "x-gateway-inference-objective")
"""Client -> picker: the name of the request's objective, as llm-d and the inference extension call it."""

_ROUTING_HEADERS: Final = frozenset(
    {
        PREFILLER,
        "x-prefiller-url",
        "x-encoder-hosts-ports",
        "x-data-parallel-host-port",
        "x-kv-cache-source-host-port",
    }
)


def is_control_header(name: str) -> bool:
    """Whether only the picker may set this header (name in lower case). From a client it is removed."""
    return name in _ROUTING_HEADERS or name.startswith(DESTINATION)


CONTROL_HEADERS: Final = (*sorted(_ROUTING_HEADERS), SUBSET, SERVED)
"""What to remove when the client's headers were not shown to the picker."""

CHUNK_BYTES: Final = 62_000
"""Largest body chunk that is sent to the proxy in one message (Envoy takes up to 64 KiB)."""
