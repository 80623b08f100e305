"""`--engine-scheduler`: names, and what a fleet does with them."""

from __future__ import annotations

import dataclasses

import pytest

from ballast_core.policies.queue.uniboost import UniBoost
from ballast_sim.engine.scheduling import VLLM_OWN
from ballast_sim.simulation.inputs.engine_scheduler import parse_scheduler
from ballast_sim.simulation.inputs.fleet_settings import FleetSettings
from ballast_sim.simulation.inputs.length_hints import LengthHints
from ballast_sim.simulation.inputs.shapes import parse_shape
from ballast_sim.simulation.inputs.source import WorkloadSource
from ballast_sim.simulation.policies.choice import parse_policies
from ballast_sim.simulation.runs.experiment import Outcome, RunSpec, Setup, run


def test_names_and_settings() -> None:
    """As docs/simulate/engines.md spells them."""
    assert parse_scheduler("fcfs") == VLLM_OWN
    assert parse_scheduler("sarathi:512").chunk_tokens == 512
    assert parse_scheduler("sarathi:512").order is None
    made = parse_scheduler("uniboost:gamma=0.3,k=128,delta=0.2,chunk=1024,preempt=swap,adaptive=false")
    assert made.order == UniBoost(gamma_per_s=0.3, bin_tokens=128, preemption_margin_s=0.2, adaptive=False)
    assert (made.chunk_tokens, made.preempt) == (1024, "swap")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("unibost", "unknown scheduler 'unibost'.*did you mean uniboost"),
        ("sarathi", "sarathi: needs the tokens of a step; write such as sarathi:512"),
        ("fcfs:k=2", "fcfs: takes no bin_tokens; it takes chunk"),
        ("las:chunk=0", "las: chunk: must be a number of tokens, 1 or more, not 0"),
        ("las:preempt=maybe", "las: preempt: must be recompute, swap, none, not 'maybe'"),
        ("uniboost:gamma=-1", "uniboost: gamma_per_s"),
        ("uniboost:gamma=1,gamma=2", "gamma_per_s is given twice"),
        ("uniboost:tempo=1", "uniboost: .*tempo"),
    ],
)
def test_errors_name_field_and_fix(text: str, says: str) -> None:
    """One line each."""
    with pytest.raises(ValueError, match=f"^engine_scheduler: .*{says}|^engine_scheduler: {says}"):
        parse_scheduler(text)


def test_what_makes_no_sense_together_is_refused() -> None:
    """An order by lengths without lengths; an order for engines that have no scheduler."""
    with pytest.raises(ValueError, match="goes by predicted output lengths"):
        FleetSettings(engine_scheduler=parse_scheduler("srpt"))
    with pytest.raises(ValueError, match="not for physics ares-linear"):
        FleetSettings(engine_scheduler=parse_scheduler("las"), physics="ares-linear")


def outcome(scheduler: str, shape: str, *, stepwise: bool = False) -> Outcome:
    """A small fleet, full."""
    profile = next(iter(parse_shape(shape))).profile
    small = dataclasses.replace(profile, kv_tokens=24_000, max_num_seqs=24)
    machines = tuple(dataclasses.replace(machine, profile=small) for machine in parse_shape(shape))
    settings = FleetSettings(
        known_limits=False, length_hints=LengthHints(), engine_scheduler=parse_scheduler(scheduler)
    )
    source = WorkloadSource(workload="chat", rate_rps=12, limit=160)
    setup = Setup(machines=machines, shape=shape, source=source, fleet=settings)
    (policy,) = parse_policies("least-requests")
    return run(RunSpec(setup=setup, policy=policy), stepwise=stepwise)


@pytest.mark.rotating(3)
@pytest.mark.parametrize("shape", ["1C@a100-llama3-8b", "1P1D@a100-llama3-8b"])
@pytest.mark.parametrize("scheduler", ["uniboost:k=64,delta=0", "srpt:preempt=swap", "las:chunk=512"])
def test_fleets_run_by_an_order_coarse_or_step_by_step(shape: str, scheduler: str) -> None:
    """Colocated and disaggregated; the same figures both ways, and not those of first come, first served."""
    varying = ("decision_us", "sim_wall_s", "engine_scheduler", "tbt_s")  # sums of gaps are taken in another order
    figures = [
        {key: value for key, value in made.figures.items() if key not in varying}
        for made in (
            outcome(scheduler, shape),
            outcome(scheduler, shape, stepwise=True),
            outcome("fcfs", shape),
        )
    ]
    assert figures[0] == figures[1]
    assert figures[0]["completed"] == 160
    assert figures[0]["e2e_s"] != figures[2]["e2e_s"]
