"""A partition policy that cuts every prompt at a given place, and a gateway that follows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ballast_core.beliefs.kinds import Belief
from ballast_core.directing.partitioner import Partitioner
from ballast_core.model import EndpointId
from ballast_core.model.segments import Segment
from ballast_core.policies.partition.protocol import Plan
from ballast_core.state.book import Book
from ballast_core.state.view import View
from tests.support.gateway_kit import RunningGateway

CUTTING = {"partition": {"type": "libra", "parameters": {"cuts": "prompt"}}}
"""A policy that face Proxy carries out."""


@dataclass(slots=True)
class CutAt:
    """The first part on `first` where it is to be had, the rest on the endpoint after it in the view."""

    ratio: float
    first: EndpointId
    by_turns: bool = False
    """Whether the next request begins where this one ends."""
    type: ClassVar[str] = "cut-at"
    needs: ClassVar[Belief] = Belief.NONE

    def plan(self, view: View, book: Book) -> Plan | None:
        endpoints, prompt = view.endpoints, view.request.prompt_tokens
        ids = [endpoint.id for endpoint in endpoints]
        at = ids.index(self.first) if self.first in ids else 0
        position = int(prompt * self.ratio)
        if len(ids) < 2 or position < 1:
            return Plan((Segment(endpoints[at], None),), prompt + 1)
        then = endpoints[(at + 1) % len(ids)]
        if self.by_turns:
            self.first = then.id
        return Plan((Segment(endpoints[at], position), Segment(then, None)), prompt + 1)


def cut_at(gateway: RunningGateway, ratio: float, first: str = "f0") -> CutAt:
    """Put it in the place of the gateway's own partition policy, which it must have."""
    partitioner = gateway.gateway.driver.director.partitioner
    assert isinstance(partitioner, Partitioner)
    policy = partitioner.planner = CutAt(ratio, EndpointId(first))
    return policy
