"""The status of resources that ServingPools refer to: whether Ballast can use them as they are. Pure."""

from __future__ import annotations

from ballast_api.conditions import AcceptedStatus, ConditionType, Reason
from ballast_api.errors import InvalidInput
from ballast_operator.conditions import Finding, conditions
from ballast_operator.kinds import Manifest
from ballast_operator.references import parse


def accepted_status(manifest: Manifest, now: str) -> Manifest:
    """Status with the condition Accepted. `now` is RFC 3339 in UTC."""
    return AcceptedStatus(
        observed_generation=manifest["metadata"].get("generation"),
        conditions=conditions(manifest, (_finding(manifest),), now),
    ).dump()


def _finding(manifest: Manifest) -> Finding:
    try:
        parse(manifest)
    except InvalidInput as error:
        message = "; ".join(str(problem) for problem in error.problems)
        return Finding(ConditionType.ACCEPTED, "False", Reason.INVALID_SPEC, message)
    return Finding(ConditionType.ACCEPTED, "True", Reason.ACCEPTED)
