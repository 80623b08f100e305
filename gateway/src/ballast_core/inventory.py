"""The endpoints that exist, whether each takes new work, and what each last said of itself.

Endpoints live in slots: stable small integers that index every per-endpoint array here and in the ledger, so that a
decision over a thousand endpoints is a few numpy operations. A slot is reused only when nothing refers to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from ballast_core.model import STAGE_ROLES, Endpoint, EndpointId, Observation, Role, Stage
from ballast_core.view import FloatArray, IntArray

_FIRST_CAPACITY = 16


class Readiness(IntEnum):
    """Whether an endpoint takes new work."""

    GONE = 0
    DRAINING = 1
    READY = 2


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """The ready endpoints of one stage in order of id, and their slots, shape (len(endpoints),)."""

    endpoints: tuple[Endpoint, ...]
    slots: IntArray


class Inventory:
    """Endpoints by slot. Shapes: every array is (capacity,), indexed by slot."""

    def __init__(self) -> None:
        self._slots: dict[EndpointId, int] = {}
        self._endpoints: list[Endpoint | None] = []
        self._readiness: list[Readiness] = []
        self._candidates: dict[Stage, Candidates] = {}
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
        """Whether the endpoint in this slot takes new work."""
        return self._readiness[slot]

    def put(self, endpoint: Endpoint) -> tuple[int, bool]:
        """Add or refresh a ready endpoint. Returns its slot, and whether the candidates changed.

        A draining endpoint stays draining: only losing it ends that.
        """
        slot = self._slots.get(endpoint.id)
        if slot is None:
            slot = self._free_slot()
            self._slots[endpoint.id] = slot
            self._readiness[slot] = Readiness.GONE
            self._forget_observation(slot)
        readiness = self._readiness[slot]
        changed = self._endpoints[slot] != endpoint or readiness is Readiness.GONE
        self._endpoints[slot] = endpoint
        if readiness is not Readiness.DRAINING:
            self._readiness[slot] = Readiness.READY
        if changed:
            self._candidates.clear()
        return slot, changed

    def observe(self, slot: int, observation: Observation) -> None:
        """Note what a scrape said; an observation older than the last one is ignored."""
        if observation.observed_at_s < self.observed_at_s[slot]:
            return
        self.observed_at_s[slot] = observation.observed_at_s
        self.running[slot] = observation.running
        self.waiting[slot] = observation.waiting
        self.kv_usage_ratio[slot] = observation.kv_usage_ratio

    def drain(self, slot: int) -> None:
        """Take the endpoint off the candidates; what it has goes on."""
        if self._readiness[slot] is Readiness.READY:
            self._readiness[slot] = Readiness.DRAINING
            self._candidates.clear()

    def lose(self, slot: int) -> None:
        """The endpoint is gone or not ready."""
        self._readiness[slot] = Readiness.GONE
        self._forget_observation(slot)
        self._candidates.clear()

    def release(self, slot: int) -> bool:
        """Free the slot of a lost endpoint to which nothing refers any more; False if it is not lost."""
        endpoint = self._endpoints[slot]
        if endpoint is None or self._readiness[slot] is not Readiness.GONE:
            return False
        del self._slots[endpoint.id]
        self._endpoints[slot] = None
        return True

    def candidates(self, stage: Stage) -> Candidates:
        """The ready endpoints whose role may take the stage."""
        found = self._candidates.get(stage)
        if found is None:
            roles = STAGE_ROLES[stage]
            chosen = sorted(
                (endpoint.id, slot, endpoint)
                for slot, endpoint in enumerate(self._endpoints)
                if endpoint is not None and self._readiness[slot] is Readiness.READY and endpoint.role in roles
            )
            found = Candidates(
                endpoints=tuple(endpoint for _, _, endpoint in chosen),
                slots=np.array([slot for _, slot, _ in chosen], dtype=np.int64),
            )
            self._candidates[stage] = found
        return found

    def has_dedicated_prefill(self) -> bool:
        """Whether any ready endpoint does prefill only."""
        return any(endpoint.role is Role.PREFILL for endpoint in self.candidates(Stage.PREFILL).endpoints)

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
