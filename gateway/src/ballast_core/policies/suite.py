"""A suite: the policies that decide together what becomes of a request. Any part may be left out but the placements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import reduce
from operator import or_
from typing import Any

from ballast_core.beliefs.kinds import Belief
from ballast_core.policies.admission import Admission
from ballast_core.policies.partition.protocol import Partition
from ballast_core.policies.placement.protocol import Placement
from ballast_core.policies.queue.protocol import QueueOrder
from ballast_core.policies.rescheduling.protocol import Rescheduling


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """One policy for each thing that is to be decided. None: nobody decides it."""

    prefill: Placement
    """Chooses the endpoint that prefills."""
    decode: Placement
    """Chooses the endpoint that decodes."""
    queue: QueueOrder | None = None
    """In which order requests go that wait for a place; by arrival where nobody says."""
    admission: Admission | None = None
    """How many requests an endpoint gets at a time; any number where nobody says."""
    partition: Partition | None = None
    """Cuts a request into segments for several endpoints, and chooses these."""
    rescheduling: Rescheduling | None = None
    """Moves running decodes."""

    @property
    def needs(self) -> Belief:
        """The beliefs that any of them reads."""
        reading = (self.prefill, self.decode, self.queue, self.partition, self.rescheduling)
        return reduce(or_, (policy.needs for policy in reading if policy is not None), Belief.NONE)

    def parts(self) -> Mapping[str, Any]:
        """Every policy by the name of its part, None where there is none: what `DirectorSettings` takes."""
        return {field.name: getattr(self, field.name) for field in fields(Suite)}
