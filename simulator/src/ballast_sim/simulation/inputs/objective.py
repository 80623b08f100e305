"""What a request must meet to count as good: thresholds in seconds."""

from __future__ import annotations

from dataclasses import dataclass

from ballast_sim.settings import SettingError

LATE_PERCENT = 1
"""A request meets a TBT objective if at most this share of its gaps is longer: its own P99 is within it."""


@dataclass(frozen=True, slots=True)
class Objective:
    """Thresholds that a request must meet, each in seconds; None: no threshold."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    tbt_s: float | None = None
    """Time between tokens: of the gaps between a request's tokens, 99 % must be within it."""

    def allows(self, late_gaps: int, tokens: int) -> bool:
        """Whether a request of so many tokens may have so many gaps above `tbt_s`. One token has no gap."""
        return self.tbt_s is None or 100 * late_gaps <= LATE_PERCENT * (tokens - 1)

    @classmethod
    def parse(cls, text: str) -> Objective:
        """Reads `ttft=2,tpot=0.05` (seconds). Raises `ValueError` naming what is wrong."""
        values: dict[str, float] = {}
        for part in filter(None, (piece.strip() for piece in text.split(","))):
            name, _, number = part.partition("=")
            try:
                value = float(number)
            except ValueError:
                value = float("nan")
            if name not in ("ttft", "tpot", "e2e", "tbt") or not 0 < value < float("inf"):
                raise SettingError("slo", f"cannot read {part!r}; write such as ttft=2,tpot=0.05 (seconds, above 0)")
            if f"{name}_s" in values:
                raise SettingError("slo", f"{name} is given twice in {text!r}; give it once")
            values[f"{name}_s"] = value
        return cls(**values)
