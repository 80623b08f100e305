"""The capacity of a set-up: the highest rate of arrivals that least-requests/least-requests sustains, bound late.

With a TTFT objective a rate is sustained while P99 TTFT stays within it. Without one, while the queue does not grow:
the requests are taken in order of arrival in ten equal groups, and the line through the groups' median TTFT (least
squares over their mean arrival) must rise by less than `GROWTH_RATIO` seconds a second. Where arrivals exceed what
the fleet serves by a share x, TTFT rises by x seconds a second, so this is the rate that is served in full to within
2 %. A request without a first token when the run is cut counts with its age, which it exceeds.

Decode endpoints fill up over minutes where outputs are long; a shorter run cannot see that they will be full. So no
rate beyond 1.2 times what decode carries by arithmetic (`ballast_sim.capacity`) is tried.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ballast_core.model import STAGE_ROLES, Stage
from ballast_core.profiles.capacity import LengthStatistics
from ballast_sim.physics import PHYSICS
from ballast_sim.settings import SettingError
from ballast_sim.simulation.fleet.fleet import Fleet
from ballast_sim.simulation.inputs.objective import Objective
from ballast_sim.simulation.inputs.source import Load
from ballast_sim.simulation.policies.choice import least_requests
from ballast_sim.simulation.runs.experiment import Beat, RunSpec, Setup, build_fleet

TOLERANCE_RATIO = 0.01
GROWTH_RATIO = 0.02
GROUPS = 10
BOUND_RATIO = 1.2
CAPACITY_SEED = 0
"""Capacity is measured with this seed whatever the runs' seeds are, so that all of them see the same rate."""


class CapacityError(SettingError):
    """No capacity could be found; the message gives the reason and the fix."""


class Interrupted(Exception):
    """The search was stopped."""


@dataclass(frozen=True, slots=True)
class MeasuredCapacity:
    """`rate_scale` multiplies the workload's own rate; `rate_rps` is that of the arrivals in the run."""

    rate_scale: float
    rate_rps: float | None
    probes: int
    bounded: bool
    """Whether the arithmetic bound ended the search: the run is too short to show the limit."""


Probe = Callable[[float], bool]
"""Whether a rate scale is sustained."""


def highest_sustained(probe: Probe, start: float, bound: float) -> tuple[float, int, bool]:
    """The highest rate scale up to `bound` that `probe` accepts, to within `TOLERANCE_RATIO`.

    Returns it, the number of probes, and whether it is the bound. Assumes that a fleet which sustains one rate
    sustains lower ones. Raises `CapacityError` where not even a fiftieth of `start` is sustained.
    """
    probes, low, high = 0, 0.0, math.inf
    scale = min(start, bound)
    while not high < math.inf:
        probes += 1
        if not probe(scale):
            high = scale
        elif scale >= bound:
            return scale, probes, True
        else:
            low, scale = scale, min(scale * 1.3, bound)
    while low == 0:
        if high < start / 50:
            raise CapacityError("load", "not even 2 % of what arithmetic promises is sustained")
        scale = high * 0.7
        probes += 1
        if probe(scale):
            low = scale
        else:
            high = scale
    while high / low > 1 + TOLERANCE_RATIO:
        scale = math.sqrt(low * high)
        probes += 1
        if probe(scale):
            low = scale
        else:
            high = scale
    return low, probes, False


def measure_capacity(
    setup: Setup,
    on_probe: Callable[[float, bool], None] | None = None,
    beat: Beat | None = None,
) -> MeasuredCapacity:
    """Find it by simulation, without failures. Raises `CapacityError`, `Interrupted`, and what the workload raises."""
    setup = replace(setup.unharmed, objective=Objective(ttft_s=setup.objective.ttft_s))
    spec = RunSpec(setup=setup, policy=least_requests(), seed=CAPACITY_SEED)
    base = setup.source.load(CAPACITY_SEED, 1.0)
    if base.rate_rps is None:
        raise CapacityError("load", "the workload's requests arrive at one instant and have no rate; use --rate-scale")
    start, bound = _arithmetic(setup, base)

    def probe(scale: float) -> bool:
        sustained = _sustained(spec, scale, beat)
        if on_probe is not None:
            on_probe(scale, sustained)
        return sustained

    try:
        scale, probes, bounded = highest_sustained(probe, start, bound)
    except CapacityError as error:
        wanted = setup.objective.ttft_s
        reason = f"P99 TTFT within {wanted:g} s" if wanted is not None else "a queue that does not grow"
        raise CapacityError("load", f"{error.problem}, asked for {reason}; ease --slo or add endpoints") from None
    return MeasuredCapacity(scale, setup.source.load(CAPACITY_SEED, scale).rate_rps, probes, bounded)


def _arithmetic(setup: Setup, base: Load) -> tuple[float, float]:
    """The first rate to try, and the highest; as rate scales."""
    lengths = LengthStatistics.of(base.requests)
    stages = {
        stage: [machine.profile for machine in setup.machines if machine.endpoint.role in STAGE_ROLES[stage]]
        for stage in Stage
    }
    physics = PHYSICS[setup.fleet.physics]
    prefill = physics.prefill_rps(stages[Stage.PREFILL], lengths)
    decode = physics.decode_rps(stages[Stage.DECODE], lengths)
    assert base.rate_rps is not None
    return min(prefill, decode) / base.rate_rps, BOUND_RATIO * decode / base.rate_rps


def _sustained(spec: RunSpec, scale: float, beat: Beat | None) -> bool:
    load = spec.setup.source.load(spec.seed, scale)
    fleet = build_fleet(spec, load)
    if beat is not None:
        fleet.every(1.0, lambda: fleet.stop() if beat(_share_arrived(fleet)) else None)
    last_s = load.requests[-1].arrival_s
    wanted = spec.setup.objective.ttft_s
    lost = False

    def give_up() -> None:
        nonlocal lost
        if wanted is not None and hopeless(fleet, wanted):
            lost = True
            fleet.stop()

    if last_s > 0:
        fleet.every(last_s / 50, give_up)
    fleet.run(last_s + max(10.0, 0.1 * last_s, 2 * (wanted or 0.0)))
    if lost:
        return False
    if fleet.stopped:
        raise Interrupted
    ages = waits(fleet)
    if wanted is not None:
        return float(np.percentile([wait_s for _, wait_s in ages], 99)) <= wanted
    return growth(ages) < GROWTH_RATIO


def hopeless(fleet: Fleet, wanted_s: float) -> bool:
    """Whether so many requests have missed a TTFT already that its 99th percentile must."""
    late = sum(wait_s > wanted_s for _, wait_s in waits(fleet))
    return late > 0.01 * len(fleet.records) + 1


def _share_arrived(fleet: Fleet) -> float:
    return sum(record.arrived for record in fleet.records) / len(fleet.records)


def waits(fleet: Fleet) -> list[tuple[float, float]]:
    """(arrival, TTFT) of every request that arrived, or its age where its first token has not come."""
    return [
        (record.arrival_s, fleet.kernel.now_s - record.arrival_s if record.ttft_s is None else record.ttft_s)
        for record in sorted(fleet.records, key=lambda record: record.arrival_s)
        if record.arrived
    ]


def growth(ages: Sequence[tuple[float, float]]) -> float:
    """Seconds by which the median TTFT rises per second of arrivals; 0 where there are too few requests."""
    groups = [ages[k * len(ages) // GROUPS : (k + 1) * len(ages) // GROUPS] for k in range(GROUPS)]
    if len(ages) < 2 * GROUPS:
        return 0.0
    centres = [statistics.fmean(arrival_s for arrival_s, _ in group) for group in groups]
    medians = [statistics.median(wait_s for _, wait_s in group) for group in groups]
    if centres[0] == centres[-1]:
        return 0.0
    return float(np.polyfit(centres, medians, 1)[0])
