"""EnginePools: where other scalers say how many instances a pool is to have."""

from __future__ import annotations

from ballast_api import names
from ballast_api.serving_pool import PoolSpec
from ballast_operator.kinds import ENGINE_POOL, Manifest
from ballast_operator.rollouts.workloads import engine_pool_key
from ballast_operator.specs.meta import Owner, child, with_labels


def engine_pool(owner: Owner, pool: PoolSpec, replicas: int) -> Manifest:
    """The handle of a pool that others scale, as it begins. Its number is theirs from then on: it is never written
    again, and a number beyond the pool's bounds is cut where it is read."""
    made = child(ENGINE_POOL, owner, engine_pool_key(owner.name, pool.name).name, "engine", spec={"replicas": replicas})
    return with_labels(made, {names.LABEL_POOL: pool.name})
