"""Whether the SchedulingPolicy of a ServingPool suits its gateway, endpoints and engines. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ballast_api import names
from ballast_api.conditions import Reason
from ballast_api.policy_fit import engine_misfits, misfits
from ballast_api.serving_pool import ServingPoolSpec
from ballast_core.model import Role
from ballast_core.policies.composing import remarks
from ballast_operator.references import Problem, References


def policy_problems(spec: ServingPoolSpec, references: References) -> tuple[Problem, ...]:
    """Why the gateway cannot be given the policy that is named; empty if it can, or if there is none."""
    if references.policy is None or spec.policy_ref is None:
        return ()
    suite = references.policy.build()
    # A pool that is scaled to zero may come back at any time, and the policy with it.
    endpoints = Counter(names.core_role(pool.role) for pool in spec.pools)
    engine = spec.engine
    found = (
        *misfits(suite, spec.gateway.face, endpoints),
        *engine_misfits(suite, engine.args, engine.kv_connector.config),
    )
    where = f"SchedulingPolicy {spec.policy_ref.name} (spec.policyRef)"
    return tuple(Problem(Reason.POLICY_UNSUITED, f"{where}: {each.part}: {each.reason}") for each in found)


def policy_remarks(spec: ServingPoolSpec, references: References, wanted: Mapping[str, int]) -> tuple[str, ...]:
    """What the policy does not do in this fleet as it is."""
    if references.policy is None:
        return ()
    endpoints: Counter[Role] = Counter()
    for pool in spec.pools:
        endpoints[names.core_role(pool.role)] += wanted[pool.name]
    return tuple(f"{each.part} {each.reason}" for each in remarks(references.policy.build(), endpoints))
