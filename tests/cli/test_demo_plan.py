"""The demo's plan: which objective its requests are held to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ballast_api.common import ApiModel
from ballast_api.loading import load_manifest_files, parse_resource
from ballast_cli.demo.cases import quickstart_folder
from ballast_cli.demo.plan import DemoError, Fleet, gateway_settings, plan_fleet


def manifests(refs: list[str], **objectives: dict[str, Any]) -> list[ApiModel]:
    """The quickstart with these objectives, by name."""
    found: list[ApiModel] = []
    for resource in load_manifest_files(quickstart_folder()):
        dumped = resource.dump()
        if dumped["kind"] == "ServingPool":
            del dumped["spec"]["sloRef"]
            dumped["spec"]["sloRefs"] = [{"name": name} for name in refs]
        if dumped["kind"] != "ServiceLevelObjective":
            found.append(parse_resource(dumped))
    for name, spec in objectives.items():
        kind = {"apiVersion": "serving.ballast.dev/v1alpha1", "kind": "ServiceLevelObjective"}
        found.append(parse_resource({**kind, "metadata": {"name": name}, "spec": spec}))
    return found


def test_its_requests_have_the_objective_of_the_first_class_that_they_belong_to() -> None:
    """They name the model, and carry no headers."""
    gold = {"ttftS": 1.0, "match": {"headers": [{"name": "x-tier", "value": "gold"}]}}
    other, rest = {"ttftS": 2.0, "match": {"model": "another"}}, {"ttftS": 3.0}
    fleet = plan_fleet(manifests(["gold", "other", "rest"], gold=gold, other=other, rest=rest))
    assert fleet.objective is not None
    assert fleet.objective.name == "rest"
    assert plan_fleet(manifests(["gold"], gold=gold)).objective is None


def test_the_gateways_live_page_has_the_objective_that_the_verdict_is_about() -> None:
    """Attainment there is by the same thresholds; without an objective there is none."""
    fleet = plan_fleet(manifests(["rest"], rest={"ttftS": 3.0, "tpotS": 0.1}))

    def objectives_of(fleet: Fleet) -> list[tuple[str, float | None, float | None]]:
        settings = gateway_settings(fleet, fleet.policy, Path("endpoints.yaml"), proxy_port=1, admin_port=2)
        return [(each.name, each.ttft_s, each.tpot_s) for each in settings.objectives]

    assert objectives_of(fleet) == [("rest", 3.0, 0.1)]
    assert not objectives_of(replace(fleet, objective=None))


def test_an_objective_that_no_manifest_holds_is_named() -> None:
    """With the field that names it."""
    with pytest.raises(DemoError, match=r"spec\.sloRefs names 'gone'"):
        plan_fleet(manifests(["rest", "gone"], rest={"ttftS": 3.0}))
