"""What an agent is started with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ballast_api.addresses import is_address

MEBIBYTE = 1024 * 1024
MOST_TEXT_MIB = 8
"""Of a held request without media in it, whatever `--max-body-mib` says."""


class BadSetting(ValueError):
    """A value that is refused: names its flag, and the fix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """Times are in seconds. Defaults and bounds are those of the gateway's limits."""

    token_file: Path
    name: str
    """Of the pod, which is its endpoint's id."""
    address: str
    """`POD_IP:PORT` at which pickers and peers reach this agent."""
    engine: str = "127.0.0.1:8200"
    host: str = "0.0.0.0"
    port: int = 8000
    pod_api_host: str = "0.0.0.0"
    pod_api_port: int = 9004
    trust_prefiller_header: bool = False
    rescue: bool = True
    drain_timeout_s: float = 300.0
    prefill_timeout_s: float = 300.0
    idle_timeout_s: float = 300.0
    connect_timeout_s: float = 5.0
    max_body_bytes: int = 16 * MEBIBYTE
    """Of a held request with media in it."""
    max_text_body_bytes: int = MOST_TEXT_MIB * MEBIBYTE
    """Of a held request without."""
    max_bodies_bytes: int = 256 * MEBIBYTE
    """Memory of all held requests' bodies, as estimated."""
    trace_endpoint: str = ""
    """Base URL of an OTLP/HTTP receiver; empty: no traces."""

    def __post_init__(self) -> None:
        """Raises `BadSetting`."""
        for flag, port in (("--port", self.port), ("--pod-api-port", self.pod_api_port)):
            if not 0 <= port < 65536:
                raise BadSetting(f"{flag}: must be a port from 0 (any free one) to 65535, not {port}")
        for flag, value in (("--engine", self.engine), ("--address", self.address)):
            if not is_address(value):
                raise BadSetting(f"{flag}: must be HOST:PORT with an IPv6 host in brackets, not {value!r}")
        if self.trace_endpoint and not self.trace_endpoint.startswith(("http://", "https://")):
            raise BadSetting(f"--trace-endpoint: must be http://HOST:PORT or https://..., not {self.trace_endpoint!r}")
        if not self.name or "/" in self.name or not self.name.isprintable():
            raise BadSetting(f"--name: must be the pod's name (set POD_NAME by the downward API), not {self.name!r}")
        for flag, seconds in (
            ("--drain-timeout", self.drain_timeout_s),
            ("--prefill-timeout", self.prefill_timeout_s),
            ("--idle-timeout", self.idle_timeout_s),
        ):
            if not 0 < seconds < float("inf"):
                raise BadSetting(f"{flag}: must be seconds above 0, not {seconds:g}")
        if self.max_body_bytes <= 0:
            raise BadSetting(f"--max-body-mib: must be 1 or more, not {self.max_body_bytes // MEBIBYTE}")
