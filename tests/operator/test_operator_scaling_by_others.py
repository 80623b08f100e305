"""Pools whose numbers others set, by their EnginePools or in the spec, beside those that the operator steers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast_api.common import MAX_INT
from ballast_operator.kinds import Manifest
from ballast_operator.planning.instances import wanted_instances
from ballast_operator.planning.references import parse_pool
from ballast_operator.scaling.inputs import LOST_S
from ballast_operator.scaling.records import read
from tests.support.operator_builders import API_VERSION, NAMESPACE, deployment, observed, pool, serving_pool
from tests.support.scaled_fleet import BUSY_RPS, CALM_RPS, GRACE_S, Fleet, autoscaled, busy, hardware


def test_pools_with_replicas_are_left_alone_and_counted() -> None:
    """Decode is fixed at one, so only prefill grows; what it leaves uncovered is said."""
    fleet = Fleet(pools=[autoscaled("prefill", "Prefill"), pool("decode", "Decode", replicas=1, hardware="h200")])
    fleet.rate_rps = BUSY_RPS
    fleet.round(4)
    assert fleet.counts()["decode"] == 1
    assert fleet.counts()["prefill"] > 1
    condition = next(each for each in fleet.status["conditions"] if each["type"] == "ScalingActive")
    assert condition["message"].endswith("left alone: decode")


def test_external_pools_keep_what_their_scaler_has_set_and_are_advised() -> None:
    fleet = Fleet(pools=[autoscaled("prefill", "Prefill", by="External"), autoscaled("decode", "Decode")])
    fleet.rate_rps = BUSY_RPS
    fleet.round(4)
    assert fleet.counts()["prefill"] == 1
    assert read(fleet.decisions or {}).wanted["prefill"].prefill > 3
    fleet.store.writes.clear()
    fleet.round(20)
    assert fleet.store.writes.count("apply ConfigMap chat-scaling") <= 1, "advice that nobody follows is told once"
    fleet.store.objects["EnginePool", NAMESPACE, "chat-prefill"]["spec"]["replicas"] = 3
    fleet.look()
    fleet.round(2)
    assert fleet.counts()["prefill"] == 3
    assert fleet.counts()["decode"] > 1


def test_another_scalers_pool_lifts_no_window_of_ours() -> None:
    """The ratio is broken as long as it does not follow; each of a few waves would start and stop ours."""
    pools = [autoscaled("prefill", "Prefill"), autoscaled("decode", "Decode", by="External")]
    fleet = busy(pools=pools, spec={"ratio": {"mode": "Auto", "maxRatio": 0.5}})
    grown = fleet.counts()
    assert grown["prefill"] > 1
    for rate_rps in (CALM_RPS, BUSY_RPS, CALM_RPS):
        fleet.rate_rps = rate_rps
        fleet.round(4)
        assert fleet.counts() == grown
    fleet.round(20)
    assert fleet.counts()["prefill"] == 1


def handles(fleet: Fleet) -> dict[str, Manifest]:
    """The EnginePools by name of their pool."""
    return {key[2].removeprefix("chat-"): item for key, item in fleet.store.objects.items() if key[0] == "EnginePool"}


def test_another_scaler_has_one_handle_through_all_rollouts() -> None:
    """Its number counts, within the bounds; its status is what scalers read."""
    fleet = Fleet(pools=[autoscaled("prefill", "Prefill", by="External", most=5), autoscaled("decode", "Decode")])
    fleet.round(2)
    assert set(handles(fleet)) == {"prefill"}
    for asked, expected in ((3, 3), (9, 5), (0, 1)):
        handles(fleet)["prefill"]["spec"]["replicas"] = asked
        for _ in range(4):  # pods that are to go are emptied first
            fleet.look()
            fleet.round(1)
        assert handles(fleet)["prefill"]["spec"]["replicas"] == asked, "it is the other scaler's"
        assert fleet.counts()["prefill"] == expected
        status = handles(fleet)["prefill"]["status"]
        assert (status["replicas"], status["readyReplicas"]) == (expected, expected)
        assert "serving.ballast.dev/pool=prefill" in status["selector"].split(",")
    handles(fleet)["prefill"]["spec"]["replicas"] = 3
    fleet.edit(engine={"image": "registry.test/engine:2"})
    for _ in range(8):
        fleet.look()
        fleet.round(1)
    revisions = {key[2] for key in fleet.store.objects if key[0] == "Deployment" and "prefill" in key[2]}
    assert len(revisions) == 1
    assert revisions != {"chat-prefill"}, "the Deployment has another name by now"
    handles(fleet)["prefill"]["spec"]["replicas"] = 4
    fleet.look()
    fleet.round(1)
    (name,) = revisions
    assert fleet.store.objects["Deployment", NAMESPACE, name]["spec"]["replicas"] == 4


def test_a_handle_goes_when_ballast_scales_and_comes_with_the_number_that_is_there() -> None:
    fleet = Fleet(spec={"ratio": {"mode": "Advisory"}})
    assert {name: each["spec"]["replicas"] for name, each in handles(fleet).items()} == {"prefill": 1, "decode": 1}
    fleet.spec = {"ratio": {"mode": "Auto"}}
    fleet.edit()
    fleet.rate_rps = BUSY_RPS
    fleet.round(4)
    assert handles(fleet) == {}
    wanted = fleet.counts()
    assert min(wanted.values()) > 1
    fleet.spec = {"ratio": {"mode": "Off"}}
    fleet.edit()
    fleet.look()
    assert {name: each["spec"]["replicas"] for name, each in handles(fleet).items()} == wanted
    assert fleet.counts() == wanted


def test_a_handle_is_written_once_and_scaling_by_it_is_nobodys_edit() -> None:
    """A write of ours would race with the scaler's, and an Event would tell of an edit that was set back."""
    fleet = Fleet(pools=[autoscaled("prefill", "Prefill", by="External"), autoscaled("decode", "Decode")])
    fleet.round(2)
    fleet.store.writes.clear()
    handles(fleet)["prefill"]["spec"]["replicas"] = 2
    fleet.look()
    assert "apply Deployment chat-prefill" in fleet.store.writes
    assert "apply EnginePool chat-prefill" not in fleet.store.writes
    assert "EditReverted" not in {event["reason"] for event in fleet.store.events}


def test_another_scaler_gets_what_the_budget_leaves_and_holds_nobody() -> None:
    fleet = Fleet(
        pools=[autoscaled("prefill", "Prefill", by="External"), autoscaled("decode", "Decode")], spec={"gpuBudget": 4}
    )
    handles(fleet)["prefill"]["spec"]["replicas"] = 8
    fleet.look()
    fleet.round(1)
    assert fleet.counts() == {"prefill": 3, "decode": 1}
    degraded = next(each for each in fleet.status["conditions"] if each["type"] == "Degraded")
    assert degraded["status"] == "False"


@pytest.mark.parametrize(
    ("asked", "budget", "said"),
    [
        (9, None, "EnginePool chat-prefill asks for 9 instances and gets 5, because of autoscaling.maxReplicas"),
        (0, None, "EnginePool chat-prefill asks for 0 instances and gets 1, because of autoscaling.minReplicas"),
        (9, 4, "EnginePool chat-prefill asks for 9 instances and gets 3, because of gpuBudget"),
        (5, None, ""),
    ],
)
def test_why_another_scaler_does_not_get_its_number_is_said(asked: int, budget: int | None, said: str) -> None:
    pools = [autoscaled("prefill", "Prefill", by="External", most=5), autoscaled("decode", "Decode")]
    fleet = Fleet(pools=pools, spec={} if budget is None else {"gpuBudget": budget})
    scaled(fleet, prefill=asked)
    degraded = next(each for each in fleet.status["conditions"] if each["type"] == "Degraded")
    assert degraded["status"] == "False"
    assert said in degraded["message"] if said else "EnginePool" not in degraded["message"]


@pytest.mark.parametrize(
    ("edit", "counts"),
    [({"gpuBudget": 4}, {"prefill": 3, "decode": 1}), ({"decodes": 5}, {"prefill": 3, "decode": 5})],
    ids=["a smaller budget", "a neighbour that grows"],
)
def test_what_another_scaler_has_comes_back_when_the_budget_leaves_less(
    edit: dict[str, int], counts: dict[str, int]
) -> None:
    """Instances beyond it are emptied before they go, as in any scale-down."""
    pools = [autoscaled("prefill", "Prefill", by="External"), pool("decode", "Decode", replicas=1, hardware="h200")]
    fleet = Fleet(pools=pools, spec={"gpuBudget": 8})
    handles(fleet)["prefill"]["spec"]["replicas"] = 6
    fleet.round(2)
    assert fleet.counts() == {"prefill": 6, "decode": 1}
    fleet.held = 1
    pools[1]["replicas"] = edit.get("decodes", 1)
    fleet.spec["gpuBudget"] = edit.get("gpuBudget", 8)
    fleet.edit()
    fleet.look()
    fleet.kubernetes()
    fleet.round(1)
    assert fleet.counts() == counts | {"prefill": 6}
    assert [len(each["draining"]) for each in fleet.status["pools"]] == [3, 0]
    fleet.held = 0
    fleet.round(2)
    assert fleet.counts() == counts


def scaled(fleet: Fleet, **counts: int) -> None:
    """Other scalers ask for so many of their pools."""
    for name, count in counts.items():
        handles(fleet)[name]["spec"]["replicas"] = count
    fleet.look()
    fleet.kubernetes()


def both_external(budget: int) -> Fleet:
    """Two pools that others scale, on all GPUs of a budget, half of them each."""
    pools = [autoscaled("prefill", "Prefill", by="External"), autoscaled("decode", "Decode", by="External")]
    fleet = Fleet(pools=pools, spec={"gpuBudget": budget})
    scaled(fleet, prefill=budget // 2, decode=budget // 2)
    fleet.round(4)
    return fleet


@pytest.mark.parametrize("name", ["prefill", "decode"])
def test_one_scalers_ask_takes_no_instance_of_anothers(name: str) -> None:
    """Whichever pool comes first in the spec."""
    fleet = both_external(budget=8)
    scaled(fleet, **{name: 8})
    fleet.round(8)
    assert fleet.counts() == {"prefill": 4, "decode": 4}
    assert {each["name"]: each["replicas"] for each in fleet.status["pools"]} == fleet.counts()


def test_another_scalers_pool_grows_only_on_gpus_that_no_instance_has() -> None:
    fleet = both_external(budget=8)
    fleet.held = 3
    scaled(fleet, prefill=8, decode=2)
    fleet.round(4)
    assert fleet.counts() == {"prefill": 4, "decode": 4}, "two are being emptied"
    fleet.held = 0
    for _ in range(4):
        fleet.round(1)
        assert sum(fleet.counts().values()) <= 8
    assert fleet.counts() == {"prefill": 6, "decode": 2}


@pytest.mark.parametrize("lost", [False, True], ids=["gone", "lost"])
def test_a_pod_that_ends_has_its_gpu_until_it_is_gone_or_its_node_is_lost(lost: bool) -> None:
    """Its Deployment counts it no more."""
    fleet = both_external(budget=8)
    fleet.ends = False
    scaled(fleet, prefill=1, decode=8)
    fleet.round(3)
    assert fleet.counts() == {"prefill": 1, "decode": 4}
    assert len(fleet.ending) == 3
    fleet.ends = not lost
    fleet.round(1)
    assert fleet.counts() == {"prefill": 1, "decode": 4 if lost else 7}
    fleet.round(int((GRACE_S + LOST_S) / 15.0))
    assert fleet.counts() == {"prefill": 1, "decode": 7}


def test_no_other_scalers_pool_grows_while_the_gpus_of_one_are_not_known() -> None:
    pools = [autoscaled("prefill", "Prefill", by="External"), autoscaled("decode", "Decode", by="External")]
    pools[1]["hardware"] = "big"
    fleet = Fleet(pools=pools, spec={"gpuBudget": 8}, hardware=[hardware(), hardware("big")])
    scaled(fleet, prefill=4, decode=4)
    fleet.round(4)
    fleet.store.remove(("HardwareProfile", None, "big"))
    scaled(fleet, prefill=8)
    fleet.round(2)
    assert fleet.counts() == {"prefill": 4, "decode": 4}
    scaled(fleet, prefill=3)
    fleet.round(2)
    assert fleet.counts() == {"prefill": 3, "decode": 4}
    fleet.store.put(hardware("big"))
    scaled(fleet, prefill=8)
    fleet.round(2)
    assert fleet.counts() == {"prefill": 4, "decode": 4}


def wanted_by_others(budget: int, has: dict[str, int], asked: dict[str, int], **more: Any) -> Mapping[str, int]:
    """Instances of pools on one GPU each (`gpus`: other numbers) that others scale, without a cluster."""
    gpus = more.pop("gpus", dict.fromkeys(has, 1))
    pools = [autoscaled(name, "Flexible", most=MAX_INT, by="External") for name in has]
    numbers: list[Manifest] = [
        {"kind": "EnginePool", "apiVersion": API_VERSION, "metadata": {"name": f"chat-{name}"}, "spec": {"replicas": n}}
        for name, n in asked.items()
    ]
    workloads = (deployment(f"chat-{name}", wanted=count) for name, count in has.items())
    seen = observed(serving_pool(*pools, gpuBudget=budget, **more), children=(*workloads, *numbers))
    return wanted_instances(seen, parse_pool(seen.pool).spec, gpus)


def test_another_scalers_pool_keeps_what_it_wanted_last_while_a_rollout_has_one_pod_less() -> None:
    """Else its neighbour would take the GPU, and the rollout would end one instance short."""
    last = {"pools": [{"name": "a", "replicas": 4}, {"name": "b", "replicas": 4}]}
    found = wanted_by_others(8, has={"b": 4, "a": 3}, asked={"b": 8, "a": 4}, status=last)
    assert found == {"a": 4, "b": 4}


def test_a_million_instances_are_worked_out_at_once() -> None:
    """As by one instance in turn."""
    counts = wanted_by_others(MAX_INT, has={"a": 1, "b": 1}, asked={"a": MAX_INT, "b": 1000})
    assert counts == {"a": MAX_INT - 1000, "b": 1000}
    counts = wanted_by_others(MAX_INT, has={"a": 1, "b": 1}, asked={"a": MAX_INT, "b": MAX_INT}, gpus={"a": 1, "b": 2})
    assert counts == {"a": MAX_INT // 3 + 1, "b": MAX_INT // 3}


@given(
    budget=st.integers(3, 40),
    has=st.lists(st.integers(1, 9), min_size=3, max_size=3),
    asked=st.lists(st.integers(1, 30), min_size=3, max_size=3),
    each=st.lists(st.integers(1, 4), min_size=3, max_size=3),
)
def test_what_the_budget_leaves_goes_to_pools_of_other_scalers_in_turn(
    budget: int, has: list[int], asked: list[int], each: list[int]
) -> None:
    """First what they have, then what they ask for beside what is there; against plain turns."""
    names, gpus = ["a", "b", "c"], dict(zip("abc", each, strict=True))
    there, goals = dict(zip(names, has, strict=True)), dict(zip(names, asked, strict=True))
    counts = dict.fromkeys(names, 1)
    for goal, beside in ({name: min(there[name], goals[name]) for name in names}, {}), (goals, there):
        grown = True
        while grown:
            grown = False
            for name in names:
                more = counts | {name: counts[name] + 1}
                needed = sum(gpus[one] * max(more[one], beside.get(one, 0)) for one in names)
                if more[name] <= goal[name] and needed <= budget:
                    counts, grown = more, True
    if sum(each) <= budget:
        assert wanted_by_others(budget, has=there, asked=goals, gpus=gpus) == counts


def test_a_budget_that_is_lowered_leaves_pools_of_other_scalers_their_share() -> None:
    fleet = both_external(budget=8)
    fleet.edit(gpuBudget=5)
    fleet.look()
    assert {each["name"]: each["replicas"] for each in fleet.status["pools"]} == {"prefill": 3, "decode": 2}


def test_instances_that_are_being_emptied_do_not_come_back_with_another_owner_of_the_number() -> None:
    """Decided down, and before they are gone it is Off."""
    fleet = Fleet(spec={"ratio": {"mode": "Auto"}, "scaleDown": {"stabilizationS": 0}})
    fleet.rate_rps = BUSY_RPS
    fleet.round(6)
    most = fleet.counts()["decode"]
    assert most > 1
    fleet.held, fleet.rate_rps = 3, 1.0
    for _ in range(6):
        fleet.round(1)
    wanted = read(fleet.decisions or {}).wanted["decode"].decode
    assert wanted < most
    assert fleet.counts()["decode"] > wanted, "they are not empty"
    fleet.spec = {"ratio": {"mode": "Off"}}
    fleet.edit()
    fleet.look()
    assert handles(fleet)["decode"]["spec"]["replicas"] == wanted


def test_without_its_definition_a_pool_keeps_the_number_of_its_deployment() -> None:
    """As after an upgrade that left the CRDs as they were."""
    fleet = Fleet(pools=[autoscaled("prefill", "Prefill", by="External"), autoscaled("decode", "Decode")])
    fleet.store.installed = frozenset()
    del fleet.store.objects["EnginePool", NAMESPACE, "chat-prefill"]
    fleet.store.objects["Deployment", NAMESPACE, "chat-prefill"]["spec"]["replicas"] = 3
    fleet.look()
    assert fleet.counts()["prefill"] == 3
