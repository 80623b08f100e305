"""What a Director is given once, and what follows from it for its drivers and faces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ballast_core.beliefs.kinds import Belief
from ballast_core.beliefs.survival_book import SurvivalSettings
from ballast_core.model import Binding, Stage
from ballast_core.policies.placement.protocol import Placement
from ballast_core.policies.suite import Suite
from ballast_core.profiles import HardwareProfile

_FROM_PROGRESS = Belief.PROGRESS | Belief.LENGTHS | Belief.STEP_TIMES | Belief.RATES


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a face must be able to do for these policies: it need not prepare for the rest."""

    moves: bool
    """Running decodes may be moved (`Migrate`): streams must be held so that they can go on elsewhere."""
    cuts: bool
    """Requests may be dispatched in segments."""
    sets_priority: bool
    """`Dispatch.priority` goes to the engines, in place of the client's own."""
    beliefs: Belief
    """What is learned: prompts are read as far as these need it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectorSettings(Suite):
    """The policies of the suite decide; the other fields bound what they may do."""

    binding: Binding = Binding.LATE
    max_in_flight: int | None = None
    """Requests beyond this many are rejected as saturated; None sets no limit."""
    max_retries: int = 2
    """How often a request is dispatched anew after a failed leg."""
    hold_s: float = 0.0
    """How long a request waits for an endpoint to appear when there is none; 0 rejects at once."""
    profiles: Mapping[str, HardwareProfile]
    """Hardware by the name that endpoints give (`Endpoint.profile`); an unknown name is learned from a guess."""
    learn: Belief = Belief.NONE
    """Beliefs to learn beyond those that the policies read."""
    lengths: SurvivalSettings = field(default_factory=SurvivalSettings)
    """How output lengths are learned, and what is believed before."""

    @property
    def beliefs(self) -> Belief:
        """What is learned."""
        return self.needs | self.learn

    @property
    def follows_progress(self) -> bool:
        """Whether any decision may depend on reports of progress; a driver may leave them out otherwise."""
        return bool(self.beliefs & _FROM_PROGRESS)

    @property
    def abilities(self) -> Abilities:
        """What a face must be able to do."""
        return Abilities(
            moves=self.rescheduling is not None,
            cuts=self.partition is not None,
            sets_priority=self.queue is not None and self.queue.engine_priority,
            beliefs=self.beliefs,
        )

    def placement(self, stage: Stage) -> Placement:
        """The policy that places a stage."""
        return self.prefill if stage is Stage.PREFILL else self.decode
