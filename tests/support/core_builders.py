"""Builders with quiet defaults: a test shows only what matters."""

from __future__ import annotations

from collections.abc import Sequence

from ballast_core.directing.director import Director
from ballast_core.directing.settings import DirectorSettings
from ballast_core.model import Binding, Endpoint, EndpointId, Observation, Request, RequestId, Role
from ballast_core.model.effects import Dispatch, Effect
from ballast_core.model.events import EndpointObserved
from ballast_core.policies.placement.placements import LeastRequests
from ballast_core.policies.placement.protocol import Placement
from ballast_core.profiles import SHIPPED_PROFILES


def endpoint(name: str, role: Role | None = None) -> Endpoint:
    """An endpoint whose role follows from its name: p* prefill, f* flexible, else decode."""
    by_letter = {"p": Role.PREFILL, "f": Role.FLEXIBLE}
    return Endpoint(EndpointId(name), f"{name}:8000", role or by_letter.get(name[0], Role.DECODE))


def request(name: str = "r", prompt_tokens: int = 100, subset: frozenset[str] | None = None) -> Request:
    return Request(RequestId(name), prompt_tokens=prompt_tokens, subset=subset)


def observation(running: int = 0, waiting: int = 0, at_s: float = 0.0) -> Observation:
    return Observation(observed_at_s=at_s, running=running, waiting=waiting)


def director(
    names: Sequence[str] = ("p0", "p1", "d0", "d1", "d2"),
    *,
    policy: Placement | None = None,
    binding: Binding = Binding.LATE,
    hold_s: float = 0.0,
    max_in_flight: int | None = None,
) -> Director:
    """A Director with these endpoints ready."""
    policy = policy or LeastRequests()
    made = Director(
        DirectorSettings(
            prefill=policy,
            decode=policy,
            binding=binding,
            hold_s=hold_s,
            max_in_flight=max_in_flight,
            profiles=SHIPPED_PROFILES,
        )
    )
    for name in names:
        made.on_event(EndpointObserved(endpoint(name)), 0.0)
    return made


def only_dispatch(effects: list[Effect]) -> Dispatch:
    """The one dispatch among the effects."""
    (found,) = [effect for effect in effects if isinstance(effect, Dispatch)]
    return found
