"""The chart with the operator, as Helm renders it without a cluster; `e2e/test_chart.py` installs it."""

import subprocess
from pathlib import Path

from tests.support.testbed_programs import helm

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
