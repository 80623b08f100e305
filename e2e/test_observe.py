"""What people observe with: a real Prometheus scrapes a fleet under load, and all that we ship has data in it.

One story on one ServingPool, in file order: every panel, rule and alert has data; then endpoints are lost, and the
right alert fires.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from dashboards.everything import DASHBOARDS
from dashboards.rules import ALERTS, RECORDINGS, rule_file
from kit import Cluster, Kubectl, quickstart, wait_until
from kit.prometheus import Prometheus
from kit.quickstart import NAME, engine_pods, start_load, wait_serving
from kit.release import NAMESPACE, Release
from tests.observe import test_metric_declarations, test_rules
from tests.support.promql import as_asked, named

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600), pytest.mark.xdist_group("observe")]

TIME_SCALE = 2.0
LOAD_S = 30.0
KILLED = "BallastInstancesMissing"

NONE = {
    "Certificates": "no face speaks TLS",
    "KV events": "the quickstart's engines publish none",
    "Ejected and probed endpoints": "no endpoint is bad",
    "Pause of moved streams": "no stream is moved",
    "Wanted by scaling": "the quickstart does not scale",
    "Rounds of scaling by reason": "the quickstart does not scale",
    "Rehearsals": "the quickstart does not scale",
    "Foreign edits": "nobody edits its objects",
    "Tokens by tenant": "the quickstart checks no keys",
    "Refused by tenant": "the quickstart checks no keys",
    "Scrapes": "no scrape has failed; the ages beside are there",
}
"""Panels that may have no data here, and why."""
NO_SERIES = {
    "ballast_gateway_tls_certificate_expiry_timestamp_seconds": "no face speaks TLS",
}
"""Series of alerts that do not exist here, and why."""


@pytest.fixture(scope="module")
def fleet(cluster: Cluster, release: Release, module_namespace: str) -> Kubectl:
    """kubectl in a namespace in which the quickstart serves."""
    if not Prometheus.installed():
        pytest.skip("prometheus is not installed (Debian's package prometheus; `make testbed-build` brings it)")
    kubectl = cluster.kubectl.within(module_namespace)
    kubectl.apply(*quickstart.objects(cluster.images.ballast, TIME_SCALE))
    wait_serving(kubectl, prefill=2, decode=4)
    return kubectl


@pytest.fixture(scope="module")
def prometheus(cluster: Cluster, fleet: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """It runs with our rules; one alert does not wait for a quarter of an hour."""
    with Prometheus(cluster, tmp_path_factory.mktemp("prometheus"), rule_file(waits={KILLED: "6s"})) as running:
        yield running


def test_every_panel_rule_and_alert_has_data(cluster: Cluster, fleet: Kubectl, prometheus: Prometheus) -> None:
    """After load: of each panel at least one expression, each recording rule, each series that an alert names."""
    gateways = {pod["metadata"]["name"] for pod in fleet.items("pods", "app.kubernetes.io/component=gateway")}
    operators = {pod["metadata"]["name"] for pod in cluster.kubectl.within(NAMESPACE).items("pods")}
    wait_until(
        lambda: all(prometheus.targets().get(pod) == "up" for pod in gateways | operators),
        60,
        "gateways and operator are scraped",
    )
    load = start_load(
        fleet, "observed", image=cluster.images.ballast, url=f"http://{NAME}-gateway", duration_s=LOAD_S,
        time_scale=TIME_SCALE,
    )  # fmt: skip
    report = load.result(timeout_s=LOAD_S * TIME_SCALE + 180)
    assert report["failed"] == 0, report.get("failures")

    def missing() -> dict[str, list[str]]:
        return {
            panel.title: none
            for board in DASHBOARDS
            for panel in board.panels
            if (none := [each for each, _ in panel.expressions if not prometheus.query(as_asked(each))])
        }

    wait_until(lambda: missing().keys() <= NONE.keys(), 20, f"panels have data: {missing()}", poll_s=2.0)
    for recording in RECORDINGS:
        assert prometheus.query(recording.name), recording.name
    series = {name for alert in ALERTS for name, _ in named(alert.expression).selectors}
    assert {name for name in series if not prometheus.query(name)} == NO_SERIES.keys()
    assert prometheus.broken_rules() == []
    counted = prometheus.query(f'sum(ballast_gateway_requests_total{{serving_pool="{NAME}",outcome="completed"}})')
    assert float(counted[0]["value"][1]) == report["completed"]
    assert KILLED not in prometheus.firing()


def test_lost_endpoints_fire_the_alert_that_names_them(
    cluster: Cluster, fleet: Kubectl, prometheus: Prometheus
) -> None:
    """A decode pod is killed and finds no node: one alert says which pool. With the node it is over."""
    nodes = cluster.hardware_nodes("h20")
    try:
        for node in nodes:
            cluster.kubectl.text("cordon", node)
        victim = engine_pods(fleet, "decode")[0]["metadata"]["name"]
        fleet.run("delete", "pod", victim, "--now", "--wait=false")
        wait_until(lambda: KILLED in prometheus.firing(), 120, f"{KILLED} fires", poll_s=1.0)
        fired = prometheus.firing()
        assert (fired[KILLED]["pool"], fired[KILLED]["serving_pool"]) == ("decode", NAME)
        assert "BallastPoolUnavailable" not in fired
    finally:
        for node in nodes:
            cluster.kubectl.text("uncordon", node)
    wait_until(lambda: KILLED not in prometheus.firing(), 120, f"{KILLED} is over", poll_s=1.0)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool comes with the package prometheus")
async def test_promtool_finds_no_fault(tmp_path: Path) -> None:
    """Where it is installed, which the test of the metrics and of the rules alone cannot count on."""
    await test_metric_declarations.test_promtool_finds_nothing_in_what_is_exported(tmp_path)
    test_rules.test_alerts_fire_and_do_not(tmp_path)
