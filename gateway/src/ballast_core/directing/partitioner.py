"""Carries out the plans of a partition policy, from dispatch over each cut to the end of the request.

Only flexible endpoints take segments. In the ledger a request is booked where its running segment is:

- A first cut within the prompt or at its end: the first endpoint prefills its part, the second one has the decode.
- A cut beyond the prompt: the endpoint prefills and decodes as if it had the whole request, until the cut.

Later micro-requests are only in the book. A segment goes to its planned endpoint, since the cut was chosen for that
pair. If that endpoint is not ready, flexible and allowed for the request when the cut is reached, late binding chooses
another one, or keeps the request where it is if there is none. Under early binding the KV cache has been sent already,
and the plan stays.
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
from ballast_core.policies.partition.protocol import Partition, Planner
from ballast_core.state.book import Book, works_of
from ballast_core.state.inventory import Candidates, Inventory
from ballast_core.state.ledger import Entry, Ledger


@dataclass(slots=True)
class _Run:
    """A request with a plan, and the index of the segment that runs."""

    segments: tuple[Segment, ...]
    running: int = 0


class Partitioner:
    """The partition policy's planner, its book, and the segments of each request in flight.

    Without a policy every request stays whole, and there is nothing in the book but what an earlier policy has cut.
    """

    def __init__(
        self,
        policy: Partition | None,
        binding: Binding,
        *,
        inventory: Inventory,
        ledger: Ledger,
        learner: Learner,
        placer: Placer,
    ) -> None:
        self.planner = None if policy is None else policy.planner()
        self.book = Book()
        self._binding = binding
        self._inventory = inventory
        self._ledger = ledger
        self._learner = learner
        self._placer = placer
        self._runs: dict[RequestId, _Run] = {}
        self._flexible: tuple[Candidates, Candidates] | None = None
        """The last decode candidates, and the flexible ones among them."""

    def use(self, policy: Partition | None) -> None:
        """Plan by this policy from now on. What is cut already runs on by its plan."""
        had, self.planner = self.planner is not None, None if policy is None else policy.planner()
        for entry in self._ledger:
            if self.planned(entry.request.id):
                continue
            if self.planner is None:
                self.book.close(entry.request.id)
            elif not had:
                self.unplanned(entry)

    def dispatch(self, entry: Entry, now_s: float) -> Dispatch | None:
        """Plan a held request and book it; None if it may not be cut, or if no flexible endpoint has capacity for it.

        Such a request is placed as if there were no partition.
        """
        planner = self.planner
        if planner is None or not entry.request.divisible:
            return None
        allowed = self._placer.allowed(self._candidates(), entry)
        if len(self._inventory.ready_revisions()) < 2:
            return self._cut(planner, entry, allowed, now_s)
        revisions = self._placer.revisions(entry)
        within = (self._cut(planner, entry, allowed.of_revision(each), now_s) for each in revisions)
        return next((dispatch for dispatch in within if dispatch is not None), None)

    def _cut(self, planner: Planner, entry: Entry, allowed: Candidates, now_s: float) -> Dispatch | None:
        """Plan among these, which are all of one revision."""
        candidates = self._placer.with_capacity(allowed)
        view = self._placer.view(Stage.DECODE, entry.request, candidates, now_s)
        plan = planner.plan(view, self.book) if candidates.endpoints else None
        if plan is None:
            return None
        prompt_tokens, first = entry.request.prompt_tokens, plan.segments[0]
        within_prompt = first.end_tokens is not None and first.end_tokens <= prompt_tokens
        decode = plan.segments[1].endpoint if within_prompt else first.endpoint
        index = candidates.endpoints.index(first.endpoint)
        cached_tokens = int(view.matched_tokens[index]) if Belief.PREFIXES in view.beliefs.kinds else 0
        slots = [self._slot(segment.endpoint) for segment in plan.segments]
        self._ledger.assign(
            entry,
            slots[0] if within_prompt else None,
            slots[1] if within_prompt else slots[0],
            now_s,
            cached_tokens=cached_tokens,
            prefill_s=float(view.prefill_s[index]) if Belief.PREFILL_TIMES in view.beliefs.kinds else 0.0,
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

    def has_next(self, request_id: RequestId) -> bool:
        """Whether the request has a segment after the running one."""
        run = self._runs.get(request_id)
        return run is not None and run.running + 1 < len(run.segments)

    def to_be_cut(self) -> list[RequestId]:
        """Requests that have a segment after the running one."""
        return [request_id for request_id in self._runs if self.has_next(request_id)]

    def segment_done(self, entry: Entry, now_s: float, *, computed: bool = True) -> Handoff:
        """The running segment has reached its cut: start the next one, which must exist (`has_next`).

        `computed`: False if the segment was skipped, so the next one computes the whole prompt.
        """
        run = self._runs[entry.request.id]
        done, planned = run.segments[run.running], run.segments[run.running + 1]
        target = self._target(entry, done.endpoint, planned.endpoint, now_s)
        slot = self._slot(target)
        run.running += 1
        current = replace(planned, endpoint=target)
        run.segments = (*run.segments[: run.running], current, *run.segments[run.running + 1 :])
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
        """A migration has moved the running segment to the endpoint on which the ledger now books it."""
        if not self.planned(entry.request.id):
            self.unplanned(entry)
        elif entry.decode_slot is not None:
            self.book.moved(entry.request.id, entry.decode_slot)

    def unplanned(self, entry: Entry) -> None:
        """The request runs whole on the endpoints on which it is booked; later plans count its work."""
        if self.planner is None:
            return
        slots = (entry.prefill_slot, entry.decode_slot)
        self.book.open_uncut(entry.request.id, [slot for slot in slots if slot is not None])

    def closed(self, request_id: RequestId) -> None:
        """The request is over, or has lost its endpoints. Idempotent."""
        if self._runs or self.planner is not None:
            self.book.close(request_id)
            self._runs.pop(request_id, None)

    def forget(self, slot: int) -> None:
        """The slot is free for another endpoint."""
        self.book.forget(slot)

    def _target(self, entry: Entry, running: Endpoint, planned: Endpoint, now_s: float) -> Endpoint:
        slot = self._inventory.slot_of(planned.id)
        if slot is not None and self._binding is Binding.EARLY:
            return self._inventory.endpoint(slot)
        allowed = self._placer.allowed(self._candidates(), entry)
        ready = self._inventory.of_revision(allowed, planned.revision)
        if slot is not None and len(found := np.flatnonzero(ready.slots == slot)):
            return ready.endpoints[int(found[0])]
        here_slot = self._inventory.slot_of(running.id)
        if here_slot is None:
            here_slot = entry.decode_slot if entry.prefill_slot is None else entry.prefill_slot
        assert here_slot is not None, "a request with a plan has an endpoint"
        here = self._inventory.endpoint(here_slot)
        others = ready.take([index for index, endpoint in enumerate(ready.endpoints) if endpoint.id != here.id])
        if not others.endpoints:
            return here
        view = self._placer.view(Stage.DECODE, entry.request, others, now_s, 0.0)
        return others.endpoints[int(least_loaded(view, self.book, view.tokens.astype(np.float64), 1)[0])]

    def _candidates(self) -> Candidates:
        """The flexible endpoints among those of the decode stage."""
        decode = self._inventory.candidates(Stage.DECODE)
        if self._flexible is None or self._flexible[0] is not decode:
            kept = [index for index, endpoint in enumerate(decode.endpoints) if endpoint.role is Role.FLEXIBLE]
            self._flexible = decode, decode if len(kept) == len(decode.endpoints) else decode.take(kept)
        return self._flexible[1]

    def _slot(self, endpoint: Endpoint) -> int:
        slot = self._inventory.slot_of(endpoint.id)
        if slot is None:
            raise LookupError(f"{endpoint.id} is not known any more")
        return slot
