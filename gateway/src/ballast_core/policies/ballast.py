"""Ballast's own placement: what a request costs everybody in time, over its whole expected life."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ballast_core.arrays import FloatArray
from ballast_core.beliefs.kinds import Belief
from ballast_core.model import Request, Stage
from ballast_core.policies.projection import Projection, project
from ballast_core.view import View

_NODES = 8
"""Points of its life at which a request is weighed."""


@dataclass(frozen=True, slots=True)
class Ballast:
    """Expected marginal cost of the request over its own life, in request-seconds: cost_i = decode + stall + wait.

    Its life is cut into pieces of as many expected tokens each, by the survival curve and its own limit; n and C are
    the requests and KV tokens of endpoint i projected to each piece, s the decode step time there, K its KV cache.
    decode: sum over pieces of tokens x ((n + 1) s(n + 1, C + own) - n s(n, C)): the step time that it suffers, and what
    it adds to everybody else's. stall: requests that do not fit because of it, the increase of E[(tokens - K)+] over
    the mean request, times the piece's duration: overflow and preemption. wait: its own admission, the excess over K at
    hand-off over the rate at which KV is set free (K over the mean life). Where the endpoint prefills it itself, also
    that prefill, and what it holds up the n that decode.
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
        ages, tokens = tables.life_nodes(_NODES, class_slot, request.max_output_tokens)
        demand = (view.tokens + request.prompt_tokens).astype(np.float64)
        step_now_s = _step_s(view, (view.requests + 1).astype(np.float64), demand, demand / view.kv_tokens)
        typical_s = float(np.median(step_now_s))
        # One clock for all candidates: where they prefill it themselves, the earliest hand-off.
        load = project(view, float(view.handoff_s.min()) + ages * typical_s, 1.0 / typical_s)
        life_s = tokens * _NODES * step_now_s
        costs = _decode_and_stall_s(view, load, request.prompt_tokens + ages, tokens)
        spread = np.sqrt(load.variance[:, 0])
        costs += life_s / view.kv_tokens * _mean_excess(demand + _foreign_tokens(view) - view.kv_tokens, spread)
        if view.prefills_here:
            own_s = view.own_prefill_s
            costs += view.prefill_s + own_s * view.decoding_requests
        return np.asarray(costs, np.float64)


def _foreign_tokens(view: View) -> FloatArray:
    """KV of requests that are not ours, each taken to be like the mean of ours there."""
    ours = np.maximum(view.requests - view.foreign_requests, 1)
    return np.asarray(view.foreign_requests * (view.tokens / ours), np.float64)


def _step_s(view: View, requests: FloatArray, tokens: FloatArray, fill: FloatArray) -> FloatArray:
    """Step time of each candidate; what does not fit its KV cache (fill above 1) waits and costs no step time."""
    share = 1.0 / np.maximum(fill, 1.0)
    slots = view.slots if requests.ndim == 1 else view.slots[:, None]
    return view.beliefs.step_times.predict_s(slots, requests * share, tokens * share)


def _decode_and_stall_s(view: View, load: Projection, own: FloatArray, tokens: float) -> FloatArray:
    """Request-seconds of decode steps and of stalls, summed over the pieces of the request's life."""
    kv = view.kv_tokens[:, None]
    foreign = view.foreign_requests[:, None]
    requests, held = load.requests + foreign, load.tokens + _foreign_tokens(view)[:, None]
    before = _step_s(view, requests, held, held / kv)
    after = _step_s(view, requests + 1.0, held + own, (held + own) / kv)
    running = requests / np.maximum(held / kv, 1.0)
    running_after = (requests + 1.0) / np.maximum((held + own) / kv, 1.0)
    decode_s = running_after * after - running * before
    spread = np.sqrt(load.variance)
    excess = _mean_excess(held + own - kv, spread) - _mean_excess(held - kv, spread)
    stalled = excess * (requests + 1.0) / (held + own)
    return np.asarray(tokens * (decode_s + stalled * after).sum(axis=1), np.float64)


def _mean_excess(mean: FloatArray, spread: FloatArray) -> FloatArray:
    """E[X+] of a normal X: mean Phi(z) + spread phi(z), z = mean / spread; Phi as a logistic, off by 0.01 at most."""
    sure = np.maximum(spread, 1.0)
    z = np.clip(mean / sure, -8.0, 8.0)
    density = np.exp(-0.5 * z * z) * (1.0 / math.sqrt(2.0 * math.pi))
    return np.asarray(np.maximum(mean / (1.0 + np.exp(-1.702 * z)) + sure * density, 0.0), np.float64)
