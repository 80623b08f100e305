"""From what is measured to what a scaling policy goes by. Pure: times are passed in, as seconds since 1970."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from ballast_api import names
from ballast_api.demand_report import BIN_S, DemandReport
from ballast_core.model import Role, Stage
from ballast_core.policies.scaling.fitting import serves
from ballast_core.policies.scaling.measuring import Seen, lengths_of
from ballast_core.policies.scaling.protocol import Attained, Counts, Inputs, Memory, Pool, Traffic
from ballast_operator.gateways.gateway_pods import is_ready
from ballast_operator.gateways.measured import Measured
from ballast_operator.kinds import Manifest
from ballast_operator.scaling.flipping import split
from ballast_operator.scaling.records import Stored
from ballast_operator.scaling.steered import Instance, Steered, SteeredPool

BINS_OF_A_WINDOW: Final = 3
"""Windows of gateways in one of the policy's: 15 s, one round."""
LENGTHS_S: Final = 45.0
"""Lengths are those of requests that arrived so lately, so that a shift of the mix shows soon..."""
LEAST_REQUESTS: Final = 30
"""...but of so many at least, where there are so many."""
ATTAINED_S: Final = 60
"""Window of attainment."""
STARTUP_S: Final = 60.0
"""Until a pod's start has been measured."""
MOST_STARTUP_S: Final = 3600.0
"""A pod that seems to have taken longer was ready before, and is again: its startup probe would have ended it."""
STUCK_STARTS: Final = 4.0
"""A pod that starts for so many times the usual time, and for `LEAST_STUCK_S`, does not count as one that will come:
there is no room for it, and waiting for it would keep its pool from shrinking."""
LEAST_STUCK_S: Final = 600.0
LOST_S: Final = 60.0
"""A pod that is still there so long after the end of its grace period has nobody to end it: its node is lost, and with
it its GPUs. Nothing waits for it."""


def instances_of(pods: Iterable[Manifest], now_s: float) -> dict[tuple[str, str], list[Instance]]:
    """Engine pods that have not ended and are not lost, by namespace and name of their ServingPool."""
    found: dict[tuple[str, str], list[Instance]] = {}
    for pod in pods:
        metadata, status = pod["metadata"], pod.get("status") or {}
        labels = metadata.get("labels") or {}
        owner = labels.get(names.LABEL_SERVING_POOL)
        if not owner or labels.get(names.APP_COMPONENT) != "engine" or status.get("phase") in ("Succeeded", "Failed"):
            continue
        if is_lost(pod, now_s):
            continue
        created_s, ready_s = _unix_s(metadata.get("creationTimestamp")), _ready_since_s(status)
        ready = is_ready(pod)
        found.setdefault((metadata["namespace"], owner), []).append(
            Instance(
                name=metadata["name"],
                uid=str(metadata.get("uid", "")),
                pool=str(labels.get(names.LABEL_POOL, "")),
                revision=str(labels.get(names.LABEL_REVISION, "")),
                role=_role(labels.get(names.LABEL_ROLE)),
                ready=ready,
                ending=bool(metadata.get("deletionTimestamp")) or _is_marked(metadata),
                returns=not metadata.get("deletionTimestamp") and _is_marked(metadata) and not _goes(metadata),
                age_s=0.0 if created_s is None else max(0.0, now_s - created_s),
                startup_s=ready_s - created_s if ready and ready_s is not None and created_s is not None else None,
            )
        )
    return found


def is_lost(pod: Manifest, now_s: float) -> bool:
    """Whether the kubelet should have ended it long ago: a pod's deletionTimestamp has its grace period in it."""
    end_s = _unix_s(pod["metadata"].get("deletionTimestamp"))
    return end_s is not None and now_s - end_s >= LOST_S


def startup_of(instances: Iterable[Instance], before_s: float | None) -> float:
    """Seconds from creation to readiness: the median of the pods that are there, else as it was before."""
    took = [each.startup_s for each in instances if each.startup_s is not None and each.startup_s <= MOST_STARTUP_S]
    if took:
        return float(statistics.median(took))
    return STARTUP_S if before_s is None else before_s


def inputs_of(
    steered: Steered,
    instances: Sequence[Instance],
    report: DemandReport | None,
    measured: Measured | None,
    *,
    stored: Stored,
    memory: Memory,
    now_s: float,
) -> Inputs:
    """All that a round goes by. `report`: the traffic of all gateways together; None: nothing is known of it."""
    startup_s = startup_of(instances, stored.startup_s)
    return Inputs(
        now_s=now_s,
        pools=_without_unknown([_pool(each, steered, instances, stored, startup_s) for each in steered.pools]),
        traffic=Traffic(bin_s=float(BINS_OF_A_WINDOW * BIN_S)) if report is None else traffic_of(report, measured),
        objectives=steered.objectives,
        clamps=steered.clamps,
        startup_s=startup_s,
        zero_after_s=steered.zero_after_s,
        memory=memory,
    )


def traffic_of(report: DemandReport, measured: Measured | None) -> Traffic:
    """The traffic of all gateways together."""
    newest = max(LEAST_REQUESTS, sum(each.arrived_unix_s >= report.unix_s - LENGTHS_S for each in report.requests))
    seen = [Seen(each.input_tokens, each.output_tokens, each.ended) for each in report.requests]
    hit_ratio = report.cached_tokens / report.prompt_tokens if report.prompt_tokens else 0.0
    return Traffic(
        bin_s=float(BINS_OF_A_WINDOW * BIN_S),
        arrivals=_arrivals(report),
        lengths=lengths_of(seen[-newest:], [each for each in seen if each.ended]),
        prefix_hit_ratio=hit_ratio,
        backlog_tokens=report.waiting_tokens * (1 - hit_ratio),
        oldest_wait_s=0.0 if report.oldest_unix_s is None else max(0.0, report.unix_s - report.oldest_unix_s),
        decoding=report.decoding,
        decoding_tokens=float(report.decoding_tokens),
        idle_s=0.0 if report.idle_since_unix_s is None else max(1e-3, report.unix_s - report.idle_since_unix_s),
        attained=() if measured is None else _attained(measured),
    )


def wanted_of(pool: SteeredPool, asked: Counts | None, instances: Iterable[Instance]) -> Counts:
    """What is asked for of a pool, by stage. `asked`: by the last decision, where there was one."""
    count = min(max(asked.replicas, pool.least), pool.most) if asked is not None and pool.acts else pool.count
    if pool.role is not Role.FLEXIBLE:
        return Counts(count, 0) if pool.role is Role.PREFILL else Counts(0, count)
    return split(asked if asked is not None and asked.replicas else _labelled(pool, instances), count)


def _labelled(pool: SteeredPool, instances: Iterable[Instance]) -> Counts:
    """By the roles that its pods have; one each where not both are there."""
    roles = [each.role for each in instances if each.pool == pool.name and not each.ending]
    found = Counts(roles.count(Role.PREFILL), roles.count(Role.DECODE))
    return found if found.prefill and found.decode else Counts(1, 1)


def _pool(pool: SteeredPool, steered: Steered, instances: Sequence[Instance], stored: Stored, startup_s: float) -> Pool:
    own = [each for each in instances if each.pool == pool.name]
    there = [each for each in own if not each.ending]
    stuck_s = max(LEAST_STUCK_S, STUCK_STARTS * startup_s)
    wanted = wanted_of(pool, stored.asked(pool.name) if steered.acts else None, own)
    return Pool(
        name=pool.name,
        role=pool.role,
        profile=pool.profile,
        least=pool.least,
        most=pool.most,
        gpus=pool.gpus,
        cost_per_hour=pool.cost_per_hour,
        by_others=pool.least < pool.most and not (steered.acts and pool.acts),
        wanted=wanted,
        ready=_ready(pool, [each for each in there if each.ready], wanted),
        starting=sum(not each.ready and each.age_s < stuck_s for each in there),
        draining=len(own) - len(there),
        returning=sum(each.returns for each in own),
    )


def _without_unknown(pools: Sequence[Pool]) -> tuple[Pool, ...]:
    """A pool of unknown speed without an instance stays so, and hinders nobody, where others serve its stages: nothing
    is learned of it, and it may not be what is cheapest."""

    def others_serve(one: Pool) -> bool:
        others = [each for each in pools if each is not one and each.profile.speed_known and each.most]
        return all(any(serves(each, stage) for each in others) for stage in Stage if serves(one, stage))

    return tuple(
        replace(each, least=0, most=0)
        if not each.profile.speed_known and not each.wanted.replicas and not each.starting and others_serve(each)
        else each
        for each in pools
    )


def _ready(pool: SteeredPool, ready: Sequence[Instance], wanted: Counts) -> Counts:
    """By stage. A flexible pod without a role of its own serves both: it counts where more are wanted."""
    if pool.role is not Role.FLEXIBLE:
        return Counts(len(ready), 0) if pool.role is Role.PREFILL else Counts(0, len(ready))
    prefill = sum(each.role is Role.PREFILL for each in ready)
    both = sum(each.role is Role.FLEXIBLE for each in ready)
    more = min(both, max(0, wanted.prefill - prefill))
    return Counts(prefill + more, len(ready) - prefill - more)


def _arrivals(report: DemandReport) -> tuple[int, ...]:
    """By windows of the policy, the newest last: those that are over, and that all gateways have seen from the
    beginning."""
    first = report.newest_bin - len(report.arrivals) + 1
    seen = [count for k, count in enumerate(report.arrivals[:-1]) if (first + k) * BIN_S >= report.since_unix_s]
    windows = len(seen) // BINS_OF_A_WINDOW
    seen = seen[len(seen) - windows * BINS_OF_A_WINDOW :]
    return tuple(sum(seen[k : k + BINS_OF_A_WINDOW]) for k in range(0, len(seen), BINS_OF_A_WINDOW))


def _attained(measured: Measured) -> tuple[Attained, ...]:
    return tuple(Attained(each.objective.name, each.joint[ATTAINED_S]) for each in measured.classes)


def _is_marked(metadata: Mapping[str, Any]) -> bool:
    """Whether it is to go, and gets nothing new."""
    return names.ANNOTATION_DRAINING in (metadata.get("annotations") or {})


def _goes(metadata: Mapping[str, Any]) -> bool:
    """Whether its Deployment may ask for one pod fewer already."""
    return names.ANNOTATION_DELETION_COST in (metadata.get("annotations") or {})


def _role(label: str | None) -> Role:
    return {role.value: role for role in Role}.get(label or "", Role.FLEXIBLE)


def _ready_since_s(status: Mapping[str, object]) -> float | None:
    conditions = status.get("conditions")
    for each in conditions if isinstance(conditions, list) else ():
        if each.get("type") == "Ready" and each.get("status") == "True":
            return _unix_s(each.get("lastTransitionTime"))
    return None


def _unix_s(text: object) -> float | None:
    """RFC 3339."""
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return None
