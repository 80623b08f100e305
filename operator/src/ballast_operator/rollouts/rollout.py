"""The next step of a rollout that all pools make together: how many pods each revision may have now. Pure.

A change of the KV revision makes a second Deployment of each pool, and pods go from the old ones to the new one. Each
step is computed from what is there, so it is right after any interruption, and back as well as forth. It keeps, at
every instant and whatever the Deployments do in between:

1. at most `wanted + surge` pods of a pool that are not ending;
2. as many ready pods of a pool as before, or `wanted - unavailable` if that is less;
3. the share of new pods of one pool at most `max_skew` above that of any other pool that still has old ones. Where
   whole pods do not allow that, the one step that leaves the least difference is made alone;
4. an old pod of a pool that has a new one, while another pool has none that is ready: until then a new one has
   nobody to work with.

While a canary is watched, a pool has as many new pods as the canary is to have, the others are old, and at least one
is.

New pods count as soon as they are asked for, where they are to be few, and once they are ready, where they are to be
many.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ballast_api.names import RoleName

_EPSILON: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Counts:
    """Pods of one Deployment, or instances of one LeaderWorkerSet."""

    name: str
    """Kind and name."""
    asked: int
    """Those that its spec asks for."""
    pods: int = 0
    """Those that exist and are not ending."""
    ready: int = 0
    """Those of them that are ready."""

    @property
    def kept(self) -> int:
        """Ready pods that stay: unready ones go first."""
        return min(self.ready, self.asked)

    @property
    def most(self) -> int:
        """Pods that may exist now or as soon as its controller looks."""
        return max(self.asked, self.pods)


@dataclass(frozen=True, slots=True)
class Rolling:
    """One pool: what is wanted of it, and its Deployments."""

    wanted: int
    surge: int
    unavailable: int
    """These two are not both 0."""
    new: Counts
    old: tuple[Counts, ...] = ()
    """Those that are to lose their pods first stand first."""
    canary: int | None = None
    """New pods that it may have for now; None: all."""

    @property
    def most_new(self) -> int:
        """New pods that it may have now. Those that were asked for already stay."""
        return self.wanted if self.canary is None else min(max(self.canary, self.new.asked), self.wanted)

    @property
    def replaces(self) -> bool:
        """Whether pods of an older revision are left, or are asked for."""
        return any(each.most for each in self.old)

    @property
    def steady(self) -> bool:
        """Whether all new pods that were asked for are ready."""
        return self.new.kept == self.new.asked


Strength = tuple[float, float, int, str]
"""The highest serves most."""
_STAGES: Final[Mapping[RoleName, tuple[str, ...]]] = {
    "Prefill": ("prefill",),
    "Decode": ("decode",),
    "Flexible": ("prefill", "decode"),
}
"""Stages of a request that the instances of a pool do, by its role."""


def strengths(workloads: Sequence[tuple[RoleName, str, Counts]]) -> Mapping[str, Strength]:
    """What each KV revision serves: the smaller of its shares of the two stages, of instances that are ready, then of
    those that are asked for; then its instances. `workloads`: role of the pool, revision and counts of each.

    Revisions lose pods in this order, the same in all pools: one that keeps them in some pools only has pods that idle.
    """
    ready, asked, most = Counter[tuple[str, str]](), Counter[tuple[str, str]](), Counter[str]()
    for role, revision, counts in workloads:
        most[revision] += counts.most
        for stage in _STAGES[role]:
            ready[stage, revision] += counts.kept
            asked[stage, revision] += counts.asked
    total = Counter[str]()
    for (stage, _), number in asked.items():
        total[stage] += number
    stages = [stage for stage, number in total.items() if number]
    return {
        revision: (
            min((ready[stage, revision] / total[stage] for stage in stages), default=0.0),
            min((asked[stage, revision] / total[stage] for stage in stages), default=0.0),
            number,
            revision,
        )
        for revision, number in most.items()
    }


def next_counts(pools: Sequence[Rolling], max_skew: float) -> Mapping[str, int]:
    """Pods to ask for now, by name of the counts."""
    goals = _goals(pools, max_skew)
    lacking = [pool for pool in pools if pool.replaces and pool.wanted and not pool.new.kept]
    found: dict[str, int] = {}
    for pool, goal in zip(pools, goals, strict=True):
        found |= _within_bounds(pool, goal, alone=any(each is not pool for each in lacking))
    return found


def _goals(pools: Sequence[Rolling], max_skew: float) -> list[int]:
    """New pods of each pool that the skew allows."""
    rolling = [pool for pool in pools if pool.replaces and pool.wanted]
    goals = [_goal(pool, rolling, max_skew) if pool in rolling else pool.wanted for pool in pools]
    stuck = all(goal <= pool.new.asked for pool, goal in zip(pools, goals, strict=True) if pool in rolling)
    behind = [at for at, pool in enumerate(pools) if pool in rolling and pool.new.asked < pool.most_new]
    if stuck and behind and all(pool.steady for pool in rolling):
        best = min(behind, key=lambda at: (_skew_after(pools[at], rolling), pools[at].new.asked / pools[at].wanted, at))
        goals[best] = pools[best].new.asked + 1
    return goals


def _goal(pool: Rolling, rolling: Sequence[Rolling], max_skew: float) -> int:
    others = [other.new.kept / other.wanted for other in rolling if other is not pool]
    share = min(others, default=1.0) + max_skew
    allowed = math.floor(min(share, 1.0) * pool.wanted + _EPSILON)
    return min(max(allowed, pool.new.asked), pool.most_new)


def _skew_after(pool: Rolling, rolling: Sequence[Rolling]) -> float:
    """The largest difference of shares once this pool has one new pod more."""
    share = (pool.new.asked + 1) / pool.wanted
    return max((abs(share - other.new.kept / other.wanted) for other in rolling if other is not pool), default=0.0)


def _within_bounds(pool: Rolling, goal: int, *, alone: bool) -> Mapping[str, int]:
    """`alone`: its new pods idle yet, as another pool has none."""
    asked = sum(each.asked for each in pool.old)
    needed = max(pool.wanted - pool.unavailable - pool.new.kept, 0)
    kept = min(sum(each.kept for each in pool.old), needed)
    left = min(asked, max(kept, pool.wanted - goal))
    if alone and pool.new.kept:
        left = max(left, min(1, asked, pool.wanted + pool.surge - pool.new.most))
    if pool.canary is not None and pool.replaces and pool.wanted:
        # The old revision goes on to serve, so it may grow, too.
        left = max(left, min(max(pool.wanted - goal, 1), pool.wanted + pool.surge - max(pool.new.most, goal)))
    room = pool.wanted + pool.surge - max(sum(each.most for each in pool.old), left)
    new = min(goal, max(room, min(pool.new.asked, pool.wanted)))
    return {
        pool.new.name: new,
        **(_lowered(pool.old, asked - left) if left <= asked else _raised(pool.old, left - asked)),
    }


def _raised(old: Sequence[Counts], by: int) -> Mapping[str, int]:
    """More pods of the old revision that keeps its pods longest."""
    return {each.name: each.asked + (by if each is old[-1] else 0) for each in old}


def _lowered(old: Sequence[Counts], by: int) -> Mapping[str, int]:
    """Take pods away: first those that are not ready, of all old revisions."""
    asked = {each.name: each.asked for each in old}
    for unready in (True, False):
        for each in old:
            spare = min(by, asked[each.name] - each.kept if unready else asked[each.name])
            asked[each.name] -= spare
            by -= spare
    return asked
