"""The micro-requests that partition policies have planned and that are not done yet, by endpoint.

What an endpoint has to do, in the order in which it was planned; and which requests run there without a
plan. How far a request has come is what the ledger knows of it; the book itself changes only when requests come, move,
reach a cut, or end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ballast_core.arrays import IntArray
from ballast_core.model import RequestId
from ballast_core.model.segments import Segment


@dataclass(frozen=True, slots=True)
class Work:
    """What one endpoint has to do for one micro-request, from its beginning. In whole tokens."""

    prefill_tokens: int
    """Prompt tokens to compute."""
    decode_tokens: int
    """Tokens to decode after that, as far as is foreseen."""
    context_tokens: int
    """Tokens of its request that are computed before it begins: cached here, or on the endpoints before."""
    generated_tokens: int = 0
    """Output tokens among these."""


def works_of(segments: Sequence[Segment], prompt_tokens: int, length_tokens: int, cached_tokens: int = 0) -> list[Work]:
    """The work of each segment. `length_tokens`: prompt and foreseen output; `cached_tokens`: on the first endpoint.

    The token before a cut is computed by the first of two endpoints; that a decode begins by computing the last token
    of its context again is left out. A prompt that is all cached still computes one token.
    """
    works, start = list[Work](), 0
    for segment in segments:
        end = max(length_tokens, start + 1) if segment.end_tokens is None else segment.end_tokens
        prompt_end = min(end, prompt_tokens)
        begun = min(cached_tokens, max(prompt_end - 1, 0)) if start == 0 else start
        works.append(
            Work(
                prefill_tokens=max(prompt_end - begun, 0),
                decode_tokens=max(end - max(start, prompt_tokens), 0),
                context_tokens=begun,
                generated_tokens=max(start - prompt_tokens, 0),
            )
        )
        start = end
    return works


@dataclass(slots=True)
class _Share:
    """One request's micro-requests, and the slot on whose books each one stands; None: on nobody's."""

    works: list[Work]
    slots: list[int | None]
    at: int = 0
    """Which one runs."""


Key = tuple[RequestId, int]
"""A micro-request: its request, and which of its segments it is."""


class Book:
    """Works by slot, in the order in which they were put there."""

    def __init__(self) -> None:
        self._works: dict[int, dict[Key, Work]] = {}
        self._shares: dict[RequestId, _Share] = {}
        self._uncut: dict[int, dict[RequestId, None]] = {}
        """By slot, in the order in which they came."""
        self._uncut_slots: dict[RequestId, tuple[int, ...]] = {}
        self._versions: IntArray = np.zeros(16, np.int64)
        self._version = 0
        self._turns: IntArray = np.zeros(16, np.int64)
        self._turn = 0

    def __len__(self) -> int:
        """Requests with a plan that are on the book."""
        return len(self._shares)

    def __iter__(self) -> Iterator[RequestId]:
        return iter(self._shares)

    def works(self, slot: int) -> Mapping[Key, Work]:
        """What the endpoint in this slot has to do, first come first. Read only."""
        return self._works.get(slot, {})

    def uncut(self, slot: int) -> Collection[RequestId]:
        """Requests without a plan whose prefill or decode was given to the endpoint in this slot, first come first."""
        return self._uncut.get(slot, {})

    def busy(self, slot: int) -> bool:
        """Whether anything is to be done in this slot."""
        return bool(self._works.get(slot) or self._uncut.get(slot))

    def runs(self, key: Key) -> bool:
        """Whether that micro-request is the one of its request that runs: the others have not begun."""
        return self._shares[key[0]].at == key[1]

    def versions(self, slots: IntArray) -> IntArray:
        """Another number after each change of a slot's works, or of who runs there without a plan.

        What is derived from these is good while it stays.
        """
        self._grow(int(slots.max(initial=0)) + 1)
        return self._versions.take(slots)

    def turns(self, slots: IntArray) -> IntArray:
        """When each slot was last given work, as a running number: ties go to the lowest."""
        self._grow(int(slots.max(initial=0)) + 1)
        return self._turns.take(slots)

    def open(self, request_id: RequestId, works: Sequence[tuple[int, Work]]) -> None:
        """Put a request's micro-requests on the book, in order: (slot, work). Replaces what it had there."""
        self.close(request_id)
        self._turn += 1
        self._shares[request_id] = _Share([work for _, work in works], [None] * len(works))
        for index, (slot, _) in enumerate(works):
            self._put(request_id, index, slot)
            self._turns[slot] = self._turn

    def place(self, request_id: RequestId, slots: Iterable[int]) -> None:
        """A request runs in these slots without a plan. Replaces what the book had of it."""
        self.close(request_id)
        self._uncut_slots[request_id] = tuple(slots)
        for slot in self._uncut_slots[request_id]:
            self._uncut.setdefault(slot, {})[request_id] = None
            self._changed(slot)

    def ended(self, request_id: RequestId, next_slot: int | None = None) -> None:
        """The micro-request that runs is over, and the next one runs, on `next_slot` if that is another one now."""
        share = self._shares.get(request_id)
        if share is None:
            return
        self._take(request_id, share.at)
        share.at += 1
        if share.at == len(share.slots):
            del self._shares[request_id]
        elif next_slot is not None and share.slots[share.at] != next_slot:
            self._take(request_id, share.at)
            self._put(request_id, share.at, next_slot)

    def moved(self, request_id: RequestId, slot: int) -> None:
        """The micro-request that runs goes on in this slot."""
        share = self._shares.get(request_id)
        if share is not None and share.slots[share.at] != slot:
            self._take(request_id, share.at)
            self._put(request_id, share.at, slot)

    def close(self, request_id: RequestId) -> None:
        """The request is over, or has lost its endpoints. Idempotent."""
        share = self._shares.get(request_id)
        if share is not None:
            for index in range(share.at, len(share.slots)):
                self._take(request_id, index)
            del self._shares[request_id]
        for slot in self._uncut_slots.pop(request_id, ()):
            self._uncut.get(slot, {}).pop(request_id, None)
            self._changed(slot)

    def forget(self, slot: int) -> None:
        """The slot is free for another endpoint: what was to be done there will be done elsewhere, if at all."""
        for request_id, index in list(self._works.get(slot, ())):
            self._take(request_id, index)
        self._works.pop(slot, None)
        self._uncut.pop(slot, None)
        self._changed(slot)
        self._turns[slot] = 0

    def _put(self, request_id: RequestId, index: int, slot: int) -> None:
        share = self._shares[request_id]
        share.slots[index] = slot
        self._works.setdefault(slot, {})[request_id, index] = share.works[index]
        self._changed(slot)

    def _take(self, request_id: RequestId, index: int) -> None:
        share = self._shares[request_id]
        slot = share.slots[index]
        if slot is not None:
            share.slots[index] = None
            del self._works[slot][request_id, index]
            self._changed(slot)

    def _changed(self, slot: int) -> None:
        self._grow(slot + 1)
        self._version += 1
        self._versions[slot] = self._version

    def _grow(self, slots: int) -> None:
        more = max(slots, 2 * len(self._turns)) - len(self._turns) if slots > len(self._turns) else 0
        if more:
            self._turns = np.concatenate([self._turns, np.zeros(more, np.int64)])
            self._versions = np.concatenate([self._versions, np.zeros(more, np.int64)])
