"""Libra's choice of endpoints by predicted completion (section 4.1), without its search for the split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ballast_core.arrays import FloatArray, IntArray
from ballast_core.beliefs.kinds import Belief
from ballast_core.model import Request, Stage
from ballast_core.policies.declaring import check_within, parameter
from ballast_core.policies.placement.virtual_batches import Limits, Parts, finish_s
from ballast_core.state.flights import NO_LIMIT
from ballast_core.state.view import View


@dataclass(frozen=True, slots=True)
class Libra:
    """The endpoint on which this part of the request is done first, by virtual batches over its queue.

    cost_i = seconds until endpoint i has done this part together with all its other work. That is simulated in passes
    (`placement/virtual_batches.py`): one token for each decoding request and the rest of the token budget for prompts,
    first come, first served, at most max_requests at a time; a pass lasts as long as the step-time law predicts. The
    part is the prompt for the prefill stage, the output from the hand-off on for the decode stage, and the whole
    request where one endpoint serves both: the split P / (P + D), with which Libra's search begins. Predicted lengths
    are the survival curve's expectation plus margin_tokens, within the request's limit.
    The paper sends the parts to the two least-loaded instances, ties by turns. It defines neither load nor which part
    goes to which instance. Here load is this time, prefill is placed first, and equal costs go to the least recently
    chosen endpoint. N_max is not given: 256 is vLLM's default. Unlike hardware is compared in time. KV memory is
    ignored. Foreign requests are assumed to be like the mean of ours and to stay.
    Example: a prompt of 200 tokens is handed off, 50 are to come. Of two H20 one is idle, the other decodes a
    request of 1,070 tokens with 30 to come -> 0.853 s against 0.857 s, the first.
    """

    type: ClassVar[str] = "libra"
    needs: ClassVar[Belief] = (
        Belief.LENGTHS | Belief.STEP_TIMES | Belief.PREFILL_TIMES | Belief.PREFIXES | Belief.PROGRESS
    )
    max_requests: int = parameter(256, "Requests that an endpoint works on at a time (N_max), 1 to 65536.")
    margin_tokens: int = parameter(20, "Tokens added to every predicted output length, 0 to 1000000.")

    def __post_init__(self) -> None:
        check_within(self, max_requests=(1, 65_536), margin_tokens=(0, 1_000_000))

    def costs(self, view: View, request: Request) -> FloatArray:
        queue = _prefill_queue(view) if view.stage is Stage.PREFILL else self._decode_queue(view)
        parts = _in_front_of(queue, self._own(view, request))
        others = _Others(view)
        limits = Limits(
            token_budget=np.maximum(view.beliefs.hardware.token_budget(view.slots) - others.requests, 1.0),
            max_requests=np.maximum(self.max_requests - others.requests, 1.0),
        )
        own = parts.ready_s.shape[1] - 1
        return finish_s(parts, limits, others.pass_s, wanted=own)[:, own]

    def _own(self, view: View, request: Request) -> Parts:
        """The part of the request to place: one column."""
        nothing = np.zeros((len(view.slots), 1))
        output = nothing
        if view.stage is Stage.DECODE:
            limit = NO_LIMIT if request.max_output_tokens is None else request.max_output_tokens
            class_slot = view.beliefs.lengths.known_slot(request.traffic_class or None)
            output = nothing + self._remaining(view, np.zeros(1), class_slot, np.array([limit]))
        prefill = nothing
        if view.prefills_here:
            prefill = np.maximum(request.prompt_tokens - view.matched_tokens, 1.0)[:, None]
        return Parts(
            prefill_tokens=prefill,
            decode_tokens=output,
            context_tokens=np.maximum(request.prompt_tokens - prefill, 0.0),
            ready_s=nothing if view.prefills_here else view.handoff_s[:, None],
        )

    def _decode_queue(self, view: View) -> Parts:
        """Decodes there, running and pending, in order of hand-off; before them the prefills for other endpoints."""
        flights, count = view.flights, len(view.slots)
        index_of_slot = np.full(view.capacity, count)
        index_of_slot[view.slots] = np.arange(count)
        index = index_of_slot.take(flights.slot)
        rows = np.flatnonzero(index < count)
        rows = rows[np.lexsort((flights.handoff_at_s[rows], index[rows]))]
        index = index[rows]
        column = 1 + np.arange(len(rows)) - np.searchsorted(index, index)
        cells = index, column
        shape = (count, int(column.max(initial=0)) + 1)
        ages = flights.generated_tokens[rows].astype(np.float64)
        prompts = flights.prompt_tokens[rows].astype(np.float64)
        pending = ~flights.decoding[rows]
        prefill, decode, context, ready_s = np.zeros(shape), np.zeros(shape), np.zeros(shape), np.full(shape, np.inf)
        decode[cells] = self._remaining(view, ages, flights.class_slot[rows], flights.limit_tokens[rows])
        context[cells], ready_s[cells] = prompts + ages, 0.0
        queued = view.uncached_tokens.astype(np.float64)
        if view.prefills_here:
            # Cached tokens are not known by prompt: the queued tokens are divided in proportion to prompt lengths.
            own = np.bincount(index, weights=prompts * pending, minlength=count)
            prefill[cells] = np.ceil(prompts * pending * np.minimum(queued / np.maximum(own, 1.0), 1.0)[index])
            context[cells] -= np.minimum(prefill[cells], context[cells])
            queued = np.maximum(queued - own, 0.0)
        else:
            ready_s[cells] = np.where(pending, np.maximum(flights.handoff_at_s[rows] - view.now_s, 0.0), 0.0)
        prefill[:, 0], ready_s[:, 0] = queued, np.where(queued > 0, 0.0, np.inf)
        return _in_service(view, Parts(prefill, decode, context, ready_s))

    def _remaining(self, view: View, ages: FloatArray, classes: IntArray | int, limits: IntArray) -> FloatArray:
        """Output tokens still to come: a whole number, 1 or more."""
        caps = np.where(limits == NO_LIMIT, np.inf, limits)
        tables = view.beliefs.lengths.tables(view.now_s)
        tokens = tables.expected_remaining(ages, classes, caps) + self.margin_tokens
        return np.maximum(np.ceil(np.minimum(tokens, caps - ages)), 1.0)


def _prefill_queue(view: View) -> Parts:
    """The prefill queue: the ledger has its tokens and the number of its prompts, which are assumed to be equal."""
    ours = (view.requests - view.foreign_requests).astype(np.float64)
    each = view.uncached_tokens / np.maximum(ours, 1.0)
    number = np.where(each > 0, view.requests, 0)
    column = np.arange(int(number.max(initial=0)))
    exists = column < number[:, None]
    # In whole tokens, without losing any.
    prefill = np.where(exists, np.floor(each[:, None] * (column + 1)) - np.floor(each[:, None] * column), 0.0)
    nothing = np.zeros(prefill.shape)
    return _in_service(view, Parts(prefill, nothing, nothing.copy(), np.where(exists, 0.0, np.inf)))


def _in_service(view: View, queue: Parts) -> Parts:
    """The queue without the tokens that its first prompt, which is in service, has computed by now."""
    if not queue.prefill_tokens.size:
        return queue
    row = np.arange(len(queue.prefill_tokens))
    first = np.argmax(queue.prefill_tokens > 0, axis=1)
    rate = view.beliefs.prefill_times.tokens_per_s(view.slots)
    done = np.floor(np.minimum(view.prefill_elapsed_s * rate, queue.prefill_tokens[row, first]))
    queue.prefill_tokens[row, first] -= done
    queue.context_tokens[row, first] += done
    return queue


def _in_front_of(queue: Parts, own: Parts) -> Parts:
    return Parts(
        prefill_tokens=np.hstack([queue.prefill_tokens, own.prefill_tokens]),
        decode_tokens=np.hstack([queue.decode_tokens, own.decode_tokens]),
        context_tokens=np.hstack([queue.context_tokens, own.context_tokens]),
        ready_s=np.hstack([queue.ready_s, own.ready_s]),
    )


class _Others:
    """Decodes beside the queue that are assumed to stay: foreign ones, and at the prefill stage all decodes."""

    def __init__(self, view: View) -> None:
        self._view = view
        if view.stage is Stage.PREFILL:
            self.requests = (view.decoding_requests - view.foreign_requests).astype(np.float64)
            self._tokens = view.decoding_tokens.astype(np.float64)
        else:
            ours = np.maximum(view.requests - view.foreign_requests, 1)
            self.requests = view.foreign_requests.astype(np.float64)
            self._tokens = self.requests * view.tokens / ours
        rate = view.beliefs.prefill_times.tokens_per_s(view.slots)
        hardware = view.beliefs.hardware
        self._prefill_factor = hardware.token_budget(view.slots) / (rate * hardware.chunk_s(view.slots))

    def pass_s(
        self, rows: IntArray, tokens: FloatArray, context: FloatArray, pairs: FloatArray, decodes: FloatArray
    ) -> FloatArray:
        """`PassTimes`: decode-only passes as recalibrated from gaps between tokens, others from completed prefills."""
        beliefs, slots, more = self._view.beliefs, self._view.slots[rows], self.requests[rows]
        context = context + self._tokens[rows]
        if not pairs.any():
            return beliefs.step_times.predict_s(slots, decodes + more, context)
        profile_s = beliefs.hardware.step_s(slots, tokens + more, context, pairs, decodes + more)
        return profile_s * self._prefill_factor[rows]
