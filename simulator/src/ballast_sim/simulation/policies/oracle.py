"""The oracle: `ballast` with every output's length known. What any placement could gain by better predictions.

It is no optimum: it weighs by the same costs and knows nothing of arrivals to come. Where endpoints prefill, too, it is
no measure: term 7 weighs by how short outputs may stay, and it learns no distribution. Only the simulator can run it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ballast_core.arrays import FloatArray
from ballast_core.beliefs.kinds import Belief
from ballast_core.model import Request
from ballast_core.policies.placement.ballast import Ballast
from ballast_core.state.view import View


@dataclass(frozen=True, slots=True)
class Oracle:
    """Costs as `ballast`, with the true output length of every request instead of survival curves. `simulate` only."""

    type: ClassVar[str] = "oracle"
    needs: ClassVar[Belief] = Ballast.needs & ~Belief.LENGTHS

    def costs(self, view: View, request: Request) -> FloatArray:
        return Ballast().costs(view, request)
