"""SIBYL: the decode endpoint with the least load projected to the hand-off (section 4, errata in docs/policies.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ballast_core.arrays import FloatArray
from ballast_core.beliefs.kinds import Belief
from ballast_core.beliefs.rates import request_tokens_per_s
from ballast_core.flights import NO_LIMIT
from ballast_core.model import Request, Stage
from ballast_core.policies.base import parameter
from ballast_core.view import View


@dataclass(frozen=True, slots=True)
class Sibyl:
    """Projected load at the hand-off moment tau (Eq. 1): cost_i = sum over requests k there of M_k(tau) P_k(tau).

    Running (type 1): M = l_in + l(tau), l(tau) = l(now) + v_k (tau - now), P = S(l(tau)) / S(l(now)).
    Pending, there by tau (type 2): M = l_in + g, P = S(g), g = (tau - tau_k) v_sys.
    Pending, there later (type 3): M = max(0, l_in - v_sys (tau_k - tau)), P = 1.
    tau = now + expected prefill, tau_k = max(now, when k is expected there), both with the real prefill queue; S is the
    survival curve of output length, with the request's own limit; v_k the request's own rate, v_sys that of all.
    Intent: see the load that a request will meet, not the one it leaves behind. Load is KV tokens at one instant: raw
    tokens, also across unlike hardware. It defines decode only: for prefill, cost_i = expected prefill time.
    The switches are the paper's variants (appendix J): prob_at_one sets P = 1, without_type_one, _two and _three leave
    a type out, request_level counts requests instead, pending ones included (which is least-requests).
    """

    type: ClassVar[str] = "sibyl"
    needs: ClassVar[Belief] = Belief.LENGTHS | Belief.RATES | Belief.PREFILL_TIMES | Belief.PREFIXES | Belief.PROGRESS
    prob_at_one: bool = parameter(False, "Every request is taken to live until the hand-off (PROB @ 1).")
    without_type_one: bool = parameter(False, "Leaves out requests that decode now.")
    without_type_two: bool = parameter(False, "Leaves out pending requests that arrive before the hand-off.")
    without_type_three: bool = parameter(False, "Leaves out pending requests that arrive after the hand-off.")
    request_level: bool = parameter(False, "Counts requests in flight instead of projected tokens (REQ LEVEL).")

    def costs(self, view: View, request: Request) -> FloatArray:
        if view.stage is Stage.PREFILL:
            return view.prefill_s
        if self.request_level:
            return view.requests.astype(np.float64)
        return self._projected_tokens(view)

    def _projected_tokens(self, view: View) -> FloatArray:
        flights, count = view.flights, len(view.slots)
        if not flights.count:
            return np.zeros(count)
        at = view.place_of.take(flights.slot)
        # How long k will have decoded by tau from now on: tau - now if it runs, tau - tau_k (negative: type 3) if not.
        ahead_s = np.append(view.handoff_s, 0.0).take(at) if view.prefills_here else float(view.handoff_s[0])
        late_s = np.maximum(flights.handoff_at_s - view.now_s, 0.0)  # 0 for all that decode
        elapsed_s = ahead_s - late_s
        # With age 0 and rate v_sys for pending requests, one expression is types 1, 2 and 3: beyond the boundaries
        # l_in + l(tau) with a negative l(tau) is Eq. 8 as it should read.
        ages = flights.generated_tokens.astype(np.float64)
        v_sys = view.beliefs.rates.pool_tokens_per_s(view.now_s)
        rates = request_tokens_per_s(np.subtract(ages, 1.0), flights.progress_at_s - flights.first_token_at_s, v_sys)
        grown = rates * elapsed_s
        load = np.maximum(flights.prompt_tokens + ages + grown, 0.0)
        if not self.prob_at_one:
            tables = view.beliefs.lengths.tables(view.now_s)
            classes = flights.class_slot if tables.classes > 1 else 0
            limits = flights.limit_tokens
            cap = limits.astype(np.float64) if int(limits.min()) < NO_LIMIT else None
            load *= tables.conditional(ages, ages + np.maximum(grown, 0.0), classes, cap)
        if self.without_type_one or self.without_type_two or self.without_type_three:
            running, early = flights.decoding, elapsed_s >= 0
            left_out = (self.without_type_one & running) | (self.without_type_two & ~running & early)
            load[left_out | (self.without_type_three & ~running & ~early)] = 0.0
        return np.asarray(np.bincount(at, weights=load, minlength=count + 1)[:count], np.float64)
