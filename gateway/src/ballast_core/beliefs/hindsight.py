"""How placements look once their prefill has ended: what was predicted, what it took, and what another choice promised.

Judged are prefills that ended where they were placed and of which another candidate existed. The other one is the
candidate, beside the one that was chosen, whose prefill was expected to end first when the decision was made, by
everything learned until then. Regret is by how much the real time was above that: 0 where the choice was no worse.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Hindsight:
    """Sums over all judged prefills; seconds from dispatch to the end of the prefill."""

    judged: int = 0
    predicted_s: float = 0.0
    """Expected where it was placed."""
    observed_s: float = 0.0
    other_s: float = 0.0
    """Expected on the best other candidate."""
    regret_s: float = 0.0

    def judge(self, *, predicted_s: float, observed_s: float, other_s: float) -> None:
        """One more."""
        self.judged += 1
        self.predicted_s += predicted_s
        self.observed_s += observed_s
        self.other_s += other_s
        self.regret_s += max(0.0, observed_s - other_s)
