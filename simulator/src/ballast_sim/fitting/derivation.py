"""Profiles derived from public numbers: those shipped beside the three pinned ones (docs/profiles/shipped.md)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ballast_core.profiles import HardwareProfile
from ballast_sim.fitting.law import COEFFICIENTS, Errors, with_coefficients

SIGNIFICANT_DIGITS = 4
LARGEST_MEAN_ERROR_RATIO = 0.10  # held out; a profile with more is not shipped
OVERHEAD_MS = 1.0  # assumed in every derived profile: no source has the host time of today's engines
MAX_NUM_SEQS = {"a100": 256, "h20": 256, "h100": 1024, "h200": 1024}  # as the pinned profiles; vLLM's own defaults


@dataclass(frozen=True, slots=True, kw_only=True)
class Derived:
    """A derived profile, and its errors where the source has measurements.

    Errors against kernel tables leave the assumed overhead out, as the tables do. `left_out`: why it is not shipped.
    """

    profile: HardwareProfile
    train: Errors | None = None
    held_out: Errors | None = None
    left_out: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The profile's fields, `train`, `held_out` and `left_out`."""
        return {
            **asdict(self.profile),
            "train": self.train and asdict(self.train),
            "held_out": self.held_out and asdict(self.held_out),
            "left_out": self.left_out,
        }


def rounded(profile: HardwareProfile, digits: int = SIGNIFICANT_DIGITS) -> HardwareProfile:
    """Coefficients rounded to `digits` significant digits."""
    short = {name: float(f"{getattr(profile, name):.{digits}g}") for name in COEFFICIENTS}
    return with_coefficients(profile, short)


def percent(ratio: float) -> str:
    """1.4 %, as in the pinned profiles' derivations."""
    return f"{ratio * 100:.1f} %"
