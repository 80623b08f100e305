"""From a decision to what is stored of it and told: only what says something new. Pure.

Rounds come every few seconds, and most of them decide what the last one did. A write of the ConfigMap wakes a look and
may change a status, so nothing is written while nothing changes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from ballast_api.serving_pool import ScalingDecision
from ballast_core.model import Role
from ballast_core.policies.scaling.protocol import Counts, Decision
from ballast_core.policies.scaling.records import record_of
from ballast_operator.planning.scaling import REFUSALS
from ballast_operator.scaling.records import Record, Stored, bounded, runs
from ballast_operator.scaling.steered import Steered

SAY_S: Final = 60.0
"""Why nothing is changed is told again, in other words, after so many seconds at the earliest."""
_MEASURED: Final = re.compile(r"\bsome [\d.e+-]+")
"""As a `Refusal` says it."""
SETTLE_S: Final = 60.0
"""What came of a change is looked at so many seconds after its instances should have started: one window of
attainment."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a round leaves behind."""

    stored: Stored | None = None
    """What is to be written; None: what is there says it already."""
    event: ScalingDecision | None = None
    """What people are told by an Event: other counts."""


def settled(of: Steered, before: Stored, decision: Decision, *, now_s: float, time: str) -> Told:
    """`now_s`: seconds since 1970 by a clock that nobody sets; `time`: what the wall's says, as RFC 3339."""
    wanted = {pool.name: counts for pool, counts in zip(of.pools, decision.target, strict=True)}
    records = with_outcomes(before.records, decision, now_s)
    news = _is_news(of, before, decision, wanted, now_s)
    last = before.last
    if news:
        last = _said(of, decision, time)
        record = {**record_of(decision, round(now_s, 3)), "time": time, "mode": of.mode, "applied": last.applied}
        records = (*records, record)
    after = replace(
        before,
        mode=of.mode,
        wanted=wanted,
        memory=decision.memory,
        startup_s=round(decision.proposal.inputs.startup_s, 1),
        last=last,
        records=bounded(records) if news else records,
    )
    if not news and records == before.records and not _is_worth_writing(before, after):
        return Told()
    return Told(after, last if news and wanted != before.wanted and decision.changes else None)


def with_outcomes(records: tuple[Record, ...], decision: Decision, now_s: float) -> tuple[Record, ...]:
    """The records, each applied change with what came of it once that shows: was the forecast right, and is the
    objective met? One from the future, of an operator whose clock was ahead, is long over."""
    inputs, demand = decision.proposal.inputs, decision.proposal.demand

    def outcome(record: Record) -> Record:
        if not (record.get("applied") and record.get("demand")) or "outcome" in record or demand is None:
            return record
        if 0 <= now_s - record["at_s"] < inputs.startup_s + SETTLE_S:
            return record
        attained = [
            {"class": each.name, "requests": each.counts.requests, "ratio": each.counts.share}
            for each in inputs.traffic.attained
        ]
        targets = {each.name: each.target for each in inputs.objectives}
        shares = [(each.name, each.counts.share) for each in inputs.traffic.attained if each.name in targets]
        known = [(name, share) for name, share in shares if share is not None]
        found: dict[str, Any] = {
            "at_s": round(now_s, 3),
            "rate_rps": demand.rate_rps,
            "attained": attained,
            "met": all(share >= targets[name] for name, share in known) if known else None,
        }
        return {**record, "outcome": found}

    return tuple(map(outcome, records))


def _is_news(of: Steered, before: Stored, decision: Decision, wanted: Mapping[str, Counts], now_s: float) -> bool:
    last = before.last
    if last is None or before.mode != of.mode:
        return True
    if wanted != before.wanted:
        return True
    refused, same = decision.reason in REFUSALS, last.reason == decision.reason
    if same and (not refused or _without_figures(last.message) == _without_figures(decision.message)):
        return False
    if (not same and (refused or last.reason in REFUSALS)) or not before.records:
        return True
    return not 0 <= now_s - before.records[-1]["at_s"] < SAY_S  # in the future: another operator's clock was ahead


def _without_figures(message: str) -> str:
    """Without what is measured, which differs from round to round."""
    return _MEASURED.sub("some", message)


def _is_worth_writing(before: Stored, after: Stored) -> bool:
    """Whether an operator that starts anew would decide otherwise without it."""
    old, new = runs(before.memory.recommended), runs(after.memory.recommended)
    right_before = old[-1].layout if old else None
    right_now = new[-1].layout if new else None
    return before.wanted != after.wanted or before.memory.pools != after.memory.pools or right_before != right_now


def _said(of: Steered, decision: Decision, time: str) -> ScalingDecision:
    target, wanted = decision.target, decision.proposal.inputs.wanted
    moved = [pool for pool, now, then in zip(of.pools, wanted, target, strict=True) if now != then]
    return ScalingDecision(
        time=time,
        reason=decision.reason,
        message=decision.message,
        prefill_replicas=sum(counts.prefill for counts in target),
        decode_replicas=sum(counts.decode for counts in target),
        applied=of.acts and any(pool.acts or pool.role is Role.FLEXIBLE for pool in moved),
    )
