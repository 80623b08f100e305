"""Where an engine listens, said by the operator and read by the gateway, while another `engine.port` rolls out."""

from __future__ import annotations

import pytest

from ballast_api import names
from ballast_api.loading import parse_settings
from ballast_gateway.observe.pods import PodReady, read_pod
from ballast_operator.kinds import Manifest
from ballast_operator.planning.plan import plan
from tests.support.operator_builders import observed, serving_pool
from tests.support.pod_api import pod

ENGINES = ("chat-prefill", "chat-decode")


def made(face: str, port: int) -> dict[tuple[str, str], Manifest]:
    """What the operator writes, by kind and name."""
    wanted = serving_pool(engine={"image": "registry.test/engine:1", "port": port}, gateway={"face": face})
    return {(each["kind"], each["metadata"]["name"]): each for each in plan(observed(wanted)).apply}


@pytest.mark.parametrize("face", ["Proxy", "Picker"])
def test_gateways_reach_engines_of_the_old_and_of_the_new_port(face: str) -> None:
    """With the settings of the new one, agents (behind the picker face, beside decode engines) and bare engines."""
    text = made(face, 9000)["ConfigMap", "chat-gateway"]["data"][names.GATEWAY_CONFIG_FILE]
    kubernetes = parse_settings(text).discovery.kubernetes
    assert kubernetes is not None
    for port in (8000, 9000):
        objects = made(face, port)
        for name in ENGINES:
            template = objects["Deployment", name]["spec"]["template"]
            running = {**pod("a", annotations=template["metadata"]["annotations"]), "spec": template["spec"]}
            found = read_pod(running, port=kubernetes.port)
            assert isinstance(found, PodReady)
            assert found.endpoint.address == f"10.0.0.1:{port}"
