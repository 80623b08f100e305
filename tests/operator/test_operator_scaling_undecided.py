"""Where nothing can be decided, nothing is scaled, and it is said: once, and anew when the reason is another one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from ballast_api.demand_report import DemandReport
from ballast_operator.gateways.asking import NoAnswer
from ballast_operator.steering.rehearsing import Trace
from tests.support.operator_builders import NAMESPACE, objective
from tests.support.scaled_fleet import BUSY_RPS, CALM_RPS, Fleet, autoscaled, busy


@pytest.mark.parametrize(
    ("fleet", "reason"),
    [
        (lambda: Fleet(rate_rps=0.0), "NoTraffic"),
        (lambda: Fleet(lengths={"output": 0}), "NoLengths"),
        (lambda: Fleet(spec={"sloRef": None}), "NoObjective"),
        (lambda: Fleet(slo={"tpotS": 0.0001}), "ObjectiveOutOfReach"),
        (lambda: Fleet(spec={"ratio": {"mode": "Auto", "minRatio": 20}}), "ClampsContradict"),
        (lambda: Fleet(spec={"ratio": {"mode": "Auto", "minRatio": 3}, "gpuBudget": 3}), "BudgetTooSmall"),
        (lambda: Fleet(rate_rps=None), "GatewaysSilent"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_decided_scales_nothing_and_says_why(fleet: Any, reason: str) -> None:
    one: Fleet = fleet()
    before = one.counts()
    one.round(6)
    assert one.active() == ("False", reason)
    assert (one.said["reason"], one.said["applied"]) == (reason, False)
    assert one.counts() == before
    one.store.writes.clear()
    one.round(6)
    assert one.store.writes == []


@pytest.mark.parametrize(
    ("gone", "reason"),
    [
        (("ServiceLevelObjective", NAMESPACE, "fast"), "SLONotFound"),
        (("HardwareProfile", None, "h200"), "ProfileNotFound"),
    ],
)
def test_while_something_that_decisions_go_by_is_missing_scaling_is_not_active(
    gone: tuple[str, str | None, str], reason: str
) -> None:
    fleet = busy()
    wanted, back = fleet.counts(), fleet.store.objects.pop(gone)
    fleet.look()
    fleet.rate_rps = CALM_RPS
    fleet.round(25)
    assert (fleet.active(), fleet.counts()) == (("False", reason), wanted)
    assert (gone[2] in why(fleet), why(fleet).endswith("nothing is scaled")) == (True, True)
    fleet.store.put(back)
    fleet.look()
    assert fleet.active() == ("True", "Steered")


def test_decisions_that_have_no_place_are_told_in_the_status() -> None:
    metadata = {"name": "chat-scaling", "namespace": NAMESPACE, "uid": "theirs"}
    fleet = Fleet(rate_rps=BUSY_RPS)
    fleet.store.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {}})
    fleet.round(2)
    degraded = next(each for each in fleet.status["conditions"] if each["type"] == "Degraded")
    assert degraded["reason"] == "NameConflict"
    assert "ConfigMap chat-scaling: exists and was not made by Ballast" in degraded["message"]
    del fleet.store.objects["ConfigMap", NAMESPACE, "chat-scaling"]
    fleet.round(2)
    assert fleet.active() == ("True", "Steered")
    assert next(each for each in fleet.status["conditions"] if each["type"] == "Degraded")["reason"] == "AsExpected"


def _spoilt(fleet: Fleet, how: str) -> None:
    if how == "NoTraffic":
        fleet.rate_rps = 0.0
    elif how == "NoLengths":
        fleet.lengths = {"output": 0}
    elif how == "ClampsContradict":
        fleet.edit(ratio={"mode": "Auto", "minRatio": 20, "rehearse": {}})
    elif how == "BudgetTooSmall":
        fleet.edit(ratio={"mode": "Auto", "minRatio": 3, "rehearse": {}}, gpuBudget=3)
    else:
        fleet.store.put(objective("fast", ttftS=5.0, tpotS=0.0001, attainment=0.95))
    fleet.look()


@pytest.mark.parametrize(
    "reason", ["NoTraffic", "NoLengths", "ClampsContradict", "BudgetTooSmall", "ObjectiveOutOfReach"]
)
def test_a_fleet_that_has_grown_stays_as_it_is_once_nothing_can_be_decided(reason: str) -> None:
    """Nor is anything rehearsed; what was decided before stands."""
    fleet = busy()
    fleet.edit(ratio={"mode": "Auto", "rehearse": {}})
    fleet.look()
    grown = fleet.counts()
    assert sum(grown.values()) > 2
    asked: list[object] = []

    def trace(*words: object) -> Trace:
        asked.append(words)
        return Trace((), 0, ())

    fleet.scaler.rehearsals.trace = trace
    _spoilt(fleet, reason)
    fleet.round(25)
    assert fleet.active() == ("False", reason)
    assert (fleet.counts(), asked) == (grown, [])


def test_a_budget_that_is_lowered_without_traffic_stops_instances_and_holds_nothing() -> None:
    fleet = busy()
    fleet.rate_rps = 0.0
    fleet.round(2)
    fleet.edit(gpuBudget=4)
    fleet.look()
    fleet.round(6)
    assert sum(fleet.counts().values()) == 4
    assert next(each for each in fleet.status["conditions"] if each["type"] == "Degraded")["reason"] == "AsExpected"


def test_a_gateway_that_is_silent_for_a_round_changes_and_says_nothing() -> None:
    """The others' traffic alone would look like a calm."""
    fleet = busy()
    wanted, said = fleet.counts(), fleet.said
    fleet.rate_rps = None
    fleet.store.writes.clear()
    fleet.round(2)
    assert (fleet.counts(), fleet.said, fleet.store.writes) == (wanted, said, [])
    fleet.round(2)
    assert fleet.active() == ("False", "GatewaysSilent")
    assert fleet.counts() == wanted
    fleet.rate_rps = BUSY_RPS
    fleet.round(2)
    assert fleet.active() == ("True", "Steered")
    assert fleet.counts() == wanted


def test_gateways_that_were_silent_for_long_bring_no_scale_down_with_their_first_words() -> None:
    fleet = busy()
    wanted, fleet.rate_rps = fleet.counts(), None
    fleet.round(24)
    assert fleet.active() == ("False", "GatewaysSilent")
    fleet.rate_rps, fleet.lengths = CALM_RPS, {"since_unix_s": fleet.now_s}
    fleet.round(15)
    assert (fleet.counts(), fleet.said["reason"]) == (wanted, "Stabilising")
    fleet.round(10)
    assert sum(fleet.counts().values()) < sum(wanted.values())


def test_a_gateway_that_begins_to_count_is_not_told_as_an_end_of_traffic() -> None:
    """One that begins again and again is, in words of its own."""
    fleet = busy()
    wanted, said = fleet.counts(), fleet.said
    for _ in range(2):
        fleet.lengths = {"since_unix_s": fleet.now_s + 14.0}
        fleet.round(1)
        assert (fleet.active(), fleet.said, fleet.counts()) == (("True", "Steered"), said, wanted)
    fleet.lengths = {"since_unix_s": fleet.now_s + 14.0}
    fleet.round(1)
    assert fleet.active() == ("False", "NoTraffic")
    assert why(fleet).startswith("no window of arrivals is over since a gateway began to count")
    fleet.round(1)
    assert fleet.active() == ("True", "Steered")


def why(fleet: Fleet) -> str:
    """The message of ScalingActive."""
    found: str = next(each for each in fleet.status["conditions"] if each["type"] == "ScalingActive")["message"]
    return found


def test_why_nothing_is_scaled_is_told_anew_when_it_is_another_budget() -> None:
    """Soon, and not at every edit."""
    fleet = Fleet(spec={"ratio": {"mode": "Auto", "minRatio": 8}, "gpuBudget": 4})
    fleet.round(1)
    assert "no layout of 4 GPUs" in why(fleet)
    for budget in (5, 6, 7):
        fleet.edit(gpuBudget=budget)
        fleet.look()
        fleet.round(1)
    assert "no layout of 4 GPUs" in why(fleet)
    fleet.round(1)
    assert (fleet.active(), "no layout of 7 GPUs" in why(fleet)) == (("False", "BudgetTooSmall"), True)
    assert fleet.said["message"] == why(fleet)


def test_why_gateways_are_silent_is_told_anew_when_it_is_something_else() -> None:
    fleet = busy()
    fleet.rate_rps = None
    fleet.round(4)
    assert "no answer within 3 s" in why(fleet)
    fleet.scaler.ask = lambda asked: [NoAnswer("answered 401") for _ in asked]
    fleet.round(5)
    assert "answered 401" in why(fleet)


def test_an_objective_that_stays_out_of_reach_is_not_told_with_each_turn_of_the_traffic() -> None:
    fleet = busy()
    fleet.store.put(objective("fast", ttftS=0.001, attainment=0.95))
    fleet.look()
    fleet.round(2)
    said = fleet.said
    assert said["reason"] == "ObjectiveOutOfReach"
    fleet.store.writes.clear()
    for prompt in (1180, 2400, 900):
        fleet.lengths = {"prompt": prompt}
        fleet.round(5)
    assert (fleet.said, fleet.store.writes) == (said, [])
    fleet.store.put(objective("fast", ttftS=0.002, attainment=0.95))
    fleet.look()
    fleet.round(5)
    assert "the objective is 0.002 s" in why(fleet)


def test_a_clock_that_runs_away_is_not_told_with_each_second() -> None:
    fleet = busy()
    late_s = itertools.count(200)

    def refused(asked: Sequence[object]) -> list[DemandReport | BaseException]:
        said = f"answered 401: this call was signed some {next(late_s)} s behind this clock"
        return [NoAnswer(said) for _ in asked]

    fleet.scaler.ask = refused
    fleet.round(4)
    assert "behind this clock" in why(fleet)
    fleet.store.writes.clear()
    fleet.round(10)
    assert fleet.store.writes == []


def test_nothing_is_decided_while_a_profile_is_missing() -> None:
    fleet = busy()
    wanted = fleet.counts()
    del fleet.store.objects["HardwareProfile", None, "h200"]
    fleet.look()
    fleet.rate_rps = 200.0
    fleet.round(3)
    assert fleet.counts() == wanted


def test_what_has_no_effect_with_mode_off_is_a_remark() -> None:
    fleet = Fleet(spec={"ratio": {"mode": "Off", "minRatio": 0.5}, "scaleDown": {"stabilizationS": 60.0}})
    message = next(each for each in fleet.status["conditions"] if each["type"] == "Degraded")["message"]
    assert "autoscaling of prefill, decode is left to others while ratio.mode is Off" in message
    assert "minRatio and maxRatio have no effect while ratio.mode is Off" in message
    assert "scaleDown.stabilizationS has no effect while ratio.mode is Off" in message


@pytest.mark.parametrize("mode", ["Off", "Advisory"])
def test_a_fleet_that_nobody_wakes_does_not_begin_at_zero(mode: str) -> None:
    """Its bounds let it go to zero, and its mode nobody wake it."""
    pools = [autoscaled("prefill", "Prefill", least=0), autoscaled("decode", "Decode", least=0)]
    fleet = Fleet(pools=pools, spec={"ratio": {"mode": mode, "scaleToZeroAfterS": 300}})
    assert fleet.counts() == {"prefill": 1, "decode": 1}
    message = next(each for each in fleet.status["conditions"] if each["type"] == "Degraded")["message"]
    assert "scaleToZeroAfterS has no effect unless ratio.mode is Auto" in message
