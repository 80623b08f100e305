"""Libra's execution predictor (section 4.1): virtual batches over the queues of many endpoints at once.

The work of an endpoint is a list of parts of requests. Each part has prompt tokens to compute and then tokens to
decode, one per pass. Parts are admitted first come, first served, in the order in which they are ready. A pass:

1. Parts that are ready are admitted while fewer than N_max are active and tokens of the budget are left. A part without
   prompt tokens (its KV comes from another endpoint) decodes at once.
2. Every decoding part gets one token. Prompts get the rest of the budget in order, at least one token.
3. Time advances by the pass's duration under the step-time law. A prompt that ends begins to decode in the next pass.

Prompts are computed one after another, so at most one is partly done at any time. An idle endpoint waits until the next
part is ready. KV memory and preemption are not modelled: the paper's predictor knows only the budget and N_max.

Consecutive passes without prompts and with the same decoding parts differ only in their context, in which the law is
linear. They are taken in one leap: the whole run of decodes up to the next admission is one sum over its parts. So the
number of numpy operations grows with admissions and prompt passes, but not with tokens or endpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ballast_core.arrays import BoolArray, FloatArray, IntArray

_SAME_S = 1e-9
"""Times that differ by less are equal: computed sums of steps are compared with given times."""


PassTimes: TypeAlias = Callable[[IntArray, FloatArray, FloatArray, FloatArray, FloatArray], FloatArray]
"""The step-time law of all endpoints: seconds of a pass of the endpoints with these indices, shape (n,) or (n, 1).

The other arguments broadcast against the first: all tokens computed; context of the decoding parts; the sum of
n (C + n/2) over prompts, as in `HardwareProfile.step_s`; number of decoding parts. Without prompts it is linear in the
context.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Parts of requests by endpoint, in order of arrival. Shapes: (endpoints, parts), whole numbers of tokens."""

    prefill_tokens: FloatArray
    """Prompt tokens still to compute."""
    decode_tokens: FloatArray
    """Tokens to decode after that, one per pass."""
    context_tokens: FloatArray
    """Tokens of the request that are computed already, on this or another endpoint."""
    ready_s: FloatArray
    """When it may begin, in seconds from now; inf for padding."""


@dataclass(frozen=True, slots=True, eq=False)
class Limits:
    """The limits of a pass. Shapes: (endpoints,)."""

    token_budget: FloatArray
    """Tokens per pass, 1 or more."""
    max_requests: FloatArray
    """N_max: active parts at a time, 1 or more."""


def finish_s(parts: Parts, limits: Limits, law: PassTimes, *, wanted: int | None = None) -> FloatArray:
    """When each part is done, in seconds from now; inf for padding. Shape (endpoints, parts).

    With `wanted`, only that column is valid: the simulation of an endpoint stops once its part in that column is done,
    and its unfinished parts are inf.
    """
    order = np.argsort(parts.ready_s, axis=1, kind="stable")
    column = None if wanted is None else np.argmax(order == wanted, axis=1)
    done = _Timeline(parts, order, limits, law).run(column)
    answer = np.empty_like(done)
    np.put_along_axis(answer, order, done, axis=1)
    return answer


class _Timeline:
    """All endpoints side by side, each at its own time and pass. Columns are parts in the order of admission.

    Arguments named `rows` are indices of endpoints.
    """

    def __init__(self, parts: Parts, order: IntArray, limits: Limits, law: PassTimes) -> None:
        def sort(values: FloatArray) -> FloatArray:
            return np.take_along_axis(np.asarray(values, np.float64), order, axis=1)

        self._law, self._limits = law, limits
        self._ready_s = sort(parts.ready_s)
        exists = np.isfinite(self._ready_s)
        self._count = exists.sum(axis=1)
        self._decode = np.where(exists, sort(parts.decode_tokens), 0.0)
        self._prefill = np.where(exists, sort(parts.prefill_tokens), 0.0)
        self._context = np.where(exists, sort(parts.context_tokens), 0.0)
        self._end = np.cumsum(self._prefill, axis=1)
        """Sum of prompt tokens up to the end of each prompt."""
        endpoints = len(self._count)
        self._line = np.zeros(endpoints)
        """Prompt tokens computed so far."""
        self._now_s = np.zeros(endpoints)
        self._passes = np.zeros(endpoints)
        self._joined = np.zeros(endpoints, np.int64)
        """Parts whose prompt is computed: always the first ones."""
        self._done = np.zeros(endpoints, np.int64)
        """Parts that are done."""
        self._until = np.full(self._end.shape, np.inf)
        """The pass after which a decoding part is done; inf for all others."""
        self._base = np.zeros(self._end.shape)
        """Context of a decoding part less the passes so far, a constant while it decodes."""
        self._finish_s = np.full(self._end.shape, np.inf)

    def run(self, wanted: IntArray | None) -> FloatArray:
        """Simulate until everything is done, or until each endpoint's part in the column `wanted` is."""
        rows = np.arange(len(self._count))
        while len(rows := rows[self._open(rows, wanted)]):
            self._advance(rows)
        return self._finish_s

    def _advance(self, rows: IntArray) -> None:
        """Each endpoint's next pass with prompts, or its decodes up to the next admission, or its wait for work."""
        head_is_computed = self._head_is_computed(rows)
        if head_is_computed.any():
            self._join(rows[head_is_computed])
            # A part without any work is done at once; the next part joins in the next round of the loop.
            settled = ~(self._head_is_computed(rows) & (self._admissible(rows) > self._joined[rows]))
            rows = rows[settled]
        waiting = self._admissible(rows) > self._joined[rows]
        decoding = self._joined[rows] > self._done[rows]
        if waiting.any():
            self._mixed_pass(rows[waiting])
        if (decoding & ~waiting).any():
            self._decode_on(rows[decoding & ~waiting])
        idle = rows[~decoding & ~waiting]
        idle = idle[self._joined[idle] < self._count[idle]]
        self._now_s[idle] = np.maximum(self._now_s[idle], self._ready_s[idle, self._joined[idle]])

    def _head_is_computed(self, rows: IntArray) -> BoolArray:
        """Whether the next part to join has no prompt tokens left to compute."""
        head = np.minimum(self._joined[rows], self._end.shape[1] - 1)
        computed = self._end[rows, head] <= self._line[rows]
        return np.asarray((self._joined[rows] < self._count[rows]) & computed, np.bool_)

    def _open(self, rows: IntArray, wanted: IntArray | None) -> BoolArray:
        work_left = np.asarray(self._done[rows] < self._count[rows], np.bool_)
        return work_left if wanted is None else work_left & np.isinf(self._finish_s[rows, wanted[rows]])

    def _admissible(self, rows: IntArray) -> IntArray:
        """How many parts may have begun by now: those that are ready, N_max active ones at most."""
        ready = (self._ready_s[rows] <= self._now_s[rows, None] + _SAME_S).sum(axis=1)
        free = np.maximum(self._limits.max_requests[rows] - (self._joined[rows] - self._done[rows]), 0.0)
        return np.asarray(np.minimum(ready, self._joined[rows] + free.astype(np.int64)), np.int64)

    def _join(self, rows: IntArray) -> None:
        """The next parts whose prompt is computed, or has nothing to compute, begin to decode."""
        computed = (self._end[rows] <= self._line[rows, None]).sum(axis=1)
        self._join_up_to(rows, np.minimum(self._admissible(rows), computed))

    def _join_up_to(self, rows: IntArray, joined: IntArray) -> None:
        if not (joined > self._joined[rows]).any():
            return
        columns = np.arange(self._end.shape[1])
        row, column = np.nonzero((columns >= self._joined[rows, None]) & (columns < joined[:, None]))
        cells = rows[row], column
        self._until[cells] = self._passes[cells[0]] + self._decode[cells]
        self._base[cells] = self._context[cells] + self._prefill[cells] - self._passes[cells[0]]
        self._joined[rows] = np.maximum(self._joined[rows], joined)
        if (self._decode[cells] == 0).any():
            self._retire(rows)

    def _retire(self, rows: IntArray) -> None:
        """Decoding parts that have had all their passes are done now."""
        row, column = np.nonzero(self._until[rows] <= self._passes[rows, None])
        self._end_parts((rows[row], column), self._now_s[rows[row]])

    def _end_parts(self, cells: tuple[IntArray, IntArray], finish_s: FloatArray) -> None:
        self._finish_s[cells] = finish_s
        self._until[cells] = np.inf
        self._done += np.bincount(cells[0], minlength=len(self._done))

    def _load(self, rows: IntArray) -> tuple[FloatArray, FloatArray]:
        """Number of decoding parts, and their context in the next pass."""
        decoding = np.isfinite(self._until[rows])
        count = decoding.sum(axis=1).astype(np.float64)
        return count, np.where(decoding, self._base[rows], 0.0).sum(axis=1) + count * self._passes[rows]

    def _mixed_pass(self, rows: IntArray) -> None:
        """One pass with prompts in it."""
        decodes, context = self._load(rows)
        last = self._admissible(rows)
        left = np.maximum(self._limits.token_budget[rows] - decodes, 1.0)
        before = self._line[rows]
        after = np.minimum(self._end[rows, last - 1], before + left)
        start = self._end[rows] - self._prefill[rows]
        begun = np.clip(before[:, None], start, self._end[rows])
        chunk = np.clip(after[:, None], start, self._end[rows]) - begun
        pairs = (chunk * (self._context[rows] + begun - start + chunk / 2)).sum(axis=1)
        self._now_s[rows] += self._law(rows, decodes + after - before, context, pairs, decodes)
        self._passes[rows] += 1.0
        self._line[rows] = after
        self._retire(rows)
        self._join_up_to(rows, np.minimum(last, (self._end[rows] <= after[:, None]).sum(axis=1)))

    def _decode_on(self, rows: IntArray) -> None:
        """Passes of decodes alone, until a part can be admitted, or to the end."""
        order = np.argsort(self._until[rows], axis=1)
        until = np.take_along_axis(self._until[rows], order, axis=1)
        alive = np.isfinite(until)
        until = np.where(alive, until, 0.0)
        base = np.where(alive, np.take_along_axis(self._base[rows], order, axis=1), 0.0)
        # Piece q: the passes from the end of the (q-1)th part to end to that of the qth, with all later ones.
        first = np.hstack([self._passes[rows, None], until[:, :-1]])
        passes = np.where(alive, until - first, 0.0)
        decodes = np.where(alive, alive.sum(axis=1)[:, None] - np.arange(until.shape[1]), 1.0)
        context = np.cumsum(base[:, ::-1], axis=1)[:, ::-1] + decodes * first
        zero = np.zeros_like(decodes)
        step_s = self._law(rows[:, None], decodes, context, zero, decodes)
        growth_s = self._law(rows[:, None], decodes, context + decodes, zero, decodes) - step_s
        lasts_s = np.where(alive, passes * step_s + growth_s * passes * (passes - 1.0) / 2.0, 0.0)
        ends_s = self._now_s[rows, None] + np.cumsum(lasts_s, axis=1)
        stop_s, stop_piece = self._stops(rows, ends_s, until, alive)
        row = np.arange(len(rows))
        began_s = ends_s[row, stop_piece] - lasts_s[row, stop_piece]
        taken = _passes_until(
            stop_s - began_s, step_s[row, stop_piece], growth_s[row, stop_piece], passes[row, stop_piece]
        )
        self._passes[rows] = first[row, stop_piece] + taken
        self._now_s[rows] = (
            began_s + taken * step_s[row, stop_piece] + growth_s[row, stop_piece] * taken * (taken - 1) / 2
        )
        over = alive & (until <= self._passes[rows, None])
        row, column = np.nonzero(over)
        self._end_parts((rows[row], order[row, column]), ends_s[row, column])

    def _stops(
        self, rows: IntArray, ends_s: FloatArray, until: FloatArray, alive: BoolArray
    ) -> tuple[FloatArray, IntArray]:
        """When the next part can be admitted (inf: never), and the piece in which that is, or else the last one."""
        some_left = self._joined[rows] < self._count[rows]
        head = np.minimum(self._joined[rows], self._ready_s.shape[1] - 1)
        head_s = np.where(some_left, self._ready_s[rows, head], np.inf)
        # A part that is ready already waits for N_max: it is admitted when the next part ends.
        stop_s = np.where(head_s <= self._now_s[rows] + _SAME_S, ends_s[:, 0], head_s)
        last = alive.sum(axis=1) - 1
        reached = (ends_s < stop_s[:, None] - _SAME_S).sum(axis=1)
        return stop_s, np.minimum(reached, last)


def _passes_until(gap_s: FloatArray, step_s: FloatArray, growth_s: FloatArray, most: FloatArray) -> FloatArray:
    """The fewest passes n, up to `most`, that last at least `gap_s`: n step + growth n (n - 1) / 2 >= gap."""
    half = growth_s / 2.0
    slope = step_s - half
    gap = np.clip(gap_s, 0.0, 1e12)
    # The positive root in the form that stays exact when the growth is small.
    guess = 2.0 * gap / (slope + np.sqrt(slope * slope + 4.0 * half * gap))
    fewest = np.maximum(np.ceil(guess - 0.5) - 1.0, 0.0)
    for _ in range(3):
        fewest += fewest * step_s + growth_s * fewest * (fewest - 1.0) / 2.0 < gap - _SAME_S
    return np.minimum(fewest, most)
