"""A plan: the objects that must exist, those that must go, and what keeps the cluster from the spec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ballast_api.hardware_profile import HardwareProfileSpec
from ballast_api.scheduling_policy import SchedulingPolicySpec
from ballast_api.serving_pool import ServingPoolSpec
from ballast_core.attainment import Objective
from ballast_operator.kinds import Manifest, ObjectKey
from ballast_operator.problems.problem import Problem
from ballast_operator.rollouts.canary import Canary
from ballast_operator.rollouts.draining import Step


@dataclass(frozen=True, slots=True)
class Target:
    """What the fleet shall be: a spec that was acted on, and how many instances it means."""

    spec: ServingPoolSpec
    instances: Mapping[str, int]
    """Instances by name of the pool."""
    objectives: tuple[Objective, ...] = ()
    """What requests are measured against; empty also while one of them is not usable."""
    workloads: Mapping[str, ObjectKey] = field(default_factory=dict)
    """The Deployment or LeaderWorkerSet of the wanted revision, by name of the pool."""
    profiles: Mapping[str, HardwareProfileSpec] = field(default_factory=dict)
    """The usable HardwareProfiles that the spec names."""
    policy: SchedulingPolicySpec | None = None
    """What gateways go by; None while it is not usable."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What must be. It depends on what was observed, never on the order in which the cluster came to that state."""

    apply: tuple[Manifest, ...] = ()
    """Objects that must exist, in the order of writing."""
    resize: tuple[Manifest, ...] = ()
    """Numbers of pods of Deployments of older revisions."""
    prune: tuple[Manifest, ...] = ()
    """Children that must go, in the order of deleting."""
    held: frozenset[ObjectKey] = frozenset()
    """Objects that wait for something that is missing: neither applied nor pruned."""
    target: Target | None = None
    """None when the spec was not acted on."""
    problems: tuple[Problem, ...] = ()
    """What keeps the cluster from the spec, the first one first in the status."""
    remarks: tuple[str, ...] = ()
    """What a reader of the status should know although nothing is wrong."""
    marks: tuple[Manifest, ...] = ()
    """Pods that get marks, or lose them: their drains, as `specs.drain_marks` has them."""
    drains: Mapping[str, Step] = field(default_factory=dict)
    """Deployments that pods are to go from, by name."""
    settings_hash: str | None = None
    """Of the gateway's settings; None while they are held."""
    behind: tuple[str, ...] = ()
    """Gateway pods that have not seen these settings yet."""
    shadowed: bool = False
    """Whether older HTTPRoutes get all requests of ours."""
    canary: Canary | None = None
    """Of the KV revision that replaces another one."""
    look_again_s: float | None = None
    """Seconds until something is due although nothing changes; None if nothing is."""
