"""Which endpoints have capacity for one more request of a stage, by the ledger and an admission policy."""

from __future__ import annotations

import numpy as np

from ballast_core.arrays import BoolArray, IntArray
from ballast_core.model import Role, Stage
from ballast_core.policies.admission import Admission
from ballast_core.state.inventory import Candidates, Inventory
from ballast_core.state.ledger import Ledger


class Capacity:
    """The free capacity of each endpoint."""

    def __init__(self, admission: Admission, inventory: Inventory, ledger: Ledger) -> None:
        self._admission = admission
        self._inventory = inventory
        self._ledger = ledger

    def free(self, stage: Stage, candidates: Candidates) -> Candidates:
        """The candidates that have capacity for one more request of this stage."""
        if not self._admission.bounded or not candidates.endpoints:
            return candidates
        free = self._has_capacity(stage, candidates)
        if stage is Stage.DECODE:
            free &= self._has_capacity(Stage.PREFILL, candidates) | ~self._prefills_too(candidates)
        return candidates if free.all() else candidates.take(np.flatnonzero(free).tolist())

    def any_free(self) -> bool:
        """Whether a request without a subset could be dispatched now."""
        prefills, decodes = self._inventory.candidates(Stage.PREFILL), self._inventory.candidates(Stage.DECODE)
        if not (prefills.endpoints and decodes.endpoints):  # the endpoints of one role serve both stages
            alone = decodes if decodes.endpoints else prefills
            return bool(self.free(Stage.PREFILL, self.free(Stage.DECODE, alone)).endpoints)
        decode = self.free(Stage.DECODE, decodes)
        if not decode.endpoints:
            return False
        roles = self._inventory.ready_roles()
        if Role.PREFILL not in roles and any(one.role is Role.FLEXIBLE for one in decode.endpoints):
            return True
        return bool(self.free(Stage.PREFILL, prefills).endpoints)

    def free_decodes(self, slots: IntArray) -> IntArray | None:
        """How many more decodes each slot takes, 0 or more; None if no endpoint can be full."""
        return np.maximum(self._free(Stage.DECODE, slots), 0) if self._admission.bounded else None

    def _has_capacity(self, stage: Stage, candidates: Candidates) -> BoolArray:
        return np.asarray(self._free(stage, candidates.slots) > 0, np.bool_)

    def _free(self, stage: Stage, slots: IntArray) -> IntArray:
        ledger = self._ledger
        requests = ledger.requests[stage].take(slots) + ledger.foreign.take(slots)
        return self._admission.free(stage, requests, self._inventory.kv_usage_ratio.take(slots))

    def _prefills_too(self, candidates: Candidates) -> BoolArray:
        """Candidates that prefill what they decode: flexible ones, unless a prefill endpoint is ready."""
        if Role.PREFILL in self._inventory.ready_roles():
            return np.zeros(len(candidates.endpoints), np.bool_)
        return np.array([one.role is Role.FLEXIBLE for one in candidates.endpoints], np.bool_)
