"""Writing: what a plan wants and the cluster does not have yet.

Each write is complete in itself and the next look starts from what is there, so the operator may die between any two.
A refused write does not keep the others back: it is part of the outcome, and the next look tries it again.
"""

from __future__ import annotations

import logging
from typing import Final, Protocol

from ballast_api import names
from ballast_operator.api.api_failure import ApiFailure
from ballast_operator.kinds import Kind, Manifest, ObjectKey, key_of, kind_of
from ballast_operator.log_fields import log_fields, reference
from ballast_operator.observed import Observed
from ballast_operator.outcome import Outcome, Refusal
from ballast_operator.planning.ownership import owner_conflict
from ballast_operator.planning.planned import Plan
from ballast_operator.writing.drift import differs
from ballast_operator.writing.in_place import InPlace

logger = logging.getLogger(__name__)

CONFLICT: Final = 409
"""HTTP status of a precondition that no longer holds."""


_GONE: Final = (404, 409, 422)
"""Of a write to a pod: it has gone, it is another one, or it would have to be made."""


class Writer(Protocol):
    """What applying needs of the API server."""

    def get(self, kind: Kind, namespace: str | None, name: str) -> Manifest | None:
        """One object, None if none of that name exists."""
        ...

    def apply(self, manifest: Manifest, manager: str) -> Manifest:
        """Server-side apply."""
        ...

    def delete(self, manifest: Manifest) -> object:
        """Delete this very object."""
        ...


def apply(writer: Writer, observed: Observed, plan: Plan, in_place: InPlace) -> Outcome:
    """Write what must exist, then delete what must go. `in_place`: of this ServingPool, since its first look.

    Raises `ApiFailure` when the server is away or in trouble (`ApiFailure.transient`): the look is then tried again as
    a whole. Other refusals are in the outcome.
    """
    wishes = [(manifest, names.MANAGER) for manifest in plan.apply]
    wishes += [(manifest, names.ROLLOUT_MANAGER) for manifest in plan.resize]
    in_place.keep(wishes)
    results = [_ensure(writer, observed, in_place, manifest, manager) for manifest, manager in wishes]
    results += [_mark(writer, observed, manifest) for manifest in plan.marks]
    results += [_remove(writer, manifest) for manifest in plan.prune]
    return Outcome(
        written=frozenset(result for result in results if isinstance(result, ObjectKey)),
        refusals=tuple(result for result in results if isinstance(result, Refusal)),
    )


def refusal(manifest: Manifest, error: ApiFailure) -> Refusal:
    """Of a write that will be refused again. Raises the others: the look is tried again as a whole."""
    if error.transient:
        raise error
    return Refusal(key_of(manifest), str(error))


def _ensure(
    writer: Writer, observed: Observed, in_place: InPlace, manifest: Manifest, manager: str
) -> ObjectKey | Refusal | None:
    """The object's key if it was written, None if it was right already."""
    live = observed.child(key_of(manifest))
    if live is not None and not differs(manifest, live, manager):
        in_place.is_right(manifest, manager)
        return None
    try:
        if live is None:  # an object that is not among the children may still exist
            live = writer.get(kind_of(manifest), manifest["metadata"]["namespace"], manifest["metadata"]["name"])
            conflict = None if live is None else owner_conflict(live, observed.pool)
            if conflict is not None:
                return Refusal(key_of(manifest), conflict, taken=True)
        edit = in_place.edit_of(manifest, live, manager)
        in_place.written(manifest, writer.apply(manifest, manager), manager, edit)
    except ApiFailure as error:
        return refusal(manifest, error)
    return _written("applied", manifest)


def _mark(writer: Writer, observed: Observed, manifest: Manifest) -> Refusal | None:
    """Marks of a pod that has gone meanwhile, or is another one, are no longer wanted."""
    live = next((pod for pod in observed.pods if pod["metadata"]["name"] == manifest["metadata"]["name"]), None)
    if live is None or not differs(manifest, live, names.DRAIN_MANAGER):
        return None
    try:
        writer.apply(manifest, names.DRAIN_MANAGER)
    except ApiFailure as error:
        return None if error.status in _GONE else refusal(manifest, error)
    _written("marked", manifest)
    return None


def _remove(writer: Writer, manifest: Manifest) -> ObjectKey | Refusal | None:
    """The object's key if it was deleted, None if another object has its name by now: the next look sees that one."""
    try:
        writer.delete(manifest)
    except ApiFailure as error:
        return None if error.status == CONFLICT else refusal(manifest, error)
    return _written("deleted", manifest)


def _written(action: str, manifest: Manifest) -> ObjectKey:
    logger.info("%s %s", action, reference(manifest), extra=log_fields(manifest, action=action))
    return key_of(manifest)
