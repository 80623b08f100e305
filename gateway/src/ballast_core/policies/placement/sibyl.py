"""SIBYL: the decode endpoint with the least load projected to the hand-off (section 4, errata in docs/policies.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from ballast_core import kernel
from ballast_core.arrays import FloatArray, IntArray
from ballast_core.beliefs.kinds import Belief
from ballast_core.beliefs.survival_tables import SurvivalTables
from ballast_core.model import Request, Stage
from ballast_core.policies.declaring import parameter
from ballast_core.policies.placement import compiled
from ballast_core.state.flights import NO_LIMIT
from ballast_core.state.view import View

_PIECE = 16_384
"""Requests weighed in one pass: the temporaries of more would not fit in the processor's cache."""


@dataclass(frozen=True, slots=True)
class Sibyl:
    """Projected load at the time tau of the hand-off (Eq. 1): cost_i = sum over requests k there of M_k(tau) P_k(tau).

    Running (type 1): M = l_in + l(tau), l(tau) = l(now) + v_k (tau - now), P = S(l(tau)) / S(l(now)).
    Pending, there by tau (type 2): M = l_in + g, P = S(g), g = (tau - tau_k) v_sys.
    Pending, there later (type 3): M = max(0, l_in - v_sys (tau_k - tau)), P = 1.
    tau = now + expected prefill time; tau_k = max(now, expected hand-off of k), both with the real prefill queue; S:
    the survival curve of output length, with the request's own limit; v_k: the request's own rate; v_sys: the rate of
    all requests. Intent: use the load that a request will meet, not the present one. Load is KV tokens at one time: raw
    tokens, also across unlike hardware. The paper defines decode only; for prefill, cost_i = expected prefill time.
    S is learned as `estimator` says; the paper's is ema, and the pool's other policies then read its curve, too.
    The other parameters are the paper's variants (appendix J): prob_at_one sets P = 1; without_type_one, _two and
    _three omit a type; request_level counts requests instead, pending ones included (this is least-requests).
    """

    type: ClassVar[str] = "sibyl"
    estimator: Literal["kaplan-meier", "ema"] = parameter(
        "kaplan-meier",
        "How survival curves are learned, for all policies of the pool: kaplan-meier takes requests that were cut off "
        "for what they are; ema is the paper's moving average (Eq. 4), which takes a cut for an end.",
    )
    prob_at_one: bool = parameter(False, "Assumes that every request still runs at the hand-off (PROB @ 1).")
    without_type_one: bool = parameter(False, "Omits requests that decode now.")
    without_type_two: bool = parameter(False, "Omits pending requests that arrive before the hand-off.")
    without_type_three: bool = parameter(False, "Omits pending requests that arrive after the hand-off.")
    request_level: bool = parameter(False, "Counts requests in flight instead of projected tokens (REQ LEVEL).")

    def __post_init__(self) -> None:
        """Raises ValueError naming the field."""
        if self.estimator not in ("kaplan-meier", "ema"):
            raise ValueError(f"estimator: must be kaplan-meier or ema, not {self.estimator!r}")

    @property
    def needs(self) -> Belief:
        """What it reads."""
        read = Belief.LENGTHS | Belief.RATES | Belief.PREFILL_TIMES | Belief.PREFIXES | Belief.PROGRESS
        return read | Belief.EMA_LENGTHS if self.estimator == "ema" else read

    def costs(self, view: View, request: Request) -> FloatArray:
        if view.stage is Stage.PREFILL:
            return view.prefill_s
        if self.request_level:
            return view.requests.astype(np.float64)
        if not view.flights.count:
            return np.zeros(len(view.slots))
        if (functions := kernel.active()) is not None:
            return compiled.sibyl(
                functions,
                view,
                prob_at_one=self.prob_at_one,
                without_type_one=self.without_type_one,
                without_type_two=self.without_type_two,
                without_type_three=self.without_type_three,
            )
        return self._projected_tokens(view)

    def _projected_tokens(self, view: View) -> FloatArray:
        flights, growth = view.flights, view.growth
        tables = view.beliefs.lengths.tables(view.now_s)
        growth.update(tables)
        load = np.empty(flights.count)
        for start in range(0, len(load), _PIECE):
            rows = slice(start, start + _PIECE)
            self._project(view, tables, rows, load[rows])
        by_slot = np.bincount(flights.slot, weights=load, minlength=view.capacity)
        return np.asarray(by_slot.take(view.slots), np.float64)

    def _project(self, view: View, tables: SurvivalTables, rows: slice, load: FloatArray) -> None:
        """Writes M_k(tau) P_k(tau) of some requests to `load`."""
        flights, growth = view.flights, view.growth
        # Seconds that k decodes from now until tau: tau - now if it runs; else tau - tau_k, negative for type 3.
        ahead_s = _ahead_s(view, flights.slot[rows])
        elapsed_s = view.now_s + ahead_s - flights.handoff_at_s[rows]  # more than tau - now for all that decode
        np.minimum(elapsed_s, ahead_s, out=elapsed_s)
        # With age 0 and rate v_sys for pending requests, one expression covers types 1, 2 and 3: for type 3, l_in +
        # l(tau) with a negative l(tau) is Eq. 8 as corrected.
        grown = growth.start_shares[rows] * view.beliefs.rates.pool_tokens_per_s(view.now_s)
        grown += growth.own_rates[rows]
        grown *= elapsed_s
        np.add(growth.held[rows], grown, out=load)
        np.maximum(load, 0.0, out=load)
        if not self.prob_at_one:
            load *= _surviving(view, tables, rows, grown)
        if self.without_type_one or self.without_type_two or self.without_type_three:
            running, early = flights.decoding[rows], elapsed_s >= 0
            left_out = (self.without_type_one & running) | (self.without_type_two & ~running & early)
            load[left_out | (self.without_type_three & ~running & ~early)] = 0.0


def _ahead_s(view: View, slots: IntArray) -> FloatArray | float:
    """Seconds to the hand-off of the placed request, for requests of these slots; 0 if the slot is no candidate."""
    if not view.prefills_here:
        return float(view.handoff_s[0])
    by_slot = np.zeros(view.capacity)
    by_slot[view.slots] = view.handoff_s
    return by_slot.take(slots)


def _surviving(view: View, tables: SurvivalTables, rows: slice, grown: FloatArray) -> FloatArray:
    """P_k(tau) of some requests that grow by `grown` tokens until tau; overwrites `grown`."""
    flights, growth = view.flights, view.growth
    classes = flights.class_slot[rows] if tables.classes > 1 else 0
    later = grown
    later += growth.ages[rows]
    np.maximum(later, 0.0, out=later)
    alive = tables.survival_within(later, classes)
    alive *= growth.reciprocals[rows]
    tail = np.flatnonzero(later > tables.end_tokens(classes))
    if len(tail):
        of_tail = classes if isinstance(classes, int) else classes[tail]
        alive[tail] = tables.conditional(growth.ages[rows][tail], later[tail], of_tail)
    limits = flights.limit_tokens[rows]
    if int(limits.min()) < NO_LIMIT:
        alive *= later < limits
    return alive
