"""Conditions: from a finding to what the status carries. Pure; the time is passed in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ballast_api.conditions import Condition, ConditionStatus, ConditionType, Reason
from ballast_operator.kinds import Manifest

MAX_MESSAGE: Final = 2000
"""Characters of a condition's message. The schema allows far more; a reader does not."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found for one condition, before its times are known."""

    type: ConditionType
    status: ConditionStatus
    reason: Reason
    message: str = ""


def conditions(manifest: Manifest, findings: Iterable[Finding], now: str) -> tuple[Condition, ...]:
    """Conditions of `manifest`, one for each finding. `now` (RFC 3339 in UTC) counts only where a status flips."""
    before = known_conditions(manifest)
    return tuple(_condition(finding, before, manifest["metadata"].get("generation"), now) for finding in findings)


def known_conditions(manifest: Manifest) -> list[Manifest]:
    """The conditions that the object has now."""
    return list((manifest.get("status") or {}).get("conditions") or ())


def transitions(before: Manifest | None, after: Manifest) -> list[Manifest]:
    """The conditions of the status `after` whose status or reason differs from `before`."""
    known = {item["type"]: (item["status"], item["reason"]) for item in (before or {}).get("conditions", ())}
    return [item for item in after.get("conditions", ()) if known.get(item["type"]) != (item["status"], item["reason"])]


def joined(parts: Iterable[object]) -> str:
    """The parts as one message, cut to `MAX_MESSAGE`."""
    text = "; ".join(str(part) for part in parts)
    return text if len(text) <= MAX_MESSAGE else f"{text[: MAX_MESSAGE - 3]}..."


def _condition(finding: Finding, before: Iterable[Manifest], generation: int | None, now: str) -> Condition:
    old = next((item for item in before if item.get("type") == finding.type), None)
    same = old is not None and old.get("status") == finding.status
    return Condition(
        type=str(finding.type),
        status=finding.status,
        reason=str(finding.reason),
        message=finding.message,
        last_transition_time=str(old["lastTransitionTime"]) if old is not None and same else now,
        observed_generation=generation,
    )
