"""A placement of one's own: the smallest share of the KV cache in flight, so larger caches take more requests.

From this folder:

    ballast simulate --policy-module least_kv_share:LeastKvShare --policy least-kv-share,round-robin,ballast \
      --workload chat --rate 8 --endpoints 2P@a100,4P4D@h20 --slo ttft=2,tpot=0.05 --duration 120
"""

from dataclasses import dataclass
from typing import ClassVar

from ballast_core.arrays import FloatArray
from ballast_core.beliefs.kinds import Belief
from ballast_core.model import Request
from ballast_core.state.view import View


@dataclass(frozen=True, slots=True)
class LeastKvShare:
    """cost_i = tokens in flight at i / tokens that its KV cache holds."""

    type: ClassVar[str] = "least-kv-share"
    needs: ClassVar[Belief] = Belief.NONE

    def costs(self, view: View, request: Request) -> FloatArray:
        """One cost for each candidate of `view`; the lowest wins, ties go to the least recently chosen."""
        return view.tokens / view.kv_tokens
