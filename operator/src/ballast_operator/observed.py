"""What gathering has read: one frozen value that holds everything a plan and a verdict need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ballast_api.serving_pool import ParentRef
from ballast_operator.gateways.loads import Loads
from ballast_operator.gateways.measured import Measured
from ballast_operator.kinds import Kind, Manifest, ObjectKey, key_of
from ballast_operator.settings import GatewayDefaults


@dataclass(frozen=True, slots=True)
class Observed:
    """One ServingPool and its surroundings at one moment. Objects are as the API server gave them."""

    pool: Manifest
    """The ServingPool."""
    now: str
    """The moment, RFC 3339 in UTC."""
    gateway_defaults: GatewayDefaults
    """For what the spec leaves open about the gateway."""
    fresh_token: str = field(repr=False)
    """A token for the pod API that nobody knows yet."""
    policy: Manifest | None = None
    """The SchedulingPolicy of policyRef; None if none of that name exists."""
    objectives: Mapping[str, Manifest] = field(default_factory=dict)
    """Those ServiceLevelObjectives of the spec that exist, by name."""
    profiles: Mapping[str, Manifest] = field(default_factory=dict)
    """Those HardwareProfiles of the spec that exist, by name."""
    children: tuple[Manifest, ...] = ()
    """Objects whose controller is this ServingPool."""
    token_secret: Manifest | None = field(default=None, repr=False)
    """The Secret of the pod API's tokens; None if none of that name exists. It is among the children if it is one."""
    token_step_age_s: float | None = None
    """Seconds since the last step of the rotation of its tokens; None if it does not say."""
    network_policies: bool = True
    """Whether NetworkPolicies are wanted."""
    admin_from: tuple[Mapping[str, object], ...] = ()
    """Who may reach gateways' admin port; empty: everybody."""
    pods: tuple[Manifest, ...] = ()
    """Its pods while a Deployment is not ready, or may lose some, or is to grow within a budget, while numbers of
    hardware that the spec names no more are still there, or while a gateway says that it has other settings than it
    should. Empty otherwise: only problems of pods, their hardware, their GPUs while they end, and which gateways are
    there are read from them. Those of lost nodes, which end for ever, are left out."""
    pods_listed: bool = True
    """Whether `pods` are all of them; False where nobody asked."""
    marked_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds since each pod was marked as draining, by its name; 0 where that is not to be believed."""
    loads: Loads | None = None
    """What it takes to empty pods, where some may have to go; None if no gateway could be asked."""
    canary_ages_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds since canaries were ready, by the time that their Deployments say."""
    optional_kinds: frozenset[Kind] = frozenset()
    """Those optional kinds that the cluster has."""
    missing_parents: tuple[ParentRef, ...] = ()
    """Gateways of parentRefs that do not exist."""
    other_routes: tuple[Manifest, ...] = ()
    """HTTPRoutes in served namespaces that are not its children, where it has parents."""
    measured: Measured | None = None
    """What its gateways have counted; None until they have been asked."""
    controllers: frozenset[str] | None = None
    """Controllers of the Gateways of parentRefs, by their GatewayClasses; None where one is not known."""

    @property
    def name(self) -> str:
        """metadata.name of the ServingPool."""
        return str(self.pool["metadata"]["name"])

    @property
    def uid(self) -> str:
        """metadata.uid of the ServingPool."""
        return str(self.pool["metadata"].get("uid", ""))

    @property
    def generation(self) -> int | None:
        """metadata.generation of the ServingPool."""
        generation = self.pool["metadata"].get("generation")
        return None if generation is None else int(generation)

    @property
    def deleting(self) -> bool:
        """Whether the ServingPool is being deleted. Its children then go by their owner reference."""
        return bool(self.pool["metadata"].get("deletionTimestamp"))

    def child(self, key: ObjectKey) -> Manifest | None:
        """The child of that name, if it exists."""
        return next((child for child in self.children if key_of(child) == key), None)
