"""PodDisruptionBudgets: node drains take one pod of a pool, and one gateway pod, at a time."""

from __future__ import annotations

from ballast_api import names
from ballast_api.serving_pool import PoolSpec
from ballast_operator.kinds import DISRUPTION_BUDGET, Manifest
from ballast_operator.specs.meta import Component, Owner, child


def pool_disruption_budget(owner: Owner, pool: PoolSpec) -> Manifest:
    """One engine of the pool at a time."""
    name, match = names.pool_object_name(owner.name, pool.name), names.engine_match_labels(owner.name, pool.name)
    return _one_at_a_time(owner, name, "engine", match)


def gateway_disruption_budget(owner: Owner) -> Manifest:
    """One gateway pod at a time."""
    return _one_at_a_time(
        owner, names.gateway_object_name(owner.name), "gateway", names.gateway_match_labels(owner.name)
    )


def _one_at_a_time(owner: Owner, name: str, component: Component, match: dict[str, str]) -> Manifest:
    # Pods that are not ready serve no request: they may always be evicted, or a broken pool would block a node's drain.
    spec = {"maxUnavailable": 1, "unhealthyPodEvictionPolicy": "AlwaysAllow", "selector": {"matchLabels": match}}
    return child(DISRUPTION_BUDGET, owner, name, component, spec=spec)
