"""The status of resources that ServingPools refer to: whether Ballast can use them as they are. Pure."""

from __future__ import annotations

from ballast_api.conditions import AcceptedStatus, Condition, ConditionStatus, ConditionType, Reason
from ballast_api.errors import InvalidInput
from ballast_api.loading import parse_resource
from ballast_operator.kinds import Manifest


def accepted_status(manifest: Manifest, now: str) -> Manifest:
    """Status with the condition Accepted. `now` is RFC 3339 in UTC."""
    try:
        parse_resource({key: value for key, value in manifest.items() if key != "status"})
    except InvalidInput as error:
        message = "; ".join(str(problem) for problem in error.problems)
        return _status(manifest, "False", Reason.INVALID_SPEC, message, now)
    return _status(manifest, "True", Reason.ACCEPTED, "", now)


def _status(manifest: Manifest, status: ConditionStatus, reason: Reason, message: str, now: str) -> Manifest:
    generation = manifest["metadata"].get("generation")
    old = next(
        (
            item
            for item in (manifest.get("status") or {}).get("conditions") or ()
            if item.get("type") == ConditionType.ACCEPTED and item.get("status") == status
        ),
        None,
    )
    condition = Condition(
        type=str(ConditionType.ACCEPTED),
        status=status,
        reason=str(reason),
        message=message,
        last_transition_time=str(old["lastTransitionTime"]) if old else now,
        observed_generation=generation,
    )
    return AcceptedStatus(observed_generation=generation, conditions=(condition,)).dump()
