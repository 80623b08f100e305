"""The settings of a Director, and what follows from them for its drivers and faces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ballast_core.beliefs.kinds import Belief
from ballast_core.beliefs.survival_book import SurvivalSettings
from ballast_core.directing.watch import WatchSettings
from ballast_core.model import Binding, Stage
from ballast_core.model.canary import Canary
from ballast_core.policies.admission import Open
from ballast_core.policies.placement.protocol import Placement
from ballast_core.policies.rescheduling.emptying import Emptying
from ballast_core.policies.rescheduling.protocol import Rescheduling
from ballast_core.policies.suite import Suite
from ballast_core.profiles import HardwareProfile
from ballast_core.state.health import HealthSettings

_FROM_PROGRESS = Belief.PROGRESS | Belief.LENGTHS | Belief.STEP_TIMES | Belief.RATES


@dataclass(frozen=True, slots=True)
class Abilities:
    """What these policies need from a face; it need not prepare for anything else."""

    moves: bool
    """Running decodes may migrate (`Migrate`): the face must hold streams so that they can continue elsewhere."""
    cuts: bool
    """Requests may be dispatched in segments."""
    sets_priority: bool
    """`Dispatch.priority` is sent to the engines instead of the client's own priority."""
    beliefs: Belief
    """The beliefs that are learned: the face reads prompts as far as they need it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectorSettings(Suite):
    """The policies of the suite, and the limits within which they decide."""

    binding: Binding = Binding.LATE
    max_in_flight: int | None = None
    """Requests beyond this many are rejected as saturated; None sets no limit."""
    max_retries: int = 2
    """How often a request is dispatched again after a failed leg."""
    health: HealthSettings = field(default_factory=HealthSettings)
    """When endpoints are ejected, and how much of the traffic may be retries."""
    hold_s: float = 0.0
    """Seconds that a request waits for an endpoint to appear if there is none; 0 rejects at once."""
    startup_s: float | None = None
    """Seconds that an endpoint takes to start, by which rejected requests come back while there is none; None: not
    known."""
    profiles: Mapping[str, HardwareProfile]
    """Hardware profiles by name (`Endpoint.profile`); for an unknown name, learning starts from a guess."""
    empties_draining: bool = False
    """Whether decodes move out of draining endpoints where there is no rescheduling policy."""
    fallbacks: int = 0
    """How many further endpoints of each stage a dispatch names at most; 0: none, at no cost."""
    canary: Canary | None = None
    """The revision that gets a share of the requests, while endpoints of others are ready; None: the least busy
    revision serves."""
    learn: Belief = Belief.NONE
    """Beliefs to learn beyond those that the policies read."""
    lengths: SurvivalSettings = field(default_factory=SurvivalSettings)
    """How output lengths are learned, and their prior."""
    watch: WatchSettings | None = None
    """How patiently endpoints are watched; None: not at all. A driver that reports signs of life needs it."""

    @property
    def beliefs(self) -> Belief:
        """The beliefs that are learned."""
        return self.needs | self.learn

    @property
    def follows_progress(self) -> bool:
        """Whether any decision may depend on reports of progress. If not, a driver may leave them out."""
        return bool(self.beliefs & _FROM_PROGRESS)

    @property
    def moves(self) -> Rescheduling | None:
        """What decides which running decodes move; None if none ever does."""
        return Emptying() if self.rescheduling is None and self.empties_draining else self.rescheduling

    @property
    def reads_kv_usage(self) -> bool:
        """Whether any decision may depend on the KV usage that endpoints report. If not, a driver may leave it out."""
        return self.moves is not None or not isinstance(self.admission or Open(), Open)

    @property
    def abilities(self) -> Abilities:
        """What a face must be able to do."""
        return Abilities(
            moves=self.moves is not None,
            cuts=self.partition is not None,
            sets_priority=self.queue is not None and self.queue.engine_priority,
            beliefs=self.beliefs,
        )

    def placement(self, stage: Stage) -> Placement:
        """The placement of a stage."""
        return self.prefill if stage is Stage.PREFILL else self.decode


@dataclass(frozen=True, slots=True)
class SettingsChanged:
    """An event beside those of `ballast_core.model.events`: the Director decides by these settings from now on.

    What it knows stays: the ledger with all legs in flight, endpoints and their health, beliefs, and who waits. A
    policy that is not equal to the one before begins with state of its own, and with what is in flight. Binding,
    lengths and whether there is a watch must be as before.
    """

    settings: DirectorSettings
