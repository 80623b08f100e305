"""Whether policies suit each other, a face of the gateway, a fleet and its engines: who refuses what, and how."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from ballast_api.errors import InvalidInput
from ballast_api.loading import load_manifest_files, parse_settings
from ballast_api.policy_fit import FACES, Ability, Face, engine_misfits, misfits
from ballast_api.policy_parameters import manifest_words
from ballast_api.scheduling_policy import SchedulingPolicy, SchedulingPolicySpec
from ballast_core.model import Role
from ballast_core.policies import composing
from ballast_core.policies.registry import PARTS
from ballast_core.policies.suite import Suite

MANIFESTS = Path(__file__).resolve().parents[2] / "manifests"
TOLD = {"queue": {"type": "uniboost", "parameters": {"enginePriority": True}}}


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
    needs_a_fleet = {"NOBODY_CUTS"}
    reasons = {name for name, value in vars(composing).items() if name.isupper() and isinstance(value, str)}
    assert reasons - needs_a_fleet == {"NOTHING_WAITS"}


@pytest.mark.parametrize("face", get_args(Face))
@pytest.mark.parametrize(
    ("part", "spec", "ability"),
    [
        ("queue", TOLD, Ability.PRIORITIES),
        ("partition", {"partition": {"type": "fixed"}}, Ability.SEGMENTS),
        ("rescheduling", {"rescheduling": {"type": "ares"}}, Ability.MIGRATIONS),
    ],
)
def test_a_face_that_cannot_do_what_a_policy_asks_refuses_it(
    face: Face, part: str, spec: dict[str, Any], ability: Ability
) -> None:
    """When the gateway starts, with the field and the face: a part that nobody carries out is no silent no-op."""
    text = f"model: {{servedNames: [m]}}\ndiscovery: {{file: e}}\nface: {face}\npolicy: {spec}\n"
    if ability in FACES[face]:
        assert parse_settings(text).policy.build() == suite(spec)
        return
    with pytest.raises(InvalidInput) as caught:
        parse_settings(text)
    (problem,) = caught.value.problems
    assert problem.field == f"policy.{part}"
    assert problem.message.startswith(f"face {face} cannot {ability}")


def test_a_fleet_in_which_nothing_can_be_cut_is_refused() -> None:
    """Beside what the face lacks."""
    reasons = [each.reason for each in misfits(suite({"partition": {"type": "fixed"}}), "Proxy", {Role.DECODE: 2})]
    assert composing.NOBODY_CUTS in reasons


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
    assert (engine_misfits(suite(TOLD), args) == []) is suits
    assert engine_misfits(suite({}), args) == []
