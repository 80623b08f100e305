"""Which endpoints take one more request for a stage, by the books and an admission policy."""

from __future__ import annotations

import numpy as np

from ballast_core.arrays import BoolArray, IntArray
from ballast_core.model import Role, Stage
from ballast_core.policies.admission import Admission
from ballast_core.state.inventory import Candidates, Inventory
from ballast_core.state.ledger import Ledger


class Capacity:
    """What each endpoint takes now."""

    def __init__(self, admission: Admission, inventory: Inventory, ledger: Ledger) -> None:
        self._admission = admission
        self._inventory = inventory
        self._ledger = ledger

    def free(self, stage: Stage, candidates: Candidates) -> Candidates:
        """Those of the candidates that take one more."""
        if not self._admission.bounded or not candidates.endpoints:
            return candidates
        room = self._room(stage, candidates)
        if stage is Stage.DECODE:
            room &= self._room(Stage.PREFILL, candidates) | ~self._prefills_too(candidates)
        return candidates if room.all() else candidates.take(np.flatnonzero(room).tolist())

    def any_free(self) -> bool:
        """Whether a request that may go anywhere could be dispatched now."""
        decode = self.free(Stage.DECODE, self._inventory.candidates(Stage.DECODE))
        if not decode.endpoints:
            return False
        roles = self._inventory.ready_roles()
        if Role.PREFILL not in roles and any(one.role is Role.FLEXIBLE for one in decode.endpoints):
            return True
        return bool(self.free(Stage.PREFILL, self._inventory.candidates(Stage.PREFILL)).endpoints)

    def free_decodes(self, slots: IntArray) -> IntArray | None:
        """How many decodes each endpoint takes yet, 0 or more; None where no endpoint can be full."""
        return np.maximum(self._free(Stage.DECODE, slots), 0) if self._admission.bounded else None

    def _room(self, stage: Stage, candidates: Candidates) -> BoolArray:
        return np.asarray(self._free(stage, candidates.slots) > 0, np.bool_)

    def _free(self, stage: Stage, slots: IntArray) -> IntArray:
        ledger = self._ledger
        requests = ledger.requests[stage].take(slots) + ledger.foreign.take(slots)
        return self._admission.free(stage, requests, self._inventory.kv_usage_ratio.take(slots))

    def _prefills_too(self, candidates: Candidates) -> BoolArray:
        """Endpoints that prefill what they decode: flexible ones, while no endpoint only prefills."""
        if Role.PREFILL in self._inventory.ready_roles():
            return np.zeros(len(candidates.endpoints), np.bool_)
        return np.array([one.role is Role.FLEXIBLE for one in candidates.endpoints], np.bool_)
