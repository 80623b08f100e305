"""What people are told of instances that go: each is empty, or goes although requests are still there. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from ballast_api.conditions import Reason
from ballast_operator.planning.planned import Plan
from ballast_operator.rollouts.draining import Victim
from ballast_operator.status.notice import Notice


def drain_notices(plan: Plan) -> Iterator[Notice]:
    """Of the instances that are about to get the mark by which they go: once each, twice if the operator dies then."""
    for deployment, step in plan.drains.items():
        for victim in step.victims:
            if victim.goes and not victim.costed:
                yield _notice(deployment, victim)


def _notice(deployment: str, victim: Victim) -> Notice:
    who = f"{deployment}: {victim.name}"
    if not victim.late:
        return Notice(Reason.DRAINED, f"{who} is empty after {victim.marked_s:.0f} s and goes")
    rest = "an unknown number of requests" if victim.left is None else f"{victim.left} requests"
    tied = f", {victim.tied} of which cannot move" if victim.tied else ""
    message = f"{who} goes after {victim.marked_s:.0f} s with {rest}{tied}; what its drain time does not end is lost"
    return Notice(Reason.DRAIN_TIMED_OUT, message, warning=True)
