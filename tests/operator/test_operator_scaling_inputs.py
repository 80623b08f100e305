"""What a scaling decision goes by: from gateways' reports and pods to the policy's inputs."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ballast_api.demand_report import BIN_S, BINS, DemandReport, Seen
from ballast_core.attainment import WINDOWS_S, Objective, Threshold
from ballast_core.attainment import Counts as Requests
from ballast_core.model import Role
from ballast_core.policies.scaling.protocol import Counts, Memory
from ballast_core.profiles import SHIPPED_PROFILES
from ballast_operator.gateways.asking import NoAnswer
from ballast_operator.gateways.gateway_pods import GatewayPod
from ballast_operator.gateways.measured import ClassCounts, Measured
from ballast_operator.kinds import Manifest
from ballast_operator.scaling.inputs import (
    LEAST_STUCK_S,
    STARTUP_S,
    inputs_of,
    instances_of,
    startup_of,
    traffic_of,
    wanted_of,
)
from ballast_operator.scaling.records import NOTHING, Stored
from ballast_operator.scaling.steered import Instance, Steered, SteeredPool
from ballast_operator.steering.steering import demands
from tests.operator.test_operator_collecting import ask, gateways, script
from tests.support.pod_api_calls import TOKEN
from tests.support.scripted_engine import scripted_engine

NOW_S = 1_800_000_002.0
H200 = SHIPPED_PROFILES["h200-qwen3-32b"]


def report(*arrivals: int, since_unix_s: float = 0.0, **more: Any) -> DemandReport:
    """`arrivals`: of the newest windows."""
    counts = (0,) * (BINS - len(arrivals)) + arrivals
    return DemandReport(unix_s=NOW_S, since_unix_s=since_unix_s, arrivals=counts, **more)


def steered(*pools: SteeredPool, mode: str = "Auto") -> Steered:
    return Steered(uid="u", mode=mode, pools=pools, objectives=(Objective("fast", ttft_s=1.0),), token=b"t")


def pool(role: Role = Role.DECODE, *, count: int = 2, least: int = 1, most: int = 8) -> SteeredPool:
    return SteeredPool(name="d", role=role, profile=H200, least=least, most=most, count=count, acts=least < most)


def instance(name: str = "a", role: Role = Role.DECODE, **more: Any) -> Instance:
    content = {"ready": True, "ending": False, "age_s": 100.0, **more}
    return Instance(name=name, pool="d", role=role, **content)


def counted(of: SteeredPool, *instances: Instance, stored: Stored = NOTHING) -> Any:
    found = inputs_of(steered(of), instances, None, None, stored=stored, memory=Memory(), now_s=NOW_S)
    return found.pools[0]


# --- traffic --------------------------------------------------------------------------------------------------------


def test_windows_are_of_fifteen_seconds_and_the_one_that_is_not_over_is_left_out() -> None:
    found = traffic_of(report(1, 2, 3, 4, 5, 6, 99), None)
    assert found.bin_s == 15.0
    assert found.arrivals[-2:] == (6, 15)


def test_windows_from_before_a_gateway_began_to_count_are_left_out() -> None:
    """It saw a part of the traffic only: what came later would look like a rise."""
    newest = int(NOW_S // BIN_S)
    found = traffic_of(report(*(1,) * BINS, since_unix_s=(newest - 6) * BIN_S - 1.0), None)
    assert found.arrivals == (3, 3)
    assert traffic_of(report(*(1,) * BINS, since_unix_s=NOW_S - 1.0), None).arrivals == ()


def test_lengths_are_those_of_the_last_requests_and_running_ones_are_expected_to_go_on() -> None:
    old = [Seen(NOW_S - 100 + k / 10, 100, 10, True) for k in range(50)]
    new = [Seen(NOW_S - 30 + k / 10, 1000, 200, k % 2 == 0) for k in range(100)]
    found = traffic_of(report(requests=(*old, *new)), None)
    assert found.lengths is not None
    assert found.lengths.input_tokens == 1000
    assert found.lengths.output_tokens > 300
    assert traffic_of(report(requests=(Seen(NOW_S, 100, 0, False),)), None).lengths is None


def test_what_waits_is_taken_without_what_caches_hold() -> None:
    found = traffic_of(
        report(waiting=3, waiting_tokens=900, oldest_unix_s=NOW_S - 4, prompt_tokens=1000, cached_tokens=250), None
    )
    assert (found.backlog_tokens, found.oldest_wait_s, found.prefix_hit_ratio) == (675.0, 4.0, 0.25)


def test_attainment_is_that_of_the_last_minute_unknown_ones_included() -> None:
    windows = {window_s: dict.fromkeys(Threshold, Requests(8, 2, 5)) for window_s in WINDOWS_S}
    measured = Measured((ClassCounts(Objective("fast", ttft_s=1.0), windows),), 1)
    [found] = traffic_of(report(), measured).attained
    assert (found.name, found.counts) == ("fast", Requests(8, 2, 5))


# --- pods -----------------------------------------------------------------------------------------------------------


def pod(name: str, *, created: str, ready: str = "", **more: Any) -> Manifest:
    labels = {
        "serving.ballast.dev/serving-pool": "chat",
        "serving.ballast.dev/pool": "d",
        "serving.ballast.dev/role": "decode",
        "app.kubernetes.io/component": "engine",
        **more.pop("labels", {}),
    }
    metadata = {"name": name, "namespace": "team", "labels": labels, "creationTimestamp": created, **more}
    conditions = [{"type": "Ready", "status": "True" if ready else "False", "lastTransitionTime": ready or created}]
    return {"metadata": metadata, "status": {"phase": "Running", "conditions": conditions}}


def test_pods_are_counted_by_what_they_do() -> None:
    pods = [
        pod("ready", created="2027-01-15T07:58:00Z", ready="2027-01-15T07:59:30Z"),
        pod("starts", created="2027-01-15T07:59:50Z"),
        pod("ends", created="2027-01-15T07:00:00Z", ready="2027-01-15T07:01:00Z", deletionTimestamp="x"),
        pod("gateway", created="2027-01-15T07:00:00Z", labels={"app.kubernetes.io/component": "gateway"}),
    ]
    evicted = pod("evicted", created="2027-01-15T07:00:00Z")
    evicted["status"]["phase"] = "Failed"
    found = instances_of([*pods, evicted], NOW_S)["team", "chat"]
    assert [(each.name, each.ready, each.ending) for each in found] == [
        ("ready", True, False),
        ("starts", False, False),
        ("ends", True, True),
    ]
    assert (found[0].startup_s, found[1].startup_s) == (90.0, None)
    of = counted(pool(), *found)
    assert (of.ready, of.starting, of.draining) == (Counts(0, 1), 1, 1)


def test_an_instance_that_is_emptied_returns_unless_its_deployment_may_have_let_it_go() -> None:
    marks = {"serving.ballast.dev/draining-since": "2027-01-15T07:59:00Z"}
    goes = marks | {"controller.kubernetes.io/pod-deletion-cost": "-2147483648"}
    pods = [pod(each, created="2027-01-15T07:00:00Z") for each in ("emptied", "goes", "ends")]
    for each, notes in zip(pods, (marks, goes, marks), strict=True):
        each["metadata"]["annotations"] = notes
    pods[2]["metadata"]["deletionTimestamp"] = "x"
    of = counted(pool(), *instances_of(pods, NOW_S)["team", "chat"])
    assert (of.draining, of.returning) == (3, 1)


def test_start_up_is_the_median_of_what_was_measured_and_outlives_its_pods() -> None:
    """A pod that is ready again after a fault seems to have taken days."""
    took = [instance(startup_s=each) for each in (50.0, 70.0, 300_000.0)]
    assert startup_of(took, None) == 60.0
    assert startup_of([instance(startup_s=None)], 80.0) == 80.0
    assert startup_of([], None) == STARTUP_S


def test_a_pod_that_never_starts_does_not_keep_its_pool_from_shrinking() -> None:
    late = instance(ready=False, age_s=LEAST_STUCK_S + 1)
    assert counted(pool(), instance(), late).starting == 0
    assert counted(pool(), instance(), replace(late, age_s=LEAST_STUCK_S - 1)).starting == 1
    slow = instance(startup_s=1000.0)
    assert counted(pool(), slow, late).starting == 1


@pytest.mark.parametrize(
    ("of", "mode", "others"),
    [
        (pool(), "Auto", False),
        (pool(), "Advisory", True),
        (replace(pool(), acts=False), "Auto", True),
        (pool(least=2, most=2), "Advisory", False),
    ],
    ids=["ours", "advice", "another scaler", "a given number"],
)
def test_a_number_that_may_change_without_us_is_of_others(of: SteeredPool, mode: str, others: bool) -> None:
    found = inputs_of(steered(of, mode=mode), [], None, None, stored=NOTHING, memory=Memory(), now_s=NOW_S)
    assert found.pools[0].by_others is others


# --- what is asked for ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("of", "asked", "expected"),
    [
        (pool(count=3), None, Counts(0, 3)),
        (pool(count=3), Counts(0, 5), Counts(0, 5)),
        (pool(count=3, most=4), Counts(0, 9), Counts(0, 4)),
        (pool(count=3, least=3, most=3), Counts(0, 5), Counts(0, 3)),
        (pool(Role.PREFILL, count=3), None, Counts(3, 0)),
        (pool(Role.FLEXIBLE, count=4), None, Counts(2, 2)),
        (pool(Role.FLEXIBLE, count=4), Counts(3, 1), Counts(3, 1)),
        (pool(Role.FLEXIBLE, count=4, least=4, most=4), Counts(3, 1), Counts(3, 1)),
        (pool(Role.FLEXIBLE, count=2, least=2, most=2), Counts(8, 0), Counts(2, 0)),
        (pool(Role.FLEXIBLE, count=2, least=2, most=2), Counts(8, 1), Counts(1, 1)),
    ],
)
def test_what_is_asked_for_by_stage(of: SteeredPool, asked: Counts | None, expected: Counts) -> None:
    assert wanted_of(of, asked, ()) == expected


def test_flexible_pods_without_a_decision_count_by_the_roles_they_have() -> None:
    roles = [instance("a", Role.PREFILL), instance("b", Role.PREFILL), instance("c", Role.PREFILL), instance("d")]
    assert wanted_of(pool(Role.FLEXIBLE, count=4), None, roles) == Counts(3, 1)


def test_a_flexible_pod_without_a_role_counts_where_more_are_wanted() -> None:
    stored = Stored(mode="Auto", wanted={"d": Counts(2, 1)})
    fresh = [instance(name, Role.FLEXIBLE) for name in "abc"]
    of = counted(pool(Role.FLEXIBLE, count=3), *fresh, stored=stored)
    assert (of.wanted, of.ready) == (Counts(2, 1), Counts(2, 1))


# --- asking ---------------------------------------------------------------------------------------------------------


async def test_real_gateways_are_asked_with_signed_calls(tmp_path: Path) -> None:
    async with (
        scripted_engine(script) as engine,
        gateways(tmp_path, engine.address, "127.0.0.2", "127.0.0.3") as (port, running),
    ):
        for number in range(3):
            await ask(running[number % 2], f"127.0.0.{2 + number % 2}", [number] * 5)
        asked = [GatewayPod(host, f"{host}:{port}", True) for host in ("127.0.0.2", "127.0.0.3", "127.0.0.4")]
        one, two, none = await asyncio.to_thread(demands, [(each, TOKEN) for each in asked])
        assert isinstance(one, DemandReport)
        assert isinstance(two, DemandReport)
        assert (sum(one.arrivals), sum(two.arrivals)) == (2, 1)
        assert [(each.input_tokens, each.output_tokens, each.ended) for each in two.requests] == [(5, 3, True)]
        assert isinstance(none, NoAnswer)
        [refused] = await asyncio.to_thread(demands, [(asked[0], b"another token of this size")])
        assert isinstance(refused, NoAnswer)
