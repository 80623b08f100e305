"""A gateway in front of vLLM pods that are there already, as docs/start/existing-pods.md has it.

The pods are plain Deployments (engine-sims); a Gateway with an HTTPRoute leads to their Service. The page's own
`helm install` and HTTPRoute are read from the page, so that they are what is shown to work.
"""

import dataclasses
import json
import re
import shlex
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from kit import Cluster, Kubectl, wait_until
from kit.envoy_gateway import Answer, DataPlane, ask, data_plane, gateway_objects, install, uninstall
from kit.quickstart import is_ready

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("envoy-gateway"),
    pytest.mark.rotating(3),
]

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "start" / "existing-pods.md"
ENGINES = ROOT / "manifests" / "existing-pods" / "vllm.yaml"
FRONT = "front-ballast-gateway"
MODEL = "Qwen/Qwen3-32B"


def command_of_page(start: str) -> list[str]:
    """The words of the page's command that begins so, over its continuation lines."""
    text = PAGE.read_text().replace("\\\n", " ")
    (line,) = [line.strip() for line in text.splitlines() if line.strip().startswith(start)]
    return shlex.split(line)


def route_of_page(old: int, new: int) -> dict[str, Any]:
    """The page's HTTPRoute with these weights."""
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    route: dict[str, Any] = yaml.safe_load(text)
    del route["metadata"]["namespace"]  # each run has a namespace of its own
    first, second = route["spec"]["rules"][0]["backendRefs"]
    assert (first["name"], second["name"]) == ("vllm", FRONT)
    first["weight"], second["weight"] = old, new
    return route


def is_running(pod: dict[str, Any]) -> bool:
    """Whether its containers run; they need not be ready."""
    return any("running" in each["state"] for each in pod["status"].get("containerStatuses", []))


@dataclasses.dataclass(frozen=True, slots=True)
class Site:
    """Somebody's namespace with vLLM pods and a public Gateway."""

    cluster: Cluster
    kubectl: Kubectl
    envoy: DataPlane

    def engines(self, stage: str = "") -> list[dict[str, Any]]:
        return self.kubectl.items("pods", "app=vllm" + (f",stage={stage}" if stage else ""))

    def ask(self, requests: Sequence[dict[str, Any]]) -> list[Answer]:
        """From a pod of somebody else: the gateway may be gone."""
        return ask(self.kubectl, "deploy/vllm-decode", list(requests))

    def completions(self, url: str, count: int, **fields: Any) -> list[Answer]:
        body = {"model": MODEL, "prompt": "Ballast is", "max_tokens": 4} | fields
        return self.ask([{"url": f"{url}/v1/completions", "body": body}] * count)

    def total(self, metric: str, pods: Sequence[dict[str, Any]], port: int) -> int:
        """Of a metric, over the pods."""
        urls = [f"http://{pod['status']['podIP']}:{port}/metrics" for pod in pods]
        pages = self.ask([{"url": url, "method": "GET"} for url in urls])
        series = rf"^{metric}(?:\{{.*\}})? (\S+)$"
        return sum(round(float(value)) for page in pages for value in re.findall(series, page.body, re.MULTILINE))

    def completed(self, stage: str) -> int:
        """Requests that the engines of a stage have completed, by their own counters."""
        return self.total("vllm:request_success_total", self.engines(stage), 8000)

    def gateways(self) -> list[dict[str, Any]]:
        return self.kubectl.items("pods", "app.kubernetes.io/instance=front,app.kubernetes.io/component=gateway")

    def through_front(self) -> int:
        """Requests that the two gateways have answered, by their own counters."""
        return self.total("ballast_gateway_requests_total", self.gateways(), 9090)

    def in_front(self) -> int:
        """Requests that are at the two gateways now."""
        return self.total("ballast_gateway_requests_in_flight", self.gateways(), 9090)

    def endpoints(self) -> list[dict[str, str]]:
        """Name to role, as each gateway that runs knows them: asked from within its pod, as nobody else may."""
        call = {"url": "http://127.0.0.1:9090/ballast/v1/endpoints", "method": "GET"}
        pods = [f"pod/{pod['metadata']['name']}" for pod in self.gateways() if is_running(pod)]
        pages = [page for pod in pods for page in ask(self.kubectl, pod, [call]) if page.status == 200]
        return [{one["name"]: one["role"] for one in json.loads(page.body)["endpoints"]} for page in pages]

    def weigh(self, old: int, new: int) -> None:
        """Give the route these weights, and wait until Envoy's own configuration has them."""
        self.kubectl.apply(route_of_page(old, new))
        generation = self.kubectl.get("httproute", "chat")["metadata"]["generation"]

        def taken() -> bool:
            parents = self.kubectl.get("httproute", "chat").get("status", {}).get("parents", [])
            found = [c for parent in parents for c in parent["conditions"] if c["type"] == "Accepted"]
            return any(c["status"] == "True" and c["observedGeneration"] == generation for c in found)

        wait_until(taken, 120, "the route is accepted")

        def carried_out() -> bool:
            before = self.through_front()
            answers = self.completions(self.envoy.url, 24, max_tokens=1)
            share = self.through_front() - before
            return all(answer.status == 200 for answer in answers) and (0 < share < 24 if old and new else share == 0)

        wait_until(carried_out, 120, f"Envoy sends by weights {old}:{new}", poll_s=1.0)


@pytest.fixture(scope="module")
def envoy_gateway(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    install(cluster, tmp_path_factory.mktemp("chart"))
    yield
    uninstall(cluster)


@pytest.fixture(scope="module")
def pods(cluster: Cluster, envoy_gateway: None, module_namespace: str) -> Site:
    """Before Ballast: three engines, and a route to the decode engines' Service."""
    kubectl = cluster.kubectl.within(module_namespace)
    kubectl.apply(ENGINES.read_text().replace("localhost/ballast:dev", cluster.images.ballast))
    kubectl.apply(*gateway_objects("my-gateway", cluster.images.envoy))
    route = route_of_page(1, 0)
    route["spec"]["rules"][0]["backendRefs"].pop()
    kubectl.apply(route)
    for name in ("vllm-prefill", "vllm-decode"):
        kubectl.rollout(f"deploy/{name}", timeout_s=300)
    found = Site(cluster, kubectl, data_plane(cluster, module_namespace, "my-gateway"))
    wait_until(lambda: found.completions(found.envoy.url, 1)[0].status == 200, 120, "the old route serves", poll_s=1.0)
    return found


@pytest.fixture
def site(pods: Site) -> Iterator[Site]:
    """The same, without Ballast at the end."""
    yield pods
    uninstall_front(pods)


def install_front(site: Site) -> None:
    """The page's `helm install`, with the image and the namespace of this cluster; two gateways run after it."""
    repository, _, tag = site.cluster.images.ballast.rpartition(":")
    program, *words = command_of_page("helm install")
    assert program == "helm"
    assert site.kubectl.namespace is not None
    where = {"charts/ballast": str(ROOT / "charts" / "ballast"), "serving": site.kubectl.namespace}
    own = [where.get(word, word.replace("REGISTRY/ballast", repository)) for word in words]
    site.cluster.helm.run(*own, "--set", f"image.tag={tag}")

    wait_until(lambda: len(site.endpoints()) == 2, 240, "two gateways run and answer", poll_s=1.0)


def uninstall_front(site: Site) -> None:
    site.cluster.helm.within(str(site.kubectl.namespace)).run(
        "uninstall", "front", "--ignore-not-found", "--wait", timeout_s=400
    )


def test_a_gateway_in_front_of_pods_that_are_there_takes_a_share_and_gives_it_back(site: Site) -> None:
    """Discovery by label, requests through it, half of the traffic, back to none with a stream still running."""
    engines = {pod["metadata"]["name"]: pod["metadata"]["labels"]["stage"] for pod in site.engines()}
    install_front(site)
    wait_until(lambda: site.endpoints() == [engines, engines], 120, "both gateways know the pods and their roles")
    wait_until(lambda: all(map(is_ready, site.gateways())), 120, "both gateways are ready")

    prefills, decodes = site.completed("prefill"), site.completed("decode")
    answers = site.completions(f"http://{FRONT}", 20, prompt="word " * 200)
    assert [answer.status for answer in answers] == [200] * 20, answers[:2]
    assert site.completed("prefill") - prefills == site.completed("decode") - decodes == 20  # handed off, each of them

    site.weigh(50, 50)
    streams: list[Answer] = []
    before = site.through_front()
    running = threading.Thread(
        target=lambda: streams.extend(site.completions(site.envoy.url, 12, max_tokens=800, stream=True))
    )
    running.start()
    wait_until(lambda: site.in_front() > 0, 30, "streams run through the gateways", poll_s=0.1)
    site.weigh(100, 0)
    assert running.is_alive(), "the streams ended too soon to show anything"
    running.join(180)
    assert all(answer.status == 200 and answer.body.rstrip().endswith("data: [DONE]") for answer in streams)
    assert len(streams) == 12
    assert site.through_front() > before

    uninstall_front(site)
    answers = site.completions(site.envoy.url, 20)
    assert [answer.status for answer in answers] == [200] * 20
