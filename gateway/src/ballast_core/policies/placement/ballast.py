"""Ballast's own placement: what a request costs everybody in time, over its whole expected life."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ballast_core import kernel
from ballast_core.arrays import FloatArray
from ballast_core.beliefs.kinds import Belief
from ballast_core.model import Request, Stage
from ballast_core.policies.placement import compiled
from ballast_core.policies.placement.projection import project
from ballast_core.policies.placement.waterline import waterline
from ballast_core.state.view import View

_PIECES = 8
"""Pieces of its life at which a request is weighed; the hand-off itself is weighed, too."""
_UNREPORTED_TOKENS = 16
"""KV that a request holds beyond what is known of it: the empty half of its last block, and tokens on their way."""


@dataclass(frozen=True, slots=True)
class Ballast:
    """Expected marginal cost of the request over its own life, in request-seconds: cost_i = pace + overflow + wait.

    Its life is cut into pieces of as many expected tokens each, by the survival curve and its own limit; n and C are
    the requests and KV tokens of endpoint i projected to each piece, s the decode step time there, K its KV cache, and
    G(n, C) = n s (s / typical s)^3 their step times, of which slow ones count more (a fourth power, for the tail).
    pace: sum over pieces of tokens x m, m = max(G(n + 1, C + own) - G(n, C), waterline): the step time that it suffers
    and causes. The waterline is the marginal cost up to which coming requests will fill the fleet while the present
    ones end: below it nothing is gained. overflow: requests that do not fit because of it, the increase of
    E[(tokens - K)+] over the mean request, times the piece's duration, and once the recompute that holds up everybody.
    wait: for room at its own hand-off, the excess over K, a mean request at least, over the rate at which KV is set
    free (K over the mean life), stretched as the life is longer than the prefill: TTFT counts by its share, as TPOT
    does. Where the endpoint prefills it itself, also that prefill, queue included, and what it holds up the n that are
    there, as those who are queued will decode by then: n ((life + queue + own)^4 - (life + queue)^4) / typical life^3.
    Everything is projected to the hand-off and compared in seconds, so unlike hardware is told apart by its step-time
    law and its KV size. For prefill, cost_i = expected prefill time, queue and attention included. No parameters.
    """

    type: ClassVar[str] = "ballast"
    needs: ClassVar[Belief] = (
        Belief.LENGTHS | Belief.STEP_TIMES | Belief.PREFILL_TIMES | Belief.PREFIXES | Belief.PROGRESS
    )

    def costs(self, view: View, request: Request) -> FloatArray:
        if view.stage is Stage.PREFILL:
            return view.prefill_s
        tables = view.beliefs.lengths.tables(view.now_s)
        class_slot = view.beliefs.lengths.known_slot(request.traffic_class or None)
        life_nodes = tables.life_nodes(_PIECES, class_slot, request.max_output_tokens)
        if (functions := kernel.active()) is not None:
            return compiled.ballast(functions, view, request, tables, life_nodes)
        middles, piece_tokens = life_nodes
        ages = np.append(0.0, middles)
        weights = np.full(len(ages), piece_tokens)
        weights[:2] *= 0.5  # the hand-off stands for the first half of the first piece
        typical_s = _typical_step_s(view, request)
        # One clock for all candidates: where they prefill it themselves, the earliest hand-off.
        load = project(view, float(view.handoff_s.min()) + ages * typical_s, 1.0 / typical_s)
        # Shapes from here on: (times, candidates).
        foreign = view.foreign_requests
        requests, held = load.requests.T + foreign, load.tokens.T + foreign * _mean_tokens(view)
        spread = np.sqrt(load.variance.T)
        own = (request.prompt_tokens + ages)[:, None]

        mean = float(held.sum() / max(requests.sum(), 1.0)) or float(request.prompt_tokens)
        added = np.stack([0.0 * own, own, np.full_like(own, mean), np.full_like(own, 2.0 * mean)])
        more = np.array([0.0, 1.0, 1.0, 2.0])[:, None, None]
        burden_s, step_s = _burden_s(view, requests + more, held + added, typical_s)
        before_s, with_it_s, one_more_s, two_more_s = burden_s
        marginal_s = with_it_s - before_s
        stalled = _stalled(requests, held, own, spread, view.kv_tokens)
        if stalled is not None:
            marginal_s += stalled * step_s[1]
        alive = requests.sum(axis=1)
        level_s = waterline(marginal_s, two_more_s - 2.0 * one_more_s + before_s, np.maximum(alive[0] - alive, 0.0))
        costs = weights @ np.maximum(marginal_s, level_s[:, None])
        if stalled is not None:
            context = ((held + own) / (requests + 1.0)).mean(axis=0)
            recompute_s = view.beliefs.prefill_times.duration_s(view.slots, context)
            costs += (stalled * (requests + 1.0)).max(axis=0) * recompute_s
        missing = held[0] + request.prompt_tokens + _UNREPORTED_TOKENS * (requests[0] + 1.0) - view.kv_tokens
        if (missing > 0.0).any():
            costs += _wait_cost_s(
                view, missing, held[0] / np.maximum(requests[0], 1.0), _PIECES * piece_tokens * step_s[1, 0]
            )
        if view.prefills_here:
            costs += _prefill_cost_s(view, _PIECES * piece_tokens * step_s[1, 0])
        return np.asarray(costs, np.float64)


def _mean_tokens(view: View) -> FloatArray:
    """Of our requests on each candidate: what those that are not ours are taken to hold."""
    return np.asarray(view.tokens / np.maximum(view.requests - view.foreign_requests, 1), np.float64)


def _typical_step_s(view: View, request: Request) -> float:
    """The median candidate's step time with the request and all that is assigned there, as far as it fits."""
    tokens = (view.tokens + request.prompt_tokens).astype(np.float64)
    share = 1.0 / np.maximum(tokens / view.kv_tokens, 1.0)
    step_s = np.sort(view.beliefs.step_times.predict_s(view.slots, (view.requests + 1) * share, tokens * share))
    middle = len(step_s) // 2
    return float(step_s[middle] + step_s[~middle]) / 2.0


def _burden_s(view: View, requests: FloatArray, tokens: FloatArray, typical_s: float) -> tuple[FloatArray, FloatArray]:
    """G, and the step time; what does not fit the KV cache waits and costs no step time. Shapes: (..., candidates)."""
    share = 1.0 / np.maximum(tokens / view.kv_tokens, 1.0)
    running = requests * share
    step_s = view.beliefs.step_times.predict_s(view.slots, running, tokens * share)
    slow = step_s / typical_s
    return running * step_s * (slow * slow * slow), step_s


def _stalled(
    requests: FloatArray, held: FloatArray, own: FloatArray, spread: FloatArray, kv: FloatArray
) -> FloatArray | None:
    """Requests that do not fit because of one more; None where there are none. Shapes: (times, candidates)."""
    with_it = held + own
    if (with_it - kv <= -2.0 * np.maximum(spread, 1.0)).all():
        return None  # `_mean_excess` of both is 0
    overflow = _mean_excess(with_it - kv, spread) - _mean_excess(held - kv, spread)
    return np.asarray(overflow * (requests + 1.0) / with_it, np.float64)


def _wait_cost_s(view: View, missing: FloatArray, mean_tokens: FloatArray, life_s: FloatArray) -> FloatArray:
    """The wait for room at the hand-off, stretched by how much longer the life is than the prefill.

    Room comes as requests end: a mean request's at least.
    """
    freed = np.where(missing > 0.0, np.maximum(missing, mean_tokens), 0.0)
    wait_s = freed * life_s / view.kv_tokens
    return np.asarray(wait_s * np.maximum(life_s / view.own_prefill_s, 1.0), np.float64)


def _prefill_cost_s(view: View, life_s: FloatArray) -> FloatArray:
    """Of a prefill among decodes: its own time, and what it holds up all that are there, after the queue has."""
    held_up_s = life_s + view.prefill_s - view.own_prefill_s
    longer_s = held_up_s + view.own_prefill_s
    caused_s = (_to_the_fourth(longer_s) - _to_the_fourth(held_up_s)) / np.median(life_s) ** 3
    return np.asarray(view.prefill_s + view.requests * caused_s, np.float64)


def _to_the_fourth(seconds: FloatArray) -> FloatArray:
    squares = seconds * seconds
    return squares * squares


def _mean_excess(mean: FloatArray, spread: FloatArray) -> FloatArray:
    """E[X+] of a normal X: mean Phi(z) + spread phi(z), z = mean / spread; Phi as a logistic, off by 0.01 at most.

    Below z = -2 the logistic's error is larger than what is left: 0.
    """
    sure = np.maximum(spread, 1.0)
    z = np.clip(mean / sure, -8.0, 8.0)
    density = np.exp(-0.5 * z * z) * (1.0 / math.sqrt(2.0 * math.pi))
    return np.asarray(np.maximum(mean / (1.0 + np.exp(-1.702 * z)) + sure * density, 0.0), np.float64)
