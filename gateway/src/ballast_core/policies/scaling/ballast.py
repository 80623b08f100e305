"""Ballast's own scaling policy: equilibrium of prefill and decode, rehearsed where that is possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ballast_core.policies.declaring import check_within, parameter
from ballast_core.policies.scaling.demand import Reserves, demand_of, misses, tightest_tpot_s
from ballast_core.policies.scaling.fitting import Fitter, least_layout, price, refusal_of, within
from ballast_core.policies.scaling.protocol import (
    Candidate,
    Decision,
    Demand,
    Inputs,
    Layout,
    Proposal,
    Refusal,
    Rehearsal,
)
from ballast_core.policies.scaling.steadying import Windows, steady
from ballast_core.policies.scaling.telling import conclude, refuse

_LEAST_COVER = 0.75
"""A candidate that by arithmetic carries less than this share of what is needed is not tried beside one that carries
more: a short rehearsal begins on idle instances, and does not show them fill up."""

_OVERLOADED = 0.8
"""Where the present layout covers less than this share of the needs, it cannot carry the traffic at all, and roles flip
without a window..."""
_WORTH = 1.25
"""...if the right ones cover so many times as much."""


@dataclass(frozen=True, slots=True)
class BallastScaling:
    """The cheapest layout with which the share of requests that meet their objective is reached.

    Propose: prefill and decode each get the least instances whose capacity, by the step-time law of their profiles,
    covers the forecast rate with room to spare (throughput equilibrium). Requests that decode now count until they end,
    and prompts that wait are to be computed within `backlog_s`.
    Rehearse: neighbours of the proposal and the present layout. Choose: the cheapest that reached the objective with
    `margin`, or else the one that reached most; without rehearsals the equilibrium. Act: within clamps, budget and
    windows; flexible pools change roles before instances start or end. Nothing shrinks while a class misses its
    objective.
    """

    type: ClassVar[str] = "ballast"
    prefill_load: float = parameter(0.75, "Share of the prefill capacity that the forecast may take, above 0 to 1.")
    decode_load: float = parameter(0.85, "Share of the decode capacity that the forecast may take, above 0 to 1.")
    backlog_s: float = parameter(30.0, "Seconds in which waiting prompts are to be computed, 1 to 3600.")
    margin: float = parameter(0.005, "Attainment that a rehearsal must show beyond the objective's, 0 to 1.")
    rehearse: bool = parameter(True, "Whether candidates are tried on recorded traffic, where there is any.")
    candidates: int = parameter(6, "Layouts to try in a round at most, 1 to 64.")
    least_requests: int = parameter(50, "Requests without which a rehearsal does not count.")
    down_s: float = parameter(180.0, "Seconds for which fewer instances must have been right before a pool shrinks.")
    up_s: float = parameter(0.0, "Seconds for which more instances must have been right before a pool grows.")
    flip_s: float = parameter(
        60.0, "Seconds for which other roles must have been right before instances change theirs."
    )

    def __post_init__(self) -> None:
        """Raises ValueError naming the field."""
        check_within(
            self,
            prefill_load=(0.01, 1),
            decode_load=(0.01, 1),
            backlog_s=(1, 3600),
            margin=(0, 1),
            candidates=(1, 64),
            least_requests=(1, 1_000_000),
            down_s=(0, 86_400),
            up_s=(0, 86_400),
            flip_s=(0, 86_400),
        )

    @property
    def rehearses(self) -> bool:
        """See `Scaling.rehearses`."""
        return self.rehearse

    def propose(self, inputs: Inputs) -> Proposal:
        """The equilibrium, and what is near it."""
        refusal = refusal_of(inputs)
        if refusal is None and tightest(inputs) is None:
            refusal = Refusal("NoObjective", "no objective has a threshold in seconds; set one")
        if refusal is not None:
            return Proposal(inputs=inputs, refusal=refusal)
        demand = demand_of(inputs, self._reserves)
        if isinstance(demand, Refusal):
            return Proposal(inputs=inputs, refusal=demand)
        fitter = self._fitter(inputs, demand)
        fitted = fitter.fit() or least_layout(inputs)
        assert fitted is not None, "refusal_of has found a layout"
        cover = fitter.cover(fitted)
        remark = "" if cover >= 1 - 1e-9 else f"clamps and budget leave {cover:.0%} of what is needed"
        return Proposal(
            inputs=inputs, demand=demand, candidates=self._candidates(inputs, fitter, fitted), remark=remark
        )

    def decide(self, proposal: Proposal, rehearsals: Sequence[Rehearsal] = ()) -> Decision:
        """The cheapest candidate that is good enough, as far as windows let it."""
        inputs = proposal.inputs
        if proposal.refusal is not None or proposal.demand is None:
            return refuse(proposal)
        counted = [each for each in rehearsals if each.requests >= self.least_requests]
        chosen, predicted, why = self._choose(proposal, counted)
        right = proposal.candidates[chosen].layout
        fitter = self._fitter(inputs, proposal.demand)
        cover = fitter.cover(inputs.wanted)
        overloaded = cover < _OVERLOADED and fitter.cover(right) > _WORTH * cover
        windows = Windows(self.down_s, self.up_s, 0.0 if overloaded else self.flip_s)
        steadied = steady(inputs, right, windows, fitter, shrinks=not misses(inputs))
        return conclude(proposal, steadied, chosen, why, rehearsals=tuple(rehearsals), predicted=predicted)

    @property
    def _reserves(self) -> Reserves:
        return Reserves(
            prefill_load=self.prefill_load,
            decode_load=self.decode_load,
            backlog_s=self.backlog_s,
        )

    def _fitter(self, inputs: Inputs, demand: Demand) -> Fitter:
        return Fitter.of(inputs, demand, tightest_tpot_s(inputs.objectives))

    def _candidates(self, inputs: Inputs, fitter: Fitter, fitted: Layout) -> tuple[Candidate, ...]:
        least = min(_LEAST_COVER, fitter.cover(fitted))
        named = {fitted: "equilibrium"}
        if self.rehearse:
            if within(inputs.pools, inputs.wanted, inputs.clamps):
                named.setdefault(inputs.wanted, "present")
            for name, layout in fitter.neighbours(fitted):
                if fitter.cover(layout) >= least:
                    named.setdefault(layout, name)
        every = [
            Candidate(layout, name, price(inputs.pools, layout), fitter.cover(layout)) for layout, name in named.items()
        ]
        first = [each for each in every if each.origin in ("equilibrium", "present")]
        others = sorted(every[len(first) :], key=lambda each: (-min(1.0, each.cover_ratio), each.price, each.origin))
        return (*first, *others)[: self.candidates]

    def _choose(self, proposal: Proposal, rehearsals: Sequence[Rehearsal]) -> tuple[int, float | None, str]:
        """The index of the right candidate, the attainment to expect of it, and why it is right."""
        if not rehearsals:
            why = "equilibrium, not rehearsed" if not self.rehearse else "equilibrium, without a rehearsal that counts"
            return 0, None, why
        wanted = proposal.inputs.wanted
        target = max(each.attainment for each in proposal.inputs.objectives)

        def rank(each: Rehearsal) -> tuple[float, bool, float, int]:
            candidate = proposal.candidates[each.candidate]
            return candidate.price, candidate.layout != wanted, -each.attainment, each.candidate

        good = [each for each in rehearsals if each.attainment >= min(1.0, target + self.margin)]
        if good:
            best = min(good, key=rank)
            return best.candidate, best.attainment, f"the cheapest that reached {target:.1%} with margin in rehearsal"
        most = max(each.attainment for each in rehearsals)
        best = min((each for each in rehearsals if each.attainment >= most - self.margin), key=rank)
        return best.candidate, best.attainment, f"none reached {target:.1%} in rehearsal; it reached most"


def tightest(inputs: Inputs) -> float | None:
    """The least threshold of any kind; None where no objective has one."""
    limits = [limit for each in inputs.objectives for limit in (each.ttft_s, each.tpot_s, each.e2e_s)]
    return min((limit for limit in limits if limit is not None), default=None)
