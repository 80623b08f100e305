"""What each endpoint has still to do, as timelines that are kept while they are good."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ballast_core.arrays import FloatArray
from ballast_core.policies.partition.timeline import Pace, Part, Timeline
from ballast_core.policies.remaining_lengths import Hinted
from ballast_core.state.book import Book
from ballast_core.state.flights import NO_LIMIT
from ballast_core.state.ledger import Phase
from ballast_core.state.view import View

_STALE_S = 1.0
"""An older timeline is made anew, from the tokens that were reported since."""
_FRESHENED = 2
"""Timelines that are made anew for their age alone in one decision, at most."""


@dataclass(slots=True)
class _Kept:
    timeline: Timeline
    version: int
    made_at_s: float


class Forecast:
    """Timelines by slot. A change of the book makes those of its slots anew when they are next asked for.

    Between changes an endpoint is taken to go on as predicted; the ones that a request may go to are always made anew,
    so a decision sees all reported tokens where it matters. Good for one setting of `max_requests`.
    """

    def __init__(self) -> None:
        self._kept: dict[int, _Kept] = {}
        self._done_at_s: FloatArray = np.zeros(16)

    def remaining_s(self, view: View, book: Book, max_requests: int) -> FloatArray:
        """Seconds until each endpoint of the view has done all that it has now. Shape (endpoints,)."""
        most = int(view.slots.max(initial=0)) + 1
        if most > len(self._done_at_s):
            more = max(most, 2 * len(self._done_at_s)) - len(self._done_at_s)
            self._done_at_s = np.concatenate([self._done_at_s, np.zeros(more)])
        aged: list[tuple[float, int]] = []
        for at, (slot, version) in enumerate(zip(view.slots.tolist(), book.versions(view.slots).tolist(), strict=True)):
            kept = self._kept.get(slot)
            if kept is None or kept.version != version:
                self._make(view, book, at, max_requests)
            elif view.now_s - kept.made_at_s > _STALE_S and book.busy(slot):
                aged.append((kept.made_at_s, at))
        for _, at in sorted(aged)[:_FRESHENED]:
            self._make(view, book, at, max_requests)
        return np.maximum(self._done_at_s.take(view.slots) - view.now_s, 0.0)

    def timeline(self, view: View, book: Book, at: int, max_requests: int) -> Timeline:
        """That of the endpoint at this place of the view, as of now."""
        slot = int(view.slots[at])
        kept = self._kept.get(slot)
        if (
            kept is None
            or kept.made_at_s != view.now_s
            or kept.version != int(book.versions(view.slots[at : at + 1])[0])
        ):
            return self._make(view, book, at, max_requests)
        return kept.timeline

    def _make(self, view: View, book: Book, at: int, max_requests: int) -> Timeline:
        slot = int(view.slots[at])
        timeline = Timeline(outstanding(view, book, at), pace(view, at, max_requests))
        self._kept[slot] = _Kept(timeline, int(book.versions(view.slots[at : at + 1])[0]), view.now_s)
        self._done_at_s[slot] = view.now_s + timeline.end_s
        return timeline


def pace(view: View, at: int, max_requests: int) -> Pace:
    """Decodes as recalibrated by gaps between tokens, prompts by completed prefills; requests of others stay."""
    beliefs, slot = view.beliefs, int(view.slots[at])
    model = beliefs.step_times.model(slot)
    others = int(view.foreign_requests[at])
    ours = max(int(view.requests[at]) - others, 1)
    return Pace(
        decoding=model.profile,
        prefilling=model.base,
        prefill_factor=beliefs.prefill_times.factor(slot),
        max_requests=max_requests,
        others=others,
        others_tokens=others * float(view.tokens[at]) / ours,
    )


def outstanding(view: View, book: Book, at: int) -> list[Part]:
    """What an endpoint has to do by the book, less what the ledger knows to be done; what decodes comes first.

    Requests without a plan are expected to go on as their hints or survival curves say.
    """
    slot, entries = int(view.slots[at]), view.entries
    decoding, waiting = list[Part](), list[Part]()
    for key, work in book.works(slot).items():
        entry = entries.get(key[0])
        if entry is None or not book.runs(key) or entry.phase is not Phase.DECODING:
            waiting.append(Part(work.prefill_tokens, work.decode_tokens, work.context_tokens))
        elif work.decode_tokens:
            done = max(entry.generated_tokens - work.generated_tokens, 0)
            left = max(work.decode_tokens - done, 1)
            decoding.append(Part(0, left, work.context_tokens + work.prefill_tokens + done))
    for part, decodes in _uncut(view, book, slot):
        (decoding if decodes else waiting).append(part)
    return decoding + _in_service(view, at, waiting)


def _uncut(view: View, book: Book, slot: int) -> Iterator[tuple[Part, bool]]:
    """What is to be done in this slot for requests without a plan, and whether they decode there already."""
    known = (view.entries.get(request_id) for request_id in book.uncut(slot))
    entries = [entry for entry in known if entry is not None and slot in (entry.prefill_slot, entry.decode_slot)]
    if not entries:
        return
    rows = np.array([entry.row for entry in entries], np.int64)
    tables = view.beliefs.lengths.tables(view.now_s)
    remaining = np.ceil(np.clip(Hinted().remaining_tokens(view.flights, rows, tables), 1, NO_LIMIT))
    for entry, left in zip(entries, remaining.tolist(), strict=True):
        prompt, cached = entry.prefill.tokens, entry.prefill.cached_tokens
        if entry.prefill_slot == slot:
            yield Part(prompt - cached, 0, cached), False
        elif entry.phase is Phase.DECODING:
            yield Part(0, int(left), entry.request.prompt_tokens + entry.generated_tokens), True
        elif entry.prefill_slot is None:
            yield Part(prompt - cached, int(left), cached), False
        else:  # comes when it is prefilled elsewhere
            yield Part(0, int(left), prompt), False


def _in_service(view: View, at: int, waiting: list[Part]) -> list[Part]:
    """Without what the first prompt, which is in service, has computed by now, at the endpoint's rate."""
    elapsed_s = float(view.prefill_elapsed_s[at])
    if elapsed_s <= 0:
        return waiting
    rate = float(view.beliefs.prefill_times.tokens_per_s(view.slots[at : at + 1])[0])
    for index, (prefill, decode, context) in enumerate(waiting):
        if prefill:
            done = int(min(elapsed_s * rate, prefill))
            waiting[index] = Part(prefill - done, decode, context + done)
            break
    return waiting
