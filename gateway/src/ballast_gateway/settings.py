"""The one road from the settings file to the core's settings."""

from __future__ import annotations

from ballast_api.gateway_settings import GatewaySettings
from ballast_core.directing.settings import DirectorSettings
from ballast_core.directing.watch import WatchSettings
from ballast_core.model import Binding
from ballast_core.profiles import SHIPPED_PROFILES
from ballast_core.state.health import HealthSettings

BINDINGS = {"NixlConnector": Binding.LATE}
"""NIXL pulls: the decode endpoint is only needed when prefill has ended (vLLM `nixl/pull_scheduler.py`)."""


def director_settings(settings: GatewaySettings) -> DirectorSettings:
    """The settings of a gateway's Director. A profile of the file replaces the shipped one of its name."""
    own = {name: profile.to_core(name) for name, profile in settings.profiles.items()}
    return DirectorSettings(
        **settings.policy.build().parts(),
        binding=BINDINGS[settings.connector],
        max_in_flight=settings.limits.max_in_flight,
        max_retries=settings.limits.max_retries,
        health=HealthSettings(**dict(settings.health)),
        hold_s=settings.limits.hold_s,
        startup_s=settings.startup_s,
        watch=_watch(settings),
        empties_draining=_holds_streams(settings) and settings.streams.rescue,
        fallbacks=settings.picker.fallbacks if settings.face.serves_picker else 0,
        canary=None if settings.canary is None else settings.canary.to_core(),
        profiles={**SHIPPED_PROFILES, **own},
    )


def _holds_streams(settings: GatewaySettings) -> bool:
    """Whether the proxy face does, or agents that tell this gateway."""
    return settings.face.serves_proxy or settings.pod_api.token_file is not None


def _watch(settings: GatewaySettings) -> WatchSettings | None:
    """Only who holds streams sees what engines send."""
    watch = settings.watch
    if not (watch.enabled and _holds_streams(settings)):
        return None
    return WatchSettings(
        patience=watch.patience,
        step_floor_s=watch.step_floor_s,
        prefill_floor_s=watch.prefill_floor_s,
        opening_floor_s=watch.first_token_floor_s,
        request_floor_s=watch.request_floor_s,
    )
