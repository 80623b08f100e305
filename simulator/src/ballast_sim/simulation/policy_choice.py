"""Which policies a run compares: names from a command line, or a SchedulingPolicy manifest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ballast_api.errors import InvalidInput
from ballast_api.loading import load_manifest_files
from ballast_api.scheduling_policy import SchedulingPolicy
from ballast_core.policies.base import Placement
from ballast_core.policies.registry import COMPOSITIONS, PLACEMENTS, build_placement
from ballast_core.policies.suite import Suite
from ballast_sim.simulation.naming import known_names
from ballast_sim.simulation.only_simulated import SIMULATOR_ONLY

PREFILL_PREFERENCE = ("least-uncached-tokens", "least-requests")
"""The prefill placement beside a decode placement that is named alone: the first of these that is registered."""


class PolicyChoiceError(ValueError):
    """A policy that cannot be built; the message names the option and the fix."""


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """The policies of a run. `name` is how the user called them."""

    name: str
    suite: Suite

    @property
    def placements(self) -> str:
        """`PREFILL/DECODE`, both spelled out."""
        return f"{self.suite.prefill.type}/{self.suite.decode.type}"

    @property
    def types(self) -> dict[str, str]:
        """Type name of every policy that there is, by its part."""
        return {part: policy.type for part, policy in self.suite.parts().items() if policy is not None}

    @property
    def knows_lengths(self) -> bool:
        """Whether it must be told every output's length."""
        return not SIMULATOR_ONLY.keys().isdisjoint((self.suite.prefill.type, self.suite.decode.type))


def default_prefill() -> str:
    """See `PREFILL_PREFERENCE`."""
    return next(name for name in PREFILL_PREFERENCE if name in PLACEMENTS)


def least_requests() -> PolicyChoice:
    """What `--load` is a share of: the capacity of this pair."""
    placement = build_placement("least-requests")
    return PolicyChoice("least-requests/least-requests", Suite(prefill=placement, decode=placement))


def parse_policies(text: str) -> tuple[PolicyChoice, ...]:
    """Reads `a,b,PREFILL/DECODE`; a name alone places decodes. Raises `PolicyChoiceError`."""
    choices: list[PolicyChoice] = []
    known = (*PLACEMENTS, *SIMULATOR_ONLY)
    for name in (part.strip() for part in text.split(",")):
        prefill, slash, decode = name.rpartition("/")
        if not decode or (slash and not prefill):
            raise PolicyChoiceError(f"--policy: cannot read {name!r} in {text!r}; write such as least-requests,ils")
        for part in filter(None, (prefill, decode)):
            if part in COMPOSITIONS:
                raise PolicyChoiceError(
                    f"--policy: {part} is made of other policies; write them into a SchedulingPolicy manifest "
                    "and name it with --policy-file"
                )
            if part not in known:
                raise PolicyChoiceError(f"--policy: unknown placement {part!r}; {known_names(part, known)}")
        if any(choice.name == name for choice in choices):
            raise PolicyChoiceError(f"--policy: {name!r} is named twice")
        suite = Suite(prefill=_placement(prefill or default_prefill()), decode=_placement(decode))
        choices.append(PolicyChoice(name, suite))
    return tuple(choices)


def _placement(name: str) -> Placement:
    special = SIMULATOR_ONLY.get(name)
    return build_placement(name) if special is None else special()


def read_policy_file(path: Path) -> tuple[PolicyChoice, ...]:
    """The SchedulingPolicies of a manifest, under their own names. Raises `PolicyChoiceError`."""
    try:
        resources = load_manifest_files(path)
    except InvalidInput as error:
        raise PolicyChoiceError(f"--policy-file: {error}") from None
    choices = [
        PolicyChoice(resource.metadata.name, resource.spec.build())
        for resource in resources
        if isinstance(resource, SchedulingPolicy)
    ]
    if not choices:
        raise PolicyChoiceError(f"--policy-file: {path}: holds no SchedulingPolicy; write one with kind and spec")
    return tuple(choices)
