"""The set-ups in docs/picker.md: Envoy takes the one, and the operator writes the other."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from ballast_operator.specs import routes
from ballast_operator.specs.meta import Owner
from tests.support.envoy import BINARY, EnvoySetup, bootstrap, needs_envoy

PAGE = Path(__file__).parents[2] / "docs/picker.md"
ENVOY, GATEWAY = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.mark.envoy
@needs_envoy
def test_envoy_takes_the_recommended_set_up(tmp_path: Path) -> None:
    """Every name and value in it, in front of the tests' own router and destination."""
    shown = yaml.safe_load(ENVOY.replace("{...}", "{cluster_name: ballast-picker}"))
    config = bootstrap(None, EnvoySetup())
    resources = config["static_resources"]
    manager = resources["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    manager["http_filters"] = [*shown["http_filters"], *manager["http_filters"]]
    resources["clusters"] += shown["clusters"]
    file = tmp_path / "envoy.json"
    file.write_text(json.dumps(config))
    said = subprocess.run(
        [str(BINARY), "--mode", "validate", "-c", str(file)], capture_output=True, text=True, timeout=60, check=False
    )
    assert said.returncode == 0, said.stderr[-2000:]


def test_the_recommended_policies_are_those_that_the_operator_writes() -> None:
    """But for names, and for what it adds where pods have agents."""
    owner = Owner(name="chat", namespace="default", uid="u")
    made = [routes.extension_policy(owner), routes.traffic_policy(owner, agents=False)]
    shown = list(yaml.safe_load_all(GATEWAY))
    assert [each["kind"] for each in shown] == [each["kind"] for each in made]
    for ours, theirs in zip(made, shown, strict=True):
        assert _without_names(ours["spec"]) == _without_names(theirs["spec"])


def _without_names(spec: dict[str, Any]) -> dict[str, Any]:
    rest = {name: value for name, value in spec.items() if name != "targetRefs"}
    if "extProc" in rest:
        rest["extProc"] = [{k: v for k, v in each.items() if k != "backendRefs"} for each in rest["extProc"]]
    return rest
