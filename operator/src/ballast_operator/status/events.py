"""Kubernetes Events: what `kubectl describe` shows of a condition that changed. Pure."""

from __future__ import annotations

from ballast_api import names
from ballast_api.conditions import ConditionType, Reason
from ballast_api.serving_pool import ScalingDecision
from ballast_operator.kinds import SERVING_POOL, Manifest
from ballast_operator.specs.meta import Owner
from ballast_operator.status.notice import Notice

MAX_NOTE = 1000
"""Characters of an Event's message; the API allows 1024."""

_BAD_WHEN = {
    ConditionType.AVAILABLE: "False",
    ConditionType.DEGRADED: "True",
    ConditionType.RESOLVED_REFS: "False",
    ConditionType.ACCEPTED: "False",
    ConditionType.SLO_MET: "False",
    ConditionType.PROFILE_ACCURATE: "False",
}


def event_for(manifest: Manifest, condition: Manifest, now: str) -> Manifest | None:
    """The Event for a condition of `manifest` that has just changed; None where it would be noise.

    `now` is RFC 3339 in UTC. Events of cluster-scoped objects live in namespace `default`.
    """
    if condition["status"] == "Unknown":
        return None
    paused = condition["reason"] == Reason.CANARY_PAUSED
    warning = paused or _BAD_WHEN.get(condition["type"]) == condition["status"]
    message = f"{condition['type']} is {condition['status']}: {condition['message'] or condition['reason']}"
    return _event(manifest, condition["reason"], message, now, warning=warning)


def scaling_event(owner: Owner, said: ScalingDecision) -> Manifest:
    """The Event for other counts of instances, asked for or advised."""
    metadata = {"name": owner.name, "namespace": owner.namespace, "uid": owner.uid}
    pool = {"apiVersion": SERVING_POOL.api_version, "kind": SERVING_POOL.kind, "metadata": metadata}
    message = said.message if said.applied else f"advice: {said.message}"
    return _event(pool, said.reason, message, str(said.time), warning=False)


def notice_event(manifest: Manifest, notice: Notice, now: str) -> Manifest:
    """The Event for something that is no condition."""
    return _event(manifest, notice.reason, notice.message, now, warning=notice.warning)


def _event(manifest: Manifest, reason: str, message: str, now: str, *, warning: bool) -> Manifest:
    metadata = manifest["metadata"]
    namespace = metadata.get("namespace", "default")
    involved = {"apiVersion": manifest["apiVersion"], "kind": manifest["kind"], "name": metadata["name"]}
    if "namespace" in metadata:
        involved["namespace"] = namespace
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{metadata['name']}-", "namespace": namespace},
        "involvedObject": {**involved, "uid": metadata["uid"]},
        "type": "Warning" if warning else "Normal",
        "reason": reason,
        "message": message[:MAX_NOTE],
        "source": {"component": names.MANAGER},
        "reportingComponent": names.MANAGER,
        "reportingInstance": names.MANAGER,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
