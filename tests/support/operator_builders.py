"""Objects as the API server gives them, with quiet defaults: a test shows only what matters to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ballast_operator.gateways.board import Board
from ballast_operator.gateways.loads import Loads
from ballast_operator.kinds import GATEWAY, Manifest
from ballast_operator.observed import Observed
from ballast_operator.outcome import Outcome, Refusal
from ballast_operator.planning.plan import plan
from ballast_operator.reading.users import Users
from ballast_operator.reconcile import Reconciler
from ballast_operator.settings import GatewayDefaults, OperatorSettings
from ballast_operator.status.verdict import Verdict, verdict
from tests.support.object_store import ObjectStore

NOW = "2026-11-21T06:00:00Z"
LATER = "2026-11-21T06:05:00Z"
NAMESPACE = "team"
UID = "11111111-2222-3333-4444-555555555555"
FRESH_TOKEN = "f4e5" * 16
DEFAULTS = GatewayDefaults(image="registry.test/ballast:1")
API_VERSION = "serving.ballast.dev/v1alpha1"


def pool(name: str, role: str, *, replicas: int = 2, hardware: str = "h20", **more: Any) -> Manifest:
    """An entry of spec.pools. `autoscaling=` replaces `replicas`."""
    entry: Manifest = {"name": name, "role": role, "hardware": hardware, **more}
    return entry if "autoscaling" in more else {**entry, "replicas": replicas}


def serving_pool(
    *pools: Manifest,
    name: str = "chat",
    generation: int = 1,
    status: Manifest | None = None,
    gateway: Manifest | None = None,
    **spec: Any,
) -> Manifest:
    """A ServingPool; one prefill and one decode pool unless `pools` says otherwise."""
    metadata = {"name": name, "namespace": NAMESPACE, "uid": UID, "generation": generation}
    content = {
        "model": {"name": "org/model"},
        "engine": {"image": "registry.test/engine:1"},
        "pools": list(pools) or [pool("prefill", "Prefill", hardware="a100"), pool("decode", "Decode", replicas=4)],
        "gateway": {"replicas": 1, **(gateway or {})},
        **spec,
    }
    result: Manifest = {"apiVersion": API_VERSION, "kind": "ServingPool", "metadata": metadata, "spec": content}
    return result if status is None else {**result, "status": status}


def profile(name: str, *, gpus: int = 1, **spec: Any) -> Manifest:
    """A HardwareProfile."""
    numbers = {
        "gpus": gpus,
        "overheadMs": 1.0,
        "aMs": 16.0,
        "dMsPerToken": 0.1,
        "kMsPerKvToken": 1e-5,
        "sMsPerPair": 1e-6,
        "bMsPerSeq": 0.05,
        "kvTokens": 100_000,
        "kvBytesPerToken": 262_144,
        "nodeSelector": {"hardware": name},
        **spec,
    }
    metadata = {"name": name, "uid": f"profile-{name}", "generation": 1}
    return {"apiVersion": API_VERSION, "kind": "HardwareProfile", "metadata": metadata, "spec": numbers}


def policy(name: str = "fair", placement: str = "round-robin", **parts: Manifest) -> Manifest:
    """A SchedulingPolicy; `parts` are those beyond placements."""
    metadata = {"name": name, "namespace": NAMESPACE, "uid": f"policy-{name}", "generation": 1}
    spec = {"prefill": {"type": placement}, "decode": {"type": placement}, **parts}
    return {"apiVersion": API_VERSION, "kind": "SchedulingPolicy", "metadata": metadata, "spec": spec}


def objectives(*manifests: Manifest) -> dict[str, Manifest]:
    """ServiceLevelObjectives by name."""
    return {manifest["metadata"]["name"]: manifest for manifest in manifests}


def objective(name: str = "fast", **spec: Any) -> Manifest:
    """A ServiceLevelObjective."""
    metadata = {"name": name, "namespace": NAMESPACE, "uid": f"slo-{name}", "generation": 1}
    return {
        "apiVersion": API_VERSION,
        "kind": "ServiceLevelObjective",
        "metadata": metadata,
        "spec": spec or {"ttftS": 2.0},
    }


def profiles(*names: str) -> dict[str, Manifest]:
    """HardwareProfiles by name."""
    return {name: profile(name) for name in names or ("a100", "h20")}


def observed(pool_manifest: Manifest | None = None, **more: Any) -> Observed:
    """Everything that a plan needs; all profiles exist unless said otherwise."""
    content: dict[str, Any] = {"profiles": profiles(), "now": NOW, "gateway_defaults": DEFAULTS, **more}
    return Observed(pool=pool_manifest or serving_pool(), fresh_token=FRESH_TOKEN, **content)


def judged(situation: Observed, *refusals: Refusal) -> Verdict:
    """The verdict when everything is written that is planned, but for `refusals`."""
    return verdict(situation, plan(situation), Outcome(refusals=refusals))


def status_of(situation: Observed, *refusals: Refusal) -> Manifest:
    """The status of that verdict."""
    status = judged(situation, *refusals).status
    assert status is not None
    return status


def deployment(name: str, *, wanted: int = 1, ready: int | None = None, **status: Any) -> Manifest:
    """A Deployment of ours with a status; complete unless numbers say otherwise."""
    counts = {"replicas": wanted, "readyReplicas": wanted if ready is None else ready, "updatedReplicas": wanted}
    metadata = {
        "name": name,
        "namespace": NAMESPACE,
        "uid": f"uid-{name}",
        "generation": 1,
        "ownerReferences": [{"kind": "ServingPool", "name": "chat", "uid": UID, "controller": True}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata,
        "spec": {"replicas": wanted},
        "status": {"observedGeneration": 1, **counts, **status},
    }


def all_ready() -> tuple[Manifest, ...]:
    """The Deployments of the default ServingPool, complete."""
    return (
        deployment("chat-gateway"),
        deployment("chat-prefill", wanted=2),
        deployment("chat-decode", wanted=4),
    )


def pod(name: str, *, pool_name: str = "decode", waiting: tuple[str, str] | None = None, **status: Any) -> Manifest:
    """A pod; `waiting` is reason and message of its container's state."""
    if waiting is not None:
        status["containerStatuses"] = [{"state": {"waiting": {"reason": waiting[0], "message": waiting[1]}}}]
    metadata = {"name": name, "namespace": NAMESPACE, "labels": {"serving.ballast.dev/pool": pool_name}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": status}


def reconciler(
    store: ObjectStore,
    *,
    now: str = NOW,
    board: Board | None = None,
    users: Users | None = None,
    namespaces: tuple[str, ...] = (),
    ask: Callable[[Sequence[Manifest], bytes], Loads] | None = None,
) -> Reconciler:
    """The real one, against a store."""
    settings = OperatorSettings(gateway=DEFAULTS, namespaces=namespaces)
    return Reconciler(store, store, settings, lambda: now, lambda: FRESH_TOKEN, board=board, users=users, ask=ask)


FRONT: Manifest = {
    "apiVersion": GATEWAY.api_version,
    "kind": GATEWAY.kind,
    "metadata": {"name": "front", "namespace": NAMESPACE, "uid": "front"},
}
"""A Gateway."""


def with_all_references() -> Manifest:
    """A ServingPool that names a policy, an objective and that Gateway, and serves both faces."""
    return serving_pool(
        policyRef={"name": "fair"},
        sloRef={"name": "fast"},
        gateway={"face": "Both", "parentRefs": [{"name": "front"}]},
    )


def referred() -> tuple[Manifest, ...]:
    """What it names, but for the Gateway."""
    return profile("a100"), profile("h20"), policy(), objective()


def stored_condition(store: ObjectStore, kind: str, *, name: str = "chat") -> Manifest:
    """A condition of the ServingPool in the store."""
    conditions = store.objects["ServingPool", NAMESPACE, name]["status"]["conditions"]
    return next(dict(item) for item in conditions if item["type"] == kind)
