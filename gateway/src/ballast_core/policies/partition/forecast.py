"""The remaining work of each endpoint, as timelines that are kept while they are valid."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ballast_core.arrays import FloatArray
from ballast_core.policies.partition.timeline import Pace, Part, Timeline
from ballast_core.policies.remaining_lengths import Hinted
from ballast_core.state.book import Book
from ballast_core.state.flights import NO_LIMIT
from ballast_core.state.ledger import Phase
from ballast_core.state.view import View

_STALE_S = 1.0
"""An older timeline is rebuilt, from the tokens that were reported since."""
_FRESHENED = 2
"""At most this many timelines are rebuilt in one decision for their age alone."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How virtual batches are made."""

    max_requests: int = 256
    """N_max."""
    batches: Literal["profile", "recent"] = "profile"
    """Prompts in passes of the profile's token budget, or as in the endpoint's recent passes."""
    kv_memory: bool = False
    """Whether parts wait for KV memory."""


@dataclass(slots=True)
class _Kept:
    timeline: Timeline
    version: int
    made_at_s: float


class Forecast:
    """Timelines by slot. After a change of a slot's work, its timeline is rebuilt on the next read.

    Between changes an endpoint is assumed to progress as predicted. The timelines of the endpoints that a request may
    go to are always rebuilt, so a decision sees all reported tokens where it matters. One forecast serves one set of
    rules.
    """

    def __init__(self) -> None:
        self._kept: dict[int, _Kept] = {}
        self._done_at_s: FloatArray = np.zeros(16)

    def remaining_s(self, view: View, book: Book, rules: Rules) -> FloatArray:
        """Seconds until each endpoint of the view has finished its present work. Shape (endpoints,)."""
        most = int(view.slots.max(initial=0)) + 1
        if most > len(self._done_at_s):
            more = max(most, 2 * len(self._done_at_s)) - len(self._done_at_s)
            self._done_at_s = np.concatenate([self._done_at_s, np.zeros(more)])
        aged: list[tuple[float, int]] = []
        for index, (slot, version) in enumerate(
            zip(view.slots.tolist(), book.versions(view.slots).tolist(), strict=True)
        ):
            kept = self._kept.get(slot)
            if kept is None or kept.version != version:
                self._make(view, book, index, rules)
            elif view.now_s - kept.made_at_s > _STALE_S and book.busy(slot):
                aged.append((kept.made_at_s, index))
        for _, index in sorted(aged)[:_FRESHENED]:
            self._make(view, book, index, rules)
        return np.maximum(self._done_at_s.take(view.slots) - view.now_s, 0.0)

    def timeline(self, view: View, book: Book, index: int, rules: Rules) -> Timeline:
        """The timeline of the endpoint with this index in the view, as of now."""
        slot = int(view.slots[index])
        kept = self._kept.get(slot)
        if (
            kept is None
            or kept.made_at_s != view.now_s
            or kept.version != int(book.versions(view.slots[index : index + 1])[0])
        ):
            return self._make(view, book, index, rules)
        return kept.timeline

    def _make(self, view: View, book: Book, index: int, rules: Rules) -> Timeline:
        slot = int(view.slots[index])
        timeline = Timeline(outstanding(view, book, index), pace(view, index, rules))
        self._kept[slot] = _Kept(timeline, int(book.versions(view.slots[index : index + 1])[0]), view.now_s)
        self._done_at_s[slot] = view.now_s + timeline.end_s
        return timeline


def pace(view: View, index: int, rules: Rules) -> Pace:
    """The pace of an endpoint: decodes as recalibrated from gaps between tokens, prompts from completed prefills.

    With recent batches, passes with prompts are as the endpoint's were, once enough of them were seen.
    """
    beliefs, slot = view.beliefs, int(view.slots[index])
    model = beliefs.step_times.model(slot)
    others = int(view.foreign_requests[index])
    ours = max(int(view.requests[index]) - others, 1)
    recent = beliefs.batches.composition(slot, model.base) if rules.batches == "recent" else None
    return Pace(
        decoding=model.profile,
        prefilling=model.base,
        prefill_factor=beliefs.prefill_times.factor(slot) if recent is None else recent.factor,
        prompt_tokens=math.inf if recent is None else float(recent.prompt_tokens),
        kv_tokens=float(model.base.kv_tokens) if rules.kv_memory else math.inf,
        max_requests=rules.max_requests,
        others=others,
        others_tokens=others * float(view.tokens[index]) / ours,
    )


def outstanding(view: View, book: Book, index: int) -> list[Part]:
    """The work booked for an endpoint less the progress in the ledger; decoding parts come first.

    The remaining output of requests without a plan comes from their hints or survival curves.
    """
    slot, entries = int(view.slots[index]), view.entries
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
    return decoding + _in_service(view, index, waiting)


def _uncut(view: View, book: Book, slot: int) -> Iterator[tuple[Part, bool]]:
    """The work in this slot of requests without a plan, and whether each decodes there already."""
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
        else:  # it is prefilled on another endpoint and decodes here afterwards
            yield Part(0, int(left), prompt), False


def _in_service(view: View, index: int, waiting: list[Part]) -> list[Part]:
    """The waiting parts without the tokens that the first prompt, which is in service, has computed by now."""
    elapsed_s = float(view.prefill_elapsed_s[index])
    if elapsed_s <= 0:
        return waiting
    rate = float(view.beliefs.prefill_times.tokens_per_s(view.slots[index : index + 1])[0])
    for number, (prefill, decode, context) in enumerate(waiting):
        if prefill:
            done = int(min(elapsed_s * rate, prefill))
            waiting[number] = Part(prefill - done, decode, context + done)
            break
    return waiting
