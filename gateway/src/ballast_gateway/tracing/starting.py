"""Begins tracing where it is asked for. What OpenTelemetry brings is imported there alone."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ballast_gateway.tracing.exporting import Tracing


class CannotTrace(ValueError):
    """Its packages are missing."""


def tracing_of(
    *,
    service: str,
    whose: Mapping[str, str],
    endpoint: str | None,
    sample_ratio: float | None,
    follow_clients: bool,
    now_s: Callable[[], float],
    unix_s: float,
) -> Tracing | None:
    """As of `Tracing`; None where the environment forbids it. `whose` tells apart what runs on one host.

    Raises `CannotTrace`."""
    try:
        found = find_spec("opentelemetry.exporter.otlp.json.http")
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise CannotTrace("the packages for traces are not installed; install ballast[otel], or leave this out")
    from ballast_gateway.tracing.exporting import Tracing, is_disabled

    if is_disabled():
        return None
    instance = "/".join((socket.gethostname(), *(f"{kind}-{name}" for kind, name in whose.items())))
    return Tracing(
        service=service,
        instance=instance,
        endpoint=endpoint,
        sample_ratio=sample_ratio,
        follow_clients=follow_clients,
        now_s=now_s,
        unix_s=unix_s,
    )
