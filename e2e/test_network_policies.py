"""What NetworkPolicies keep out, packet by packet, on a network that enforces them.

One fleet with both faces and an agent in its decode pod. Connections come from pods that have nothing to do with it,
from impostors that wear its labels in another namespace, from those that the chart's `gateway.adminFrom` names, and
from its own pods. Whoever is kept from a port would get an answer there without the policies: the last test shows it.
"""

import dataclasses
import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import pytest
import yaml

from kit import Cluster, Kubectl, wait_until
from kit.picker_fleet import POD_API_PORT, gateway_pods
from kit.quickstart import NAME, RESTRICTED, condition, engine_pods, is_ready, objects, wait_serving
from kit.release import NAMESPACE, Release

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300), pytest.mark.xdist_group("network-policies")]

HTTP, EXT_PROC, HEALTH, ADMIN, ENGINE_BEHIND_AGENT = 8000, 9002, 9003, 9090, 8200
GATEWAYS, ENGINES = f"{NAME}-gateway", f"{NAME}-gateway-engines"
OTHER_PORT = 7777
GATEWAY_LABELS = {"serving.ballast.dev/serving-pool": NAME, "app.kubernetes.io/component": "gateway"}
ENGINE_LABELS = GATEWAY_LABELS | {"app.kubernetes.io/component": "engine"}

Doors = dict[str, bool]
"""Such as `agent:9004`: whether a connection comes about."""

# Refused and unanswered are the same here: networks differ in how they say no.
_KNOCK = """
import concurrent.futures, json, socket, sys
def opens(door):
    try:
        socket.create_connection(door, timeout=2).close()
    except OSError:
        return False
    return True
with concurrent.futures.ThreadPoolExecutor(16) as pool:
    json.dump(list(pool.map(opens, map(tuple, json.loads(sys.argv[1])))), sys.stdout)
"""

# A port that Ballast does not know: TCP accepts, UDP answers.
_OTHER_PORT = f"""
import socket, threading
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(("", {OTHER_PORT}))
def echo():
    while True:
        udp.sendto(*udp.recvfrom(99))
threading.Thread(target=echo, daemon=True).start()
tcp = socket.create_server(("", {OTHER_PORT}))
while True:
    tcp.accept()[0].close()
"""

_ASK_BY_UDP = f"""
import socket, sys
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.settimeout(2)
udp.sendto(b"well?", (sys.argv[1], {OTHER_PORT}))
print(udp.recv(99).decode())
"""

_COMPLETE = """
import json, sys, urllib.request
body = json.dumps({"model": "Qwen/Qwen3-32B", "prompt": "hello there", "max_tokens": 3}).encode()
call = urllib.request.Request(sys.argv[1], body, {"content-type": "application/json"})
print(urllib.request.urlopen(call, timeout=30).status)
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Somebody:
    """A pod that connections come from."""

    kubectl: Kubectl
    name: str

    @classmethod
    def of(cls, kubectl: Kubectl, pod: Mapping[str, Any]) -> Self:
        return cls(kubectl, pod["metadata"]["name"])

    def python(self, script: str, *arguments: str) -> str:
        """What a script says there."""
        return self.kubectl.exec(f"pod/{self.name}", "python3", "-c", script, *arguments).strip()

    def knocks(self, pods: Mapping[str, Mapping[str, Any]], doors: Sequence[str]) -> Doors:
        """Which of the doors (`POD:PORT`) open for it."""
        places = [door.split(":") for door in doors]
        addresses = [(pods[pod]["status"]["podIP"], int(port)) for pod, port in places]
        return dict(zip(doors, json.loads(self.python(_KNOCK, json.dumps(addresses))), strict=True))


def outsider(name: str, image: str, labels: Mapping[str, str] | None = None) -> dict[str, Any]:
    """A pod that listens on port 8000 and knows nothing of Ballast."""
    container = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-m", "http.server", str(HTTP)],
        "securityContext": RESTRICTED,
        "readinessProbe": {"tcpSocket": {"port": HTTP}, "periodSeconds": 1},
    }
    spec = {
        "terminationGracePeriodSeconds": 1,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
    }
    metadata = {"name": name, "labels": dict(labels or {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def deny(name: str) -> dict[str, Any]:
    """Nothing may come into the pods of a namespace."""
    spec = {"podSelector": {}, "policyTypes": ["Ingress"]}
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": name}, "spec": spec}


@pytest.fixture(scope="module")
def other_namespaces(cluster: Cluster, module_namespace: str) -> Iterator[dict[str, Kubectl]]:
    """One that nobody has named, and one that `gateway.adminFrom` names."""
    names = {each: f"{module_namespace}-{each}" for each in ("elsewhere", "watchers")}
    for name in names.values():
        cluster.kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield {each: cluster.kubectl.within(name) for each, name in names.items()}
    for name in names.values():
        cluster.kubectl.delete("namespace", name)


@pytest.fixture(scope="module")
def somebody(cluster: Cluster, other_namespaces: dict[str, Kubectl], module_namespace: str) -> dict[str, Somebody]:
    """Pods of people who have nothing to do with the fleet, by name."""
    here, image = cluster.kubectl.within(module_namespace), cluster.images.ballast
    elsewhere, watchers = other_namespaces["elsewhere"], other_namespaces["watchers"]
    found = {
        "stranger": (here, outsider("stranger", image)),
        "like a gateway": (elsewhere, outsider("like-a-gateway", image, GATEWAY_LABELS)),
        "like an engine": (elsewhere, outsider("like-an-engine", image, ENGINE_LABELS)),
        "watcher": (watchers, outsider("watcher", image)),
    }
    for kubectl, pod in found.values():
        kubectl.apply(pod)
    for kubectl, pod in found.values():
        kubectl.run("wait", f"pod/{pod['metadata']['name']}", "--for=condition=Ready", "--timeout=60s", timeout_s=70)
    return {name: Somebody(kubectl, pod["metadata"]["name"]) for name, (kubectl, pod) in found.items()}


@pytest.fixture(scope="module")
def admin_from(release: Release, other_namespaces: dict[str, Kubectl]) -> Iterator[str]:
    """The chart's setting that names the watchers' namespace."""
    label = r"gateway.adminFrom[0].namespaceSelector.matchLabels.kubernetes\.io/metadata\.name"
    setting = f"{label}={other_namespaces['watchers'].namespace}"
    release.upgrade(setting)
    yield setting
    release.upgrade()


@pytest.fixture(scope="module")
def fleet(cluster: Cluster, admin_from: str, somebody: dict[str, Somebody], module_namespace: str) -> Kubectl:
    """Two gateways with both faces, a prefill pod, and a decode pod with its agent."""
    kubectl = cluster.kubectl.within(module_namespace)
    found = objects(cluster.images.ballast, 1.0)
    (spec,) = [item["spec"] for item in found if item["kind"] == "ServingPool"]
    spec["gateway"] |= {"face": "Both", "replicas": 2}
    for pool in spec["pools"]:
        pool["replicas"] = 1
    kubectl.apply(*found)
    wait_serving(kubectl, prefill=1, decode=1, timeout_s=180)
    wait_until(lambda: len(two := gateway_pods(kubectl)) == 2 and all(map(is_ready, two)), 60, "gateways are ready")
    closed_soon(somebody["stranger"], kubectl, (*POD_APIS, *ADMINS))
    gateway = Somebody.of(kubectl, pods(kubectl)["gateway"])
    wait_until(lambda: gateway.knocks(pods(kubectl), POD_APIS) == each(POD_APIS, True), 30, "gateways are let in")
    return kubectl


def pods(fleet: Kubectl) -> dict[str, dict[str, Any]]:
    """The fleet's pods by what they are."""
    gateways = [pod for pod in gateway_pods(fleet) if is_ready(pod)]
    assert len(gateways) == 2
    (prefill,), (decode,) = engine_pods(fleet, "prefill"), engine_pods(fleet, "decode")
    return {"gateway": gateways[0], "other gateway": gateways[1], "engine": prefill, "agent": decode}


SERVING = (f"gateway:{HTTP}", f"gateway:{EXT_PROC}", f"gateway:{HEALTH}", f"engine:{HTTP}", f"agent:{HTTP}")
POD_APIS = (f"gateway:{POD_API_PORT}", f"other gateway:{POD_API_PORT}", f"agent:{POD_API_PORT}")
ADMINS = (f"gateway:{ADMIN}", f"other gateway:{ADMIN}")
BEHIND_AGENT = f"agent:{ENGINE_BEHIND_AGENT}"
"""The engine's own port, on its pod's loopback: closed without a policy."""


def each(doors: Sequence[str], opens: bool) -> Doors:
    return dict.fromkeys(doors, opens)


def opens(who: Somebody, fleet: Kubectl, doors: Sequence[str]) -> bool:
    """Whether all of them do."""
    return all(who.knocks(pods(fleet), doors).values())


def closed_soon(who: Somebody, fleet: Kubectl, doors: Sequence[str]) -> None:
    """A network takes a moment to follow new pods and policies."""
    wait_until(lambda: not any(who.knocks(pods(fleet), doors).values()), 30, f"{who.name} is kept from {doors}")


def test_a_policy_keeps_packets_out_here(somebody: dict[str, Somebody], other_namespaces: dict[str, Kubectl]) -> None:
    """Before it, with it, and after it, between two pods that are none of ours: else the rest would show nothing."""
    watchers, stranger = other_namespaces["watchers"], somebody["stranger"]
    target, door = {"watcher": watchers.get("pod", "watcher")}, [f"watcher:{HTTP}"]
    assert stranger.knocks(target, door) == each(door, True)
    watchers.apply(deny("nobody"))
    try:
        wait_until(lambda: stranger.knocks(target, door) == each(door, False), 30, "the packet is dropped")
    finally:
        watchers.delete("networkpolicy", "nobody")
    wait_until(lambda: stranger.knocks(target, door) == each(door, True), 30, "the packet passes again")


@pytest.mark.parametrize("who", ["stranger", "like a gateway", "like an engine"])
def test_strangers_and_impostors_reach_what_serves_and_no_more(
    who: str, fleet: Kubectl, somebody: dict[str, Somebody]
) -> None:
    """Labels count in the fleet's own namespace only."""
    closed_soon(somebody[who], fleet, (*POD_APIS, *ADMINS))
    closed = (*POD_APIS, *ADMINS, BEHIND_AGENT)
    assert somebody[who].knocks(pods(fleet), (*SERVING, *closed)) == each(SERVING, True) | each(closed, False)


def test_those_whom_the_chart_names_reach_the_admin_port_and_not_the_pod_api(
    fleet: Kubectl, somebody: dict[str, Somebody]
) -> None:
    """Prometheus' namespace, say."""
    doors = somebody["watcher"].knocks(pods(fleet), (*SERVING, *POD_APIS, *ADMINS))
    assert doors == each(SERVING, True) | each(POD_APIS, False) | each(ADMINS, True)


def test_the_operator_reaches_the_admin_port(fleet: Kubectl, release: Release) -> None:
    """It asks gateways what they have learned; in a namespace of its own, that no policy is in."""
    operators = [pod for pod in release.kubectl.items("pods") if is_ready(pod)]
    assert operators, f"no operator runs in {NAMESPACE}"
    for pod in operators:
        doors = Somebody.of(release.kubectl, pod).knocks(pods(fleet), (*POD_APIS, *ADMINS))
        assert doors == each(POD_APIS, False) | each(ADMINS, True)


def test_gateways_reach_agents_and_each_other(fleet: Kubectl) -> None:
    """Orders, reports and the shared view go by the pod API."""
    found = pods(fleet)
    for name in ("gateway", "other gateway"):
        assert Somebody.of(fleet, found[name]).knocks(found, (*SERVING, *POD_APIS)) == each((*SERVING, *POD_APIS), True)


def test_engines_pods_reach_the_admin_port_and_no_pod_api(fleet: Kubectl) -> None:
    """They ask whether they are empty before they end. Their own agent is on their own loopback."""
    found = pods(fleet)
    for name in ("engine", "agent"):
        closed = [door for door in POD_APIS if not door.startswith(f"{name}:")]
        doors = Somebody.of(fleet, found[name]).knocks(found, (*closed, *ADMINS))
        assert doors == each(closed, False) | each(ADMINS, True)


def test_requests_are_served_from_anywhere(fleet: Kubectl, somebody: dict[str, Somebody]) -> None:
    """By the Service's name, and gateways and agents work together behind it."""
    url = f"http://{GATEWAYS}.{fleet.namespace}/v1/completions"
    assert [who.python(_COMPLETE, url) for who in somebody.values()] == ["200"] * len(somebody)
    assert "agents of the decode pods disaggregate" in condition(fleet.get("servingpool", NAME), "Available")["message"]


def test_ports_that_ballast_does_not_know_stay_open(fleet: Kubectl, somebody: dict[str, Somebody]) -> None:
    """Connectors take TCP and UDP ports as they need them, from pods of other namespaces, too."""
    decode = pods(fleet)["agent"]
    start = f"python3 -c '{_OTHER_PORT}' >/dev/null 2>&1 &"
    fleet.exec(f"pod/{decode['metadata']['name']}", "sh", "-c", start)
    who, door = somebody["like a gateway"], [f"agent:{OTHER_PORT}"]
    wait_until(lambda: who.knocks({"agent": decode}, door) == each(door, True), 10, "the TCP port is open")
    assert who.python(_ASK_BY_UDP, decode["status"]["podIP"]) == "well?"


def test_a_gateway_that_comes_is_let_in_and_guarded(fleet: Kubectl, somebody: dict[str, Somebody]) -> None:
    """Policies go by labels: the network follows pods."""
    gone = gateway_pods(fleet)[0]["metadata"]["name"]
    fleet.run("delete", "pod", gone, "--wait=false")

    def new() -> Somebody | None:
        found = pods(fleet)
        names = [found[each]["metadata"]["name"] for each in ("gateway", "other gateway")]
        known = gone in names
        return None if known else Somebody.of(fleet, max(gateway_pods(fleet), key=_made))

    came = wait_until(new, 60, "another gateway is there")
    wait_until(lambda: came.knocks(pods(fleet), POD_APIS) == each(POD_APIS, True), 30, "it reaches all pod APIs")
    closed_soon(somebody["like a gateway"], fleet, (*POD_APIS, *ADMINS))


def _made(pod: Mapping[str, Any]) -> str:
    return str(pod["metadata"]["creationTimestamp"])


def own_policy(namespace: str) -> dict[str, Any]:
    """The one that the documentation tells you to write, for this fleet."""
    page = (Path(__file__).parents[1] / "docs" / "operate" / "security.md").read_text()
    text = page.partition("## A network policy of your own")[2].partition("```yaml\n")[2].partition("```")[0]
    policy: dict[str, Any] = yaml.safe_load(text.replace("serving-pool: chat", f"serving-pool: {NAME}"))
    policy["metadata"]["namespace"] = namespace
    return policy


def test_without_the_policies_every_port_is_open_and_your_own_closes_engines(
    fleet: Kubectl, somebody: dict[str, Somebody], release: Release, admin_from: str
) -> None:
    """The chart's `networkPolicies: false` takes ours away: the packets of the tests above pass. The documentation's
    policy keeps engines to the fleet. Ours come back with the setting, and after one was deleted by hand."""
    guarded, engines = (*POD_APIS, *ADMINS), (f"engine:{HTTP}", f"agent:{HTTP}", f"agent:{POD_API_PORT}")
    release.upgrade(admin_from, "networkPolicies=false")
    wait_until(lambda: not fleet.items("networkpolicies"), 60, "the policies are gone")
    for who in somebody.values():
        wait_until(functools.partial(opens, who, fleet, guarded), 30, f"{who.name} gets through")

    own = own_policy(str(fleet.namespace))
    fleet.apply(own)
    for who in somebody.values():
        closed_soon(who, fleet, engines)
    assert opens(Somebody.of(fleet, pods(fleet)["gateway"]), fleet, engines)
    assert somebody["stranger"].python(_COMPLETE, f"http://{GATEWAYS}/v1/completions") == "200"
    fleet.delete("networkpolicy", own["metadata"]["name"])

    release.upgrade(admin_from)
    closed_soon(somebody["stranger"], fleet, guarded)
    fleet.delete("networkpolicy", ENGINES)
    wait_until(lambda: fleet.find("networkpolicy", ENGINES), 60, "the policy is back")
    closed_soon(somebody["like a gateway"], fleet, guarded)
