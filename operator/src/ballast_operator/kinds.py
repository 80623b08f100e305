"""The kinds that the operator reads and writes: their paths on the API server, and the order of writing.

This is the one table of kinds. What is watched, listed, written, pruned and ordered is read from it, and a test holds
the chart's rights against it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from ballast_api.common import API_VERSION

Manifest: TypeAlias = dict[str, Any]
"""A Kubernetes object as plain data, as in YAML."""


@dataclass(frozen=True, slots=True, order=True)
class ObjectKey:
    """Names one object within its namespace."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind at one version."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool = True

    @property
    def group(self) -> str:
        """API group; empty for Kubernetes' core."""
        return self.api_version.rpartition("/")[0]

    @property
    def version(self) -> str:
        """Version within the group."""
        return self.api_version.rpartition("/")[2]

    def key(self, name: str) -> ObjectKey:
        """Names one object of this kind."""
        return ObjectKey(self.kind, name)

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        """Path on the API server: of an object, or of the collection without `name` (all namespaces without one)."""
        parts = ["", "apis" if "/" in self.api_version else "api", self.api_version]
        if self.namespaced and namespace is not None:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        return "/".join(parts + [part for part in (name, subresource) if part is not None])


SERVING_POOL: Final = Kind(API_VERSION, "ServingPool", "servingpools")
SCHEDULING_POLICY: Final = Kind(API_VERSION, "SchedulingPolicy", "schedulingpolicies")
OBJECTIVE: Final = Kind(API_VERSION, "ServiceLevelObjective", "servicelevelobjectives")
ENGINE_POOL: Final = Kind(API_VERSION, "EnginePool", "enginepools")
HARDWARE_PROFILE: Final = Kind(API_VERSION, "HardwareProfile", "hardwareprofiles", namespaced=False)

SERVICE_ACCOUNT: Final = Kind("v1", "ServiceAccount", "serviceaccounts")
ROLE: Final = Kind("rbac.authorization.k8s.io/v1", "Role", "roles")
ROLE_BINDING: Final = Kind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings")
SECRET: Final = Kind("v1", "Secret", "secrets")
LEASE: Final = Kind("coordination.k8s.io/v1", "Lease", "leases")
CONFIG_MAP: Final = Kind("v1", "ConfigMap", "configmaps")
SERVICE: Final = Kind("v1", "Service", "services")
DISRUPTION_BUDGET: Final = Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
NETWORK_POLICY: Final = Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
DEPLOYMENT: Final = Kind("apps/v1", "Deployment", "deployments")
POD: Final = Kind("v1", "Pod", "pods")
EVENT: Final = Kind("v1", "Event", "events")

INFERENCE_POOL: Final = Kind("inference.networking.k8s.io/v1", "InferencePool", "inferencepools")
HTTP_ROUTE: Final = Kind("gateway.networking.k8s.io/v1", "HTTPRoute", "httproutes")
GATEWAY: Final = Kind("gateway.networking.k8s.io/v1", "Gateway", "gateways")
GATEWAY_CLASS: Final = Kind("gateway.networking.k8s.io/v1", "GatewayClass", "gatewayclasses", namespaced=False)
LEADER_WORKER_SET: Final = Kind("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "leaderworkersets")
EXTENSION_POLICY: Final = Kind("gateway.envoyproxy.io/v1alpha1", "EnvoyExtensionPolicy", "envoyextensionpolicies")
TRAFFIC_POLICY: Final = Kind("gateway.envoyproxy.io/v1alpha1", "BackendTrafficPolicy", "backendtrafficpolicies")

REFERRED: Final = (SCHEDULING_POLICY, OBJECTIVE, HARDWARE_PROFILE)
"""Custom resources that a ServingPool names."""
NAMED_CHILDREN: Final = (SECRET, LEASE)
"""Children that are read by their names, neither listed nor watched: the operator sees no Secret but its own, and is
not told each time that a Lease is renewed. They are written before all others."""
BUILT_IN_CHILDREN: Final = (
    SERVICE_ACCOUNT,
    ROLE,
    ROLE_BINDING,
    CONFIG_MAP,
    SERVICE,
    DISRUPTION_BUDGET,
    NETWORK_POLICY,
    DEPLOYMENT,
)
"""Other children whose kind every cluster has, in the order of writing: what a pod needs comes before the pod."""
OPTIONAL_CHILDREN: Final = (
    ENGINE_POOL,
    LEADER_WORKER_SET,
    INFERENCE_POOL,
    HTTP_ROUTE,
    EXTENSION_POLICY,
    TRAFFIC_POLICY,
)
"""Children whose kind exists only where its CRD is installed, in the order of writing, after the built-in ones."""
WORKLOADS: Final = (DEPLOYMENT, LEADER_WORKER_SET)
"""Children that make pods; their counts have the same names."""
CHILDREN: Final = NAMED_CHILDREN + BUILT_IN_CHILDREN + OPTIONAL_CHILDREN
"""Every kind of child in the order of writing. Pruning goes the other way: consumers go before what they use."""

WATCHED: Final = (SERVING_POOL, *REFERRED, GATEWAY, GATEWAY_CLASS, HTTP_ROUTE)
"""Kinds of which every object is watched, in the namespaces that are served: routes of others may match like ours..."""
WATCHED_ANYWHERE: Final = frozenset({GATEWAY})
"""...and of these in all namespaces: ServingPools name them across namespaces."""
WATCHED_BY_LABEL: Final = tuple(kind for kind in (*BUILT_IN_CHILDREN, *OPTIONAL_CHILDREN, POD) if kind not in WATCHED)
"""Kinds of which those objects are watched that say that Ballast manages them."""

_BY_NAME: Final = {(kind.api_version, kind.kind): kind for kind in (*CHILDREN, POD)}


def kind_of(manifest: Manifest) -> Kind:
    """The kind of a child, or of a pod. Raises KeyError for any other."""
    return _BY_NAME[manifest["apiVersion"], manifest["kind"]]


def key_of(manifest: Manifest) -> ObjectKey:
    """The name of an object."""
    return ObjectKey(manifest["kind"], manifest["metadata"]["name"])


def writing_order(manifest: Manifest) -> tuple[int, str]:
    """Sorts children into the order of writing: by kind, then by name. Raises KeyError for a kind of no child."""
    return CHILDREN.index(kind_of(manifest)), str(manifest["metadata"]["name"])
