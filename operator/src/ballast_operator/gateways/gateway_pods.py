"""Gateway pods as they are asked: their addresses, and which of them should answer. Pure."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass

from ballast_api import names
from ballast_operator.kinds import Manifest


@dataclass(frozen=True, slots=True)
class GatewayPod:
    """A gateway pod that has an address."""

    name: str
    address: str
    """Of its admin API."""
    ready: bool


def gateway_pods(pods: Iterable[Manifest], admin_port: int) -> dict[tuple[str, str], list[GatewayPod]]:
    """By namespace and name of the ServingPool."""
    found: dict[tuple[str, str], list[GatewayPod]] = {}
    for manifest in pods:
        metadata = manifest["metadata"]
        owner, pod = (metadata.get("labels") or {}).get(names.LABEL_SERVING_POOL), gateway_pod(manifest, admin_port)
        if owner and pod is not None:
            found.setdefault((metadata["namespace"], owner), []).append(pod)
    return found


def gateway_pod(manifest: Manifest, admin_port: int = names.PORT_ADMIN) -> GatewayPod | None:
    """One that may be asked; None while it does not run. A pod that ends may still answer; it is not ready."""
    metadata, status = manifest["metadata"], manifest.get("status") or {}
    ip = status.get("podIP")
    if not ip or status.get("phase") != "Running":
        return None
    address = f"[{ip}]:{admin_port}" if ":" in ip else f"{ip}:{admin_port}"
    return GatewayPod(metadata["name"], address, is_ready(manifest) and not metadata.get("deletionTimestamp"))


def is_ready(pod: Manifest) -> bool:
    """By its condition."""
    with contextlib.suppress(KeyError, TypeError):
        return any(item["type"] == "Ready" and item["status"] == "True" for item in pod["status"]["conditions"])
    return False
