"""The policies that are worth a run, each as the SchedulingPolicy to apply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ballast_api.faces import Face
from ballast_api.policy_fit import misfits
from ballast_api.scheduling_policy import SchedulingPolicySpec
from ballast_sim.recommend.layouts import Layout

FACE = Face.PROXY
"""The gateway of the manifests."""

DEFAULT = "default"

_PROMPT_CUTS: Mapping[str, Any] = {"type": "libra", "parameters": {"cuts": "prompt"}}
"""What engines and gateway carry out today."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One SchedulingPolicy to try. `extras` is how many parts it has beyond placements: fewer win within noise."""

    name: str
    spec: SchedulingPolicySpec
    extras: int = 0
    flexible: bool = False
    """Whether every engine must be able to hand off to every other one."""
    needs_warm_caches: bool = False
    """Whether its worth shows only after a while: it goes by what caches hold, and prompts share prefixes."""

    @property
    def is_default(self) -> bool:
        """Whether it is what a ServingPool without a policy gets."""
        return self.name == DEFAULT

    @property
    def obstacle(self) -> str:
        """Why no gateway of this release carries it out: it is simulated to be compared. Empty: one does."""
        return "; ".join(f"{each.part}: {each.reason}" for each in misfits(self.spec.build(), FACE))


def default_variant() -> Variant:
    """What a ServingPool without a policy gets."""
    return _variant(DEFAULT, {})


def variants(layout: Layout, *, shares_prefixes: bool) -> list[Variant]:
    """The default first, then what may beat it on such a layout."""
    queue = {"queue": _typed("uniboost"), "admission": _typed("bounded")}
    migrations = _variant("ares migrations", {"rescheduling": _typed("ares")}, extras=1)
    if layout.colocated:
        tried = [
            _variant("lmetric", _placements("lmetric"), needs_warm_caches=shares_prefixes),
            _variant("least-requests", _placements("least-requests")),
            _variant("uniboost queue", queue, extras=2),
            migrations,
            _variant("libra partition", {"partition": _typed("libra")}, extras=1, flexible=True),
            _variant("libra prompt cuts", {"partition": _PROMPT_CUTS}, extras=1, flexible=True),
        ]
    else:
        tried = [
            _variant("sibyl", {"decode": _typed("sibyl")}),
            _variant("least-requests", {"decode": _typed("least-requests")}),
            _variant("uniboost queue", queue, extras=2),
            migrations,
        ]
        if shares_prefixes:
            tried.insert(0, _variant("lmetric prefill", {"prefill": _typed("lmetric")}, needs_warm_caches=True))
    return [default_variant(), *tried]


def _typed(name: str) -> Mapping[str, Any]:
    return {"type": name}


def _placements(name: str) -> Mapping[str, Any]:
    return {"prefill": _typed(name), "decode": _typed(name)}


def _variant(
    name: str, spec: Mapping[str, Any], *, extras: int = 0, flexible: bool = False, needs_warm_caches: bool = False
) -> Variant:
    return Variant(name, SchedulingPolicySpec.model_validate(spec), extras, flexible, needs_warm_caches)
