"""A scaling policy in the loop of a run: machines start late, drain and flip; nothing is lost; GPUs are counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest

from ballast_core.model import Role
from ballast_core.policies.scaling.ballast import BallastScaling
from ballast_core.policies.scaling.baselines import FixedScaling, UtilisationScaling
from ballast_core.policies.scaling.protocol import (
    Candidate,
    Clamps,
    Counts,
    Decision,
    Demand,
    Inputs,
    Layout,
    Proposal,
    Rehearsal,
    Scaling,
    Traffic,
)
from ballast_core.profiles import SHIPPED_PROFILES
from ballast_core.profiles.capacity import LengthStatistics
from ballast_sim.settings import SettingError
from ballast_sim.simulation.autoscaling.controller import Autoscaler
from ballast_sim.simulation.autoscaling.rehearsal import Recorded, Rehearser
from ballast_sim.simulation.autoscaling.settings import Autoscaling, Rehearsing, parse_prices, parse_scaling
from ballast_sim.simulation.fleet.fleet import Fleet
from ballast_sim.simulation.inputs.fleet_settings import FleetSettings
from ballast_sim.simulation.inputs.objective import Objective
from ballast_sim.simulation.inputs.shapes import parse_shape
from ballast_sim.simulation.inputs.source import Load, WorkloadSource
from ballast_sim.simulation.policies.choice import parse_policies
from ballast_sim.simulation.runs.experiment import RunSpec, Setup, build_fleet, director_settings, run
from ballast_sim.workloads import WorkloadRequest

pytestmark = pytest.mark.rotating(4, each=True)

H200 = "h200-qwen3-32b"
OBJECTIVE = Objective(ttft_s=2.0, tpot_s=0.05)


@dataclass(frozen=True, slots=True)
class Script:
    """Asks for given layouts from given times on."""

    steps: tuple[tuple[float, Layout], ...] = ()
    type: ClassVar[str] = "script"

    @property
    def rehearses(self) -> bool:
        """Never."""
        return False

    def propose(self, inputs: Inputs) -> Proposal:
        """Nothing."""
        return Proposal(inputs=inputs)

    def decide(self, proposal: Proposal, rehearsals: Sequence[Rehearsal] = ()) -> Decision:
        """The last step whose time has come."""
        inputs = proposal.inputs
        due = [layout for at_s, layout in self.steps if at_s <= inputs.now_s]
        target = due[-1] if due else inputs.wanted
        return Decision(proposal=proposal, target=target, reason="Steady", message="")


def spec_of(shape: str, policy: Scaling, *, rate_rps: float = 4.0, duration_s: float = 120.0, **more: Any) -> RunSpec:
    """A run of `chat` on H200."""
    settings = {"startup_s": 30.0, "interval_s": 10.0, "clamps": Clamps(gpu_budget=6), "most": 6, **more}
    setup = Setup(
        machines=parse_shape(shape, H200),
        shape=shape,
        source=WorkloadSource(workload="chat", rate_rps=rate_rps, duration_s=duration_s),
        objective=OBJECTIVE,
        autoscaling=Autoscaling(policy=policy, **settings),
    )
    return RunSpec(setup=setup, policy=parse_policies("ballast")[0])


def ran(spec: RunSpec) -> tuple[Fleet, Autoscaler]:
    """The run, to its end."""
    fleet = build_fleet(spec, spec.setup.source.load(0, 1.0))
    assert spec.setup.autoscaling is not None
    scaler = Autoscaler.of(fleet, spec.setup.autoscaling, OBJECTIVE, director_settings(spec))
    fleet.run()
    fleet.world.check_blocks()
    return fleet, scaler


def test_a_new_machine_takes_requests_only_after_its_start_up_time() -> None:
    policy = Script(((10.0, (Counts(1, 0), Counts(0, 3))),))
    fleet, scaler = ran(spec_of("1P1D", policy))
    begun = 10.0 + scaler.settings.delay_s + 30.0
    first = {
        name: min(record.arrival_s for record in fleet.records if record.decode == name)
        for name in ("d000", "d001", "d002")
    }
    assert first["d000"] < begun
    assert min(first["d001"], first["d002"]) > begun - 2.0, "but for what was prefilled when it came"
    assert all(record.completed for record in fleet.records)


def test_a_machine_that_drains_gets_nothing_new_and_ends_what_it_has() -> None:
    policy = Script(((40.0, (Counts(2, 0), Counts(0, 1))),))
    fleet, scaler = ran(spec_of("2P3D", policy))
    assert all(record.completed and not record.broken for record in fleet.records)
    assert len(fleet.world.machines) == 3
    asked_s = 40.0 + scaler.settings.delay_s
    left = {record.decode for record in fleet.records if record.arrival_s > asked_s}
    assert len(left) == 1
    ends = [
        record.last_token_s for record in fleet.records if record.decode not in left and record.last_token_s is not None
    ]
    assert max(ends) > asked_s, "requests were running there"
    hours, _ = scaler.instances.hours(120.0)
    assert hours < (5 * 120 - 2 * (120 - max(ends))) / 3600 + 0.01
    assert hours > (5 * asked_s + 3 * (120 - asked_s)) / 3600


def test_roles_flip_at_once_and_what_runs_goes_on() -> None:
    policy = Script(((30.0, (Counts(1, 3),)), (60.0, (Counts(3, 1),))))
    fleet, scaler = ran(spec_of("4F", policy, rate_rps=8.0))
    assert all(record.completed and not record.broken for record in fleet.records)
    for begin_s, end_s, prefills, decodes in ((32.0, 60.0, 1, 3), (62.0, 120.0, 3, 1)):
        some = [record for record in fleet.records if begin_s + 1 < record.arrival_s < end_s - 2]
        assert len({record.prefill for record in some}) == prefills
        assert len({record.decode for record in some}) == decodes
    assert scaler.instances.gpus == 4


def test_a_scrape_under_way_neither_undoes_a_flip_nor_brings_back_what_is_gone() -> None:
    """Scrapes at 0.2, 0.4, ... s arrive 0.15 s later; at 1.05 s the one of 1.0 s is on its way."""
    spec = spec_of("4F", Script(), duration_s=20.0)
    delayed = replace(spec, setup=replace(spec.setup, fleet=replace(spec.setup.fleet, scrape_delay_s=0.15)))
    fleet = build_fleet(delayed, WorkloadSource(workload="chat", rate_rps=1.0, limit=1).load(0, 1.0))
    names = [machine.endpoint.id for machine in fleet.world.machines]
    fleet.run(1.05)
    fleet.stopped = False
    for name in names[:2]:
        fleet.become(name, Role.PREFILL)
    fleet.drain(names[3])
    assert fleet.remove_if_empty(names[3])
    fleet.kernel.run(1.19)
    assert len(fleet.director.inventory.ready_of(Role.PREFILL)) == 2
    assert len(fleet.director.inventory.ready_of(Role.FLEXIBLE)) == 1
    assert names[3] not in fleet.director.inventory.known()


def test_a_fixed_fleet_costs_all_its_gpus_all_the_time() -> None:
    figures: Any = run(spec_of("2P2D", FixedScaling(), prices={H200: 5.0})).figures
    scaled = figures["autoscaling"]
    assert scaled["gpu_hours"] == pytest.approx(4 * 120 / 3600, rel=0.02)
    assert scaled["cost"] == pytest.approx(5.0 * scaled["gpu_hours"])
    assert scaled["changes"] == 0


def test_a_fixed_fleet_costs_until_the_last_turn_of_a_conversation_arrives() -> None:
    """In a closed loop turns arrive later than they are logged."""
    spec = spec_of("1P1D", FixedScaling())
    source = WorkloadSource(workload="multi-turn", limit=40, closed_loop=True)
    figures: Any = run(replace(spec, setup=replace(spec.setup, source=source))).figures
    logged_s = source.load(0, 1.0).requests[-1].arrival_s
    assert figures["arrivals_s"] > 1.05 * logged_s
    assert figures["autoscaling"]["gpu_hours"] == pytest.approx(2 * figures["arrivals_s"] / 3600, rel=1e-3)


@pytest.mark.parametrize("shape", ["1P1D", "2F"])
@pytest.mark.parametrize("policy", [BallastScaling(down_s=30.0), UtilisationScaling(down_s=30.0)], ids=lambda p: p.type)
def test_the_budget_holds_at_every_instant_and_no_request_is_lost(shape: str, policy: Scaling) -> None:
    spec = spec_of(shape, policy, rate_rps=20.0, startup_s=15.0, duration_s=90.0, clamps=Clamps(gpu_budget=4))
    fleet = build_fleet(spec, spec.setup.source.load(0, 1.0))
    assert spec.setup.autoscaling is not None
    scaler = Autoscaler.of(fleet, spec.setup.autoscaling, OBJECTIVE, director_settings(spec))
    seen: list[int] = []
    fleet.every(0.5, lambda: seen.append(scaler.instances.gpus))
    fleet.run()
    assert max(seen) <= 4
    assert all(record.completed for record in fleet.records)
    if policy.type == "ballast":
        assert max(seen) > 2


def test_more_machines_meet_an_objective_that_the_first_ones_miss() -> None:
    few, more = (
        run(spec_of("2F", policy, rate_rps=16.0, duration_s=120.0, startup_s=10.0)).figures["attainment"]
        for policy in (Script(), BallastScaling(rehearse=False))
    )
    assert isinstance(few, float)
    assert isinstance(more, float)
    assert more > few + 0.1


def test_runs_with_rehearsals_are_the_same_every_time() -> None:
    limits = Rehearsing(window_s=5.0, trial_s=5.0)
    spec = spec_of("2F", BallastScaling(candidates=2), rate_rps=16.0, duration_s=24.0, rehearsing=limits)
    once, again = (run(spec).figures for _ in range(2))
    assert once["autoscaling"] == again["autoscaling"]
    assert once["e2e_s"] == again["e2e_s"]
    scaled: Any = once["autoscaling"]
    tried = [each["attainment"] for record in scaled["decisions"] for each in record["candidates"]]
    assert any(each is not None for each in tried)


def test_a_rehearsal_begins_with_what_runs_and_waits_and_instances_take_their_time_to_start() -> None:
    now_s, mean = 200.0, LengthStatistics(1000.0, 300.0, 500_000.0, 1150.0)
    pool = Autoscaling(policy=BallastScaling()).pools(parse_shape("2F", H200))[0]
    director = director_settings(spec_of("2F", BallastScaling()))
    inputs = Inputs(now_s=now_s, pools=(pool,), traffic=Traffic(bin_s=10.0), startup_s=20.0)
    demand = Demand(rate_rps=4.0, forecast_rps=4.0, lengths=mean, prefill_rps=5.0, decode_rps=5.0)
    layouts = ((Counts(1, 1),), (Counts(3, 3),))
    proposal = Proposal(
        inputs=inputs, demand=demand, candidates=tuple(Candidate(each, "equilibrium", 1.0, 1.0) for each in layouts)
    )
    recorded = [
        Recorded(arrival_s=each, input_tokens=1000, output_tokens=300, running=False, completed=True)
        for each in (now_s - 30 + k / 4 for k in range(120))
    ]
    crowd = [replace(each, input_tokens=40_000, output_tokens=0, running=True, completed=False) for each in recorded]

    def tried(among: list[Recorded], trial_s: float) -> list[Rehearsal]:
        limits = Rehearsing(window_s=30.0, trial_s=trial_s)
        return Rehearser(director, FleetSettings(), OBJECTIVE, limits)(proposal, among)

    calm = tried(recorded, 10.0)
    assert [each.attainment for each in calm] == [1.0, 1.0]
    assert calm[0].requests > 40 + 5, "those in flight count, too"
    swamped = tried(crowd, 10.0)
    assert swamped[0] == replace(swamped[1], candidate=0), "before any instance has started all layouts are alike"
    assert swamped[0].attainment < 0.1, "what waits is there from the beginning"


def test_what_cannot_be_rehearsed_within_its_bounds_is_decided_by_the_equilibrium_which_says_so() -> None:
    spec = spec_of("2F", BallastScaling(), rate_rps=16.0, duration_s=24.0, rehearsing=Rehearsing(requests=100))
    _, scaler = ran(spec)
    changes = [decision for _, decision in scaler.decisions if decision.changes]
    assert changes
    assert all("not rehearsed: 100 requests" in decision.message for decision in changes)
    assert not any(decision.rehearsals for decision in changes)


def test_a_fleet_scales_to_zero_and_the_request_that_wakes_it_is_held_until_it_can_be_served() -> None:
    requests = [
        WorkloadRequest(arrival_s=at_s, input_tokens=500, output_tokens=50) for at_s in (1.0, 2.0, 200.0, 205.0)
    ]
    spec = spec_of("1P1D", BallastScaling(rehearse=False), least=0, zero_after_s=60.0, startup_s=20.0)
    fleet = build_fleet(spec, Load(tuple(requests), {}))
    assert spec.setup.autoscaling is not None
    scaler = Autoscaler.of(fleet, spec.setup.autoscaling, OBJECTIVE, director_settings(spec))
    gpus: list[int] = []
    fleet.every(10.0, lambda: gpus.append(scaler.instances.gpus))
    fleet.run()
    assert all(record.completed for record in fleet.records)
    assert [decision.reason for _, decision in scaler.decisions if decision.changes] == ["ScaledToZero", "Woken"]
    assert (gpus[0], min(gpus), gpus[-1]) == (2, 0, 2)
    woken_s = fleet.records[2].ttft_s
    assert woken_s is not None
    assert 20.0 < woken_s < 20.0 + 10.0 + 2.0 + 1.0, "start-up, a round, its delay, and the prompt"
    with pytest.raises(SettingError, match="0 instances at least"):
        Autoscaling(policy=BallastScaling(), zero_after_s=60.0)


def test_a_round_goes_by_what_was_measured_before() -> None:
    _, scaler = ran(spec_of("1P1D", Script(), delay_s=3.0))
    for at_s, decision in scaler.decisions:
        assert at_s == pytest.approx(decision.proposal.inputs.now_s + 3.0)


def test_what_cannot_be_scaled_is_refused_with_its_option() -> None:
    with pytest.raises(SettingError, match="colocated"):
        Autoscaling(policy=FixedScaling()).pools(parse_shape("2C", H200))
    with pytest.raises(SettingError, match="unknown scaling 'nothing'; known: ballast, fixed"):
        parse_scaling("nothing")
    with pytest.raises(SettingError, match="cannot read"):
        parse_prices("h200", SHIPPED_PROFILES)
    with pytest.raises(SettingError, match="at least 4 and at most 2"):
        Autoscaling(policy=FixedScaling(), least=4, most=2)
    assert parse_scaling("ballast:down_s=60.0") == BallastScaling(down_s=60.0)


def test_pools_are_the_roles_and_profiles_of_the_shape() -> None:
    pools = Autoscaling(policy=FixedScaling()).pools(parse_shape("2P3D", H200))
    assert [(pool.role, pool.wanted, pool.most) for pool in pools] == [
        (Role.PREFILL, Counts(2, 0), 5),
        (Role.DECODE, Counts(0, 3), 5),
    ]
    (flexible,) = Autoscaling(policy=FixedScaling()).pools(parse_shape("5F", H200))
    assert (flexible.wanted, flexible.least) == (Counts(3, 2), 2)
    assert replace(flexible, cost_per_hour=3.0).price == 3.0
