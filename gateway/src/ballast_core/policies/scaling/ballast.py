"""Ballast's own scaling policy: equilibrium of prefill and decode, rehearsed where that is possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from ballast_core.policies.declaring import check_within, parameter
from ballast_core.policies.scaling.demand import Reserves, demand_of, misses, tightest_tpot_s
from ballast_core.policies.scaling.fitting import Fitter, gpus, least_layout, price, refusal_of, within
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
from ballast_core.policies.scaling.sleeping import settled, sleeping
from ballast_core.policies.scaling.steadying import Windows, steady, still_right
from ballast_core.policies.scaling.telling import conclude, in_words, refuse

_LEAST_COVER = 0.75
"""A candidate that by arithmetic carries less than this share of what is needed is not tried beside one that carries
more: it fills up over minutes, longer than a rehearsal lasts."""

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
    Rehearse: the equilibrium, the present layout and neighbours. Choose: the equilibrium, unless it misses the
    objective in rehearsal and another one does better, by `margin` beyond the interval; of these the cheapest that
    reaches the objective, or else the one that reached most. Act: within clamps, budget and windows; flexible pools
    change roles before instances start or end. While a class misses its objective a pool shrinks only for GPUs that
    another one is to grow on.
    """

    type: ClassVar[str] = "ballast"
    prefill_load: float = parameter(0.75, "Share of the prefill capacity that the forecast may take, above 0 to 1.")
    decode_load: float = parameter(0.85, "Share of the decode capacity that the forecast may take, above 0 to 1.")
    backlog_s: float = parameter(30.0, "Seconds in which waiting prompts are to be computed, 1 to 3600.")
    margin: float = parameter(
        0.005, "Attainment by which a candidate must surely do better than the equilibrium in rehearsal, 0 to 1."
    )
    rehearse: bool = parameter(True, "Whether candidates are tried on recorded traffic, where there is any.")
    candidates: int = parameter(4, "Layouts to try in a round at most, 1 to 64.")
    least_requests: int = parameter(50, "Requests without which a rehearsal does not count.")
    down_s: float = parameter(300.0, "Seconds for which fewer instances must have been right before a pool shrinks.")
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
        asleep = sleeping(inputs)
        if asleep is not None:
            return asleep
        refusal = refusal_of(inputs)
        if refusal is None and not any(each.limits for each in inputs.objectives):
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
        asleep = settled(proposal)
        if asleep is not None:
            return asleep
        if proposal.refusal is not None or proposal.demand is None:
            return _within_budget(proposal) or refuse(proposal, still_right(inputs))
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
        own = next((each for each in rehearsals if each.candidate == 0), None)
        if own is None:
            why = "equilibrium, not rehearsed" if not self.rehearse else "equilibrium, without a rehearsal that counts"
            return 0, None, why
        wanted = proposal.inputs.wanted
        target = max(each.target for each in proposal.inputs.objectives)
        if own.attainment >= target:
            return 0, own.attainment, f"it reached {target:.1%} in rehearsal"

        def rank(each: Rehearsal) -> tuple[float, bool, float, int]:
            candidate = proposal.candidates[each.candidate]
            return candidate.price, candidate.layout != wanted, -each.attainment, each.candidate

        better = [each for each in rehearsals if each.surely > own.attainment + self.margin]
        if not better:
            return 0, own.attainment, f"{own.attainment:.1%} in rehearsal, and none did surely better"
        most = max(each.attainment for each in better)
        best = min((each for each in better if each.attainment >= min(target, most - self.margin)), key=rank)
        return (
            best.candidate,
            best.attainment,
            f"in rehearsal surely better than the equilibrium's {own.attainment:.1%}",
        )


def _within_budget(proposal: Proposal) -> Decision | None:
    """What keeps to a budget that was lowered, with the stages in their present proportion, where the traffic cannot
    say more; None: the budget is kept, or nothing keeps to it."""
    inputs, budget = proposal.inputs, proposal.inputs.clamps.gpu_budget
    if budget is None or gpus(inputs.pools, inputs.wanted) <= budget:
        return None
    pools = tuple(replace(each, most=min(each.most, each.wanted.replicas)) for each in inputs.pools)
    prefill, decode = (
        sum(counts) for counts in zip(*((each.prefill, each.decode) for each in inputs.wanted), strict=True)
    )
    rates = tuple((1.0, 1.0) for _ in pools)
    fitted = Fitter(pools, inputs.clamps, (max(1.0, prefill), max(1.0, decode)), rates).fit()
    if fitted is None:
        return None
    why = "" if proposal.refusal is None else f"; {proposal.refusal.message}"
    return Decision(
        proposal=proposal,
        target=fitted,
        reason="ScaledDown",
        message=f"from {in_words(inputs, inputs.wanted)} to {in_words(inputs, fitted)}, for {budget} GPUs{why}",
        memory=still_right(inputs),
    )
