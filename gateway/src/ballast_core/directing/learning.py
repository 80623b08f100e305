"""How events become beliefs. The Director's parts call the learner; policies only read the result.

`arrived` and `observed` are called after the ledger has changed; `prefilled`, `progressed` and `ended` before it does.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ballast_core.beliefs.beliefs import Beliefs
from ballast_core.beliefs.kinds import Belief
from ballast_core.model import Outcome, Request, Stage
from ballast_core.state.inventory import Inventory
from ballast_core.state.ledger import Entry, Gap, Ledger, Phase

_AGE_EVERY_S = 1.0
_STEP_TIME_EVERY_S = 2.0
_LEAST_GAPS = 16
_DECODING = Phase.DECODING  # found faster than a member of an Enum


class _Gaps:
    """Gaps between tokens on one endpoint that are not learned from yet, with the load at each."""

    __slots__ = ("context", "decodes", "seconds", "since_s", "tokens")

    def __init__(self, since_s: float) -> None:
        self.since_s = since_s
        self.tokens = self.seconds = self.decodes = self.context = 0.0


class Learner:
    """Updates `beliefs` from events. A belief that no policy reads costs nothing."""

    def __init__(self, beliefs: Beliefs, inventory: Inventory, ledger: Ledger) -> None:
        self.beliefs = beliefs
        self._inventory = inventory
        self._ledger = ledger
        self._gaps: dict[int, _Gaps] = {}
        self._aged_s = -np.inf
        # Needed at every event; membership in a Flag costs a microsecond.
        kinds = beliefs.kinds
        self._learns_lengths = Belief.LENGTHS in kinds
        self._learns_step_times = Belief.STEP_TIMES in kinds
        self._learns_prefill_times = Belief.PREFILL_TIMES in kinds
        self._learns_prefixes = Belief.PREFIXES in kinds
        self._learns_rates = Belief.RATES in kinds
        self._learns_hotspots = Belief.HOTSPOTS in kinds
        self.follows_progress = self._learns_rates or self._learns_step_times
        """Whether `progressed` learns anything."""
        self._rates = beliefs.rates

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
        if self._learns_prefixes and request.block_hashes and beliefs.use_blocks_of(request.block_size):
            beliefs.prefixes.record(slot, request.block_hashes, now_s)

    def prefilled(self, entry: Entry, now_s: float) -> None:
        """Its prefill has ended."""
        if not self._learns_prefill_times or entry.phase is not Phase.PREFILLING:
            return
        slot = entry.decode_slot if entry.prefill_slot is None else entry.prefill_slot
        if slot is not None:
            plan = entry.prefill
            self.beliefs.prefill_times.completed(
                slot,
                dispatched_s=plan.dispatched_s,
                uncached_tokens=plan.uncached_tokens,
                cached_tokens=plan.cached_tokens,
                predicted_s=plan.predicted_s,
                now_s=now_s,
            )

    def progressed(self, entry: Entry, generated_tokens: int, now_s: float) -> None:
        """It has this many output tokens now. Learns nothing unless `follows_progress`."""
        slot, before = entry.decode_slot, entry.generated_tokens
        tokens, seconds = generated_tokens - before, now_s - entry.progress_at_s
        if slot is None or tokens <= 0 or before == 0 or seconds <= 0 or entry.phase is not _DECODING:
            return
        if self._learns_rates:
            self._rates.observe(slot, tokens, seconds, now_s)
        if self._learns_step_times and self._decodes_only(slot):
            gaps = self._gaps.get(slot)
            if gaps is None:
                gaps = self._gaps[slot] = _Gaps(now_s)
            gaps.tokens += tokens
            gaps.seconds += seconds
            gaps.decodes += tokens * int(self._ledger.decoding_requests[slot])
            gaps.context += tokens * int(self._ledger.decoding_tokens[slot])

    @property
    def reads_books(self) -> bool:
        """Whether `progressed` reads the load at the time from the ledger, not only the request's own progress."""
        return self._learns_step_times

    def progressed_all(self, gaps: Iterable[Gap]) -> None:
        """`progressed` for many requests, after the ledger has changed; not for a learner that `reads_books`."""
        if self._learns_rates:
            self._rates.observe_all(gaps)

    def _decodes_only(self, slot: int) -> bool:
        """Whether the endpoint's load is just our decodes: no prefill, no waiting request, no foreign one."""
        ledger = self._ledger
        return not (ledger.requests[Stage.PREFILL][slot] or ledger.foreign[slot] or self._inventory.waiting[slot])

    def ended(self, entry: Entry, outcome: Outcome, output_tokens: int, now_s: float) -> None:
        """It has ended after this many output tokens (0 if the driver does not know)."""
        if not self._learns_lengths:
            return
        length = max(output_tokens, entry.generated_tokens)
        if length == 0 and outcome is Outcome.COMPLETED:
            return  # its tokens were not counted
        limit = entry.request.max_output_tokens
        cut = outcome is not Outcome.COMPLETED or (limit is not None and length >= limit)
        counted = 0.0 if entry.row < 0 else float(self._ledger.flights.counted_tokens[entry.row])
        self.beliefs.lengths.ended(
            entry.request.traffic_class or None, length, censored=cut, now_s=now_s, counted_tokens=counted
        )

    def observed(self, slot: int, now_s: float) -> None:
        """An endpoint was scraped: do the periodic work, outside of any decision."""
        self.observed_all((slot,), now_s)

    def observed_all(self, slots: Iterable[int], now_s: float) -> None:
        """`observed` for many slots."""
        if self._gaps:
            for slot in slots:
                self._learn_step_time(slot, now_s)
        if self._learns_lengths:
            if now_s - self._aged_s >= _AGE_EVERY_S:
                self._age(now_s)
            self.beliefs.lengths.tables(now_s)

    def _learn_step_time(self, slot: int, now_s: float) -> None:
        gaps = self._gaps.get(slot)
        if gaps is not None and now_s - gaps.since_s >= _STEP_TIME_EVERY_S and gaps.tokens >= _LEAST_GAPS:
            self.beliefs.step_times.observe(
                slot, gaps.seconds / gaps.tokens, gaps.decodes / gaps.tokens, gaps.context / gaps.tokens, now_s=now_s
            )
            del self._gaps[slot]

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
        self._gaps.pop(slot, None)
        self.beliefs.forget(slot)
