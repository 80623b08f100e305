"""The container `engine`: vLLM's command line and environment (vLLM 0.32; engine-sim takes the same)."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Final

from ballast_api import names
from ballast_api.gateway_settings import KvEvents, Limits
from ballast_api.hardware_profile import HardwareProfileSpec
from ballast_api.serving_pool import EnvVar, PoolSpec, ServingPoolSpec
from ballast_operator.kinds import Manifest
from ballast_operator.specs.agent_container import LOOPBACK
from ballast_operator.specs.hold import hold_hook, hold_mount, hold_s
from ballast_operator.specs.meta import Owner
from ballast_operator.specs.model_volume import model_environment, model_mounts
from ballast_operator.specs.profiles import PROFILE_FILE, engine_limits, profile_mount
from ballast_operator.specs.security import container_security

SLACK_S: Final = 15
"""Seconds for all else before the kubelet kills what is left."""
START_UP_S: Final = 3600
"""Seconds to load a model, downloads included."""
HOME: Final = "/home/engine"
MEMORY_GIB: Final = 8
"""Requested of the host for each GPU."""

_KV_ROLES: Final = {"Prefill": "kv_producer", "Decode": "kv_consumer", "Flexible": "kv_both"}


def gpus_of(pool: PoolSpec, profile: HardwareProfileSpec) -> int:
    """GPUs of one node that one engine uses."""
    return pool.tensor_parallel_size or profile.gpus


def shutdown_timeout_s(spec: ServingPoolSpec) -> int:
    """Whole seconds that running requests get after SIGTERM, as at the gateway.

    It is vLLM's --shutdown-timeout, whose default of 0 aborts them.
    """
    limits = Limits() if spec.gateway.settings is None else spec.gateway.settings.limits
    return math.ceil(limits.drain_timeout_s)


def grace_period_s(spec: ServingPoolSpec) -> int:
    """Seconds from the deletion of an engine pod to SIGKILL."""
    return hold_s(spec) + shutdown_timeout_s(spec) + SLACK_S


def engine_container(owner: Owner, spec: ServingPoolSpec, pool: PoolSpec, profile: HardwareProfileSpec) -> Manifest:
    """The container before the user's overlay."""
    engine = spec.engine
    # Behind an agent the engine has no port that the kubelet could reach: the agent passes its probes on.
    own_ports = [] if spec.has_agent(pool) else [{"name": "http", "containerPort": engine.port, "protocol": "TCP"}]
    container: Manifest = {
        "name": names.ENGINE_CONTAINER,
        "image": pool.image or engine.image,
        "command": list(engine.command),
        "args": arguments(spec, pool, profile),
        "env": _merged(environment(pool), model_environment(spec.model), _given(engine.env), _given(pool.env)),
        "ports": [
            *own_ports,
            {"name": "nixl", "containerPort": names.PORT_NIXL, "protocol": "TCP"},
            *_kv_events_ports(_kv_events(spec)),
        ],
        "resources": _resources(gpus_of(pool, profile), profile.resource_name),
        "lifecycle": {"preStop": hold_hook(owner, spec, pool)},
        "securityContext": container_security(read_only=False),
        "volumeMounts": [
            {"name": "home", "mountPath": HOME},
            {"name": "shm", "mountPath": "/dev/shm"},
            profile_mount(),
            hold_mount(),
            *model_mounts(spec.model),
        ],
        **_probes("http" if own_ports else engine.port),
    }
    if engine.image_pull_policy is not None:
        container["imagePullPolicy"] = engine.image_pull_policy
    return container


def _resources(gpus: int, resource_name: str) -> Manifest:
    """vLLM's API server, its engine core and one worker for each GPU keep a core busy each; a worker with its CUDA
    context, pinned buffers and the part of the weights that it loads needs some GiB of the host's memory."""
    requests = {"cpu": str(2 + gpus), "memory": f"{MEMORY_GIB * gpus}Gi"}
    return {"limits": {resource_name: str(gpus)}, "requests": requests}


def volumes() -> list[Manifest]:
    """Writable places: caches below the home, and shared memory between tensor-parallel workers."""
    return [{"name": "home", "emptyDir": {}}, {"name": "shm", "emptyDir": {"medium": "Memory"}}]


def arguments(spec: ServingPoolSpec, pool: PoolSpec, profile: HardwareProfileSpec) -> list[str]:
    """`serve MODEL ...`, the user's own arguments last: the last one wins in vLLM."""
    model = spec.model
    behind = (LOOPBACK, spec.engine.port_behind_agent)
    host, port = behind if spec.has_agent(pool) else ("0.0.0.0", spec.engine.port)
    result = [
        *("serve", model.name),
        *("--host", host),
        *("--port", str(port)),
        *("--served-model-name", *model.all_served_names()),
        *("--tensor-parallel-size", str(gpus_of(pool, profile) * pool.nodes_per_instance)),
        *engine_limits(profile),
        *("--kv-transfer-config", kv_transfer_config(spec, pool)),
        *("--shutdown-timeout", str(shutdown_timeout_s(spec))),
    ]
    kv_events = _kv_events(spec)
    if kv_events.enabled:
        result += ["--kv-events-config", kv_events_config(kv_events)]
    if model.max_model_len is not None:
        result += ["--max-model-len", str(model.max_model_len)]
    return [*result, *spec.engine.args, *pool.args]


def kv_transfer_config(spec: ServingPoolSpec, pool: PoolSpec) -> str:
    """vLLM's --kv-transfer-config. The user's keys win, `kv_role` included."""
    connector = spec.engine.kv_connector
    config = {"kv_connector": connector.type, "kv_role": _KV_ROLES[pool.role], **connector.config}
    return json.dumps(config, separators=(",", ":"))


def kv_events_config(settings: KvEvents) -> str:
    """vLLM's --kv-events-config: what the gateway listens to."""
    config = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{settings.port}",
        "replay_endpoint": f"tcp://*:{settings.replay_port}",
        "topic": settings.topic,
    }
    return json.dumps(config, separators=(",", ":"))


def _kv_events(spec: ServingPoolSpec) -> KvEvents:
    settings = spec.gateway.settings
    return KvEvents() if settings is None else settings.kv_events


def _kv_events_ports(settings: KvEvents) -> list[Manifest]:
    if not settings.enabled:
        return []
    ports = {"kv-events": settings.port, "kv-replay": settings.replay_port}
    return [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in ports.items()]


def environment(pool: PoolSpec) -> list[Manifest]:
    """The pod's name, address, node, pool and role. POD_IP stands before the variable that uses it."""
    role = names.core_role(pool.role)
    return [
        _from_field("POD_NAME", "metadata.name"),
        _from_field("POD_NAMESPACE", "metadata.namespace"),
        _from_field("POD_IP", "status.podIP"),
        _from_field("NODE_NAME", "spec.nodeName"),
        {"name": "BALLAST_POOL", "value": pool.name},
        {"name": "BALLAST_ROLE", "value": role.value},
        {"name": names.ENV_PROFILE, "value": PROFILE_FILE},
        {"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "value": "$(POD_IP)"},
        {"name": "VLLM_NIXL_SIDE_CHANNEL_PORT", "value": str(names.PORT_NIXL)},
        # A user without an entry in /etc/passwd has neither home nor name; Triton's and Torch's caches need both.
        {"name": "HOME", "value": HOME},
        {"name": "USER", "value": "engine"},
    ]


def _given(variables: Sequence[EnvVar]) -> list[Manifest]:
    return [each.model_dump(mode="json", by_alias=True, exclude_unset=True) for each in variables]


def _merged(*parts: list[Manifest]) -> list[Manifest]:
    """In order of first mention; the last one of a name counts."""
    return list({each["name"]: each for part in parts for each in part}.values())


def _from_field(name: str, path: str) -> Manifest:
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def _probes(port: str | int) -> Manifest:
    check = {"httpGet": {"path": "/health", "port": port}}
    every_s = 2
    return {
        "startupProbe": {
            **check,
            "periodSeconds": every_s,
            "timeoutSeconds": 2,
            "failureThreshold": START_UP_S // every_s,
        },
        "readinessProbe": {**check, "periodSeconds": 5, "timeoutSeconds": 3, "failureThreshold": 3},
        "livenessProbe": {**check, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 6},
    }
