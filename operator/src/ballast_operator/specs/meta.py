"""What all children have in common: owner reference, labels, names."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ballast_api import names
from ballast_operator.kinds import SERVING_POOL, Kind, Manifest

Component = Literal["engine", "gateway"]


@dataclass(frozen=True, slots=True)
class Owner:
    """The ServingPool that an object belongs to."""

    name: str
    namespace: str
    uid: str

    def reference(self) -> Manifest:
        """The controller reference: deleting the ServingPool deletes the object."""
        return {
            "apiVersion": SERVING_POOL.api_version,
            "kind": SERVING_POOL.kind,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }


def child(kind: Kind, owner: Owner, name: str, component: Component, **content: object) -> Manifest:
    """An object of `owner`. `content` are the top-level fields, such as `spec`."""
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {
            "name": name,
            "namespace": owner.namespace,
            "labels": names.common_labels(owner.name, component),
            "ownerReferences": [owner.reference()],
        },
        **content,
    }


def with_labels(manifest: Manifest, labels: Mapping[str, str]) -> Manifest:
    """`manifest` with `labels` added."""
    metadata = manifest["metadata"]
    return {**manifest, "metadata": {**metadata, "labels": {**metadata["labels"], **labels}}}


def with_spec_hash(manifest: Manifest) -> Manifest:
    """`manifest` with a hash of its spec, by which a field that the spec no longer has within a list is a change: the
    API server does not say what in a list that is applied as a whole is ours."""
    metadata = manifest["metadata"]
    annotations = {**metadata.get("annotations", {}), names.ANNOTATION_SPEC_HASH: content_hash(manifest["spec"])}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def content_hash(value: object) -> str:
    """Ten hex digits that change when plain data changes, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:10]
