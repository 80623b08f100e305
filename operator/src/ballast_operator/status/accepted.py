"""The status of resources that ServingPools refer to: whether Ballast can use them, and who names them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from ballast_api.conditions import MAX_USED_BY, AcceptedStatus, ConditionType, Reason
from ballast_api.errors import InvalidInput
from ballast_api.hardware_profile import MAX_LEARNED, LearnedNumbers, LearnedPrefill, LearnedStep
from ballast_api.hardware_profile import HardwareProfile as HardwareProfileResource
from ballast_core.profiles import HardwareProfile
from ballast_operator.conditions import Finding, conditions, known_conditions
from ballast_operator.kinds import Manifest
from ballast_operator.planning.references import parse
from ballast_operator.profiles.learned import Accuracy, Lesson

_STEP: Final = tuple(LearnedStep.model_fields)
_ACCURATE: Final = {Accuracy.ACCURATE: True, Accuracy.SLOWER: False, Accuracy.FASTER: False}


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


def profile_status(
    manifest: Manifest,
    now: str,
    used_by: Collection[str] | None = None,
    lessons: Mapping[tuple[str, str], Lesson] | None = None,
    ours: Callable[[str], bool] = lambda _: True,
) -> Manifest:
    """Status of a HardwareProfile: the same, with what was learned.

    `lessons`: by namespace and name of the ServingPool; None: nobody has been asked yet, what the status says stays.
    `ours`: whether what a ServingPool, as `NAMESPACE/NAME`, has learned is this operator's to say: it serves and has
    asked it; what another one has written stays.
    """
    accepted = accepted_status(manifest, now, used_by)
    if lessons is None:
        kept = [each for each in known_conditions(manifest) if each.get("type") == ConditionType.PROFILE_ACCURATE]
        # Written also where it is empty: the API server sets it then, and a look would see a difference for ever.
        learned = (manifest.get("status") or {}).get("learned") or []
        return {**accepted, "conditions": [*accepted["conditions"], *kept], "learned": learned}
    told = [_learned(*each, _numbers(manifest)).dump() for each in lessons.items()]
    told += [each for each in (manifest.get("status") or {}).get("learned") or () if not ours(each["servingPool"])]
    told.sort(key=lambda each: (-each["stepObservations"] - each["prefills"], each["servingPool"]))
    learned = frozenset("/".join(name) for name, each in lessons.items() if each.accuracy is Accuracy.LEARNED)
    condition = conditions(manifest, (_accuracy(told, accepted.get("usedBy"), learned),), now)[0].dump()
    return {**accepted, "conditions": [*accepted["conditions"], condition], "learned": told[:MAX_LEARNED]}


def _numbers(manifest: Manifest) -> HardwareProfile | None:
    """What gateways began to learn from; None if the profile is not usable."""
    try:
        parsed = parse(manifest)
    except InvalidInput:
        return None
    return parsed.spec.to_core(parsed.name) if isinstance(parsed, HardwareProfileResource) else None


def _learned(name: tuple[str, str], lesson: Lesson, numbers: HardwareProfile | None) -> LearnedNumbers:
    learned, ratio = lesson.learned, lesson.prefill_ratio
    step, prefill = learned.learned, None
    if ratio is not None and numbers is not None:
        # Beside what it was learned: gateways take an edit of the spec a minute later.
        d_ms = numbers.d_ms_per_token if learned.declared is None else learned.declared.d_ms_per_token
        s_ms = numbers.s_ms_per_pair if learned.declared_s_ms_per_pair is None else learned.declared_s_ms_per_pair
        prefill = LearnedPrefill(d_ms_per_token=_plain(ratio * d_ms), s_ms_per_pair=_plain(ratio * s_ms))
    return LearnedNumbers(
        serving_pool="/".join(name),
        model=lesson.model,
        accurate=_ACCURATE.get(lesson.accuracy),
        step_ratio=None if lesson.step_ratio is None or learned.guessed else round(lesson.step_ratio, 2),
        step_observations=learned.observations,
        step=None if step is None else LearnedStep(**{name: _plain(getattr(step, name)) for name in _STEP}),
        prefill_ratio=None if ratio is None or learned.guessed else round(ratio, 2),
        prefill=prefill,
        prefills=learned.prefills,
    )


def _plain(value: float) -> float:
    """Three digits: more say nothing."""
    return float(f"{max(0.0, value):.3g}")


def _accuracy(told: Sequence[Manifest], used_by: object, learned: Collection[str]) -> Finding:
    """`learned`: ServingPools of which enough is known, where nothing is declared."""
    kind = ConditionType.PROFILE_ACCURATE
    off = [each for each in told if each.get("accurate") is False]
    if off:
        ratios = [each[name] for each in off[:1] for name in ("stepRatio", "prefillRatio") if each.get(name)]
        slower = max(ratios, key=lambda ratio: max(ratio, 1 / ratio), default=1.0) > 1
        reason = Reason.SLOWER_THAN_DECLARED if slower else Reason.FASTER_THAN_DECLARED
        # Without figures: they are in status.learned, and a message that changes is one more write.
        more = f" and {len(off) - 1} more" if len(off) > 1 else ""
        message = f"ServingPool {off[0]['servingPool']}{more}: status.learned has the ratios"
        return Finding(kind, "False", reason, message)
    if any(each.get("accurate") for each in told):
        return Finding(kind, "True", Reason.AS_DECLARED)
    if learned:
        return Finding(kind, "True", Reason.LEARNED)
    if told:
        return Finding(kind, "Unknown", Reason.TOO_FEW_OBSERVATIONS)
    why = "no gateway has learned of such engines: none serves, or its policy needs no step times"
    return Finding(kind, "Unknown", Reason.NOT_MEASURED, why if used_by else "no ServingPool names it")


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
