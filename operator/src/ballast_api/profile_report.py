"""What a gateway's `/ballast/v1/profiles` answers: the step times that it has learned, against those declared.

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
    """None: nobody declares it, and learning began from a guess."""
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
    declared_error_ratio: float | None = None
    """How far the declared profile is off at `decodes`: |learned / declared - 1|."""
    decodes: int = 0
    """The batch at which that is said, each with `context_tokens`."""
    context_tokens: int = 0


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


def together(reports: Sequence[ProfilesReport]) -> bytes:
    """The report of one gateway whose workers gave these, in JSON: of each profile, what most was learned from."""
    best: dict[str, LearnedProfile] = {}
    for each in _of(reports):
        had = best.get(each.name)
        if had is None or each.observations > had.observations:
            best[each.name] = each
    newest_s = max(each.unix_s for each in reports)
    return msgspec.json.encode(ProfilesReport(unix_s=newest_s, profiles=tuple(best[name] for name in sorted(best))))


def _of(reports: Iterable[ProfilesReport]) -> Iterable[LearnedProfile]:
    return (profile for report in reports for profile in report.profiles)
