"""The inventory: which endpoints exist, whether each takes new requests, and its last observation.

Each endpoint has a slot: a small integer that stays the same and indexes every per-endpoint array, here and in the
ledger. A decision over a thousand endpoints is then a few numpy operations. A slot is reused once nothing refers to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from hashlib import blake2b

import numpy as np

from ballast_core.arrays import FloatArray, HashArray, IntArray
from ballast_core.model import STAGE_ROLES, Endpoint, EndpointId, Observation, Role, Stage
from ballast_core.model.observations import Observations

_FIRST_CAPACITY = 16


class Readiness(IntEnum):
    """Whether an endpoint takes new requests."""

    GONE = 0
    DRAINING = 1
    READY = 2


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """The ready endpoints of one stage, ordered by id. Shapes: the arrays are (len(endpoints),)."""

    endpoints: tuple[Endpoint, ...]
    slots: IntArray
    id_hashes: HashArray
    """A 64-bit hash of each endpoint's id, the same on every machine: for policies that choose at random."""

    def __post_init__(self) -> None:
        """Make `slots` read-only, so that values looked up for the same candidates may be cached."""
        self.slots.flags.writeable = False

    @classmethod
    def of(cls, endpoints: Sequence[Endpoint], slots: Sequence[int]) -> Candidates:
        """These endpoints in these slots, in this order."""
        hashes = [int.from_bytes(blake2b(one.id.encode(), digest_size=8).digest(), "little") for one in endpoints]
        return cls(tuple(endpoints), np.array(slots, dtype=np.int64), np.array(hashes, dtype=np.uint64))

    def take(self, kept: Sequence[int]) -> Candidates:
        """The candidates at these indices, in this order."""
        return Candidates(tuple(self.endpoints[k] for k in kept), self.slots[kept], self.id_hashes[kept])

    def of_revision(self, revision: str) -> Candidates:
        """Those of one revision."""
        kept = [k for k, endpoint in enumerate(self.endpoints) if endpoint.revision == revision]
        return self if len(kept) == len(self.endpoints) else self.take(kept)


class Inventory:
    """Endpoints by slot. Shapes: every array is (capacity,), indexed by slot."""

    def __init__(self) -> None:
        self._slots: dict[EndpointId, int] = {}
        self._endpoints: list[Endpoint | None] = []
        self._readiness: list[Readiness] = []
        self._candidates: dict[Stage, Candidates] = {}
        self._ready: dict[Stage, Candidates] = {}
        self._roles: frozenset[Role] | None = None
        self._revisions: tuple[str, ...] | None = None
        self.lost: set[int] = set()
        """Slots of lost endpoints that have not been released."""
        self.shunned: set[int] = set()
        """Slots that get new requests only where nothing else is left."""
        self.on_trial: set[int] = set()
        """Slots that are half-open: they get one request at a time, and no moves."""
        self.suspected: set[int] = set()
        """Slots that the progress watch suspects or has lost: the same, but for those on trial."""
        self.leaving: set[int] = set()
        """Slots of endpoints that drain, or that drained when they were lost."""
        self._asked: tuple[Endpoint, ...] | None = None
        """What `slots_as` was last asked for, while its answer holds."""
        self._asked_slots: IntArray = np.zeros(0, np.int64)
        self.observed_at_s: FloatArray = np.full(_FIRST_CAPACITY, -np.inf)
        self.running: IntArray = np.zeros(_FIRST_CAPACITY, np.int64)
        self.waiting: IntArray = np.zeros(_FIRST_CAPACITY, np.int64)
        self.kv_usage_ratio: FloatArray = np.zeros(_FIRST_CAPACITY)

    @property
    def capacity(self) -> int:
        """Length of the per-endpoint arrays; grows, never shrinks."""
        return len(self.running)

    def __len__(self) -> int:
        return len(self._slots)

    def known(self) -> set[EndpointId]:
        """The endpoints that have a slot."""
        return set(self._slots)

    def known_slots(self) -> IntArray:
        """The slots of all endpoints that are ready, draining or lost with requests."""
        return np.fromiter(self._slots.values(), np.int64, len(self._slots))

    def slot_of(self, endpoint_id: EndpointId) -> int | None:
        """The endpoint's slot, or None if it is not known."""
        return self._slots.get(endpoint_id)

    def endpoint(self, slot: int) -> Endpoint:
        """The endpoint in a slot. Raises `LookupError` for an empty one."""
        endpoint = self._endpoints[slot]
        if endpoint is None:
            raise LookupError(f"slot {slot} is empty")
        return endpoint

    def readiness(self, slot: int) -> Readiness:
        """Whether the endpoint in this slot takes new requests."""
        return self._readiness[slot]

    def put(self, endpoint: Endpoint) -> tuple[int, bool]:
        """Add or refresh a ready endpoint. Returns its slot, and whether the candidates changed.

        A draining endpoint stays draining until it is lost or restored.
        """
        slot = self._slots.get(endpoint.id)
        if slot is None:
            slot = self._free_slot()
            self._slots[endpoint.id] = slot
            self._readiness[slot] = Readiness.GONE
            self._forget_observation(slot)
        readiness = self._readiness[slot]
        changed = self._endpoints[slot] != endpoint or readiness is Readiness.GONE
        self.lost.discard(slot)
        self._endpoints[slot] = endpoint
        if readiness is not Readiness.DRAINING:
            self._readiness[slot] = Readiness.READY
            self.leaving.discard(slot)
        if changed:
            self._changed()
        return slot, changed

    def shun(self, slot: int) -> None:
        """Give it new requests only where nothing else is left."""
        self.shunned.add(slot)
        self._candidates.clear()

    def unshun(self, slot: int) -> None:
        """It is a candidate like the others again."""
        self.shunned.discard(slot)
        self._candidates.clear()

    def suspect(self, slot: int, suspected: bool) -> None:
        """What the progress watch thinks of it."""
        (self.suspected.add if suspected else self.suspected.discard)(slot)
        self._candidates.clear()

    def slots_as(self, endpoints: tuple[Endpoint, ...]) -> IntArray | None:
        """The slots of endpoints that are present and unchanged; None if `put` would change something of one."""
        if endpoints is not self._asked:
            slots = [self._slot_as(endpoint) for endpoint in endpoints]
            if None in slots:
                return None
            self._asked, self._asked_slots = endpoints, np.array(slots, np.int64)
        return self._asked_slots

    def _slot_as(self, endpoint: Endpoint) -> int | None:
        slot = self._slots.get(endpoint.id)
        if slot is None or self._readiness[slot] is Readiness.GONE:
            return None
        known = self._endpoints[slot]
        return slot if known is endpoint or known == endpoint else None

    def observe_all(self, slots: IntArray, observations: Observations) -> None:
        """`observe` for many slots, each at most once."""
        new = observations.observed_at_s >= self.observed_at_s[slots]
        newer = slots[new]
        self.observed_at_s[newer] = observations.observed_at_s[new]
        self.running[newer] = observations.running[new]
        self.waiting[newer] = observations.waiting[new]
        self.kv_usage_ratio[newer] = observations.kv_usage_ratio[new]

    def observe(self, slot: int, observation: Observation) -> None:
        """Store an observation; one older than the last is ignored."""
        if observation.observed_at_s < self.observed_at_s[slot]:
            return
        self.observed_at_s[slot] = observation.observed_at_s
        self.running[slot] = observation.running
        self.waiting[slot] = observation.waiting
        self.kv_usage_ratio[slot] = observation.kv_usage_ratio

    def drain(self, slot: int) -> None:
        """Remove the endpoint from the candidates; its requests continue."""
        if self._readiness[slot] is Readiness.READY:
            self._readiness[slot] = Readiness.DRAINING
            self.leaving.add(slot)
            self._changed()

    def restore(self, slot: int) -> bool:
        """A draining endpoint is a candidate again. Returns whether it drained."""
        if self._readiness[slot] is not Readiness.DRAINING:
            return False
        self._readiness[slot] = Readiness.READY
        self.leaving.discard(slot)
        self._changed()
        return True

    def lose(self, slot: int) -> None:
        """The endpoint is gone or not ready."""
        self._readiness[slot] = Readiness.GONE
        self.lost.add(slot)
        self._forget_observation(slot)
        self._changed()

    def release(self, slot: int) -> None:
        """Free the slot of a lost endpoint to which nothing refers any more."""
        del self._slots[self.endpoint(slot).id]
        self._endpoints[slot] = None
        self.lost.remove(slot)
        self.shunned.discard(slot)
        self.on_trial.discard(slot)
        self.suspected.discard(slot)
        self.leaving.discard(slot)

    def candidates(self, stage: Stage) -> Candidates:
        """The ready endpoints whose role may serve the stage, without shunned ones unless there are no others."""
        found = self._candidates.get(stage)
        if found is None:
            found = self.ready(stage)
            if self.shunned or self.suspected:
                found = self._best_of(found)
            self._candidates[stage] = found
        return found

    def _best_of(self, ready: Candidates) -> Candidates:
        """Those that nothing is said against; else those that are only suspected; else all."""
        for avoided in (self.shunned | (self.suspected - self.on_trial), self.shunned):
            kept = [k for k, slot in enumerate(ready.slots.tolist()) if slot not in avoided]
            if kept:
                return ready.take(kept) if len(kept) < len(ready.endpoints) else ready
        return ready

    def ready(self, stage: Stage) -> Candidates:
        """The ready endpoints whose role may serve the stage, shunned or not."""
        found = self._ready.get(stage)
        if found is None:
            roles = STAGE_ROLES[stage]
            chosen = sorted(
                (endpoint.id, slot, endpoint)
                for slot, endpoint in enumerate(self._endpoints)
                if endpoint is not None and self._readiness[slot] is Readiness.READY and endpoint.role in roles
            )
            found = Candidates.of([endpoint for _, _, endpoint in chosen], [slot for _, slot, _ in chosen])
            self._ready[stage] = found
        return found

    def ready_of(self, role: Role) -> list[int]:
        """Slots of the ready endpoints of a role."""
        return [
            slot
            for slot, endpoint in enumerate(self._endpoints)
            if endpoint is not None and endpoint.role is role and self._readiness[slot] is Readiness.READY
        ]

    def draining(self, stage: Stage) -> list[int]:
        """Slots of draining endpoints whose role may serve the stage, ordered by id."""
        roles = STAGE_ROLES[stage]
        return [
            slot
            for _, slot in sorted(
                (endpoint.id, slot)
                for slot, endpoint in enumerate(self._endpoints)
                if endpoint is not None and self._readiness[slot] is Readiness.DRAINING and endpoint.role in roles
            )
        ]

    def ready_roles(self) -> frozenset[Role]:
        """The roles that some ready endpoint has."""
        if self._roles is None:
            self._roles = frozenset(
                endpoint.role
                for endpoint, readiness in zip(self._endpoints, self._readiness, strict=True)
                if endpoint is not None and readiness is Readiness.READY
            )
        return self._roles

    def ready_revisions(self) -> tuple[str, ...]:
        """The revisions that some ready endpoint has, in order."""
        if self._revisions is None:
            self._revisions = tuple(
                sorted(
                    {
                        endpoint.revision
                        for endpoint, readiness in zip(self._endpoints, self._readiness, strict=True)
                        if endpoint is not None and readiness is Readiness.READY
                    }
                )
            )
        return self._revisions

    def of_revision(self, candidates: Candidates, revision: str) -> Candidates:
        """Those that exchange KV blocks with engines of this revision."""
        return candidates if self.ready_revisions() == (revision,) else candidates.of_revision(revision)

    def _changed(self) -> None:
        self._candidates.clear()
        self._ready.clear()
        self._roles = self._revisions = self._asked = None

    def _free_slot(self) -> int:
        for slot, endpoint in enumerate(self._endpoints):
            if endpoint is None:
                return slot
        self._endpoints.append(None)
        self._readiness.append(Readiness.GONE)
        if len(self._endpoints) > self.capacity:
            self._grow()
        return len(self._endpoints) - 1

    def _grow(self) -> None:
        more = self.capacity
        self.observed_at_s = np.concatenate([self.observed_at_s, np.full(more, -np.inf)])
        self.running = np.concatenate([self.running, np.zeros(more, np.int64)])
        self.waiting = np.concatenate([self.waiting, np.zeros(more, np.int64)])
        self.kv_usage_ratio = np.concatenate([self.kv_usage_ratio, np.zeros(more)])

    def _forget_observation(self, slot: int) -> None:
        self.observed_at_s[slot] = -np.inf
        self.running[slot] = self.waiting[slot] = 0
        self.kv_usage_ratio[slot] = 0.0
