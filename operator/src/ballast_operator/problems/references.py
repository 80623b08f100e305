"""Problems of the objects that a spec names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ballast_api import names
from ballast_api.conditions import Reason
from ballast_api.errors import InvalidInput
from ballast_api.policy_fit import engine_misfits, misfits
from ballast_api.scheduling_policy import SchedulingPolicySpec
from ballast_api.serving_pool import ParentRef, ServingPoolSpec
from ballast_operator.kinds import Manifest
from ballast_operator.problems.problem import Problem
from ballast_operator.problems.route_overlaps import Overlap


@dataclass(frozen=True, slots=True)
class Named:
    """An object that a field of the spec names."""

    field: str
    """camelCase path of the field."""
    kind: str
    name: str
    users: tuple[str, ...] = ()
    """Pools that name it, where pools do."""

    def __str__(self) -> str:
        plural = "s" if len(self.users) > 1 else ""
        return f"{self.kind} {self.name}" + (f" of pool{plural} {', '.join(self.users)}" if self.users else "")


_NOT_FOUND: Final = {
    "SchedulingPolicy": Reason.POLICY_NOT_FOUND,
    "ServiceLevelObjective": Reason.SLO_NOT_FOUND,
    "HardwareProfile": Reason.PROFILE_NOT_FOUND,
}
_INVALID: Final = {
    "SchedulingPolicy": Reason.POLICY_INVALID,
    "ServiceLevelObjective": Reason.SLO_INVALID,
    "HardwareProfile": Reason.PROFILE_INVALID,
}
OBJECTIVE_REASONS: Final = frozenset({Reason.SLO_NOT_FOUND, Reason.SLO_INVALID})
"""Reasons that concern the ServiceLevelObjective."""
REFERENCE_REASONS: Final = frozenset(
    {*_NOT_FOUND.values(), *_INVALID.values(), Reason.PARENT_NOT_FOUND, Reason.ROUTE_NOT_ACCEPTED}
)
"""Reasons of all problems of this module but `unsuited`: an unsuited policy exists and is valid."""


def not_found(named: Named) -> Problem:
    """The object does not exist."""
    return Problem(_NOT_FOUND[named.kind], f"{named} does not exist", named.field, "create it, or name one that exists")


def not_valid(named: Named, error: InvalidInput) -> Problem:
    """The object exists and does not pass validation; the error names fields and fixes."""
    said = "; ".join(str(problem) for problem in error.problems)
    return Problem(_INVALID[named.kind], f"{named} is not valid: {said}", named.field)


def unsuited(spec: ServingPoolSpec, policy: SchedulingPolicySpec) -> tuple[Problem, ...]:
    """Why the gateway cannot get the policy that the spec names; empty if it can, or if the spec names none."""
    if spec.policy_ref is None:
        return ()
    suite = policy.build()
    # A pool that is scaled to zero may come back at any time, and the policy with it.
    endpoints = Counter(names.core_role(pool.role) for pool in spec.pools)
    found = (
        *misfits(suite, spec.gateway.face, endpoints, agents=any(map(spec.has_agent, spec.pools))),
        *dict.fromkeys(
            misfit
            for pool in spec.pools
            for misfit in engine_misfits(suite, (*spec.engine.args, *pool.args), spec.engine.kv_connector.config)
        ),
    )
    what = f"SchedulingPolicy {spec.policy_ref.name}"
    return tuple(
        Problem(Reason.POLICY_UNSUITED, f"{what}: {each.part}: {each.reason}", "spec.policyRef") for each in found
    )


def not_accepted(route: Manifest) -> tuple[Problem, ...]:
    """What the Gateways say against an HTTPRoute as it is now; nothing while they have not looked at it."""
    generation = route["metadata"].get("generation", 0)
    return tuple(
        Problem(
            Reason.ROUTE_NOT_ACCEPTED,
            f"HTTPRoute {route['metadata']['name']} at {_parent(parent)}: "
            f"{condition.get('reason', '')}: {condition.get('message', '')}".rstrip(": "),
            field="spec.gateway.parentRefs",
            fix="let a listener of that Gateway allow this namespace, host and kind of route, or name another",
        )
        for parent in (route.get("status") or {}).get("parents") or ()
        for condition in parent.get("conditions") or ()
        if condition.get("type") in ("Accepted", "ResolvedRefs")
        and condition.get("status") == "False"
        and condition.get("observedGeneration", generation) >= generation
    )


def shadowed(found: Sequence[Overlap]) -> tuple[Problem, ...]:
    """Requests that older routes get in its place."""
    return tuple(
        Problem(
            Reason.ROUTE_SHADOWED,
            f"HTTPRoute {each.route} is older and matches alike at Gateway {each.parent}: it gets "
            f"{'all requests' if each.all_lost else 'requests'} of {'; '.join(each.requests)}, "
            "and clients its answers, such as a 404 for a model that it does not have",
            field="spec.gateway",
            fix="set hostnames, match.headers or match.byModel apart from that route's, or delete that route",
        )
        for each in found
    )


def accepts_none(route: Manifest) -> bool:
    """Whether Gateways have looked at it and none takes it."""
    accepted = [
        condition.get("status")
        for parent in (route.get("status") or {}).get("parents") or ()
        for condition in parent.get("conditions") or ()
        if condition.get("type") == "Accepted"
    ]
    return bool(accepted) and "True" not in accepted


def _parent(parent: Manifest) -> str:
    reference = parent.get("parentRef") or {}
    section = f" listener {reference['sectionName']}" if reference.get("sectionName") else ""
    return f"{reference.get('kind', 'Gateway')} {reference.get('name', '')}{section}"


def missing_parents(parents: Sequence[ParentRef], missing: Sequence[ParentRef], namespace: str) -> tuple[Problem, ...]:
    """Gateways among `parents` (those of the spec) that do not exist. `namespace` is the ServingPool's."""
    return tuple(
        Problem(
            Reason.PARENT_NOT_FOUND,
            f"{parent.kind} {parent.namespace or namespace}/{parent.name} does not exist",
            field=f"spec.gateway.parentRefs[{index}]",
            fix="create it, or name one that exists",
        )
        for index, parent in enumerate(parents)
        if parent in missing
    )
