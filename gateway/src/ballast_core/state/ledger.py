"""The in-flight ledger: every request that we have dispatched and that has not ended, seen in metrics or not.

A request is booked on one endpoint per stage: on its prefill endpoint until the hand-off of its KV cache, and on its
decode endpoint from the dispatch (a pending prefill is load to come) until it ends. A request that migrates is booked
on its target too, as a pending decode (`Ledger.reserve`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import cached_property

import numpy as np

from ballast_core.arrays import FloatArray, IntArray
from ballast_core.model import EndpointId, Observation, Request, RequestId, Stage
from ballast_core.model.observations import Observations
from ballast_core.state.age_histograms import AgeHistograms
from ballast_core.state.flights import Flights
from ballast_core.state.growth import Growth
from ballast_core.state.prepared import PreparedLedger


class Phase(Enum):
    """Where a request in flight is."""

    HELD = auto()
    """No endpoint yet."""
    PREFILLING = auto()
    DECODING = auto()


# Needed for every report of tokens: a module's name is found faster than a member of an Enum.
_DECODING, _DECODE = Phase.DECODING, Stage.DECODE
_FEW = 12
"""Fewer reports than this are booked faster one by one than as arrays."""

Gap = tuple[int, int, float, float]
"""Output tokens that followed others of their request: (slot, tokens, seconds since those others, time)."""


@dataclass(frozen=True, slots=True)
class PrefillPlan:
    """What is expected of a prefill when it is dispatched."""

    dispatched_s: float = 0.0
    cached_tokens: int = 0
    """Leading prompt tokens that the endpoint is believed to hold already."""
    tokens: int = 0
    """Prompt tokens, cached ones included, that exist when it ends: the whole prompt, or the part before a cut."""
    predicted_s: float = 0.0
    """Expected seconds to its end, its queue included; 0 if no policy reads it."""

    @property
    def uncached_tokens(self) -> int:
        """Tokens to compute."""
        return self.tokens - self.cached_tokens

    @property
    def uncached_pairs(self) -> float:
        """`prefill_pairs` of the step-time law while they are computed: halves of whole numbers, so sums stay exact."""
        return self.uncached_tokens * (self.cached_tokens + self.uncached_tokens / 2)


NO_PREFILL = PrefillPlan()


@dataclass(slots=True)
class Entry:
    """One request in flight."""

    request: Request
    arrived_s: float
    phase: Phase = Phase.HELD
    prefill_slot: int | None = None
    """None while held, after its prefill, or if its decode endpoint prefills it too."""
    prefill: PrefillPlan = NO_PREFILL
    """What was expected of its prefill at dispatch."""
    decode_slot: int | None = None
    generated_tokens: int = 0
    failures: int = 0
    avoid: set[EndpointId] = field(default_factory=set)
    """Endpoints on which a leg of this request failed."""
    progress_at_s: float = 0.0
    """When `generated_tokens` was last updated. inf after a migration: the gap to the next token measures no endpoint.
    """
    row: int = -1
    """Its row in the ledger's `flights`; -1 while held."""
    reservation: Entry | None = None
    """While it migrates: its booking on the target, as a pending decode."""


class Ledger:
    """Requests in flight, and their sums by stage and slot. Shapes: the arrays are (capacity,), indexed by slot."""

    def __init__(self, capacity: int) -> None:
        self._entries: dict[RequestId, Entry] = {}
        self._by_row: list[Entry] = []
        self.flights = Flights()
        """Every request that has an endpoint, as arrays."""
        self.requests = {stage: np.zeros(capacity, np.int64) for stage in Stage}
        self.tokens = {stage: np.zeros(capacity, np.int64) for stage in Stage}
        self.uncached_tokens: IntArray = np.zeros(capacity, np.int64)
        """Prompt tokens still to compute: `tokens` of the prefill stage less what is cached there."""
        self.uncached_pairs: FloatArray = np.zeros(capacity)
        """Pairs of tokens that attend to each other while those tokens are computed."""
        self.prefilling_since_s: FloatArray = np.zeros(capacity)
        """Earliest time at which the prefill at the head of the queue can have started; meaningless without a queue."""
        self.decoding_requests: IntArray = np.zeros(capacity, np.int64)
        """Requests that decode; pending ones are not counted."""
        self.decoding_tokens: IntArray = np.zeros(capacity, np.int64)
        """Tokens that those requests hold: prompt and output so far."""
        self._on_engine: IntArray = np.zeros(capacity, np.int64)
        """Our requests that the engine should report by now."""
        self._excess: IntArray = np.zeros(capacity, np.int64)
        self.foreign: IntArray = np.zeros(capacity, np.int64)
        """Requests that the endpoint reports beyond ours: from other gateways and direct clients."""

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    @cached_property
    def growth(self) -> Growth:
        """Columns derived from `flights`; maintained from the first read on."""
        return Growth(self.flights)

    @cached_property
    def age_histograms(self) -> AgeHistograms:
        """The decoding requests of `flights` by slot and age; maintained from the first read on."""
        return AgeHistograms(self.flights)

    @cached_property
    def prepared(self) -> PreparedLedger:
        """The same for the compiled kernel, with its other arguments; maintained from the first use on."""
        return PreparedLedger(self)

    @property
    def entries(self) -> Mapping[RequestId, Entry]:
        """The requests in flight by id."""
        return self._entries

    def get(self, request_id: RequestId) -> Entry | None:
        """The entry of a request in flight, or None."""
        return self._entries.get(request_id)

    def resize(self, capacity: int) -> None:
        """Grow every array to this length."""
        more = capacity - len(self.foreign)
        if more <= 0:
            return
        empty = np.zeros(more, np.int64)
        for stage in Stage:
            self.requests[stage] = np.concatenate([self.requests[stage], empty])
            self.tokens[stage] = np.concatenate([self.tokens[stage], empty])
        self.uncached_tokens = np.concatenate([self.uncached_tokens, empty])
        self.uncached_pairs = np.concatenate([self.uncached_pairs, np.zeros(more)])
        self.prefilling_since_s = np.concatenate([self.prefilling_since_s, np.zeros(more)])
        self.decoding_requests = np.concatenate([self.decoding_requests, empty])
        self.decoding_tokens = np.concatenate([self.decoding_tokens, empty])
        self._on_engine = np.concatenate([self._on_engine, empty])
        self._excess = np.concatenate([self._excess, empty])
        self.foreign = np.concatenate([self.foreign, empty])

    def open(self, request: Request, now_s: float) -> Entry:
        """Add a new request, held. Raises `ValueError` if its id is in flight already."""
        if request.id in self._entries:
            raise ValueError(f"request id {request.id!r} is in flight already: ids must be unique")
        entry = self._entries[request.id] = Entry(request=request, arrived_s=now_s)
        return entry

    def assign(
        self,
        entry: Entry,
        prefill_slot: int | None,
        decode_slot: int,
        now_s: float,
        *,
        cached_tokens: int = 0,
        prefill_s: float = 0.0,
        class_slot: int = 0,
        prefill_tokens: int | None = None,
    ) -> None:
        """Book a held request on its endpoints; without a prefill slot the decode endpoint prefills it too.

        `prefill_s`: expected seconds until it can decode; `class_slot`: row of its survival curve; `prefill_tokens`:
        prompt tokens before the first cut, None for the whole prompt.
        """
        prompt_tokens = entry.request.prompt_tokens
        to_prefill = prompt_tokens if prefill_tokens is None else min(prefill_tokens, prompt_tokens)
        entry.prefill = PrefillPlan(now_s, min(cached_tokens, to_prefill), to_prefill, prefill_s)
        entry.phase = Phase.PREFILLING
        entry.prefill_slot, entry.decode_slot = prefill_slot, decode_slot
        first = decode_slot if prefill_slot is None else prefill_slot
        if self.requests[Stage.PREFILL][first] == 0:
            self.prefilling_since_s[first] = now_s
        self.requests[Stage.PREFILL][first] += 1
        self.tokens[Stage.PREFILL][first] += to_prefill
        self.uncached_tokens[first] += entry.prefill.uncached_tokens
        self.uncached_pairs[first] += entry.prefill.uncached_pairs
        self._on_engine[first] += 1
        self.requests[Stage.DECODE][decode_slot] += 1
        self.tokens[Stage.DECODE][decode_slot] += prompt_tokens
        entry.row = self.flights.add(
            slot=decode_slot,
            prompt_tokens=prompt_tokens,
            limit_tokens=entry.request.max_output_tokens,
            handoff_at_s=now_s + prefill_s,
            now_s=now_s,
            class_slot=class_slot,
            movable=entry.request.movable and entry.request.subset is None and not entry.avoid,
            expected_tokens=entry.request.expected_output_tokens,
        )
        self._by_row.append(entry)

    def entry_of_row(self, row: int) -> Entry:
        """The entry, or the reservation, in a row of `flights`."""
        return self._by_row[row]

    def hint(self, entry: Entry, remaining_tokens: float) -> None:
        """Record a predicted number of output tokens still to come; anything but a finite number from 0 is unknown."""
        if entry.row >= 0:
            known = 0.0 <= remaining_tokens < math.inf
            self.flights.expected_tokens[entry.row] = entry.generated_tokens + remaining_tokens if known else math.nan

    def prefilled(self, entry: Entry, now_s: float) -> None:
        """Its prefill is over: from now on it is booked on its decode endpoint only. Idempotent."""
        if entry.phase is Phase.PREFILLING and entry.decode_slot is not None:
            first = entry.decode_slot if entry.prefill_slot is None else entry.prefill_slot
            self._leave_prefill(entry, entry.decode_slot, now_s)
            self.prefilling_since_s[first] = now_s

    def _leave_prefill(self, entry: Entry, decode_slot: int, now_s: float) -> None:
        first = decode_slot if entry.prefill_slot is None else entry.prefill_slot
        self.requests[Stage.PREFILL][first] -= 1
        self.tokens[Stage.PREFILL][first] -= entry.prefill.tokens
        self.uncached_tokens[first] -= entry.prefill.uncached_tokens
        self.uncached_pairs[first] -= entry.prefill.uncached_pairs
        self._on_engine[first] -= 1
        self._on_engine[decode_slot] += 1
        self.decoding_requests[decode_slot] += 1
        self.decoding_tokens[decode_slot] += entry.request.prompt_tokens
        self.flights.start_decoding(entry.row, now_s)
        entry.prefill_slot = None
        entry.phase = Phase.DECODING

    def progressed(self, entry: Entry, generated_tokens: int, now_s: float) -> None:
        """It has this many output tokens now; a smaller number is a late report. Tokens imply a finished prefill."""
        more = generated_tokens - entry.generated_tokens
        if more > 0 and entry.decode_slot is not None:
            if entry.phase is not _DECODING:
                self.prefilled(entry, now_s)
            self.tokens[_DECODE][entry.decode_slot] += more
            self.decoding_tokens[entry.decode_slot] += more
            self.flights.progress(entry.row, generated_tokens, now_s)
            entry.generated_tokens, entry.progress_at_s = generated_tokens, now_s

    def progressed_all(
        self, reports: Iterable[tuple[float, RequestId, int]], begins: Callable[[Entry, int, float], None]
    ) -> list[Gap]:
        """`progressed` for each (time, request, output tokens) in order; unknown requests are skipped.

        A request without tokens so far is passed to `begins(entry, generated_tokens, now_s)`. Returns the gaps of all
        the others, in the same order.
        """
        entry_of = self._entries.get
        gaps: list[Gap] = []
        moved: list[Entry] = []
        for now_s, request_id, generated_tokens in reports:
            entry = entry_of(request_id)
            if entry is None:
                continue
            before, slot = entry.generated_tokens, entry.decode_slot
            if before == 0 or slot is None or entry.phase is not _DECODING:
                begins(entry, generated_tokens, now_s)
            elif generated_tokens > before:
                gaps.append((slot, generated_tokens - before, now_s - entry.progress_at_s, now_s))
                moved.append(entry)
                entry.generated_tokens, entry.progress_at_s = generated_tokens, now_s
        if len(gaps) < _FEW:
            for entry, (slot, more, _, _) in zip(moved, gaps, strict=True):
                self.tokens[_DECODE][slot] += more
                self.decoding_tokens[slot] += more
                self.flights.progress(entry.row, entry.generated_tokens, entry.progress_at_s)
            return gaps
        slots = np.array([gap[0] for gap in gaps], np.int64)
        tokens = np.array([gap[1] for gap in gaps], np.int64)
        np.add.at(self.tokens[_DECODE], slots, tokens)
        np.add.at(self.decoding_tokens, slots, tokens)
        self.flights.progress_all(
            [entry.row for entry in moved],
            [entry.generated_tokens for entry in moved],
            [entry.progress_at_s for entry in moved],
        )
        return gaps

    def reserve(self, entry: Entry, slot: int, now_s: float, move_s: float = 0.0) -> None:
        """Book a decode on a second endpoint, its target, where it is expected in `move_s`: a pending decode there.

        Tokens generated meanwhile are added by `move`. Raises ValueError unless the request decodes on another endpoint
        and has no reservation yet.
        """
        source = entry.decode_slot
        if entry.phase is not _DECODING or source is None or source == slot or entry.reservation is not None:
            raise ValueError(f"request {entry.request.id!r} does not decode at one endpoint other than slot {slot}")
        held_tokens = entry.request.prompt_tokens + entry.generated_tokens
        limit = entry.request.max_output_tokens
        coming = entry.reservation = Entry(
            replace(entry.request, prompt_tokens=held_tokens), now_s, Phase.PREFILLING, decode_slot=slot
        )
        self.requests[_DECODE][slot] += 1
        self.tokens[_DECODE][slot] += held_tokens
        coming.row = self.flights.add(
            slot=slot,
            prompt_tokens=held_tokens,
            limit_tokens=None if limit is None else max(limit - entry.generated_tokens, 0),
            handoff_at_s=now_s + move_s,
            now_s=now_s,
            class_slot=int(self.flights.class_slot[entry.row]),
        )
        self._by_row.append(coming)

    def release(self, entry: Entry) -> None:
        """Drop its reservation: it stays on its endpoint, or is over. Idempotent."""
        coming = entry.reservation
        if coming is not None and coming.decode_slot is not None:
            self.requests[_DECODE][coming.decode_slot] -= 1
            self.tokens[_DECODE][coming.decode_slot] -= coming.request.prompt_tokens
            self._drop_row(coming)
            entry.reservation = None

    def move(self, entry: Entry, slot: int, now_s: float) -> None:
        """From now on it decodes in `slot`: its decode booking moves there, and a reservation ends.

        If its prefill is not over, only its future decode moves. Raises ValueError for a request without an endpoint.
        """
        source = entry.decode_slot
        if source is None:
            raise ValueError(f"request {entry.request.id!r} is held: it has no endpoint to move from")
        self.release(entry)
        if source == slot:
            return
        held_tokens = entry.request.prompt_tokens + entry.generated_tokens
        self.requests[_DECODE][source] -= 1
        self.requests[_DECODE][slot] += 1
        self.tokens[_DECODE][source] -= held_tokens
        self.tokens[_DECODE][slot] += held_tokens
        if entry.phase is _DECODING:
            self.decoding_requests[source] -= 1
            self.decoding_requests[slot] += 1
            self.decoding_tokens[source] -= held_tokens
            self.decoding_tokens[slot] += held_tokens
            self._on_engine[source] -= 1
            self._on_engine[slot] += 1
            entry.progress_at_s = math.inf
        elif entry.prefill_slot is None:
            entry.prefill_slot = source
        entry.decode_slot = slot
        self.flights.relocate(entry.row, slot, now_s)

    def unassign(self, entry: Entry) -> None:
        """Drop its bookings and hold it again. Idempotent."""
        self.release(entry)
        if entry.decode_slot is not None:
            if entry.phase is Phase.PREFILLING:
                self._leave_prefill(entry, entry.decode_slot, entry.arrived_s)
            held_tokens = entry.request.prompt_tokens + entry.generated_tokens
            self.requests[Stage.DECODE][entry.decode_slot] -= 1
            self.tokens[Stage.DECODE][entry.decode_slot] -= held_tokens
            self.decoding_requests[entry.decode_slot] -= 1
            self.decoding_tokens[entry.decode_slot] -= held_tokens
            self._on_engine[entry.decode_slot] -= 1
            self._drop_row(entry)
        entry.phase, entry.decode_slot, entry.generated_tokens = Phase.HELD, None, 0

    def _drop_row(self, entry: Entry) -> None:
        last = self.flights.remove(entry.row)
        moved = self._by_row.pop()
        if moved is not entry:
            self._by_row[entry.row] = moved
            moved.row = entry.row
        assert len(self._by_row) == last
        entry.row = -1

    def close(self, request_id: RequestId) -> Entry | None:
        """Remove a request; returns its last state, or None if it was not in flight."""
        entry = self._entries.pop(request_id, None)
        if entry is not None:
            self.unassign(entry)
        return entry

    def observed(self, slot: int, observation: Observation) -> None:
        """Compare what an endpoint reports with our own bookings there.

        Only an excess seen twice in a row counts as foreign. A single one is usually a request of ours that ended
        between the engine's last step and the scrape: vLLM refreshes its gauges only when the engine steps.
        """
        excess = max(0, observation.running + observation.waiting - int(self._on_engine[slot]))
        self.foreign[slot] = min(excess, int(self._excess[slot]))
        self._excess[slot] = excess

    def observed_all(self, slots: IntArray, observations: Observations) -> None:
        """`observed` for many slots, each at most once."""
        reported = observations.running + observations.waiting
        excess = np.maximum(reported - self._on_engine[slots], 0)
        self.foreign[slots] = np.minimum(excess, self._excess[slots])
        self._excess[slots] = excess

    def forget(self, slot: int) -> None:
        """Drop what the endpoint reported."""
        self.foreign[slot] = self._excess[slot] = 0

    def is_idle(self, slot: int) -> bool:
        """Whether no request of ours is booked on the slot."""
        return not any(self.requests[stage][slot] for stage in Stage)
