"""What a run with a scaling policy is given."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ballast_core.model import Role
from ballast_core.policies.registry import SCALING, PolicyError, build
from ballast_core.policies.scaling.protocol import Clamps, Counts, Pool, Scaling
from ballast_core.profiles import HardwareProfile
from ballast_sim.hardware_names import DEFAULT_MODEL, find_profile
from ballast_sim.settings import SettingError
from ballast_sim.simulation.inputs.shapes import Machine
from ballast_sim.simulation.policies.choice import parse_typed


def parse_scaling(text: str) -> Scaling:
    """A scaling policy from `TYPE` or `TYPE:name=value,...`. Raises SettingError."""
    type_name, parameters = parse_typed("autoscale", text)
    try:
        return build(SCALING, type_name, parameters)
    except PolicyError as error:
        raise SettingError("autoscale", f"{error}") from None


def parse_prices(text: str, profiles: Mapping[str, HardwareProfile], model: str = DEFAULT_MODEL) -> dict[str, float]:
    """Reads `PROFILE=COST,...`, one for each of `profiles`; hardware alone stands for its profile of `model`.

    Raises SettingError.
    """
    prices: dict[str, float] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, _, number = part.partition("=")
        try:
            cost = float(number)
        except ValueError:
            cost = math.nan
        if not 0 < cost < math.inf:
            raise SettingError("price", f"cannot read {part!r}; write such as h200-qwen3-32b=4.2")
        profile = find_profile(name, profiles, model)
        if profile is None:
            raise SettingError("price", f"no engine here is of {name!r}, only of {', '.join(profiles)}")
        if profile.name in prices:
            raise SettingError("price", f"{profile.name} is named twice; give it once")
        prices[profile.name] = cost
    missing = [name for name in profiles if name not in prices]
    if missing:
        raise SettingError("price", f"none for {', '.join(missing)}; write such as {missing[0]}=4.2, for each engine")
    return prices


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsing:
    """How candidates are tried. Bounded in requests, so that the same run gives the same decisions."""

    window_s: float = 120.0
    """The last seconds of arrivals, which are replayed as warm-up."""
    lately_s: float = 45.0
    """The newest of these seconds, which the trial repeats."""
    trial_s: float = 180.0
    """How long a candidate is tried."""
    least_s: float = 15.0
    """How long at least after instances that it asks for have started; otherwise nothing is tried."""
    requests: int = 1500
    """Of a trial at most; the warm-up has half as many. What they would exceed is made shorter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Autoscaling:
    """A scaling policy, its bounds, and the world that it acts in."""

    policy: Scaling
    least: int = 1
    """Instances of each pool at least; 2 of a flexible pool, which serves both stages alone, or 0."""
    most: int | None = None
    """Instances of each pool at most; None: as many GPUs as the fleet has at first."""
    clamps: Clamps = field(default_factory=Clamps)
    attainment: float = 0.99
    """Share of requests that must meet the objective of the run."""
    startup_s: float = 60.0
    """From asking for a machine to its first request."""
    interval_s: float = 15.0
    """Between two rounds, and the length of one window of arrivals."""
    window_s: float = 120.0
    """How far back arrivals and lengths are measured."""
    delay_s: float = 2.0
    """Age of what is measured when a round goes by it."""
    zero_after_s: float | None = None
    """Seconds without a request after which both stages stop until one comes; with `least` 0. None: never."""
    hold_s: float = 300.0
    """How long a request then waits for an instance to start."""
    prices: Mapping[str, float] = field(default_factory=dict)
    """Cost of an instance and hour by profile, of all or of none."""
    rehearsing: Rehearsing | None = None
    """None: candidates are not tried."""

    def __post_init__(self) -> None:
        """Raises ValueError naming the setting that cannot work."""
        for name in ("interval_s", "window_s"):
            if not 1 <= getattr(self, name) < math.inf:
                raise SettingError(name, f"must be 1 s or more, not {getattr(self, name)!r}")
        if not 0 <= self.startup_s < math.inf:
            raise SettingError("startup_s", f"must be 0 s or more, not {self.startup_s!r}")
        if not 0 <= self.delay_s < self.interval_s:
            raise SettingError("delay_s", f"must be 0 s or more and below the interval, not {self.delay_s!r}")
        if self.zero_after_s is not None and (self.least or not 0 < self.zero_after_s < math.inf):
            raise SettingError(
                ("zero_after_s", "least"), "scale to zero needs 0 instances at least, and a time above 0 s"
            )
        if not 0 < self.attainment <= 1:
            raise SettingError("attainment", f"must be above 0 and 1 at most, not {self.attainment:g}")
        if self.least < 0:
            raise SettingError("least", f"must be 0 or more, not {self.least}")
        if self.most is not None and self.most < max(1, self.least):
            raise SettingError(("least", "most"), f"at least {self.least} and at most {self.most} machines of a pool")
        self._check_clamps()

    def _check_clamps(self) -> None:
        lowest, highest, budget = self.clamps.min_ratio, self.clamps.max_ratio, self.clamps.gpu_budget
        for name, ratio in (("min_ratio", lowest), ("max_ratio", highest)):
            if ratio is not None and not 0 < ratio < math.inf:
                raise SettingError(name, f"must be above 0 and finite, not {ratio!r}")
        if lowest is not None and highest is not None and lowest > highest:
            raise SettingError(
                ("min_ratio", "max_ratio"), f"at least {lowest:g} and at most {highest:g} cannot both be"
            )
        if budget is not None and budget < 1:
            raise SettingError("gpu_budget", f"must be 1 or more, not {budget}")

    def pools(self, machines: tuple[Machine, ...]) -> tuple[Pool, ...]:
        """One for each role and profile. A flexible one begins with its first half in prefill. Raises SettingError."""
        everything = sum(machine.profile.gpus for machine in machines)
        found: dict[tuple[Role, str], Pool] = {}
        for machine in machines:
            role, profile = machine.endpoint.role, machine.profile
            if machine.endpoint.id.startswith("c"):
                raise SettingError("endpoints", "colocated endpoints are not scaled by role; take F instead of C")
            known = found.get((role, profile.name)) or Pool(
                name=f"{role.value}-{profile.name}",
                role=role,
                profile=profile,
                least=max(self.least, 2) if role is Role.FLEXIBLE and self.least else self.least,
                most=self.most if self.most is not None else max(1, everything // profile.gpus),
                gpus=profile.gpus,
                cost_per_hour=self.prices.get(profile.name, 0.0),
            )
            counts = known.wanted
            prefill = role is Role.PREFILL
            wanted = Counts(counts.prefill + prefill, counts.decode + (not prefill))
            found[role, profile.name] = replace(known, wanted=wanted)
        return tuple(_halved(pool) if pool.role is Role.FLEXIBLE else pool for pool in found.values())


def _halved(pool: Pool) -> Pool:
    prefill = (pool.wanted.replicas + 1) // 2
    return replace(pool, wanted=Counts(prefill, pool.wanted.replicas - prefill))
