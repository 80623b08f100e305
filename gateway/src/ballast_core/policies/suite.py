"""A suite: the policies that together decide about requests. Only the placements are required."""

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
    """At most one policy of each kind."""

    prefill: Placement
    """Chooses the endpoint that prefills."""
    decode: Placement
    """Chooses the endpoint that decodes."""
    queue: QueueOrder | None = None
    """The order of requests that wait for capacity; None: by arrival."""
    admission: Admission | None = None
    """How many requests an endpoint takes at a time; None: no limit."""
    partition: Partition | None = None
    """Cuts requests into segments and chooses their endpoints; None: requests stay whole."""
    rescheduling: Rescheduling | None = None
    """Migrates running decodes; None: they stay where they are."""

    @property
    def needs(self) -> Belief:
        """The beliefs that any of the policies reads."""
        reading = (self.prefill, self.decode, self.queue, self.admission, self.partition, self.rescheduling)
        return reduce(or_, (policy.needs for policy in reading if policy is not None), Belief.NONE)

    def parts(self) -> Mapping[str, Any]:
        """Every policy by field name, None included: keyword arguments of `DirectorSettings`."""
        return {field.name: getattr(self, field.name) for field in fields(Suite)}
