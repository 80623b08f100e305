"""How many requests a second a fleet carries at its limit, by the arithmetic of `ballast_core.profiles.capacity`."""

from collections.abc import Sequence
from dataclasses import dataclass

from ballast_core.profiles import HardwareProfile
from ballast_core.profiles.capacity import HasLengths, LengthStatistics, decode_rps, prefill_rps


@dataclass(frozen=True, slots=True)
class Capacity:
    """Requests a second that a fleet carries, by stage. Infinity where a stage has colocated endpoints only."""

    prefill_rps: float
    decode_rps: float

    @property
    def rps(self) -> float:
        """What the narrower stage lets through."""
        return min(self.prefill_rps, self.decode_rps)

    @property
    def bottleneck(self) -> str:
        """Which stage that is."""
        return "prefill" if self.prefill_rps <= self.decode_rps else "decode"

    def load_ratio(self, rate_rps: float) -> float:
        """The share of this capacity that a rate of arrivals takes."""
        return rate_rps / self.rps


def estimate(
    requests: Sequence[HasLengths], *, prefill: Sequence[HardwareProfile], decode: Sequence[HardwareProfile]
) -> Capacity:
    """The capacity of prefill and decode endpoints for requests of these lengths.

    Raises ValueError where a stage has no endpoint or there is no request.
    """
    for name, profiles in (("prefill", prefill), ("decode", decode)):
        if not profiles:
            raise ValueError(f"{name}: a fleet needs at least one endpoint of this role")
    lengths = LengthStatistics.of(requests)
    return Capacity(
        sum(prefill_rps(profile, lengths) for profile in prefill),
        sum(decode_rps(profile, lengths) for profile in decode),
    )


def mean_rate_rps(requests: Sequence[HasLengths], duration_s: float) -> float:
    """Arrivals a second over a span."""
    return len(requests) / duration_s
