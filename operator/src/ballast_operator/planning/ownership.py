"""Which objects belong to a ServingPool, and what of them is ours: the labels that they are found by, the controller
that owns them, and the fields that we applied. Pure.

Labels are a hint that any client can copy. The truth is the uid of the controller in the owner references.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ballast_api import names
from ballast_operator.kinds import Manifest


def is_child(manifest: Manifest, pool: Manifest) -> bool:
    """Whether `pool` (by uid) is the controller of an object."""
    controller = _controller(manifest)
    return controller is not None and bool(controller["uid"] == pool["metadata"]["uid"])


def applied_fields(live: Manifest, manager: str) -> Mapping[str, Any] | None:
    """What `manager` applied to the object itself (`fieldsV1`), or None if it never did."""
    for entry in live["metadata"].get("managedFields") or ():
        if entry.get("manager") == manager and entry.get("operation") == "Apply" and not entry.get("subresource"):
            fields: Mapping[str, Any] = entry.get("fieldsV1") or {}
            return fields
    return None


def child_selector(pool: Manifest) -> str:
    """Label selector that finds the children of `pool`, and possibly others' objects."""
    return ",".join(f"{key}={value}" for key, value in _child_labels(pool).items())


def owner_conflict(found: Manifest, pool: Manifest) -> str | None:
    """Why `pool` must not take an existing object for its child; None if it may.

    It may take its own children, and objects with its labels that no controller owns: those of an earlier ServingPool
    of the same name that was deleted with `--cascade=orphan`.
    """
    if is_child(found, pool):
        return None
    controller = _controller(found)
    if controller is not None:
        return f"exists and is controlled by {controller['kind']} {controller['name']}"
    return None if is_labelled(found, pool) else "exists and was not made by Ballast"


def is_labelled(found: Manifest, pool: Manifest) -> bool:
    """Whether an object was made for a ServingPool of that name, this one or an earlier one."""
    labels = found["metadata"].get("labels") or {}
    return all(labels.get(key) == value for key, value in _child_labels(pool).items())


def _child_labels(pool: Manifest) -> dict[str, str]:
    return {names.LABEL_SERVING_POOL: pool["metadata"]["name"], names.APP_MANAGED_BY: names.MANAGER}


def _controller(manifest: Manifest) -> Manifest | None:
    references = manifest["metadata"].get("ownerReferences") or ()
    return next((reference for reference in references if reference.get("controller")), None)
