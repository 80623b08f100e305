"""The operator steers: decisions become counts, survive operators, and say why."""

from __future__ import annotations

import contextlib
import copy
import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ballast_api.demand_report import DemandReport
from ballast_api.hardware_profile import EngineProfile
from ballast_core.policies.scaling.protocol import Counts, Memory, Recommended
from ballast_core.profiles import SHIPPED_PROFILES
from ballast_operator.api.api_failure import ApiFailure
from ballast_operator.gateways.gateway_pods import GatewayPod
from ballast_operator.kinds import Manifest
from ballast_operator.scaling.inputs import LOST_S
from ballast_operator.scaling.records import MOST_BYTES, MOST_OTHERS, MOST_RECORDS, bounded, read, resumed
from tests.support.object_store import UNAVAILABLE, Killed
from tests.support.operator_builders import NAMESPACE
from tests.support.scaled_fleet import BUSY_RPS, CALM_RPS, CHAT, GRACE_S, Fleet, autoscaled, busy, hardware

# --- Auto -----------------------------------------------------------------------------------------------------------


def test_counts_follow_the_traffic_up_at_once_and_down_after_the_window() -> None:
    fleet = Fleet()
    fleet.round(4)
    assert fleet.counts() == {"prefill": 1, "decode": 1}
    fleet.rate_rps = BUSY_RPS
    fleet.round(1)
    assert (fleet.said["reason"], fleet.said["applied"]) == ("ScaledUp", True)
    grown = fleet.counts()
    assert grown["prefill"] > 1
    assert grown["decode"] > 1
    fleet.round(8)
    fleet.rate_rps = CALM_RPS
    fleet.round(15)
    assert (fleet.counts(), fleet.said["reason"]) == (grown, "Stabilising")
    fleet.round(8)
    assert fleet.counts() == {"prefill": 1, "decode": 1}
    assert fleet.active() == ("True", "Steered")


def test_a_shorter_window_of_ones_own_lets_counts_follow_sooner() -> None:
    fleet = busy(spec={"scaleDown": {"stabilizationS": 60.0}})
    grown, fleet.rate_rps = fleet.counts(), CALM_RPS
    fleet.round(3)
    assert fleet.counts() == grown
    fleet.round(8)
    assert fleet.counts() == {"prefill": 1, "decode": 1}


def test_instances_that_a_decision_takes_away_are_emptied_before_they_go() -> None:
    fleet = busy()
    grown, fleet.rate_rps, fleet.held = fleet.counts(), CALM_RPS, 1
    fleet.round(24)
    assert fleet.counts() == grown
    assert fleet.said["reason"] == "ScaledDown"
    draining = {each["name"]: len(each["draining"]) for each in fleet.status["pools"]}
    assert draining == {name: count - 1 for name, count in grown.items()}
    fleet.held = 0
    fleet.round(2)
    assert fleet.counts() == {"prefill": 1, "decode": 1}


def test_traffic_that_comes_back_gets_the_instances_that_are_being_emptied() -> None:
    """Also where they and those that stay are all that the budget has GPUs for."""
    fleet = busy(spec={"gpuBudget": 8})
    grown, fleet.rate_rps, fleet.held = fleet.counts(), CALM_RPS, 1
    fleet.round(24)
    assert sum(len(each["draining"]) for each in fleet.status["pools"]) == 6
    fleet.rate_rps = BUSY_RPS
    fleet.round(2)
    assert (fleet.counts(), fleet.said["reason"]) == (grown, "ScaledUp")
    assert sum(len(each.get("draining", ())) for each in fleet.status["pools"]) == 0


def test_a_settled_fleet_writes_nothing() -> None:
    fleet = busy()
    fleet.round(8)
    fleet.store.writes.clear()
    fleet.round(40)
    fleet.look()
    assert fleet.store.writes == []


def test_each_change_is_an_event_and_a_record_with_its_outcome() -> None:
    fleet = busy()
    assert [event["reason"] for event in fleet.store.events].count("ScaledUp") == 1
    assert fleet.decisions is not None
    [grown] = [each for each in json.loads(fleet.decisions["data"]["records"]) if each["applied"]]
    assert (grown["reason"], grown["mode"], grown["from"]["prefill"]["prefill"]) == ("ScaledUp", "Auto", 1)
    assert grown["outcome"]["rate_rps"] == pytest.approx(grown["demand"]["forecast_rps"], rel=0.05)
    assert fleet.decisions["metadata"]["ownerReferences"][0]["kind"] == "ServingPool"


def test_a_number_that_somebody_else_sets_is_set_back() -> None:
    fleet = busy()
    wanted = fleet.counts()
    fleet.store.objects["Deployment", NAMESPACE, "chat-decode"]["spec"]["replicas"] = 8
    fleet.look()
    assert fleet.counts() == wanted


def test_an_operator_that_starts_anew_goes_on_with_counts_and_windows() -> None:
    """It neither goes back to what was before, nor shrinks before the window is over, nor begins the window anew."""
    fleet = busy()
    grown = fleet.counts()
    fleet.rate_rps = CALM_RPS
    fleet.round(10)
    fleet.restart()
    fleet.look()
    fleet.round(8)
    assert fleet.counts() == grown
    fleet.round(4)
    assert fleet.counts() == {"prefill": 1, "decode": 1}


HOUR_S = 3600.0


@pytest.mark.parametrize("set_by_s", [-HOUR_S, HOUR_S])
def test_a_clock_that_is_set_changes_no_window(set_by_s: float) -> None:
    """Neither is a pool kept from growing until the old time comes again, nor does it shrink before its window is
    over."""
    fleet = Fleet()
    fleet.round(4)
    fleet.set_by_s = set_by_s
    fleet.rate_rps = BUSY_RPS
    fleet.round(1)
    grown = fleet.counts()
    assert min(grown.values()) > 1
    fleet.round(8)
    fleet.rate_rps, fleet.set_by_s = CALM_RPS, 0.0
    fleet.round(15)
    assert (fleet.counts(), fleet.said["reason"]) == (grown, "Stabilising")
    fleet.round(8)
    assert fleet.counts() == {"prefill": 1, "decode": 1}


@pytest.mark.rotating(3)
def test_pods_that_are_emptied_while_the_clock_is_put_back_go_all_the_same() -> None:
    """The time of their mark lies in the future then, and they are marked anew."""
    fleet = busy()
    fleet.rate_rps, fleet.held = CALM_RPS, 1
    fleet.round(24)
    fleet.set_by_s = -HOUR_S
    fleet.round(1)
    fleet.held = 0
    fleet.round(2)
    assert fleet.counts() == {"prefill": 1, "decode": 1}


def test_another_operator_whose_clock_is_behind_begins_the_window_anew() -> None:
    fleet = busy()
    grown, fleet.rate_rps = fleet.counts(), CALM_RPS
    fleet.round(10)
    fleet.set_by_s = -HOUR_S
    fleet.restart()
    fleet.look()
    fleet.round(18)
    assert fleet.counts() == grown
    fleet.round(6)
    assert fleet.counts() == {"prefill": 1, "decode": 1}


def test_what_another_operator_said_in_the_future_is_not_the_last_word() -> None:
    fleet = busy()
    fleet.set_by_s = -HOUR_S
    fleet.restart()
    fleet.rate_rps = CALM_RPS
    fleet.look()
    fleet.round(10)
    assert fleet.said["reason"] == "Stabilising"


@pytest.mark.parametrize("after", range(6))
@pytest.mark.parametrize("error", [Killed(), UNAVAILABLE], ids=["killed", "away"])
def test_an_operator_that_dies_before_any_write_leaves_what_the_next_one_finishes(after: int, error: Exception) -> None:
    """Decision, Event, Deployments, status: whatever is the last write, the next operator comes to the same counts."""
    clean = busy()
    fleet = Fleet()
    fleet.round(2)
    fleet.rate_rps = BUSY_RPS
    fleet.store.interrupt(error, after=after)
    with contextlib.suppress(Killed, ApiFailure):
        fleet.round(1)
    fleet.store.end_interruption()
    fleet.restart()
    fleet.look()
    fleet.round(8)
    assert fleet.counts() == clean.counts()
    assert fleet.said["applied"] is False or fleet.said["reason"] == "ScaledUp"


def test_the_decision_is_stored_before_anything_is_done() -> None:
    fleet = Fleet()
    fleet.round(2)
    fleet.rate_rps = BUSY_RPS
    fleet.store.writes.clear()
    fleet.round(1)
    written = [write for write in fleet.store.writes if "gateway" not in write]
    assert written[0] == "apply ConfigMap chat-scaling"
    assert written.index("apply Deployment chat-prefill") > 0


def test_a_deleted_or_spoilt_record_is_written_anew_and_moves_nothing() -> None:
    fleet = busy()
    wanted = fleet.counts()
    del fleet.store.objects["ConfigMap", NAMESPACE, "chat-scaling"]
    fleet.look()
    assert fleet.counts() == wanted
    fleet.round(1)
    assert fleet.decisions is not None
    fleet.decisions["data"] = {"state": "{}", "records": "no"}
    fleet.restart()
    fleet.look()
    fleet.round(2)
    assert fleet.counts() == wanted
    assert read(fleet.decisions).mode == "Auto"


def test_a_config_map_of_somebody_else_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    """Taken over it would be deleted with the ServingPool, or when scaling is turned off."""
    fleet = busy()
    metadata = {"name": "chat-scaling", "namespace": NAMESPACE, "uid": "theirs"}
    theirs = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"their": "own"}}
    fleet.store.objects["ConfigMap", NAMESPACE, "chat-scaling"] = copy.deepcopy(theirs)
    fleet.restart()
    fleet.look()
    fleet.round(1)
    assert fleet.store.objects["ConfigMap", NAMESPACE, "chat-scaling"] == theirs
    assert "was not made by Ballast; delete or rename it" in caplog.text


def test_another_servingpool_of_the_same_name_begins_anew() -> None:
    fleet = busy()
    fleet.store.objects["ServingPool", *CHAT]["metadata"]["uid"] = "another"
    stored = read(fleet.decisions or {})
    fleet.look()
    fleet.ask()
    fleet.scaler.steer()
    course = fleet.scaler._courses[CHAT]
    assert course.uid == "another"
    assert stored.wanted["prefill"].prefill > 1


@pytest.mark.parametrize(
    "records",
    ["no", "{}", "[3]", '[{"applied": true}]', '[{"at_s": "x"}]'],
    ids=["text", "map", "number", "bare", "date"],
)
def test_records_that_somebody_has_spoilt_stop_no_decision(records: str) -> None:
    fleet = busy()
    wanted = fleet.counts()
    assert fleet.decisions is not None
    fleet.decisions["data"]["records"] = records
    fleet.restart()
    fleet.look()
    fleet.rate_rps = 1.5 * BUSY_RPS
    fleet.round(3)
    assert sum(fleet.counts().values()) > sum(wanted.values())


def test_one_servingpool_that_fails_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    fleet = Fleet()
    steered = fleet.helm.steered()[CHAT]
    nothing: Any = None  # nobody can foresee everything
    broken = [replace(pool, profile=nothing) for pool in steered.pools]
    fleet.helm.steer(NAMESPACE, "a-broken", replace(steered, uid="other", pools=tuple(broken)))
    fleet.helm.steer(NAMESPACE, "z-broken", replace(steered, uid="other", pools=tuple(broken)))
    for name, manifest in list(fleet.pods.items()):
        if "gateway" in name:
            for other in ("a-broken", "z-broken"):
                labels = manifest["metadata"]["labels"] | {"serving.ballast.dev/serving-pool": other}
                metadata = manifest["metadata"] | {"labels": labels, "name": f"{other}-{name}"}
                fleet.store.put({**manifest, "metadata": metadata})
    fleet.rate_rps = BUSY_RPS
    fleet.round(2)
    assert fleet.counts()["prefill"] > 1
    assert "unexpected error" in caplog.text


# --- who may be scaled ----------------------------------------------------------------------------------------------


def test_advice_changes_nothing_and_is_told_once() -> None:
    fleet = Fleet(spec={"ratio": {"mode": "Advisory"}})
    fleet.round(2)
    fleet.rate_rps = BUSY_RPS
    fleet.round(10)
    assert fleet.counts() == {"prefill": 1, "decode": 1}
    assert (fleet.said["applied"], fleet.said["reason"], fleet.active()) == (False, "ScaledUp", ("True", "Advised"))
    assert fleet.said["prefillReplicas"] > 1
    advised = [event for event in fleet.store.events if event["reason"] == "ScaledUp"]
    assert len(advised) == 1
    assert advised[0]["message"].startswith("advice: ")


def test_advice_is_not_taken_for_a_decision_once_it_is_auto() -> None:
    """Old advice must not become counts; the first round of Auto decides by the traffic of now."""
    fleet = Fleet(spec={"ratio": {"mode": "Advisory"}})
    fleet.rate_rps = BUSY_RPS
    fleet.round(4)
    fleet.rate_rps = CALM_RPS
    fleet.edit(ratio={"mode": "Auto"})
    fleet.look()
    assert fleet.counts() == {"prefill": 1, "decode": 1}
    assert fleet.active() == ("Unknown", "NotMeasured")


def test_off_forgets_decisions_and_leaves_counts_as_they_are() -> None:
    fleet = busy()
    wanted = fleet.counts()
    fleet.edit(ratio={"mode": "Off"})
    fleet.look()
    assert fleet.decisions is None
    assert "lastScaling" not in fleet.status
    assert "ScalingActive" not in {each["type"] for each in fleet.status["conditions"]}
    fleet.round(4)
    assert (fleet.counts(), fleet.decisions) == (wanted, None)


def test_the_cheaper_pool_grows() -> None:
    """Two decode pools of like engines: the one that costs less is taken, whatever their order."""
    fleet = Fleet(
        pools=[
            autoscaled("prefill", "Prefill"),
            autoscaled("dear", "Decode"),
            {**autoscaled("cheap", "Decode"), "hardware": "cheap"},
        ],
        hardware=[hardware(costPerHour=9.0), hardware("cheap", costPerHour=2.0)],
    )
    fleet.rate_rps = BUSY_RPS
    fleet.round(4)
    assert fleet.counts()["dear"] == 1
    assert fleet.counts()["cheap"] > 1


def test_prices_choose_among_unlike_hardware() -> None:
    """Pools of A100 pairs and of H20 for each role: prefill goes where FLOPs are cheap, decode where bandwidth is.

    Without a price in one profile GPUs are compared: an instance on A100 has two, and decodes 2.3 times as much.
    """

    def counts(**h20: float) -> set[str]:
        shipped = {
            name: EngineProfile.from_core(SHIPPED_PROFILES[f"{name}-qwen3-32b"]).dump() for name in ("a100", "h20")
        }
        pools = [
            {**autoscaled(f"{role.lower()}-{name}", role, most=24), "hardware": name}
            for role in ("Prefill", "Decode")
            for name in shipped
        ]
        a100 = hardware("a100", **{**shipped["a100"], "costPerHour": 4.0})
        fleet = Fleet(pools=pools, hardware=[a100, hardware("h20", **shipped["h20"], **h20)])
        fleet.rate_rps = 20.0
        fleet.round(4)
        return {name for name, number in fleet.counts().items() if number > 1}

    assert counts(costPerHour=1.5) == {"prefill-a100", "decode-h20"}
    assert counts(costPerHour=3.0) == {"prefill-a100", "decode-a100"}
    assert counts() == {"prefill-a100", "decode-a100"}


# --- bounds ---------------------------------------------------------------------------------------------------------


def test_the_gpu_budget_is_never_exceeded() -> None:
    fleet = busy(spec={"gpuBudget": 4})
    assert sum(fleet.counts().values()) == 4
    assert fleet.said["reason"] in ("ScaledUp", "BudgetReached")
    assert not any("GPUBudgetExceeded" in event["reason"] for event in fleet.store.events)


def test_a_budget_that_is_cut_is_kept_at_the_next_round() -> None:
    fleet = busy()
    assert sum(fleet.counts().values()) > 4
    fleet.spec["gpuBudget"] = 4
    fleet.edit()
    fleet.look()
    fleet.round(2)
    assert sum(fleet.counts().values()) <= 4
    assert next(each for each in fleet.status["conditions"] if each["type"] == "Degraded")["status"] == "False"


@pytest.mark.rotating(4)
@settings(max_examples=12, deadline=None)
@given(
    rates=st.lists(st.sampled_from([0.0, 1.0, 5.0, 20.0, 60.0, 200.0, None]), min_size=3, max_size=12),
    budget=st.sampled_from([None, 3, 6]),
    ratio=st.sampled_from([(None, None), (0.5, 1.0), (1.0, 3.0)]),
    kills=st.sets(st.integers(0, 11)),
)
def test_bounds_hold_after_every_round_whatever_the_traffic_and_the_kills(
    rates: list[float | None], budget: int | None, ratio: tuple[float | None, float | None], kills: set[int]
) -> None:
    least_ratio, most_ratio = ratio
    bounds = {"minRatio": least_ratio, "maxRatio": most_ratio}
    given_ratio = {"mode": "Auto"} | {key: value for key, value in bounds.items() if value is not None}
    spec: dict[str, Any] = {"ratio": given_ratio} | ({} if budget is None else {"gpuBudget": budget})
    fleet = Fleet(spec=spec)
    for number, rate_rps in enumerate(rates):
        fleet.rate_rps = rate_rps
        fleet.round(2)
        if number in kills:
            fleet.restart()
            fleet.look()
        prefill, decode = fleet.counts()["prefill"], fleet.counts()["decode"]
        assert 1 <= prefill <= 8
        assert 1 <= decode <= 8
        assert budget is None or prefill + decode <= budget
        assert least_ratio is None or least_ratio * decode <= prefill <= (most_ratio or 9) * decode


edits = st.fixed_dictionaries(
    {
        "mode": st.sampled_from(["Auto", "Advisory", "Off"]),
        "most": st.integers(1, 6),
        "by": st.sampled_from(["Ballast", "External"]),
        "rate_rps": st.sampled_from([0.0, 5.0, 40.0, None]),
        "dies_after": st.one_of(st.none(), st.integers(0, 5)),
    }
)


@pytest.mark.rotating(4)
@settings(max_examples=15, deadline=None)
@given(st.lists(edits, min_size=1, max_size=5))
def test_any_edits_and_deaths_between_writes_end_in_what_the_last_spec_asks_for(steps: list[dict[str, Any]]) -> None:
    """Modes, bounds and who scales change while operators die: nothing of an older spec stays."""
    fleet = Fleet()
    for step in steps:
        fleet.pools = [
            autoscaled("prefill", "Prefill", most=step["most"], by=step["by"]),
            autoscaled("decode", "Decode", most=step["most"]),
        ]
        fleet.spec["ratio"] = {"mode": step["mode"]}
        fleet.edit()
        fleet.rate_rps = step["rate_rps"]
        if step["dies_after"] is not None:
            fleet.store.interrupt(Killed(), after=step["dies_after"])
            with contextlib.suppress(Killed):
                fleet.look()
                fleet.round(2)
            fleet.store.end_interruption()
            fleet.restart()
        fleet.look()
        fleet.round(4)
    fleet.look()
    last = steps[-1]
    assert all(1 <= count <= last["most"] for count in fleet.counts().values())
    types = {each["type"] for each in fleet.status["conditions"]}
    assert ("ScalingActive" in types) == (fleet.decisions is not None) == (last["mode"] != "Off")
    if last["mode"] == "Auto" and last["rate_rps"] == 40.0:
        stored = read(fleet.decisions or {}).wanted
        assert fleet.counts()["decode"] == stored["decode"].decode
        assert last["by"] == "External" or fleet.counts()["prefill"] == stored["prefill"].prefill
    fleet.store.writes.clear()
    fleet.look()
    assert fleet.store.writes == []


def test_its_thread_makes_rounds_until_it_is_stopped_whatever_the_api_server_says() -> None:
    fleet = Fleet()
    fleet.round(2)
    rounds: list[int] = []
    enough = threading.Event()

    def failing(*_: object, **__: object) -> tuple[Manifest, ...]:
        rounds.append(1)
        if len(rounds) == 3:
            enough.set()
        raise UNAVAILABLE if len(rounds) % 2 else RuntimeError("nobody can foresee everything")

    scaler = replace(fleet.scaler, round_s=0.01)
    fleet.store.list = failing  # type: ignore[method-assign]
    assert not scaler.alive()
    scaler.start()
    assert enough.wait(30)
    assert scaler.alive()
    scaler.stop()
    assert not scaler.alive()


# --- what is stored -------------------------------------------------------------------------------------------------


def record(number: int, *, changes: bool, size: int = 10) -> Manifest:
    return {"at_s": float(number), "changes": changes, "text": "x" * size}


def test_records_are_bounded_and_changes_stay_longest() -> None:
    many = [record(k, changes=k % 10 == 0) for k in range(200)]
    kept = bounded(many)
    assert len(kept) == MOST_RECORDS
    assert kept[-1] is many[-1]
    assert sum(not each["changes"] for each in kept[:-1]) == MOST_OTHERS
    large = bounded([record(k, changes=True, size=MOST_BYTES // 3) for k in range(9)])
    assert [each["at_s"] for each in large] == [7.0, 8.0]
    assert len(bounded([record(0, changes=True, size=2 * MOST_BYTES)])) == 1


def test_a_layout_that_was_right_until_the_restart_counts_as_right_until_then() -> None:
    """Of each run only the beginning is written; the window must not take it for as old as that."""
    high, low = (Counts(4, 0), Counts(0, 4)), (Counts(1, 0), Counts(0, 1))
    memory = Memory(("p", "d"), (Recommended(0.0, high), Recommended(1000.0, low)))
    found = resumed(memory, 1200.0).recommended
    assert [(round(each.at_s, 2), each.layout) for each in found] == [
        (0.0, high),
        (1000.0, high),
        (1000.0, low),
        (1200.0, low),
    ]
    assert resumed(memory, 900.0).recommended[-1].layout == high


# --- to zero and back -------------------------------------------------------------------------------------------------


def test_a_fleet_that_is_to_wake_starts_as_soon_as_the_last_instances_have_left_their_gpus() -> None:
    to_zero = {"ratio": {"mode": "Auto", "scaleToZeroAfterS": 300}, "gpuBudget": 2}
    fleet = Fleet(pools=[autoscaled("prefill", "Prefill", 0), autoscaled("decode", "Decode", 0)], spec=to_zero)
    fleet.round(5)
    fleet.rate_rps, fleet.lengths, fleet.ends = 0.0, {"idle_since_unix_s": fleet.now_s}, False
    fleet.round(22)
    assert fleet.said["reason"] == "ScaledToZero"
    assert len(fleet.ending) == 2, "they are empty, and end"
    fleet.lengths = {"idle_since_unix_s": None, "waiting": 1, "waiting_tokens": 100}

    def soon() -> str:
        fleet.now_s += 2.0
        fleet.scaler.steer(soon=True)
        fleet.look()
        fleet.kubernetes()
        return str(fleet.said["reason"])

    assert "Woken" not in [soon() for _ in range(4)]
    fleet.ends = True
    assert "Woken" in [soon() for _ in range(6)]
    assert fleet.counts() == {"prefill": 1, "decode": 1}


def test_a_fleet_that_is_to_wake_takes_back_the_last_instances_while_these_are_emptied() -> None:
    to_zero = {"ratio": {"mode": "Auto", "scaleToZeroAfterS": 300}, "gpuBudget": 2}
    fleet = Fleet(pools=[autoscaled("prefill", "Prefill", 0), autoscaled("decode", "Decode", 0)], spec=to_zero)
    fleet.round(5)
    pods = set(fleet.pods)
    fleet.rate_rps, fleet.lengths, fleet.held = 0.0, {"idle_since_unix_s": fleet.now_s}, 1
    fleet.round(22)
    assert fleet.said["reason"] == "ScaledToZero"
    fleet.lengths = {"idle_since_unix_s": None, "waiting": 1, "waiting_tokens": 100}
    fleet.scaler.steer(soon=True)
    fleet.look()
    assert (fleet.said["reason"], set(fleet.pods)) == ("Woken", pods)
    assert not any(each.get("draining") for each in fleet.status["pools"])


def test_a_fleet_at_zero_that_cannot_start_is_asked_with_all_others_and_no_sooner() -> None:
    to_zero = {"ratio": {"mode": "Auto", "scaleToZeroAfterS": 300}, "gpuBudget": 1}
    fleet = Fleet(pools=[autoscaled("prefill", "Prefill", 0), autoscaled("decode", "Decode", 0)], spec=to_zero)
    fleet.rate_rps, fleet.lengths = 0.0, {"idle_since_unix_s": fleet.now_s}
    fleet.round(1)
    asked: list[float] = []
    answers = fleet.scaler.ask

    def noted(pods: Sequence[tuple[GatewayPod, bytes]]) -> list[DemandReport | BaseException]:
        asked.append(fleet.now_s)
        return answers(pods)

    fleet.scaler.ask = noted
    fleet.scaler.steer(soon=True)
    assert asked == [fleet.now_s], "the next request wakes it"
    fleet.lengths = {"idle_since_unix_s": None, "waiting": 1, "waiting_tokens": 100}
    fleet.round(1)
    assert fleet.said["reason"] == "BudgetTooSmall"
    asked.clear()
    fleet.scaler.steer(soon=True)
    assert asked == []


def test_a_pod_of_a_lost_node_keeps_no_fleet_asleep() -> None:
    """It ends for ever."""
    to_zero = {"ratio": {"mode": "Auto", "scaleToZeroAfterS": 300}, "gpuBudget": 2}
    fleet = Fleet(pools=[autoscaled("prefill", "Prefill", 0), autoscaled("decode", "Decode", 0)], spec=to_zero)
    fleet.round(5)
    fleet.rate_rps, fleet.lengths, fleet.ends = 0.0, {"idle_since_unix_s": fleet.now_s}, False
    fleet.round(22)
    assert fleet.counts() == {"prefill": 0, "decode": 0}
    assert fleet.ending
    fleet.lengths = {"idle_since_unix_s": None, "waiting": 1, "waiting_tokens": 100}
    fleet.round(1)
    assert fleet.counts() == {"prefill": 0, "decode": 0}, "they may still have their GPUs"
    fleet.round(int((GRACE_S + LOST_S) / 15.0))
    assert fleet.counts() == {"prefill": 1, "decode": 1}


def test_a_fleet_without_requests_scales_to_zero_and_comes_back_with_the_first_one() -> None:
    to_zero = {"ratio": {"mode": "Auto", "scaleToZeroAfterS": 300}}
    fleet = Fleet(pools=[autoscaled("prefill", "Prefill", 0), autoscaled("decode", "Decode", 0)], spec=to_zero)
    config = fleet.store.objects["ConfigMap", NAMESPACE, "chat-gateway"]["data"]
    assert "holdS: 300" in next(iter(config.values())), "the gateway holds what comes meanwhile"
    assert fleet.counts() == {"prefill": 0, "decode": 0}
    fleet.round(1)
    assert (fleet.counts(), fleet.said["reason"]) == ({"prefill": 1, "decode": 1}, "Woken")
    fleet.round(4)
    since_s = fleet.now_s
    fleet.rate_rps, fleet.lengths = 0.0, {"idle_since_unix_s": since_s}
    fleet.round(19)
    assert fleet.counts() == {"prefill": 1, "decode": 1}
    fleet.round(1)
    assert fleet.said["reason"] == "ScaledToZero"
    for _ in range(4):  # pods are marked, and emptied, before they go
        fleet.round(1)
        fleet.look()
    assert fleet.counts() == {"prefill": 0, "decode": 0}
    available = next(each for each in fleet.status["conditions"] if each["type"] == "Available")
    assert (available["status"], available["reason"]) == ("False", "ScaledToZero")
    fleet.store.writes.clear()
    fleet.restart()
    fleet.look()
    fleet.round(20)
    assert fleet.counts() == {"prefill": 0, "decode": 0}
    fleet.lengths = {"idle_since_unix_s": None, "waiting": 1, "waiting_tokens": 100}
    fleet.now_s += 2.0
    fleet.changed.clear()
    fleet.scaler.steer(soon=True)
    fleet.look()
    assert (fleet.counts(), fleet.said["reason"]) == ({"prefill": 1, "decode": 1}, "Woken")
    fleet.changed.clear()
    fleet.scaler.steer(soon=True)
    assert not fleet.changed, "it is awake: its rounds are those of all"
    config = fleet.store.objects["ConfigMap", NAMESPACE, "chat-gateway"]["data"]
    assert "startupS: 48" in next(iter(config.values())), "of 40 s, for Retry-After while nothing is there"
