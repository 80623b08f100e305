"""Marks of instances that are to go: annotations of pods, and of the Deployment that they belong to."""

from __future__ import annotations

from collections.abc import Mapping

from ballast_api import names
from ballast_operator.kinds import POD, Manifest
from ballast_operator.observed import Observed
from ballast_operator.rollouts.draining import Step


def with_drains(deployment: Manifest, step: Step, live: Manifest | None) -> Manifest:
    """The Deployment, with the names of its pods that have marks, or get some after it is written: whoever goes on
    after an interruption knows that there is something to look for."""
    listed = ",".join(sorted([*(each.name for each in step.victims), *step.released]))
    known = ((live or {}).get("metadata", {}).get("annotations") or {}).get(names.ANNOTATION_DRAINS)
    if not listed and known is None:
        return deployment
    metadata = deployment["metadata"]
    annotations = {**(metadata.get("annotations") or {}), names.ANNOTATION_DRAINS: listed}
    return {**deployment, "metadata": {**metadata, "annotations": annotations}}


def drain_marks(observed: Observed, steps: Mapping[str, Step]) -> tuple[Manifest, ...]:
    """What to apply to pods that get, keep or lose marks."""
    pods = {pod["metadata"]["name"]: pod for pod in observed.pods}
    found = []
    for step in steps.values():
        for victim in step.victims:
            since = _annotation(pods[victim.name], names.ANNOTATION_DRAINING) if victim.marked_s else ""
            marks = {names.ANNOTATION_DRAINING: since or observed.now}
            if victim.goes:
                marks[names.ANNOTATION_DELETION_COST] = names.LOWEST_DELETION_COST
            found.append(_marked(pods[victim.name], marks))
        found += [_marked(pods[name], {}) for name in step.released]
    return tuple(found)


def _annotation(pod: Manifest, key: str) -> str:
    return str((pod["metadata"].get("annotations") or {}).get(key, ""))


def _marked(pod: Manifest, marks: Mapping[str, str]) -> Manifest:
    metadata = {key: pod["metadata"][key] for key in ("name", "namespace", "uid")}
    return {"apiVersion": POD.api_version, "kind": POD.kind, "metadata": {**metadata, "annotations": dict(marks)}}
