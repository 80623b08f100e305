"""The quickstart's objects, word for word: a change of what users get shows up in review."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import yaml

from ballast_api.loading import load_manifest_files, parse_settings
from ballast_operator.kinds import Manifest
from ballast_operator.observed import Observed
from ballast_operator.planning.plan import plan
from ballast_operator.settings import GatewayDefaults
from tests.support.operator_builders import FRESH_TOKEN, NOW, objectives, status_of

QUICKSTART = Path(__file__).parents[2] / "manifests" / "quickstart"


def quickstart() -> Observed:
    found: dict[str, list[Manifest]] = {}
    for resource in load_manifest_files(QUICKSTART):
        manifest = resource.dump()
        manifest["metadata"] |= {"uid": f"uid-of-{resource.name}", "generation": 1}
        if resource.namespaced:
            manifest["metadata"]["namespace"] = "default"
        found.setdefault(manifest["kind"], []).append(manifest)
    return Observed(
        pool=found["ServingPool"][0],
        now=NOW,
        fresh_token=FRESH_TOKEN,
        gateway_defaults=GatewayDefaults(image="localhost/ballast:dev", image_pull_policy="IfNotPresent"),
        policy=found["SchedulingPolicy"][0],
        objectives=objectives(*found["ServiceLevelObjective"]),
        profiles={item["metadata"]["name"]: item for item in found["HardwareProfile"]},
    )


class _Readable(yaml.SafeDumper):
    """Texts of several lines as blocks, nothing by reference."""

    def ignore_aliases(self, data: object) -> bool:
        return True


_Readable.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


def test_the_quickstarts_plan(golden: Callable[[str, str], None]) -> None:
    """Objects in the order of writing, then the first status."""
    documents = [*plan(quickstart()).apply, {"status": status_of(quickstart())}]
    golden("quickstart_plan.yaml", yaml.dump_all(documents, Dumper=_Readable, sort_keys=False, width=120))


def test_the_gateway_can_load_what_the_operator_writes() -> None:
    """The ConfigMap's text, short as it is, is a valid settings file for the quickstart's model and hardware."""
    config = next(item for item in plan(quickstart()).apply if item["kind"] == "ConfigMap")
    settings = parse_settings(config["data"]["gateway.yaml"])
    assert settings.model.served_names == ("Qwen/Qwen3-32B",)
    assert settings.profiles.keys() == {"a100-qwen3-32b", "h20-qwen3-32b"}
    assert (settings.policy.prefill.type, settings.policy.decode.type) == ("least-uncached-tokens", "ballast")
    assert settings.discovery.kubernetes is not None
    assert settings.discovery.kubernetes.selector == (
        "serving.ballast.dev/serving-pool=quickstart,app.kubernetes.io/component=engine"
    )
