"""What EnginePools tell those who scale by them. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from ballast_api import names
from ballast_api.engine_pool import EnginePoolStatus
from ballast_operator.kinds import ENGINE_POOL, Manifest
from ballast_operator.observed import Observed
from ballast_operator.rollouts.workloads import counts_of, workloads_of


def scale_statuses(observed: Observed) -> Iterator[tuple[Manifest, Manifest]]:
    """Each EnginePool that was there, with its status."""
    for handle in observed.children:
        pool = (handle["metadata"].get("labels") or {}).get(names.LABEL_POOL)
        if handle["kind"] != ENGINE_POOL.kind or not pool:
            continue
        counts = [counts_of(each) for each in workloads_of(observed, pool)]
        status = EnginePoolStatus(
            replicas=sum(each.pods for each in counts),
            ready_replicas=sum(each.ready for each in counts),
            selector=",".join(
                f"{key}={value}" for key, value in names.engine_match_labels(observed.name, pool).items()
            ),
        )
        yield handle, status.dump()
