"""Which policies a run compares: names from a command line, or a SchedulingPolicy manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from ballast_api.errors import InvalidInput
from ballast_api.loading import load_manifest_files
from ballast_api.scheduling_policy import SchedulingPolicy
from ballast_core.beliefs.kinds import Belief
from ballast_core.model import Role
from ballast_core.policies.composing import problems, remarks
from ballast_core.policies.placement.protocol import Placement
from ballast_core.policies.placement.registry import COMPOSITIONS, PLACEMENTS
from ballast_core.policies.registry import PARTS, PolicyError, build, build_placement
from ballast_core.policies.suite import Suite
from ballast_sim.naming import known_names
from ballast_sim.settings import SettingError
from ballast_sim.simulation.inputs.shapes import Machine
from ballast_sim.simulation.policies.only_simulated import SIMULATOR_ONLY

PREFILL_PREFERENCE = ("least-uncached-tokens", "least-requests")
"""The prefill placement beside a decode placement that is named alone: the first of these that is registered."""

NO_POLICY = "none"
"""On a command line: without this part."""


class PolicyChoiceError(SettingError):
    """A policy that cannot be built; the message names the option and the fix."""


class CompositionError(ValueError):
    """Policies that make no sense together, or in such a fleet; the message names policy, part and reason."""


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """The policies of a run. `name` is the user's name for them."""

    name: str
    suite: Suite

    @property
    def placements(self) -> str:
        """`PREFILL/DECODE`, both spelled out."""
        return f"{self.suite.prefill.type}/{self.suite.decode.type}"

    @property
    def types(self) -> dict[str, str]:
        """Type name of each policy of the suite, by its part."""
        return {part: policy.type for part, policy in self.suite.parts().items() if policy is not None}

    @property
    def knows_lengths(self) -> bool:
        """Whether a policy of it must know every output's length."""
        return not SIMULATOR_ONLY.keys().isdisjoint((self.suite.prefill.type, self.suite.decode.type))


def default_prefill() -> str:
    """See `PREFILL_PREFERENCE`."""
    return next(name for name in PREFILL_PREFERENCE if name in PLACEMENTS)


def least_requests() -> PolicyChoice:
    """What `--load` is a share of: the capacity of this pair."""
    placement = build_placement("least-requests")
    return PolicyChoice("least-requests/least-requests", Suite(prefill=placement, decode=placement))


def parse_policies(text: str, own: Mapping[str, Placement] = MappingProxyType({})) -> tuple[PolicyChoice, ...]:
    """Reads `a,b,PREFILL/DECODE`; a name alone places decodes. Raises `PolicyChoiceError`.

    `own` are placements beside the shipped ones, by type name.
    """
    choices: list[PolicyChoice] = []
    known = (*PLACEMENTS, *SIMULATOR_ONLY, *own)
    for name in (part.strip() for part in text.split(",")):
        prefill, slash, decode = name.rpartition("/")
        if not decode or (slash and not prefill):
            raise PolicyChoiceError("policy", f"cannot read {name!r} in {text!r}; write such as least-requests,ils")
        for part in filter(None, (prefill, decode)):
            if part in COMPOSITIONS:
                raise PolicyChoiceError(
                    "policy",
                    f"{part} is made of other policies; write them into a SchedulingPolicy manifest "
                    "and name it with --policy-file",
                )
            if part not in known:
                raise PolicyChoiceError(
                    "policy", f"unknown placement {part!r}; " + known_names(part, known, "ballast policies")
                )
        if any(choice.name == name for choice in choices):
            raise PolicyChoiceError("policy", f"{name!r} is named twice")
        suite = Suite(prefill=_placement(prefill or default_prefill(), own), decode=_placement(decode, own))
        choices.append(PolicyChoice(name, suite))
    return tuple(choices)


def _placement(name: str, own: Mapping[str, Placement]) -> Placement:
    if name in own:
        return own[name]
    special = SIMULATOR_ONLY.get(name)
    return build_placement(name) if special is None else special()


def parse_part(part: str, text: str) -> Any:
    """A policy for a part of a suite from `TYPE` or `TYPE:name=value,...`; None from `none`, which leaves it out.

    Raises `PolicyChoiceError` naming the option.
    """
    if text == NO_POLICY:
        return None
    type_name, parameters = parse_typed(part, text)
    try:
        return build(PARTS[part], type_name, parameters)
    except PolicyError as error:
        raise PolicyChoiceError(part, f"{error}") from None


def parse_typed(option: str, text: str) -> tuple[str, dict[str, object]]:
    """Type and parameters of `TYPE` or `TYPE:name=value,...`. Raises `PolicyChoiceError` naming the option."""
    type_name, _, rest = text.partition(":")
    parameters: dict[str, object] = {}
    for item in filter(None, rest.split(",")):
        name, equals, value = item.partition("=")
        if not equals:
            raise PolicyChoiceError(option, f"cannot read {item!r} in {text!r}; write such as {type_name}:name=value")
        parameters[name.strip()] = yaml.safe_load(value)
    return type_name, parameters


def with_parts(choices: Sequence[PolicyChoice], texts: Mapping[str, str | None]) -> tuple[PolicyChoice, ...]:
    """The choices with these parts, read by `parse_part`, instead of their own. None keeps a part as it is."""
    parts: dict[str, Any] = {part: parse_part(part, text) for part, text in texts.items() if text is not None}
    return tuple(replace(choice, suite=replace(choice.suite, **parts)) for choice in choices)


def check_composition(
    choices: Iterable[PolicyChoice], machines: Iterable[Machine], engine_policy: str = "priority"
) -> list[str]:
    """Remarks on parts of the policies that have no effect in such a fleet. Raises `CompositionError`."""
    endpoints = Counter(machine.endpoint.role for machine in machines)
    found: dict[str, None] = {}
    for choice in choices:
        for problem in problems(choice.suite, endpoints):
            raise CompositionError(f"policy {choice.name}: {problem.part} {problem.reason}")
        if choice.suite.queue is not None and choice.suite.queue.engine_priority and engine_policy != "priority":
            raise CompositionError(
                f"policy {choice.name}: queue passes its order to the engines, which ignore it; "
                "add --engine-policy priority, or leave engine_priority out"
            )
        found |= dict.fromkeys(f"{each.part} {each.reason}" for each in remarks(choice.suite, endpoints))
        if not endpoints[Role.FLEXIBLE] and _weighs_prefills_only(choice.suite.decode):
            name = choice.suite.decode.type
            by_option = choice.name.rpartition("/")[2] == name
            other = f"{name}/least-requests places prefills by it" if by_option else "it belongs under `prefill`"
            found[
                f"policy {choice.name}: {name} weighs what is left to prefill, which no decode endpoint does; {other}"
            ] = None
    return list(found)


def _weighs_prefills_only(placement: Placement) -> bool:
    """Whether it reads which prefixes are cached, and nothing about decodes."""
    decoding = Belief.LENGTHS | Belief.STEP_TIMES | Belief.RATES | Belief.PROGRESS
    return Belief.PREFIXES in placement.needs and not placement.needs & decoding


def read_policy_file(path: Path) -> tuple[PolicyChoice, ...]:
    """The SchedulingPolicies of a manifest, under their own names. Raises `PolicyChoiceError`."""
    try:
        resources = load_manifest_files(path)
    except InvalidInput as error:
        raise PolicyChoiceError("policy_file", f"{error}") from None
    choices = [
        PolicyChoice(resource.metadata.name, resource.spec.build())
        for resource in resources
        if isinstance(resource, SchedulingPolicy)
    ]
    if not choices:
        raise PolicyChoiceError("policy_file", f"{path}: holds no SchedulingPolicy; write one with kind and spec")
    return tuple(choices)
