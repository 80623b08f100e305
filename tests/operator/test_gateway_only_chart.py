"""The chart with `gateway.only`: a gateway in front of pods that are there, and nothing of the operator."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from ballast_api.gateway_settings import GatewaySettings
from ballast_gateway.observe.pods import PodReady, read_pod
from tests.support.testbed_programs import helm

ROOT = Path(__file__).parents[2]


ONLY = (
    "gateway.only.enabled=true",
    "gateway.only.selector=app=vllm",
    "gateway.only.servedNames={m}",
    "monitoring.dashboards=false",
)


def rendered(*values: str) -> subprocess.CompletedProcess[str]:
    words = [word for value in values for word in ("--set", value)]
    command = [helm(), "template", "front", str(ROOT / "charts/ballast"), "--namespace", "serving", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def objects(*values: str) -> dict[str, dict[str, Any]]:
    """By kind; no kind comes twice."""
    done = rendered(*values)
    assert done.returncode == 0, done.stderr
    found = [each for each in yaml.safe_load_all(done.stdout) if each]
    assert len({each["kind"] for each in found}) == len(found)
    return {each["kind"]: each for each in found}


def test_it_is_a_gateway_with_the_right_to_read_pods_and_nothing_else() -> None:
    found = objects(*ONLY, "gateway.only.settings.policy.decode.type=least-requests")
    assert set(found) == {"ServiceAccount", "Role", "RoleBinding", "ConfigMap", "Deployment", "Service"}
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
    ],
)
def test_what_is_missing_is_named(values: tuple[str, ...], says: str) -> None:
    done = rendered(*values)
    assert done.returncode != 0
    assert says in done.stderr


@pytest.mark.parametrize(("label", "role"), [("prefill", "prefill"), ("decode", "decode"), ("both", "flexible")])
def test_pods_with_llm_d_s_label_are_found_with_their_role(label: str, role: str) -> None:
    status = {"podIP": "10.0.0.7", "conditions": [{"type": "Ready", "status": "True"}]}
    found = read_pod({"metadata": {"name": "vllm-0", "labels": {"llm-d.ai/role": label}}, "status": status}, port=8000)
    assert isinstance(found, PodReady)
    assert found.endpoint.role.value == role
