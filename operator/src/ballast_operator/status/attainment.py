"""The condition SLOMet and the figures of attainment in a ServingPool's status. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ballast_api.conditions import ConditionType, Reason
from ballast_api.serving_pool import ObjectiveStatus
from ballast_core.attainment import Counts, Objective, Standing, Why, standing
from ballast_operator.conditions import Finding, joined, known_conditions
from ballast_operator.gateways.measured import ClassCounts, Followed, Measured
from ballast_operator.kinds import SECRET
from ballast_operator.observed import Observed
from ballast_operator.planning.planned import Plan, Target
from ballast_operator.problems.references import OBJECTIVE_REASONS
from ballast_operator.profiles.learned import Taught
from ballast_operator.specs.token_secret import tokens_of

_MOST_UNKNOWN: Final = 0.1
"""Share of requests that may be unknown for an attainment to be given as one number."""
_REASONS: Final[Mapping[Why, Reason]] = {
    Why.TOO_FEW: Reason.TOO_FEW_REQUESTS,
    Why.UNSEEN: Reason.OUTPUTS_UNSEEN,
    Why.NO_TRAFFIC: Reason.NO_TRAFFIC,
}
_MEASURED: Final = frozenset({Reason.SLO_MET, Reason.SLO_MISSED, Reason.NOT_MEASURED, *_REASONS.values()})
"""What comes of asking gateways."""
_ORDER: Final = (Why.UNSEEN, Why.TOO_FEW, Why.NO_TRAFFIC)
"""Which reason is given where classes have several."""


@dataclass(frozen=True, slots=True)
class Attained:
    """What a look says of attainment."""

    finding: Finding
    objectives: tuple[ObjectiveStatus, ...] = ()
    attainment: float | None = None
    """Of the objective that is furthest below its target, or least above."""


@dataclass(frozen=True, slots=True)
class _Class:
    counts: ClassCounts
    objective: Objective
    standing: Standing


def following(observed: Observed, plan: Plan) -> Followed | None:
    """Whose gateways are to be asked for what; None if there is nothing to ask for."""
    objectives = () if plan.target is None else plan.target.objectives
    secret = next((item for item in plan.apply if item["kind"] == SECRET.kind), None)
    tokens = tokens_of(secret)
    if not (objectives or plan.canary is not None) or not tokens:
        return None
    return Followed(observed.uid, objectives, tokens[0].encode())


def taught(observed: Observed, plan: Plan) -> Taught | None:
    """Whose gateways are to be asked what they have learned of engines; None if there is nothing to ask for."""
    tokens = tokens_of(next((item for item in plan.apply if item["kind"] == SECRET.kind), None))
    if plan.target is None or not tokens:
        return None
    spec = plan.target.spec
    uid, profiles = observed.uid, frozenset(pool.hardware for pool in spec.pools)
    return Taught(uid, spec.model.name, profiles, tokens[0].encode())


def attained(observed: Observed, target: Target, plan: Plan) -> Attained:
    """SLOMet, and the figures. Until gateways have been asked, an earlier operator's figures stay."""
    if not target.spec.objective_names:
        return Attained(_unknown(Reason.NO_SLO, "neither spec.sloRef nor spec.sloRefs is set"))
    for problem in plan.problems:
        if problem.reason in OBJECTIVE_REASONS:
            return Attained(_unknown(problem.reason, joined([problem])))
    measured, before = observed.measured, _before(observed)
    if measured is None:
        return _as_before(observed, target, before)
    found = [(objective, measured.of(objective)) for objective in target.objectives]
    classes = [
        _Class(counts, objective, standing(counts.joint, objective.target, _MET.get(_met_of(before, objective.name))))
        for objective, counts in found
        if counts is not None
    ]
    statuses = tuple(map(_status, classes))
    missing = [objective.name for objective, counts in found if counts is None]
    return Attained(_finding(classes, missing, measured), statuses, _worst(classes))


_MET: Final[Mapping[str, bool]] = {"True": True, "False": False}


def _before(observed: Observed) -> tuple[ObjectiveStatus, ...]:
    """What the status says; nothing of it that is not as it should be."""
    found = []
    for item in (observed.pool.get("status") or {}).get("objectives") or ():
        try:
            found.append(ObjectiveStatus.parse(item))
        except ValueError:
            continue
    return tuple(found)


def _met_of(before: Iterable[ObjectiveStatus], name: str) -> str:
    return next((each.met for each in before if each.name == name), "Unknown")


def _as_before(observed: Observed, target: Target, before: tuple[ObjectiveStatus, ...]) -> Attained:
    old = next((item for item in known_conditions(observed.pool) if item.get("type") == ConditionType.SLO_MET), None)
    # Without a count no class is in the status: then the generation says that it is about these objectives.
    same = [each.name for each in before] == [each.name for each in target.objectives]
    same = same or (old is not None and old.get("observedGeneration") == observed.generation)
    if old is None or old.get("reason") not in _MEASURED or not same:
        return Attained(_unknown(Reason.NOT_MEASURED, "no gateway has been asked yet"))
    status: Literal["True", "False", "Unknown"] = old["status"]
    finding = Finding(ConditionType.SLO_MET, status, Reason(old["reason"]), str(old["message"]))
    return Attained(finding, before, (observed.pool["status"] or {}).get("attainment"))


def _finding(classes: Sequence[_Class], missing: Sequence[str], measured: Measured) -> Finding:
    kind, partial = ConditionType.SLO_MET, _partial(measured)
    missed = sorted((each for each in classes if each.standing.met is False), key=_margin)
    if missed:
        texts = [_text(each, by_threshold=True) for each in missed]
        return Finding(kind, "False", Reason.SLO_MISSED, joined([*texts, *partial]))
    if not classes:
        said = "no gateway runs" if not measured.asked else f"none of {measured.asked} gateways has counts"
        return _unknown(Reason.NOT_MEASURED, joined([said, *partial]))
    texts = [_text(each, by_threshold=False) for each in sorted(classes, key=_margin)]
    open_ = [each.standing.why for each in classes if each.standing.met is None]
    quiet = open_ and all(why is Why.NO_TRAFFIC for why in open_) and len(open_) < len(classes)
    if missing:
        return _unknown(Reason.NOT_MEASURED, joined([f"not counted yet: {', '.join(missing)}", *texts, *partial]))
    if open_ and not quiet:
        why = min(open_, key=_ORDER.index)
        return _unknown(_REASONS[why], joined([*texts, *partial]))
    return Finding(kind, "True", Reason.SLO_MET, joined([*texts, *partial]))


def _partial(measured: Measured) -> tuple[str, ...]:
    if not measured.problems:
        return ()
    return (f"partial, without what these gateways counted: {', '.join(measured.problems[:3])}",)


def _unknown(reason: Reason, message: str) -> Finding:
    return Finding(ConditionType.SLO_MET, "Unknown", reason, message)


def _margin(one: _Class) -> float:
    share = one.standing.counts.share
    return 1.0 if share is None else share - one.objective.target


def _worst(classes: Sequence[_Class]) -> float | None:
    known = [each for each in classes if _given(each.standing.counts) is not None]
    return _given(min(known, key=_margin).standing.counts) if known else None


def _given(counts: Counts) -> float | None:
    """The attainment as one number."""
    share = counts.share
    if share is None or counts.unknown > _MOST_UNKNOWN * counts.requests:
        return None
    return round(share, 4)


def _status(one: _Class) -> ObjectiveStatus:
    counts = one.standing.counts
    lower, upper = counts.interval()
    met: Literal["True", "False", "Unknown"] = (
        "Unknown" if one.standing.met is None else ("True" if one.standing.met else "False")
    )
    return ObjectiveStatus(
        name=one.objective.name,
        met=met,
        target=one.objective.target,
        attainment=_given(counts),
        lower=round(lower, 4),
        upper=round(upper, 4),
        window_s=one.standing.window_s,
        requests=counts.requests,
        unknown=counts.unknown,
    )


def _text(one: _Class, *, by_threshold: bool) -> str:
    counts, window_s = one.standing.counts, one.standing.window_s
    if not counts.requests:
        return f"{one.objective.name}: no request ended in {window_s // 60} min"
    lower, upper = counts.interval()
    share = "?" if counts.share is None else f"{100 * counts.share:.1f}"
    unknown = f", {counts.unknown} of them unseen" if counts.unknown else ""
    text = (
        f"{one.objective.name}: {share} % ({100 * lower:.1f} to {100 * upper:.1f}) of {counts.requests} requests in "
        f"{window_s // 60} min{unknown}, target {100 * one.objective.target:g} %"
    )
    return text + (_thresholds(one) if by_threshold else "")


def _thresholds(one: _Class) -> str:
    objective, counts = one.objective, one.counts.by_window[one.standing.window_s]
    parts = [
        f"{threshold.name} {100 * share:.1f} %"
        for threshold in objective.limits
        if (share := counts[threshold].share) is not None
    ]
    return f" (each alone: {', '.join(parts)})" if len(parts) > 1 else ""
