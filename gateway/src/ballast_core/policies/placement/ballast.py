"""Ballast's own placement: the time that a request costs all requests, itself included, over its expected decode."""

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
from ballast_core.state.age_histograms import AGE_OF_BUCKET
from ballast_core.state.view import View

_PIECES = 8
"""Pieces of its decode at whose middle a request is weighed; it is also weighed at the hand-off."""
_SHARE_OF_LIFE = 0.25
"""T of term (7) as a share of a harmonic mean life: by trial on colocated endpoints, where 0.5 does about as well."""
_UNREPORTED_TOKENS = 16
"""KV tokens that a request holds beyond the known ones: the empty part of its last block, and unreported tokens."""


@dataclass(frozen=True, slots=True)
class Ballast:
    """Expected marginal cost of the request over its decode, in request-seconds, to itself and to all other requests.

    Decode: cost_i = (4) + (5) + (6), plus (7) if endpoint i prefills the request too. Prefill: cost_i = expected
    prefill time (s), queue and attention included. Unlike hardware is compared by its step-time law and its KV size.
    There are no parameters.

    Symbols. The request has p prompt tokens and D expected output tokens, by the survival curve and its own limit. It
    is weighed at nine times j: at the hand-off (j = 0), and in the middle of eight pieces of D / 8 expected tokens.

    - l: its output tokens at time j; w: the output tokens that time j represents, D / 16 for the first two times and
      D / 8 for the others; c = p + l: the KV tokens that it holds.
    - n, C: requests and KV tokens on endpoint i, projected to time j; K: its KV cache in tokens.
    - s(n, C): decode step time (s). If C exceeds K, only the share K / C of the requests runs, and n in G is theirs.
    - typical: median of the candidates' step times (s) now, with the request.
    - G(n, C) = n s (s / typical)^3: burden of a step (request-seconds). The fourth power makes slow steps count more.

    Terms.

    1. Marginal burden, per output token: G(n + 1, C + c) - G(n, C).
    2. Overflow, per output token: v s(n + 1, C + c), with v = (E[(C + c - K)+] - E[(C - K)+]) (n + 1) / (C + c) the
       number of requests that no longer fit because of it.
    3. Waterline, per output token: the level to which new requests, as many as end before time j, raise the cheapest
       endpoints' (1) + (2). Choosing an endpoint below that level gains nothing.
    4. Decode: sum over j of w max((1) + (2), (3)).
    5. Recompute: max over j of v (n + 1), times the seconds to prefill a mean request again: a preemption delays all.
    6. Wait for KV at the hand-off: if x = C + p + 16 (n + 1) - K is above 0, max(x, C / n) T / K max(T / own, 1), with
       T = D s(n + 1, C + p) (s), all at j = 0, and own (s) the request's prefill without a queue. Tokens are freed at
       the rate K / T. The last factor gives a relative delay of the first token the weight of one of the decode.
    7. Own prefill: queue + own + m ((T + queue + own)^4 - (T + queue)^4) / (median T)^3, with queue (s) the prefill
       queue. It delays all requests in flight there, after the queue has. A second adds 1 / L to the time per token of
       a request of L tokens, so those that stay short count most: m is the sum over them of E[1 / L | L > age] H, with
       H = 1 / E[1 / L] the harmonic mean length, and T = s(n + 1, C + p) H / 4 (s) at j = 0.

    Example: steps take 1 ms for each decode, 1 and 3 requests decode and stay, nothing overflows, D = 27. Steps with
    the request: 2 and 4 ms, typical 3 ms. (1): 2 x 2 (2/3)^3 - 1 x 1 (1/3)^3 = 31/27 ms, and
    4 x 4 (4/3)^3 - 3 x 3 (3/3)^3 = 781/27 ms. (3): 31/27 ms. (4): 27 times (1) -> 0.031 against 0.781, the first.
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
        if (functions := kernel.active()) is not None:
            return compiled.ballast(
                functions, view, request, tables, class_slot=class_slot, share_of_life=_SHARE_OF_LIFE
            )
        middles, piece_tokens = tables.life_nodes(_PIECES, class_slot, request.max_output_tokens)
        ages = np.append(0.0, middles)
        weights = np.full(len(ages), piece_tokens)
        weights[:2] *= 0.5  # the hand-off represents the first half of the first piece
        typical_s = _typical_step_s(view, request)
        # All candidates are projected to the same times: if each prefills it itself, from the earliest hand-off on.
        load = project(view, float(view.handoff_s.min()) + ages * typical_s, 1.0 / typical_s)
        # Shapes from here on: (times, candidates).
        foreign = view.foreign_requests
        requests, held = load.requests.T + foreign, load.tokens.T + foreign * _mean_tokens(view)
        spread = np.sqrt(load.variance.T)
        own = (request.prompt_tokens + ages)[:, None]

        # G before the request, with it, and with one and two mean requests instead: the last two give (3) its slope.
        mean = float(held.sum() / max(requests.sum(), 1.0)) or float(request.prompt_tokens)
        added = np.stack([0.0 * own, own, np.full_like(own, mean), np.full_like(own, 2.0 * mean)])
        more = np.array([0.0, 1.0, 1.0, 2.0])[:, None, None]
        burden_s, step_s = _burden_s(view, requests + more, held + added, typical_s)
        before_s, with_it_s, one_more_s, two_more_s = burden_s
        marginal_s = with_it_s - before_s  # (1)
        stalled = _stalled(requests, held, own, spread, view.kv_tokens)
        if stalled is not None:
            marginal_s += stalled * step_s[1]  # (2)
        alive = requests.sum(axis=1)
        ended = np.maximum(alive[0] - alive, 0.0)
        level_s = waterline(marginal_s, two_more_s - 2.0 * one_more_s + before_s, ended)  # (3)
        costs = weights @ np.maximum(marginal_s, level_s[:, None])  # (4)
        if stalled is not None:  # (5)
            context = ((held + own) / (requests + 1.0)).mean(axis=0)
            recompute_s = view.beliefs.prefill_times.duration_s(view.slots, context)
            costs += (stalled * (requests + 1.0)).max(axis=0) * recompute_s
        missing = held[0] + request.prompt_tokens + _UNREPORTED_TOKENS * (requests[0] + 1.0) - view.kv_tokens
        if (missing > 0.0).any():  # (6)
            costs += _wait_cost_s(
                view, missing, held[0] / np.maximum(requests[0], 1.0), _PIECES * piece_tokens * step_s[1, 0]
            )
        if view.prefills_here:  # (7)
            risks, harmonic_tokens = tables.risks(AGE_OF_BUCKET)
            costs += _prefill_cost_s(view, _SHARE_OF_LIFE * harmonic_tokens * step_s[1, 0], _at_risk(view, risks))
        return np.asarray(costs, np.float64)


def _mean_tokens(view: View) -> FloatArray:
    """Mean tokens of our requests on each candidate: the estimate for a foreign request."""
    return np.asarray(view.tokens / np.maximum(view.requests - view.foreign_requests, 1), np.float64)


def _typical_step_s(view: View, request: Request) -> float:
    """The median of the candidates' step times with the request and all assigned requests, as far as they fit."""
    tokens = (view.tokens + request.prompt_tokens).astype(np.float64)
    share = 1.0 / np.maximum(tokens / view.kv_tokens, 1.0)
    step_s = np.sort(view.beliefs.step_times.predict_s(view.slots, (view.requests + 1) * share, tokens * share))
    middle = len(step_s) // 2
    return float(step_s[middle] + step_s[~middle]) / 2.0


def _burden_s(view: View, requests: FloatArray, tokens: FloatArray, typical_s: float) -> tuple[FloatArray, FloatArray]:
    """G and s. Requests that do not fit the KV cache wait and take no step time. Shapes: (..., candidates)."""
    share = 1.0 / np.maximum(tokens / view.kv_tokens, 1.0)
    running = requests * share
    step_s = view.beliefs.step_times.predict_s(view.slots, running, tokens * share)
    slow = step_s / typical_s
    return running * step_s * (slow * slow * slow), step_s


def _stalled(
    requests: FloatArray, held: FloatArray, own: FloatArray, spread: FloatArray, kv: FloatArray
) -> FloatArray | None:
    """v of term (2), None if it is 0; `spread`: standard deviation of `held`. Shapes: (times, candidates)."""
    with_it = held + own
    if (with_it - kv <= -2.0 * np.maximum(spread, 1.0)).all():
        return None  # both excesses are 0
    overflow = _mean_excess(with_it - kv, spread) - _mean_excess(held - kv, spread)
    return np.asarray(overflow * (requests + 1.0) / with_it, np.float64)


def _wait_cost_s(view: View, missing: FloatArray, mean_tokens: FloatArray, life_s: FloatArray) -> FloatArray:
    """Term (6). `life_s` is T. Tokens are freed as requests end, so at least a mean request's tokens at a time."""
    freed = np.where(missing > 0.0, np.maximum(missing, mean_tokens), 0.0)
    wait_s = freed * life_s / view.kv_tokens
    return np.asarray(wait_s * np.maximum(life_s / view.own_prefill_s, 1.0), np.float64)


def _at_risk(view: View, risks: FloatArray) -> FloatArray:
    """m of term (7). Requests count by their age, those in prefill and others' as new ones."""
    fewer = np.zeros(view.capacity)
    for histogram in view.age_histograms:
        fewer[: len(histogram.counts)] += histogram.counts[:, : histogram.ages] @ (risks[: histogram.ages] - 1.0)
    return np.asarray(view.requests + fewer[view.slots], np.float64)


def _prefill_cost_s(view: View, life_s: FloatArray, at_risk: FloatArray) -> FloatArray:
    """Term (7). `life_s` is T, `at_risk` is m."""
    held_up_s = life_s + view.prefill_s - view.own_prefill_s
    longer_s = held_up_s + view.own_prefill_s
    caused_s = (_to_the_fourth(longer_s) - _to_the_fourth(held_up_s)) / np.median(life_s) ** 3
    return np.asarray(view.prefill_s + at_risk * caused_s, np.float64)


def _to_the_fourth(seconds: FloatArray) -> FloatArray:
    squares = seconds * seconds
    return squares * squares


def _mean_excess(mean: FloatArray, spread: FloatArray) -> FloatArray:
    """E[X+] of a normal X: mean Phi(z) + spread phi(z), z = mean / spread. Phi is a logistic, off by 0.01 at most.

    For z below about -2 the result is 0: the logistic's error would exceed the true value.
    """
    sure = np.maximum(spread, 1.0)
    z = np.clip(mean / sure, -8.0, 8.0)
    density = np.exp(-0.5 * z * z) * (1.0 / math.sqrt(2.0 * math.pi))
    return np.asarray(np.maximum(mean / (1.0 + np.exp(-1.702 * z)) + sure * density, 0.0), np.float64)
