"""Begins tracing where it is asked for. What OpenTelemetry brings is imported there alone."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ballast_api.trace_protocols import JSON, PROTOBUF, PROTOCOLS, TraceProtocol

if TYPE_CHECKING:
    from ballast_gateway.tracing.exporting import Tracing

_PROTOCOL = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


class CannotTrace(ValueError):
    """Its packages are missing, or the environment asks for what there is not."""


def tracing_of(
    *,
    service: str,
    whose: Mapping[str, str],
    endpoint: str | None,
    protocol: TraceProtocol | None = None,
    sample_ratio: float | None,
    follow_clients: bool,
    now_s: Callable[[], float],
    unix_s: float,
) -> Tracing | None:
    """As of `Tracing`; None where the environment forbids it. `whose` tells apart what runs on one host. Without a
    `protocol` the environment says it.

    Raises `CannotTrace`."""
    try:
        found = find_spec("opentelemetry.exporter.otlp.json.http")
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise CannotTrace("the packages for traces are not installed; install ballast[otel], or leave this out")
    instance = "/".join((socket.gethostname(), *(f"{kind}-{name}" for kind, name in whose.items())))
    protobuf = _protocol(protocol) == PROTOBUF
    try:
        from ballast_gateway.tracing.exporting import Tracing, is_disabled  # reads the environment, too

        if is_disabled():
            return None
        return Tracing(
            service=service,
            instance=instance,
            endpoint=endpoint,
            protobuf=protobuf,
            sample_ratio=sample_ratio,
            follow_clients=follow_clients,
            now_s=now_s,
            unix_s=unix_s,
        )
    except ValueError as error:
        raise CannotTrace(f"OpenTelemetry refuses its environment (OTEL_*): {error}") from error


def _protocol(asked: TraceProtocol | None) -> str:
    if asked is not None:
        return asked
    name = next((name for name in _PROTOCOL if os.environ.get(name)), "")
    said = os.environ[name].strip().lower() if name else JSON
    if said not in PROTOCOLS:
        known = " or ".join(PROTOCOLS)
        raise CannotTrace(f"{name} is {said!r}; spans go out by {known} (receivers take both on port 4318)")
    return said
