"""What adopting starts from: Deployments and what stands around them, and the engine in each. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ballast_api import names
from ballast_api.names import RoleName
from ballast_cli.adopting.words import CommandLine, command_line

Manifest = dict[str, Any]

_SIDECARS: Final = ("routing-sidecar", "routing-proxy")
"""Parts of the names of llm-d's sidecar and its image; Ballast's agent takes its place."""
_ROLES: Final[Mapping[str, RoleName]] = {
    "prefill": "Prefill",
    "decode": "Decode",
    "both": "Flexible",
    "prefill-decode": "Flexible",
    "flexible": "Flexible",
    "kv_producer": "Prefill",
    "kv_consumer": "Decode",
    "kv_both": "Flexible",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """What becomes of one thing that was read."""

    fit: str
    """`same`, `differs`, `guessed`, `left` (out) or `check`."""
    of: str
    said: str


@dataclass(frozen=True, slots=True)
class Engine:
    """One Deployment of engines."""

    deployment: Manifest
    container: Manifest
    line: CommandLine
    role: RoleName
    role_from: str
    """What said so."""
    connector: Manifest
    """Its --kv-transfer-config; empty without one."""

    @property
    def name(self) -> str:
        """Of the Deployment."""
        return str(self.deployment["metadata"]["name"])

    @property
    def template(self) -> Manifest:
        """Its pods."""
        found: Manifest = self.deployment["spec"]["template"]
        return found

    @property
    def labels(self) -> Mapping[str, str]:
        """Of its pods."""
        return self.template.get("metadata", {}).get("labels") or {}

    @property
    def pod(self) -> Manifest:
        """The spec of its pods."""
        found: Manifest = self.template["spec"]
        return found

    @property
    def tensor_parallel_size(self) -> int:
        """GPUs of one node that one engine uses."""
        return self.line.number("tensor-parallel-size") or self.gpus[1] or 1

    @property
    def gpus(self) -> tuple[str, int]:
        """Name and number of the accelerators of its container; none: an empty name."""
        resources = self.container.get("resources") or {}
        for limits in (resources.get("limits") or {}, resources.get("requests") or {}):
            for key, count in limits.items():
                if "/" in key and str(count).isdigit():
                    return str(key), int(count)
        return "", 0


def unfolded(documents: Iterable[Any]) -> list[Manifest]:
    """Objects, those of Lists included."""
    found: list[Manifest] = []
    for document in documents:
        if isinstance(document, dict):
            inner = document.get("items")
            found += (
                unfolded(inner)
                if str(document.get("kind", "")).endswith("List") and isinstance(inner, list)
                else [document]
            )
    return [each for each in found if isinstance(each.get("metadata"), dict) and each["metadata"].get("name")]


def of_kind(objects: Iterable[Manifest], kind: str) -> list[Manifest]:
    """Those of a kind."""
    return [each for each in objects if each.get("kind") == kind]


def around(objects: Sequence[Manifest], engines: Sequence[Engine]) -> list[Manifest]:
    """All objects but the InferencePools that select no such engine, and the HTTPRoutes that lead to none."""
    reached = {
        (each["kind"], each["metadata"]["name"])
        for each in objects
        if each.get("kind") in ("InferencePool", "Service") and any(_selects(each, engine) for engine in engines)
    }
    known = {each["metadata"]["name"] for each in of_kind(objects, "Service")}

    def leads(route: Manifest) -> bool:
        rules = (route.get("spec") or {}).get("rules") or ()
        backends = [backend for rule in rules for backend in rule.get("backendRefs") or ()]
        ends = {(each.get("kind", "Service"), each.get("name")) for each in backends}
        # Of a Service that was not read nobody knows what it selects.
        return bool(ends & reached) or any(kind == "Service" and name not in known for kind, name in ends)

    def kept(each: Manifest) -> bool:
        if each.get("kind") == "InferencePool":
            return ("InferencePool", each["metadata"]["name"]) in reached
        return each.get("kind") != "HTTPRoute" or leads(each)

    return [each for each in objects if kept(each)]


def _selects(each: Manifest, engine: Engine) -> bool:
    selector = (each.get("spec") or {}).get("selector") or {}
    labels = (selector.get("matchLabels") or {}) if each["kind"] == "InferencePool" else selector
    return bool(labels) and labels.items() <= engine.labels.items()


def engine_in(deployment: Manifest) -> Engine | str:
    """The engine of a Deployment's pods; a sentence that says why there is none."""
    containers = deployment.get("spec", {}).get("template", {}).get("spec", {}).get("containers") or []
    said = "no container"
    for container in sorted(containers, key=lambda each: not _likely(each)):
        line = command_line(container)
        if isinstance(line, CommandLine) and (_likely(container) or line.last("kv-transfer-config")):
            connector = as_json(line.last("kv-transfer-config"))
            role, why = _role(deployment, connector)
            return Engine(deployment, container, line, role, why, connector)
        said = f"container {container.get('name')}: {line if isinstance(line, str) else 'it does not look like vLLM'}"
    return said


def is_sidecar(container: Mapping[str, Any]) -> bool:
    """Whether it is llm-d's routing sidecar."""
    return any(each in f"{container.get('name')} {container.get('image')}" for each in _SIDECARS)


def _likely(container: Mapping[str, Any]) -> bool:
    words = " ".join(map(str, (*(container.get("command") or ()), *(container.get("args") or ()))))
    known = ("vllm", names.ENGINE_CONTAINER)
    if is_sidecar(container):
        return False
    return (
        container.get("name") in known
        or "vllm" in str(container.get("image"))
        or "vllm" in words
        or "engine-sim" in words
    )


def _role(deployment: Manifest, connector: Manifest) -> tuple[RoleName, str]:
    labels = deployment["spec"]["template"].get("metadata", {}).get("labels") or {}
    for key in (names.LABEL_LLMD_ROLE, names.LABEL_ROLE):
        if labels.get(key) in _ROLES:
            return _ROLES[labels[key]], f"label {key}"
    if connector.get("kv_role") in ("kv_producer", "kv_consumer"):
        return _ROLES[connector["kv_role"]], f"kv_role {connector['kv_role']}"
    name = str(deployment["metadata"]["name"])
    for word in ("prefill", "decode"):
        if word in name:
            return _ROLES[word], f"the name {name}, a guess"
    return "Flexible", "nothing says otherwise"


def as_json(text: str | None) -> Manifest:
    """An option's value as an object; empty where it is none."""
    return json_object(text or "") or {}


def json_object(text: str) -> Manifest | None:
    """The object that a JSON text is; None where it is none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
