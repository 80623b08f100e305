"""The verdict as a table: situation in, conditions and counts out."""

from __future__ import annotations

from typing import Any

import pytest

from ballast_api.loading import parse_settings
from ballast_api.scheduling_policy import SchedulingPolicySpec
from ballast_operator.kinds import (
    DEPLOYMENT,
    SERVICE,
)
from ballast_operator.observed import Observed
from ballast_operator.outcome import Outcome, Refusal
from ballast_operator.planning.plan import plan
from ballast_operator.status.verdict import verdict
from tests.support.operator_builders import (
    all_ready,
    deployment,
    judged,
    objective,
    objectives,
    observed,
    pod,
    policy,
    pool,
    profile,
    profiles,
    serving_pool,
    status_of,
)
from tests.support.operator_plans import TWO_GPU_PREFILL, condition, find, message, objects

FLEXIBLE = (pool("all", "Flexible", replicas=4),)
PROMPT_CUTS = {"type": "libra", "parameters": {"cuts": "prompt"}}
OPEN = {"type": "open"}
READS_PARTS = {
    "image": "registry.test/engine:1",
    "kvConnector": {"config": {"kv_connector_extra_config": {"bidirectional_kv_xfer": True}}},
}
CONDITIONS: list[tuple[str, Observed, dict[str, tuple[str, str]]]] = [
    (
        "nothing-yet",
        observed(),
        {"Available": ("False", "PrefillNotReady"), "Progressing": ("True", "Scaling"), "SLOMet": ("Unknown", "NoSLO")},
    ),
    (
        "all-ready",
        observed(children=all_ready()),
        {
            "Available": ("True", "Ready"),
            "Progressing": ("False", "Complete"),
            "Degraded": ("False", "AsExpected"),
            "ResolvedRefs": ("True", "RefsResolved"),
        },
    ),
    (
        "one-of-each-is-enough-to-serve",
        observed(
            children=(
                deployment("chat-gateway"),
                deployment("chat-prefill", wanted=2, ready=1),
                deployment("chat-decode", wanted=4, ready=1),
            )
        ),
        {"Available": ("True", "Ready"), "Progressing": ("True", "Scaling")},
    ),
    (
        "no-decode",
        observed(children=(deployment("chat-prefill", wanted=2), deployment("chat-decode", wanted=4, ready=0))),
        {"Available": ("False", "DecodeNotReady")},
    ),
    (
        "no-gateway",
        observed(children=(deployment("chat-gateway", ready=0), *all_ready()[1:])),
        {"Available": ("False", "GatewayNotReady")},
    ),
    (
        "scaled-to-zero",
        observed(serving_pool(pool("p", "Prefill"), pool("d", "Decode", replicas=0)), children=all_ready()),
        {"Available": ("False", "PrefillNotReady")},
    ),
    (
        "decode-scaled-to-zero",
        observed(
            serving_pool(pool("p", "Prefill"), pool("d", "Decode", replicas=0)),
            children=(deployment("chat-p", wanted=2), deployment("chat-gateway")),
        ),
        {"Available": ("False", "ScaledToZero")},
    ),
    (
        "rolling-out",
        observed(children=(*all_ready()[:2], deployment("chat-decode", wanted=4, replicas=5, updatedReplicas=1))),
        {"Available": ("True", "Ready"), "Progressing": ("True", "RollingOut")},
    ),
    (
        "not-seen-by-the-deployment-controller",
        observed(children=(*all_ready()[:2], deployment("chat-decode", wanted=4, observedGeneration=0))),
        {"Progressing": ("True", "Scaling")},
    ),
    (
        "stuck",
        observed(
            children=(
                *all_ready()[:2],
                deployment(
                    "chat-decode",
                    wanted=4,
                    ready=1,
                    conditions=[{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}],
                ),
            )
        ),
        {
            "Available": ("True", "Ready"),
            "Progressing": ("False", "ProgressDeadlineExceeded"),
            "Degraded": ("True", "ProgressDeadlineExceeded"),
        },
    ),
    (
        "pods-refused",
        observed(
            children=(
                *all_ready()[:2],
                deployment(
                    "chat-decode",
                    wanted=4,
                    replicas=1,
                    ready=1,
                    conditions=[{"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate"}],
                ),
            )
        ),
        {
            "Available": ("True", "Ready"),
            "Progressing": ("True", "Scaling"),
            "Degraded": ("True", "PodsRefused"),
        },
    ),
    (
        "no-policy",
        observed(serving_pool(policyRef={"name": "fair"})),
        {
            "Degraded": ("True", "PolicyNotFound"),
            "ResolvedRefs": ("False", "PolicyNotFound"),
            "Progressing": ("False", "PolicyNotFound"),
        },
    ),
    (
        "no-profile",
        observed(profiles=profiles("h20")),
        {"Degraded": ("True", "ProfileNotFound"), "ResolvedRefs": ("False", "ProfileNotFound")},
    ),
    (
        "profile-without-sense",
        observed(profiles={**profiles("h20"), "a100": profile("a100", kvTokens=1)}),
        {"Degraded": ("True", "ProfileInvalid"), "ResolvedRefs": ("False", "ProfileInvalid")},
    ),
    (
        "policy-of-another-release",
        observed(serving_pool(policyRef={"name": "fair"}), policy=policy(placement="crystal-ball")),
        {"Degraded": ("True", "PolicyInvalid"), "ResolvedRefs": ("False", "PolicyInvalid")},
    ),
    (
        "policy-that-this-fleet-cannot-carry-out",
        observed(serving_pool(policyRef={"name": "fair"}), policy=policy(partition={"type": "fixed"})),
        {"Degraded": ("True", "PolicyUnsuited"), "ResolvedRefs": ("True", "RefsResolved")},
    ),
    (
        "cuts-that-these-engines-cannot-carry-out",
        observed(serving_pool(*FLEXIBLE, policyRef={"name": "fair"}), policy=policy(partition=PROMPT_CUTS)),
        {"Degraded": ("True", "PolicyUnsuited")},
    ),
    (
        "cuts-that-no-face-carries-out",
        observed(
            serving_pool(*FLEXIBLE, policyRef={"name": "fair"}, engine=READS_PARTS),
            policy=policy(partition={"type": "libra"}),
        ),
        {"Degraded": ("True", "PolicyUnsuited")},
    ),
    (
        "cuts-of-prompts",
        observed(
            serving_pool(*FLEXIBLE, policyRef={"name": "fair"}, engine=READS_PARTS),
            policy=policy(partition=PROMPT_CUTS),
            children=(deployment("chat-all", wanted=4), deployment("chat-gateway")),
        ),
        {"Degraded": ("False", "AsExpected")},
    ),
    (
        "policy-that-makes-no-sense",
        observed(serving_pool(policyRef={"name": "fair"}), policy=policy(queue={"type": "las"}, admission=OPEN)),
        {"Degraded": ("True", "PolicyInvalid"), "ResolvedRefs": ("False", "PolicyInvalid")},
    ),
    (
        "no-objective",
        observed(serving_pool(sloRef={"name": "fast"}), children=all_ready()),
        {
            "Available": ("True", "Ready"),
            "Degraded": ("True", "SLONotFound"),
            "ResolvedRefs": ("False", "SLONotFound"),
            "SLOMet": ("Unknown", "SLONotFound"),
        },
    ),
    (
        "objective-not-measured",
        observed(serving_pool(sloRef={"name": "fast"}), objectives=objectives(objective()), children=all_ready()),
        {"SLOMet": ("Unknown", "NotMeasured"), "Degraded": ("False", "AsExpected")},
    ),
    (
        "over-budget",
        observed(serving_pool(gpuBudget=7), profiles=TWO_GPU_PREFILL),
        {"Degraded": ("True", "GPUBudgetExceeded")},
    ),
    (
        "several-nodes",
        observed(serving_pool(pool("it", "Flexible", nodesPerInstance=2))),
        {"Degraded": ("True", "APINotInstalled"), "Progressing": ("False", "APINotInstalled")},
    ),
    (
        "not-a-spec",
        observed(serving_pool(model={"name": ""})),
        {"Degraded": ("True", "InvalidSpec"), "Progressing": ("False", "InvalidSpec")},
    ),
    (
        "a-pool-with-a-name-of-the-gateways",
        observed(serving_pool(pool("gateway-admin", "Flexible"))),
        {"Degraded": ("True", "InvalidSpec")},
    ),
    (
        "no-image",
        observed(pods=(pod("a", waiting=("ImagePullBackOff", "no such image")),)),
        {"Degraded": ("True", "ImageUnavailable")},
    ),
    (
        "crashing",
        observed(pods=(pod("a", waiting=("CrashLoopBackOff", "back-off")),)),
        {"Degraded": ("True", "CrashLoop")},
    ),
    (
        "no-room",
        observed(
            pods=(pod("a", conditions=[{"type": "PodScheduled", "reason": "Unschedulable", "message": "no GPU"}]),)
        ),
        {"Degraded": ("True", "Unschedulable")},
    ),
]


@pytest.mark.parametrize(
    ("situation", "expected"), [case[1:] for case in CONDITIONS], ids=[case[0] for case in CONDITIONS]
)
def test_conditions_say_what_is(situation: Observed, expected: dict[str, tuple[str, str]]) -> None:
    """Situation to (status, reason) by condition type."""
    assert {kind: condition(situation, kind) for kind in expected} == expected


@pytest.mark.parametrize(
    ("refusal", "expected"),
    [
        (Refusal(DEPLOYMENT.key("chat-decode"), "quota"), ("True", "ApplyFailed")),
        (Refusal(SERVICE.key("chat-decode"), "exists", taken=True), ("True", "NameConflict")),
    ],
    ids=["refused-write", "object-of-another-owner"],
)
def test_what_could_not_be_written_is_in_the_condition(refusal: Refusal, expected: tuple[str, str]) -> None:
    """From the outcome of the same look; the pool is looked at again."""
    situation = observed(children=all_ready())
    assert condition(situation, "Degraded", refusal) == expected
    assert judged(situation, refusal).requeue_s is not None


def test_what_this_look_has_written_is_not_complete_whatever_was_observed() -> None:
    """The counts that were read before a Deployment was written are those of the older spec."""
    situation = observed(children=all_ready())
    written = Outcome(written=frozenset({DEPLOYMENT.key("chat-decode")}))
    found = verdict(situation, plan(situation), written)
    progressing = next(item for item in (found.status or {})["conditions"] if item["type"] == "Progressing")
    assert progressing["status"] == "True"
    assert "chat-decode" in progressing["message"]
    assert found.requeue_s is not None


@pytest.mark.parametrize(
    ("situation", "words"),
    [
        pytest.param(observed(serving_pool(policyRef={"name": "fair"})), ["SchedulingPolicy fair"], id="policy"),
        pytest.param(
            observed(profiles={}), ["HardwareProfile a100", "HardwareProfile h20", "pool decode"], id="profile"
        ),
        pytest.param(observed(serving_pool(sloRef={"name": "fast"})), ["ServiceLevelObjective fast"], id="objective"),
        pytest.param(observed(serving_pool(model={"name": ""})), ["spec.model.name"], id="spec"),
        pytest.param(
            observed(serving_pool(gpuBudget=7), profiles=TWO_GPU_PREFILL),
            ["spec.gpuBudget: ", "4 (prefill) + 4 (decode) = 8 GPUs", "the budget is 7"],
            id="budget",
        ),
    ],
)
def test_a_problem_names_object_and_field(situation: Observed, words: list[str]) -> None:
    """Degraded says which object or field."""
    text = message(situation, "Degraded")
    assert [word for word in words if word not in text] == []


def test_what_waits_for_a_reference_is_neither_written_nor_pruned() -> None:
    """A deleted profile must not cost a running fleet."""
    situation = observed(profiles=profiles("h20"), children=all_ready())
    result = plan(situation)
    assert "Deployment/chat-decode" in objects(result)
    assert not {"Deployment/chat-prefill", "Deployment/chat-gateway", "ConfigMap/chat-gateway"} & set(objects(result))
    assert result.prune == ()
    assert condition(situation, "Available") == ("True", "Ready")


@pytest.mark.parametrize("spec", [{"model": {"name": ""}}, {"pools": []}, {"engine": None}], ids=str)
def test_a_spec_that_is_not_valid_changes_nothing(spec: dict[str, Any]) -> None:
    """Objects stay, counts and availability stay, only Degraded and Progressing speak."""
    before = status_of(observed(children=all_ready()))
    situation = observed(serving_pool(status=before, generation=2, **spec), children=all_ready())
    assert (plan(situation).apply, plan(situation).prune) == ((), ())
    assert condition(situation, "Available") == ("True", "Ready")
    assert condition(situation, "Degraded") == ("True", "InvalidSpec")
    assert status_of(situation)["pools"] == before["pools"]
    assert status_of(situation)["observedGeneration"] == 2


def test_counts_ratio_and_columns() -> None:
    """What `kubectl get` prints, and what scripts read."""
    status = status_of(observed(children=(*all_ready()[:2], deployment("chat-decode", wanted=4, ready=3))))
    texts = {"prefill": "2/2", "decode": "3/4", "ratio": "2:3", "ready": "5/6", "reason": "Scaling", "sloPercent": ""}
    assert status["display"] == texts
    assert status["ratio"] == pytest.approx(2 / 3, abs=1e-4)
    assert status["prefill"] == {"replicas": 2, "readyReplicas": 2}
    hash_ = status["gateway"].pop("settingsHash")
    assert status["gateway"] == {"replicas": 1, "readyReplicas": 1}
    assert len(hash_) == 10
    decode = next(item for item in status["pools"] if item["name"] == "decode")
    assert (decode["replicas"], decode["readyReplicas"], decode["unavailableReplicas"]) == (4, 3, 1)


def test_only_what_is_not_settled_is_looked_at_again_soon() -> None:
    """A settled pool costs nothing between resyncs."""
    assert judged(observed(children=all_ready())).requeue_s is None
    assert judged(observed()).requeue_s is not None


PRIORITY = {"type": "uniboost", "parameters": {"enginePriority": True}}


def test_a_policy_that_does_not_suit_leaves_the_gateway_as_it_is_and_engines_alone() -> None:
    """What runs goes on with the policy that it has; the condition says what to do."""
    situation = observed(serving_pool(policyRef={"name": "fair"}), policy=policy(queue=PRIORITY))
    result = plan(situation)
    kinds = {(item["kind"], item["metadata"]["name"]) for item in result.apply}
    assert ("Deployment", "chat-decode") in kinds
    assert not kinds & {("ConfigMap", "chat-gateway"), ("Deployment", "chat-gateway")}
    assert result.prune == ()
    for words in ("SchedulingPolicy fair", "queue.parameters.enginePriority", "--scheduling-policy priority"):
        assert words in message(situation, "Degraded")


def test_all_parts_of_a_policy_that_suits_reach_the_gateway() -> None:
    """In its configuration file, parameters included."""
    engine = {"image": "registry.test/engine:1", "args": ["--scheduling-policy", "priority"]}
    admission = {"type": "bounded", "parameters": {"maxPrefillRequests": 3}}
    named = policy(queue=PRIORITY, admission=admission)
    result = plan(observed(serving_pool(policyRef={"name": "fair"}, engine=engine), policy=named))
    config = find(result, "ConfigMap", "chat-gateway")
    (text,) = config["data"].values()
    assert parse_settings(text).policy == SchedulingPolicySpec.parse(named["spec"])
