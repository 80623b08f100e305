"""Libra's execution predictor (section 4.1): virtual batches over the queues of many endpoints at once.

What an endpoint has to do is a list of parts of requests, each so many prompt tokens to compute and then so many
tokens to decode, one a pass. They are admitted first come, first served, in the order in which they are ready. A pass:

1. parts that are ready are admitted while fewer than N_max are active and tokens of the budget are left; what has no
   prompt tokens (its KV comes from elsewhere) decodes at once;
2. every active part that decodes gets one token; prompts get what the budget leaves, one token at least, in order;
3. time advances by the pass's duration under the step-time law; a prompt that ends begins to decode in the next pass.

A prompt that is behind another one waits for it, so one prompt at most is half done at any time. An endpoint with
nothing to do waits for the next part to be ready. KV memory and preemption are not modelled: the paper's predictor
knows the budget and N_max only.

Passes without prompts and without a change of who decodes differ by their context alone, in which the law is linear:
they are taken in one leap, the whole run of decodes up to the next admission as one sum over its parts. So the number
of numpy operations grows with admissions and prompt passes and neither with tokens nor with endpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ballast_core.arrays import BoolArray, FloatArray, IntArray

_SAME_S = 1e-9
"""Times that differ by less are the same: sums of steps against moments that were given."""


PassTimes: TypeAlias = Callable[[IntArray, FloatArray, FloatArray, FloatArray, FloatArray], FloatArray]
"""The step-time law of all endpoints: seconds of a pass of the endpoints `at`, shape (n,) or (n, 1).

The other arguments broadcast against it: all tokens computed; those that decoding parts have computed before; the sum
of n (C + n/2) over prompts, as in `HardwareProfile.step_s`; parts that decode. Without prompts linear in the second.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Parts of requests by endpoint, in order of arrival. Shapes: (endpoints, parts), whole numbers of tokens."""

    prefill_tokens: FloatArray
    """Prompt tokens still to compute."""
    decode_tokens: FloatArray
    """Tokens to decode after that, one a pass."""
    context_tokens: FloatArray
    """Tokens of the request that are computed already, here or elsewhere."""
    ready_s: FloatArray
    """When it may begin, seconds from now; inf where the row has no such part."""


@dataclass(frozen=True, slots=True, eq=False)
class Limits:
    """What a pass may hold. Shapes: (endpoints,)."""

    token_budget: FloatArray
    """Tokens, 1 or more."""
    max_requests: FloatArray
    """N_max: parts that are active at a time, 1 or more."""


def finish_s(parts: Parts, limits: Limits, law: PassTimes, *, wanted: int | None = None) -> FloatArray:
    """When each part is done, seconds from now; inf for padding. Shape (endpoints, parts).

    With `wanted` only that column is promised: an endpoint is left as soon as its part of that column is done, and the
    parts that were not done by then are inf.
    """
    order = np.argsort(parts.ready_s, axis=1, kind="stable")
    column = None if wanted is None else np.argmax(order == wanted, axis=1)
    done = _Timeline(parts, order, limits, law).run(column)
    answer = np.empty_like(done)
    np.put_along_axis(answer, order, done, axis=1)
    return answer


class _Timeline:
    """All endpoints side by side, each at its own time and pass. Columns are parts in the order of admission."""

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
        """Prompts laid end to end: where each one ends on the line of tokens to prefill."""
        rows = len(self._count)
        self._line = np.zeros(rows)
        """Tokens of that line that are computed."""
        self._now_s = np.zeros(rows)
        self._passes = np.zeros(rows)
        self._joined = np.zeros(rows, np.int64)
        """Parts whose prompt is computed: always the first ones."""
        self._done = np.zeros(rows, np.int64)
        """Parts that are done."""
        self._until = np.full(self._end.shape, np.inf)
        """The pass after which a decoding part is done; inf for all others."""
        self._base = np.zeros(self._end.shape)
        """Context of a decoding part less the passes so far, so that it need not be counted up."""
        self._finish_s = np.full(self._end.shape, np.inf)

    def run(self, wanted: IntArray | None) -> FloatArray:
        """Until everything is done, or each endpoint's part in the column `wanted`."""
        at = np.arange(len(self._count))
        while len(at := at[self._open(at, wanted)]):
            self._advance(at)
        return self._finish_s

    def _advance(self, at: IntArray) -> None:
        """Each endpoint's next pass with prompts, or its decodes up to the next admission, or its wait for work."""
        head_is_computed = self._head_is_computed(at)
        if head_is_computed.any():
            self._join(at[head_is_computed])
            # A part without any work gives its place back at once: the next one joins when this is asked again.
            settled = ~(self._head_is_computed(at) & (self._admissible(at) > self._joined[at]))
            at = at[settled]
        waiting = self._admissible(at) > self._joined[at]
        decoding = self._joined[at] > self._done[at]
        if waiting.any():
            self._mixed_pass(at[waiting])
        if (decoding & ~waiting).any():
            self._decode_on(at[decoding & ~waiting])
        idle = at[~decoding & ~waiting]
        idle = idle[self._joined[idle] < self._count[idle]]
        self._now_s[idle] = np.maximum(self._now_s[idle], self._ready_s[idle, self._joined[idle]])

    def _head_is_computed(self, at: IntArray) -> BoolArray:
        """Whether the next part to join has no prompt tokens left to compute."""
        head = np.minimum(self._joined[at], self._end.shape[1] - 1)
        return np.asarray((self._joined[at] < self._count[at]) & (self._end[at, head] <= self._line[at]), np.bool_)

    def _open(self, at: IntArray, wanted: IntArray | None) -> BoolArray:
        work_left = np.asarray(self._done[at] < self._count[at], np.bool_)
        return work_left if wanted is None else work_left & np.isinf(self._finish_s[at, wanted[at]])

    def _admissible(self, at: IntArray) -> IntArray:
        """How many parts may have begun by now: those that are ready, N_max active ones at most."""
        ready = (self._ready_s[at] <= self._now_s[at, None] + _SAME_S).sum(axis=1)
        room = np.maximum(self._limits.max_requests[at] - (self._joined[at] - self._done[at]), 0.0)
        return np.asarray(np.minimum(ready, self._joined[at] + room.astype(np.int64)), np.int64)

    def _join(self, at: IntArray) -> None:
        """Parts at the head of the line whose prompt is computed, or has nothing to compute, begin to decode."""
        computed = (self._end[at] <= self._line[at, None]).sum(axis=1)
        self._join_up_to(at, np.minimum(self._admissible(at), computed))

    def _join_up_to(self, at: IntArray, joined: IntArray) -> None:
        if not (joined > self._joined[at]).any():
            return
        columns = np.arange(self._end.shape[1])
        row, column = np.nonzero((columns >= self._joined[at, None]) & (columns < joined[:, None]))
        where = at[row], column
        self._until[where] = self._passes[where[0]] + self._decode[where]
        self._base[where] = self._context[where] + self._prefill[where] - self._passes[where[0]]
        self._joined[at] = np.maximum(self._joined[at], joined)
        if (self._decode[where] == 0).any():
            self._retire(at)

    def _retire(self, at: IntArray) -> None:
        """Decoding parts that have had their passes are done now."""
        row, column = np.nonzero(self._until[at] <= self._passes[at, None])
        self._end_parts((at[row], column), self._now_s[at[row]])

    def _end_parts(self, where: tuple[IntArray, IntArray], finish_s: FloatArray) -> None:
        self._finish_s[where] = finish_s
        self._until[where] = np.inf
        self._done += np.bincount(where[0], minlength=len(self._done))

    def _load(self, at: IntArray) -> tuple[FloatArray, FloatArray]:
        """Decoding parts, and their context in the next pass."""
        decoding = np.isfinite(self._until[at])
        count = decoding.sum(axis=1).astype(np.float64)
        return count, np.where(decoding, self._base[at], 0.0).sum(axis=1) + count * self._passes[at]

    def _mixed_pass(self, at: IntArray) -> None:
        """One pass with prompts in it."""
        decodes, context = self._load(at)
        last = self._admissible(at)
        left = np.maximum(self._limits.token_budget[at] - decodes, 1.0)
        before = self._line[at]
        after = np.minimum(self._end[at, last - 1], before + left)
        start = self._end[at] - self._prefill[at]
        begun = np.clip(before[:, None], start, self._end[at])
        chunk = np.clip(after[:, None], start, self._end[at]) - begun
        pairs = (chunk * (self._context[at] + begun - start + chunk / 2)).sum(axis=1)
        self._now_s[at] += self._law(at, decodes + after - before, context, pairs, decodes)
        self._passes[at] += 1.0
        self._line[at] = after
        self._retire(at)
        self._join_up_to(at, np.minimum(last, (self._end[at] <= after[:, None]).sum(axis=1)))

    def _decode_on(self, at: IntArray) -> None:
        """Passes of decodes alone, until somebody can be admitted, or to the end."""
        order = np.argsort(self._until[at], axis=1)
        until = np.take_along_axis(self._until[at], order, axis=1)
        alive = np.isfinite(until)
        until = np.where(alive, until, 0.0)
        base = np.where(alive, np.take_along_axis(self._base[at], order, axis=1), 0.0)
        # Piece q: the passes from the end of the (q-1)th part to end to that of the qth, with all later ones.
        first = np.hstack([self._passes[at, None], until[:, :-1]])
        passes = np.where(alive, until - first, 0.0)
        decodes = np.where(alive, alive.sum(axis=1)[:, None] - np.arange(until.shape[1]), 1.0)
        context = np.cumsum(base[:, ::-1], axis=1)[:, ::-1] + decodes * first
        zero = np.zeros_like(decodes)
        step_s = self._law(at[:, None], decodes, context, zero, decodes)
        growth_s = self._law(at[:, None], decodes, context + decodes, zero, decodes) - step_s
        lasts_s = np.where(alive, passes * step_s + growth_s * passes * (passes - 1.0) / 2.0, 0.0)
        ends_s = self._now_s[at, None] + np.cumsum(lasts_s, axis=1)
        stop_s, stop_piece = self._stops(at, ends_s, until, alive)
        row = np.arange(len(at))
        began_s = ends_s[row, stop_piece] - lasts_s[row, stop_piece]
        taken = _passes_until(
            stop_s - began_s, step_s[row, stop_piece], growth_s[row, stop_piece], passes[row, stop_piece]
        )
        self._passes[at] = first[row, stop_piece] + taken
        self._now_s[at] = (
            began_s + taken * step_s[row, stop_piece] + growth_s[row, stop_piece] * taken * (taken - 1) / 2
        )
        over = alive & (until <= self._passes[at, None])
        row, column = np.nonzero(over)
        self._end_parts((at[row], order[row, column]), ends_s[row, column])

    def _stops(
        self, at: IntArray, ends_s: FloatArray, until: FloatArray, alive: BoolArray
    ) -> tuple[FloatArray, IntArray]:
        """When somebody can next be admitted (inf: never), and the piece in which that is, or else the last one."""
        some_left = self._joined[at] < self._count[at]
        head = np.minimum(self._joined[at], self._ready_s.shape[1] - 1)
        head_s = np.where(some_left, self._ready_s[at, head], np.inf)
        # One that is ready already waits for a place, which the next part to end gives.
        stop_s = np.where(head_s <= self._now_s[at] + _SAME_S, ends_s[:, 0], head_s)
        last = alive.sum(axis=1) - 1
        reached = (ends_s < stop_s[:, None] - _SAME_S).sum(axis=1)
        return stop_s, np.minimum(reached, last)


def _passes_until(gap_s: FloatArray, step_s: FloatArray, growth_s: FloatArray, most: FloatArray) -> FloatArray:
    """The fewest passes that last `gap_s` at least, `most` at most: n step + growth n (n - 1) / 2 >= gap."""
    half = growth_s / 2.0
    slope = step_s - half
    gap = np.clip(gap_s, 0.0, 1e12)
    # The positive root in the form that stays exact when the growth is small.
    guess = 2.0 * gap / (slope + np.sqrt(slope * slope + 4.0 * half * gap))
    fewest = np.maximum(np.ceil(guess - 0.5) - 1.0, 0.0)
    for _ in range(3):
        fewest += fewest * step_s + growth_s * fewest * (fewest - 1.0) / 2.0 < gap - _SAME_S
    return np.minimum(fewest, most)
