"""What a gateway's `/ballast/v1/profiles` answers: the step and prefill times that it has learned, against those
declared.

Each endpoint is learned on its own; endpoints of one HardwareProfile are told together, each by its observations.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

PROFILES = "/ballast/v1/profiles"
"""Path of the admin API."""


class DecodeStep(msgspec.Struct, frozen=True, kw_only=True):
    """Coefficients of a step that only decodes, as in a HardwareProfile, in milliseconds."""

    overhead_ms: float
    a_ms: float
    d_ms_per_token: float
    k_ms_per_kv_token: float
    b_ms_per_seq: float


class LearnedProfile(msgspec.Struct, frozen=True, kw_only=True):
    """One HardwareProfile."""

    name: str
    declared: DecodeStep | None = None
    """None: nobody declares it."""
    declared_s_ms_per_pair: float | None = None
    """Its coefficient of prefills alone; None: nobody declares it, or the gateway is of an earlier release."""
    guessed: bool = False
    """Whether `declared` is a guess that learning began from: the HardwareProfile leaves its speed out."""
    learned: DecodeStep | None = None
    """None where too little has been observed."""
    endpoints: int = 0
    """Those of it that were observed enough."""
    observations: int = 0
    """Mean gaps between tokens, of 2 s each, from which these were learned."""
    median_error_ratio: float = 0.0
    """Median of |observed / predicted - 1| over their last predictions, each made before it was learned from."""
    bias_ratio: float = 0.0
    """Mean of observed / predicted - 1 over the same: above 0, steps last longer than learned so far."""
    step_ratio: float | None = None
    """Learned over declared step time at `decodes`: above 1, engines are slower than declared."""
    prefill_ratio: float | None = None
    """Real seconds for one that the declared profile has for a prefill; None where too few have ended."""
    prefills: int = 0
    """Prefills from which that was learned."""
    prefill_endpoints: int = 0
    """Those of it that ended enough of them."""
    declared_error_ratio: float | None = None
    """How far the declared profile is off at `decodes`: |learned / declared - 1|."""
    decodes: int = 0
    """The batch at which that is said, each with `context_tokens`."""
    context_tokens: int = 0

    @property
    def beside(self) -> tuple[DecodeStep | None, float | None]:
        """The declared numbers that it was learned beside: ratios to others say nothing of these."""
        return self.declared, self.declared_s_ms_per_pair


class ProfilesReport(msgspec.Struct, frozen=True, kw_only=True):
    """The answer. Fields that a later release adds are ignored."""

    unix_s: float
    profiles: tuple[LearnedProfile, ...] = ()


def read_profiles(body: bytes) -> ProfilesReport:
    """Raises `ValueError`, which names what is wrong."""
    try:
        return msgspec.json.decode(body, type=ProfilesReport)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{PROFILES}: {error}") from error


def of_gateways(reports: Iterable[ProfilesReport]) -> dict[str, LearnedProfile]:
    """What all gateways have learned, by HardwareProfile: their means, each by its observations.

    Of gateways that go by unlike declared numbers, those count that have observed most by one of them: the others have
    not taken an edit yet, or learn anew.
    """
    by_name: dict[str, list[LearnedProfile]] = {}
    for each in _of(reports):
        by_name.setdefault(each.name, []).append(each)
    return {name: _pooled(parts) for name, parts in by_name.items()}


def _pooled(parts: Sequence[LearnedProfile]) -> LearnedProfile:
    seen: dict[tuple[DecodeStep | None, float | None], int] = {}
    for each in parts:
        seen[each.beside] = seen.get(each.beside, 0) + each.observations + each.prefills
    numbers = max(seen, key=seen.__getitem__)
    alike = [each for each in parts if each.beside == numbers]
    stepped = [(each.observations, each.learned, each) for each in alike if each.learned is not None]
    prefilled = [(each.prefills, each.prefill_ratio) for each in alike if each.prefill_ratio is not None]
    found = LearnedProfile(
        name=parts[0].name,
        declared=numbers[0],
        declared_s_ms_per_pair=numbers[1],
        guessed=alike[0].guessed,
        prefill_ratio=_mean(prefilled) if prefilled else None,
        prefills=sum(count for count, _ in prefilled),
        prefill_endpoints=max(each.prefill_endpoints for each in alike),
    )
    if not stepped:
        return found
    ratios = [(count, each.step_ratio) for count, _, each in stepped if each.step_ratio is not None]
    newest = stepped[0][2]
    return msgspec.structs.replace(
        found,
        learned=DecodeStep(
            **{
                field: round(_mean([(count, getattr(step, field)) for count, step, _ in stepped]), 9)
                for field in DecodeStep.__struct_fields__
            }
        ),
        endpoints=max(each.endpoints for _, _, each in stepped),
        observations=sum(count for count, _, _ in stepped),
        median_error_ratio=_mean([(count, each.median_error_ratio) for count, _, each in stepped]),
        bias_ratio=_mean([(count, each.bias_ratio) for count, _, each in stepped]),
        step_ratio=_mean(ratios) if ratios else None,
        declared_error_ratio=abs(_mean(ratios) - 1) if ratios else None,
        decodes=newest.decodes,
        context_tokens=newest.context_tokens,
    )


def _mean(weighed: Sequence[tuple[int, float]]) -> float:
    total = sum(weight for weight, _ in weighed)
    return sum(weight * value for weight, value in weighed) / total


def together(reports: Sequence[ProfilesReport]) -> bytes:
    """The report of one gateway whose workers gave these, in JSON: of each profile, what most was learned from."""
    best: dict[str, LearnedProfile] = {}
    for each in _of(reports):
        had = best.get(each.name)
        if had is None or each.observations + each.prefills > had.observations + had.prefills:
            best[each.name] = each
    newest_s = max(each.unix_s for each in reports)
    return msgspec.json.encode(ProfilesReport(unix_s=newest_s, profiles=tuple(best[name] for name in sorted(best))))


def _of(reports: Iterable[ProfilesReport]) -> Iterable[LearnedProfile]:
    return (profile for report in reports for profile in report.profiles)
