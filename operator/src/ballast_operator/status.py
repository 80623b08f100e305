"""The status of a ServingPool: counts, ratio and conditions. Pure; the time comes in with what was observed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ballast_api import names
from ballast_api.conditions import Condition, ConditionStatus, ConditionType, Reason
from ballast_api.serving_pool import (
    DisplayStatus,
    GatewayStatus,
    PoolStatus,
    RoleStatus,
    ServingPoolSpec,
    ServingPoolStatus,
)
from ballast_operator.kinds import DEPLOYMENT, Manifest, ObjectKey
from ballast_operator.observed import Input
from ballast_operator.references import Problem, References
from ballast_operator.workloads import Workload, pod_problems, workload

MAX_MESSAGE = 2000
"""Characters of a condition's message: the schema's limit is far higher, a reader's is not."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the status of a valid ServingPool is made of."""

    observed: Input
    spec: ServingPoolSpec
    wanted: Mapping[str, int]
    """Instances by pool."""
    references: References
    problems: tuple[Problem, ...]
    held: bool
    """Whether objects wait for something that is missing."""
    notes: tuple[str, ...]
    """Remarks that are no problem."""

    @property
    def serving_pool(self) -> str:
        """metadata.name."""
        return str(self.observed.pool["metadata"]["name"])

    def pool_workload(self, pool: str) -> Workload:
        """The pool's Deployment."""
        return self._workload(names.pool_object_name(self.serving_pool, pool), self.wanted[pool])

    def gateway_workload(self) -> Workload:
        """The gateway's Deployment."""
        return self._workload(names.gateway_object_name(self.serving_pool), self.spec.gateway.replicas)

    def workloads(self) -> list[Workload]:
        """All Deployments."""
        return [self.gateway_workload(), *(self.pool_workload(pool.name) for pool in self.spec.pools)]

    def _workload(self, name: str, wanted: int) -> Workload:
        return workload(name, wanted, self.observed.child(ObjectKey(DEPLOYMENT.kind, name)))


def settled(seen: Seen) -> bool:
    """Whether everything is as the spec wants it."""
    return not seen.problems and not seen.observed.failures and all(item.complete for item in seen.workloads())


def wanted_status(seen: Seen) -> Manifest:
    """The whole status of a valid ServingPool."""
    pools = tuple(_pool_status(seen, index) for index in range(len(seen.spec.pools)))
    prefill, decode, flexible = (_role_status(pools, role) for role in ("Prefill", "Decode", "Flexible"))
    gateway = seen.gateway_workload()
    ready_p, ready_d = (role.ready_replicas if role else 0 for role in (prefill, decode))
    return ServingPoolStatus(
        observed_generation=_generation(seen.observed),
        conditions=_conditions(seen.observed, _verdicts(seen)),
        pools=pools,
        prefill=prefill,
        decode=decode,
        flexible=flexible,
        gateway=GatewayStatus(replicas=gateway.wanted, ready_replicas=gateway.ready),
        ratio=round(ready_p / ready_d, 4) if ready_d else None,
        display=DisplayStatus(
            prefill=_counts(prefill),
            decode=_counts(decode),
            ratio=f"{ready_p}:{ready_d}",
            slo_percent="",
        ),
    ).dump()


def refused(observed: Input, problem: Problem) -> Manifest:
    """The status of a spec that cannot be acted on: counts and availability stay what they were."""
    before = observed.pool.get("status") or {}
    degraded = _Verdict(ConditionType.DEGRADED, "True", problem.reason, _clipped([problem.message]))
    progressing = _Verdict(ConditionType.PROGRESSING, "False", problem.reason, "the spec was not acted on")
    conditions = {condition.type: condition for condition in _conditions(observed, (degraded, progressing))}
    kept = [old for old in before.get("conditions", ()) if old.get("type") not in conditions]
    changed = [condition.dump() for condition in conditions.values()]
    order = [str(kind) for kind in ConditionType]
    merged = sorted([*kept, *changed], key=lambda item: order.index(item["type"]) if item["type"] in order else -1)
    generation = _generation(observed)
    return {**before, "conditions": merged} | ({} if generation is None else {"observedGeneration": generation})


def transitions(before: Manifest | None, after: Manifest | None) -> list[Manifest]:
    """The conditions whose status or reason is new in `after`: what a person wants to be told."""
    known = {item["type"]: (item["status"], item["reason"]) for item in (before or {}).get("conditions", ())}
    return [
        item
        for item in (after or {}).get("conditions", ())
        if known.get(item["type"]) != (item["status"], item["reason"])
    ]


@dataclass(frozen=True, slots=True)
class _Verdict:
    type: ConditionType
    status: ConditionStatus
    reason: Reason
    message: str


def _verdicts(seen: Seen) -> tuple[_Verdict, ...]:
    problems = _problems(seen)
    return (_available(seen), _progressing(seen, problems), _degraded(seen, problems), _slo_met(seen), _resolved(seen))


def _problems(seen: Seen) -> list[Problem]:
    failures = [
        Problem(Reason.NAME_CONFLICT if failure.conflict else Reason.APPLY_FAILED, f"{failure.key}: {failure.message}")
        for failure in seen.observed.failures
    ]
    stuck = [
        Problem(Reason.PROGRESS_DEADLINE_EXCEEDED, f"Deployment {item.name} made no progress within its deadline")
        for item in seen.workloads()
        if item.stuck
    ]
    return [*seen.problems, *failures, *pod_problems(seen.observed.pods), *stuck]


def _available(seen: Seen) -> _Verdict:
    kind = ConditionType.AVAILABLE
    for roles, reason, what in (
        (("Prefill", "Flexible"), Reason.PREFILL_NOT_READY, "prefill"),
        (("Decode", "Flexible"), Reason.DECODE_NOT_READY, "decode"),
    ):
        items = [seen.pool_workload(pool.name) for pool in seen.spec.pools if pool.role in roles]
        if not any(item.ready for item in items):
            if not any(item.wanted for item in items):
                return _Verdict(kind, "False", Reason.SCALED_TO_ZERO, f"no pool that can {what} has replicas above 0")
            return _Verdict(kind, "False", reason, f"0 of {sum(item.wanted for item in items)} endpoints are ready")
    gateway = seen.gateway_workload()
    if not gateway.ready:
        return _Verdict(kind, "False", Reason.GATEWAY_NOT_READY, f"0 of {gateway.wanted} gateway pods are ready")
    return _Verdict(kind, "True", Reason.READY, "requests can be served")


def _progressing(seen: Seen, problems: Iterable[Problem]) -> _Verdict:
    kind = ConditionType.PROGRESSING
    if any(problem.reason is Reason.PROGRESS_DEADLINE_EXCEEDED for problem in problems):
        message = "a Deployment made no progress within its deadline; Degraded says which"
        return _Verdict(kind, "False", Reason.PROGRESS_DEADLINE_EXCEEDED, message)
    unfinished = [item for item in seen.workloads() if not item.complete]
    if seen.held:
        reason = next((problem.reason for problem in seen.problems), Reason.UNSUPPORTED)
        return _Verdict(kind, "False", reason, "objects wait for what Degraded names")
    if not unfinished:
        return _Verdict(kind, "False", Reason.COMPLETE, "all pods are of the wanted revision and ready")
    reason = Reason.ROLLING_OUT if any(item.replacing for item in unfinished) else Reason.SCALING
    parts = [f"{item.name}: {item.ready} of {item.wanted} ready, {item.updated} updated" for item in unfinished]
    return _Verdict(kind, "True", reason, _clipped(parts))


def _degraded(seen: Seen, problems: list[Problem]) -> _Verdict:
    if problems:
        message = _clipped([problem.message for problem in problems])
        return _Verdict(ConditionType.DEGRADED, "True", problems[0].reason, message)
    return _Verdict(ConditionType.DEGRADED, "False", Reason.AS_EXPECTED, _clipped(seen.notes))


def _slo_met(seen: Seen) -> _Verdict:
    kind = ConditionType.SLO_MET
    if seen.spec.slo_ref is None:
        return _Verdict(kind, "Unknown", Reason.NO_SLO, "spec.sloRef is not set")
    for problem in seen.references.problems:
        if problem.reason in (Reason.SLO_NOT_FOUND, Reason.SLO_INVALID):
            return _Verdict(kind, "Unknown", problem.reason, _clipped([problem.message]))
    return _Verdict(kind, "Unknown", Reason.NOT_MEASURED, "no attainment was reported yet")


def _resolved(seen: Seen) -> _Verdict:
    broken = [
        problem
        for problem in seen.problems
        if problem in seen.references.problems or problem.reason is Reason.PARENT_NOT_FOUND
    ]
    if broken:
        message = _clipped([problem.message for problem in broken])
        return _Verdict(ConditionType.RESOLVED_REFS, "False", broken[0].reason, message)
    return _Verdict(
        ConditionType.RESOLVED_REFS, "True", Reason.REFS_RESOLVED, "every object that the spec names is usable"
    )


def _conditions(observed: Input, verdicts: Iterable[_Verdict]) -> tuple[Condition, ...]:
    before = (observed.pool.get("status") or {}).get("conditions") or ()
    return tuple(_condition(verdict, before, observed) for verdict in verdicts)


def _condition(verdict: _Verdict, before: Iterable[Mapping[str, Any]], observed: Input) -> Condition:
    """The transition time is the old one's unless the status flips."""
    old = next((item for item in before if item.get("type") == verdict.type), None)
    same = old is not None and old.get("status") == verdict.status
    return Condition(
        type=str(verdict.type),
        status=verdict.status,
        reason=str(verdict.reason),
        message=verdict.message,
        last_transition_time=str(old["lastTransitionTime"]) if old is not None and same else observed.now,
        observed_generation=_generation(observed),
    )


def _generation(observed: Input) -> int | None:
    generation = observed.pool["metadata"].get("generation")
    return None if generation is None else int(generation)


def _pool_status(seen: Seen, index: int) -> PoolStatus:
    pool = seen.spec.pools[index]
    item = seen.pool_workload(pool.name)
    return PoolStatus(
        name=pool.name,
        role=pool.role,
        replicas=item.wanted,
        ready_replicas=item.ready,
        updated_replicas=item.updated,
        unavailable_replicas=max(item.wanted - item.ready, 0),
    )


def _role_status(pools: Iterable[PoolStatus], role: str) -> RoleStatus | None:
    same = [pool for pool in pools if pool.role == role]
    if not same:
        return None
    return RoleStatus(
        replicas=sum(pool.replicas for pool in same),
        ready_replicas=sum(pool.ready_replicas for pool in same),
    )


def _counts(role: RoleStatus | None) -> str:
    return f"{role.ready_replicas}/{role.replicas}" if role else "-"


def _clipped(parts: Iterable[str]) -> str:
    text = "; ".join(parts)
    return text if len(text) <= MAX_MESSAGE else f"{text[: MAX_MESSAGE - 3]}..."
