"""Whether the policies of a SchedulingPolicy go together, and whether a gateway and a fleet can carry them out.

Which policies go together is for `ballast_core.policies.composing` to say. What only the API knows is which face of the
gateway does what policies may ask for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from ballast_api.common import Rule
from ballast_api.policy_parameters import manifest_words
from ballast_core.model import Role
from ballast_core.policies.composing import NOTHING_WAITS, Problem, problems, remarks
from ballast_core.policies.suite import Suite

if TYPE_CHECKING:
    from ballast_api.scheduling_policy import SchedulingPolicySpec

Face = Literal["Proxy", "Picker", "Both"]


class Ability(StrEnum):
    """What a policy may ask of the face that holds a request."""

    PRIORITIES = "tell engines the priority of a request"
    SEGMENTS = "run the parts of a request that was cut"
    MIGRATIONS = "move a running decode"


FACES: Mapping[Face, frozenset[Ability]] = MappingProxyType(
    {
        "Proxy": frozenset({Ability.PRIORITIES, Ability.MIGRATIONS}),
        "Picker": frozenset({Ability.PRIORITIES}),
        "Both": frozenset({Ability.PRIORITIES}),
    }
)
"""What each face does beyond placing requests and letting them wait; `Both` is what both do.

`ballast_gateway.driver` says what a face must do for each. The proxy moves streams by replaying their tokens; it
runs no cuts, because vLLM gives no KV handle of a request that streams. The picker never holds the stream of a request:
cutting and moving take the agent in the pods, which this release does not have.
"""


def composition_rules() -> tuple[Rule, ...]:
    """Rules across the parts of a SchedulingPolicy: the core's, once more for the API server."""
    return (
        _rule(
            "queue",
            "!has(self.queue) || self.queue.type == 'fcfs' || (has(self.admission) && self.admission.type != 'open')"
            " || (has(self.queue.parameters) && has(self.queue.parameters.enginePriority)"
            " && self.queue.parameters.enginePriority)",
            NOTHING_WAITS,
        ),
    )


def _rule(field: str, cel: str, reason: str) -> Rule:
    def holds(spec: SchedulingPolicySpec) -> bool:
        return all(problem.reason != reason for problem in problems(spec.build()))

    return Rule(field=field, cel=cel, message=manifest_words(reason), holds=holds)


def misfits(suite: Suite, face: Face, endpoints: Mapping[Role, int] | None = None) -> list[Problem]:
    """Why this face, and a fleet of so many endpoints by role if that is known, cannot carry these policies out."""
    missing = [ability for ability in asked_of_face(suite) if ability not in FACES[face]]
    found = [
        Problem(_PART_OF[ability], f"face {face} cannot {ability} in this release; leave it out") for ability in missing
    ]
    found += problems(suite, endpoints)
    return [Problem(problem.part, manifest_words(problem.reason)) for problem in found]


def engine_misfits(suite: Suite, args: Sequence[str]) -> list[Problem]:
    """Why engines with these arguments of vLLM cannot carry these policies out."""
    if Ability.PRIORITIES not in asked_of_face(suite) or _last_value(args, "--scheduling-policy") == "priority":
        return []
    return [
        Problem(
            "queue.parameters.enginePriority",
            "the engines do not schedule by priority: add --scheduling-policy priority to spec.engine.args "
            "(engines restart), or leave it out",
        )
    ]


def _last_value(args: Sequence[str], option: str) -> str | None:
    """What the last of `--option VALUE` and `--option=VALUE` says."""
    value = None
    for at, arg in enumerate(args):
        if arg == option and at + 1 < len(args):
            value = args[at + 1]
        elif arg.startswith(f"{option}="):
            value = arg.partition("=")[2]
    return value


def asked_of_face(suite: Suite) -> list[Ability]:
    """What a face must do for these policies."""
    asked = []
    if suite.queue is not None and suite.queue.engine_priority:
        asked.append(Ability.PRIORITIES)
    if suite.partition is not None:
        asked.append(Ability.SEGMENTS)
    if suite.rescheduling is not None:
        asked.append(Ability.MIGRATIONS)
    return asked


_PART_OF = {Ability.PRIORITIES: "queue", Ability.SEGMENTS: "partition", Ability.MIGRATIONS: "rescheduling"}

__all__ = ["FACES", "Ability", "Face", "asked_of_face", "composition_rules", "misfits", "remarks"]
