"""Whether policies suit each other, a face of the gateway, a fleet and its engines, and what refuses the others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from ballast_api.errors import InvalidInput
from ballast_api.faces import Face
from ballast_api.gateway_settings import GatewaySettings
from ballast_api.loading import load_manifest_files, parse_settings
from ballast_api.policy_fit import FACES, PROMPT_ONLY, Ability, asked_of_face, engine_misfits, misfits
from ballast_api.policy_parameters import manifest_words
from ballast_api.scheduling_policy import SchedulingPolicy, SchedulingPolicySpec
from ballast_core.model import Role
from ballast_core.policies import composing
from ballast_core.policies.partition.registry import PARTITIONS
from ballast_core.policies.registry import PARTS
from ballast_core.policies.suite import Suite

MANIFESTS = Path(__file__).resolve().parents[2] / "manifests"
PRIORITIES = {"queue": {"type": "uniboost", "parameters": {"enginePriority": True}}}

PROMPTS = {"partition": {"type": "libra", "parameters": {"cuts": "prompt"}}}
READS_PARTS = {"kv_connector_extra_config": {"bidirectional_kv_xfer": True}}


def kept_for(lease_s: object) -> dict[str, Any]:
    return {"kv_connector_extra_config": {"bidirectional_kv_xfer": True, "kv_lease_duration": lease_s}}


def suite(spec: dict[str, Any]) -> Suite:
    return SchedulingPolicySpec.parse(spec).build()


def test_the_manifest_with_all_parts_has_all_parts() -> None:
    """What people copy is accepted, and becomes one policy for each part."""
    (policy,) = load_manifest_files(MANIFESTS / "policies")
    assert isinstance(policy, SchedulingPolicy)
    assert all(made is not None for made in policy.spec.build().parts().values())


def test_each_part_of_a_suite_can_be_named_in_a_manifest() -> None:
    """And nothing else but what is planned."""
    assert list(SchedulingPolicySpec.model_fields) == list(PARTS)


def test_the_server_knows_each_rule_of_the_core_that_needs_no_fleet() -> None:
    """Else `kubectl apply` would take what the operator then refuses."""
    rules = {rule.message for rule in SchedulingPolicySpec.rules}
    assert rules == {manifest_words(composing.NOTHING_WAITS)}
    needs_a_fleet = {"NOTHING_CUTS"}
    reasons = {name for name, value in vars(composing).items() if name.isupper() and isinstance(value, str)}
    assert reasons - needs_a_fleet == {"NOTHING_WAITS"}


@pytest.mark.parametrize("face", list(Face))
@pytest.mark.parametrize(
    ("part", "spec", "ability"),
    [
        ("queue", PRIORITIES, Ability.PRIORITIES),
        ("partition", {"partition": {"type": "fixed"}}, Ability.PROMPT_CUTS),
        ("partition", PROMPTS, Ability.PROMPT_CUTS),
        ("rescheduling", {"rescheduling": {"type": "ares"}}, Ability.MIGRATIONS),
    ],
)
def test_a_face_that_cannot_do_what_a_policy_asks_refuses_it(
    face: Face, part: str, spec: dict[str, Any], ability: Ability
) -> None:
    """When the gateway starts, with the field and the face: a part without effect is no silent no-op."""
    text = f"model: {{servedNames: [m]}}\ndiscovery: {{file: e}}\nface: {face}\npolicy: {spec}\n"
    if ability in FACES[face]:
        assert parse_settings(text).policy.build() == suite(spec)
        return
    with pytest.raises(InvalidInput) as caught:
        parse_settings(text)
    (problem,) = caught.value.problems
    assert problem.field == f"policy.{part}"
    assert problem.message.startswith(f"face {face} cannot {ability}")


@pytest.mark.parametrize("face", list(Face))
@pytest.mark.parametrize(
    ("spec", "fix"),
    [
        ({"type": "libra"}, "cuts: prompt"),
        ({"type": "libra", "parameters": {"segments": 3}}, "cuts: prompt"),
        ({"type": "fixed", "parameters": {"at": "ratio"}}, "at: prompt"),
    ],
)
def test_cuts_of_the_output_are_refused_with_the_parameter_that_keeps_to_prompts(
    face: Face, spec: dict[str, Any], fix: str
) -> None:
    """Where the face cuts prompts; where it cuts nothing, that alone is said."""
    problems = misfits(suite({"partition": spec}), face)
    (problem,) = problems
    if Ability.PROMPT_CUTS in FACES[face]:
        assert problem.part == f"partition.parameters.{fix.partition(':')[0]}"
        assert problem.reason.startswith(f"face {face} cannot {Ability.OUTPUT_CUTS}")
        assert problem.reason.endswith(f"set {fix}")
    else:
        assert problem.part == "partition"
        assert problem.reason.startswith(f"face {face} cannot {Ability.PROMPT_CUTS}")


def test_of_every_partition_it_is_known_what_keeps_it_to_prompts() -> None:
    """And the value that is named is one that the parameter takes."""
    assert set(PROMPT_ONLY) == set(PARTITIONS)
    for name, (parameter, value) in PROMPT_ONLY.items():
        kept = suite({"partition": {"type": name, "parameters": {parameter: value}}})
        assert Ability.OUTPUT_CUTS not in asked_of_face(kept)


@pytest.mark.parametrize(
    ("connector", "args", "named"),
    [
        ({}, (), "bidirectional_kv_xfer: true"),
        ({"kv_connector_extra_config": None}, (), "bidirectional_kv_xfer: true"),
        ({"kv_connector_extra_config": {"bidirectional_kv_xfer": "yes"}}, (), "bidirectional_kv_xfer: true"),
        (READS_PARTS, (), ""),
        ({**READS_PARTS, "kv_role": "kv_both"}, (), ""),
        ({**READS_PARTS, "kv_role": "kv_consumer"}, (), "kv_role: kv_both"),
        ({**READS_PARTS, "kv_buffer_device": "cpu"}, (), "kv_buffer_device"),
        ({**READS_PARTS, "kv_buffer_device": "cuda"}, (), ""),
        (
            {"kv_connector_extra_config": {"bidirectional_kv_xfer": True, "kv_lease_duration": 10}},
            (),
            "kv_lease_duration",
        ),
        ({"kv_connector_extra_config": {"bidirectional_kv_xfer": True, "kv_lease_duration": 60}}, (), ""),
        (READS_PARTS, ("--kv-transfer-config", "{}"), "bidirectional_kv_xfer: true"),
        (READS_PARTS, ("--kv-transfer-config=junk",), "bidirectional_kv_xfer: true"),
        ({}, ("--kv-transfer-config", json.dumps(READS_PARTS)), ""),
    ],
)
def test_engines_that_go_on_from_a_part_of_a_prompt_must_be_able_to(
    connector: dict[str, Any], args: tuple[str, ...], named: str
) -> None:
    """vLLM parks such a request for ever otherwise, or its KV is gone before it is read. Arguments win, as in vLLM."""
    found = engine_misfits(suite(PROMPTS), args, connector)
    assert [each.part for each in found] == (["partition"] if named else [])
    assert all(named in each.reason for each in found)
    assert engine_misfits(suite({}), args, connector) == []


def test_a_fleet_in_which_nothing_can_be_cut_is_refused() -> None:
    """Beside what the face lacks."""
    reasons = [each.reason for each in misfits(suite({"partition": {"type": "fixed"}}), Face.PROXY, {Role.DECODE: 2})]
    assert composing.NOTHING_CUTS in reasons


@pytest.mark.parametrize(
    ("args", "suits"),
    [
        ((), False),
        (("--scheduling-policy", "priority"), True),
        (("--scheduling-policy=priority",), True),
        (("--scheduling-policy", "priority", "--scheduling-policy=fcfs"), False),
        (("--scheduling-policy",), False),
    ],
)
def test_engines_that_are_told_priorities_must_schedule_by_them(args: tuple[str, ...], suits: bool) -> None:
    """vLLM takes them in silence otherwise. The last argument counts, as in vLLM."""
    assert (engine_misfits(suite(PRIORITIES), args) == []) is suits
    assert engine_misfits(suite({}), args) == []


@pytest.mark.parametrize("face", [Face.PICKER, Face.BOTH])
def test_with_agents_every_face_does_what_the_proxy_does(face: Face) -> None:
    """Moves and cuts of prompts; without them the reason names what is missing."""
    spec = {"rescheduling": {"type": "ares"}}
    assert misfits(suite(spec), face, agents=True) == []
    assert misfits(suite({"partition": PROMPTS["partition"]}), face, agents=True) == []
    (problem,) = misfits(suite(spec), face)
    assert "podApi" in problem.reason


def test_gateways_that_hear_others_need_the_token() -> None:
    """And policies that move streams behind Envoy."""
    base: dict[str, Any] = {"model": {"servedNames": ["m"]}, "discovery": {"file": "f"}, "face": "Picker"}
    moving = base | {"policy": {"rescheduling": {"type": "ares"}}}
    assert GatewaySettings.parse(moving | {"podApi": {"tokenFile": "t"}}).pod_api.port == 9004
    for wrong, named in (
        (moving, "policy.rescheduling"),
        (base | {"peers": {"addresses": ["h:1"]}}, "peers"),
    ):
        with pytest.raises(ValidationError, match=named.replace(".", r"\.")):
            GatewaySettings.parse(wrong)
