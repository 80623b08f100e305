"""Rounds of a rescheduling policy: when they run, what the policy gets, and how its moves are booked.

A decided move is booked on its target (`Ledger.reserve`); the booking on the source ends when the driver reports that
the migration is done. Whatever ends a request's bookings, its end or a failed leg, also ends its reservation.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ballast_core.arrays import BoolArray, FloatArray, IntArray
from ballast_core.beliefs.beliefs import Beliefs
from ballast_core.directing.capacity import Capacity
from ballast_core.directing.partitioner import Partitioner
from ballast_core.directing.timers import Timers
from ballast_core.model import Endpoint, RequestId, Stage
from ballast_core.model.effects import Effect, Migrate
from ballast_core.model.events import Migrated, MigrationFailed
from ballast_core.model.traces import MoveTrace, RoundTrace
from ballast_core.policies.remaining_lengths import PREDICTORS
from ballast_core.policies.rescheduling.protocol import Decodes, Move, Rescheduling
from ballast_core.state.inventory import Inventory
from ballast_core.state.ledger import Entry, Ledger
from ballast_core.state.models import Models

_EARLY_S = 1e-3
"""A round may run this much early, so that it need not wait for a second timer."""
_KEPT_ROUNDS = 64


@dataclass(frozen=True, slots=True, eq=False)
class _Seen:
    """The input of a round."""

    decodes: Decodes
    rows: IntArray
    """Row in the flights of each decode."""
    slots: IntArray
    """Slot of each endpoint."""
    endpoints: tuple[Endpoint, ...]


class _Settlement:
    """Books the ends of moves."""

    def __init__(self, inventory: Inventory, ledger: Ledger, partitioner: Partitioner) -> None:
        self._inventory = inventory
        self._ledger = ledger
        self._partitioner = partitioner

    def book(self, entry: Entry, event: Migrated | MigrationFailed, now_s: float) -> bool:
        """The request is where the event says. False if no such move is under way."""
        target_slot, coming = self._inventory.slot_of(event.target), entry.reservation
        if coming is None or coming.decode_slot != target_slot or target_slot is None:
            return False
        if isinstance(event, Migrated):
            self._ledger.move(entry, target_slot, now_s)
            self._partitioner.moved(entry)
        else:
            self._ledger.release(entry)
        return True


class NoRescheduler:
    """Stands in if there is no rescheduling policy: no rounds, no timers."""

    rounds: Sequence[RoundTrace] = ()

    def __init__(self, inventory: Inventory, ledger: Ledger, partitioner: Partitioner) -> None:
        self._settlement = _Settlement(inventory, ledger, partitioner)

    def wake(self, now_s: float) -> list[Effect]:
        """Schedules no round."""
        return []

    def on_timer(self, now_s: float) -> list[Effect]:
        """Runs no round."""
        return []

    def settled(self, entry: Entry, event: Migrated | MigrationFailed, now_s: float) -> None:
        """A move that was ordered from elsewhere has come to its end."""
        self._settlement.book(entry, event, now_s)

    def moved(self, entry: Entry, now_s: float) -> None:
        """Changes nothing: there are no rounds."""

    def ordered(self, entry: Entry) -> None:
        """Changes nothing: there are no rounds."""

    def leads(self, leads: bool, now_s: float) -> list[Effect]:
        """Changes nothing: there are no rounds."""
        return []


class Rescheduler:
    """One policy's rounds over one Director's ledger.

    Rounds run by timer while any request is in flight. `wake`, called with each arrival, schedules the first round, and
    each round schedules the next. Timers of other parts are ignored.
    """

    def __init__(
        self,
        policy: Rescheduling,
        inventory: Inventory,
        ledger: Ledger,
        beliefs: Beliefs,
        *,
        capacity: Capacity,
        timers: Timers,
        partitioner: Partitioner,
        models: Models,
        draining_only: bool = False,
    ) -> None:
        """`partitioner`: its requests are not moved before their last segment. `draining_only`: the policy has nothing
        to do while no endpoint drains."""
        self._draining_only = draining_only
        self._models = models
        self.policy = policy
        self.rounds: deque[RoundTrace] = deque(maxlen=_KEPT_ROUNDS)
        """The last rounds, newest last."""
        self._predictor = PREDICTORS[policy.predictor]()
        self._inventory = inventory
        self._ledger = ledger
        self._beliefs = beliefs
        self._capacity = capacity
        self._timers = timers
        self._partitioner = partitioner
        self._settlement = _Settlement(inventory, ledger, partitioner)
        self._leads = True
        self._next_s: float | None = None
        self._moving: dict[RequestId, Entry] = {}
        self._stays_until_s: dict[RequestId, float] = {}
        """Until when a request that has moved stays."""
        self._failed_until_s: dict[RequestId, float] = {}
        """Until when a request whose move failed stays."""

    def wake(self, now_s: float) -> list[Effect]:
        """A request may have arrived: schedule a round unless one is due. A timer that never fired is set again."""
        interval_s = self.policy.interval_s
        if self._is_idle or (self._next_s is not None and now_s <= self._next_s + interval_s):
            return []
        self._next_s = now_s + interval_s
        return [self._timers.ask(self._next_s)]

    @property
    def _is_idle(self) -> bool:
        """Whether a round would have nothing to decide, or another Director decides it."""
        return (self._draining_only and not self._inventory.leaving) or not self._leads or not len(self._ledger)

    def on_timer(self, now_s: float) -> list[Effect]:
        """Run the next round if it is due."""
        if self._next_s is None or now_s < self._next_s - _EARLY_S:
            return []
        self._next_s = None
        if not self._leads or (self._draining_only and not self._inventory.leaving):
            return []
        return [*self._round(now_s), *self.wake(now_s)]

    def settled(self, entry: Entry, event: Migrated | MigrationFailed, now_s: float) -> None:
        """The request decodes on its target, or stays on its source. A late event of a finished move is ignored."""
        if self._settlement.book(entry, event, now_s) and self._leads:
            stays = self._stays_until_s if isinstance(event, Migrated) else self._failed_until_s
            stays[entry.request.id] = now_s + self.policy.min_stay_s

    def moved(self, entry: Entry, now_s: float) -> None:
        """Another Director's round has moved it: it stays for a while, as after a move of ours."""
        if self._leads:
            self._stays_until_s[entry.request.id] = now_s + self.policy.min_stay_s

    def ordered(self, entry: Entry) -> None:
        """A move from elsewhere may be under way: until it is over no round moves the request."""
        if self._leads and entry.reservation is not None:
            self._moving[entry.request.id] = entry

    def leads(self, leads: bool, now_s: float) -> list[Effect]:
        """Whether rounds run from now on. Moves that are under way come to their end either way."""
        self._leads = leads
        self._stays_until_s.clear()
        self._failed_until_s.clear()
        self._moving = {each.request.id: each for each in self._ledger if leads and each.reservation is not None}
        return self.wake(now_s)

    def _round(self, now_s: float) -> list[Effect]:
        self._forget_what_is_over(now_s)
        seen = self._look(now_s)
        if not len(seen.rows):
            return []
        decided = self.policy.decide(seen.decodes)
        made = [self._begin(seen, move, now_s) for move in decided.moves if self._serves(seen, move)]
        trace = RoundTrace(
            at_s=now_s,
            policy=self.policy.type,
            endpoints=seen.endpoints,
            loads=decided.loads,
            objective=decided.objective,
            requests=len(seen.rows),
            moves=tuple(made),
            reason=decided.reason,
        )
        self.rounds.append(trace)
        by_id = {endpoint.id: endpoint for endpoint in seen.endpoints}
        return [Migrate(move.request_id, by_id[move.source], by_id[move.target], trace) for move in made]

    def _forget_what_is_over(self, now_s: float) -> None:
        self._moving = {key: entry for key, entry in self._moving.items() if entry.reservation is not None}
        for until_s in (self._stays_until_s, self._failed_until_s):
            for key in [key for key, at_s in until_s.items() if at_s <= now_s or self._ledger.get(key) is None]:
                del until_s[key]

    def _serves(self, seen: _Seen, move: Move) -> bool:
        """Whether the target serves the request's model, with the weights that it began with."""
        entry = self._ledger.entry_of_row(int(seen.rows[move.request]))
        return self._models.serves(entry.request.model, int(seen.slots[move.target]), self._root(entry))

    def _root(self, entry: Entry) -> str:
        """The weights that it began with. Another gateway's may have begun unseen: those where it decodes, then."""
        if entry.root or entry.decode_slot is None:
            return entry.root
        return self._models.root(entry.request.model, entry.decode_slot)

    def _begin(self, seen: _Seen, move: Move, now_s: float) -> MoveTrace:
        decodes = seen.decodes
        source = int(decodes.endpoint[move.request])
        tokens = float(decodes.tokens[move.request])
        move_s = decodes.migration_setup_s + float(decodes.migration_s[source, move.target]) * tokens
        entry = self._ledger.entry_of_row(int(seen.rows[move.request]))
        self._ledger.reserve(entry, int(seen.slots[move.target]), now_s, move_s)
        self._moving[entry.request.id] = entry
        return MoveTrace(
            request_id=entry.request.id,
            source=seen.endpoints[source].id,
            target=seen.endpoints[move.target].id,
            gain=move.gain,
            tokens=tokens,
            remaining_tokens=float(decodes.remaining_tokens[move.request]),
            move_s=move_s,
        )

    def _look(self, now_s: float) -> _Seen:
        """The ledger as arrays. Decodes on lost endpoints are left out."""
        flights = self._ledger.flights
        ready = self._inventory.candidates(Stage.DECODE)
        draining = self._draining()
        slots = np.concatenate([ready.slots, np.array(draining, np.int64)])
        index_of_slot = np.full(self._inventory.capacity, -1)
        index_of_slot[slots] = np.arange(len(slots))
        endpoint = index_of_slot[flights.slot]
        may_move = flights.decoding & flights.movable
        for entry in self._moving.values():
            if entry.reservation is not None:  # count it once: its own row, on the target
                endpoint[entry.row] = endpoint[entry.reservation.row]
                endpoint[entry.reservation.row] = -1
                may_move[entry.row] = False
        drains = np.arange(len(slots)) >= len(ready.slots)
        takes = ~drains & ~np.isin(slots, list(self._inventory.on_trial))
        for row in self._rows_of(self._stays_until_s):
            may_move[row] &= endpoint[row] >= len(ready.slots)  # but it may leave a draining endpoint
        may_move[self._rows_of(self._failed_until_s)] = False
        may_move[self._rows_of(self._partitioner.to_be_cut())] = False
        rows = np.flatnonzero(endpoint >= 0)
        tables = self._beliefs.lengths.tables(now_s)
        decodes = Decodes(
            endpoint=endpoint[rows],
            tokens=(flights.prompt_tokens[rows] + flights.generated_tokens[rows]).astype(np.float64),
            remaining_tokens=self._predictor.remaining_tokens(flights, rows, tables),
            may_move=may_move[rows],
            takes=takes,
            tokens_per_s=self._beliefs.rates.tokens_per_s(slots, now_s),
            kv_tokens=self._beliefs.hardware.kv_tokens(slots),
            other_tokens=self._foreign_tokens(slots),
            migration_s=self._link_s(slots),
            migration_setup_s=float(self._beliefs.hardware.link_setup_s(slots).max(initial=0.0)),
            moves_under_way=len(self._moving),
            reported_tokens=self._reported_tokens(slots) if self._draining_only else None,
            free_decodes=self._capacity.free_decodes(slots),
            serves=self._serving(rows, slots) if self._draining_only else None,
        )
        endpoints = (*ready.endpoints, *(self._inventory.endpoint(slot) for slot in draining))
        return _Seen(decodes, rows, slots, endpoints)

    def _draining(self) -> list[int]:
        """Slots to empty: also those whose role has changed while they decoded."""
        decode = self._inventory.draining(Stage.DECODE)
        others = [slot for slot in self._inventory.draining(Stage.PREFILL) if slot not in decode]
        return decode + [slot for slot in others if self._ledger.decoding_requests[slot]]

    def _serving(self, rows: IntArray, slots: IntArray) -> BoolArray | None:
        """Which endpoints serve which of the requests that leave; None if all of them do."""
        serves = np.ones((len(rows), len(slots)), np.bool_)
        for index, row in enumerate(rows.tolist()):
            entry = self._ledger.entry_of_row(row)
            if entry.decode_slot in self._inventory.leaving:
                lacking = self._models.lacking(entry.request.model, self._root(entry))
                if lacking:
                    serves[index] = [slot not in lacking for slot in slots.tolist()]
        return None if serves.all() else serves

    def _rows_of(self, requests: Iterable[RequestId]) -> list[int]:
        entries = [self._ledger.get(key) for key in requests]
        return [entry.row for entry in entries if entry is not None and entry.row >= 0]

    def _foreign_tokens(self, slots: IntArray) -> FloatArray:
        """Tokens that foreign requests hold: those that an endpoint reports beyond ours. 0 without foreign requests."""
        reported = self._inventory.kv_usage_ratio[slots] * self._beliefs.hardware.kv_tokens(slots)
        beyond = np.maximum(reported - self._ledger.decoding_tokens[slots], 0.0)
        return np.where(self._ledger.foreign[slots] > 0, beyond, 0.0)

    def _reported_tokens(self, slots: IntArray) -> FloatArray:
        return np.asarray(self._inventory.kv_usage_ratio[slots] * self._beliefs.hardware.kv_tokens(slots), np.float64)

    def _link_s(self, slots: IntArray) -> FloatArray:
        """Seconds to copy one token's KV between two slots over the slower link; inf between incompatible caches."""
        hardware = self._beliefs.hardware
        token_s, size = hardware.link_token_s(slots), hardware.kv_bytes_per_token(slots)
        return np.where(size[:, None] == size, np.maximum(token_s[:, None], token_s), math.inf)
