"""EnginePools: where other scalers say how many instances a pool is to have."""

from __future__ import annotations

from ballast_api import names
from ballast_api.serving_pool import PoolSpec
from ballast_operator.kinds import ENGINE_POOL, Manifest
from ballast_operator.specs.meta import Owner, child, with_labels


def engine_pool(owner: Owner, pool: PoolSpec, replicas: int) -> Manifest:
    """The handle of a pool that others scale, whose name stays the same through all rollouts.

    `replicas`: what it says now, within the pool's bounds.
    """
    name = names.pool_object_name(owner.name, pool.name)
    made = child(ENGINE_POOL, owner, name, "engine", spec={"replicas": replicas})
    return with_labels(made, {names.LABEL_POOL: pool.name})
