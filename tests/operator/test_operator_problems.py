"""Every problem as the status words it: field, what is wrong, fix. Situation in, the whole message of Degraded out."""

from __future__ import annotations

from typing import Any

import pytest

from ballast_api.serving_pool import ParentRef
from ballast_operator.kinds import DEPLOYMENT, GATEWAY, HTTP_ROUTE, LEADER_WORKER_SET, SERVICE, Manifest
from ballast_operator.observed import Observed
from ballast_operator.outcome import Refusal
from tests.support.operator_builders import (
    deployment,
    observed,
    pod,
    policy,
    pool,
    profile,
    profiles,
    serving_pool,
    status_of,
)

FAIR: dict[str, Any] = {"policyRef": {"name": "fair"}}
FRONT: dict[str, Any] = {"parentRefs": [{"name": "front"}, {"name": "back", "namespace": "edge"}]}


def refusing(message: str) -> Manifest:
    """The condition of a Deployment whose pods are refused."""
    return {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": message}


SENTENCES: list[tuple[str, Observed, tuple[Refusal, ...], str]] = [
    (
        "no-policy",
        observed(serving_pool(**FAIR)),
        (),
        "spec.policyRef: SchedulingPolicy fair does not exist; create it, or name one that exists",
    ),
    (
        "policy-not-valid",
        observed(serving_pool(**FAIR), policy=policy(surprise={})),
        (),
        "spec.policyRef: SchedulingPolicy fair is not valid: "
        "spec.surprise: is not a field here; remove it, or use one of admission, decode, partition, prefill, queue, "
        "rescheduling",
    ),
    (
        "policy-not-suited",
        observed(serving_pool(pool("it", "Flexible"), **FAIR), policy=policy(partition={"type": "fixed"})),
        (),
        "spec.policyRef: SchedulingPolicy fair: partition: the engines cannot read the KV of a part of a prompt: set "
        "kv_connector_extra_config: {bidirectional_kv_xfer: true} in spec.engine.kvConnector.config (engines restart), "
        "or leave it out",
    ),
    (
        "no-objective",
        observed(serving_pool(sloRef={"name": "fast"})),
        (),
        "spec.sloRef: ServiceLevelObjective fast does not exist; create it, or name one that exists",
    ),
    (
        "no-profile",
        observed(serving_pool(pool("a", "Prefill"), pool("b", "Decode"), pool("c", "Decode")), profiles={}),
        (),
        "spec.pools[0].hardware: HardwareProfile h20 of pools a, b, c does not exist; "
        "create it, or name one that exists",
    ),
    (
        "no-parent",
        observed(
            serving_pool(gateway=FRONT),
            optional_kinds=frozenset({GATEWAY, HTTP_ROUTE}),
            missing_parents=(ParentRef(name="back", namespace="edge"),),
        ),
        (),
        "spec.gateway.parentRefs[1]: Gateway edge/back does not exist; create it, or name one that exists",
    ),
    (
        "no-gateway-api",
        observed(serving_pool(gateway=FRONT)),
        (),
        "spec.gateway.parentRefs: no HTTPRoute: the cluster does not have HTTPRoute (gateway.networking.k8s.io/v1); "
        "install the Gateway API, or leave parentRefs out",
    ),
    (
        "no-api-for-the-picker",
        observed(serving_pool(gateway={"face": "Picker", **FRONT}), optional_kinds=frozenset({GATEWAY, HTTP_ROUTE})),
        (),
        "spec.gateway.face: no HTTPRoute: face Picker needs an Envoy that asks the picker, by InferencePool "
        "(inference.networking.k8s.io/v1) or by EnvoyExtensionPolicy (gateway.envoyproxy.io/v1alpha1); the cluster has "
        "neither; install one of them, or set face: Proxy",
    ),
    (
        "over-budget",
        observed(serving_pool(gpuBudget=7), profiles={**profiles("h20"), "a100": profile("a100", gpus=2)}),
        (),
        "spec.gpuBudget: the pools ask for 4 (prefill) + 4 (decode) = 8 GPUs, the budget is 7; no pool was changed; "
        "raise it, or ask for fewer instances",
    ),
    (
        "several-nodes",
        observed(serving_pool(pool("it", "Flexible", nodesPerInstance=2))),
        (),
        "spec.pools[0].nodesPerInstance: pool it waits: an instance on 2 nodes is a group of a LeaderWorkerSet, and "
        "the cluster does not have LeaderWorkerSet (leaderworkerset.x-k8s.io/v1); install LeaderWorkerSet (helm "
        "install lws oci://registry.k8s.io/lws/charts/lws --namespace lws-system --create-namespace), or set it to 1",
    ),
    (
        "name-of-the-gateways",
        observed(serving_pool(pool("it", "Flexible"), pool("gateway-admin", "Flexible"))),
        (),
        "spec.pools[1].name: the name gateway-admin is taken by the gateway's own objects; choose another",
    ),
    (
        "two-fields-not-valid",
        observed(serving_pool(model={"name": ""}, gateway={"replicas": -1})),
        (),
        "spec.model.name: must not be empty; spec.gateway.replicas: must be 0 or more, not -1",
    ),
    (
        "refused",
        observed(),
        (Refusal(DEPLOYMENT.key("chat-decode"), "exceeded quota"),),
        "Deployment chat-decode: exceeded quota",
    ),
    (
        "taken",
        observed(),
        (Refusal(SERVICE.key("chat-decode"), "exists and was not made by Ballast", taken=True),),
        "Service chat-decode: exists and was not made by Ballast; delete it or rename the ServingPool",
    ),
    (
        "pods",
        observed(pods=tuple(pod(name, waiting=("ErrImagePull", "no such image")) for name in ("b", "a"))),
        (),
        "decode: 2 pods, such as a: ErrImagePull: no such image",
    ),
    (
        "refused-pods",
        observed(
            children=(
                deployment("chat-gateway"),
                deployment("chat-prefill", wanted=2, ready=1, conditions=[refusing("pods is forbidden: gpus")]),
                deployment("chat-decode-1f", wanted=4, ready=0, conditions=[refusing("exceeded quota: gpus")]),
                deployment("chat-decode", wanted=4, conditions=[{**refusing("no more"), "status": "False"}]),
                {
                    **deployment("chat-decode-2n", conditions=[refusing("a set says this otherwise")]),
                    "apiVersion": LEADER_WORKER_SET.api_version,
                    "kind": LEADER_WORKER_SET.kind,
                },
            )
        ),
        (),
        "Deployment chat-decode-1f: exceeded quota: gpus; Deployment chat-prefill: pods is forbidden: gpus",
    ),
]


@pytest.mark.parametrize(
    ("situation", "refusals", "expected"), [case[1:] for case in SENTENCES], ids=[case[0] for case in SENTENCES]
)
def test_a_problem_names_the_field_what_is_wrong_and_the_fix(
    situation: Observed, refusals: tuple[Refusal, ...], expected: str
) -> None:
    """Word for word: people read it in `kubectl describe`."""
    (degraded,) = [item for item in status_of(situation, *refusals)["conditions"] if item["type"] == "Degraded"]
    assert degraded["message"] == expected
