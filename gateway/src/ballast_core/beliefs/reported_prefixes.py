"""The exact prefix index: which endpoint holds which blocks now, by the engines' own reports (KV events).

Engines name blocks by hashes that depend on their version and settings, by default on Python's pickle. A report also
carries the tokens, and from these come our names, chained in the same way: parent, tokens, extra keys. So a prompt
whose tokens are known is found whatever hash an engine uses. Our names never leave the process: they are Python's own
hashes, a fraction of a digest's cost, and nobody outside can make two collide.

An endpoint has one cache for each data-parallel rank, and each is one bit in the sets of holders. What an endpoint
holds of a prompt is what its best rank does.

A block that is routed to an endpoint counts at once, until it is reported or overdue: a second request finds the first
one's prefix while it waits for its turn.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import numpy as np

from ballast_core.arrays import BoolArray, IntArray
from ballast_core.beliefs.bit_sets import set_bits
from ballast_core.model.endpoints import EndpointId
from ballast_core.model.kv_reports import (
    BlockName,
    BlocksRemoved,
    BlocksStored,
    CacheCleared,
    ExtraKeys,
    HistoryTold,
    KvReport,
)
from ballast_core.model.prompt_tokens import TOKEN_BYTES, PromptTokens

CONFIRM_S = 30.0
"""Seconds for which a routed block counts without a report."""
MOST_ADAPTERS = 1024
"""Adapters that are told from the base model by reports alone; blocks of further ones are found where their endpoints
say that they serve them."""
READING = "its history is being read"
"""The problem of a rank that becomes complete when its history has been told (`HistoryTold`)."""
_ROOT = 0
_AHEAD = 32
"""Blocks of a prompt that are named at a time, while it matches."""


@dataclass(frozen=True, slots=True)
class ReportedCache:
    """What is known of an endpoint's cache; of all its ranks together."""

    complete: bool
    """Whether the reports tell all that it holds. If not, some were missed; what they tell is true."""
    blocks: int
    block_size: int
    """0 until a block was reported."""
    refused: int
    """Reports that could not be used since they began: of a block after an unknown one or less than whole, too many."""
    problem: str = ""
    """Why it is not complete."""


@dataclass(slots=True, eq=False)
class _Cache:
    """The reported blocks of one rank of an endpoint."""

    lane: int
    most_blocks: int
    complete: bool
    problem: str
    block_size: int = 0
    ours: dict[BlockName, int] = field(default_factory=dict)
    """The engine's name of a block -> ours."""
    copies: dict[BlockName, int] = field(default_factory=dict)
    """Further copies of a block: engines compute one twice if two requests need it at the same time."""
    expected: dict[int, float] = field(default_factory=dict)
    """Blocks that were routed there and are not reported, with the time until which they count."""
    refused: int = 0
    overrun: bool = False
    """It reported more than it may, and is not listened to until its reports begin anew."""


class ReportedPrefixes:
    """The holders of each reported block."""

    def __init__(self, *, confirm_s: float = CONFIRM_S) -> None:
        self.confirm_s = confirm_s
        self._caches: dict[EndpointId, dict[int, _Cache]] = {}
        """By endpoint and rank."""
        self._holders: dict[int, int] = {}
        """Our name of a block -> the lanes that hold it or are expected to."""
        self._sizes: dict[int, int] = {}
        """Block size -> the lanes that have it."""
        self._adapters: set[str] = set()
        """Those of reported blocks."""
        self._served_adapters: Collection[str] = ()
        self._slots: dict[int, EndpointId] = {}
        self._free: list[int] = []
        self._lanes = 0
        self._due_s = math.inf
        """No block that was routed is overdue before."""
        self._table: tuple[IntArray, BoolArray] | None = None
        """By slot: the lanes of its ranks (-1: none), and whether what they report is complete."""
        self._asked: PromptTokens | None = None
        self._answer: IntArray | None = None

    def __bool__(self) -> bool:
        """Whether any endpoint reports."""
        return bool(self._caches)

    def __len__(self) -> int:
        """Number of different blocks held or expected anywhere."""
        return len(self._holders)

    # --- where endpoints are -----------------------------------------------------------------------------------------

    def place(self, slot: int, endpoint_id: EndpointId) -> None:
        """The endpoint has this slot. What it reports is kept whether it has one or not."""
        if self._slots.get(slot) != endpoint_id:
            self._slots[slot] = endpoint_id
            self._table = None

    def vacate(self, slot: int) -> None:
        """The slot is free for another endpoint."""
        if self._slots.pop(slot, None) is not None:
            self._table = None

    def serve(self, adapters: Collection[str]) -> None:
        """These names are adapters: their prompts find no block of the base model, even before they have any."""
        if adapters != self._served_adapters:
            self._served_adapters, self._answer = adapters, None

    # --- what endpoints report ---------------------------------------------------------------------------------------

    def begin(self, endpoint_id: EndpointId, rank: int, most_blocks: int, problem: str = "") -> None:
        """Reports of a rank begin, or begin anew: what was known of it is forgotten.

        `problem`: why they do not tell all that it holds; empty if its cache was empty before the first one. Of more
        than `most_blocks` blocks nothing is believed: no cache is so large.
        """
        ranks = self._caches.setdefault(endpoint_id, {})
        cache = ranks.get(rank)
        if cache is None:
            lane = self._free.pop() if self._free else self._lanes
            self._lanes = max(self._lanes, lane + 1)
            ranks[rank] = _Cache(lane, most_blocks, not problem, problem)
        else:
            self._empty(cache)
            ranks[rank] = _Cache(cache.lane, most_blocks, not problem, problem)
        self._changed_lanes()

    def end(self, endpoint_id: EndpointId) -> None:
        """The endpoint reports no more: nothing is known of it."""
        for cache in self._caches.pop(endpoint_id, {}).values():
            self._empty(cache)
            self._free.append(cache.lane)
        self._changed_lanes()

    def report(self, endpoint_id: EndpointId, rank: int, report: KvReport, now_s: float) -> None:
        """One KV event. Those of ranks whose reports have not begun are ignored; nothing is raised."""
        cache = self._caches.get(endpoint_id, {}).get(rank)
        if cache is None or cache.overrun:
            return
        self._answer = None
        match report:
            case BlocksStored():
                self._stored(cache, report, now_s)
            case BlocksRemoved():
                self._removed(cache, report)
            case CacheCleared():
                self._empty(cache)
                if cache.problem != READING:  # of a history, what came after it is still to be told
                    self._complete(cache)
            case HistoryTold():
                if cache.problem == READING:
                    self._complete(cache)

    def _stored(self, cache: _Cache, report: BlocksStored, now_s: float) -> None:
        if cache.block_size != report.block_size and not self._adopt(cache, report.block_size):
            cache.refused += 1
            return
        blocks = len(report.names)
        if len(report.ids) != blocks * report.block_size * TOKEN_BYTES or len(report.extras) not in (0, blocks):
            cache.refused += 1
            return
        parent = _ROOT if report.parent is None else cache.ours.get(report.parent)
        if parent is None:
            cache.refused += 1
            self._missed(cache, "it reported a block after one that it had not reported")
            return
        if report.adapter and len(self._adapters) < MOST_ADAPTERS:
            self._adapters.add(report.adapter)
        if cache.expected:
            self._expire(cache, now_s)
        bit, holders, ours = 1 << cache.lane, self._holders, cache.ours
        chain = _chain(report.ids, report.block_size * TOKEN_BYTES, parent, report.extras)
        for name, our in zip(report.names, chain, strict=True):
            if name in ours:
                cache.copies[name] = cache.copies.get(name, 0) + 1
                continue
            ours[name] = our
            holders[our] = holders.get(our, 0) | bit
            cache.expected.pop(our, None)
        if len(ours) > cache.most_blocks:
            self._empty(cache)
            cache.overrun = True
            cache.refused += 1
            self._missed(cache, f"it reported more than {cache.most_blocks} blocks")

    def _adopt(self, cache: _Cache, block_size: int) -> bool:
        """The largest blocks of a rank are its whole ones. Engines may report ends of prompts as smaller blocks, even
        before the first whole one; nothing is made of these."""
        if block_size <= cache.block_size:
            return False
        self._empty(cache)
        cache.block_size = block_size
        self._sizes[block_size] = self._sizes.get(block_size, 0) | 1 << cache.lane
        return True

    def _removed(self, cache: _Cache, report: BlocksRemoved) -> None:
        for name in report.names:
            copies = cache.copies.get(name)
            if copies is None:
                our = cache.ours.pop(name, None)
                if our is not None:
                    cache.expected.pop(our, None)
                    self._release(our, 1 << cache.lane)
            elif copies > 1:
                cache.copies[name] = copies - 1
            else:
                del cache.copies[name]

    def _missed(self, cache: _Cache, problem: str) -> None:
        cache.complete, cache.problem = False, problem
        self._table = None

    def _complete(self, cache: _Cache) -> None:
        cache.complete, cache.problem = True, ""
        self._table = None

    def _empty(self, cache: _Cache) -> None:
        bit = 1 << cache.lane
        for our in cache.ours.values():
            self._release(our, bit)
        for our in cache.expected:
            self._release(our, bit)
        cache.ours.clear()
        cache.copies.clear()
        cache.expected.clear()
        if cache.block_size:
            left = self._sizes[cache.block_size] & ~bit
            if left:
                self._sizes[cache.block_size] = left
            else:
                del self._sizes[cache.block_size]
            cache.block_size = 0
        self._answer = None

    def _release(self, our: int, bit: int) -> None:
        left = self._holders.get(our, 0) & ~bit
        if left:
            self._holders[our] = left
        else:
            self._holders.pop(our, None)

    def _changed_lanes(self) -> None:
        self._table = self._answer = None

    # --- what we do --------------------------------------------------------------------------------------------------

    def record(self, slot: int, prompt: PromptTokens, now_s: float) -> None:
        """The prompt was routed there, and its blocks will be reported. Nothing is expected of several ranks: nobody
        knows which one will compute it."""
        ranks = self._caches.get(self._slots[slot], {}) if slot in self._slots else {}
        if len(ranks) != 1:
            return
        (cache,) = ranks.values()
        if cache.overrun or not cache.block_size:
            return
        self._expire(cache, now_s)
        bit, holders, until_s = 1 << cache.lane, self._holders, now_s + self.confirm_s
        expected = cache.expected
        self._due_s = min(self._due_s, until_s)
        for our in self._names(prompt, cache.block_size, len(prompt) // cache.block_size):
            held = holders.get(our, 0)
            if not held & bit:
                holders[our] = held | bit
                expected[our] = until_s
            elif our in expected:
                del expected[our]  # to the end: they are in order of time
                expected[our] = until_s
        for our in list(expected)[: max(len(expected) - cache.most_blocks, 0)]:
            del expected[our]
            self._release(our, bit)
        self._answer = None

    def forget_overdue(self, now_s: float) -> None:
        """Drop what was routed anywhere and whose report is overdue. Call it now and then."""
        if now_s < self._due_s:
            return
        caches = [cache for ranks in self._caches.values() for cache in ranks.values() if cache.expected]
        for cache in caches:
            self._expire(cache, now_s)
        self._due_s = min((next(iter(each.expected.values())) for each in caches if each.expected), default=math.inf)
        self._answer = None

    def _expire(self, cache: _Cache, now_s: float) -> None:
        """Drop what was routed and whose report is overdue."""
        gone = []
        for our, until_s in cache.expected.items():
            if until_s > now_s:
                break
            gone.append(our)
        for our in gone:
            del cache.expected[our]
            self._release(our, 1 << cache.lane)

    # --- what is known -----------------------------------------------------------------------------------------------

    def match(self, prompt: PromptTokens, slots: IntArray) -> tuple[IntArray, BoolArray]:
        """Leading tokens that the endpoints in these slots hold, and whether that is all they hold.

        As engines count: whole blocks, and the last token is always left to compute.
        """
        if self._answer is None or prompt is not self._asked:
            self._asked, self._answer = prompt, self._match(prompt)
        lanes, complete = self._lanes_of(slots)
        if lanes.shape[1] == 1:
            return self._answer[lanes[:, 0]], complete
        return self._answer[lanes].max(axis=1), complete

    def _match(self, prompt: PromptTokens) -> IntArray:
        """By lane; the last entry stands for none."""
        tokens: IntArray = np.zeros(self._lanes + 1, np.int64)
        holders = self._holders
        for size, having in self._sizes.items():
            limit = (len(prompt) - 1) // size
            alive, depth = having, 0
            names = self._names(prompt, size, min(limit, _AHEAD))
            while alive and depth < limit:
                if depth == len(names):
                    names = self._names(prompt, size, min(limit, 2 * depth))
                still = alive & holders.get(names[depth], 0)
                if still != alive:
                    set_bits(tokens, alive ^ still, depth * size)
                    alive = still
                depth += 1
            if alive:
                set_bits(tokens, alive, depth * size)
        return tokens

    def _names(self, prompt: PromptTokens, size: int, count: int) -> list[int]:
        """At least the first `count` names of its whole blocks; kept with it, as each stage asks again."""
        model = prompt.model
        adapter = model if model in self._adapters or model in self._served_adapters else ""
        names = prompt.chains.setdefault((size, adapter), [])
        missing = count - len(names)
        if missing > 0:
            step, begun = size * TOKEN_BYTES, len(names)
            always = (adapter,) if adapter else ()
            first = (*always, prompt.cache_salt) if prompt.cache_salt else always
            extras: tuple[ExtraKeys, ...] = ()
            if first:
                extras = (*((first or None,) if not begun else ()), *((always or None,) * missing))[:missing]
            ids = prompt.ids[begun * step : count * step]
            names += _chain(ids, step, names[-1] if names else _ROOT, extras)
        return names

    def _lanes_of(self, slots: IntArray) -> tuple[IntArray, BoolArray]:
        if self._table is None:
            self._table = self._tabulated()
        lanes, complete = self._table
        rows = np.minimum(slots, len(lanes) - 1)
        return lanes[rows], complete[rows]

    def _tabulated(self) -> tuple[IntArray, BoolArray]:
        slots = max(self._slots, default=-1) + 2  # the last row stands for all slots beyond
        ranks = max((len(self._caches.get(each, ())) for each in self._slots.values()), default=0)
        lanes: IntArray = np.full((slots, max(ranks, 1)), -1, np.int64)
        complete = np.zeros(slots, np.bool_)
        for slot, endpoint_id in self._slots.items():
            caches = self._caches.get(endpoint_id, {}).values()
            for column, cache in enumerate(caches):
                lanes[slot, column] = cache.lane
            complete[slot] = bool(caches) and all(cache.complete for cache in caches)
        return lanes, complete

    def known(self, endpoint_id: EndpointId) -> ReportedCache | None:
        """What is known of an endpoint's cache; None if it does not report."""
        caches = self._caches.get(endpoint_id, {}).values()
        if not caches:
            return None
        return ReportedCache(
            complete=all(cache.complete for cache in caches),
            blocks=sum(len(cache.ours) for cache in caches),
            block_size=max(cache.block_size for cache in caches),
            refused=sum(cache.refused for cache in caches),
            problem=next((cache.problem for cache in caches if cache.problem), ""),
        )


def _chain(ids: bytes, step: int, parent: int, extras: tuple[ExtraKeys, ...]) -> Iterator[int]:
    """Our names of whole blocks of `step` bytes that follow `parent`."""
    name = parent
    if not any(extras):
        for start in range(0, len(ids) - step + 1, step):
            name = hash((name, ids[start : start + step]))
            yield name
        return
    for extra, start in zip(extras, range(0, len(ids) - step + 1, step), strict=True):
        block = ids[start : start + step]
        name = hash((name, block, extra)) if extra else hash((name, block))
        yield name
