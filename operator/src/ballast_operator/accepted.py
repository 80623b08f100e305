"""The status of resources that ServingPools refer to: whether Ballast can use them, and who names them. Pure."""

from __future__ import annotations

from collections.abc import Collection

from ballast_api.conditions import MAX_USED_BY, AcceptedStatus, ConditionType, Reason
from ballast_api.errors import InvalidInput
from ballast_operator.conditions import Finding, conditions
from ballast_operator.kinds import Manifest
from ballast_operator.references import parse


def accepted_status(manifest: Manifest, now: str, used_by: Collection[str] | None = None) -> Manifest:
    """Status with the condition Accepted. `now` is RFC 3339 in UTC.

    `used_by`: ServingPools that name the object, as `NAMESPACE/NAME`; None: not known, what the status says stays.
    """
    found = used_by_of(manifest) if used_by is None else tuple(sorted(used_by)[:MAX_USED_BY])
    return AcceptedStatus(
        used_by=found,
        observed_generation=manifest["metadata"].get("generation"),
        conditions=conditions(manifest, (_finding(manifest),), now),
    ).dump()


def used_by_of(manifest: Manifest) -> tuple[str, ...]:
    """The ServingPools that the status names."""
    return tuple((manifest.get("status") or {}).get("usedBy") or ())


def _finding(manifest: Manifest) -> Finding:
    try:
        parse(manifest)
    except InvalidInput as error:
        message = "; ".join(str(problem) for problem in error.problems)
        return Finding(ConditionType.ACCEPTED, "False", Reason.INVALID_SPEC, message)
    return Finding(ConditionType.ACCEPTED, "True", Reason.ACCEPTED)
