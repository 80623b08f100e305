"""The chart with the operator, as Helm renders it without a cluster; `e2e/test_chart.py` installs it."""

import subprocess
from pathlib import Path

import pytest
import yaml

from ballast_api.gateway_metrics import GATEWAY
from ballast_api.metric_declaring import Metric
from ballast_api.metrics import OPERATOR
from tests.support.testbed_programs import helm

SCRAPED = frozenset({"namespace", "pod", "container", "endpoint", "job", "instance"})
"""Labels that Prometheus Operator gives each target of a PodMonitor."""
CHART = Path(__file__).parents[2] / "charts/ballast"


def rendered(*values: str) -> subprocess.CompletedProcess[str]:
    words = [word for value in values for word in ("--set", value)]
    return subprocess.run([helm(), "template", "b", str(CHART), *words], capture_output=True, text=True, check=False)


def test_the_port_of_the_probes_is_not_given_twice() -> None:
    """Its pod would end at once, again and again."""
    done = rendered("metricsPort=8080")
    assert done.returncode != 0
    assert "metricsPort: 8080 is where the operator answers its probes; choose another" in done.stderr
    assert rendered("metricsPort=0").returncode == 0


@pytest.mark.parametrize(("name", "metrics"), [("gateways", GATEWAY), ("operator", OPERATOR)])
def test_prometheus_operator_renames_no_label_that_dashboards_and_alerts_ask_for(
    name: str, metrics: tuple[Metric, ...]
) -> None:
    """Where both have one, that of the series counts: else it would be `exported_endpoint`."""
    assert SCRAPED & {label for each in metrics for label in each.labels}
    done = rendered("monitoring.podMonitors=Always")
    monitors = [each for each in yaml.safe_load_all(done.stdout) if each and each["kind"] == "PodMonitor"]
    [monitor] = [each for each in monitors if each["metadata"]["name"].endswith(name)]
    assert [each["honorLabels"] for each in monitor["spec"]["podMetricsEndpoints"]] == [True]
