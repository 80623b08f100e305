"""The container `agent`: a native sidecar (KEP-753) that listens where the engine would, and has the engine behind it.

It starts before the engine, and nothing about its start waits for the engine. When the pod ends the kubelet stops the
engine first: with `--shutdown-timeout` running requests end, and the agent that carries them ends after it.
"""

from __future__ import annotations

from typing import Final

from ballast_api import names
from ballast_api.serving_pool import PoolSpec, ServingPoolSpec
from ballast_operator.kinds import Manifest
from ballast_operator.settings import GatewayDefaults
from ballast_operator.specs.ballast_image import STARTS_WITHIN_S, ballast_image
from ballast_operator.specs.security import container_security
from ballast_operator.specs.token_mount import TOKEN_FILE, token_mount

LOOPBACK: Final = "127.0.0.1"


def agent_container(spec: ServingPoolSpec, defaults: GatewayDefaults) -> Manifest:
    """The container before the user's overlay."""
    return {
        "name": names.AGENT_CONTAINER,
        "restartPolicy": "Always",
        **ballast_image(spec.gateway, defaults),
        "command": ["ballast"],
        "args": [
            *("agent", "--port", str(spec.engine.port)),
            *("--engine", f"{LOOPBACK}:{spec.engine.port_behind_agent}"),
            *("--pod-api-port", str(names.PORT_POD_API)),
            *("--token-file", TOKEN_FILE),
        ],
        "env": [
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}},
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}}},
        ],
        "ports": [
            {"name": "http", "containerPort": spec.engine.port, "protocol": "TCP"},
            {"name": "pod-api", "containerPort": names.PORT_POD_API, "protocol": "TCP"},
        ],
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": container_security(read_only=True),
        "volumeMounts": [token_mount()],
        # The engine's container waits for this one, and for nothing else of the agent.
        "startupProbe": _probe("live", period_s=1, failures=STARTS_WITHIN_S),
        "readinessProbe": _probe("ready", period_s=2, failures=2),
        # Sooner than the engine's, which asks through the agent: an agent that hangs must not cost the engine.
        "livenessProbe": _probe("live", period_s=5, failures=3),
    }


def without_agent(pod: Manifest) -> Manifest:
    """A pod's spec without the container."""
    others = [each for each in pod.get("initContainers") or () if each["name"] != names.AGENT_CONTAINER]
    kept = {key: value for key, value in pod.items() if key != "initContainers"}
    return {**kept, "initContainers": others} if others else kept


def without_pin(pod: Manifest) -> Manifest:
    """The spec of a pod that has no agent, without what its overlay asks of one. The same object where it asks nothing:
    its hash stays."""
    return without_agent(pod) if any(map(_is_pin, pod.get("initContainers") or ())) else pod


def remarks(spec: ServingPoolSpec) -> tuple[str, ...]:
    """What overlays ask of agents that there are none of."""
    return tuple(
        f"pools[{index}].template: the init container {names.AGENT_CONTAINER} is left out, for pods of pool "
        f"{pool.name} have no agent"
        for index, pool in enumerate(spec.pools)
        if not spec.has_agent(pool) and _asks_for_agent(pool)
    )


def _asks_for_agent(pool: PoolSpec) -> bool:
    given = {} if pool.template is None else pool.template.spec.model_extra or {}
    return any(map(_is_pin, given.get("initContainers") or ()))


def _is_pin(container: Manifest) -> bool:
    """Whether it changes the agent. One that says what it runs is the user's own, whatever its name."""
    runs = container.get("command") or container.get("args")
    return container["name"] == names.AGENT_CONTAINER and not runs


def _probe(what: str, *, period_s: int, failures: int) -> Manifest:
    return {
        "httpGet": {"path": f"/ballast/v1/{what}", "port": "pod-api"},
        "periodSeconds": period_s,
        "timeoutSeconds": 3,
        "failureThreshold": failures,
    }
