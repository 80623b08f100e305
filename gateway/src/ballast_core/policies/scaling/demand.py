"""What traffic needs of each stage, by the arithmetic of `ballast_core.profiles.capacity`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ballast_core.attainment import Objective
from ballast_core.model import Stage
from ballast_core.policies.scaling.fitting import serves
from ballast_core.policies.scaling.forecast import holt_damped
from ballast_core.policies.scaling.protocol import Demand, Inputs, Pool, Refusal, Traffic
from ballast_core.profiles.capacity import LengthStatistics, decode_batch, prefill_rps


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserves:
    """How much room is planned beyond the mean traffic."""

    prefill_load: float
    """Share of what prefill instances carry that the forecast may take."""
    decode_load: float
    backlog_s: float
    """Seconds in which the prompts that wait should be computed, beside what arrives."""


def tightest_tpot_s(objectives: tuple[Objective, ...]) -> float | None:
    """The TPOT threshold that every class's decodes must keep; None without one."""
    return min((each.tpot_s for each in objectives if each.tpot_s is not None), default=None)


def demand_of(inputs: Inputs, reserves: Reserves) -> Demand | Refusal:
    """What the traffic needs, or why that cannot be said."""
    traffic = inputs.traffic
    if not traffic.arrivals:
        return Refusal("NoTraffic", "no window of arrivals is over since a gateway began to count")
    if not sum(traffic.arrivals):
        return Refusal("NoTraffic", "no request arrived in the last windows")
    if traffic.lengths is None or traffic.lengths.output_tokens <= 0:
        return Refusal("NoLengths", "requests arrived, but none has told how long its prompt and its output are")
    unknown = sorted({pool.profile.name for pool in inputs.pools if not pool.profile.speed_known and pool.most})
    if unknown:
        return Refusal("SpeedUnknown", f"{', '.join(unknown)}: no speed is declared, and too little was learned yet")
    lengths = traffic.lengths.uncached(min(max(traffic.prefix_hit_ratio, 0.0), 0.99))
    refusal = _out_of_reach(inputs, lengths)
    if refusal is not None:
        return refusal
    rates = [count / traffic.bin_s for count in traffic.arrivals]
    level, ahead = holt_damped(rates, inputs.startup_s / traffic.bin_s)
    planned = max(level, ahead, 1 / (len(rates) * traffic.bin_s))  # a fall may be forecast to no request at all
    tpot_s = tightest_tpot_s(inputs.objectives)
    return Demand(
        rate_rps=level,
        forecast_rps=ahead,
        lengths=lengths,
        prefill_rps=planned / reserves.prefill_load
        + traffic.backlog_tokens / max(1.0, lengths.input_tokens) / reserves.backlog_s,
        decode_rps=max(planned / reserves.decode_load, _held_rps(inputs.pools, traffic, lengths, tpot_s)),
    )


def _held_rps(pools: tuple[Pool, ...], traffic: Traffic, lengths: LengthStatistics, tpot_s: float | None) -> float:
    """The rate at which decodes of these lengths would hold as much KV as is held now: it is needed until they end."""
    batches = [
        decode_batch(each.profile, lengths.context_tokens, tpot_s) for each in pools if serves(each, Stage.DECODE)
    ]
    sequences = traffic.decoding_tokens / lengths.context_tokens
    return sequences / (min(step_s for _, step_s in batches) * lengths.output_tokens)


def misses(inputs: Inputs) -> bool:
    """Whether a class misses its objective for certain: the upper end of its interval is below it."""
    allowed = {each.name: each.target for each in inputs.objectives}
    return any(each.counts.interval()[1] < allowed.get(each.name, 0.0) for each in inputs.traffic.attained)


def _out_of_reach(inputs: Inputs, lengths: LengthStatistics) -> Refusal | None:
    """Whether a mean request alone on the best instance misses a threshold already."""
    decoders = [pool.profile for pool in inputs.pools if serves(pool, Stage.DECODE)]
    prefillers = [pool.profile for pool in inputs.pools if serves(pool, Stage.PREFILL)]
    step_s = min(profile.step_s(1, lengths.context_tokens, 0, 1) for profile in decoders)
    prompt_s = min(1 / prefill_rps(profile, lengths) for profile in prefillers)
    for each in inputs.objectives:
        for what, limit_s, least_s in (
            ("TPOT", each.tpot_s, step_s),
            ("TTFT", each.ttft_s, prompt_s),
            ("E2E", each.e2e_s, prompt_s + step_s * lengths.output_tokens),
        ):
            if limit_s is not None and least_s > limit_s:
                return Refusal(
                    "ObjectiveOutOfReach",
                    f"class {each.name}: a mean request alone on an instance has a {what} of some "
                    f"{_up(least_s):g} s; the objective is {limit_s:g} s",
                )
    return None


def _up(value: float) -> float:
    """To three digits, and not below the value: whoever sets it as a threshold gets one that can be met."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return math.ceil(value / unit) * unit
