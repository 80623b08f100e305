"""What others do, for comparisons: nothing, a utilisation threshold for each pool, and Dynamo's planner rule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ballast_core.model import Role, Stage
from ballast_core.policies.declaring import check_within, parameter
from ballast_core.policies.scaling.demand import tightest_tpot_s
from ballast_core.policies.scaling.fitting import Fitter, flexible, gpus, price, refusal_of, serves
from ballast_core.policies.scaling.protocol import (
    Candidate,
    Counts,
    Decision,
    Inputs,
    Layout,
    Pool,
    Proposal,
    Refusal,
    Rehearsal,
)
from ballast_core.policies.scaling.steadying import Windows, steady
from ballast_core.policies.scaling.telling import conclude, refuse
from ballast_core.profiles.capacity import LengthStatistics, decode_rps, prefill_rps

_EVEN = (1.0, 1.0)


@dataclass(frozen=True, slots=True)
class FixedScaling:
    """Leaves everything as it is: a fixed split."""

    type: ClassVar[str] = "fixed"

    @property
    def rehearses(self) -> bool:
        """See `Scaling.rehearses`."""
        return False

    def propose(self, inputs: Inputs) -> Proposal:
        """What is asked for."""
        return _only(inputs, inputs.wanted, "present")

    def decide(self, proposal: Proposal, rehearsals: Sequence[Rehearsal] = ()) -> Decision:
        """The same."""
        return conclude(
            proposal, steady(proposal.inputs, proposal.inputs.wanted, Windows(0, 0, 0), _even(proposal)), 0, "fixed"
        )


@dataclass(frozen=True, slots=True)
class UtilisationScaling:
    """A utilisation threshold for each pool, by the rule of Kubernetes' HorizontalPodAutoscaler.

    Wanted instances: ceil(instances x usage / target), unless the quotient is within the tolerance of 1; a pool shrinks
    to the most of the last `down_s`. Starting instances count with no usage where the pool would grow. Usage is
    the greater of KV in use over `kv_target` and requests (running and waiting) of an instance over `request_target`:
    KV for decode, requests for prefill. Each pool is on its own; a flexible pool has no usage of one role, so
    its roles stay as they are.
    """

    type: ClassVar[str] = "utilisation"
    kv_target: float = parameter(0.7, "KV in use that a decode instance should have, above 0 to 1.")
    prefill_target: float = parameter(2.0, "Requests that a prefill instance should have, running and waiting.")
    decode_target: float = parameter(200.0, "Requests that a decode instance should have, running and waiting.")
    tolerance: float = parameter(0.1, "How far the quotient may be from 1 without a change.")
    down_s: float = parameter(300.0, "Seconds for which fewer instances must have been right before a pool shrinks.")

    def __post_init__(self) -> None:
        """Raises ValueError naming the field."""
        check_within(
            self,
            kv_target=(0.01, 1),
            prefill_target=(0.01, 10_000),
            decode_target=(0.01, 10_000),
            tolerance=(0, 1),
            down_s=(0, 86_400),
        )

    @property
    def rehearses(self) -> bool:
        """See `Scaling.rehearses`."""
        return False

    def propose(self, inputs: Inputs) -> Proposal:
        """What usage asks for in each pool, as far as bounds and budget go."""
        refusal = refusal_of(inputs)
        if refusal is not None:
            return Proposal(inputs=inputs, refusal=refusal)
        if any(flexible(pool) for pool in inputs.pools):
            return Proposal(inputs=inputs, refusal=Refusal("NoPools", "utilisation scales pools of one role only"))
        layout = list(inputs.wanted)
        for k, pool in enumerate(inputs.pools):
            wanted = min(max(self._wanted(pool), pool.least, 1), pool.most)
            layout[k] = _of_role(pool, wanted)
        return _only(inputs, _in_budget(inputs, layout), "usage")

    def decide(self, proposal: Proposal, rehearsals: Sequence[Rehearsal] = ()) -> Decision:
        """That, down only after the window."""
        return _concluded(proposal, Windows(self.down_s, 0, 0), "usage over target")

    def _wanted(self, pool: Pool) -> int:
        ready, now = pool.ready.replicas, pool.wanted.replicas
        if not ready:
            return now
        requests = (pool.running + pool.waiting) / ready
        if pool.role is Role.PREFILL:
            usage = requests / self.prefill_target
        else:
            usage = max(pool.kv_usage_ratio / self.kv_target, requests / self.decode_target)
        if abs(usage - 1) <= self.tolerance:
            return now
        if usage > 1 and pool.starting:
            spread = usage * ready / (ready + pool.starting)
            return now if spread <= 1 + self.tolerance else math.ceil(spread * (ready + pool.starting))
        return math.ceil(usage * ready)


@dataclass(frozen=True, slots=True)
class MeansScaling:
    """The throughput rule of Dynamo's planner: means of the last interval, and throughput at the thresholds.

    Prefill instances: ceil(uncached prompt tokens a second / tokens a second of an instance at the mean prompt).
    Decode instances: ceil(output tokens a second / tokens a second of an instance at the context mean prompt + mean
    output / 2 with the largest batch whose step keeps the TPOT threshold). Above the budget both are scaled down alike,
    prefill rounded, decode with the rest (`docs/components/planner` of ai-dynamo/dynamo; constant prediction).
    """

    type: ClassVar[str] = "means"
    interval_s: float = parameter(180.0, "Seconds over which means are taken, and between two changes, 1 to 86400.")

    def __post_init__(self) -> None:
        """Raises ValueError naming the field."""
        check_within(self, interval_s=(1, 86_400))

    @property
    def rehearses(self) -> bool:
        """See `Scaling.rehearses`."""
        return False

    def propose(self, inputs: Inputs) -> Proposal:
        """What the means of the last interval ask for."""
        traffic, refusal = inputs.traffic, refusal_of(inputs)
        if refusal is None and traffic.lengths is None:
            refusal = Refusal("NoLengths", "there are no means of lengths")
        if refusal is None and (len(inputs.pools) != 2 or any(flexible(pool) for pool in inputs.pools)):
            refusal = Refusal("NoPools", "the rule is for one prefill and one decode pool")
        last = inputs.memory.recommended
        if refusal is not None or traffic.lengths is None:
            return Proposal(inputs=inputs, refusal=refusal)
        if last and inputs.now_s - last[-1].at_s < self.interval_s - 1e-6:
            return Proposal(inputs=inputs, refusal=Refusal("Steady", "the interval is not over"))
        bins = traffic.arrivals[-max(1, round(self.interval_s / traffic.bin_s)) :]
        rate_rps = sum(bins) / max(1, len(bins)) / traffic.bin_s
        means = traffic.lengths
        plain = LengthStatistics(
            means.input_tokens,
            means.output_tokens,
            means.input_tokens**2 / 2,
            means.input_tokens + means.output_tokens / 2,
        ).uncached(min(max(traffic.prefix_hit_ratio, 0.0), 0.99))
        tpot_s = tightest_tpot_s(inputs.objectives)
        layout = [
            _of_role(
                pool,
                max(
                    1,
                    pool.least,
                    math.ceil(
                        rate_rps
                        / (
                            prefill_rps(pool.profile, plain)
                            if pool.role is Role.PREFILL
                            else decode_rps(pool.profile, plain, tpot_s)
                        )
                    ),
                ),
            )
            for pool in inputs.pools
        ]
        return _only(inputs, _scaled_to_budget(inputs, layout), "means")

    def decide(self, proposal: Proposal, rehearsals: Sequence[Rehearsal] = ()) -> Decision:
        """That, at once."""
        return _concluded(proposal, Windows(0, 0, 0), "means over throughput")


def _only(inputs: Inputs, layout: Layout, origin: str) -> Proposal:
    return Proposal(inputs=inputs, candidates=(Candidate(layout, origin, price(inputs.pools, layout), 1.0),))


def _even(proposal: Proposal) -> Fitter:
    """Takes instances of both stages alike."""
    inputs = proposal.inputs
    return Fitter(inputs.pools, inputs.clamps, _EVEN, tuple(_EVEN for _ in inputs.pools))


def _concluded(proposal: Proposal, windows: Windows, why: str) -> Decision:
    if proposal.refusal is not None:
        return refuse(proposal)
    right = proposal.candidates[0].layout
    return conclude(proposal, steady(proposal.inputs, right, windows, _even(proposal)), 0, why)


def _of_role(pool: Pool, replicas: int) -> Counts:
    return Counts(replicas, 0) if serves(pool, Stage.PREFILL) else Counts(0, replicas)


def _in_budget(inputs: Inputs, layout: list[Counts]) -> Layout:
    """As many of the further instances as the budget has GPUs for, in turn."""
    budget, found = (
        inputs.clamps.gpu_budget,
        [min(now, then, key=_replicas) for now, then in zip(inputs.wanted, layout, strict=True)],
    )
    grown = True
    while grown:
        grown = False
        for k, pool in enumerate(inputs.pools):
            fits = budget is None or gpus(inputs.pools, tuple(found)) + pool.gpus <= budget
            if found[k].replicas < layout[k].replicas and fits:
                found[k], grown = _of_role(pool, found[k].replicas + 1), True
    return tuple(found)


def _scaled_to_budget(inputs: Inputs, layout: list[Counts]) -> Layout:
    budget, pools = inputs.clamps.gpu_budget, inputs.pools
    bounded = [_of_role(pool, min(counts.replicas, pool.most)) for pool, counts in zip(pools, layout, strict=True)]
    needed = gpus(pools, tuple(bounded))
    if budget is None or needed <= budget:
        return tuple(bounded)
    first = 0 if pools[0].role is Role.PREFILL else 1
    other = 1 - first
    least = [max(1, pool.least) for pool in pools]
    prefill = max(least[first], round(bounded[first].replicas * budget / needed))
    prefill = min(prefill, (budget - least[other] * pools[other].gpus) // pools[first].gpus)
    decode = max(least[other], (budget - prefill * pools[first].gpus) // pools[other].gpus)
    found = list(bounded)
    found[first], found[other] = _of_role(pools[first], prefill), _of_role(pools[other], min(decode, pools[other].most))
    return tuple(found)


def _replicas(counts: Counts) -> int:
    return counts.replicas
