"""The operator's metrics: what each look came to, and what each ServingPool is like."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import yaml

from ballast_core.policies.scaling.protocol import Decision
from ballast_operator.api.api_failure import ApiFailure
from ballast_operator.controller import Controller, Key
from ballast_operator.gateways.board import Name
from ballast_operator.kinds import SERVING_POOL, Kind
from ballast_operator.metrics import OperatorMetrics
from ballast_operator.reconcile import Reconciler, Result
from ballast_operator.scaling.steered import Steered
from ballast_operator.settings import OperatorSettings
from tests.operator.test_operator_controller import Watches
from tests.support.gateway_kit import until
from tests.support.object_store import ObjectStore
from tests.support.operator_builders import DEFAULTS, FRESH_TOKEN, NAMESPACE, NOW, profile, serving_pool
from tests.support.scaled_fleet import Fleet

PAGE = Path(__file__).parents[2] / "docs" / "operator" / "scaling.md"


def test_conditions_and_instances_are_those_of_the_last_look_and_go_with_the_serving_pool() -> None:
    """No old reason stays beside the new one."""
    metrics, store = OperatorMetrics(), ObjectStore(profile("a100"), profile("h20"), serving_pool())
    settings = OperatorSettings(gateway=DEFAULTS)
    reconciler = Reconciler(store, store, settings, lambda: NOW, lambda: FRESH_TOKEN, said=metrics.said)

    def instances(count: str) -> float | None:
        labels = {"namespace": NAMESPACE, "serving_pool": "chat", "pool": "decode", "count": count}
        return metrics.registry.get_sample_value("ballast_operator_instances", labels)

    def conditions() -> set[tuple[str, str]]:
        found = next(each for each in metrics.registry.collect() if each.name == "ballast_operator_condition")
        return {(each.labels["type"], each.labels["status"]) for each in found.samples}

    reconciler.serving_pool(NAMESPACE, "chat")
    assert (instances("wanted"), instances("ready")) == (4.0, 0.0)
    assert {("Available", "False"), ("Degraded", "False")} <= conditions()
    store.run_deployments()
    reconciler.serving_pool(NAMESPACE, "chat")
    assert instances("ready") == 4.0
    assert ("Available", "True") in conditions()
    assert ("Available", "False") not in conditions()
    del store.objects["ServingPool", NAMESPACE, "chat"]
    reconciler.serving_pool(NAMESPACE, "chat")
    assert (instances("wanted"), conditions()) == (None, set())


def test_counters_of_a_serving_pool_go_with_it() -> None:
    """Names that come and go leave no series behind, not even of a round of scaling that was under way; those of others
    stay."""
    metrics, fleet = OperatorMetrics(), Fleet()
    steered = fleet.scaler.helm.steered()["team", "chat"]
    for name in ("chat", "code"):
        metrics.set_back("team", name, "Deployment")
        metrics.rehearsed(("team", name), "chosen", None)
        metrics.said("team", name, {})

    def named() -> set[str]:
        return {
            sample.labels["serving_pool"]
            for found in metrics.registry.collect()
            for sample in found.samples
            if "serving_pool" in sample.labels
        }

    assert named() == {"chat", "code"}
    metrics.said("team", "chat", None)
    metrics.said("team", "chat", None)
    assert named() == {"code"}
    metrics.decided(("team", "chat"), steered, None)
    for name in ("chat", "code"):
        metrics.decided(("team", name), None, None)
    assert named() == {"code"}


class Looks:
    """Each look has another result."""

    def __init__(self) -> None:
        self._results = iter([Result(), Result(failed=True)])

    def serving_pool(self, namespace: str, name: str) -> Result:
        found = next(self._results, None)
        if found is None:
            raise ApiFailure(503, "Unavailable", "away")
        return found

    def referred(self, kind: Kind, namespace: str | None, name: str) -> Result:
        return Result()


async def test_looks_are_counted_by_result_with_their_times() -> None:
    """Done, refused, failed."""
    metrics, seen = OperatorMetrics(), asyncio.Semaphore(0)

    def looked(kind: str, result: str, seconds: float) -> None:
        metrics.looked(kind, result, seconds)
        seen.release()

    controller = Controller(Looks(), OperatorSettings(gateway=DEFAULTS, workers=1), looked)
    controller.start()
    for name in ("a", "b", "c"):
        controller.touch(Key(SERVING_POOL, "team", name))
        await asyncio.wait_for(seen.acquire(), 10)
    await controller.stop()
    for result in ("done", "refused", "failed"):
        labels = {"kind": "ServingPool", "result": result}
        assert (metrics.registry.get_sample_value("ballast_operator_looks_total", labels) or 0) >= 1
    assert metrics.registry.get_sample_value("ballast_operator_look_seconds_count", {"kind": "ServingPool"})


async def test_an_operator_without_a_serving_pool_counts_its_looks_from_zero_as_soon_as_it_works() -> None:
    """BallastOperatorDown asks whether there is such a series: none while another one leads, or nothing can be read."""
    metrics, watches = OperatorMetrics(), Watches()
    settings = OperatorSettings(gateway=DEFAULTS, workers=1)
    controller = Controller(Looks(), settings, metrics.looked, watches, metrics.begins)

    def count(kind: str, result: str) -> float | None:
        labels = {"kind": kind, "result": result}
        return metrics.registry.get_sample_value("ballast_operator_looks_total", labels)

    controller.watch()
    controller.start()
    await asyncio.sleep(0.1)
    assert count("ServingPool", "done") is None
    watches.settled = True
    await until(lambda: count("ServingPool", "done") is not None)
    assert {count(kind, result) for kind in ("ServingPool", "HardwareProfile") for result in ("done", "failed")} == {0}
    await controller.stop()


def test_what_was_decided_is_a_metric_until_it_is_decided_no_more() -> None:
    """Counts by pool and stage for other scalers to follow, and rounds by reason."""
    metrics = OperatorMetrics()
    fleet = Fleet()
    fleet.scaler.told = metrics.decided
    fleet.rate_rps = 40.0
    fleet.round(3)

    def value(pool: str, stage: str) -> float | None:
        labels = {"namespace": "team", "serving_pool": "chat", "pool": pool, "stage": stage}
        return metrics.registry.get_sample_value("ballast_operator_scaling_instances", labels)

    assert value("prefill", "prefill") == fleet.counts()["prefill"]
    assert (value("prefill", "decode"), value("decode", "prefill")) == (0, 0)
    rounds = {"namespace": "team", "serving_pool": "chat", "reason": "ScaledUp"}
    assert metrics.registry.get_sample_value("ballast_operator_scaling_decisions_total", rounds) == 1
    fleet.edit(ratio={"mode": "Off"})
    fleet.look()
    fleet.round(1)
    assert value("prefill", "prefill") is None


def test_the_autoscaler_of_the_page_follows_the_advice_for_one_pool_of_one_serving_pool() -> None:
    """Of all that its selector matches it takes the sum."""
    texts = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (scaler,) = [
        each for text in texts for each in yaml.safe_load_all(text) if "scaleTargetRef" in each.get("spec", {})
    ]
    metric: dict[str, Any] = scaler["spec"]["metrics"][0]["external"]["metric"]
    metrics, fleet = OperatorMetrics(), Fleet()

    def decided(name: Name, of: Steered | None, decision: Decision | None) -> None:
        for each in (name[1], "other"):
            metrics.decided((name[0], each), of, decision)

    fleet.scaler.told = decided
    fleet.round(1)
    every = [each for found in metrics.registry.collect() for each in found.samples if each.name == metric["name"]]
    wanted = metric["selector"]["matchLabels"].items()
    (matched,) = [each.labels for each in every if wanted <= each.labels.items()]
    assert f"{matched['serving_pool']}-{matched['pool']}" == scaler["spec"]["scaleTargetRef"]["name"]
