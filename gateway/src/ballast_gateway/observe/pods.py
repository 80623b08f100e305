"""What a pod means for the fleet: a pure function of the API object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from ballast_api import names
from ballast_core.model import Endpoint, EndpointId, Role

Pod: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PodReady:
    """The pod serves."""

    endpoint: Endpoint
    uid: str
    pod_api: str = ""
    """Address of its agent; empty if it has none."""
    draining: bool = False
    """The operator is about to take it away: it finishes what it has, unless that is taken back."""


@dataclass(frozen=True, slots=True)
class PodDraining:
    """The pod is being deleted: it finishes what it has."""

    endpoint_id: EndpointId


@dataclass(frozen=True, slots=True)
class PodGone:
    """The pod is gone or not ready, or no engine; `why` is the reason, for the log."""

    endpoint_id: EndpointId
    why: str


PodChange: TypeAlias = PodReady | PodDraining | PodGone

_LLMD_ROLES = {
    "prefill": Role.PREFILL,
    "decode": Role.DECODE,
    "prefill-decode": Role.FLEXIBLE,
    "both": Role.FLEXIBLE,
}


def endpoint_id(pod: Pod) -> EndpointId:
    """The pod's name; one gateway watches one namespace."""
    return EndpointId(str(pod["metadata"]["name"]))


def read_pod(pod: Pod, *, port: int) -> PodChange:
    """What an existing pod means. `port`: of the HTTP API, where the pod does not say it."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    name = endpoint_id(pod)
    if metadata.get("deletionTimestamp"):
        return PodDraining(name)
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    role = _role(labels)
    if role is None:
        given = labels.get(names.LABEL_ROLE, labels.get(names.LABEL_LLMD_ROLE))
        return PodGone(name, f"label {names.LABEL_ROLE} is {given!r}: use prefill, decode or flexible")
    if not _is_ready(status):
        return PodGone(name, "not ready")
    ip = status.get("podIP")
    if not ip:
        return PodGone(name, "has no IP address")
    return PodReady(
        Endpoint(
            id=name,
            address=_address(ip, _http_port(pod, port)),
            role=role,
            pool=labels.get(names.LABEL_POOL, ""),
            profile=annotations.get(names.ANNOTATION_HARDWARE, ""),
            revision=labels.get(names.LABEL_REVISION, ""),
        ),
        uid=str(metadata.get("uid", "")),
        pod_api=pod_api(pod),
        draining=bool(annotations.get(names.ANNOTATION_DRAINING)),
    )


def pod_api(pod: Pod) -> str:
    """Where a pod serves the pod API, ready, draining or neither; empty if it does not, or has no IP address."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    port = (metadata.get("annotations") or {}).get(names.ANNOTATION_POD_API, "")
    ip = status.get("podIP")
    if not ip or not (port.isascii() and port.isdigit() and len(port) <= 5):
        return ""
    return _address(ip, int(port))


def _http_port(pod: Pod, usual: int) -> int:
    """The pod's own word: port `http` of its agent's container, or of its engine's where it has no agent; else `usual`.

    The operator writes it, and while it rolls another `engine.port` out pods differ. A port of that name means nothing
    in other containers.
    """
    spec, annotations = pod.get("spec") or {}, pod["metadata"].get("annotations") or {}
    group, name = ("containers", names.ENGINE_CONTAINER)
    if names.ANNOTATION_POD_API in annotations:
        group, name = ("initContainers", names.AGENT_CONTAINER)
    ports = (
        each["containerPort"]
        for container in spec.get(group) or ()
        if container["name"] == name
        for each in container.get("ports") or ()
        if each.get("name") == "http"
    )
    return int(next(ports, usual))


def _address(ip: str, port: int) -> str:
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def _role(labels: Mapping[str, str]) -> Role | None:
    ours = labels.get(names.LABEL_ROLE)
    if ours is not None:
        return Role(ours) if ours in set(Role) else None
    return _LLMD_ROLES.get(labels.get(names.LABEL_LLMD_ROLE, ""))


def _is_ready(status: Mapping[str, Any]) -> bool:
    return any(
        condition.get("type") == "Ready" and condition.get("status") == "True"
        for condition in status.get("conditions") or ()
    )
