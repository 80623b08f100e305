"""What observed Deployments and pods say: counts, progress, and why pods do not start. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ballast_api import names
from ballast_api.conditions import Reason
from ballast_operator.kinds import Manifest
from ballast_operator.references import Problem


@dataclass(frozen=True, slots=True)
class Workload:
    """Pods of one Deployment, compared with what is wanted of it."""

    name: str
    """Name of the Deployment."""
    wanted: int
    """Pods that the spec asks for."""
    total: int = 0
    """Pods there are, of any revision."""
    ready: int = 0
    """Those that are ready."""
    updated: int = 0
    """Those of the newest revision."""
    observed: bool = False
    """Whether these numbers speak of the newest spec."""
    stuck: bool = False
    """Whether the Deployment missed its progress deadline."""

    @property
    def complete(self) -> bool:
        """Whether all pods are of the newest revision, in the wanted number, and ready."""
        return self.observed and self.wanted == self.total == self.ready == self.updated

    @property
    def replacing(self) -> bool:
        """Whether pods of an older revision are left."""
        return self.total > self.updated


def workload(name: str, wanted: int, deployment: Manifest | None) -> Workload:
    """The counts of a Deployment that may not exist yet."""
    if deployment is None:
        return Workload(name=name, wanted=wanted)
    status: dict[str, Any] = deployment.get("status") or {}
    generation = deployment["metadata"].get("generation", 0)
    return Workload(
        name=name,
        wanted=wanted,
        total=status.get("replicas", 0),
        ready=status.get("readyReplicas", 0),
        updated=status.get("updatedReplicas", 0),
        observed=status.get("observedGeneration", 0) >= generation and deployment["spec"].get("replicas", 1) == wanted,
        stuck=any(
            condition.get("type") == "Progressing" and condition.get("reason") == "ProgressDeadlineExceeded"
            for condition in status.get("conditions") or ()
        ),
    )


def pod_problems(pods: Iterable[Manifest]) -> tuple[Problem, ...]:
    """Why pods do not start: one problem for each pool and reason, with the number of pods and one pod's own words."""
    found: dict[tuple[Reason, str], list[str]] = {}
    for pod in sorted(pods, key=lambda pod: str(pod["metadata"]["name"])):
        problem = _pod_problem(pod)
        if problem is not None:
            labels = pod["metadata"].get("labels", {})
            group = labels.get(names.LABEL_POOL) or labels.get(names.APP_COMPONENT, "")
            found.setdefault((problem.reason, group), []).append(f"{pod['metadata']['name']}: {problem.message}")
    order = list(_ORDER)
    ranked = sorted(found.items(), key=lambda item: (order.index(item[0][0]), item[0][1]))
    return tuple(
        Problem(reason, f"{group}: {len(lines)} pod{'s' if len(lines) > 1 else ''}, such as {lines[0]}")
        for (reason, group), lines in ranked
    )


_ORDER = (Reason.IMAGE_UNAVAILABLE, Reason.CRASH_LOOP, Reason.UNSCHEDULABLE)
_IMAGE_REASONS = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
_CRASH_REASONS = frozenset(
    {"CrashLoopBackOff", "CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
)


def _pod_problem(pod: Manifest) -> Problem | None:
    if pod["metadata"].get("deletionTimestamp"):
        return None
    status = pod.get("status") or {}
    for container in [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]:
        waiting = (container.get("state") or {}).get("waiting") or {}
        why = waiting.get("reason", "")
        words = f"{why}: {waiting.get('message', '')}".rstrip(": ")
        if why in _IMAGE_REASONS:
            return Problem(Reason.IMAGE_UNAVAILABLE, words)
        if why in _CRASH_REASONS:
            return Problem(Reason.CRASH_LOOP, words)
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "Unschedulable":
            return Problem(Reason.UNSCHEDULABLE, str(condition.get("message", "")))
    return None
