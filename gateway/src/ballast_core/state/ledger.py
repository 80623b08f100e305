"""The in-flight ledger: every request that we have dispatched and that has not ended, seen in metrics or not.

A request is booked on one endpoint per stage: on its prefill endpoint until the hand-off of its KV cache, and on its
decode endpoint from the dispatch (a pending prefill is load to come) until it ends. A request that migrates is booked
on its target too, as a pending decode (`Ledger.reserve`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import cached_property
from itertools import islice
from typing import NamedTuple

import numpy as np

from ballast_core.arrays import FloatArray, IntArray, float_cells, int_cells
from ballast_core.model import EndpointId, Fault, Observation, Request, RequestId, Stage
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


# A module's name is found faster than a member of an Enum.
_HELD, _PREFILLING, _DECODING = Phase.HELD, Phase.PREFILLING, Phase.DECODING


class PrefillPlan(NamedTuple):
    """What is expected of a prefill when it is dispatched."""

    dispatched_s: float = 0.0
    cached_tokens: int = 0
    """Leading prompt tokens that the endpoint is believed to hold already."""
    tokens: int = 0
    """Prompt tokens, cached ones included, that exist when it ends: the whole prompt, or the part before a cut."""
    predicted_s: float = 0.0
    """Expected seconds to its end, its queue included; 0 if no policy reads it."""
    other_s: float = 0.0
    """The same on the best other candidate; 0 if there was none."""
    known: bool = True
    """False if it went to its endpoint by nobody's plan: when it began, and what was cached there, is not known."""

    @property
    def uncached_tokens(self) -> int:
        """Tokens to compute."""
        return self.tokens - self.cached_tokens

    @property
    def uncached_pairs(self) -> float:
        """`prefill_pairs` of the step-time law while they are computed: halves of whole numbers, so sums stay exact."""
        uncached_tokens = self.tokens - self.cached_tokens
        return uncached_tokens * (self.cached_tokens + uncached_tokens / 2)


NO_PREFILL = PrefillPlan()


class Astray(NamedTuple):
    """What is kept of a request that runs where no endpoint is known."""

    phase: Phase
    generated_tokens: int


class FailedLeg(NamedTuple):
    """A leg of a request in flight that has failed."""

    endpoint_id: EndpointId
    stage: Stage
    fault: Fault
    status: int
    """Of the engine's answer; 0 if it gave none."""
    began: bool
    """It had given tokens."""
    prefilling: bool
    """It was to compute the prompt; else to decode what had been handed over."""
    at_s: float


@dataclass(slots=True)
class Entry:
    """One request in flight."""

    request: Request
    arrived_s: float
    flights: Flights = field(repr=False, compare=False)
    """Where its row is."""
    phase: Phase = Phase.HELD
    prefill_slot: int | None = None
    """None while held, after its prefill, or if its decode endpoint prefills it too."""
    prefill: PrefillPlan = NO_PREFILL
    """What was expected of its prefill at dispatch."""
    decode_slot: int | None = None
    failures: int = 0
    failed_legs: tuple[FailedLeg, ...] = ()
    avoid: frozenset[EndpointId] = frozenset()
    """Endpoints on which a leg of this request failed."""
    root: str = ""
    """The weights that its first token came from, as far as that endpoint has said: others would not go on with it."""
    row: int = -1
    """Its row in the ledger's `flights`; -1 while held."""
    adopted: bool = False
    """Another gateway has dispatched it."""
    reservation: Entry | None = None
    """While it migrates: its booking on the target, as a pending decode."""
    astray: Astray | None = None
    """While it runs where no endpoint is known; its phase is HELD then."""
    counted_before: int = 0
    """Of its last row: `counted_tokens`. Wherever it goes on, the same life counts once."""

    @property
    def generated_tokens(self) -> int:
        """Output tokens so far; 0 while held."""
        if self.row < 0:
            return 0 if self.astray is None else self.astray.generated_tokens
        return self.flights.generated(self.row)

    @property
    def decodes(self) -> bool:
        """Whether its prefill is over."""
        return (self.phase if self.astray is None else self.astray.phase) is _DECODING

    @property
    def counted_tokens(self) -> int:
        """How many of them the beliefs of lengths have been told."""
        return self.counted_before if self.row < 0 else self.flights.counted(self.row)


class Gaps(NamedTuple):
    """Output tokens that followed others of their request, in order of time. Shapes: (reports,)."""

    rows: IntArray
    """The requests' rows of `Ledger.flights`, each once."""
    slots: IntArray
    """Where they decode."""
    generated_tokens: IntArray
    """Their tokens now."""
    more_tokens: IntArray
    """How many of these are new, 1 or more."""
    seconds: FloatArray
    """Since those before them."""
    at_s: FloatArray


class Ledger:
    """Requests in flight, and their sums by stage and slot. Shapes: the arrays are (capacity,), indexed by slot."""

    def __init__(self, capacity: int) -> None:
        self._entries: dict[RequestId, Entry] = {}
        self._by_row: list[Entry] = []
        self.adopted = 0
        """How many of the requests in flight are other gateways'."""
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
        self.prefilled_s: FloatArray = np.full(capacity, -np.inf)
        """When a prefill of ours last ended there."""
        self.decoding_requests: IntArray = np.zeros(capacity, np.int64)
        """Requests that decode; pending ones are not counted."""
        self.decoding_tokens: IntArray = np.zeros(capacity, np.int64)
        """Tokens that those requests hold: prompt and output so far."""
        self._on_engine: IntArray = np.zeros(capacity, np.int64)
        """Our requests that the engine should report by now."""
        self._excess: IntArray = np.zeros(capacity, np.int64)
        self.foreign: IntArray = np.zeros(capacity, np.int64)
        """Requests that the endpoint reports beyond ours: from other gateways and direct clients."""
        self._open_cells()

    def _open_cells(self) -> None:
        """Requests are booked one at a time: cells make that cheap."""
        self._prefills = int_cells(self.requests[Stage.PREFILL])
        self._prefill_tokens = int_cells(self.tokens[Stage.PREFILL])
        self._uncached = int_cells(self.uncached_tokens)
        self._pairs = float_cells(self.uncached_pairs)
        self._since_s = float_cells(self.prefilling_since_s)
        self._prefilled_s = float_cells(self.prefilled_s)
        self._booked = int_cells(self.requests[Stage.DECODE])
        self._booked_tokens = int_cells(self.tokens[Stage.DECODE])
        self._decodes = int_cells(self.decoding_requests)
        self._decode_tokens = int_cells(self.decoding_tokens)
        self._running = int_cells(self._on_engine)
        self._foreign = int_cells(self.foreign)

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

    def newest(self, most: int) -> Iterator[Entry]:
        """The requests in flight, the last to come first, `most` at most."""
        return islice(reversed(self._entries.values()), most)

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
        self.prefilled_s = np.concatenate([self.prefilled_s, np.full(more, -np.inf)])
        self.decoding_requests = np.concatenate([self.decoding_requests, empty])
        self.decoding_tokens = np.concatenate([self.decoding_tokens, empty])
        self._on_engine = np.concatenate([self._on_engine, empty])
        self._excess = np.concatenate([self._excess, empty])
        self.foreign = np.concatenate([self.foreign, empty])
        self._open_cells()

    @property
    def own(self) -> int:
        """How many requests in flight are this gateway's."""
        return len(self._entries) - self.adopted

    def open(self, request: Request, now_s: float, *, adopted: bool = False) -> Entry:
        """Add a new request, held. Raises `ValueError` if its id is in flight already."""
        if request.id in self._entries:
            raise ValueError(f"request id {request.id!r} is in flight already: ids must be unique")
        entry = self._entries[request.id] = Entry(request, now_s, self.flights)
        if adopted:
            entry.adopted = True
            self.adopted += 1
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
        other_s: float = 0.0,
        class_slot: int = 0,
        prefill_tokens: int | None = None,
    ) -> None:
        """Book a held request on its endpoints; without a prefill slot the decode endpoint prefills it too.

        `prefill_s`: expected seconds until it can decode, `other_s` on the best other candidate; `class_slot`: row of
        its survival curve; `prefill_tokens`: prompt tokens before the first cut, None for the whole prompt.
        """
        request = entry.request
        prompt_tokens = request.prompt_tokens
        to_prefill = prompt_tokens if prefill_tokens is None else min(prefill_tokens, prompt_tokens)
        entry.prefill = plan = PrefillPlan(now_s, min(cached_tokens, to_prefill), to_prefill, prefill_s, other_s)
        entry.phase = _PREFILLING
        entry.prefill_slot, entry.decode_slot = prefill_slot, decode_slot
        first = decode_slot if prefill_slot is None else prefill_slot
        if self._prefills[first] == 0:
            self._since_s[first] = now_s
        self._prefills[first] += 1
        self._prefill_tokens[first] += to_prefill
        self._uncached[first] += plan.uncached_tokens
        self._pairs[first] += plan.uncached_pairs
        self._running[first] += 1
        self._book_decode(entry, decode_slot, now_s + prefill_s, now_s, class_slot, decoding=False)

    def assign_decode(self, entry: Entry, slot: int, now_s: float, *, class_slot: int = 0) -> None:
        """Book a held request, whose prefill is over, on the endpoint where it decodes from now on."""
        prompt_tokens = entry.request.prompt_tokens
        entry.prefill = PrefillPlan(now_s, 0, prompt_tokens)
        entry.phase = _DECODING
        entry.prefill_slot, entry.decode_slot = None, slot
        self._since_s[slot] = now_s
        self._running[slot] += 1
        self._decodes[slot] += 1
        self._decode_tokens[slot] += prompt_tokens
        self._book_decode(entry, slot, now_s, now_s, class_slot, decoding=True)

    def _book_decode(
        self, entry: Entry, slot: int, handoff_at_s: float, now_s: float, class_slot: int, *, decoding: bool
    ) -> None:
        request = entry.request
        self._booked[slot] += 1
        self._booked_tokens[slot] += request.prompt_tokens
        entry.row = self.flights.add(
            slot=slot,
            prompt_tokens=request.prompt_tokens,
            limit_tokens=request.max_output_tokens,
            handoff_at_s=handoff_at_s,
            now_s=now_s,
            class_slot=class_slot,
            movable=request.movable and request.subset is None and not entry.avoid,
            expected_tokens=request.expected_output_tokens,
            decoding=decoding,
            counted_tokens=entry.counted_before,
        )
        self._by_row.append(entry)

    def entry_of_row(self, row: int) -> Entry:
        """The entry, or the reservation, in a row of `flights`."""
        return self._by_row[row]

    def hint(self, entry: Entry, remaining_tokens: float) -> None:
        """Record a predicted number of output tokens still to come; anything but a finite number from 0 is unknown."""
        if entry.row >= 0:
            known = 0.0 <= remaining_tokens < math.inf
            self.flights.expect(entry.row, entry.generated_tokens + remaining_tokens if known else math.nan)

    def prefilled(self, entry: Entry, now_s: float) -> None:
        """Its prefill is over: from now on it is booked on its decode endpoint only. Idempotent."""
        slot = entry.decode_slot
        if entry.phase is _PREFILLING and slot is not None:
            first = self._leave_prefill(entry, slot)
            self._since_s[first] = self._prefilled_s[first] = now_s
            self._running[slot] += 1
            self._decodes[slot] += 1
            self._decode_tokens[slot] += entry.request.prompt_tokens
            self.flights.start_decoding(entry.row, now_s)
            entry.phase = _DECODING

    def _leave_prefill(self, entry: Entry, decode_slot: int) -> int:
        """Drop the booking of its prefill; returns the slot."""
        first = decode_slot if entry.prefill_slot is None else entry.prefill_slot
        plan = entry.prefill
        self._prefills[first] -= 1
        self._prefill_tokens[first] -= plan.tokens
        self._uncached[first] -= plan.uncached_tokens
        self._pairs[first] -= plan.uncached_pairs
        self._running[first] -= 1
        entry.prefill_slot = None
        return first

    def progressed(self, entry: Entry, generated_tokens: int, now_s: float) -> tuple[int, int, float] | None:
        """It has this many output tokens now; a smaller number is a late report. Tokens imply a finished prefill.

        Returns the gap before them if they followed others: slot, number of new tokens, seconds (-inf after a move: the
        gap measures no endpoint).
        """
        slot = entry.decode_slot
        if slot is None:
            return None
        before, since_s = self.flights.progress_of(entry.row)
        more = generated_tokens - before
        if more <= 0:
            return None
        if entry.phase is not _DECODING:
            self.prefilled(entry, now_s)
        self._booked_tokens[slot] += more
        self._decode_tokens[slot] += more
        self.flights.progress(entry.row, generated_tokens, now_s)
        return (slot, more, now_s - since_s) if before else None

    def gaps(self, reports: Sequence[tuple[float, RequestId, int]]) -> Gaps | None:
        """The gaps before these (time, request, output tokens), late reports and unknown requests left out.

        None if the reports must be taken one by one: some request has several, had no tokens so far, or has moved.
        """
        times, names, tokens = zip(*reports, strict=True)
        if len(set(names)) < len(names):
            return None
        flights = self.flights
        rows = np.array([-1 if entry is None else entry.row for entry in map(self._entries.get, names)], np.int64)
        now_tokens, at_s = np.array(tokens, np.int64), np.array(times, np.float64)
        if (rows < 0).any():
            known = np.flatnonzero(rows >= 0)
            rows, now_tokens, at_s = rows[known], now_tokens[known], at_s[known]
        before = flights.generated_tokens[rows]
        more = now_tokens - before
        if (more <= 0).any():
            new = np.flatnonzero(more > 0)
            rows, now_tokens, at_s, before, more = rows[new], now_tokens[new], at_s[new], before[new], more[new]
        if not (before.all() and flights.decoding[rows].all()):
            return None
        seconds = at_s - flights.gap_from_s[rows]
        if (seconds <= 0).any():
            return None
        return Gaps(rows, flights.slot[rows], now_tokens, more, seconds, at_s)

    def progressed_all(self, gaps: Gaps) -> None:
        """`progressed` for many requests."""
        np.add.at(self.tokens[Stage.DECODE], gaps.slots, gaps.more_tokens)
        np.add.at(self.decoding_tokens, gaps.slots, gaps.more_tokens)
        self.flights.progress_all(gaps.rows, gaps.generated_tokens, gaps.at_s)

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
            replace(entry.request, prompt_tokens=held_tokens),
            now_s,
            self.flights,
            Phase.PREFILLING,
            decode_slot=slot,
        )
        self._booked[slot] += 1
        self._booked_tokens[slot] += held_tokens
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
            self._booked[coming.decode_slot] -= 1
            self._booked_tokens[coming.decode_slot] -= coming.request.prompt_tokens
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
        self._booked[source] -= 1
        self._booked[slot] += 1
        self._booked_tokens[source] -= held_tokens
        self._booked_tokens[slot] += held_tokens
        if entry.phase is _DECODING:
            self._decodes[source] -= 1
            self._decodes[slot] += 1
            self._decode_tokens[source] -= held_tokens
            self._decode_tokens[slot] += held_tokens
            self._running[source] -= 1
            self._running[slot] += 1
        elif entry.prefill_slot is None:
            entry.prefill_slot = source
        entry.decode_slot = slot
        self.flights.relocate(entry.row, slot, now_s)

    def withdraw(self, entry: Entry, now_s: float) -> None:
        """Its prefill is over, and it is held again until its decode endpoint is chosen anew."""
        slot = entry.decode_slot
        if entry.phase is _PREFILLING and slot is not None:
            first = self._leave_prefill(entry, slot)
            self._since_s[first] = self._prefilled_s[first] = now_s
            self._booked[slot] -= 1
            self._booked_tokens[slot] -= entry.request.prompt_tokens
            self._drop_row(entry)
            entry.phase, entry.decode_slot = _HELD, None

    def unassign(self, entry: Entry) -> None:
        """Drop its bookings and hold it again. Idempotent."""
        if entry.reservation is not None:
            self.release(entry)
        slot = entry.decode_slot
        if slot is not None:
            held_tokens = entry.request.prompt_tokens + entry.generated_tokens
            if entry.phase is _PREFILLING:
                self._leave_prefill(entry, slot)
            else:
                self._decodes[slot] -= 1
                self._decode_tokens[slot] -= held_tokens
                self._running[slot] -= 1
            self._booked[slot] -= 1
            self._booked_tokens[slot] -= held_tokens
            self._drop_row(entry)
        entry.phase, entry.decode_slot, entry.astray = _HELD, None, None

    def lose_sight(self, entry: Entry) -> None:
        """It runs where no endpoint is known: drop its bookings, and keep what `redirect` needs. Idempotent."""
        if entry.phase is not _HELD:
            was = Astray(entry.phase, entry.generated_tokens)
            self.unassign(entry)
            entry.astray = was

    def redirect(
        self, entry: Entry, prefill_slot: int | None, decode_slot: int, now_s: float, *, class_slot: int = 0
    ) -> None:
        """It runs here now, in the phase in which it was, lost sight of or not; `prefill_slot` as for `assign`.

        A prefill that stays where it is goes on; of another one neither its begin nor what was cached is known. Raises
        ValueError for a request that is held.
        """
        if prefill_slot == decode_slot:
            prefill_slot = None
        if entry.phase is _HELD and entry.astray is None:
            raise ValueError(f"request {entry.request.id!r} is held: it runs nowhere")
        old_first = entry.decode_slot if entry.prefill_slot is None else entry.prefill_slot
        stays = old_first == (decode_slot if prefill_slot is None else prefill_slot)
        if entry.phase is _DECODING or (entry.phase is _PREFILLING and stays):
            self.move(entry, decode_slot, now_s)
            if entry.prefill_slot == decode_slot:
                entry.prefill_slot = None
            return
        self.lose_sight(entry)
        was = entry.astray
        assert was is not None
        entry.astray = None
        if was.phase is _PREFILLING:
            self.assign(entry, prefill_slot, decode_slot, now_s, class_slot=class_slot)
            entry.prefill = entry.prefill._replace(known=False)
        else:
            self.assign_decode(entry, decode_slot, now_s, class_slot=class_slot)
            self.progressed(entry, was.generated_tokens, now_s)
            self.flights.resume(entry.row, entry.counted_tokens)

    def _drop_row(self, entry: Entry) -> None:
        row = entry.row
        entry.counted_before = entry.counted_tokens
        self.flights.remove(row)
        moved = self._by_row.pop()
        if moved is not entry:
            self._by_row[row] = moved
            moved.row = row
        entry.row = -1

    def close(self, request_id: RequestId) -> Entry | None:
        """Remove a request; returns its last state, or None if it was not in flight."""
        entry = self._entries.pop(request_id, None)
        if entry is not None:
            self.unassign(entry)
            self.adopted -= entry.adopted
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

    def decode_load(self, slot: int) -> tuple[int, int, int]:
        """Our requests that decode there, the tokens that they hold, and the other requests there.

        Those are our prefills and foreign requests.
        """
        return self._decodes[slot], self._decode_tokens[slot], self._prefills[slot] + self._foreign[slot]

    def last_prefilled_s(self, slot: int) -> float:
        """When a prefill of ours last ended there; -inf: never."""
        return self._prefilled_s[slot]

    def is_idle(self, slot: int) -> bool:
        """Whether no request of ours is booked on the slot."""
        return not (self._prefills[slot] or self._booked[slot])
