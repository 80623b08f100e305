"""How simulated engines work: by vLLM's own rules, or by the laws of the papers' simulators.

Directors, policies and gateways are the same on top of each.
"""

from collections.abc import Mapping
from types import MappingProxyType

from ballast_sim.physics.laws import ARES_LINEAR, SIBYL_HELD, SIBYL_PRINTED
from ballast_sim.physics.model import EngineModel, Physics
from ballast_sim.physics.papers import PaperPhysics
from ballast_sim.physics.vllm import VllmPhysics

VLLM = VllmPhysics()

PHYSICS: Mapping[str, Physics] = MappingProxyType(
    {
        "vllm": VLLM,
        "sibyl-printed": PaperPhysics(SIBYL_PRINTED),
        "sibyl-held": PaperPhysics(SIBYL_HELD),
        "ares-linear": PaperPhysics(ARES_LINEAR),
    }
)
"""By the name that `ballast simulate --physics` takes."""

__all__ = ["PHYSICS", "VLLM", "EngineModel", "PaperPhysics", "Physics", "VllmPhysics"]
