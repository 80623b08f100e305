"""Calls the placement policies: they choose an endpoint for one stage of one request. It books nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from ballast_core import kernel
from ballast_core.arrays import FloatArray, IntArray
from ballast_core.beliefs.beliefs import Beliefs
from ballast_core.beliefs.kinds import Belief
from ballast_core.directing.capacity import Capacity
from ballast_core.model import Endpoint, EndpointId, Request, Role, Stage
from ballast_core.model.canary import Canary
from ballast_core.model.traces import PlacementTrace
from ballast_core.policies.placement.adapters import Affinity, preferred
from ballast_core.policies.placement.protocol import Placement
from ballast_core.state.health import Health
from ballast_core.state.inventory import Candidates, Inventory
from ballast_core.state.ledger import Entry, Ledger
from ballast_core.state.models import Models
from ballast_core.state.view import View

_STAGES = tuple(Stage)
_ONE_STAGE = frozenset({Role.PREFILL, Role.DECODE})


class Placed(NamedTuple):
    """The endpoint that a placement chose."""

    slot: int
    position: int
    """Index among the candidates of the view."""
    view: View
    trace: PlacementTrace


class Placer:
    """The placements of both stages, and the order of turns that breaks ties."""

    def __init__(
        self,
        placements: Mapping[Stage, Placement],
        inventory: Inventory,
        ledger: Ledger,
        beliefs: Beliefs,
        *,
        capacity: Capacity,
        health: Health,
    ) -> None:
        self._inventory = inventory
        self._ledger = ledger
        self._beliefs = beliefs
        self.use(placements)
        self._capacity = capacity
        self._health = health
        self.canary: Canary | None = None
        self.models = Models()
        """Which endpoint serves what."""
        self._turns: dict[Stage, IntArray] = {stage: np.zeros(inventory.capacity, np.int64) for stage in Stage}
        """When each slot was last chosen, as a running number, to break ties."""
        self._turn = 0

    def use(self, placements: Mapping[Stage, Placement]) -> None:
        """Place by these from now on, and by what the beliefs learn now."""
        self.placements = placements
        # Needed at every decision; membership in a Flag costs a microsecond.
        kinds = self._beliefs.kinds
        self._knows_prefill_times = Belief.PREFILL_TIMES in kinds
        self._knows_prefixes = Belief.PREFIXES in kinds
        self._knows_hotspots = Belief.HOTSPOTS in kinds

    def prefill_s(self, placed: Placed) -> float:
        """Expected seconds to the end of its prefill there; 0 if no policy reads prefill times."""
        return float(placed.view.prefill_s[placed.position]) if self._knows_prefill_times else 0.0

    def other_prefill_s(self, placed: Placed) -> float:
        """The same of the best other candidate; 0 if there is none."""
        if not self._knows_prefill_times or len(placed.view.endpoints) < 2:
            return 0.0
        expected_s = placed.view.prefill_s
        best = int(expected_s.argmin())
        if best == placed.position:
            rising_s = expected_s.copy()
            rising_s.partition(1)
            return float(rising_s[1])
        return float(expected_s[best])

    def foresee(self, stage: Stage, request: Request, slot: int, now_s: float) -> tuple[int, float]:
        """Of a prefill that another gateway has placed in this slot: cached tokens and seconds, as `cached_tokens` and
        `prefill_s` of one that is placed here."""
        if not (self._knows_prefill_times or (self._knows_prefixes and request.names_prefix)):
            return 0, 0.0
        view = self.view(stage, request, Candidates.of([self._inventory.endpoint(slot)], [slot]), now_s)
        cached_tokens = int(view.matched_tokens[0]) if self._knows_prefixes and request.names_prefix else 0
        return cached_tokens, float(view.prefill_s[0]) if self._knows_prefill_times else 0.0

    def cached_tokens(self, placed: Placed) -> int:
        """Leading tokens of its prompt that the endpoint is believed to hold; 0 if no policy reads prefixes."""
        if not (self._knows_prefixes and placed.view.request.names_prefix):
            return 0
        return int(placed.view.matched_tokens[placed.position])

    def place(
        self,
        stage: Stage,
        entry: Entry,
        now_s: float,
        *,
        among: Candidates | None = None,
        anyway: bool = False,
        keep: int | None = None,
        handoff_s: float | None = None,
        revision: str | None = None,
    ) -> Placed | None:
        """The best candidate that has capacity for one more request of this stage, or None if there is none.

        `among`: the candidates, if they are not those of the stage. `anyway`: full ones count, too. Ties go to slot
        `keep` if it is among them, then to the least recently chosen, then to the smallest id. `revision`: only
        endpoints of this one, None for all.
        """
        candidates = among
        if candidates is None:
            candidates = self.eligible(stage, entry)
            if revision is not None:
                candidates = self._inventory.of_revision(candidates, revision)
            candidates = candidates if anyway else self._capacity.free(stage, candidates)
        if not candidates.endpoints:
            return None
        request, policy = entry.request, self.placements[stage]
        if request.model in self.models.adapters:
            candidates = self._by_adapter(stage, request.model, candidates)
        view = self.view(stage, request, candidates, now_s, handoff_s)
        costs = policy.costs(view, request)
        if self._health.troubled:
            costs = self._with_errors_as_load(costs, candidates, now_s)
        if (
            self._knows_hotspots
            and request.block_hashes
            and view.prefills_here
            and Belief.HOTSPOTS in policy.needs  # the other stage's policy may be the one that reads them
        ):
            self._beliefs.hotspots.placed(request.block_hashes[0], view.matched_tokens > 0, costs)
        best = self._best(costs, candidates.slots, self._turns[stage], -1 if keep is None else keep)
        if best < 0:
            return None
        endpoints = candidates.endpoints
        trace = PlacementTrace(stage, policy.type, endpoints[best].id, endpoints, costs)
        return Placed(int(candidates.slots[best]), best, view, trace)

    def revisions(self, entry: Entry) -> list[str]:
        """Those in which a request has endpoints for both stages, the least busy first; a canary alone, or all others.

        How busy: requests for each endpoint, with this one, in the stage that has more of them.
        """
        found: list[tuple[float, str]] = []
        both = [self.eligible(stage, entry) for stage in _STAGES]
        for revision in self._inventory.ready_revisions():
            slots = [candidates.of_revision(revision).slots for candidates in both]
            if all(map(len, slots)):
                loads = [
                    (int(self._ledger.requests[stage][here].sum()) + 1) / len(here)
                    for stage, here in zip(_STAGES, slots, strict=True)
                ]
                found.append((max(loads), revision))
        by_load = [revision for _, revision in sorted(found)]
        return by_load if self.canary is None else self.canary.among(by_load, entry.request.id)

    def next_best(self, placed: Placed, most: int, *, other_than: int | None = None) -> tuple[Endpoint, ...]:
        """The candidates that cost least after the one that was chosen, best first; ties as in `place`.

        Left out: slot `other_than`, another role than that of the chosen one where one endpoint serves both stages
        (`other_than` is None), and what has anything said against it: shunned, suspected or on trial.
        """
        endpoints, slots, inventory = placed.view.endpoints, placed.view.slots, self._inventory
        costs = np.array(placed.trace.costs, np.float64)
        costs[placed.position] = np.inf
        doubtful = inventory.shunned | inventory.suspected | inventory.on_trial
        if other_than is not None:
            doubtful.add(other_than)
        if doubtful:
            costs[np.isin(slots, list(doubtful))] = np.inf
        role = endpoints[placed.position].role
        turns = self._turns[placed.trace.stage]
        found: list[Endpoint] = []
        while len(found) < most and (best := self._best(costs, slots, turns, -1)) >= 0:
            costs[best] = np.inf
            if other_than is not None or endpoints[best].role is role:
                found.append(endpoints[best])
        return tuple(found)

    def _with_errors_as_load(self, costs: FloatArray, candidates: Candidates, now_s: float) -> FloatArray:
        """Candidates whose last leg failed cost as much as the dearest other: errors are quick, and look like room.

        Where most of them have failed, that says nothing of one of them.
        """
        dear = self._health.dear(now_s)
        if not dear:
            return costs
        failing = np.array([slot in dear for slot in candidates.slots.tolist()], np.bool_)
        others = costs[~failing & np.isfinite(costs)]
        if not 0 < 2 * failing.sum() <= len(costs) or not len(others):
            return costs
        return np.where(failing, np.maximum(costs, others.max()), costs)

    @staticmethod
    def _best(costs: FloatArray, slots: IntArray, turns: IntArray, keep: int) -> int:
        """The index to choose; -1 if no cost is finite."""
        if (compiled := kernel.active()) is not None:
            return compiled.choose(np.ascontiguousarray(costs, np.float64), slots, turns, keep)
        lowest = costs.min()
        if not lowest < np.inf:
            return -1
        tied = np.flatnonzero(costs == lowest)
        if keep in slots[tied]:
            return int(tied[np.flatnonzero(slots[tied] == keep)[0]])
        return int(tied[np.argmin(turns[slots[tied]])])

    def view(
        self,
        stage: Stage,
        request: Request,
        candidates: Candidates,
        now_s: float,
        handoff_s: float | None = None,
    ) -> View:
        """The view of these candidates that a policy gets."""
        return View(
            now_s=now_s,
            stage=stage,
            request=request,
            candidates=candidates,
            inventory=self._inventory,
            ledger=self._ledger,
            beliefs=self._beliefs,
            handoff_s=handoff_s,
        )

    def eligible(self, stage: Stage, entry: Entry) -> Candidates:
        """The `allowed` candidates of a stage; of the shunned ones, too, where nothing else is left."""
        found = self.allowed(self._inventory.candidates(stage), entry)
        if found.endpoints or not self.keeps_some_back():
            return found
        return self.allowed(self._inventory.ready(stage), entry)

    def allowed(self, candidates: Candidates, entry: Entry) -> Candidates:
        """The candidates in the request's subset that serve its model, once it has begun with the same weights, and on
        which no leg of it has failed."""
        found = self._among(candidates, entry.request.subset, entry.avoid)
        return self.models.serving(entry.request.model, found, entry.root)

    def _by_adapter(self, stage: Stage, adapter: str, candidates: Candidates) -> Candidates:
        """Those where the adapter is best placed."""
        models, slots = self.models, candidates.slots.tolist()
        affinities = [
            Affinity.RUNNING
            if models.at_work(slot, adapter)
            else Affinity.WAITING
            if models.waits(slot, adapter)
            else Affinity.ROOM
            if models.has_room(slot)
            else Affinity.NO_ROOM
            for slot in slots
        ]
        kept = preferred(affinities, self._ledger.requests[stage][candidates.slots].tolist())
        return candidates if len(kept) == len(slots) else candidates.take(kept)

    @staticmethod
    def _among(candidates: Candidates, subset: frozenset[str] | None, avoid: frozenset[EndpointId]) -> Candidates:
        if subset is None and not avoid:
            return candidates
        kept = [
            k
            for k, endpoint in enumerate(candidates.endpoints)
            if endpoint.id not in avoid and (subset is None or endpoint.address in subset)
        ]
        return candidates.take(kept)

    def with_capacity(self, candidates: Candidates) -> Candidates:
        """The candidates that have capacity for one more request of both stages."""
        return self._capacity.free(Stage.PREFILL, self._capacity.free(Stage.DECODE, candidates))

    def chosen(self, stage: Stage, slot: int, model: str) -> None:
        """The slot was chosen: from now on it comes last among equal costs."""
        self._turn += 1
        if model in self.models.adapters:
            self.models.sent(slot, model)
        self._turns[stage][slot] = self._turn

    def stand_ins(self, entry: Entry) -> Candidates | None:
        """The endpoints of one role that serve a request whole, as no endpoint may serve its other stage.

        None if there are endpoints for both stages, or for none; full or not. Where those of the two stages have no
        revision in common, those that decode serve it.
        """
        prefill, decode = (self.eligible(stage, entry) for stage in _STAGES)
        if bool(prefill.endpoints) is bool(decode.endpoints):
            mixed = len(self._inventory.ready_revisions()) > 1 and not self.revisions(entry)
            return decode if mixed and decode.endpoints else None
        return prefill if prefill.endpoints else decode

    def keeps_some_back(self) -> bool:
        """Whether endpoints are kept from requests that have others."""
        return bool(self._inventory.shunned or self._inventory.suspected)

    def has_last_resort(self, entry: Entry) -> bool:
        """Whether a stage of it has such endpoints alone, and one of them has capacity."""
        kept_back = self._inventory.shunned | self._inventory.suspected
        for stage in _STAGES:
            candidates = self.eligible(stage, entry)
            if kept_back.issuperset(candidates.slots.tolist()) and self._capacity.free(stage, candidates).endpoints:
                return True
        return False

    def exist_for(self, entry: Entry) -> bool:
        """Whether there are endpoints for a request, full or not: one role can serve it alone (`stand_ins`)."""
        return any(self.eligible(stage, entry).endpoints for stage in _STAGES)

    def exist(self) -> bool:
        """Whether any endpoint is ready: one role can serve alone."""
        return any(self._inventory.candidates(stage).endpoints for stage in _STAGES)

    def may_hand_off(self) -> bool:
        """Whether a request may be prefilled and decoded on two endpoints: not if every endpoint is flexible."""
        return not _ONE_STAGE.isdisjoint(self._inventory.ready_roles())

    def grow(self, slots: int) -> None:
        """Extend the turns to this many slots."""
        for stage, turns in self._turns.items():
            self._turns[stage] = np.concatenate([turns, np.zeros(slots - len(turns), np.int64)])

    def forget(self, slot: int) -> None:
        """The slot is free for another endpoint."""
        self.models.forget(slot)
        for turns in self._turns.values():
            turns[slot] = 0
