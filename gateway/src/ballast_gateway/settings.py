"""From the settings file to the core's own settings."""

from __future__ import annotations

from ballast_api.gateway_settings import GatewaySettings
from ballast_core.directing.settings import DirectorSettings
from ballast_core.model import Binding

BINDINGS = {"NixlConnector": Binding.LATE}
"""NIXL pulls: the decode endpoint is only needed when prefill has ended (vLLM `nixl/pull_scheduler.py`)."""


def director_settings(settings: GatewaySettings) -> DirectorSettings:
    """What the Director is told."""
    return DirectorSettings(
        **settings.policy.build().parts(),
        binding=BINDINGS[settings.connector],
        max_in_flight=settings.limits.max_in_flight,
        max_retries=settings.limits.max_retries,
        hold_s=settings.limits.hold_s,
    )
