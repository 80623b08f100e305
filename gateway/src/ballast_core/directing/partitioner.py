"""Carries plans of a partition policy through: from dispatch over each segment's end to the request's.

Only flexible endpoints take segments. On the ledger a request is where its running segment is:

- a first cut within the prompt or at its end: the first endpoint prefills its part, the second one has the decode;
- a cut beyond the prompt: the endpoint prefills and decodes as if it had the whole request, until it moves.

Micro-requests still to come are in the book alone. A segment goes to its planned endpoint, because the cut was chosen
for these two; under late binding to another one if the planned one takes no new work when its turn comes, and if
nobody else does, the request stays where it is. Under early binding its KV is on its way already: nothing changes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ballast_core.beliefs.kinds import Belief
from ballast_core.directing.learning import Learner
from ballast_core.directing.placer import Placer
from ballast_core.model import Binding, Endpoint, RequestId, Role, Stage
from ballast_core.model.effects import Dispatch, Handoff
from ballast_core.model.segments import Segment
from ballast_core.policies.partition.base import least_loaded
from ballast_core.policies.partition.protocol import Partition
from ballast_core.state.book import Book, works_of
from ballast_core.state.inventory import Candidates, Inventory
from ballast_core.state.ledger import Entry, Ledger


@dataclass(slots=True)
class _Run:
    """A request that is cut, and which of its segments runs."""

    segments: tuple[Segment, ...]
    at: int = 0


class NoPartitioner:
    """Where no policy cuts: every request stays whole, and no book of micro-requests is kept."""

    def dispatch(self, entry: Entry, now_s: float) -> Dispatch | None:
        """Never cut."""
        return None

    def planned(self, request_id: RequestId) -> bool:
        """None is."""
        return False

    def to_come(self, request_id: RequestId) -> bool:
        """None has segments."""
        return False

    def to_be_cut(self) -> list[RequestId]:
        """None."""
        return []

    def segment_done(self, entry: Entry, now_s: float, *, computed: bool = True) -> Handoff:
        """Raises `LookupError`: no request has segments."""
        raise LookupError(f"{entry.request.id} is not cut")

    def moved(self, entry: Entry) -> None:
        """Changes nothing."""

    def unplanned(self, entry: Entry) -> None:
        """Changes nothing."""

    def closed(self, request_id: RequestId) -> None:
        """Changes nothing."""

    def forget(self, slot: int) -> None:
        """Changes nothing."""


class Partitioner:
    """The partition policy's planner, its book, and the segments of each request in flight."""

    def __init__(
        self,
        policy: Partition,
        binding: Binding,
        *,
        inventory: Inventory,
        ledger: Ledger,
        learner: Learner,
        placer: Placer,
    ) -> None:
        self.planner = policy.planner()
        self.book = Book()
        self._binding = binding
        self._inventory = inventory
        self._ledger = ledger
        self._learner = learner
        self._placer = placer
        self._runs: dict[RequestId, _Run] = {}
        self._flexible: tuple[Candidates, Candidates] | None = None
        """Of these candidates, the flexible ones."""

    def dispatch(self, entry: Entry, now_s: float) -> Dispatch | None:
        """Plan a held request and book it; None where it may not be cut, or no flexible endpoint has a place for it.

        It is then placed as if there were no partition.
        """
        if not entry.request.divisible:
            return None
        candidates = self._placer.with_capacity(self._placer.allowed(self._candidates(), entry))
        view = self._placer.view(Stage.DECODE, entry.request, candidates, now_s)
        plan = self.planner.plan(view, self.book) if candidates.endpoints else None
        if plan is None:
            return None
        prompt_tokens, first = entry.request.prompt_tokens, plan.segments[0]
        within_prompt = first.end_tokens is not None and first.end_tokens <= prompt_tokens
        decode = plan.segments[1].endpoint if within_prompt else first.endpoint
        at = candidates.endpoints.index(first.endpoint)
        cached_tokens = int(view.matched_tokens[at]) if Belief.PREFIXES in view.beliefs.kinds else 0
        slots = [self._slot(segment.endpoint) for segment in plan.segments]
        self._ledger.assign(
            entry,
            slots[0] if within_prompt else None,
            slots[1] if within_prompt else slots[0],
            now_s,
            cached_tokens=cached_tokens,
            prefill_s=float(view.prefill_s[at]) if Belief.PREFILL_TIMES in view.beliefs.kinds else 0.0,
            class_slot=self._learner.class_slot(entry.request, now_s),
            prefill_tokens=first.end_tokens if within_prompt else None,
        )
        self._learner.dispatched(entry.request, slots[0], now_s)
        works = works_of(plan.segments, prompt_tokens, plan.length_tokens, cached_tokens)
        self.book.open(entry.request.id, list(zip(slots, works, strict=True)))
        self._runs[entry.request.id] = _Run(plan.segments)
        return Dispatch(
            entry.request.id,
            prefill=first.endpoint if within_prompt else None,
            decode=decode,
            traces=plan.traces,
            segments=plan.segments if len(plan.segments) > 1 else (),
        )

    def planned(self, request_id: RequestId) -> bool:
        """Whether the request runs by a plan of this policy."""
        return request_id in self._runs

    def to_come(self, request_id: RequestId) -> bool:
        """Whether the request has segments after the one that runs."""
        run = self._runs.get(request_id)
        return run is not None and run.at + 1 < len(run.segments)

    def to_be_cut(self) -> list[RequestId]:
        """Requests that have segments to come."""
        return [request_id for request_id in self._runs if self.to_come(request_id)]

    def segment_done(self, entry: Entry, now_s: float, *, computed: bool = True) -> Handoff:
        """The segment that runs has reached its end: where the next one, which there is, goes.

        `computed`: False if it was skipped, so that the next one has the whole prompt to compute.
        """
        run = self._runs[entry.request.id]
        done, planned = run.segments[run.at], run.segments[run.at + 1]
        target = self._target(entry, planned.endpoint, now_s)
        slot = self._slot(target)
        run.at += 1
        run.segments = (*run.segments[: run.at], replace(planned, endpoint=target), *run.segments[run.at + 1 :])
        if computed:
            self._learner.prefilled(entry, now_s)
        self._ledger.prefilled(entry, now_s)
        if not computed or (done.end_tokens is not None and done.end_tokens < entry.request.prompt_tokens):
            cached_tokens = done.end_tokens or 0 if computed else 0
            self._ledger.unassign(entry)
            class_slot = self._learner.class_slot(entry.request, now_s)
            self._ledger.assign(entry, None, slot, now_s, cached_tokens=cached_tokens, class_slot=class_slot)
        else:
            self._ledger.move(entry, slot, now_s)
        self.book.ended(entry.request.id, slot)
        return Handoff(entry.request.id, target)

    def moved(self, entry: Entry) -> None:
        """A migration has brought what runs of the request to the endpoint that the ledger now names."""
        if not self.planned(entry.request.id):
            self.unplanned(entry)
        elif entry.decode_slot is not None:
            self.book.moved(entry.request.id, entry.decode_slot)

    def unplanned(self, entry: Entry) -> None:
        """The request runs whole on the endpoints that the ledger names: others are cut with that in mind."""
        slots = (entry.prefill_slot, entry.decode_slot)
        self.book.open_uncut(entry.request.id, [slot for slot in slots if slot is not None])

    def closed(self, request_id: RequestId) -> None:
        """The request is over, or has lost its endpoints. Idempotent."""
        self.book.close(request_id)
        self._runs.pop(request_id, None)

    def forget(self, slot: int) -> None:
        """The slot is free for another endpoint."""
        self.book.forget(slot)

    def _target(self, entry: Entry, planned: Endpoint, now_s: float) -> Endpoint:
        slot = self._inventory.slot_of(planned.id)
        if slot is not None and self._binding is Binding.EARLY:
            return self._inventory.endpoint(slot)
        ready = self._placer.allowed(self._candidates(), entry)
        if slot is not None and len(found := np.flatnonzero(ready.slots == slot)):
            return ready.endpoints[int(found[0])]
        here_slot = entry.decode_slot if entry.prefill_slot is None else entry.prefill_slot
        assert here_slot is not None, "a request with a plan has an endpoint"
        here = self._inventory.endpoint(here_slot)
        others = ready.take([at for at, endpoint in enumerate(ready.endpoints) if endpoint.id != here.id])
        if not others.endpoints:
            return here
        view = self._placer.view(Stage.DECODE, entry.request, others, now_s, 0.0)
        return others.endpoints[int(least_loaded(view, self.book, view.tokens.astype(np.float64), 1)[0])]

    def _candidates(self) -> Candidates:
        """The flexible endpoints among those of the decode stage."""
        decode = self._inventory.candidates(Stage.DECODE)
        if self._flexible is None or self._flexible[0] is not decode:
            kept = [at for at, endpoint in enumerate(decode.endpoints) if endpoint.role is Role.FLEXIBLE]
            self._flexible = decode, decode if len(kept) == len(decode.endpoints) else decode.take(kept)
        return self._flexible[1]

    def _slot(self, endpoint: Endpoint) -> int:
        slot = self._inventory.slot_of(endpoint.id)
        if slot is None:
            raise LookupError(f"{endpoint.id} is not known any more")
        return slot
