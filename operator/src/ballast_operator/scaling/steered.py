"""What a look says of a ServingPool to those who decide on its instances, and what they are told of its pods. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ballast_core.attainment import Objective
from ballast_core.model import Role
from ballast_core.policies.scaling.protocol import Clamps
from ballast_core.profiles import HardwareProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class SteeredPool:
    """One pool of the spec."""

    name: str
    role: Role
    profile: HardwareProfile
    least: int
    most: int
    """Equal to `least` where the number is given."""
    count: int
    """Instances that are asked for now."""
    acts: bool = False
    """Whether decisions set the number; else they advise, and who sets it is another."""
    gpus: int = 1
    cost_per_hour: float = 0.0
    """0: not known of every pool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearse:
    """That candidates are tried before a change, how long that may take, and how requests are placed meanwhile."""

    cpu_s: float
    timeout_s: float
    policy: Mapping[str, Any] = field(default_factory=dict)
    """Spec of the SchedulingPolicy, as it is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steered:
    """A ServingPool whose `ratio.mode` is not Off."""

    uid: str
    """Of the ServingPool: another one of the same name is another one."""
    mode: str
    """Auto or Advisory."""
    pools: tuple[SteeredPool, ...]
    objectives: tuple[Objective, ...] = ()
    clamps: Clamps = field(default_factory=Clamps)
    zero_after_s: float | None = None
    """Seconds without a request after which both stages stop; None: never."""
    down_s: float | None = None
    """Seconds for which fewer instances must have been right before a pool shrinks; None: as the policy has it."""
    rehearse: Rehearse | None = None
    """None: the equilibrium decides, and nothing is tried."""
    token: bytes = field(default=b"", repr=False)
    """Signs what gateways are asked; empty: there is none, and nobody can be asked."""
    kept: bool = False
    """Whether decisions are stored."""

    @property
    def acts(self) -> bool:
        """Whether decisions are carried out."""
        return self.mode == "Auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One engine pod that has not ended."""

    name: str
    pool: str
    role: Role
    """By its label."""
    ready: bool
    ending: bool
    """Being deleted, or marked as one that is to go."""
    returns: bool = False
    """Whether it only has that mark, which is taken off where more are wanted."""
    age_s: float
    startup_s: float | None = None
    """From its creation until it was ready; None until then."""
    revision: str = ""
    """KV revision, by its label."""
    uid: str = ""
