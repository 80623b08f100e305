"""How evenly decode work is spread over the endpoints, sampled each second while requests arrive.

ARES's figure is the variance over decode endpoints of the time of a decode step, in ms^2, as a mean over time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ballast_sim.physics import PHYSICS
from ballast_sim.simulation.fleet.fleet import Fleet
from ballast_sim.simulation.inputs.shapes import Machine

EVERY_S = 1.0


@dataclass(slots=True)
class Balance:
    """Sums over samples. Endpoints that are down are left out; an idle one has no step to time and counts as 0.

    To be taken until the last arrival: afterwards the fleet empties, and its load cannot be even.
    """

    samples: int = 0
    _step_variance_ms2: float = 0.0
    _kv_variation: float = 0.0

    def sample(self, fleet: Fleet) -> None:
        """Add a sample of the engines' true state now."""
        physics = PHYSICS[fleet.settings.physics]
        loads: list[tuple[Machine, int, float]] = fleet.world.decode_loads()
        if len(loads) < 2:
            return
        tokens = np.array([held for _, _, held in loads])
        steps_ms = np.array([1e3 * physics.decode_step_s(machine.profile, n, held) for machine, n, held in loads])
        self.samples += 1
        self._step_variance_ms2 += float(steps_ms.var())
        mean = float(tokens.mean())
        self._kv_variation += float(tokens.std()) / mean if mean > 0 else 0.0

    def figures(self) -> dict[str, object]:
        """`step_variance_ms2`, and `kv_imbalance`: standard deviation over mean of the KV tokens in use."""
        count = self.samples
        return {
            "step_variance_ms2": self._step_variance_ms2 / count if count else None,
            "kv_imbalance": self._kv_variation / count if count else None,
        }
