"""Manifests and settings are read strictly, and errors name file, object and field."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ballast_api.common import API_VERSION
from ballast_api.errors import InvalidInput
from ballast_api.gateway_files import EndpointsFile
from ballast_api.gateway_settings import GatewaySettings
from ballast_api.hardware_profile import EngineProfile, HardwareProfile
from ballast_api.loading import (
    load_endpoints,
    load_manifest,
    load_manifest_files,
    load_settings,
    parse_endpoints,
    parse_settings,
)
from ballast_api.service_level_objective import ServiceLevelObjective
from ballast_api.serving_pool import ServingPool
from ballast_core.model import Role
from ballast_core.profiles import SHIPPED_PROFILES
from tests.support.api_objects import valid

QUICKSTART = Path("manifests/quickstart")


def text_of(*kinds: str) -> str:
    return yaml.safe_dump_all([valid(kind) for kind in kinds])


def error_of(text: str, source: str = "f.yaml") -> str:
    with pytest.raises(InvalidInput) as caught:
        load_manifest(text, source=source)
    return str(caught.value)


def test_documents_lists_and_foreign_objects_in_one_file() -> None:
    """As kubectl reads it: every document, `kind: List` unfolded, other groups left to others."""
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a"}}
    listed = {"apiVersion": "v1", "kind": "List", "items": [valid("HardwareProfile"), namespace]}
    text = "---\n" + yaml.safe_dump_all([valid("ServingPool"), namespace, listed, None])
    assert [type(resource) for resource in load_manifest(text)] == [ServingPool, HardwareProfile]


def test_what_the_operator_makes_is_passed_over() -> None:
    """`kubectl get ballast -o yaml` has it, too."""
    made = {
        "apiVersion": API_VERSION,
        "kind": "EnginePool",
        "metadata": {"name": "chat-decode"},
        "spec": {"replicas": 2},
    }
    listed = {"apiVersion": "v1", "kind": "List", "items": [made, valid("HardwareProfile")]}
    assert [type(resource) for resource in load_manifest(yaml.safe_dump(listed))] == [HardwareProfile]


def test_an_error_names_file_object_and_field_of_every_document() -> None:
    """All objects are checked before anything is said."""
    text = text_of("ServingPool", "ServiceLevelObjective").replace("replicas: 4", "replicas: four", 1)
    text = text.replace("ttftS: 2.0", "ttftS: -2")
    assert error_of(text).splitlines() == [
        "f.yaml: ServingPool demo: spec.pools[1].replicas: must be a whole number, not 'four'",
        "f.yaml: ServiceLevelObjective demo: spec.ttftS: must be above 0, not -2",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1", "f.yaml: is not YAML"),
        ("kind: List\nitems: &a\n- {kind: List, items: *a}", "the value contains itself by its anchor"),
        ("spec: &a {template: {spec: {affinity: *a}}}", "the value contains itself by its anchor"),
        ("a: 1\na: 2", "key 'a' stands twice; remove one"),
        ("1: a", "key 1 is not a text; put it in quotes"),
        ("? [a]\n: b", "is not a text; put it in quotes"),
        ("just words", "document 1: must be a mapping with apiVersion, kind, metadata and spec"),
        ("kind: ServingPool", "ServingPool: apiVersion: must be serving.ballast.dev/v1alpha1, not None"),
        ("apiVersion: serving.ballast.dev/v1\nkind: ServingPool", "must be serving.ballast.dev/v1alpha1, not 'serv"),
        ("apiVersion: serving.ballast.dev/v1alpha1\nkind: Pool", "kind: 'Pool' is none of HardwareProfile,"),
        ("apiVersion: serving.ballast.dev/v1alpha1", "kind: None is none of"),
        (
            "{apiVersion: serving.ballast.dev/v1alpha1, kind: ServingPool, metadata: 3, spec: 4}",
            "metadata: must be a m",
        ),
        ("a: !!python/object:os.system {}", "is not YAML"),
        ("\x00", "is not YAML"),
        ('a: !!int ""', "the value cannot be read as !!int; put it in quotes, without a tag"),
        (
            "a:\n- b: !!bool maybe",
            'cannot be read as !!bool; put it in quotes, without a tag in "<unicode string>", line 2',
        ),
        ("a: !!timestamp x", "cannot be read as !!timestamp"),
        ("a: !!timestamp {=: x}", "cannot be read as !!timestamp"),
        ("a: !!float x", "cannot be read as !!float"),
        ("a: " + 200 * "1:" + "1.0", "cannot be read as !!float"),
        ("a: " + 5000 * "9", "cannot be read as !!int"),
        ("a: !!map x", "expected a mapping node, but found scalar"),
        ("a: !!set [b]", "expected a mapping node, but found sequence"),
        ('a: "\\UFFFFFFFF"', "is not YAML that can be used"),
    ],
)
def test_what_is_no_manifest_is_refused_with_a_sentence(text: str, message: str) -> None:
    """Never a traceback, never a guess."""
    assert message in error_of(text)


def test_a_missing_file_and_a_binary_file_are_named(tmp_path: Path) -> None:
    """Errors of the file system read like the others."""
    binary = tmp_path / "b.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    for path, message in ((tmp_path / "none.yaml", "cannot be read: No such file"), (binary, "is not UTF-8 text")):
        with pytest.raises(InvalidInput, match=message) as caught:
            load_manifest_files(path)
        assert str(path) in str(caught.value)


def test_times_stay_text_and_bare_exponents_are_numbers() -> None:
    """As in the Go tools; PyYAML alone would make a datetime and a text."""
    text = text_of("ServiceLevelObjective").replace("ttftS: 2.0", "ttftS: 2e0")
    text = text.replace("name: demo", "name: demo\n  creationTimestamp: 2026-01-01T00:00:00Z")
    (resource,) = load_manifest(text)
    assert isinstance(resource, ServiceLevelObjective)
    assert resource.spec.ttft_s == 2.0
    assert resource.dump()["metadata"]["creationTimestamp"] == "2026-01-01T00:00:00Z"


def test_the_quickstart_loads_and_its_profiles_are_the_shipped_ones() -> None:
    """The numbers stand twice: in the core's table and in the manifest."""
    resources = load_manifest_files(QUICKSTART)
    assert sorted(type(resource).__name__ for resource in resources) == [
        "HardwareProfile",
        "HardwareProfile",
        "SchedulingPolicy",
        "ServiceLevelObjective",
        "ServingPool",
    ]
    for profile in resources:
        if isinstance(profile, HardwareProfile):
            assert profile.spec.to_core(profile.name) == SHIPPED_PROFILES[profile.name]


def test_every_reference_of_the_quickstart_resolves() -> None:
    """policyRef, sloRef and hardware name objects that lie beside it."""
    resources = load_manifest_files(QUICKSTART)
    names = {(resource.kind, resource.name) for resource in resources}
    (pool,) = (resource for resource in resources if isinstance(resource, ServingPool))
    assert pool.spec.policy_ref
    assert pool.spec.slo_ref
    wanted = {("SchedulingPolicy", pool.spec.policy_ref.name), ("ServiceLevelObjective", pool.spec.slo_ref.name)}
    wanted |= {("HardwareProfile", entry.hardware) for entry in pool.spec.pools}
    assert wanted <= names


@pytest.mark.parametrize("name", sorted(SHIPPED_PROFILES))
def test_profiles_go_to_the_core_and_back(name: str) -> None:
    """The core's dataclass and the model have the same fields and defaults."""
    profile = SHIPPED_PROFILES[name]
    assert EngineProfile.from_core(profile).to_core(name) == profile
    assert EngineProfile.parse(EngineProfile.from_core(profile).dump()).to_core(name) == profile


SETTINGS = """
model: {servedNames: [qwen]}
discovery: {file: endpoints.yaml}
"""


def test_settings_of_two_lines_have_defaults_for_the_rest(tmp_path: Path) -> None:
    """And the written file reads back equal."""
    path = tmp_path / "gateway.yaml"
    path.write_text(SETTINGS)
    settings = load_settings(path)
    assert (settings.face, settings.listeners.proxy, settings.scrape.interval_s) == ("Proxy", 8000, 0.2)
    assert settings.policy.prefill.build().type == "least-uncached-tokens"
    assert settings.policy.decode.build().type == "ballast"
    assert parse_settings(settings.to_yaml()) == settings


def test_settings_carry_profiles_through_yaml() -> None:
    """Small coefficients keep every digit."""
    profiles = {name: EngineProfile.from_core(profile) for name, profile in SHIPPED_PROFILES.items()}
    settings = parse_settings(SETTINGS).model_copy(update={"profiles": profiles})
    assert parse_settings(settings.to_yaml()).profiles == profiles


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must hold one YAML document, not 0"),
        (f"{SETTINGS}---\na: 1", "must hold one YAML document, not 2"),
        ("- a", "must be a mapping of fields, not a list"),
        (f"{SETTINGS}face: Door", "face: must be 'Proxy', 'Picker' or 'Both', not 'Door'"),
        (f"{SETTINGS}face: yes", "face: must be 'Proxy', 'Picker' or 'Both'; put it in quotes, YAML reads it as true"),
        (f"{SETTINGS}scrape: {{intervalS: 0}}", "scrape.intervalS: must be above 0, not 0"),
        (f"{SETTINGS}policy: {{decode: {{type: best}}}}", "policy.decode.type: unknown placement 'best'; known:"),
        (SETTINGS.replace("{file: endpoints.yaml}", "{}"), "discovery.kubernetes: set exactly one of"),
        (f"{SETTINGS}profiles: {{a: {{}}}}", "profiles.a.kvTokens: is missing; add it"),
    ],
)
def test_malformed_settings_name_the_field(text: str, message: str) -> None:
    """The gateway's file is judged like a manifest."""
    with pytest.raises(InvalidInput) as caught:
        parse_settings(text, source="g.yaml")
    assert message in str(caught.value)


def test_an_endpoints_file_becomes_core_endpoints(tmp_path: Path) -> None:
    """Host names, IPv4, and IPv6 in brackets."""
    path = tmp_path / "endpoints.yaml"
    path.write_text(
        "endpoints:\n"
        "- {name: a, address: '10.0.0.1:8000', role: prefill, pool: p, profile: h20}\n"
        "- {name: b, address: '[fd00::1]:8000', role: flexible}\n"
        "- {name: c, address: 'localhost:1', role: decode}\n"
    )
    endpoints = [entry.to_core() for entry in load_endpoints(path).endpoints]
    assert [(e.id, e.address, e.role) for e in endpoints] == [
        ("a", "10.0.0.1:8000", Role.PREFILL),
        ("b", "[fd00::1]:8000", Role.FLEXIBLE),
        ("c", "localhost:1", Role.DECODE),
    ]
    assert (endpoints[0].pool, endpoints[0].profile) == ("p", "h20")


@pytest.mark.parametrize(
    "address", ["", "host", "host:", "host:0", "host:65536", "fd00::1:80", "http://h:80", "h h:80"]
)
def test_an_address_without_a_host_or_a_port_is_refused(address: str) -> None:
    """A wrong line must not become an endpoint that is down for ever."""
    text = yaml.safe_dump({"endpoints": [{"name": "a", "address": address, "role": "decode"}]})
    with pytest.raises(InvalidInput, match=r"endpoints\[0\]\.address: must be host:port"):
        parse_endpoints(text)


def test_an_endpoint_name_stands_once() -> None:
    """Names are keys of the ledger."""
    entry = {"name": "a", "address": "h:1", "role": "decode"}
    with pytest.raises(InvalidInput, match=r"endpoints\[1\]: has the name 'a' of an earlier entry"):
        parse_endpoints(yaml.safe_dump({"endpoints": [entry, entry]}))


def test_the_python_side_may_use_python_names() -> None:
    """Builders write snake_case; files only camelCase."""
    assert EndpointsFile(endpoints=()).to_yaml() == "endpoints: []\n"
    with pytest.raises(InvalidInput, match="log_level: is not a field here"):
        parse_settings(f"{SETTINGS}log_level: info")
    assert "log_level" in GatewaySettings.model_fields


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{SETTINGS}scrape: {{interval: 1}}", "scrape.interval: is not a field here; did you mean intervalS?"),
        (f"{SETTINGS}discovery: {{pods: a}}", "is not a field here; remove it, or use one of file, kubernetes"),
        (
            f"{SETTINGS}profiles: {{a: {{kvtokens: 1}}}}",
            "profiles.a.kvtokens: is not a field here; did you mean kvTokens?",
        ),
    ],
)
def test_an_unknown_field_is_met_with_a_suggestion(text: str, message: str) -> None:
    """Also inside of optional parts and of maps."""
    text = text.replace("discovery: {file: endpoints.yaml}\n", "", 1) if "pods" in text else text
    with pytest.raises(InvalidInput) as caught:
        parse_settings(text)
    assert message in str(caught.value)
