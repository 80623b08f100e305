"""Migration of running decodes: a copy while the source goes on, a cut at an exact token, and the target goes on.

1. *Copy*: a warm leg at the target pulls the KV of prompt and tokens so far from the source, which goes on decoding
   with its own blocks. The warm leg ends after one token, which the client does not get; its blocks stay in the
   target's prefix cache.
2. *Cut*: the source leg is stopped. The prompt and the tokens that the client has by then go to the target. It finds
   the copied blocks in its cache and computes the tokens that came after the copy began.
3. *Commit* with the target's first token, or *back*: where the target does not admit the request in time, or dies, the
   request goes on at the source, whose blocks are most likely still in its cache.

A gateway that holds the stream can do all this with stock vLLM, except the pull from a request that still runs, which
needs a connector plugin. With `MigrationSettings.copy` "recompute" the warm leg computes the prefix again instead.
Where engines keep no KV of requests that have ended (the papers' physics), the copy only takes its time on the link,
and the target then goes on with all tokens.

When the source dies during the copy, the gateway replays prompt and tokens at the target, the only endpoint that it
knows of. The stream goes on, and `Migrated` is reported to the Director.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Protocol

from ballast_core.model import EndpointId, RequestId
from ballast_core.model.effects import Migrate
from ballast_core.model.events import Event, Migrated, MigrationFailed
from ballast_sim.engine import RequestStats
from ballast_sim.simulation.inputs.fleet_settings import CopyBy, MigrationSettings
from ballast_sim.simulation.kernel import Kernel
from ballast_sim.simulation.requests.legs import EngineLeg, LegKind
from ballast_sim.simulation.requests.records import Record
from ballast_sim.simulation.world.clock import ENGINE_PRIORITY
from ballast_sim.simulation.world.pulls import Source
from ballast_sim.simulation.world.world import World


class NotMoved(StrEnum):
    """Why a request stayed on its endpoint."""

    NOT_RUNNING = "not-running"
    """It does not decode on the source: not yet, not any more, or it waits there after a preemption."""
    MOVING = "moving"
    """It is migrating already."""
    ENDED = "ended"
    """It ended during the copy."""
    COPY_FAILED = "copy-failed"
    """The target died during the copy, or the source lost the blocks to a preemption."""
    NOT_ADMITTED = "not-admitted"
    """The target had no room in time: for the copy, or for the request itself."""
    TARGET_LOST = "target-lost"
    """The target died after the cut and before its first token."""


class Host(Protocol):
    """The owner of the requests: it sends their legs and reports events to Directors."""

    def decode_leg(self, record: Record) -> EngineLeg | None:
        """The leg that decodes a request now; None before it does and after its end."""
        ...

    def begin_leg(
        self, record: Record, kind: LegKind, endpoint_id: EndpointId, tokens: int, *, pull: bool, source: Source | None
    ) -> EngineLeg:
        """Send one more leg of a request that has `tokens` output tokens; a decode leg becomes `decode_leg`."""
        ...

    def report(self, record: Record, event: Event) -> None:
        """Report an event that happens now to the request's gateway."""
        ...


@dataclass(slots=True, eq=False)
class _Migration:
    record: Record
    request_id: RequestId
    source: EndpointId
    target: EndpointId
    source_leg: EngineLeg
    warm: EngineLeg | None = None
    onward: EngineLeg | None = None
    """The leg at the target that goes on; None during the copy."""
    cut_s: float = 0.0
    replays: bool = False
    """The source is dead: there is no way back."""


@dataclass(slots=True)
class MigrationFigures:
    """Sums over the migrations of a run."""

    pauses_s: list[float] = field(default_factory=list)
    """Seconds from the cut to the next token, on the target or back on the source."""
    not_moved: Counter[NotMoved] = field(default_factory=Counter)
    replayed: int = 0
    """Migrated because the source died during the copy."""


class Migrations:
    """The migrations under way."""

    def __init__(self, settings: MigrationSettings, kernel: Kernel, world: World, host: Host) -> None:
        self._settings = settings
        self._kernel = kernel
        self._world = world
        self._host = host
        self._open: dict[int, _Migration] = {}
        self._back: dict[int, float] = {}
        """By index, the time since which a request that goes back to its source has paused."""
        self.figures = MigrationFigures()

    def begin(self, record: Record, effect: Migrate) -> None:
        """Carry out an effect, after all that happens in the engines at this time."""
        self._soon(lambda: self._begin(record, effect))

    def _begin(self, record: Record, effect: Migrate) -> None:
        source, target = effect.source.id, effect.target.id
        if record.index in self._open:
            self._stays(record, effect.request_id, target, NotMoved.MOVING)
            return
        stats, leg = None, self._host.decode_leg(record)
        if leg is not None and record.decode == source != target and self._world.is_running(source, leg.id):
            stats = self._world.stats(source, leg.id)
        if leg is None or stats is None or not stats.output_tokens:
            self._stays(record, effect.request_id, target, NotMoved.NOT_RUNNING)
            return
        migration = self._open[record.index] = _Migration(record, effect.request_id, source, target, leg)
        tokens = leg.before + stats.output_tokens
        if not self._world.keeps_kv(target):
            size = record.input_tokens + tokens
            self._world.copy(source, target, size, partial(self._soon, partial(self._cut, migration)))
            return
        pull = self._settings.copy is CopyBy.PULL
        origin = Source(source, leg.id, running=True) if pull else None
        migration.warm = self._host.begin_leg(record, LegKind.WARM, target, tokens, pull=pull, source=origin)
        self._kernel.at(self._kernel.now_s + self._settings.admit_limit_s, lambda: self._waited(migration, None))

    def _soon(self, action: Callable[[], None]) -> None:
        self._kernel.at(self._kernel.now_s, action, ENGINE_PRIORITY)

    # --- what the legs report -------------------------------------------------------------------------------------

    def copied(self, leg: EngineLeg, *, well: bool) -> None:
        """A warm leg has ended."""
        migration = self._open.get(leg.record.index)
        if migration is None or migration.warm is not leg:
            return
        migration.warm = None
        if well:
            self._soon(lambda: self._cut(migration))
        else:
            self._gives_up(migration, NotMoved.COPY_FAILED)

    def began(self, leg: EngineLeg, at_s: float) -> None:
        """A leg that goes on after a cut has its first token."""
        index = leg.record.index
        if index in self._back:
            self.figures.pauses_s.append(at_s - self._back.pop(index))
        migration = self._open.get(index)
        if migration is None or migration.onward is not leg:
            return
        del self._open[index]
        self.figures.pauses_s.append(at_s - migration.cut_s)
        self.figures.replayed += migration.replays
        leg.record.migrations += 1
        self._host.report(leg.record, Migrated(migration.request_id, migration.target))

    def ended(self, record: Record) -> None:
        """A request has ended: drop its migration."""
        self._back.pop(record.index, None)
        migration = self._open.pop(record.index, None)
        if migration is not None:
            self._drop_warm(migration)
            self.figures.not_moved[NotMoved.ENDED] += 1

    def rescued(self, leg: EngineLeg, tokens: int) -> bool:
        """A decode leg broke after `tokens` output tokens of its request. Returns whether another leg goes on."""
        migration = self._open.get(leg.record.index)
        if migration is None:
            return False
        if migration.source_leg is leg and migration.onward is None:
            self._drop_warm(migration)
            migration.replays, migration.cut_s = True, self._kernel.now_s
            self._go_on(migration, migration.target, tokens, pull=False)
            return True
        if migration.onward is leg and not migration.replays:
            self._returns(migration, tokens, NotMoved.TARGET_LOST)
            return True
        return False

    # --- cut, commit, back ----------------------------------------------------------------------------------------

    def _cut(self, migration: _Migration) -> None:
        record, leg = migration.record, migration.source_leg
        if self._open.get(record.index) is not migration or migration.onward is not None:
            return
        stats = self._stop(leg, migration.source)
        if stats is None or self._open.get(record.index) is not migration:
            return  # it ended, or its endpoint died, at this time
        tokens = min(leg.before + stats.output_tokens, record.output_tokens - 1)
        migration.cut_s = self._kernel.now_s
        self._go_on(migration, migration.target, tokens, pull=not self._world.keeps_kv(migration.target))
        self._kernel.at(
            self._kernel.now_s + self._settings.admit_limit_s, lambda: self._waited(migration, migration.onward)
        )

    def _go_on(self, migration: _Migration, endpoint_id: EndpointId, tokens: int, *, pull: bool) -> EngineLeg:
        migration.source_leg.over = True
        leg = self._host.begin_leg(migration.record, LegKind.DECODE, endpoint_id, tokens, pull=pull, source=None)
        if endpoint_id == migration.target:
            migration.onward = leg
        return leg

    def _waited(self, migration: _Migration, onward: EngineLeg | None) -> None:
        """`admit_limit_s` is over. Give up if the target has not admitted the warm leg, or the request itself."""
        leg = migration.warm if onward is None else onward
        if self._open.get(migration.record.index) is not migration or migration.onward is not onward or leg is None:
            return
        stats = self._world.stats(migration.target, leg.id)
        if stats is None or stats.scheduled_s is not None:
            return
        if onward is None:
            self._gives_up(migration, NotMoved.NOT_ADMITTED)
        elif not migration.replays and self._stop(onward, migration.target) is not None:
            self._returns(migration, onward.before, NotMoved.NOT_ADMITTED)

    def _returns(self, migration: _Migration, tokens: int, why: NotMoved) -> None:
        """Go back to the source."""
        del self._open[migration.record.index]
        self._back[migration.record.index] = migration.cut_s
        pull = not self._world.keeps_kv(migration.source)
        self._go_on(migration, migration.source, tokens, pull=pull)
        self._stays(migration.record, migration.request_id, migration.target, why)

    def _gives_up(self, migration: _Migration, why: NotMoved) -> None:
        del self._open[migration.record.index]
        self._drop_warm(migration)
        self._stays(migration.record, migration.request_id, migration.target, why)

    def _stays(self, record: Record, request_id: RequestId, target: EndpointId, why: NotMoved) -> None:
        self.figures.not_moved[why] += 1
        self._host.report(record, MigrationFailed(request_id, target))

    def _drop_warm(self, migration: _Migration) -> None:
        warm, migration.warm = migration.warm, None
        if warm is not None:
            self._stop(warm, migration.target)

    def _stop(self, leg: EngineLeg, endpoint_id: EndpointId) -> RequestStats | None:
        """Stop a leg. Returns how far it had come, or None where it has ended already."""
        stats = self._world.settled_stats(endpoint_id, leg.id)
        if stats is not None:
            leg.over = True
            self._world.abort(endpoint_id, leg.id)
        return stats
