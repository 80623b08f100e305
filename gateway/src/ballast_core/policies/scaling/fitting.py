"""Layouts within clamps: the least one that meets a demand, its neighbours, and why there may be none."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ballast_core.attainment import Objective
from ballast_core.model import STAGE_ROLES, Stage
from ballast_core.policies.scaling.protocol import Clamps, Counts, Demand, Inputs, Layout, Pool, Refusal
from ballast_core.profiles.capacity import LengthStatistics, decode_rps, prefill_rps

_STAGES = (Stage.PREFILL, Stage.DECODE)
_ENOUGH = 1 - 1e-9


def serves(pool: Pool, stage: Stage) -> bool:
    """Whether instances of the pool can have this stage."""
    return pool.role in STAGE_ROLES[stage]


def flexible(pool: Pool) -> bool:
    """Whether its instances can have either."""
    return all(serves(pool, stage) for stage in _STAGES)


def price(pools: Sequence[Pool], layout: Layout) -> float:
    """Of all instances together."""
    return sum(pool.price * counts.replicas for pool, counts in zip(pools, layout, strict=True))


def gpus(pools: Sequence[Pool], layout: Layout) -> int:
    """GPUs of all instances together."""
    return sum(pool.gpus * counts.replicas for pool, counts in zip(pools, layout, strict=True))


def ratio_fits(layout: Layout, clamps: Clamps) -> bool:
    """Whether both stages have an instance, and as many prefill ones for each decode one as clamps want."""
    prefill, decode = _totals(layout)
    return prefill >= 1 and decode >= 1 and not _too_low(layout, clamps) and not _too_high(layout, clamps)


def within(pools: Sequence[Pool], layout: Layout, clamps: Clamps) -> bool:
    """Whether a layout keeps to every clamp."""
    return (
        all(pool.least <= counts.replicas <= pool.most for pool, counts in zip(pools, layout, strict=True))
        and (clamps.gpu_budget is None or gpus(pools, layout) <= clamps.gpu_budget)
        and ratio_fits(layout, clamps)
    )


@dataclass(frozen=True, slots=True)
class Fitter:
    """Fits layouts to what prefill and decode must carry, in requests a second.

    `rates`: what one instance of each pool carries, prefill and decode; 0 where a mean request alone on it misses an
    objective already.
    """

    pools: tuple[Pool, ...]
    clamps: Clamps
    needs: tuple[float, float]
    rates: tuple[tuple[float, float], ...]

    @classmethod
    def of(cls, inputs: Inputs, demand: Demand, tpot_s: float | None) -> Fitter:
        """For a demand; `tpot_s` bounds the batch with which a decode instance counts."""
        rates = tuple(_rates(pool, inputs.objectives, demand.lengths, tpot_s) for pool in inputs.pools)
        return cls(inputs.pools, inputs.clamps, (demand.prefill_rps, demand.decode_rps), rates)

    def covers(self, layout: Layout) -> tuple[float, float]:
        """What prefill and decode instances carry over what is needed."""
        prefill = sum(counts.prefill * rate for counts, (rate, _) in zip(layout, self.rates, strict=True))
        decode = sum(counts.decode * rate for counts, (_, rate) in zip(layout, self.rates, strict=True))
        return prefill / self.needs[0], decode / self.needs[1]

    def cover(self, layout: Layout) -> float:
        """The lesser of `covers`."""
        return min(self.covers(layout))

    def fit(self) -> Layout | None:
        """The least layout that covers the needs, or the best balanced one that clamps allow; None: they allow none.

        It grows from nothing by one instance at a time, for the stage that is covered worst, from the pool that serves
        it cheapest. Every such path passes the same layouts whatever the traffic's rate, so more of the same traffic
        never gets fewer instances.
        """
        layout: Layout = tuple(Counts() for _ in self.pools)
        found: Layout | None = None
        while True:
            short = next((k for k, pool in enumerate(self.pools) if layout[k].replicas < pool.least), None)
            if short is None and ratio_fits(layout, self.clamps):
                found = layout
                if self.cover(layout) >= _ENOUGH:
                    return found
            grown = self._grown(layout, short)
            if grown is None:
                return found
            layout = grown

    def refit(self, layout: Layout, replicas: Sequence[int]) -> Layout:
        """The same with so many instances in each pool: added where they are needed most, taken where least."""
        for k, wanted in enumerate(replicas):
            while layout[k].replicas > wanted:
                layout = _added(layout, k, self._spare(layout, k), -1)
            while layout[k].replicas < wanted:
                stage = next(stage for stage in self._wanted_stages(layout) if serves(self.pools[k], stage))
                layout = _added(layout, k, stage)
        return layout

    def _spare(self, layout: Layout, k: int) -> Stage:
        """The stage that can spare an instance of a pool best."""
        prefill, decode = self.covers(layout)
        if not layout[k].prefill or not layout[k].decode:
            return Stage.PREFILL if layout[k].prefill else Stage.DECODE
        return Stage.PREFILL if prefill > decode else Stage.DECODE

    def _grown(self, layout: Layout, short: int | None) -> Layout | None:
        """One instance more; None where nothing fits that helps."""
        among = range(len(self.pools)) if short is None else [short]
        for stage in self._wanted_stages(layout):
            side = _STAGES.index(stage)
            options = [k for k in among if self._has_room(layout, k) and serves(self.pools[k], stage)]
            if short is None:
                options = [k for k in options if self.rates[k][side]]
            if options:
                cheapest = min(options, key=lambda k: (self._price(k, side), k))
                return _added(layout, cheapest, stage)
        return None

    def _price(self, k: int, side: int) -> float:
        """Of what one request a second needs of a stage there."""
        rate = self.rates[k][side]
        return self.pools[k].price / rate if rate else math.inf

    def _wanted_stages(self, layout: Layout) -> list[Stage]:
        """The stages that may grow, the more urgent first."""
        prefill, decode = self.covers(layout)
        if _totals(layout)[0] >= 1 and _totals(layout)[1] >= 1:
            if _too_low(layout, self.clamps):
                return [Stage.PREFILL, Stage.DECODE]
            if _too_high(layout, self.clamps):
                return [Stage.DECODE, Stage.PREFILL]
        first = Stage.PREFILL if prefill <= decode else Stage.DECODE
        other = Stage.DECODE if first is Stage.PREFILL else Stage.PREFILL
        return [first, other]

    def _has_room(self, layout: Layout, k: int) -> bool:
        pool, budget = self.pools[k], self.clamps.gpu_budget
        fits = budget is None or gpus(self.pools, layout) + pool.gpus <= budget
        return fits and layout[k].replicas < pool.most

    def neighbours(self, layout: Layout) -> Iterator[tuple[str, Layout]]:
        """Layouts one step away that keep to the clamps, each with what it is."""
        for k, pool in enumerate(self.pools):
            named = "" if len(self.pools) == 1 else f" in {pool.name}"
            for stage in _STAGES:
                if not serves(pool, stage):
                    continue
                other = Stage.DECODE if stage is Stage.PREFILL else Stage.PREFILL
                steps = [(f"one {stage} less{named}", _added(layout, k, stage, -1))]
                steps.append((f"one {stage} more{named}", _added(layout, k, stage)))
                if flexible(pool):
                    steps.append((f"one {stage} for a {other}{named}", _added(_added(layout, k, other, -1), k, stage)))
                for name, step in steps:
                    if min(step[k].prefill, step[k].decode) >= 0 and within(self.pools, step, self.clamps):
                        yield name, step


def _rates(
    pool: Pool, objectives: Sequence[Objective], lengths: LengthStatistics, tpot_s: float | None
) -> tuple[float, float]:
    """What an instance carries of either stage within the objectives."""
    profile = pool.profile
    prefill, decode = prefill_rps(profile, lengths), decode_rps(profile, lengths, tpot_s)
    prompt_s, step_s = 1 / prefill, profile.step_s(1, lengths.context_tokens, 0, 1)
    for each in objectives:
        if prompt_s > min(each.ttft_s or math.inf, each.e2e_s or math.inf):
            prefill = 0.0
        if step_s > (each.tpot_s or math.inf) or step_s * lengths.output_tokens > (each.e2e_s or math.inf):
            decode = 0.0
    return prefill, decode


def refusal_of(inputs: Inputs) -> Refusal | None:
    """Why no layout is right whatever the traffic, if so."""
    pools, clamps = inputs.pools, inputs.clamps
    for pool in pools:
        if pool.least > pool.most:
            return Refusal(
                "ClampsContradict", f"pool {pool.name}: at least {pool.least} and at most {pool.most} instances"
            )
    for stage in _STAGES:
        if not any(serves(pool, stage) and pool.most for pool in pools):
            return Refusal("NoPools", f"no pool may have an instance for {stage}")
    if sum(pool.most for pool in pools) < len(_STAGES):
        return Refusal("NoPools", "two instances are needed, one for prefill and one for decode")
    low, high = clamps.min_ratio, clamps.max_ratio
    if low is not None and high is not None and low > high:
        return Refusal("ClampsContradict", f"minRatio {low:g} is above maxRatio {high:g}")
    least = sum(pool.gpus * pool.least for pool in pools)
    if clamps.gpu_budget is not None and least > clamps.gpu_budget:
        return Refusal(
            "BudgetTooSmall", f"the pools must have {least} GPUs at least; the budget is {clamps.gpu_budget}"
        )
    if least_layout(inputs) is None:
        if clamps.gpu_budget is not None and least_layout(_unbudgeted(inputs)) is not None:
            return Refusal("BudgetTooSmall", f"no layout of {clamps.gpu_budget} GPUs satisfies minimums and ratio")
        return Refusal(
            "ClampsContradict", f"no numbers of instances within the pools' bounds have a ratio of {_band(clamps)}"
        )
    return None


def least_layout(inputs: Inputs) -> Layout | None:
    """The first layout within the clamps, from the instances of fewest GPUs; None: there is none."""
    rates = tuple((pool.price / pool.gpus,) * 2 for pool in inputs.pools)
    return Fitter(inputs.pools, inputs.clamps, (1e-9, 1e-9), rates).fit()


def _unbudgeted(inputs: Inputs) -> Inputs:
    return replace(inputs, clamps=replace(inputs.clamps, gpu_budget=None))


def _band(clamps: Clamps) -> str:
    low = "0" if clamps.min_ratio is None else f"{clamps.min_ratio:g}"
    return f"{low} to {'any' if clamps.max_ratio is None else f'{clamps.max_ratio:g}'}"


def _totals(layout: Layout) -> tuple[int, int]:
    return sum(counts.prefill for counts in layout), sum(counts.decode for counts in layout)


def _too_low(layout: Layout, clamps: Clamps) -> bool:
    prefill, decode = _totals(layout)
    return clamps.min_ratio is not None and prefill < clamps.min_ratio * decode - 1e-9


def _too_high(layout: Layout, clamps: Clamps) -> bool:
    prefill, decode = _totals(layout)
    return clamps.max_ratio is not None and prefill > clamps.max_ratio * decode + 1e-9


def _added(layout: Layout, k: int, stage: Stage, count: int = 1) -> Layout:
    counts = layout[k]
    more = (count, 0) if stage is Stage.PREFILL else (0, count)
    return (*layout[:k], Counts(counts.prefill + more[0], counts.decode + more[1]), *layout[k + 1 :])
