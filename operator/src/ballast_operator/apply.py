"""Writing: what a plan wants and the cluster does not have yet.

Every write is complete in itself and the next look starts from what is there, so the operator may die between any two.
A refused write does not keep the others back: it is reported and tried again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from ballast_api import names
from ballast_operator.cluster import ApiFailure
from ballast_operator.drift import differs
from ballast_operator.gather import is_child
from ballast_operator.kinds import Kind, Manifest, key_of, kind_of
from ballast_operator.log_fields import log_fields, reference
from ballast_operator.observed import ApplyFailure, Input
from ballast_operator.plan import Plan

logger = logging.getLogger(__name__)


class Writer(Protocol):
    """What applying asks of the API server."""

    def get(self, kind: Kind, namespace: str | None, name: str) -> Manifest | None:
        """One object, None if there is none."""
        ...

    def apply(self, manifest: Manifest, manager: str) -> Manifest:
        """Server-side apply."""
        ...

    def delete(self, manifest: Manifest) -> None:
        """Delete this very object."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a plan's objects."""

    written: int
    """Objects applied or deleted."""
    failures: tuple[ApplyFailure, ...]


def carry_out(writer: Writer, observed: Input, plan: Plan) -> Outcome:
    """Apply and prune. Raises `ApiFailure` when the API server cannot be reached; other refusals are in the outcome."""
    failures: list[ApplyFailure] = []
    written = 0
    for manifest in plan.apply:
        try:
            written += _apply(writer, observed, manifest)
        except _NotOurs as error:
            failures.append(ApplyFailure(key_of(manifest), str(error), conflict=True))
        except ApiFailure as error:
            if error.transient:
                raise
            failures.append(ApplyFailure(key_of(manifest), str(error)))
    for manifest in plan.prune:
        try:
            writer.delete(manifest)
            written += 1
            _log("deleted", manifest)
        except ApiFailure as error:
            if error.transient:
                raise
            if error.status != 409:  # another object by now: the next look sees it
                failures.append(ApplyFailure(key_of(manifest), str(error)))
    return Outcome(written=written, failures=tuple(failures))


class _NotOurs(Exception):
    """An object of a needed name belongs to somebody else. `str()` says to whom."""


def _apply(writer: Writer, observed: Input, manifest: Manifest) -> int:
    live = observed.child(key_of(manifest))
    if live is None:
        _check_free(writer, observed, manifest)
    elif not differs(manifest, live, names.MANAGER):
        return 0
    writer.apply(manifest, names.MANAGER)
    _log("applied", manifest)
    return 1


def _check_free(writer: Writer, observed: Input, manifest: Manifest) -> None:
    """An object that is not among the children may still exist: never take somebody else's."""
    metadata = manifest["metadata"]
    found = writer.get(kind_of(manifest), metadata["namespace"], metadata["name"])
    if found is None or is_child(found, observed.pool):
        return
    controller = _controller(found["metadata"].get("ownerReferences") or ())
    if controller is not None:
        raise _NotOurs(f"exists and is controlled by {controller['kind']} {controller['name']}")
    labels = found["metadata"].get("labels") or {}
    ours = {names.APP_MANAGED_BY: names.MANAGER, names.LABEL_SERVING_POOL: observed.pool["metadata"]["name"]}
    if any(labels.get(key) != value for key, value in ours.items()):
        raise _NotOurs("exists and was not made by Ballast; delete it or rename the ServingPool")


def _controller(references: Iterable[Manifest]) -> Manifest | None:
    return next((reference for reference in references if reference.get("controller")), None)


def _log(what: str, manifest: Manifest) -> None:
    logger.info("%s %s", what, reference(manifest), extra=log_fields(manifest, action=what))
