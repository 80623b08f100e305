"""Kubernetes Events: what `kubectl describe` shows of a condition that changed. Pure."""

from __future__ import annotations

from ballast_api import names
from ballast_api.conditions import ConditionType
from ballast_operator.kinds import Manifest

MAX_NOTE = 1000
"""Characters of an Event's message; the API allows 1024."""

_BAD_WHEN = {
    ConditionType.AVAILABLE: "False",
    ConditionType.DEGRADED: "True",
    ConditionType.RESOLVED_REFS: "False",
    ConditionType.ACCEPTED: "False",
    ConditionType.SLO_MET: "False",
}


def event_for(manifest: Manifest, condition: Manifest, now: str) -> Manifest | None:
    """The Event for a condition of `manifest` that has just changed; None where it would be noise.

    `now` is RFC 3339 in UTC. Events of cluster-scoped objects live in namespace `default`.
    """
    if condition["status"] == "Unknown":
        return None
    metadata = manifest["metadata"]
    warning = _BAD_WHEN.get(condition["type"]) == condition["status"]
    message = f"{condition['type']} is {condition['status']}: {condition['message'] or condition['reason']}"
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
        "reason": condition["reason"],
        "message": message[:MAX_NOTE],
        "source": {"component": names.MANAGER},
        "reportingComponent": names.MANAGER,
        "reportingInstance": names.MANAGER,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
