"""A ServingPool that is steered, without a cluster: the real reconciler and scaler against a store of objects.

Deployments get their pods at once, ready or not as a test wants it, and gateways say what a test has them say.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec

from ballast_api import names
from ballast_api.demand_report import BIN_S, BINS, DemandReport, Load, Seen
from ballast_api.hardware_profile import EngineProfile
from ballast_api.load_report import EndpointLoad
from ballast_api.profile_report import LearnedProfile
from ballast_core.profiles import SHIPPED_PROFILES
from ballast_operator.gateways.asking import NoAnswer
from ballast_operator.gateways.board import Board
from ballast_operator.gateways.gateway_pods import GatewayPod
from ballast_operator.gateways.loads import Loads
from ballast_operator.kinds import ENGINE_POOL, Manifest
from ballast_operator.profiles.lessons import Lessons
from ballast_operator.reconcile import Reconciler
from ballast_operator.scaling.helm import Helm
from ballast_operator.settings import OperatorSettings
from ballast_operator.steering.steering import Scaler
from tests.support.object_store import ObjectStore
from tests.support.operator_builders import (
    DEFAULTS,
    FRESH_TOKEN,
    NAMESPACE,
    UID,
    objective,
    pool,
    profile,
    serving_pool,
)

CHAT = (NAMESPACE, "chat")
H200 = EngineProfile.from_core(SHIPPED_PROFILES["h200-qwen3-32b"]).dump()
START_S = 1_800_000_000.0
GRACE_S = 30.0
"""Of pods that are deleted."""
BUSY_RPS, CALM_RPS = 40.0, 5.0


def autoscaled(name: str, role: str, least: int = 1, most: int = 8, **more: Any) -> Manifest:
    """A pool within bounds."""
    bounds = {"minReplicas": least, "maxReplicas": most, **more}
    return pool(name, role, hardware="h200", autoscaling=bounds)


def hardware(name: str = "h200", **spec: Any) -> Manifest:
    """A HardwareProfile with the numbers of a shipped one."""
    return profile(name, **{**H200, **spec})


def demand(
    unix_s: float, rate_rps: float, *, prompt: int = 1200, output: int = 300, decoding: int = 0, **more: Any
) -> DemandReport:
    """Steady traffic: like requests that came evenly in the last two minutes and have ended."""
    count = round(45 * rate_rps)
    requests = tuple(Seen(unix_s - 45 + k / rate_rps, prompt, output, True) for k in range(count))
    return DemandReport(
        unix_s=unix_s,
        since_unix_s=more.pop("since_unix_s", 0.0),
        arrivals=(round(BIN_S * rate_rps),) * BINS,
        requests=requests[-1000:],
        decoding=decoding,
        decoding_tokens=decoding * (prompt + output // 2),
        **more,
    )


@dataclass
class Fleet:
    """`rate_rps` requests come each second; None: gateways do not answer."""

    pools: Sequence[Manifest] = ()
    spec: dict[str, Any] = field(default_factory=dict)
    slo: dict[str, Any] = field(default_factory=lambda: {"ttftS": 5.0, "tpotS": 0.05, "attainment": 0.95})
    hardware: Sequence[Manifest] = ()
    rate_rps: float | None = 5.0
    lengths: dict[str, Any] = field(default_factory=dict)
    now_s: float = START_S
    set_by_s: float = 0.0
    """By so much somebody has set the operator's clock."""
    starts: bool = True
    """Whether new pods become ready."""
    ends: bool = True
    """Whether pods that are deleted are gone at once; else they stay until it is so again."""
    startup_s: float = 40.0
    held: int = 0
    """Requests on each pod that is to go."""
    learned: dict[str, LearnedProfile] = field(default_factory=dict)
    """What gateways say that they have learned when they are first asked."""

    def __post_init__(self) -> None:
        """A ServingPool that was looked at once."""
        known = (*(self.hardware or [hardware()]), objective("fast", **self.slo))
        self.store = ObjectStore(*known, optional=(ENGINE_POOL,))
        self.edit(**self.spec)
        self.restart()
        self._numbers = itertools.count()
        self.pods: dict[str, Manifest] = {}
        self.ending: list[str] = []
        self.loads: dict[str, Load] = {}
        self.due_s: float | None = None
        self.look()
        self.kubernetes()
        self.look()

    def edit(self, **spec: Any) -> None:
        """Write the ServingPool anew; its status stays."""
        before = self.store.objects.get(("ServingPool", *CHAT))
        given = {"ratio": {"mode": "Auto"}, "sloRef": {"name": "fast"}} | self.spec | spec
        if not given.get("sloRef"):
            given.pop("sloRef")
        pools = self.pools or [autoscaled("prefill", "Prefill"), autoscaled("decode", "Decode")]
        self.store.put(serving_pool(*pools, **given))
        if before is not None and "status" in before:
            self.store.objects["ServingPool", *CHAT]["status"] = before["status"]

    def restart(self) -> None:
        """Another operator."""
        board, settings = Board(), OperatorSettings(gateway=DEFAULTS)
        self.helm = helm = Helm()
        self.lessons = Lessons()
        self.reconciler = Reconciler(
            self.store,
            self.store,
            settings,
            self.time,
            lambda: FRESH_TOKEN,
            board=board,
            helm=helm,
            lessons=self.lessons,
            ask=self.held_by_pods,
        )
        self.changed: list[tuple[str, str]] = []
        self.scaler = Scaler(
            self.store,
            board,
            helm,
            self.changed.append,
            ask=self.answers,
            unix_s=lambda: self.now_s + self.set_by_s,
            steady_s=lambda: self.now_s,
        )
        self.scaler.lessons = self.lessons

    def time(self) -> str:
        """Now, by the operator's clock."""
        return _rfc3339(self.now_s + self.set_by_s)

    def look(self) -> None:
        """One look of the operator."""
        self.due_s = self.reconciler.serving_pool(*CHAT).requeue_s

    def held_by_pods(self, pods: Sequence[Manifest], token: bytes) -> Loads:
        """What gateways say of pods that are to go: each has `held` requests."""
        marked = {each["metadata"]["name"] for each in pods if _notes(each).get(names.ANNOTATION_DRAINING)}
        return Loads(
            {
                name: EndpointLoad(name=name, draining=name in marked, requests=self.held, engine_age_s=0.5)
                for name in self.pods
            }
        )

    def answers(self, asked: Sequence[tuple[GatewayPod, bytes]]) -> list[DemandReport | BaseException]:
        """What gateways say: each has its share of the traffic."""
        assert all(token == FRESH_TOKEN.encode() for _, token in asked)
        if self.rate_rps is None or not asked:
            return [NoAnswer("no answer within 3 s") for _ in asked]
        one = demand(self.now_s, self.rate_rps / len(asked) or 1e-9, **self.lengths)
        first = msgspec.structs.replace(one, endpoints=self.loads)
        return [first, *(one for _ in asked[1:])]

    def round(self, rounds: int = 1) -> None:
        """So many rounds, each with the looks that were due before, that which it brings, and what Kubernetes does."""
        for _ in range(rounds):
            end_s = self.now_s + 15.0
            while self.due_s is not None and self.now_s + self.due_s < end_s:
                self.now_s += self.due_s
                self.look()
                self.kubernetes()
            self.now_s = end_s
            self.kubernetes()
            self.changed.clear()
            self.ask()
            self.scaler.steer()
            if self.changed:
                self.look()

    def ask(self) -> None:
        """Gateways that have not been asked yet what they have learned are asked."""
        for name in self.lessons.unasked():
            self.lessons.answered(name, self.lessons.followed()[name].uid, self.learned, self.now_s)

    def counts(self) -> dict[str, int]:
        """Replicas of the pools' Deployments, by name of the pool."""
        return {
            key[2].removeprefix("chat-"): item["spec"]["replicas"]
            for key, item in self.store.objects.items()
            if key[0] == "Deployment" and key[2] != "chat-gateway"
        }

    def roles(self) -> dict[str, str]:
        """Role labels of the engine pods, by name of the pod."""
        labels = {name: manifest["metadata"]["labels"] for name, manifest in self.pods.items() if "gateway" not in name}
        return {name: each["serving.ballast.dev/role"] for name, each in labels.items()}

    @property
    def status(self) -> Manifest:
        """Of the ServingPool."""
        found: Manifest = self.store.objects["ServingPool", *CHAT]["status"]
        return found

    @property
    def said(self) -> Manifest:
        """status.lastScaling."""
        found: Manifest = self.status["lastScaling"]
        return found

    def active(self) -> tuple[str, str]:
        """Status and reason of ScalingActive."""
        each = next(each for each in self.status["conditions"] if each["type"] == "ScalingActive")
        return each["status"], each["reason"]

    @property
    def decisions(self) -> Manifest | None:
        """The ConfigMap."""
        return self.store.objects.get(("ConfigMap", NAMESPACE, "chat-scaling"))

    def kubernetes(self) -> None:
        """Deployments get their pods."""
        self.store.run_deployments()
        for (kind, _, name), item in list(self.store.objects.items()):
            if kind != "Deployment":
                continue
            labels = item["spec"]["template"]["metadata"]["labels"]
            own = [each for each, manifest in self.pods.items() if manifest["metadata"]["deployment"] == name]
            own.sort(key=lambda each: -int(_notes(self.pods[each]).get(names.ANNOTATION_DELETION_COST, "0")))
            for gone in own[item["spec"]["replicas"] :]:
                del self.pods[gone]
                metadata = self.store.objects["Pod", NAMESPACE, gone]["metadata"]
                metadata["deletionTimestamp"] = _rfc3339(self.now_s + GRACE_S)
                self.ending.append(gone)
            for _ in range(item["spec"]["replicas"] - len(own)):
                self._create(name, labels)
        for manifest in self.pods.values():
            self._ready(manifest)
        while self.ends and self.ending:
            del self.store.objects["Pod", NAMESPACE, self.ending.pop()]

    def _create(self, deployment: str, labels: dict[str, str]) -> None:
        name = f"{deployment}-{next(self._numbers)}"
        metadata = {
            "name": name,
            "namespace": NAMESPACE,
            "uid": f"uid-{name}",
            "labels": {"app.kubernetes.io/managed-by": "ballast-operator", **labels},
            "creationTimestamp": _rfc3339(self.now_s),
            "deployment": deployment,
        }
        conditions = [{"type": "Ready", "status": "False", "lastTransitionTime": _rfc3339(self.now_s)}]
        status = {"phase": "Running", "podIP": "127.0.0.2", "conditions": conditions}
        manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": status}
        self.store.put(manifest)
        self.pods[name] = self.store.objects["Pod", NAMESPACE, name]

    def _ready(self, manifest: Manifest) -> None:
        [condition] = manifest["status"]["conditions"]
        created_s = datetime.fromisoformat(manifest["metadata"]["creationTimestamp"]).timestamp()
        if condition["status"] == "False" and self.starts and self.now_s >= created_s + self.startup_s:
            condition |= {"status": "True", "lastTransitionTime": _rfc3339(created_s + self.startup_s)}


def busy(**more: Any) -> Fleet:
    """A fleet that has grown with its traffic."""
    fleet = Fleet(**more)
    fleet.rate_rps = BUSY_RPS
    fleet.round(8)
    return fleet


def _rfc3339(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _notes(pod: Manifest) -> dict[str, str]:
    found: dict[str, str] | None = pod["metadata"].get("annotations")
    return found or {}


__all__ = ["CHAT", "GRACE_S", "START_S", "UID", "Fleet", "autoscaled", "demand", "hardware"]
