"""The answer as resources that `kubectl apply` takes: profiles, SLO, SchedulingPolicy, ServingPool."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from ballast_api.common import API_VERSION
from ballast_api.hardware_profile import HardwareProfileSpec
from ballast_api.names import MAX_POOL_NAME
from ballast_sim.recommend.layouts import Part
from ballast_sim.recommend.search import Answer
from ballast_sim.recommend.variants import FACE

HARDWARE_LABEL = "serving.ballast.dev/hardware"
"""Of nodes: the kind of hardware, as in the quickstart."""
ROLES = {"P": "Prefill", "D": "Decode", "C": "Flexible", "F": "Flexible"}

Json = dict[str, Any]

_ENGINE_SIM = {
    "command": ["ballast", "engine-sim"],
    "imagePullPolicy": "IfNotPresent",  # images that were loaded into nodes can be pulled nowhere
}
_SMALL = {"spec": {"containers": [{"name": "engine", "resources": {"requests": {"cpu": "20m", "memory": "96Mi"}}}]}}
"""A pod template: what engine-sim needs, as in the quickstart. vLLM gets what the operator asks for."""


def resources(
    answer: Answer,
    *,
    name: str,
    model: str,
    image: str,
    engine_sim: bool = False,
    selectors: Mapping[str, Mapping[str, str]] | None = None,
) -> list[Json]:
    """In the order in which they should be applied.

    `engine_sim` says that `image` is Ballast's own: engines then run engine-sim, with the timing of these profiles.

    `selectors` are the node selectors of profiles that have their own; other profiles get the quickstart's label with
    the kind of hardware: without one, engines would land on each other's nodes.
    """
    profiles = {part.profile.name: part.profile for part in answer.best.layout.parts}
    hardware = [
        _resource(
            "HardwareProfile",
            profile.name,
            {
                **HardwareProfileSpec.from_core(profile).dump(),
                "nodeSelector": dict((selectors or {}).get(profile.name) or {HARDWARE_LABEL: _kind(profile.name)}),
            },
        )
        for profile in profiles.values()
    ]
    return [
        *hardware,
        _resource("ServiceLevelObjective", name, _slo(answer)),
        _resource("SchedulingPolicy", name, answer.best.variant.spec.dump()),
        _resource("ServingPool", name, _serving_pool(answer, name, model, image, engine_sim)),
    ]


def to_yaml(items: Sequence[Json], heading: Sequence[str]) -> str:
    """One file; `heading` becomes comments at its head."""
    head = "".join(f"# {part}".rstrip() + "\n" for line in heading for part in line.splitlines())
    return head + yaml.dump_all(items, Dumper=_WithoutAnchors, sort_keys=False, allow_unicode=True, width=120)


class _WithoutAnchors(yaml.SafeDumper):
    """Values that occur twice are written twice: people read and edit these files."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _resource(kind: str, name: str, spec: Json) -> Json:
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}


def _slo(answer: Answer) -> Json:
    objective = answer.question.objective
    limits = {"ttftS": objective.ttft_s, "tpotS": objective.tpot_s, "e2eS": objective.e2e_s}
    return {**{name: limit for name, limit in limits.items() if limit}, "attainment": answer.question.attainment}


def _serving_pool(answer: Answer, name: str, model: str, image: str, engine_sim: bool) -> Json:
    template = {"template": _SMALL} if engine_sim else {}
    return {
        "model": {"name": model},
        "engine": {"image": image, **(_ENGINE_SIM if engine_sim else {}), "kvConnector": _connector(answer)},
        "pools": [_pool(pool, part) | template for pool, part in _named(answer.best.layout.parts)],
        "policyRef": {"name": name},
        "sloRef": {"name": name},
        "gateway": {"replicas": 1, "face": FACE.value},
        "gpuBudget": sum(each.gpus for each in answer.question.hardware),
    }


def _connector(answer: Answer) -> Json:
    """Cuts need engines that go on from a part of a prompt."""
    connector: Json = {"type": "NixlConnector"}
    if answer.best.variant.spec.partition is not None:
        connector["config"] = {"kv_connector_extra_config": {"bidirectional_kv_xfer": True}}
    return connector


def _named(parts: Sequence[Part]) -> list[tuple[str, Part]]:
    """Pools by role, with the kind of hardware where a role has several, and a number where that is the same."""
    roles = Counter(ROLES[part.letter] for part in parts)
    named: dict[str, Part] = {}
    for part in parts:
        role = ROLES[part.letter]
        name = role.lower() if roles[role] == 1 else f"{role.lower()}-{_kind(part.profile.name)}"
        named[next(each for each in _pool_names(name) if each not in named)] = part
    return list(named.items())


def _pool_names(name: str) -> Iterator[str]:
    """The name as a pool may have it, and with a number from 2 on; profiles' names are longer and have dots."""
    for suffix in itertools.chain([""], map("-{}".format, itertools.count(2))):
        yield name.replace(".", "-")[: MAX_POOL_NAME - len(suffix)].rstrip("-") + suffix


def _kind(profile: str) -> str:
    """Profiles are named HARDWARE-MODEL."""
    return profile.split("-", maxsplit=1)[0]


def _pool(name: str, part: Part) -> Json:
    return {"name": name, "role": ROLES[part.letter], "hardware": part.profile.name, "replicas": part.count}
