"""The chart with `gateway.only`: a gateway in front of pods that are there, and nothing of the operator."""

import math
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from ballast_api.gateway_settings import GatewaySettings
from ballast_api.names import PORT_ADMIN
from ballast_gateway.observe.pods import PodReady, read_pod
from ballast_operator.specs.gateway_deployment import PRE_STOP_S, SLACK_S
from tests.support.testbed_programs import helm

ROOT = Path(__file__).parents[2]


ONLY = (
    "gateway.only.enabled=true",
    "gateway.only.selector=app=vllm",
    "gateway.only.servedNames={m}",
    "monitoring.dashboards=false",
)
MONITORING = ("monitoring.coreos.com/v1/PodMonitor", "monitoring.coreos.com/v1/PrometheusRule")


def rendered(*values: str, apis: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """For a cluster that has these APIs."""
    words = [word for value in values for word in ("--set", value)]
    words += [word for api in apis for word in ("--api-versions", api)]
    command = [helm(), "template", "front", str(ROOT / "charts/ballast"), "--namespace", "serving", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def objects(*values: str, apis: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """By kind; no kind comes twice."""
    done = rendered(*values, apis=apis)
    assert done.returncode == 0, done.stderr
    found = [each for each in yaml.safe_load_all(done.stdout) if each]
    assert len({each["kind"] for each in found}) == len(found)
    return {each["kind"]: each for each in found}


def test_it_is_a_gateway_with_the_right_to_read_pods_and_nothing_else() -> None:
    found = objects(*ONLY, "gateway.only.settings.policy.decode.type=least-requests")
    kinds = {"ServiceAccount", "Role", "RoleBinding", "ConfigMap", "Deployment", "PodDisruptionBudget", "Service"}
    assert set(found) == kinds
    assert found["Role"]["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
    settings = GatewaySettings.model_validate(yaml.safe_load(found["ConfigMap"]["data"]["gateway.yaml"]))
    assert settings.discovery.kubernetes is not None
    assert (settings.discovery.kubernetes.namespace, settings.discovery.kubernetes.selector) == ("serving", "app=vllm")
    assert settings.policy.decode.type == "least-requests"
    pod = found["Deployment"]["spec"]["template"]
    assert found["Service"]["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert pod["spec"]["serviceAccountName"] == found["ServiceAccount"]["metadata"]["name"]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (ONLY[:1], "gateway.only.selector: name the labels of your vLLM pods"),
        (ONLY[:2], "gateway.only.servedNames: name the model"),
        ((*ONLY, "gateway.only.settings.face=Both"), "gateway.only.settings.face: leave it out"),
        ((*ONLY, "gateway.only.settings.listeners.proxy=8080"), "gateway.only.settings.listeners: leave it out"),
        (
            (*ONLY, "gateway.only.settings.discovery.kubernetes.port=9000"),
            "gateway.only.settings.discovery: leave it out; set gateway.only.selector and gateway.only.port",
        ),
        (
            (*ONLY, "gateway.only.settings.model.servedNames={other}"),
            "gateway.only.settings.model.servedNames: leave it out; set gateway.only.servedNames",
        ),
    ],
)
def test_what_is_missing_or_given_twice_is_named(values: tuple[str, ...], says: str) -> None:
    done = rendered(*values)
    assert done.returncode != 0
    assert says in done.stderr


@pytest.mark.parametrize(
    "settings",
    [
        (),
        (".limits.drainTimeoutS=900",),
        (".limits.drainTimeoutS=10", ".limits.drainGraceS=0"),
        (".limits.drainTimeoutS=null", ".limits.drainGraceS=null"),
        ("=null",),
        (".limits=null",),
        (".model=null",),
        (".model.servedNames=null",),
    ],
    ids=str,
)
def test_a_pod_has_the_time_that_its_settings_give_streams_to_end(settings: tuple[str, ...]) -> None:
    """As the gateways of a ServingPool have it. What is empty is the default."""
    found = objects(*ONLY, *(f"gateway.only.settings{each}" for each in settings))
    of_pod = GatewaySettings.model_validate(yaml.safe_load(found["ConfigMap"]["data"]["gateway.yaml"]))
    pod = found["Deployment"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"] == PRE_STOP_S
    assert pod["terminationGracePeriodSeconds"] == PRE_STOP_S + math.ceil(of_pod.limits.longest_drain_s) + SLACK_S
    assert of_pod.model.served_names == ("m",)


def test_files_that_settings_name_are_mounted() -> None:
    found = objects(
        *ONLY,
        "gateway.only.settings.keys.file=/etc/keys/keys.yaml",
        "gateway.only.volumes[0].name=keys",
        "gateway.only.volumes[0].secret.secretName=chat-keys",
        "gateway.only.volumeMounts[0].name=keys",
        "gateway.only.volumeMounts[0].mountPath=/etc/keys",
    )
    pod = found["Deployment"]["spec"]["template"]["spec"]
    assert {"name": "keys", "secret": {"secretName": "chat-keys"}} in pod["volumes"]
    assert {"name": "keys", "mountPath": "/etc/keys"} in pod["containers"][0]["volumeMounts"]
    assert [each["name"] for each in pod["volumes"]] == [each["name"] for each in pod["containers"][0]["volumeMounts"]]


PROMETHEUS = "gateway.adminFrom[0].namespaceSelector.matchLabels.kubernetes\\.io/metadata\\.name=monitoring"


def test_who_is_named_reaches_the_admin_port_and_every_other_port_is_open() -> None:
    found = objects(*ONLY, PROMETHEUS)
    pod, policy = found["Deployment"]["spec"]["template"], found["NetworkPolicy"]["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    named, everybody = policy["ingress"]
    assert named["ports"] == [{"protocol": "TCP", "port": PORT_ADMIN}]
    assert named["from"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
    assert "from" not in everybody
    tcp = [range(each["port"], each["endPort"] + 1) for each in everybody["ports"] if each["protocol"] == "TCP"]
    assert [port for port in range(1, 65536) if not any(port in each for each in tcp)] == [PORT_ADMIN]
    for values in (ONLY, (*ONLY, PROMETHEUS, "networkPolicies=false")):
        assert "NetworkPolicy" not in objects(*values)


def test_where_prometheus_operator_is_its_own_pods_are_scraped_under_the_releases_name() -> None:
    found = objects(*ONLY, apis=MONITORING)
    pod, monitor = found["Deployment"]["spec"]["template"], found["PodMonitor"]["spec"]
    assert monitor["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert "matchExpressions" not in monitor["selector"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    assert endpoint["port"] in {each["name"] for each in pod["spec"]["containers"][0]["ports"]}
    (relabeling,) = endpoint["relabelings"]
    assert relabeling["targetLabel"] == "serving_pool"
    (source,) = relabeling["sourceLabels"]
    labels = {re.sub(r"\W", "_", key): value for key, value in pod["metadata"]["labels"].items()}
    assert labels[source.removeprefix("__meta_kubernetes_pod_label_")] == "front"
    assert "prometheus.io/scrape" not in pod["metadata"]["annotations"]


def test_elsewhere_its_pods_say_that_they_are_to_be_scraped() -> None:
    """By what `manifests/monitoring/prometheus.yaml` looks at."""
    pod = objects(*ONLY)["Deployment"]["spec"]["template"]
    notes = {key: value for key, value in pod["metadata"]["annotations"].items() if key.startswith("prometheus.io/")}
    assert notes == {"prometheus.io/scrape": "true", "prometheus.io/port": "9090", "prometheus.io/path": "/metrics"}
    (job,) = yaml.safe_load((ROOT / "manifests/monitoring/prometheus.yaml").read_text())["scrape_configs"]
    assert pod["metadata"]["labels"]["app.kubernetes.io/part-of"] == "ballast"
    assert {
        "source_labels": [
            "__meta_kubernetes_pod_label_app_kubernetes_io_component",
            "__meta_kubernetes_pod_label_app_kubernetes_io_instance",
        ],
        "regex": "gateway;(.+)",
        "target_label": "serving_pool",
    } in job["relabel_configs"]
    quiet = objects(*ONLY, "monitoring.annotations=false")["Deployment"]["spec"]["template"]["metadata"]
    assert "prometheus.io/scrape" not in quiet["annotations"]


def test_its_pods_stand_apart_and_where_the_values_of_the_chart_s_own_pod_say() -> None:
    """As a ServingPool's gateways do; a drain takes one of them at a time."""
    values = (
        "nodeSelector.zone=a",
        "tolerations[0].key=t",
        "priorityClassName=high",
        "podLabels.team=serving",
        "podAnnotations.owner=me",
        "gateway.only.resources.limits.memory=1Gi",
    )
    found = objects(*ONLY, *values)
    template = found["Deployment"]["spec"]["template"]
    pod, labels = template["spec"], template["metadata"]["labels"]
    assert (pod["nodeSelector"], pod["tolerations"], pod["priorityClassName"]) == (
        {"zone": "a"},
        [{"key": "t"}],
        "high",
    )
    assert "nodeAffinity" in pod["affinity"]
    assert (labels["team"], template["metadata"]["annotations"]["owner"]) == ("serving", "me")
    assert pod["containers"][0]["resources"] == {
        "requests": {"cpu": "100m", "memory": "128Mi"},
        "limits": {"memory": "1Gi"},
    }
    [spread] = pod["topologySpreadConstraints"]
    assert (spread["topologyKey"], spread["whenUnsatisfiable"]) == ("kubernetes.io/hostname", "ScheduleAnyway")
    budget = found["PodDisruptionBudget"]["spec"]
    assert budget["maxUnavailable"] == 1
    for chosen in (spread["labelSelector"]["matchLabels"], budget["selector"]["matchLabels"]):
        assert chosen.items() <= labels.items()


def test_no_rule_and_no_dashboard_asks_an_operator_that_is_not_there() -> None:
    """An alert that no operator works would fire for ever; those of gateways stay."""
    rules = objects(*ONLY, apis=MONITORING)["PrometheusRule"]["spec"]
    alerts = {rule.get("alert"): rule["expr"] for group in rules["groups"] for rule in group["rules"]}
    every = yaml.safe_load((ROOT / "charts/ballast/rules/ballast.yaml").read_text())["groups"]
    of_gateways = {
        rule.get("alert") for group in every for rule in group["rules"] if "ballast_operator_" not in rule["expr"]
    }
    assert set(alerts) == of_gateways | {"BallastGatewaysGone"}
    assert {"BallastNoEndpoints", "BallastSloFastBurn"} <= set(alerts)
    assert "BallastOperatorDown" not in alerts
    boards = rendered(*ONLY[:-1])
    assert boards.returncode == 0, boards.stderr
    assert "front-ballast-dashboard-fleet" in boards.stdout
    assert "ballast_operator_" not in boards.stdout


def test_an_alert_tells_that_all_gateways_are_gone() -> None:
    """A ServingPool's conditions would say so, and here is none."""
    values = (*ONLY, "monitoring.runbooks=https://runbooks.example/ballast")
    groups = objects(*values, apis=MONITORING)["PrometheusRule"]["spec"]["groups"]
    [rule] = [rule for group in groups for rule in group["rules"] if rule.get("alert") == "BallastGatewaysGone"]
    assert rule["expr"] == 'absent(ballast_gateway_build_info{namespace="serving",serving_pool="front"})'
    assert rule["annotations"]["summary"] == "No gateway of serving/front answers."
    assert rule["annotations"]["runbook_url"] == "https://runbooks.example/ballast#ballastgatewaysgone"
    with_operator = rendered("monitoring.dashboards=false", apis=MONITORING)
    assert with_operator.returncode == 0, with_operator.stderr
    assert "BallastGatewaysGone" not in with_operator.stdout


@pytest.mark.parametrize(("label", "role"), [("prefill", "prefill"), ("decode", "decode"), ("both", "flexible")])
def test_pods_with_llm_d_s_label_are_found_with_their_role(label: str, role: str) -> None:
    status = {"podIP": "10.0.0.7", "conditions": [{"type": "Ready", "status": "True"}]}
    found = read_pod({"metadata": {"name": "vllm-0", "labels": {"llm-d.ai/role": label}}, "status": status}, port=8000)
    assert isinstance(found, PodReady)
    assert found.endpoint.role.value == role
