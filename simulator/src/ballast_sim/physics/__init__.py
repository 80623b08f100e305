"""How simulated engines work: vLLM's own rules, or the laws by which papers simulated their fleets.

The same Directors, policies and gateways run on top of each.
"""

from ballast_sim.physics.model import EngineModel, Physics
from ballast_sim.physics.vllm import VllmPhysics

VLLM = VllmPhysics()

__all__ = ["VLLM", "EngineModel", "Physics", "VllmPhysics"]
