"""Arrival processes of one mean rate that differ in how even they are: Poisson, Gamma renewal, bursts."""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from ballast_sim.settings import SettingError

MOST_REQUESTS = 100_000_000
"""Of a workload: all of it is kept in memory."""

GAMMA_SPREAD = (0.01, 100.0)
"""Coefficients of variation beyond these are beyond what floats draw."""


@dataclass(frozen=True, slots=True)
class ArrivalProcess:
    """`poisson`; `gamma` with a coefficient of variation of the gaps; `burst` of so many requests at one instant.

    Gamma gaps with a coefficient of 1 are Poisson's, above 1 they cluster, below 1 they are more even. Bursts come as
    a Poisson process.
    """

    kind: str = "poisson"
    value: float = 1.0

    def __post_init__(self) -> None:
        """Raises ValueError naming the option."""
        if self.kind not in ("poisson", "gamma", "burst"):
            raise SettingError("arrivals", f"there is no {self.kind!r}; there are poisson, gamma:CV, burst:SIZE")
        if not 0 < self.value < math.inf:
            raise SettingError("arrivals", f"{self.kind} takes a number above 0, not {self.value!r}")
        lowest, highest = GAMMA_SPREAD
        if self.kind == "gamma" and not lowest <= self.value <= highest:
            raise SettingError("arrivals", f"gamma takes a number from {lowest:g} to {highest:g}, not {self.value:g}")
        if self.kind == "burst" and (self.value != int(self.value)):
            raise SettingError("arrivals", f"a burst has a whole number of requests, not {self.value!r}")

    @classmethod
    def parse(cls, text: str) -> "ArrivalProcess":
        """Reads `poisson`, `gamma:2` (coefficient of variation), `burst:8` (requests). Raises ValueError."""
        kind, colon, value = text.partition(":")
        if not colon:
            return cls(kind, {"gamma": 2.0, "burst": 8.0}.get(kind, 1.0))
        if kind == "poisson":
            raise SettingError("arrivals", f"poisson takes no number, as in {text!r}; write poisson, or gamma:CV")
        try:
            number = float(value)
        except ValueError:
            raise SettingError("arrivals", f"{value!r} in {text!r} is not a number") from None
        return cls(kind, number)

    def times(self, rate_rps: float, rng: random.Random) -> Iterator[float]:
        """Arrivals without end, the first at 0 s."""
        now_s = 0.0
        while True:
            yield now_s
            if self.kind == "burst":
                for _ in range(int(self.value) - 1):
                    yield now_s
                now_s += rng.expovariate(rate_rps / self.value)
            elif self.kind == "gamma":
                shape = 1 / self.value**2
                now_s += rng.gammavariate(shape, 1 / (rate_rps * shape))
            else:
                now_s += rng.expovariate(rate_rps)


POISSON = ArrivalProcess()


def check_count(
    process: ArrivalProcess, *, rate_rps: float | None, default_rps: float, rate_scale: float, duration_s: float
) -> None:
    """Raises SettingError for more arrivals in `duration_s` than memory holds, naming the setting that asks for them.

    `rate_rps` None is `default_rps`. For workloads without a limit.
    """
    rate = (default_rps if rate_rps is None else rate_rps) * rate_scale
    if rate * duration_s > MOST_REQUESTS:
        asking = "rate_rps" if rate_rps is not None else "rate_scale" if rate_scale != 1 else "duration_s"
        raise SettingError(
            asking,
            f"{rate:g} requests a second for {duration_s:g} s are more than the {MOST_REQUESTS:,} requests "
            "that can be kept in memory; give a lower rate, a shorter --duration or a --limit",
        )
    if process.kind == "burst" and process.value > MOST_REQUESTS:
        raise SettingError(
            "arrivals",
            f"a burst of {process.value:g} is more than the {MOST_REQUESTS:,} requests that can be kept in memory; "
            "give a smaller one or a --limit",
        )


def check_limit(limit: int | None) -> None:
    """Raises SettingError for a limit of no requests, or of more than memory holds."""
    if limit is not None and limit < 1:
        raise SettingError("limit", f"must be 1 request or more, not {limit}")
    if limit is not None and limit > MOST_REQUESTS:
        raise SettingError("limit", f"must be {MOST_REQUESTS:,} requests or fewer; they are kept in memory")
