"""When one endpoint will have finished all its work, and when with one more part (Libra section 4.1).

The rules are those of `placement.virtual_batches`, for one endpoint and with all parts ready at once, and two that may
be added: a number of prompt tokens for each pass, and KV memory that admitted parts need. The timeline is simulated
once, up to the time from which no part waits. From then on passes only decode, and the time of any number of
them is a closed form: sums over the parts in the order in which they end. One more part goes behind all others, so
everything before its first token stays the same and is not simulated again. What remains is its own prompt, one pass
per chunk, and two look-ups in the sums: with one more decode while it decodes, and without it afterwards. The result
equals that of a simulation from the start.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np

from ballast_core.arrays import FloatArray, IntArray
from ballast_core.profiles import HardwareProfile


class Part(NamedTuple):
    """The remaining work of a micro-request, in tokens."""

    prefill_tokens: int
    decode_tokens: int
    context_tokens: int
    """Tokens of its request that are computed already."""

    @property
    def kv_tokens(self) -> float:
        """KV that it holds while it decodes, on the average of its life."""
        return self.context_tokens + self.prefill_tokens + self.decode_tokens / 2


@dataclass(frozen=True, slots=True)
class Pace:
    """The speed of one endpoint and the limits of its passes."""

    decoding: HardwareProfile
    """The law of passes without prompts."""
    prefilling: HardwareProfile
    """The law of passes with prompts, and the token budget."""
    prefill_factor: float = 1.0
    """Real seconds per second of that law."""
    prompt_tokens: float = math.inf
    """Prompt tokens of a pass, if the budget has room for them."""
    kv_tokens: float = math.inf
    """KV memory: a part is admitted when what all active ones hold on average fits, or when none is active."""
    max_requests: int = 256
    """N_max: active parts at a time."""
    others: int = 0
    """Foreign decodes, which are assumed to stay."""
    others_tokens: float = 0.0
    """Context of all foreign decodes."""

    @property
    def token_budget(self) -> int:
        """Tokens of a pass, without those of foreign decodes."""
        return max(self.prefilling.max_num_batched_tokens - self.others, 1)

    def room_tokens(self, decodes: int) -> int:
        """Prompt tokens that fit into a pass beside so many of our decodes, 1 or more."""
        return max(int(min(self.token_budget - decodes, self.prompt_tokens)), 1)

    @property
    def room_kv_tokens(self) -> float:
        """KV memory without that of foreign decodes."""
        return self.kv_tokens - self.others_tokens

    @property
    def most(self) -> int:
        """Our active parts at a time."""
        return max(self.max_requests - self.others, 1)

    def mixed_s(self, prefill_tokens: int, context_tokens: float, pairs: float, decodes: int) -> float:
        """Seconds of a pass with prompts."""
        count = decodes + self.others
        context = context_tokens + self.others_tokens
        return self.prefill_factor * self.prefilling.step_s(prefill_tokens + count, context, pairs, count)

    def decode_s(self, decodes: int, context_tokens: float = 0.0) -> float:
        """Seconds of a pass without prompts."""
        count = decodes + self.others
        return self.decoding.step_s(count, context_tokens + self.others_tokens, 0.0, count)

    @property
    def read_s(self) -> float:
        """Seconds per token of context in a pass without prompts."""
        return self.decoding.k_ms_per_kv_token / 1e3


class _Shared(NamedTuple):
    """The last pass with prompts, if more prompt tokens fit into it."""

    now_s: float
    passes: int
    decodes: int
    context_tokens: float
    prefill_tokens: int
    pairs: float
    room_tokens: int
    held_tokens: float
    """KV of all parts that are active in it."""


class Timeline:
    """One endpoint's future. Times in seconds from now."""

    def __init__(self, parts: Iterable[Part], pace: Pace) -> None:
        self._pace = pace
        self._now_s = 0.0
        self._passes = 0
        self._shared: _Shared | None = None
        self._ends: list[tuple[int, int, float]] = []
        """Heap of the decoding parts: the pass after which each is done, its context less the passes so far, its KV."""
        self._base_tokens = 0
        self._held_tokens = 0.0
        """KV of the decoding parts."""
        self._simulate(list(parts))
        self._sum()
        self.end_s = self._now_s + self._elapsed_s(self._last)
        """When all parts are done."""

    # --- up to the time from which no part waits ----------------------------------------------------------------

    def _simulate(self, parts: list[Part]) -> None:
        first, left = self._join_at_once(parts), [part.prefill_tokens for part in parts]
        while first < len(parts):
            if not self._fits(parts[first]):
                self._leap()
            elif left[first] == 0:
                self._join(parts[first])
                self._shared = None
                first += 1
            else:
                first = self._mixed_pass(parts, left, first)

    def _join_at_once(self, parts: list[Part]) -> int:
        """Join those that decode from the start, up to the first that cannot. Returns its index.

        The same as `_fits` and `_join` for each, without a heap for as long as it only grows.
        """
        ends, most, room = self._ends, self._pace.most, self._pace.room_kv_tokens
        base_tokens, held_tokens, first = 0, 0.0, 0
        for prefill, decode, context in parts:
            held = held_tokens + (context + decode / 2)
            if prefill or (ends and (len(ends) >= most or held > room)):
                break
            if decode:
                ends.append((decode, context, context + decode / 2))
                base_tokens += context
                held_tokens = held
            first += 1
        heapify(ends)
        self._base_tokens, self._held_tokens = base_tokens, held_tokens
        return first

    def _fits(self, part: Part) -> bool:
        """Whether it may be active beside the decoding ones."""
        if not self._ends:
            return True
        held = self._held_tokens + part.kv_tokens
        return len(self._ends) < self._pace.most and held <= self._pace.room_kv_tokens

    def _join(self, part: Part) -> None:
        if part.decode_tokens:
            base = part.context_tokens + part.prefill_tokens - self._passes
            heappush(self._ends, (self._passes + part.decode_tokens, base, part.kv_tokens))
            self._base_tokens += base
            self._held_tokens += part.kv_tokens

    def _leap(self) -> None:
        """Passes of decodes alone, until the first part ends and another may be admitted."""
        decodes, passes = len(self._ends), self._ends[0][0] - self._passes
        first_s = self._pace.decode_s(decodes, self._base_tokens + decodes * self._passes)
        self._now_s += passes * first_s + self._pace.read_s * decodes * passes * (passes - 1) / 2
        self._passes += passes
        self._retire()

    def _retire(self) -> None:
        while self._ends and self._ends[0][0] <= self._passes:
            _, base, held = heappop(self._ends)
            self._base_tokens -= base
            self._held_tokens -= held

    def _mixed_pass(self, parts: list[Part], left: list[int], first: int) -> int:
        """One pass with prompts, from the index `first` on. Returns the index of the first part not joined after it."""
        decodes = len(self._ends)
        context = self._base_tokens + decodes * self._passes
        room = self._pace.room_tokens(decodes)
        held, most_held = self._held_tokens, self._pace.room_kv_tokens
        last = min(len(parts), first + self._pace.most - decodes)
        tokens, pairs, end = 0, 0.0, first
        while end < last:
            part = parts[end]
            if (decodes or end > first) and held + part.kv_tokens > most_held:
                break
            held += part.kv_tokens
            chunk = min(left[end], room)
            pairs += chunk * (part.context_tokens + part.prefill_tokens - left[end] + chunk / 2)
            left[end] -= chunk
            room -= chunk
            tokens += chunk
            if left[end]:
                break
            end += 1
        may_share = end == len(parts) and room > 0 and decodes + end - first < self._pace.most
        self._shared = None
        if may_share:
            self._shared = _Shared(self._now_s, self._passes, decodes, context, tokens, pairs, room, held)
        self._now_s += self._pace.mixed_s(tokens, context, pairs, decodes)
        self._passes += 1
        self._retire()
        for part in parts[first:end]:
            self._join(part)
        return end

    # --- from there on ------------------------------------------------------------------------------------------

    def _sum(self) -> None:
        """Sum up the time of decode-only passes, without and with one more decode, whose own context is not counted.

        Piece q: the passes between the ends of the (q-1)th and the qth part to end, in which all later parts decode.
        """
        ends = sorted(self._ends)
        self._until: list[int] = [end for end, *_ in ends]
        self._last = self._until[-1] if ends else self._passes
        self._first: list[int] = [self._passes, *self._until]
        """The pass after which each piece begins; the last piece begins when all parts are done."""
        first, count = np.array(self._first, np.float64), len(ends)
        decodes = count - np.arange(count + 1)
        base = np.array([base for _, base, _ in ends] + [0], np.float64)
        base = np.cumsum(base[::-1])[::-1]
        held = np.array([held for *_, held in ends] + [0.0], np.float64)
        self._held: FloatArray = np.cumsum(held[::-1])[::-1]
        """KV of the decoding parts in each piece."""
        read_s = self._pace.read_s
        reads_s = read_s * (base + decodes * first + self._pace.others_tokens)
        growth_s = read_s * decodes
        passes = np.diff(first)
        extra_s = growth_s[:-1] * passes * (passes - 1) / 2
        self._base: list[float] = base.tolist()
        self._growth_s: list[float] = growth_s.tolist()
        self._step_s: list[list[float]] = []
        self._before_s: list[list[float]] = []
        for more in (0, 1):
            step_s = self._floor_s(decodes + more) + reads_s
            self._step_s.append(step_s.tolist())
            self._before_s.append([0.0, *np.cumsum(passes * step_s[:-1] + extra_s).tolist()])

    def _floor_s(self, decodes: IntArray) -> FloatArray:
        """Seconds of passes with these numbers of our decodes, without their context."""
        law, count = self._pace.decoding, decodes + float(self._pace.others)
        work = np.sqrt(np.sqrt(law.a_ms**4 + (law.d_ms_per_token * count) ** 4))
        return np.asarray((law.overhead_ms + work + law.b_ms_per_seq * count) / 1e3, np.float64)

    def _elapsed_s(self, passes: int, more: int = 0) -> float:
        """Seconds from the time from which no part waits until `passes` passes are over; `more`: extra decodes."""
        piece = bisect_right(self._until, passes)
        if piece == len(self._until) and not more:
            return self._before_s[0][piece]
        taken = passes - self._first[piece]
        within_s = taken * self._step_s[more][piece] + self._growth_s[piece] * taken * (taken - 1) / 2
        return self._before_s[more][piece] + within_s

    def end_with_s(self, part: Part) -> float:
        """When all parts are done if this one is added behind all others."""
        pace, left, context = self._pace, part.prefill_tokens, part.context_tokens
        if not left and not part.decode_tokens:
            return self.end_s
        now_s, passes = self._now_s, self._passes
        shared = self._shared
        if shared is not None and left and shared.held_tokens + part.kv_tokens <= pace.room_kv_tokens:
            chunk = min(left, shared.room_tokens)
            pairs = shared.pairs + chunk * (context + chunk / 2)
            now_s = shared.now_s + pace.mixed_s(
                shared.prefill_tokens + chunk, shared.context_tokens, pairs, shared.decodes
            )
            left, context = left - chunk, context + chunk
        elif piece := self._first_with_room(part):
            passes = self._until[piece - 1]
            now_s += self._elapsed_s(passes)
        while left:
            piece = bisect_right(self._until, passes)
            decodes = len(self._until) - piece
            chunk = min(left, pace.room_tokens(decodes))
            reads = self._base[piece] + decodes * passes
            now_s += pace.mixed_s(chunk, reads, chunk * (context + chunk / 2), decodes)
            left, context, passes = left - chunk, context + chunk, passes + 1
        over = passes + part.decode_tokens
        if part.decode_tokens:
            own = part.decode_tokens * context + part.decode_tokens * (part.decode_tokens - 1) / 2
            now_s += self._elapsed_s(over, 1) - self._elapsed_s(passes, 1) + pace.read_s * own
        return now_s + (self._elapsed_s(self._last) - self._elapsed_s(over) if over < self._last else 0.0)

    def _first_with_room(self, part: Part) -> int:
        """The first piece in which it may be active; in the last one no other part is."""
        count = len(self._until)
        piece = max(count - self._pace.most + 1, 0)
        if self._pace.kv_tokens == math.inf:
            return piece
        fits = self._held[piece:] + part.kv_tokens <= self._pace.room_kv_tokens
        fits[-1] = True
        return piece + int(np.argmax(fits))
