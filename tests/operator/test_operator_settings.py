"""What reaches gateways as they run, what restarts them, and how the status says which settings are in force."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ballast_api.gateway_settings import GatewaySettings
from ballast_api.settings_changes import restarting_fields
from ballast_operator.gateways.settings_reports import settings_hash
from ballast_operator.kinds import Manifest
from ballast_operator.observed import Observed
from ballast_operator.planning.plan import plan
from ballast_operator.planning.planned import Plan
from ballast_operator.settings import GatewayDefaults
from tests.support.operator_builders import (
    all_ready,
    judged,
    observed,
    policy,
    pool,
    profile,
    profiles,
    serving_pool,
    status_of,
)


def find(result: Plan, kind: str, name: str = "chat-gateway") -> Manifest:
    return next(item for item in result.apply if (item["kind"], item["metadata"]["name"]) == (kind, name))


def changed(before: Plan, after: Plan) -> set[str]:
    """Kinds and names of the objects of which pods are made, or that gateways read."""
    return {
        f"{kind}/{item['metadata']['name']}"
        for kind, part in (("Deployment", "spec"), ("ConfigMap", "data"))
        for item in after.apply
        if item["kind"] == kind and item[part] != find(before, kind, item["metadata"]["name"])[part]
    }


def with_settings(**settings: Any) -> Plan:
    return plan(observed(serving_pool(gateway={"settings": settings})))


def test_a_policy_or_a_profile_reaches_gateways_by_their_settings_and_restarts_none() -> None:
    spec = serving_pool(policyRef={"name": "fair"})
    first, second = (plan(observed(spec, policy=policy(placement=name))) for name in ("round-robin", "least-requests"))
    assert changed(first, second) == {"ConfigMap/chat-gateway"}
    numbers = plan(observed(profiles={**profiles("a100"), "h20": profile("h20", aMs=17.0)}))
    assert "Deployment/chat-gateway" not in changed(plan(observed()), numbers)
    assert "ConfigMap/chat-gateway" in changed(plan(observed()), numbers)


def test_the_settings_are_found_wherever_they_stand_among_other_config_maps() -> None:
    """HardwareProfiles' numbers are one, too."""
    objects = plan(observed()).apply
    assert sum(item["kind"] == "ConfigMap" for item in objects) > 1
    assert settings_hash(objects) == settings_hash(objects[::-1]) is not None


@pytest.mark.parametrize(
    "settings",
    [
        {"limits": {"maxRetries": 5, "deadlineS": 9.0}},
        {"health": {"ejectionS": 3.0}},
        {"trust": {"tenantHeader": "x-team"}},
        {"scrape": {"intervalS": 0.5}},
        {"logLevel": "debug"},
        {"watch": {"patience": 4.0}},
    ],
)
def test_tuning_restarts_nothing(settings: dict[str, Any]) -> None:
    assert changed(plan(observed()), with_settings(**settings)) == {"ConfigMap/chat-gateway"}


@pytest.mark.parametrize(
    "settings",
    [
        {"limits": {"drainGraceS": 2.0}},
        {"admin": {"decisionsKept": 9}},
        {"tls": {"proxy": {"mode": "Optional"}}},
        {"watch": {"enabled": False}},
        {"logs": {"decisionsFile": "/tmp/d"}},
    ],
)
def test_what_is_marked_restarts_gateways_and_no_engine(settings: dict[str, Any]) -> None:
    found = changed(plan(observed()), with_settings(**settings))
    assert found == {"ConfigMap/chat-gateway", "Deployment/chat-gateway"}


def test_the_marked_fields_are_these() -> None:
    """A field that is added is taken by running gateways, unless it is marked: then it stands here, too."""
    assert set(restarting_fields(GatewaySettings)) == {
        *("limits.maxBodyBytes", "limits.drainGraceS", "limits.drainTimeoutS", "watch.enabled", "logs.decisionsFile"),
        *("kvEvents", "tls", "keys", "admin", "face", "connector", "discovery", "listeners", "workers", "podApi"),
        *("peers", "tracing"),
    }


def test_how_long_streams_may_take_reaches_gateways_engines_and_their_grace_periods() -> None:
    """One setting: `limits.drainTimeoutS`."""
    default, longer = plan(observed()), with_settings(limits={"drainTimeoutS": 900.0})
    # An engine's pod is emptied for as long before its engine drains.
    for name, more in {"chat-gateway": 600, "chat-prefill": 1200, "chat-decode": 1200}.items():
        before, after = (
            find(each, "Deployment", name)["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
            for each in (default, longer)
        )
        assert (after - before, before >= 305) == (more, True)
    (engine,) = find(longer, "Deployment", "chat-decode")["spec"]["template"]["spec"]["containers"]
    assert engine["args"][engine["args"].index("--shutdown-timeout") + 1] == "900"


def test_two_gateways_of_which_a_drain_takes_one() -> None:
    spec = serving_pool()
    del spec["spec"]["gateway"]["replicas"]
    result = plan(observed(spec))
    assert find(result, "Deployment")["spec"]["replicas"] == 2
    assert find(result, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1


def test_gateways_prefer_nodes_without_the_engines_gpus() -> None:
    pod = find(plan(observed()), "Deployment")["spec"]["template"]["spec"]
    preferred = pod["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    said = [each["preference"]["matchExpressions"] for each in preferred]
    assert said == [
        [{"key": "hardware", "operator": "NotIn", "values": ["a100"]}],
        [{"key": "hardware", "operator": "NotIn", "values": ["h20"]}],
    ]
    anywhere = {"h20": profile("h20", nodeSelector={})}
    alone = plan(observed(serving_pool(pool("it", "Flexible")), profiles=anywhere))
    assert "affinity" not in find(alone, "Deployment")["spec"]["template"]["spec"]


def test_the_service_for_clients_is_as_it_is_asked_for() -> None:
    annotations = {"cloud.example/internal": "true"}
    asked = {"service": {"type": "LoadBalancer", "annotations": annotations}}
    service = find(plan(observed(serving_pool(gateway=asked))), "Service")
    assert (service["spec"]["type"], service["metadata"]["annotations"]) == ("LoadBalancer", annotations)
    usual = find(plan(observed()), "Service")
    assert usual["spec"]["type"] == "ClusterIP"
    assert "annotations" not in usual["metadata"]


def test_pull_secrets_reach_gateways_and_agents() -> None:
    defaults = GatewayDefaults(image="registry.test/ballast:1", image_pull_secrets=("ours",))
    result = plan(observed(serving_pool(gateway={"face": "Picker"}), gateway_defaults=defaults))
    secrets = {
        item["metadata"]["name"]: item["spec"]["template"]["spec"].get("imagePullSecrets")
        for item in result.apply
        if item["kind"] == "Deployment"
    }
    assert secrets == {"chat-gateway": [{"name": "ours"}], "chat-decode": [{"name": "ours"}], "chat-prefill": None}


# --- what gateways say ------------------------------------------------------------------------------------------------


def told(**said: str) -> Observed:
    """All is ready, and these gateways have said this; `NEWEST` stands for the hash of the settings."""
    result = plan(observed())
    newest = str(result.settings_hash)
    notes = {f"settings.serving.ballast.dev/{pod}": text.replace("NEWEST", newest) for pod, text in said.items()}
    lease = find(result, "Lease")
    lease = {**lease, "metadata": {**lease["metadata"], "annotations": notes}}
    pods = tuple({"kind": "Pod", "metadata": {"name": name}, "status": {}} for name in said if name != "gone")
    return replace(observed(), children=(*all_ready(), lease, find(result, "ConfigMap")), pods=pods)


def condition(situation: Observed, kind: str) -> tuple[str, str, str]:
    found = next(item for item in status_of(situation)["conditions"] if item["type"] == kind)
    return found["status"], found["reason"], found["message"]


def test_settings_that_all_gateways_have_are_complete() -> None:
    situation = told(one="NEWEST", two="NEWEST", gone="0123456789")
    assert condition(situation, "Progressing")[:2] == ("False", "Complete")
    assert judged(situation).requeue_s is None
    assert status_of(situation)["gateway"]["settingsHash"] == plan(observed()).settings_hash


def test_settings_that_a_gateway_has_not_seen_are_in_progress() -> None:
    situation = told(one="NEWEST", two="0123456789")
    status, reason, message = condition(situation, "Progressing")
    assert (status, reason) == ("True", "ApplyingSettings")
    assert message.startswith("two: ")
    assert judged(situation).requeue_s == 5.0


def test_settings_that_a_gateway_refuses_are_a_problem_with_its_words() -> None:
    situation = told(one="NEWEST", two="NEWEST /etc/ballast/gateway.yaml: limits.novel: is not a field")
    status, reason, message = condition(situation, "Degraded")
    assert (status, reason) == ("True", "SettingsRefused")
    assert "two kept the old settings" in message
    assert "limits.novel" in message


def test_settings_that_do_not_go_together_are_neither_written_nor_fatal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check is the gateway's own; what runs goes on."""

    def refuse(*_: object, **__: object) -> None:
        GatewaySettings.parse(
            {
                "model": {"servedNames": ["m"]},
                "discovery": {"file": "f"},
                "tls": {"proxy": {"certFile": "/tls/tls.crt"}},
            }
        )

    monkeypatch.setattr("ballast_operator.planning.plan.gateway_settings", refuse)
    situation = observed(children=all_ready())
    result = plan(situation)
    assert not [item for item in result.apply if item["metadata"]["name"] == "chat-gateway" and "data" in item]
    status, reason, message = condition(situation, "Degraded")
    assert (status, reason) == ("True", "SettingsRefused")
    assert message.startswith("spec.gateway.settings.tls.proxy.keyFile: ")
