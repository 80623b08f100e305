"""Whether a face of the gateway, a fleet and its engines can carry out the policies of a SchedulingPolicy.

`ballast_core.policies.composing` decides which policies go together. What each face can do is known here only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType

from ballast_api.faces import Face
from ballast_api.policy_parameters import manifest_words
from ballast_core.model import Role
from ballast_core.policies.composing import Problem, problems
from ballast_core.policies.partition.protocol import Partition
from ballast_core.policies.suite import Suite


class Ability(StrEnum):
    """What a policy may ask of the face that holds a request."""

    PRIORITIES = "pass the priority of a request to engines"
    PROMPT_CUTS = "cut prompts"
    OUTPUT_CUTS = "cut what a request generates"
    MIGRATIONS = "move a running decode"


FACES: Mapping[Face, frozenset[Ability]] = MappingProxyType(
    {
        Face.PROXY: frozenset({Ability.PRIORITIES, Ability.PROMPT_CUTS, Ability.MIGRATIONS}),
        Face.PICKER: frozenset({Ability.PRIORITIES}),
        Face.BOTH: frozenset({Ability.PRIORITIES}),
    }
)
"""What each face does beyond placing requests and letting them wait; `Both` is what both do.

`ballast_gateway.driver` has what a face must do for each. The proxy moves streams by replaying their tokens, and has
the first part of a prompt computed apart (`ballast_gateway.proxy.cutting`); it cuts no output, because vLLM gives no KV
handle of a request that streams. The picker never holds the stream of a request: cutting and moving take the agent in
the pods, which does what the proxy does (`WITH_AGENTS`).
"""
WITH_AGENTS: Mapping[Face, frozenset[Ability]] = MappingProxyType(dict.fromkeys(Face, FACES[Face.PROXY]))
"""What each face does where it speaks with the agents of the pods."""

PROMPT_ONLY: Mapping[str, tuple[str, str]] = MappingProxyType({"fixed": ("at", "prompt"), "libra": ("cuts", "prompt")})
"""For each partition the parameter, and its value, that keeps all cuts within prompts or at their end."""
LEAST_LEASE_S = 30
"""How long engines must keep the KV of a first part: the proxy wants the next engine's first token within 20 s."""


def misfits(
    suite: Suite, face: Face, endpoints: Mapping[Role, int] | None = None, *, agents: bool = False
) -> list[Problem]:
    """Why this face, and a fleet of so many endpoints by role if that is known, cannot carry these policies out.

    `agents`: whether it speaks with agents in the pods.
    """
    able = (WITH_AGENTS if agents else FACES)[face]
    asked = asked_of_face(suite)
    if Ability.PROMPT_CUTS not in able and Ability.OUTPUT_CUTS in asked:
        asked.remove(Ability.OUTPUT_CUTS)  # it cuts nothing: one reason will do
    found = [_missing(suite, ability, face) for ability in asked if ability not in able]
    found += problems(suite, endpoints)
    return [Problem(problem.part, manifest_words(problem.reason)) for problem in found]


def _missing(suite: Suite, ability: Ability, face: Face) -> Problem:
    said = f"face {face} cannot {ability} {_BY_ITSELF if ability in WITH_AGENTS[face] else 'in this release'}"
    if ability is Ability.OUTPUT_CUTS and suite.partition is not None:
        name, value = PROMPT_ONLY[suite.partition.type]
        return Problem(f"partition.parameters.{name}", f"{said}; set {name}: {value}")
    return Problem(_PART_OF[ability], f"{said}; leave it out")


def engine_misfits(
    suite: Suite, args: Sequence[str], connector: Mapping[str, object] = MappingProxyType({})
) -> list[Problem]:
    """Why engines with these arguments of vLLM cannot carry these policies out.

    `connector`: keys of --kv-transfer-config, where the arguments have no such option.
    """
    asked = asked_of_face(suite)
    found = []
    if Ability.PRIORITIES in asked and _last_value(args, "--scheduling-policy") != "priority":
        reason = (
            "the engines do not schedule by priority: add --scheduling-policy priority to spec.engine.args "
            "(engines restart), or leave it out"
        )
        found.append(Problem("queue.parameters.enginePriority", reason))
    if Ability.PROMPT_CUTS in asked:
        reason = _why_no_parts(_transfer_config(args, connector))
        if reason:
            found.append(Problem("partition", f"{reason} (engines restart), or leave it out"))
    return found


def _transfer_config(args: Sequence[str], connector: Mapping[str, object]) -> Mapping[str, object]:
    text = _last_value(args, "--kv-transfer-config")
    if text is None:
        return connector
    try:
        config = json.loads(text)
    except ValueError:
        return {}
    return config if isinstance(config, dict) else {}


def _why_no_parts(config: Mapping[str, object]) -> str:
    """Why engines with such a --kv-transfer-config cannot go on from the first part of a prompt; empty if they can.

    vLLM 0.32 parks a request for ever without `bidirectional_kv_xfer`, and with buffers in host memory.
    """
    extra = config.get("kv_connector_extra_config")
    extra = extra if isinstance(extra, dict) else {}
    where = "spec.engine.kvConnector.config"
    if extra.get("bidirectional_kv_xfer") is not True:
        return (
            "the engines cannot read the KV of a part of a prompt: set "
            f"kv_connector_extra_config: {{bidirectional_kv_xfer: true}} in {where}"
        )
    role, lease_s = config.get("kv_role", "kv_both"), extra.get("kv_lease_duration", LEAST_LEASE_S)
    if role != "kv_both":
        return f"the engines must send and receive KV: set kv_role: kv_both in {where}, or leave kv_role out there"
    if config.get("kv_buffer_device") == "cpu":
        return f"the engines read no parts through host memory: leave kv_buffer_device out of {where}"
    if not isinstance(lease_s, (int, float)) or lease_s < LEAST_LEASE_S:
        return f"the engines must keep KV for {LEAST_LEASE_S} s: set kv_lease_duration to that or more in {where}"
    return ""


def _last_value(args: Sequence[str], option: str) -> str | None:
    """The value of the last `--option VALUE` or `--option=VALUE`."""
    value = None
    for index, arg in enumerate(args):
        if arg == option and index + 1 < len(args):
            value = args[index + 1]
        elif arg.startswith(f"{option}="):
            value = arg.partition("=")[2]
    return value


def asked_of_face(suite: Suite) -> list[Ability]:
    """What a face must do for these policies."""
    asked = []
    if suite.queue is not None and suite.queue.engine_priority:
        asked.append(Ability.PRIORITIES)
    if suite.partition is not None:
        asked.append(Ability.PROMPT_CUTS)
        if _cuts_output(suite.partition):
            asked.append(Ability.OUTPUT_CUTS)
    if suite.rescheduling is not None:
        asked.append(Ability.MIGRATIONS)
    return asked


def _cuts_output(partition: Partition) -> bool:
    name, value = PROMPT_ONLY[partition.type]
    return bool(getattr(partition, name) != value)


_BY_ITSELF = "without agents in the pods (podApi)"
_PART_OF = {Ability.PRIORITIES: "queue", Ability.PROMPT_CUTS: "partition", Ability.MIGRATIONS: "rescheduling"}
