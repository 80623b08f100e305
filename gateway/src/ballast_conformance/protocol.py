"""The protocol's names and documents, written down from their sources and from nothing of Ballast's own.

Sources: Gateway API Inference Extension, `docs/proposals/004-endpoint-picker-protocol` (v1.0.0); Envoy,
`envoy/service/ext_proc/v3/external_processor.proto` and `processing_mode.proto`.
"""

from __future__ import annotations

from typing import Final

PROCESS: Final = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
SERVICE: Final = "envoy.service.ext_proc.v3.ExternalProcessor"
HEALTH_CHECK: Final = "/grpc.health.v1.Health/Check"
HEALTH_WATCH: Final = "/grpc.health.v1.Health/Watch"

NAMESPACE: Final = "envoy.lb"
SUBSET_NAMESPACE: Final = "envoy.lb.subset_hint"
DESTINATION: Final = "x-gateway-destination-endpoint"
SUBSET: Final = "x-gateway-destination-endpoint-subset"
SERVED: Final = "x-gateway-destination-endpoint-served"
OBJECTIVES: Final = ("x-gateway-inference-objective", "x-llm-d-inference-objective")
FAIRNESS_IDS: Final = ("x-gateway-inference-fairness-id", "x-llm-d-inference-fairness-id")

NO_BODY: Final = 0
STREAMED: Final = 1
BUFFERED: Final = 2
FULL_DUPLEX_STREAMED: Final = 4
"""`ProcessingMode.BodySendMode`."""

MOST_CHUNK_BYTES: Final = 65_536
"""What `processing_mode.proto` recommends at most for a chunk of a full-duplex body."""

# What cases cite.
STREAMING: Final = "004 Proposal"
TO_PROXY: Final = "004 Destination Endpoint"
HINT: Final = "004 Endpoint Subset"
FEEDBACK: Final = "004 Destination Endpoint Served"
HEALTH: Final = "004 Health Checking"
DUPLEX: Final = "ext_proc BodySendMode.FULL_DUPLEX_STREAMED"
MODES: Final = "ext_proc ProcessingMode.BodySendMode"
CONFIG: Final = "ext_proc ProtocolConfiguration"
REQUEST: Final = "ext_proc ProcessingRequest"
RESPONSE: Final = "ext_proc ProcessingResponse"
MUTATION: Final = "ext_proc HeaderMutation"
IMMEDIATE: Final = "ext_proc ImmediateResponse"
GRPC: Final = "gRPC PROTOCOL-HTTP2"
GRPC_HEALTH: Final = "gRPC health checking"


def http2(section: str) -> str:
    """A section of HTTP/2."""
    return f"RFC 9113 {section}"
