"""Which endpoints have capacity for one more request of a stage, by the ledger and an admission policy."""

from __future__ import annotations

import numpy as np

from ballast_core import kernel
from ballast_core.arrays import BoolArray, FloatArray, IntArray
from ballast_core.beliefs.beliefs import Beliefs
from ballast_core.beliefs.kinds import Belief
from ballast_core.beliefs.rates import PREFILL_RATES
from ballast_core.model import Role, Stage
from ballast_core.policies.admission import Admission, Gauges
from ballast_core.state.inventory import Candidates, Inventory
from ballast_core.state.ledger import Ledger


class Capacity:
    """The free capacity of each endpoint, by limits that change with its observations."""

    def __init__(self, admission: Admission, inventory: Inventory, ledger: Ledger, beliefs: Beliefs) -> None:
        self._inventory = inventory
        self._ledger = ledger
        self._beliefs = beliefs
        self._admit_by(admission)
        self._limits: dict[Stage, IntArray] = {stage: np.zeros(0, np.int64) for stage in Stage}
        """Our requests from which each slot is full: the policy's limits less the foreign ones."""
        self._least_tokens: FloatArray = np.zeros(0)
        """Tokens left to prefill below which a slot is not full, however many requests they are."""

    def use(self, admission: Admission) -> None:
        """Limits by this policy from now on."""
        self._admit_by(admission)
        self.observed(self._inventory.known_slots())

    def _admit_by(self, admission: Admission) -> None:
        self._admission = admission
        self._bounded = admission.bounded
        self._timed = admission.bounded and Belief.PREFILL_TIMES in admission.needs

    def observed(self, slots: IntArray) -> None:
        """Compute the limits of these slots anew, after an observation."""
        if not self._bounded:
            return
        inventory = self._inventory
        more = inventory.capacity - len(self._least_tokens)
        if more > 0:
            for stage, limits in self._limits.items():
                self._limits[stage] = np.concatenate([limits, np.zeros(more, np.int64)])
            self._least_tokens = np.concatenate([self._least_tokens, np.zeros(more)])
        gauges = Gauges(
            inventory.running.take(slots),
            inventory.waiting.take(slots),
            self._ledger.foreign.take(slots),
            inventory.kv_usage_ratio.take(slots),
        )
        for stage, limits in self._limits.items():
            requests, prefill_s = self._admission.limits(stage, gauges)
            limits[slots] = requests - gauges.foreign
            if self._timed and stage is Stage.PREFILL:
                self._least_tokens[slots] = prefill_s * self._beliefs.prefill_times.tokens_per_s(slots)

    def free(self, stage: Stage, candidates: Candidates) -> Candidates:
        """The candidates that have capacity for one more request of this stage."""
        if not self._bounded or not candidates.endpoints:
            return candidates
        prefills_too = stage is Stage.DECODE and Role.PREFILL not in self._inventory.ready_roles()
        if self._all_have_room(stage, candidates.slots) and (
            not prefills_too or self._all_have_room(Stage.PREFILL, candidates.slots)
        ):
            return candidates
        free = self._has_capacity(stage, candidates.slots)
        if prefills_too:
            free &= self._has_capacity(Stage.PREFILL, candidates.slots) | ~self._flexible(candidates)
        return candidates if _are_all(free) else candidates.take(np.flatnonzero(free).tolist())

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
        if not self._bounded:
            return None
        free: IntArray = self._limits[Stage.DECODE].take(slots) - self._ledger.requests[Stage.DECODE].take(slots)
        return np.maximum(free, 0)

    def prefill_tokens_per_s(self) -> float:
        """Prompt tokens per second that the ready endpoints prefill together, by their profiles."""
        candidates = self._inventory.candidates
        slots = candidates(Stage.PREFILL).slots
        if not len(slots):
            slots = candidates(Stage.DECODE).slots  # they prefill then
        if Belief.PREFILL_TIMES not in self._beliefs.kinds or not len(slots):
            return PREFILL_RATES.default_tokens_per_s
        return float(self._beliefs.prefill_times.tokens_per_s(slots).sum())

    def _all_have_room(self, stage: Stage, slots: IntArray) -> bool:
        """Whether all have capacity, as they mostly have, by one call of the kernel; False without a kernel."""
        compiled = kernel.active()
        if compiled is None:
            return False
        requests, most = self._ledger.requests[stage], self._limits[stage]
        if self._timed and stage is Stage.PREFILL:
            return compiled.all_have_room(slots, requests, most, self._ledger.uncached_tokens, self._least_tokens)
        return compiled.all_have_room(slots, requests, most, None, None)

    def _has_capacity(self, stage: Stage, slots: IntArray) -> BoolArray:
        free: BoolArray = self._ledger.requests[stage].take(slots) < self._limits[stage].take(slots)
        if self._timed and stage is Stage.PREFILL and not _are_all(free):
            free |= self._ledger.uncached_tokens.take(slots) < self._least_tokens.take(slots)
        return free

    @staticmethod
    def _flexible(candidates: Candidates) -> BoolArray:
        """Candidates that prefill what they decode, where no prefill endpoint is ready."""
        return np.array([one.role is Role.FLEXIBLE for one in candidates.endpoints], np.bool_)


def _are_all(flags: BoolArray) -> bool:
    return bool(np.count_nonzero(flags) == len(flags))  # `all` takes five times as long
