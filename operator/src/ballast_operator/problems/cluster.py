"""Problems of the cluster: APIs that it lacks, writes that it refused, pods and Deployments that do not get on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ballast_api import names
from ballast_api.conditions import Reason
from ballast_api.faces import Face
from ballast_api.serving_pool import PoolSpec
from ballast_operator.kinds import (
    DEPLOYMENT,
    EXTENSION_POLICY,
    HTTP_ROUTE,
    INFERENCE_POOL,
    LEADER_WORKER_SET,
    Kind,
    Manifest,
)
from ballast_operator.outcome import Refusal
from ballast_operator.problems.problem import Problem
from ballast_operator.rollouts.workloads import Workload


def name_of_api(kind: Kind) -> str:
    """`HTTPRoute (gateway.networking.k8s.io/v1)`."""
    return f"{kind.kind} ({kind.api_version})"


def no_route_api() -> Problem:
    """The cluster has no HTTPRoute, which `parentRefs` needs."""
    return Problem(
        Reason.API_NOT_INSTALLED,
        f"no HTTPRoute: the cluster does not have {name_of_api(HTTP_ROUTE)}",
        field="spec.gateway.parentRefs",
        fix="install the Gateway API, or leave parentRefs out",
    )


def no_picker_api(face: Face) -> Problem:
    """No API of the cluster makes an Envoy ask the picker."""
    return Problem(
        Reason.API_NOT_INSTALLED,
        f"no HTTPRoute: face {face} needs an Envoy that asks the picker, by {name_of_api(INFERENCE_POOL)} "
        f"or by {name_of_api(EXTENSION_POLICY)}; the cluster has neither",
        field="spec.gateway.face",
        fix="install one of them, or set face: Proxy",
    )


def no_group_api(index: int, pool: PoolSpec) -> Problem:
    """The cluster has no LeaderWorkerSet, which instances on several nodes need."""
    return Problem(
        Reason.API_NOT_INSTALLED,
        f"pool {pool.name} waits: an instance on {pool.nodes_per_instance} nodes is a group of a LeaderWorkerSet, and "
        f"the cluster does not have {name_of_api(LEADER_WORKER_SET)}",
        field=f"spec.pools[{index}].nodesPerInstance",
        fix="install LeaderWorkerSet (helm install lws oci://registry.k8s.io/lws/charts/lws --namespace lws-system "
        "--create-namespace), or set it to 1",
    )


def refused(refusal: Refusal) -> Problem:
    """A write that the API server refused, or that would have taken another owner's object."""
    message = f"{refusal.key}: {refusal.message}"
    if refusal.taken:
        return Problem(Reason.NAME_CONFLICT, message, fix="delete it or rename the ServingPool")
    return Problem(Reason.APPLY_FAILED, message)


def stuck(workloads: Iterable[Workload]) -> tuple[Problem, ...]:
    """Deployments that missed their progress deadline."""
    return tuple(
        Problem(Reason.PROGRESS_DEADLINE_EXCEEDED, f"Deployment {item.name} made no progress within its deadline")
        for item in workloads
        if item.stuck
    )


def refused_pods(children: Iterable[Manifest]) -> tuple[Problem, ...]:
    """Deployments that may not have the pods that they ask for, those of old revisions included: by a quota, Pod
    Security or a webhook. Their controller says so (`ReplicaFailure`) until the pods can be made."""
    return tuple(
        Problem(Reason.PODS_REFUSED, f"Deployment {child['metadata']['name']}: {condition.get('message', '')}")
        for child in sorted(children, key=lambda child: str(child["metadata"]["name"]))
        if child["kind"] == DEPLOYMENT.kind
        for condition in (child.get("status") or {}).get("conditions") or ()
        if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True"
    )


_POD_REASONS: Final = (Reason.IMAGE_UNAVAILABLE, Reason.CRASH_LOOP, Reason.UNSCHEDULABLE)
"""Worst first."""
_IMAGE_REASONS: Final = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
_CRASH_REASONS: Final = frozenset(
    {"CrashLoopBackOff", "CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
)


def of_pods(pods: Iterable[Manifest]) -> tuple[Problem, ...]:
    """Why pods do not start: one problem for each pool and reason, with the number of pods and one pod's own words."""
    found: dict[tuple[Reason, str], list[str]] = {}
    for pod in sorted(pods, key=lambda pod: str(pod["metadata"]["name"])):
        problem = _of_pod(pod)
        if problem is not None:
            labels = pod["metadata"].get("labels", {})
            group = labels.get(names.LABEL_POOL) or labels.get(names.APP_COMPONENT, "")
            reason, words = problem
            found.setdefault((reason, group), []).append(f"{pod['metadata']['name']}: {words}")
    ranked = sorted(found.items(), key=lambda item: (_POD_REASONS.index(item[0][0]), item[0][1]))
    return tuple(
        Problem(reason, f"{group}: {len(lines)} pod{'s' if len(lines) > 1 else ''}, such as {lines[0]}")
        for (reason, group), lines in ranked
    )


def _of_pod(pod: Manifest) -> tuple[Reason, str] | None:
    if pod["metadata"].get("deletionTimestamp"):
        return None
    status = pod.get("status") or {}
    for container in [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]:
        waiting = (container.get("state") or {}).get("waiting") or {}
        why = waiting.get("reason", "")
        words = f"{why}: {waiting.get('message', '')}".rstrip(": ")
        if why in _IMAGE_REASONS:
            return Reason.IMAGE_UNAVAILABLE, words
        if why in _CRASH_REASONS:
            return Reason.CRASH_LOOP, words
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "Unschedulable":
            return Reason.UNSCHEDULABLE, str(condition.get("message", ""))
    return None
