"""Through a real Gateway: HTTPRoute -> Envoy Gateway's Envoy -> our picker over ext_proc -> the pod that it picked.

Envoy Gateway comes by its own chart; the operator makes the HTTPRoute and the two policies. That requests land where
the picker said is shown by three witnesses: the picker's request log, Envoy's access log, and the pods' own counters.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from kit import Cluster, Kubectl, quickstart, wait_until
from kit.envoy_gateway import Answer, DataPlane, ask, data_plane, gateway_objects, install, uninstall
from kit.quickstart import NAME, engine_pods, wait_serving
from kit.release import Release

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900), pytest.mark.xdist_group("envoy-gateway")]

GATEWAY = "public"
CLIENT = f"deploy/{NAME}-gateway"
"""Its image has Python; requests are sent from there."""
MODEL = "Qwen/Qwen3-32B"


@pytest.fixture(scope="module")
def envoy_gateway(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Envoy Gateway with the Gateway API's CRDs, before the operator looks for them."""
    install(cluster, tmp_path_factory.mktemp("chart"))
    yield
    uninstall(cluster)


@pytest.fixture(scope="module")
def fleet(cluster: Cluster, envoy_gateway: None, release: Release, module_namespace: str) -> Kubectl:
    """The quickstart with the picker face, attached to a Gateway in its own namespace."""
    kubectl = cluster.kubectl.within(module_namespace)
    kubectl.apply(*gateway_objects(GATEWAY, cluster.images.envoy))
    objects = quickstart.objects(cluster.images.ballast, 1.0)
    (pool,) = [each for each in objects if each["kind"] == "ServingPool"]
    pool["spec"]["gateway"] |= {"face": "Picker", "parentRefs": [{"name": GATEWAY}]}
    kubectl.apply(*objects)
    wait_serving(kubectl, prefill=2, decode=4)
    return kubectl


@pytest.fixture(scope="module")
def envoy(cluster: Cluster, fleet: Kubectl, module_namespace: str) -> DataPlane:
    """The Gateway's Envoy, serving the route."""
    found = data_plane(cluster, module_namespace, GATEWAY)

    def answers() -> bool:
        (answer,) = ask(fleet, CLIENT, [{"url": f"{found.url}/v1/models", "method": "GET"}])
        return answer.status == 200

    wait_until(answers, 120, "the route answers", poll_s=1.0)
    return found


def completion(envoy: DataPlane, headers: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    body = {"model": MODEL, "prompt": "hello there", "max_tokens": 3} | fields
    return {"url": f"{envoy.url}/v1/completions", "headers": headers or {}, "body": body}


def picked(fleet: Kubectl) -> dict[str, str]:
    """What the picker says: request id (Envoy makes it) -> pod."""
    lines = [line for line in fleet.logs(CLIENT, "--tail=-1").splitlines() if '"event":"request"' in line]
    records = [json.loads(line) for line in lines]
    return {r["request_id"]: r["decode"] for r in records if r["path"] == "/v1/completions" and "decode" in r}


def served_by_envoy(fleet: Kubectl, envoy: DataPlane) -> dict[str, str]:
    """What Envoy says: request id -> pod, of requests that it sent to one."""
    names = {pod["status"]["podIP"]: pod["metadata"]["name"] for pod in engine_pods(fleet)}
    hosts = {e["x-request-id"]: str(e["upstream_host"]).rpartition(":")[0] for e in envoy.access_log()}
    return {request_id: names[host] for request_id, host in hosts.items() if host in names}


def served_by_pods(fleet: Kubectl) -> Counter[str]:
    """What the pods say: pod -> requests that it completed."""
    pods = engine_pods(fleet)
    pages = ask(fleet, CLIENT, [{"url": f"http://{p['status']['podIP']}:8000/metrics", "method": "GET"} for p in pods])
    values = [re.findall(r"^vllm:request_success_total\{.*\} (\S+)$", page.body, re.MULTILINE) for page in pages]
    return Counter(
        {pod["metadata"]["name"]: int(sum(map(float, found))) for pod, found in zip(pods, values, strict=True)}
    )


def test_every_request_lands_on_the_pod_that_the_picker_chose(fleet: Kubectl, envoy: DataPlane) -> None:
    """Picker, Envoy and pods tell the same story, request by request, also when clients name pods themselves."""
    earlier, before = set(picked(fleet)), served_by_pods(fleet)
    some_pod = engine_pods(fleet, "prefill")[0]["status"]["podIP"]
    spoof = {"x-gateway-destination-endpoint": f"{some_pod}:8000", "x-prefiller-host-port": "127.0.0.1:1"}
    answers = ask(fleet, CLIENT, [completion(envoy, spoof if k % 3 == 0 else None) for k in range(60)])
    assert [answer.status for answer in answers] == [200] * 60, answers[:3]

    wait_until(lambda: len(picked(fleet).keys() - earlier) == 60, 30, "the picker's log has 60 requests")
    chosen = {request_id: pod for request_id, pod in picked(fleet).items() if request_id not in earlier}
    wait_until(lambda: served_by_envoy(fleet, envoy).keys() >= chosen.keys(), 60, "Envoy's log has them all")
    served = served_by_envoy(fleet, envoy)
    assert chosen == {request_id: served[request_id] for request_id in chosen}
    assert served_by_pods(fleet) - before == Counter(chosen.values())
    decoders = {pod["metadata"]["name"] for pod in engine_pods(fleet, "decode")}
    assert set(chosen.values()) == decoders


def test_streams_pass_through(fleet: Kubectl, envoy: DataPlane) -> None:
    """Server-sent events to the end."""
    (answer,) = ask(fleet, CLIENT, [completion(envoy, stream=True, max_tokens=5)])
    assert answer.status == 200
    assert answer.body.count("data: ") == 6
    assert answer.body.rstrip().endswith("data: [DONE]")


def test_errors_of_the_picker_reach_clients_in_openai_shape(fleet: Kubectl, envoy: DataPlane) -> None:
    """400 and 404 with a reason that machines can read."""
    url = f"{envoy.url}/v1/completions"
    unknown = {"model": "other", "prompt": "x"}

    def code(answer: Answer) -> tuple[int, str]:
        return answer.status, json.loads(answer.body)["error"]["code"]

    answers = ask(fleet, CLIENT, [{"url": url, "body": "{"}, {"url": url, "body": unknown}])
    assert [code(answer) for answer in answers] == [(400, "invalid-request"), (404, "model-not-found")]
