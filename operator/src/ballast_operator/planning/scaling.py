"""Scaling as a look sees it: what is to be decided on, and what the status says of decisions. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ballast_api import names
from ballast_api.conditions import ConditionType, Reason
from ballast_api.hardware_profile import HardwareProfileSpec
from ballast_api.serving_pool import PoolSpec, ScalingDecision, ServingPoolSpec
from ballast_core.policies.scaling.protocol import Clamps
from ballast_operator.conditions import Finding
from ballast_operator.kinds import CONFIG_MAP, ObjectKey
from ballast_operator.observed import Observed
from ballast_operator.planning.planned import Plan, Target
from ballast_operator.scaling.records import NOTHING, stored_among
from ballast_operator.scaling.steered import Rehearse, Steered, SteeredPool
from ballast_operator.specs.engine_container import gpus_of

REFUSALS: Final[Mapping[str, Reason]] = {
    str(reason): reason
    for reason in (
        Reason.NO_TRAFFIC,
        Reason.NO_LENGTHS,
        Reason.SPEED_UNKNOWN,
        Reason.NO_OBJECTIVE,
        Reason.NO_POOLS,
        Reason.CLAMPS_CONTRADICT,
        Reason.BUDGET_TOO_SMALL,
        Reason.OBJECTIVE_OUT_OF_REACH,
        Reason.GATEWAYS_SILENT,
    )
}
"""Reasons of decisions that scale nothing whatever the traffic; all others are of decisions that weigh it."""


def kept_objects(spec: ServingPoolSpec, name: str) -> frozenset[ObjectKey]:
    """What is neither applied nor pruned by looks: decisions are written by who takes them."""
    return frozenset() if spec.ratio.mode == "Off" else frozenset({CONFIG_MAP.key(names.scaling_name(name))})


def steered(observed: Observed, plan: Plan, token: bytes) -> Steered | None:
    """What is to be decided on; None with mode Off, and while a HardwareProfile or an objective is missing."""
    target = plan.target
    if target is None or target.spec.ratio.mode == "Off" or observed.deleting:
        return None
    if _lacks(target):
        return None
    spec, profiles = target.spec, target.profiles
    priced = all(profiles[pool.hardware].cost_per_hour for pool in spec.pools)
    return Steered(
        uid=str(observed.pool["metadata"].get("uid", "")),
        mode=spec.ratio.mode,
        pools=tuple(_pool(spec, pool, profiles[pool.hardware], target, priced=priced) for pool in spec.pools),
        objectives=tuple(each for each in target.objectives if each.limits),
        clamps=Clamps(min_ratio=spec.ratio.min_ratio, max_ratio=spec.ratio.max_ratio, gpu_budget=spec.gpu_budget),
        zero_after_s=spec.ratio.scale_to_zero_after_s,
        down_s=spec.scale_down.stabilization_s,
        rehearse=_rehearse(target),
        token=token,
        kept=stored_among(observed.children, observed.name) is not NOTHING,
    )


def _lacks(target: Target) -> bool:
    """Whether a HardwareProfile or an objective is not usable."""
    spec = target.spec
    lacking = any(pool.hardware not in target.profiles for pool in spec.pools)
    return lacking or len(target.objectives) < len(spec.objective_names)


def scaling_active(observed: Observed, target: Target, resolved: Finding) -> tuple[Finding, ...]:
    """The condition ScalingActive; none with mode Off. `resolved`: whether what the spec names is usable."""
    mode = target.spec.ratio.mode
    if mode == "Off":
        return ()
    kind, stored = ConditionType.SCALING_ACTIVE, stored_among(observed.children, observed.name)
    if _lacks(target):
        return (Finding(kind, "False", resolved.reason, f"{resolved.message}; nothing is scaled"),)
    if stored.last is None or stored.mode != mode:
        return (Finding(kind, "Unknown", Reason.NOT_MEASURED, "nothing has been decided yet"),)
    refusal = REFUSALS.get(stored.last.reason)
    if refusal is not None:
        return (Finding(kind, "False", refusal, stored.last.message),)
    if mode == "Advisory":
        return (Finding(kind, "True", Reason.ADVISED, "status.lastScaling has the advice; nothing is changed"),)
    fixed = [pool.name for pool in target.spec.pools if not target.spec.steers(pool)]
    told = f"; left alone: {', '.join(fixed)}" if fixed else ""
    return (Finding(kind, "True", Reason.STEERED, f"status.lastScaling has the last decision{told}"),)


def last_scaling(observed: Observed, spec: ServingPoolSpec) -> ScalingDecision | None:
    """For the status."""
    return None if spec.ratio.mode == "Off" else stored_among(observed.children, observed.name).last


def remarks(spec: ServingPoolSpec) -> tuple[str, ...]:
    """What the spec asks for without effect."""
    found = []
    if spec.ratio.scale_to_zero_after_s is not None and spec.ratio.mode != "Auto":
        found.append(
            "ratio.scaleToZeroAfterS has no effect unless ratio.mode is Auto: a pool at zero stays there until it is "
            "scaled by hand"
        )
    if spec.ratio.mode != "Off":
        return tuple(found)
    if spec.ratio.min_ratio is not None or spec.ratio.max_ratio is not None:
        found.append("ratio.minRatio and maxRatio have no effect while ratio.mode is Off")
    if spec.scale_down.stabilization_s is not None:
        found.append("scaleDown.stabilizationS has no effect while ratio.mode is Off")
    if spec.ratio.rehearse is not None:
        found.append("ratio.rehearse has no effect while ratio.mode is Off")
    left = [pool.name for pool in spec.pools if pool.autoscaling is not None and pool.autoscaling.by == "Ballast"]
    if left:
        found.append(f"autoscaling of {', '.join(left)} is left to others while ratio.mode is Off, within its bounds")
    return tuple(found)


def _rehearse(target: Target) -> Rehearse | None:
    """None also while the policy is not usable: gateways go by an older one, which nobody has here."""
    asked = target.spec.ratio.rehearse
    if asked is None or target.policy is None:
        return None
    return Rehearse(
        cpu_s=asked.cpu_s,
        timeout_s=asked.timeout_s,
        policy=target.policy.dump(),
    )


def _pool(
    spec: ServingPoolSpec, pool: PoolSpec, profile: HardwareProfileSpec, target: Target, *, priced: bool
) -> SteeredPool:
    count, bounds = target.instances[pool.name], pool.autoscaling
    return SteeredPool(
        name=pool.name,
        role=names.core_role(pool.role),
        profile=profile.to_core(pool.hardware),
        least=count if bounds is None else bounds.min_replicas,
        most=count if bounds is None else bounds.max_replicas,
        count=count,
        acts=spec.steers(pool),
        gpus=gpus_of(pool, profile) * pool.nodes_per_instance,
        cost_per_hour=profile.cost_per_hour or 0.0 if priced else 0.0,
    )
