"""How events become beliefs. The Director's parts call the learner; policies only read the result.

`arrived`, `gap` and `observed` are called after the ledger has changed; `prefilled`, `gaps` and `ended` before it does.
"""

from __future__ import annotations

import numpy as np

from ballast_core.arrays import FloatArray, IntArray, float_cells
from ballast_core.beliefs.beliefs import Beliefs
from ballast_core.beliefs.kinds import Belief
from ballast_core.model import Outcome, Request, Stage
from ballast_core.model.events import CacheReported, CacheReportsBegun
from ballast_core.state.inventory import Inventory
from ballast_core.state.ledger import Entry, Gaps, Ledger, Phase

_AGE_EVERY_S = 1.0
_STEP_TIME_EVERY_S = 2.0
_LEAST_GAPS = 16
_PREFILLING = Phase.PREFILLING  # found faster than a member of an Enum


class Learner:
    """Updates `beliefs` from events. A belief that no policy reads costs nothing."""

    def __init__(self, beliefs: Beliefs, inventory: Inventory, ledger: Ledger) -> None:
        self.beliefs = beliefs
        self._inventory = inventory
        self._ledger = ledger
        self._aged_s = -np.inf
        self._learns_lengths = False
        self.use(beliefs.kinds)
        self._rates = beliefs.rates
        # By slot: gaps between tokens that are not learned from yet, with the load at each, and since when.
        self._tokens: FloatArray = np.zeros(0)
        self._seconds: FloatArray = np.zeros(0)
        self._decodes: FloatArray = np.zeros(0)
        self._context: FloatArray = np.zeros(0)
        self._since_s: FloatArray = np.zeros(0)
        """inf: there are none."""
        self.grow(inventory.capacity)

    def use(self, kinds: Belief) -> None:
        """Learn these kinds from now on."""
        if Belief.LENGTHS in kinds and not self._learns_lengths:  # their life so far was not followed
            flights = self._ledger.flights
            flights.counted_tokens[:] = flights.generated_tokens
        # Needed at every event; membership in a Flag costs a microsecond.
        self._learns_lengths = Belief.LENGTHS in kinds
        self._learns_step_times = Belief.STEP_TIMES in kinds
        self._learns_prefill_times = Belief.PREFILL_TIMES in kinds
        self._learns_prefixes = Belief.PREFIXES in kinds
        self._learns_rates = Belief.RATES in kinds
        self._learns_hotspots = Belief.HOTSPOTS in kinds
        self._learns_batches = Belief.BATCHES in kinds
        self.follows_progress = self._learns_rates or self._learns_step_times
        """Whether gaps between tokens teach anything."""

    def grow(self, slots: int) -> None:
        """Have a place for each of so many slots."""
        more = slots - len(self._tokens)
        self._tokens = np.concatenate([self._tokens, np.zeros(more)])
        self._seconds = np.concatenate([self._seconds, np.zeros(more)])
        self._decodes = np.concatenate([self._decodes, np.zeros(more)])
        self._context = np.concatenate([self._context, np.zeros(more)])
        self._since_s = np.concatenate([self._since_s, np.full(more, np.inf)])
        self._tokens_of = float_cells(self._tokens)
        self._seconds_of = float_cells(self._seconds)
        self._decodes_of = float_cells(self._decodes)
        self._context_of = float_cells(self._context)
        self._since_s_of = float_cells(self._since_s)

    def arrived(self, request: Request, now_s: float) -> None:
        """A request has arrived."""
        if self._learns_hotspots:
            self.beliefs.hotspots.arrived(request.block_hashes[0] if request.block_hashes else None, now_s)

    def class_slot(self, request: Request, now_s: float) -> int:
        """The class slot of the request: the row of its survival curve."""
        if not request.traffic_class or not self._learns_lengths:
            return 0
        return self.beliefs.lengths.slot(request.traffic_class, now_s)

    def dispatched(self, request: Request, slot: int, now_s: float) -> None:
        """The request will be prefilled in this slot, whose endpoint will cache its prefix."""
        beliefs = self.beliefs
        if not self._learns_prefixes:
            return
        if request.block_hashes and beliefs.use_blocks_of(request.block_size):
            beliefs.prefixes.record(slot, request.block_hashes, now_s)
        if request.tokens is not None:
            beliefs.reported.record(slot, request.tokens, now_s)

    def reports_begun(self, event: CacheReportsBegun) -> None:
        """An endpoint begins to report what it caches, or begins anew."""
        if self._learns_prefixes:
            self.beliefs.reported.begin(event.endpoint_id, event.rank, event.most_blocks, event.problem)

    def reported(self, event: CacheReported, now_s: float) -> None:
        """An endpoint reports what it caches."""
        for report in event.reports:
            self.beliefs.reported.report(event.endpoint_id, event.rank, report, now_s)

    def prefilled(self, entry: Entry, now_s: float) -> None:
        """Its prefill has ended."""
        if not self._learns_prefill_times or entry.phase is not _PREFILLING or not entry.prefill.known:
            return
        slot = entry.decode_slot if entry.prefill_slot is None else entry.prefill_slot
        if slot is not None:
            plan = entry.prefill
            service_s = self.beliefs.prefill_times.completed(
                slot,
                dispatched_s=plan.dispatched_s,
                uncached_tokens=plan.uncached_tokens,
                cached_tokens=plan.cached_tokens,
                predicted_s=plan.predicted_s,
                now_s=now_s,
            )
            if self._learns_batches and service_s is not None:
                self.beliefs.batches.prefilled(slot, service_s, plan.uncached_tokens, plan.cached_tokens)
            if plan.other_s > 0:
                self.beliefs.hindsight.judge(
                    predicted_s=plan.predicted_s, observed_s=now_s - plan.dispatched_s, other_s=plan.other_s
                )

    def gap(self, slot: int, tokens: int, seconds: float, now_s: float) -> None:
        """A request that decodes here has so many more tokens, so long after others of it; they are on the books."""
        if seconds <= 0:
            return
        if self._learns_rates:
            self._rates.observe(slot, tokens, seconds, now_s)
        if self._learns_step_times:
            decodes, context_tokens, others = self._ledger.decode_load(slot)
            if others or self._inventory.waiting[slot]:  # the gap tells of more than our decodes
                if self._learns_batches and self._ledger.requests[Stage.PREFILL][slot] == others > 0:
                    context = float(context_tokens - tokens)
                    self.beliefs.batches.passed(slot, tokens, seconds, decodes, context)
                return
            if now_s - seconds < self._ledger.last_prefilled_s(slot):
                return  # a prompt of ours was computed for a part of it
            self._tokens_of[slot] += tokens
            self._seconds_of[slot] += seconds
            self._decodes_of[slot] += tokens * decodes
            self._context_of[slot] += tokens * (context_tokens - tokens)
            self._since_s_of[slot] = min(self._since_s_of[slot], now_s)

    def gaps(self, gaps: Gaps) -> None:
        """`gap` for many requests, before their tokens are on the books."""
        if self._learns_rates:
            columns = (gaps.slots, gaps.more_tokens, gaps.seconds, gaps.at_s)
            self._rates.observe_all(zip(*(column.tolist() for column in columns), strict=True))
        if self._learns_step_times:
            self._add_gaps(gaps)

    def _add_gaps(self, gaps: Gaps) -> None:
        ledger, slots, seconds, at_s = self._ledger, gaps.slots, gaps.seconds, gaps.at_s
        more = gaps.more_tokens.astype(np.float64)
        decodes_only = ledger.requests[Stage.PREFILL] + ledger.foreign + self._inventory.waiting == 0
        told = decodes_only[slots]
        if self._learns_batches and not told.all():
            self._add_mixed_gaps(slots[~told], more[~told], seconds[~told])
        told &= at_s - seconds >= ledger.prefilled_s[slots]  # no prompt of ours was computed for a part of them
        if not told.all():
            slots, more, seconds, at_s = slots[told], more[told], seconds[told], at_s[told]
        tokens = np.bincount(slots, more, len(decodes_only))
        squares = np.bincount(slots, more * more, len(decodes_only))
        self._tokens += tokens
        self._decodes += tokens * ledger.decoding_requests
        # Each gap has the context on the books and the tokens of the gaps before it: sums of whole numbers, so exact.
        self._context += tokens * ledger.decoding_tokens + (tokens * tokens - squares) / 2
        np.add.at(self._seconds, slots, seconds)
        if len(first := np.flatnonzero(self._since_s[slots] > at_s)):
            np.minimum.at(self._since_s, slots[first], at_s[first])

    def _add_mixed_gaps(self, slots: IntArray, more: FloatArray, seconds: FloatArray) -> None:
        """Gaps while prompts of ours were computed. The context is that on the books, before these tokens."""
        ledger = self._ledger
        prompts = (ledger.requests[Stage.PREFILL] > 0) & (ledger.foreign == 0)
        passes = np.bincount(slots, more, len(prompts)) * prompts
        took_s = np.bincount(slots, seconds, len(prompts))
        for slot in np.flatnonzero(passes).tolist():
            load = ledger.decoding_requests[slot], ledger.decoding_tokens[slot]
            self.beliefs.batches.passed(slot, passes[slot], took_s[slot], *map(float, load))

    def ended(self, entry: Entry, outcome: Outcome, output_tokens: int, now_s: float) -> None:
        """It has ended after this many output tokens (0 if the driver does not know)."""
        if not self._learns_lengths:
            return
        length = max(output_tokens, entry.generated_tokens)
        if length == 0:
            return  # its tokens were not counted, or it left or failed before any: nothing of its length was seen
        limit = entry.request.max_output_tokens
        cut = outcome is not Outcome.COMPLETED or (limit is not None and length >= limit)
        counted = float(entry.counted_tokens)
        key = entry.request.traffic_class or None
        if counted and entry.row >= 0 and not self._ledger.flights.class_slot[entry.row]:
            key = None  # its life was counted for all traffic alone: for its class an end without a life is none
        self.beliefs.lengths.ended(key, length, censored=cut, now_s=now_s, counted_tokens=counted)

    def observed(self, slot: int, now_s: float) -> None:
        """An endpoint was scraped: do the periodic work, outside of any decision."""
        if self._learns_step_times and now_s - self._since_s_of[slot] >= _STEP_TIME_EVERY_S:
            self._learn_step_time(slot, now_s)
        self._renew(now_s)

    def observed_all(self, slots: IntArray, now_s: float) -> None:
        """`observed` for many slots."""
        if self._learns_step_times:
            for slot in slots[now_s - self._since_s[slots] >= _STEP_TIME_EVERY_S].tolist():
                self._learn_step_time(slot, now_s)
        self._renew(now_s)

    def _renew(self, now_s: float) -> None:
        if self._learns_prefixes:
            self.beliefs.reported.forget_overdue(now_s)
        if self._learns_lengths:
            if now_s - self._aged_s >= _AGE_EVERY_S:
                self._age(now_s)
            self.beliefs.lengths.tables(now_s)

    def _learn_step_time(self, slot: int, now_s: float) -> None:
        """Learn from the gaps there since the last time, if there are enough."""
        tokens = self._tokens_of[slot]
        if tokens >= _LEAST_GAPS:
            self.beliefs.step_times.observe(
                slot,
                self._seconds_of[slot] / tokens,
                self._decodes_of[slot] / tokens,
                self._context_of[slot] / tokens,
                now_s=now_s,
            )
            self._forget_gaps(slot)

    def _forget_gaps(self, slot: int) -> None:
        self._tokens_of[slot] = self._seconds_of[slot] = self._decodes_of[slot] = self._context_of[slot] = 0.0
        self._since_s_of[slot] = np.inf

    def _age(self, now_s: float) -> None:
        """Report the growth of requests in flight to the survival curves as it happens."""
        self._aged_s = now_s
        flights = self._ledger.flights
        lived = np.flatnonzero(flights.generated_tokens > flights.counted_tokens)
        if len(lived):
            to_tokens = flights.generated_tokens[lived]
            self.beliefs.lengths.aged(
                flights.class_slot[lived],
                flights.counted_tokens[lived].astype(np.float64),
                to_tokens.astype(np.float64),
                now_s,
            )
            flights.counted_tokens[lived] = to_tokens

    def forget(self, slot: int) -> None:
        """The slot is free for another endpoint."""
        self._forget_gaps(slot)
        self.beliefs.forget(slot)
