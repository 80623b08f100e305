"""The verdict of one look: from what was observed, planned and carried out to the ServingPool's status. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ballast_api.conditions import ConditionType, Reason
from ballast_api.names import RoleName
from ballast_api.serving_pool import (
    DisplayStatus,
    DrainStatus,
    GatewayStatus,
    PoolSpec,
    PoolStatus,
    RoleStatus,
    ServingPoolStatus,
)
from ballast_operator.conditions import Finding, conditions, joined, known_conditions
from ballast_operator.kinds import HTTP_ROUTE, Manifest
from ballast_operator.observed import Observed
from ballast_operator.outcome import Outcome
from ballast_operator.planning import scaling
from ballast_operator.planning.planned import Plan, Target
from ballast_operator.problems import cluster
from ballast_operator.problems.references import accepts_none
from ballast_operator.rollouts.workloads import Fleet, Workload, fleet_of, workloads_of
from ballast_operator.specs.routes import http_route_name
from ballast_operator.status import findings
from ballast_operator.status.attainment import Attained, attained

REQUEUE_S: Final = 10.0
"""Seconds until the next look at a ServingPool that is not where it should be, if no event comes first."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one look found."""

    status: Manifest | None = None
    """The whole status of the ServingPool; None to leave it alone."""
    requeue_s: float | None = None
    """Seconds until the next look, if no event comes first; None leaves it to the resync."""


def verdict(observed: Observed, plan: Plan, outcome: Outcome) -> Verdict:
    """The status and the time of the next look."""
    if observed.deleting:
        return Verdict(status=_deleting(observed))
    if plan.target is None:
        return Verdict(status=_not_acted_on(observed, plan))
    target = plan.target
    fleet = fleet_of(observed, target.spec, target.instances, target.workloads, outcome.outdated())
    problems = (
        *plan.problems,
        *(cluster.refused(refusal) for refusal in outcome.refusals),
        *cluster.of_pods(observed.pods),
        *cluster.refused_pods(observed.children),
        *cluster.stuck(fleet.workloads()),
    )
    attainment, resolved = attained(observed, target, plan), findings.resolved_refs(plan)
    found = (
        findings.available(fleet, target.spec, unrouted=_unrouted(observed, plan)),
        findings.progressing(fleet, plan),
        findings.degraded(problems, plan.remarks),
        attainment.finding,
        *scaling.scaling_active(observed, target, resolved),
        resolved,
    )
    settled = not plan.problems and not outcome.refusals and all(item.complete for item in fleet.workloads())
    due_s = [plan.look_again_s] if plan.look_again_s is not None else []
    if not settled:
        due_s.append(REQUEUE_S)
    return Verdict(
        status=_status(observed, target, fleet, found, attainment=attainment, plan=plan),
        requeue_s=min(due_s, default=None),
    )


def unreadable(pool: Manifest, words: str, now: str) -> Manifest:
    """The status while the API server refuses what a look must read; `words` are its own, and name the verb."""
    message = f"{words}; grant the operator that right (the chart's roles have it); nothing is changed until then"
    finding = Finding(ConditionType.DEGRADED, "True", Reason.RIGHTS_MISSING, message)
    return _kept(pool, now, pool["metadata"].get("generation"), finding)


def unplannable(observed: Observed, words: str) -> Manifest:
    """The status where a look cannot be planned, by a fault of ours that this spec brings out."""
    message = f"this spec cannot be carried out ({words}); nothing is changed; the operator's log says more"
    finding = Finding(ConditionType.DEGRADED, "True", Reason.INVALID_SPEC, message)
    return _kept(observed.pool, observed.now, observed.generation, finding)


def _unrouted(observed: Observed, plan: Plan) -> Reason | None:
    """Why no Gateway sends a request; None if one may."""
    route = observed.child(HTTP_ROUTE.key(http_route_name(observed.name)))
    if route is not None and accepts_none(route):
        return Reason.ROUTE_NOT_ACCEPTED
    return Reason.ROUTE_SHADOWED if plan.shadowed else None


def _status(
    observed: Observed,
    target: Target,
    fleet: Fleet,
    found: Sequence[Finding],
    *,
    attainment: Attained,
    plan: Plan,
) -> Manifest:
    prefill, decode, flexible = (_role_status(fleet, role) for role in ("Prefill", "Decode", "Flexible"))
    ready_p, ready_d = (role.ready_replicas if role else 0 for role in (prefill, decode))
    return ServingPoolStatus(
        observed_generation=observed.generation,
        conditions=conditions(observed.pool, found, observed.now),
        pools=tuple(_pool_status(pool, item, _drains(observed, pool, plan)) for pool, item in fleet.pools),
        prefill=prefill,
        decode=decode,
        flexible=flexible,
        gateway=GatewayStatus(
            replicas=fleet.gateway.wanted, ready_replicas=fleet.gateway.ready, settings_hash=plan.settings_hash or ""
        ),
        ratio=round(ready_p / ready_d, 4) if ready_d else None,
        attainment=attainment.attainment,
        objectives=attainment.objectives,
        last_scaling=scaling.last_scaling(observed, target.spec),
        display=DisplayStatus(
            prefill=_counts(prefill),
            decode=_counts(decode),
            ratio=f"{ready_p}:{ready_d}",
            slo_percent="" if attainment.attainment is None else f"{100 * attainment.attainment:.1f}",
            ready=f"{sum(item.ready for _, item in fleet.pools)}/{sum(item.wanted for _, item in fleet.pools)}",
            reason=findings.foremost(found).reason,
        ),
    ).dump()


def _not_acted_on(observed: Observed, plan: Plan) -> Manifest:
    """The status of a spec that cannot be acted on: counts and availability stay what they were."""
    reason = plan.problems[0].reason
    return _kept(
        observed.pool,
        observed.now,
        observed.generation,
        Finding(ConditionType.PROGRESSING, "False", reason, "the spec was not acted on"),
        Finding(ConditionType.DEGRADED, "True", reason, joined(plan.problems)),
    )


def _deleting(observed: Observed) -> Manifest:
    """The status while its objects go: those of a deletion in the foreground before it, all others after it."""
    message = "it is being deleted; its objects go with it, also without an operator"
    finding = Finding(ConditionType.PROGRESSING, "True", Reason.DELETING, message)
    return _kept(observed.pool, observed.now, observed.generation, finding)


def _kept(pool: Manifest, now: str, generation: int | None, *found: Finding) -> Manifest:
    """The status as it was, but for these conditions."""
    changed = conditions(pool, found, now)
    types = {condition.type for condition in changed}
    kept = [old for old in known_conditions(pool) if old.get("type") not in types]
    order = [str(kind) for kind in ConditionType]
    merged = sorted(
        [*kept, *(condition.dump() for condition in changed)],
        key=lambda item: order.index(item["type"]) if item["type"] in order else -1,
    )
    before = pool.get("status") or {}
    display = {"display": {**before["display"], "reason": found[-1].reason}} if before.get("display") else {}
    observed = {} if generation is None else {"observedGeneration": generation}
    return {**before, "conditions": merged, **observed, **display}


def _drains(observed: Observed, pool: PoolSpec, plan: Plan) -> tuple[DrainStatus, ...]:
    steps = [plan.drains.get(each["metadata"]["name"]) for each in workloads_of(observed, pool.name)]
    victims = [victim for step in steps if step is not None for victim in step.victims]
    return tuple(DrainStatus(name=each.name, requests=each.left, tied=each.tied) for each in victims)


def _pool_status(pool: PoolSpec, item: Workload, drains: tuple[DrainStatus, ...]) -> PoolStatus:
    return PoolStatus(
        name=pool.name,
        role=pool.role,
        replicas=item.wanted,
        ready_replicas=item.ready,
        updated_replicas=item.updated,
        unavailable_replicas=max(item.wanted - item.ready, 0),
        draining=drains,
    )


def _role_status(fleet: Fleet, role: RoleName) -> RoleStatus | None:
    same = fleet.with_role(role)
    if not same:
        return None
    return RoleStatus(replicas=sum(item.wanted for item in same), ready_replicas=sum(item.ready for item in same))


def _counts(role: RoleStatus | None) -> str:
    return f"{role.ready_replicas}/{role.replicas}" if role else "-"
