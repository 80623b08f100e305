"""`ballast import endpoint-picker-config`: what llm-d's configurations become, and what is said of the rest."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from ballast_api.errors import InvalidInput
from ballast_api.gateway_settings import GatewaySettings
from ballast_cli.importing.endpoint_picker import Imported, import_config
from ballast_cli.importing.plugins import PLUGINS, Fit
from ballast_cli.main import app
from ballast_core.policies.registry import PLACEMENT

HEAD = {"apiVersion": "llm-d.ai/v1alpha1", "kind": "EndpointPickerConfig"}
DOCS = Path(__file__).parents[2] / "docs/importing.md"


def config(*plugins: str | dict[str, Any], profiles: dict[str, dict[str, float]], **more: Any) -> dict[str, Any]:
    """Profiles: plug-in names to weights."""
    return {
        **HEAD,
        "plugins": [{"type": each} if isinstance(each, str) else each for each in plugins],
        "schedulingProfiles": [
            {"name": name, "plugins": [{"pluginRef": ref, "weight": weight} for ref, weight in uses.items()]}
            for name, uses in profiles.items()
        ],
        **more,
    }


def read(document: object) -> Imported:
    imported = import_config(yaml.safe_dump(document), source="c.yaml")
    imported.manifest("imported")
    GatewaySettings.parse({"model": {"servedNames": ["m"]}, "discovery": {"file": "f"}, **imported.settings})
    return imported


def fits(imported: Imported) -> dict[str, Fit]:
    return {finding.path: finding.fit for finding in imported.findings}


LOAD_AND_PREFIX = config(
    "queue-scorer",
    "kv-cache-utilization-scorer",
    "prefix-cache-scorer",
    profiles={"default": {"queue-scorer": 2, "kv-cache-utilization-scorer": 2, "prefix-cache-scorer": 3}},
)
DISAGGREGATED = config(
    {"type": "disagg-profile-handler", "parameters": {"profiles": {"prefill": "first", "decode": "second"}}},
    "always-disagg-pd-decider",
    "prefill-filter",
    "decode-filter",
    {"type": "prefix-cache-scorer", "name": "cached"},
    "active-request-scorer",
    {"type": "max-score-picker", "parameters": {"maxNumOfEndpoints": 3}},
    profiles={
        "first": {"prefill-filter": 0, "cached": 3, "active-request-scorer": 1},
        "second": {"decode-filter": 0, "active-request-scorer": 1, "max-score-picker": 0},
    },
)
PRECISE = config(
    "token-producer",
    "precise-prefix-cache-producer",
    "precise-prefix-cache-scorer",
    "lora-affinity-scorer",
    profiles={"default": {"precise-prefix-cache-scorer": 3, "lora-affinity-scorer": 1}},
    dataLayer={"injectDefaults": True, "peerDiscovery": {}},
    requestHandler={"parsers": [{"pluginRef": "openai-parser"}]},
)
FLOW = config(
    "queue-scorer",
    "slo-deadline",
    {"type": "concurrency-detector", "parameters": {"maxConcurrency": 100, "headroom": 0.2}},
    profiles={"default": {"queue-scorer": 1}},
    featureGates=["flowControl"],
    flowControl={"maxRequests": 5000, "defaultRequestTTL": "1m", "maxBytes": 1, "priorityBands": []},
)


def test_a_profile_becomes_a_weighted_sum_of_costs_by_their_range() -> None:
    """One profile places both stages; without flow control nothing waits."""
    weights = {"vllm-jsq": 2.0, "least-tokens": 2.0, "least-uncached-tokens": 3.0}
    imported = read(LOAD_AND_PREFIX)
    assert imported.policy["prefill"] == imported.policy["decode"]
    parameters = imported.policy["decode"]["parameters"]
    assert (parameters["normalise"], {part["type"]: part["weight"] for part in parameters["parts"]}) == (
        "range",
        weights,
    )
    assert (imported.policy["admission"], imported.settings) == ({"type": "open"}, {})


def test_profiles_of_stages_place_their_stage() -> None:
    """By the names that the handler gives; one scorer needs no sum; several endpoints become fall-backs."""
    imported = read(DISAGGREGATED)
    assert imported.policy["decode"] == {"type": "least-requests"}
    assert [part["type"] for part in imported.policy["prefill"]["parameters"]["parts"]] == [
        "least-uncached-tokens",
        "least-requests",
    ]
    assert imported.settings == {"picker": {"fallbacks": 2}}
    assert fits(imported)["plugins[1]"] is Fit.EXACT


def test_precise_prefixes_need_kv_events() -> None:
    """The scorer maps to the same placement; the affinity for adapters is always on."""
    imported = read(PRECISE)
    assert imported.settings == {"kvEvents": {"enabled": True}}
    assert imported.policy["decode"] == {"type": "least-uncached-tokens"}
    found = fits(imported)
    assert (found["plugins[3]"], found["dataLayer.peerDiscovery"]) == (Fit.NEAR, Fit.NONE)


def test_flow_control_becomes_a_bounded_admission_and_an_order() -> None:
    """What has no counterpart is named with its path."""
    imported = read(FLOW)
    assert imported.policy["queue"] == {"type": "edf"}
    assert imported.policy["admission"] == {
        "type": "bounded",
        "parameters": {"maxWaiting": 5000, "maxWaitS": 60.0, "maxDecodeRequests": 100},
    }
    found = fits(imported)
    for path in ("flowControl.maxBytes", "flowControl.priorityBands", "plugins[2].parameters.headroom"):
        assert found[path] is Fit.NONE


def test_every_plugin_and_every_parameter_is_accounted_for() -> None:
    """Also those that nobody knows, and those that no profile uses."""
    imported = read(config("queue-scorer", {"type": "mine", "parameters": {"x": 1}}, profiles={"default": {"mine": 1}}))
    found = fits(imported)
    assert (found["plugins[0]"], found["plugins[1]"], found["schedulingProfiles[0]"]) == (Fit.NONE, Fit.NONE, Fit.NONE)
    assert "decode" not in imported.policy


def test_what_does_nothing_in_a_file_is_not_said_to_map() -> None:
    """A weight of 0, no profile at all, a gate that is off, a second admission."""
    idle = config(
        "queue-scorer",
        "prefix-cache-scorer",
        {"type": "random-picker", "parameters": {"maxNumOfEndpoints": 3}},
        "max-score-picker",
        "edf",
        {"type": "utilization-detector", "parameters": {"kvCacheUtilThreshold": 0.9}},
        profiles={"p": {"queue-scorer": 0, "prefix-cache-scorer": 1, "max-score-picker": 0}},
        flowControl={"maxRequests": 5},
    )
    imported = read(idle)
    assert imported.policy["decode"] == {"type": "least-uncached-tokens"}
    assert (imported.policy["admission"], imported.settings) == ({"type": "open"}, {})
    found = fits(imported)
    assert [number for number in range(6) if found[f"plugins[{number}]"] is not Fit.NONE] == [1, 3]
    assert found["flowControl.maxRequests"] is Fit.NONE
    both = read(config("latency-slo-admitter", profiles={}, featureGates=["flowControl"]))
    assert (both.policy["admission"], fits(both)["plugins[0]"]) == ({"type": "bounded"}, Fit.NONE)


def test_what_llm_d_fills_in_is_filled_in() -> None:
    """Without profiles all scorers count alike; where a profile names no picker, the one that is there counts."""
    imported = read(config("queue-scorer", "prefix-cache-scorer", profiles={}))
    parts = imported.policy["decode"]["parameters"]["parts"]
    assert {part["type"]: part["weight"] for part in parts} == {"vllm-jsq": 1.0, "least-uncached-tokens": 1.0}
    drawn = read(config("queue-scorer", "random-picker", profiles={"p": {"queue-scorer": 1}}))
    assert drawn.policy["decode"] == {"type": "random"}


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("1m30s", 90.0), ("1.5h", 5400.0), ("500ms", 0.5), ("0s", None), ("0", None), ("1h2m3.5s", 3723.5)],
)
def test_durations_are_go_s_and_numbers_quantities(written: object, seconds: float | None) -> None:
    """A duration of 0 is none: our waits have an end."""
    flow = {"defaultRequestTTL": written, "maxRequests": "5k"}
    imported = read(config(profiles={}, featureGates=["flowControl"], flowControl=flow))
    parameters = imported.policy["admission"]["parameters"]
    assert (parameters["maxWaiting"], parameters.get("maxWaitS")) == (5000, seconds)


def test_a_profile_that_nothing_runs_is_named() -> None:
    """As a third one beside prefill and decode."""
    profiles = {"prefill": {"queue-scorer": 1.0}, "decode": {"queue-scorer": 1.0}, "encode": {"queue-scorer": 1.0}}
    imported = read(config("queue-scorer", "disagg-profile-handler", profiles=profiles))
    assert fits(imported)["schedulingProfiles[2]"] is Fit.NONE


@pytest.mark.parametrize(
    ("document", "said"),
    [
        pytest.param([], "must be a mapping", id="a-list"),
        pytest.param({**HEAD, "kind": "Pod"}, "kind: must be EndpointPickerConfig, not 'Pod'", id="kind"),
        pytest.param({**HEAD, "apiVersion": "v1"}, "apiVersion: must be llm-d.ai/v1alpha1 or", id="version"),
        pytest.param({**HEAD, "plugin": []}, "plugin: is not a field here; did you mean plugins?", id="field"),
        pytest.param(
            config({"type": "queue-scorer", "parameter": {}}, profiles={}),
            "plugins[0].parameter: is not a field here; did you mean parameters?",
            id="field-of-a-plug-in",
        ),
        pytest.param(
            {**HEAD, "plugins": [], "schedulingProfiles": [{"name": "p", "plugin": []}]},
            "schedulingProfiles[0].plugin: is not a field here; did you mean plugins?",
            id="field-of-a-profile",
        ),
        pytest.param(
            {
                **HEAD,
                "plugins": [{"type": "queue-scorer"}],
                "schedulingProfiles": [{"name": "p", "plugins": [{"pluginRef": "queue-scorer", "wieght": 2}]}],
            },
            "schedulingProfiles[0].plugins[0].wieght: is not a field here; did you mean weight?",
            id="field-of-a-use",
        ),
        pytest.param({**HEAD, "plugins": {}}, "plugins: must be a list", id="no-list"),
        pytest.param({**HEAD, "plugins": [{"name": "x"}]}, "plugins[0].type: is missing", id="no-type"),
        pytest.param(config("a", "a", profiles={}), "plugins[1].name: 'a' is the name of plugins[0], too", id="twice"),
        pytest.param(
            config("queue-scorer", profiles={"p": {"queue-scorrer": 1}}),
            "plugins[0].pluginRef: no plug-in is called 'queue-scorrer'; did you mean 'queue-scorer'?",
            id="reference",
        ),
        pytest.param(
            config("queue-scorer", profiles={"p": {"queue-scorer": -1}}),
            "schedulingProfiles[0].plugins[0].weight: must be a finite number, 0 or more, not -1",
            id="weight",
        ),
        pytest.param(
            config({"type": "max-score-picker", "parameters": {"maxNumOfEndpoints": 0}}, profiles={}),
            "plugins[0].parameters.maxNumOfEndpoints: must be a whole number, 1 or more, not 0",
            id="endpoints",
        ),
        pytest.param(
            config(profiles={}, featureGates=["flowControl"], flowControl={"defaultRequestTTL": "soon"}),
            "flowControl.defaultRequestTTL: must be a duration such as 60s, not 'soon'",
            id="duration",
        ),
        pytest.param(
            config(profiles={}, featureGates=["flowControl"], flowControl={"maxRequests": "many"}),
            "flowControl.maxRequests: must be a whole number above 0, not 'many'",
            id="number",
        ),
        pytest.param(
            config(
                profiles={}, featureGates=["flowControl"], flowControl={"defaultRequestTTL": "\N{SUPERSCRIPT TWO}s"}
            ),
            "flowControl.defaultRequestTTL: must be a duration such as 60s",
            id="digit-of-no-number",
        ),
        pytest.param(
            {**HEAD, "schedulingProfiles": [{"name": "p"}, {"name": "p"}]},
            "schedulingProfiles[1].name: 'p' is the name of schedulingProfiles[0], too",
            id="profiles-twice",
        ),
        pytest.param({**HEAD, "featureGates": [["x"]]}, "featureGates[0]: must be a name", id="gate"),
        pytest.param({**HEAD, "plugins": [{"type": "a", "name": [1]}]}, "plugins[0].name: must be text", id="name"),
        pytest.param({**HEAD, "featureGates": 3}, "featureGates: must be a list", id="gates"),
        pytest.param(
            {**HEAD, "flowControl": {"maxRequests": 3, 7: 3}}, "flowControl: must be a mapping of names", id="numbers"
        ),
        pytest.param(
            config("queue-scorer", profiles={"p": {"queue-scorer": 10**400}}),
            "schedulingProfiles[0].plugins[0].weight: must be a finite number",
            id="beyond-floats",
        ),
    ],
)
def test_a_wrong_file_is_refused_with_field_and_fix(document: object, said: str) -> None:
    """All at once, each in a line that names the file."""
    with pytest.raises(InvalidInput) as error:
        import_config(yaml.safe_dump(document), source="c.yaml")
    assert said in str(error.value)
    assert str(error.value).startswith("c.yaml: ")


def test_the_command_prints_a_manifest_with_its_account(tmp_path: Path) -> None:
    """Comments and YAML in one: it can be applied as it is."""
    file = tmp_path / "c.yaml"
    file.write_text(yaml.safe_dump(DISAGGREGATED))
    result = CliRunner().invoke(app, ["import", "endpoint-picker-config", str(file), "--name", "mine"])
    assert result.exit_code == 0, result.output
    manifest = yaml.safe_load(result.output)
    assert (manifest["kind"], manifest["metadata"]["name"]) == ("SchedulingPolicy", "mine")
    for line in ("#   exact  plugins[2]: prefill-filter:", "#     fallbacks: 2"):
        assert line in result.output


def test_stages_that_are_placed_alike_are_written_twice(tmp_path: Path) -> None:
    """People edit the manifest: no anchors."""
    file = tmp_path / "c.yaml"
    file.write_text(yaml.safe_dump(LOAD_AND_PREFIX))
    result = CliRunner().invoke(app, ["import", "endpoint-picker-config", str(file)])
    assert (result.exit_code, "&" in result.output, "*" in result.output) == (0, False, False), result.output


def test_a_name_with_line_ends_stays_in_its_comment(tmp_path: Path) -> None:
    """YAML takes more characters for them than a newline."""
    file = tmp_path / "c.yaml"
    file.write_text(yaml.safe_dump(config("x\u2028evil: 1\u2028# \r- 2\x85- 3", profiles={})))
    result = CliRunner().invoke(app, ["import", "endpoint-picker-config", str(file)])
    assert result.exit_code == 0, result.output
    assert set(yaml.safe_load(result.output)) == {"apiVersion", "kind", "metadata", "spec"}


def test_a_pipe_is_read_as_a_file_is() -> None:
    """As in `ballast import endpoint-picker-config <(kubectl get ...)`."""
    reading, writing = os.pipe()
    os.write(writing, yaml.safe_dump(DISAGGREGATED).encode())
    os.close(writing)
    result = CliRunner().invoke(app, ["import", "endpoint-picker-config", f"/dev/fd/{reading}"])
    os.close(reading)
    assert result.exit_code == 0, result.output
    assert yaml.safe_load(result.output)["kind"] == "SchedulingPolicy"


@pytest.mark.parametrize(
    "content",
    [None, b"\xff\xfe\x00", b"a: [", b"kind: x", b"a: 2026-99-99", b"[" * 5000, b"a: 1" + b"0" * 5000],
    ids=["none", "no text", "cut short", "other kind", "no date", "deep", "endless digits"],
)
def test_a_file_that_is_none_is_one_clear_line(content: bytes | None, tmp_path: Path) -> None:
    """Status 2 and no traceback."""
    file = tmp_path / "c.yaml"
    if content is not None:
        file.write_bytes(content)
    result = CliRunner().invoke(app, ["import", "endpoint-picker-config", str(file)])
    assert (result.exit_code, "Traceback" in result.output) == (2, False)
    assert "error: " in result.output


def test_every_placement_that_the_table_names_exists() -> None:
    """So a manifest is never refused for it."""
    assert {entry.placement for entry in PLUGINS.values()} - {None} <= set(PLACEMENT.types)


def test_the_page_shows_the_table() -> None:
    """Row by row."""
    text = DOCS.read_text(encoding="utf-8")
    for name, entry in PLUGINS.items():
        assert f"| `{name}` | {entry.kind} | {entry.fit} | {entry.said} |" in text, name
