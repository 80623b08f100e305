"""The findings about a ServingPool whose spec was acted on: one function for each condition. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ballast_api.conditions import ConditionType, Reason
from ballast_api.names import RoleName
from ballast_api.serving_pool import ServingPoolSpec
from ballast_operator.conditions import Finding, joined
from ballast_operator.planning.planned import Plan
from ballast_operator.problems.problem import Problem
from ballast_operator.problems.references import REFERENCE_REASONS
from ballast_operator.rollouts.canary import Phase
from ballast_operator.rollouts.workloads import Fleet

_STAGES: tuple[tuple[str, tuple[RoleName, ...], Reason], ...] = (
    ("prefill", ("Prefill", "Flexible"), Reason.PREFILL_NOT_READY),
    ("decode", ("Decode", "Flexible"), Reason.DECODE_NOT_READY),
)
"""Stage of a request, roles of the pools that do it, and the reason when none of them is ready."""


def available(fleet: Fleet, spec: ServingPoolSpec, *, unrouted: Reason | None = None) -> Finding:
    """Whether requests can be served: by counts alone, whatever else is wrong. And how, behind an Envoy.

    `unrouted`: why no Gateway sends a request. Where requests come by a Gateway only, none can be served then.
    """
    kind = ConditionType.AVAILABLE
    for stage, roles, reason in _STAGES:
        items = fleet.with_role(*roles)
        if any(item.ready for item in items):
            continue
        wanted = sum(item.wanted for item in items)
        if not wanted:
            return Finding(kind, "False", Reason.SCALED_TO_ZERO, f"no pool that can {stage} has replicas above 0")
        return Finding(kind, "False", reason, f"0 of {wanted} endpoints are ready")
    if not fleet.gateway.ready:
        message = f"0 of {fleet.gateway.wanted} gateway pods are ready"
        return Finding(kind, "False", Reason.GATEWAY_NOT_READY, message)
    if unrouted is not None and not spec.gateway.face.serves_proxy:
        taken = unrouted is Reason.ROUTE_NOT_ACCEPTED
        what = "no Gateway takes the HTTPRoute" if taken else "older HTTPRoutes get all its requests"
        return Finding(kind, "False", unrouted, f"{what}; Degraded says why")
    return Finding(kind, "True", Reason.READY, joined(["requests can be served", *_behind_envoy(fleet, spec)]))


def _behind_envoy(fleet: Fleet, spec: ServingPoolSpec) -> tuple[str, ...]:
    """What becomes of requests that an Envoy holds."""
    if not spec.gateway.face.serves_picker:
        return ()
    agents = [item for pool, item in fleet.pools if spec.has_agent(pool)]
    if not agents:
        return ("behind an Envoy they are placed, but neither disaggregated nor moved: spec.engine.agent is Never",)
    if all(item.complete for item in agents):
        return ("behind an Envoy the agents of the decode pods disaggregate and move them",)
    return ("behind an Envoy they are disaggregated where pods have their agent: not all are of the new revision yet",)


def progressing(fleet: Fleet, plan: Plan) -> Finding:
    """Whether pods are on their way to the spec."""
    kind = ConditionType.PROGRESSING
    if any(item.stuck for item in fleet.workloads()):
        message = "a Deployment made no progress within its deadline; Degraded says which"
        return Finding(kind, "False", Reason.PROGRESS_DEADLINE_EXCEEDED, message)
    if plan.held:
        return Finding(kind, "False", plan.problems[0].reason, "objects wait for what Degraded names")
    canary = plan.canary
    if canary is not None and canary.memory.phase is Phase.PAUSED:
        return Finding(kind, "False", Reason.CANARY_PAUSED, canary.told)
    unfinished = [item for item in fleet.workloads() if not item.complete]
    if not unfinished and plan.behind:
        message = f"{', '.join(plan.behind)}: the newest settings are on their way; kubelets take up to 90 s"
        return Finding(kind, "True", Reason.APPLYING_SETTINGS, message)
    if not unfinished:
        return Finding(kind, "False", Reason.COMPLETE, "all pods are of the wanted revision and ready")
    drains = sorted(victim.name for step in plan.drains.values() for victim in step.victims)
    scaling = Reason.DRAINING if drains else Reason.SCALING
    reason = Reason.ROLLING_OUT if any(item.replacing for item in unfinished) else scaling
    if canary is not None and canary.memory.phase is not Phase.PROMOTED:
        reason = Reason.CANARY_PROGRESSING
    parts = [f"{item.name}: {item.ready} of {item.wanted} ready, {item.updated} updated" for item in unfinished]
    if drains:
        parts.append(f"being emptied before they go: {', '.join(drains)}; status.pools says what they have left")
    if reason is Reason.CANARY_PROGRESSING and canary is not None:
        parts.insert(0, canary.told)
    return Finding(kind, "True", reason, joined(parts))


def foremost(found: Sequence[Finding]) -> Finding:
    """The one that a reader should know first."""
    by_type = {each.type: each for each in found}
    available = by_type[ConditionType.AVAILABLE]
    if available.status != "True":
        return available
    if by_type[ConditionType.PROGRESSING].reason is Reason.CANARY_PAUSED:
        return by_type[ConditionType.PROGRESSING]
    others = (by_type[ConditionType.DEGRADED], by_type[ConditionType.PROGRESSING])
    return next((each for each in others if each.status == "True"), available)


def degraded(problems: Sequence[Problem], remarks: Sequence[str]) -> Finding:
    """Every problem is in the message, the reason is the first one's. Without a problem the message has the remarks."""
    if problems:
        return Finding(ConditionType.DEGRADED, "True", problems[0].reason, joined(problems))
    return Finding(ConditionType.DEGRADED, "False", Reason.AS_EXPECTED, joined(remarks))


def resolved_refs(plan: Plan) -> Finding:
    """Whether every object that the spec names is usable."""
    kind = ConditionType.RESOLVED_REFS
    broken = [problem for problem in plan.problems if problem.reason in REFERENCE_REASONS]
    if broken:
        return Finding(kind, "False", broken[0].reason, joined(broken))
    return Finding(kind, "True", Reason.REFS_RESOLVED, "every object that the spec names is usable")
