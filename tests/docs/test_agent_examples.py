"""The set-up in docs/agent.md: gateways find an agent in the pod, in the endpoints file, and share its token file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ballast_api.faces import Face
from ballast_api.gateway_settings import GatewaySettings
from ballast_api.loading import parse_endpoints
from ballast_core.model import Role
from ballast_gateway.agent.command import read
from ballast_gateway.observe.pods import PodReady, read_pod

PAGE = Path(__file__).parents[2] / "docs/agent.md"
BLOCKS = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
POD, SETTINGS, ENDPOINTS = (yaml.safe_load(each) for each in BLOCKS)
(AGENT,) = POD["spec"]["initContainers"]
FIELDS = {"metadata.name": "d0", "status.podIP": "10.0.0.7"}
"""What the downward API says of the pod once it runs."""


def environment(container: dict[str, Any]) -> dict[str, str]:
    """As the kubelet sets it."""
    return {
        each["name"]: each["value"] if "value" in each else FIELDS[each["valueFrom"]["fieldRef"]["fieldPath"]]
        for each in container["env"]
    }


@pytest.fixture(scope="module")
def running() -> PodReady:
    """The pod of the page, as a gateway reads it from the API server."""
    status = {"podIP": FIELDS["status.podIP"], "conditions": [{"type": "Ready", "status": "True"}]}
    found = read_pod(
        {**POD, "metadata": {**POD["metadata"], "name": FIELDS["metadata.name"]}, "status": status}, port=8000
    )
    assert isinstance(found, PodReady)
    return found


def test_a_gateway_finds_the_pod_and_its_agent_where_the_agent_listens(running: PodReady) -> None:
    """Name and addresses are those by which the agent calls itself."""
    settings, _ = read(AGENT["command"][2:], environment(AGENT))
    assert running.endpoint.role is Role.DECODE
    assert (running.endpoint.id, running.endpoint.address) == (settings.name, settings.address)
    assert running.pod_api == f"{FIELDS['status.podIP']}:{settings.pod_api_port}"
    assert {each["name"]: each["containerPort"] for each in AGENT["ports"]} == {
        "http": settings.port,
        "pod-api": settings.pod_api_port,
    }


def test_the_engine_is_where_its_agent_asks() -> None:
    """On the loopback; its probe goes through the agent."""
    settings, _ = read(AGENT["command"][2:], environment(AGENT))
    (engine,) = POD["spec"]["containers"]
    given = dict(zip(engine["args"][::2], engine["args"][1::2], strict=True))
    assert f"{given['--host']}:{given['--port']}" == settings.engine
    assert engine["readinessProbe"]["httpGet"]["port"] == settings.port


def test_the_gateway_watches_such_pods_and_has_the_same_token_file() -> None:
    """By a label of the pod."""
    settings = GatewaySettings.model_validate(SETTINGS)
    discovery = settings.discovery.kubernetes
    assert discovery is not None
    label, value = discovery.selector.split("=")
    assert POD["metadata"]["labels"][label] == value
    assert settings.face is Face.PICKER
    assert settings.pod_api.token_file == environment(AGENT)["BALLAST_TOKEN_FILE"]


def test_the_endpoints_file_says_the_same_of_it(running: PodReady) -> None:
    """Name, addresses and role."""
    (entry,) = parse_endpoints(yaml.safe_dump(ENDPOINTS)).endpoints
    assert (entry.name, entry.address, entry.pod_api) == (
        running.endpoint.id,
        running.endpoint.address,
        running.pod_api,
    )
    assert entry.role == running.endpoint.role
