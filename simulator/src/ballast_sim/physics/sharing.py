"""An engine that decodes by processor sharing: every sequence of the batch at the same speed (SIBYL, algorithm 3).

Prefill is a delay without a queue, KV has no limit and hand-offs take no time. As all sequences advance alike, one
number v measures the progress of all: the tokens of a sequence that has been in the batch from the start.
A request that joins at v ends at v plus its tokens; between two changes of the batch nothing needs to be computed.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from ballast_sim.engine import (
    EngineEvent,
    EngineLoad,
    EngineRequest,
    Finished,
    FinishReason,
    RequestStats,
    StepEnded,
    TokensAdvanced,
)
from ballast_sim.engine.config import DEFAULT_MAX_MODEL_LEN
from ballast_sim.physics.laws import DecodeLaw

BLOCK_SIZE = 16

_ROUNDING_S = 1e-6
"""More than what rounding does to the time of a progress and back."""


@dataclass(slots=True, eq=False)
class _Sequence:
    request: EngineRequest
    joined: float = math.nan
    """The batch's progress when it began to decode, less the tokens that it had then."""
    scheduled_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    tokens: int = 0
    """Output tokens reported so far."""

    def stats(self, tokens: int) -> RequestStats:
        return RequestStats(
            arrival_s=self.request.arrival_s,
            scheduled_s=self.scheduled_s,
            first_token_s=self.first_token_s,
            last_token_s=self.last_token_s,
            input_tokens=self.request.input_tokens,
            output_tokens=tokens,
            cached_tokens=0,
            pulled_tokens=0,
            preemptions=0,
        )


_Due: TypeAlias = tuple[float, int, _Sequence, int]
"""Progress at which a sequence has so many tokens; a running number orders equal ones."""


@dataclass(slots=True)
class _Batch:
    """Sequences that decode together, and their common progress in tokens."""

    law: DecodeLaw
    sequences: int = 0
    context_tokens: float = 0.0
    """At `progress`."""
    at_s: float = 0.0
    progress: float = 0.0
    """At `at_s`."""
    factor: float = 1.0
    """The slowdown: work takes so many times as long."""

    def progress_at(self, now_s: float) -> float:
        if not self.sequences:
            return self.progress
        seconds = (now_s - self.at_s) / self.factor
        return self.progress + self.law.tokens(seconds, self.sequences, self.context_tokens)

    def time_of(self, progress: float) -> float:
        tokens = progress - self.progress
        if tokens <= 0:
            return self.at_s
        return self.at_s + self.factor * self.law.seconds(tokens, self.sequences, self.context_tokens)

    def move(self, now_s: float, progress: float) -> None:
        self.context_tokens += self.sequences * (progress - self.progress)
        self.at_s, self.progress = now_s, progress

    def change(self, sequences: int, context_tokens: float) -> None:
        self.sequences += sequences
        self.context_tokens = self.context_tokens + context_tokens if self.sequences else 0.0


@dataclass(slots=True)
class SharingEngine:
    """An `EngineModel` for every role: a prefill leg is a delay, a decode leg a share, another request both in turn."""

    law: DecodeLaw
    prefill_s: Callable[[int], float]
    """The delay of a prompt of so many tokens."""
    kv_tokens: int
    """KV tokens at which the gauge shows 1."""
    mark_every_tokens: int
    silent_until_s: float = 0.0
    _batch: _Batch = field(init=False)
    _requests: dict[str, _Sequence] = field(default_factory=dict)
    _prefilling: list[tuple[float, int, _Sequence]] = field(default_factory=list)
    _waiting: deque[_Sequence] = field(default_factory=deque)
    _due: list[_Due] = field(default_factory=list)
    _mark_due: list[_Due] = field(default_factory=list)
    _marks: list[tuple[float, str, int]] = field(default_factory=list)
    _events: list[EngineEvent] = field(default_factory=list)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _now_s: float = 0.0

    def __post_init__(self) -> None:
        """An empty batch."""
        self._batch = _Batch(self.law)

    # --- what the driver calls ------------------------------------------------------------------------------------

    def add(self, request: EngineRequest, now_s: float) -> None:
        """See `EngineModel.add`."""
        if request.request_id in self._requests:
            raise ValueError(f"request_id: {request.request_id!r} is in use")
        if request.input_tokens < 1 or request.max_tokens < 1:
            raise ValueError("input_tokens, max_tokens: must both be 1 or more")
        sequence = self._requests[request.request_id] = _Sequence(request)
        if request.pull:
            self._waiting.append(sequence)
            self._admit(now_s)
            return
        sequence.scheduled_s = now_s
        ends_s = now_s + self._batch.factor * self.prefill_s(request.input_tokens)
        heapq.heappush(self._prefilling, (ends_s, next(self._numbers), sequence))

    def abort(self, request_id: str, now_s: float) -> bool:
        """See `EngineModel.abort`; a token under way is lost."""
        sequence = self._requests.get(request_id)
        if sequence is None:
            return False
        self._move(now_s)
        self._now_s = max(self._now_s, now_s)
        sequence.tokens, decodes = self._generated(sequence), self.is_running(request_id)
        del self._requests[request_id]
        if decodes:
            held = sequence.request.input_tokens + self._batch.progress - sequence.joined
            self._batch.change(-1, -held)
            self._due = [due for due in self._due if due[2] is not sequence]
            self._mark_due = [due for due in self._mark_due if due[2] is not sequence]
            heapq.heapify(self._due)
            heapq.heapify(self._mark_due)
        elif sequence in self._waiting:
            self._waiting.remove(sequence)
        else:
            self._prefilling = [entry for entry in self._prefilling if entry[2] is not sequence]
            heapq.heapify(self._prefilling)
        self._events.append(Finished(now_s, request_id, FinishReason.ABORT, sequence.stats(sequence.tokens)))
        self._admit(now_s)
        return True

    def is_running(self, request_id: str) -> bool:
        """See `EngineModel.is_running`."""
        sequence = self._requests.get(request_id)
        return sequence is not None and not math.isnan(sequence.joined)

    @property
    def keeps_kv(self) -> bool:
        """Nothing is kept."""
        return False

    def release(self, request_id: str, now_s: float) -> bool:
        """Nothing is ever held."""
        return False

    def pull_ended(self, request_id: str, now_s: float, failed: bool = False) -> None:
        """Pulls take no time and are never begun."""

    def slow(self, factor: float, now_s: float) -> None:
        """See `EngineModel.slow`; prefills that have begun go on as before."""
        self._move(now_s)
        self._batch.factor = factor

    @property
    def settles(self) -> bool:
        """See `EngineModel.settles`."""
        return not self.mark_every_tokens

    def settle(self) -> None:
        """See `EngineModel.settle`."""
        if not self.settles:
            return
        for request_id, sequence in self._requests.items():
            if (more := self._generated(sequence) - sequence.tokens) > 0:
                had = sequence.tokens
                advanced = TokensAdvanced(self._now_s, request_id, had, [self._now_s] * more, 0, more, marked=had)
                self._events.append(advanced)
                sequence.tokens += more

    # --- time -----------------------------------------------------------------------------------------------------

    def next_event_s(self) -> float:
        """See `EngineModel.next_event_s`: an end of a prefill, a first token, a last one."""
        prefilled_s = self._prefilling[0][0] if self._prefilling else math.inf
        return min(prefilled_s, self._batch.time_of(self._due[0][0])) if self._due else prefilled_s

    def advance(self, now_s: float) -> list[EngineEvent]:
        """See `EngineModel.advance`."""
        while (due_s := self.next_event_s()) <= now_s:
            if self._prefilling and self._prefilling[0][0] <= due_s:
                self._move(due_s)
                self._prefilled(heapq.heappop(self._prefilling)[2], due_s)
            else:
                progress, _, sequence, tokens = heapq.heappop(self._due)
                self._move(due_s, progress)
                self._decoded(sequence, tokens, due_s)
        self._now_s = max(self._now_s, now_s)
        events, self._events = self._events, []
        return events

    def _prefilled(self, sequence: _Sequence, now_s: float) -> None:
        """A prefill leg is done; another request has its first token and goes on to decode."""
        request = sequence.request
        if request.hold:
            sequence.tokens, sequence.first_token_s = 1, now_s
            self._finish(sequence, now_s)
            return
        self._report_first(sequence, now_s)
        if request.max_tokens == 1:
            self._finish(sequence, now_s)
            return
        self._waiting.append(sequence)
        self._admit(now_s)

    def _decoded(self, sequence: _Sequence, tokens: int, now_s: float) -> None:
        if tokens == 1:
            self._report_first(sequence, now_s)
        if tokens == sequence.request.max_tokens:
            sequence.tokens = tokens
            self._batch.change(-1, -(sequence.request.input_tokens + tokens))
            self._finish(sequence, now_s)
            self._admit(now_s)

    def _report_first(self, sequence: _Sequence, now_s: float) -> None:
        sequence.tokens, sequence.first_token_s = 1, now_s
        self._events.append(StepEnded(now_s, [sequence.request.request_id], 1))

    def _finish(self, sequence: _Sequence, now_s: float) -> None:
        request_id = sequence.request.request_id
        del self._requests[request_id]
        sequence.last_token_s = now_s
        self._events.append(Finished(now_s, request_id, FinishReason.LENGTH, sequence.stats(sequence.tokens)))

    def _admit(self, now_s: float) -> None:
        """First come first served, as many as the law lets decode."""
        while self._waiting and self._batch.sequences < self.law.max_num_seqs:
            self._move(now_s)
            sequence = self._waiting.popleft()
            total, had = sequence.request.max_tokens, sequence.tokens
            sequence.joined = self._batch.progress - had
            sequence.scheduled_s = now_s if sequence.scheduled_s is None else sequence.scheduled_s
            self._batch.change(1, sequence.request.input_tokens + had)
            for tokens in {had + 1, total} if had == 0 else {total}:
                heapq.heappush(self._due, self._due_at(sequence, tokens))
            self._first_mark(sequence, had)

    def _first_mark(self, sequence: _Sequence, after: int) -> None:
        every = 0 if sequence.request.mark_as == "" else self.mark_every_tokens
        if every and (tokens := after // every * every + every) < sequence.request.max_tokens:
            heapq.heappush(self._mark_due, self._due_at(sequence, tokens))

    def _due_at(self, sequence: _Sequence, tokens: int) -> _Due:
        return sequence.joined + tokens, next(self._numbers), sequence, tokens

    def _move(self, now_s: float, progress: float | None = None) -> None:
        """Bring the batch up to `now_s`, before it changes."""
        reached = self._batch.progress_at(now_s) if progress is None else progress
        self._note_marks(reached, inclusive=True)
        self._batch.move(now_s, reached)

    def _note_marks(self, reached: float, *, inclusive: bool) -> None:
        due, every = self._mark_due, self.mark_every_tokens
        batch, note, numbers = self._batch, self._marks.append, self._numbers
        while due and (due[0][0] < reached or (inclusive and due[0][0] == reached)):
            progress, _, sequence, tokens = due[0]
            sequence.tokens = tokens
            request = sequence.request
            name = request.request_id if request.mark_as is None else request.mark_as
            note((batch.time_of(progress), name, request.mark_from + tokens))
            following = tokens + every
            if following < request.max_tokens:
                heapq.heapreplace(due, (sequence.joined + following, next(numbers), sequence, following))
            else:
                heapq.heappop(due)

    # --- what the driver reads ------------------------------------------------------------------------------------

    @property
    def max_model_len(self) -> int:
        """The limit of vLLM's engines where the KV cache does not bind."""
        return DEFAULT_MAX_MODEL_LEN

    @property
    def block_size(self) -> int:
        """vLLM's; nothing depends on it here."""
        return BLOCK_SIZE

    @property
    def preemptions(self) -> int:
        """There are none without a KV limit."""
        return 0

    def requests(self) -> list[str]:
        """See `EngineModel.requests`."""
        return list(self._requests)

    def stats(self, request_id: str) -> RequestStats | None:
        """See `EngineModel.stats`; as of the last `advance`."""
        sequence = self._requests.get(request_id)
        return None if sequence is None else sequence.stats(self._generated(sequence))

    def _generated(self, sequence: _Sequence) -> int:
        """Whole tokens as of the last `advance`."""
        if math.isnan(sequence.joined):
            return sequence.tokens
        reached = math.floor(self._batch.progress_at(self._now_s) - sequence.joined + 1e-9)
        return max(sequence.tokens, reached)

    def marks(self, now_s: float, inclusive: bool) -> Iterable[tuple[float, str, int]]:
        """See `EngineModel.marks`."""
        self._note_marks(self._batch.progress_at(now_s), inclusive=inclusive)
        due = self._mark_due
        self.silent_until_s = self._batch.time_of(due[0][0]) - _ROUNDING_S if due else math.inf
        marks, self._marks = self._marks, []
        return marks

    def kv_usage_ratio(self, now_s: float) -> float:
        """Prompts under way and contexts of sequences that decode, over what the hardware would hold; unbounded."""
        batch = self._batch
        decoding = batch.context_tokens + batch.sequences * (batch.progress_at(now_s) - batch.progress)
        prefilling = sum(sequence.request.input_tokens for _, _, sequence in self._prefilling)
        return (decoding + prefilling) / self.kv_tokens

    def load(self, now_s: float | None = None) -> EngineLoad:
        """See `EngineModel.load`; prefills count as running, and the KV gauge ends at 1."""
        return EngineLoad(
            running=self._batch.sequences + len(self._prefilling),
            waiting=len(self._waiting),
            deferred=0,
            kv_usage_ratio=min(1.0, self.kv_usage_ratio(self._batch.at_s if now_s is None else now_s)),
        )

    def check_blocks(self) -> None:
        """There are no blocks. Checks that the batch holds as many sequences as are due to end."""
        decoding = len(self._requests) - len(self._prefilling) - len(self._waiting)
        assert decoding == self._batch.sequences, (decoding, self._batch.sequences)
