"""How spans are written, by OpenTelemetry's names. Apart from the schema: an agent's process imports no pydantic."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

TraceProtocol: TypeAlias = Literal["http/json", "http/protobuf"]
PROTOCOLS: Final[tuple[TraceProtocol, ...]] = get_args(TraceProtocol)
JSON, PROTOBUF = PROTOCOLS
