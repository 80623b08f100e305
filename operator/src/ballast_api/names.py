"""Label and annotation keys, ports and child names: what operator, gateway and users must spell alike.

Names of children are `<serving pool>-<pool>` and `<serving pool>-gateway`; the length limits of the models keep them
DNS labels of at most 63 characters. Two ServingPools can still meet in one name (`a` with a pool `b-c`, `a-b` with a
pool `c`): the API server refuses a second controller of an object, and the operator reports NameConflict.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final, Literal

from ballast_api.common import GROUP
from ballast_core.model import Role as CoreRole

RoleName = Literal["Prefill", "Decode", "Flexible"]

MANAGER: Final = "ballast-operator"
"""Field manager of every server-side apply, and `app.kubernetes.io/managed-by`."""

ROLLOUT_MANAGER: Final = "ballast-operator-rollout"
"""Field manager of the numbers of pods of older revisions during a coupled rollout."""

SCALING_MANAGER: Final = "ballast-operator-scaling"
"""Field manager of decisions on instances, and of the roles of flexible pods."""

DRAIN_MANAGER: Final = "ballast-operator-drain"
"""Field manager of the marks of pods that are to go."""

LABEL_SERVING_POOL: Final = f"{GROUP}/serving-pool"
"""On every object of a ServingPool: its name."""
LABEL_POOL: Final = f"{GROUP}/pool"
"""On engine pods and their Deployment and Service: the name of the pool."""
LABEL_ROLE: Final = f"{GROUP}/role"
"""On engine pods: `prefill`, `decode` or `flexible`. The gateway places by it; changing it flips a pod at once."""
LABEL_REVISION: Final = f"{GROUP}/kv-revision"
"""On engine pods and their Deployment: a hash of what KV compatibility depends on. Gateways let no two engines of
different ones exchange KV blocks."""
LABEL_LLMD_ROLE: Final = "llm-d.ai/role"
"""The same role in llm-d's words, for its sidecars and tools."""

ANNOTATION_HARDWARE: Final = f"{GROUP}/hardware-profile"
"""On engine pods: the name of their HardwareProfile."""
ANNOTATION_CONFIG_HASH: Final = f"{GROUP}/config-hash"
"""On gateway pods: a hash of the settings that they do not reload; a change rolls them."""
ANNOTATION_REVISION: Final = f"{GROUP}/revision"
"""On engine pods: the revision of the pool's template."""
ANNOTATION_SPEC_HASH: Final = f"{GROUP}/spec-hash"
"""On the gateways' Deployment, HTTPRoutes and NetworkPolicies: a hash of the spec that the operator wrote."""
ANNOTATION_ALLOW_DELETION: Final = f"{GROUP}/allow-deletion"
"""On a SchedulingPolicy, ServiceLevelObjective or HardwareProfile, by people: `true` lets it be deleted although
ServingPools name it."""

ANNOTATION_DRAINING: Final = f"{GROUP}/draining-since"
"""On engine pods that the operator is about to take away: since when, RFC 3339 in UTC. Gateways send such a pod nothing
new and move out what can move; taking the annotation off takes that back."""
ANNOTATION_DRAINS: Final = f"{GROUP}/drains"
"""On engine Deployments: pods that are marked, or are about to be; empty when none is."""
ANNOTATION_CANARY: Final = f"{GROUP}/canary"
"""On engine Deployments of a new KV revision: how far its canary is."""
ANNOTATION_CANARY_SINCE: Final = f"{GROUP}/canary-since"
"""Beside it: when its pods were ready, RFC 3339 in UTC; empty until then."""
ANNOTATION_DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
"""Kubernetes' own: of a Deployment's ready pods those with the lowest go first."""
LOWEST_DELETION_COST: Final = "-2000000000"
"""A 32-bit number."""

ANNOTATION_POD_API: Final = f"{GROUP}/pod-api-port"
"""On pods whose agent or gateway speaks the pod API: its port."""
ANNOTATION_SETTINGS: Final = f"settings.{GROUP}/"
"""On the gateways' Lease, followed by a pod's name: a hash of the newest text of the settings that it has seen, and
after a space why it refuses that text, if it does."""
ANNOTATION_ROTATE_TOKEN: Final = f"{GROUP}/rotate-token"
"""On a ServingPool, by people: a new value rotates the pod API's token once."""
ANNOTATION_TOKEN_ROTATION: Final = f"{GROUP}/token-rotation"
"""On the token's Secret: the value of `ANNOTATION_ROTATE_TOKEN` that its newest token was made for."""
ANNOTATION_TOKEN_STEP: Final = f"{GROUP}/token-step"
"""On the token's Secret while it is rotated: `Announced` or `Signing`."""
ANNOTATION_TOKEN_STEP_TIME: Final = f"{GROUP}/token-step-time"
"""On the token's Secret while it is rotated: when that step began, RFC 3339 in UTC."""

APP_NAME: Final = "app.kubernetes.io/name"
APP_INSTANCE: Final = "app.kubernetes.io/instance"
APP_COMPONENT: Final = "app.kubernetes.io/component"
APP_PART_OF: Final = "app.kubernetes.io/part-of"
APP_MANAGED_BY: Final = "app.kubernetes.io/managed-by"

NODE_LABEL_HARDWARE: Final = f"{GROUP}/hardware"
"""Suggested label of nodes; the quickstart's HardwareProfiles select by it."""

ENGINE_CONTAINER: Final = "engine"
"""The container of a pool's template that Ballast fills in."""
GATEWAY_CONTAINER: Final = "gateway"
AGENT_CONTAINER: Final = "agent"
"""The sidecar of engine pods behind the picker face."""
GATEWAY_POOL_SEGMENT: Final = "gateway"
"""Reserved: no pool may have this name, it would collide with the gateway's objects."""
ENV_PROFILE: Final = "BALLAST_PROFILE"
"""Environment of engine containers: a file with the HardwareProfile's numbers (engine-sim takes its timing from it)."""
GATEWAY_CONFIG_FILE: Final = "gateway.yaml"
"""Key of the gateway's ConfigMap."""
GATEWAY_CONFIG_DIR: Final = "/etc/ballast"
"""Where the gateway's ConfigMap is mounted."""

TOKEN_KEY: Final = "token"
"""Key of the Secret with the pod API's tokens, one a line."""
TOKEN_DIR: Final = "/etc/ballast-token"
"""Where that Secret is mounted in agents and gateways."""

MAX_SERVING_POOL_NAME: Final = 40
MAX_POOL_NAME: Final = 20
MAX_CHILD_NAME: Final = 63

PORT_PROXY: Final = 8000
PORT_ENGINE: Final = 8000
PORT_EXT_PROC: Final = 9002
PORT_GRPC_HEALTH: Final = 9003
PORT_ADMIN: Final = 9090
PORT_POD_API: Final = 9004
"""Of agents and gateways alike; not for clients."""
PORT_ENGINE_BEHIND_AGENT: Final = 8200
"""On the pod's loopback; as behind llm-d's sidecar."""
PORT_NIXL: Final = 5600
"""vLLM's default VLLM_NIXL_SIDE_CHANNEL_PORT: decode engines fetch the KV layout there."""
PORT_MASTER: Final = 29501
"""vLLM's default --master-port: the nodes of an instance meet at the first one's."""
PORT_KV_EVENTS: Final = 5557
"""vLLM's default."""
PORT_KV_REPLAY: Final = 5657

GATEWAY_REQUESTS: Final = MappingProxyType({"cpu": "100m", "memory": "128Mi"})
"""Resource requests of a gateway's container, whoever makes its pod."""
PICKER_MESSAGE_TIMEOUT_S: Final = 60
"""Seconds that an Envoy waits for a picker's answer, where it counts them; a picker answers every request before."""

_CORE_ROLES: dict[str, CoreRole] = {
    "Prefill": CoreRole.PREFILL,
    "Decode": CoreRole.DECODE,
    "Flexible": CoreRole.FLEXIBLE,
}
_LLMD_ROLES = {CoreRole.PREFILL: "prefill", CoreRole.DECODE: "decode", CoreRole.FLEXIBLE: "prefill-decode"}


def core_role(role: RoleName) -> CoreRole:
    """The core's word for a role of the API; its value is the role label's value."""
    return _CORE_ROLES[role]


def llmd_role(role: CoreRole) -> str:
    """Value of `llm-d.ai/role`: llm-d calls an endpoint of both roles `prefill-decode`."""
    return _LLMD_ROLES[role]


def child_name(serving_pool: str, segment: str) -> str:
    """Name of a pool's (or the gateway's) objects. Raises ValueError when it is no DNS label of 63 characters."""
    name = f"{serving_pool}-{segment}"
    if len(name) > MAX_CHILD_NAME:
        raise ValueError(f"{name!r} has {len(name)} characters; Kubernetes allows {MAX_CHILD_NAME}")
    return name


def pool_object_name(serving_pool: str, pool: str) -> str:
    """Deployment, Service and PodDisruptionBudget of one pool."""
    return child_name(serving_pool, pool)


def gateway_object_name(serving_pool: str) -> str:
    """Deployment, Service, ServiceAccount, Role, RoleBinding, ConfigMap, HTTPRoute and Lease of the gateway."""
    return child_name(serving_pool, GATEWAY_POOL_SEGMENT)


def profiles_name(serving_pool: str) -> str:
    """ConfigMap with the numbers of the HardwareProfiles, for engine-sims."""
    return child_name(serving_pool, "profiles")


def scaling_name(serving_pool: str) -> str:
    """ConfigMap with what the operator decided on instances, and why."""
    return child_name(serving_pool, "scaling")


def gateway_token_name(serving_pool: str) -> str:
    """Secret with the tokens of the pod API."""
    return child_name(serving_pool, f"{GATEWAY_POOL_SEGMENT}-token")


def common_labels(serving_pool: str, component: Literal["engine", "gateway"]) -> dict[str, str]:
    """Labels of every object of a ServingPool."""
    return {
        APP_NAME: "ballast",
        APP_INSTANCE: serving_pool,
        APP_COMPONENT: component,
        APP_PART_OF: "ballast",
        APP_MANAGED_BY: MANAGER,
        LABEL_SERVING_POOL: serving_pool,
    }


def engine_labels(serving_pool: str, pool: str, role: CoreRole) -> dict[str, str]:
    """Labels of the engine pods of one pool."""
    return {
        **common_labels(serving_pool, "engine"),
        LABEL_POOL: pool,
        LABEL_ROLE: role.value,
        LABEL_LLMD_ROLE: llmd_role(role),
    }


def engine_match_labels(serving_pool: str, pool: str) -> dict[str, str]:
    """Selector of a pool's Deployment, Service and PodDisruptionBudget. The role is left out: it may change."""
    return {LABEL_SERVING_POOL: serving_pool, LABEL_POOL: pool, APP_COMPONENT: "engine"}


def gateway_match_labels(serving_pool: str) -> dict[str, str]:
    """Selector of the gateway's Deployment and Service."""
    return {LABEL_SERVING_POOL: serving_pool, APP_COMPONENT: "gateway"}


def endpoint_selector(serving_pool: str) -> str:
    """Label selector by which the gateway finds the engine pods of its ServingPool."""
    return f"{LABEL_SERVING_POOL}={serving_pool},{APP_COMPONENT}=engine"


def gateway_selector(serving_pool: str) -> str:
    """Label selector by which gateways find each other."""
    return ",".join(f"{key}={value}" for key, value in gateway_match_labels(serving_pool).items())
