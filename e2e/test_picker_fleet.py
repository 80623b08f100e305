"""Through a real Gateway: HTTPRoute -> Envoy Gateway's Envoy -> one of three pickers over ext_proc -> the agent of the
pod that it picked -> prefill and decode engines.

Envoy Gateway comes by its own chart; the operator makes the HTTPRoute, the two policies, the agents and their token.
That requests land where the picker said is shown by three witnesses: the pickers' request logs, Envoy's access log, and
the pods' own counters. Streams are checked word by word: engine-sim's answer to a prompt is known beforehand.

`CHAOS_S` (75) is how long pickers, agents and engines are killed; ten minutes show more.
"""

import asyncio
import dataclasses
import itertools
import json
import os
import random
import re
import statistics
import urllib.parse
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any

import httpx
import pytest

from ballast_sim.workloads import load_workload
from bench.reliability.kit.asking import Ask
from bench.reliability.kit.asking import ask as asking
from bench.reliability.kit.client import Fate, Outcome, send
from bench.reliability.kit.engines import MODEL as CHECKED_MODEL
from kit import Cluster, Kubectl, wait_until
from kit.envoy_gateway import Answer, DataPlane, ask, data_plane, gateway_objects, install, uninstall
from kit.picker_fleet import (
    PICKERS,
    POD_API_PORT,
    TOKEN,
    fleet_objects,
    gateway_pods,
    held,
    kill,
    pod_api,
    tokens,
    wait_whole,
)
from kit.quickstart import AZURE_TRACE, NAME, condition, engine_pods, is_ready, wait_serving
from kit.release import Release

CHAOS_S = float(os.environ.get("CHAOS_S", "75"))
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900 + CHAOS_S), pytest.mark.xdist_group("envoy-gateway")]

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
    kubectl.apply(*fleet_objects(cluster.images.ballast, GATEWAY, CHECKED_MODEL))
    wait_serving(kubectl, prefill=2, decode=4, timeout_s=240)
    wait_whole(kubectl, 240)
    return kubectl


@pytest.fixture(scope="module")
def envoy(cluster: Cluster, fleet: Kubectl, module_namespace: str) -> DataPlane:
    """The Gateway's Envoy, serving the route."""
    found = data_plane(cluster, module_namespace, GATEWAY)

    def answers() -> bool:
        (answer,) = ask(fleet, CLIENT, [{"url": f"{found.url}/v1/models", "method": "GET"}])
        return answer.status == 200

    def steers() -> bool:
        answers = ask(fleet, CLIENT, [completion(found) for _ in range(24)])
        return {answer.status for answer in answers} == {200}

    wait_until(answers, 120, "the route answers", poll_s=1.0)
    # A new Envoy knows the route a moment before it knows how to follow the picker: agents refuse such requests (421).
    wait_until(steers, 60, "Envoy sends requests where the picker says", poll_s=1.0)
    return found


def completion(envoy: DataPlane, headers: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    body = {"model": MODEL, "prompt": "hello there", "max_tokens": 3} | fields
    return {"url": f"{envoy.url}/v1/completions", "headers": headers or {}, "body": body}


def picked(fleet: Kubectl) -> dict[str, str]:
    """What the pickers say: request id (Envoy makes it) -> pod."""
    logs = (fleet.logs(f"pod/{pod['metadata']['name']}", "--tail=-1") for pod in gateway_pods(fleet))
    lines = [line for log in logs for line in log.splitlines() if '"event":"request"' in line]
    records = [json.loads(line) for line in lines]
    return {r["request_id"]: r["decode"] for r in records if r["path"] == "/v1/completions" and "decode" in r}


def served_by_envoy(fleet: Kubectl, envoy: DataPlane) -> dict[str, str]:
    """What Envoy says: request id -> pod, of requests that it sent to one."""
    names = {pod["status"]["podIP"]: pod["metadata"]["name"] for pod in engine_pods(fleet)}
    hosts = {e["x-request-id"]: str(e["upstream_host"]).rpartition(":")[0] for e in envoy.access_log()}
    return {request_id: names[host] for request_id, host in hosts.items() if host in names}


def served_by_pods(fleet: Kubectl, pool: str = "decode") -> Counter[str]:
    """What the pods say: pod -> requests that it completed."""
    pods = engine_pods(fleet, pool)
    pages = ask(fleet, CLIENT, [{"url": f"http://{p['status']['podIP']}:8000/metrics", "method": "GET"} for p in pods])
    values = [re.findall(r"^vllm:request_success_total\{.*\} (\S+)$", page.body, re.MULTILINE) for page in pages]
    return Counter(
        {pod["metadata"]["name"]: int(sum(map(float, found))) for pod, found in zip(pods, values, strict=True)}
    )


def test_every_request_lands_on_the_pod_that_the_picker_chose(fleet: Kubectl, envoy: DataPlane) -> None:
    """Picker, Envoy and pods tell the same story, request by request, also when clients name pods themselves."""
    before = served_by_pods(fleet)
    some_pod = engine_pods(fleet, "prefill")[0]["status"]["podIP"]
    spoof = {"x-gateway-destination-endpoint": f"{some_pod}:8000", "x-prefiller-host-port": "127.0.0.1:1"}
    answers = ask(fleet, CLIENT, [completion(envoy, spoof if k % 3 == 0 else None) for k in range(60)])
    assert [answer.status for answer in answers] == [200] * 60, answers[:3]

    ids = {answer.headers["x-request-id"] for answer in answers}
    assert len(ids) == 60
    wait_until(lambda: picked(fleet).keys() >= ids, 30, "the pickers' logs have 60 requests")
    chosen = {request_id: pod for request_id, pod in picked(fleet).items() if request_id in ids}
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


@pytest.mark.rotating(2)
def test_strangers_are_refused_and_what_agents_tell_counts_in_a_tenants_share(fleet: Kubectl, envoy: DataPlane) -> None:
    """Keys of a mounted Secret. The pickers have one share together, of which outputs take most."""
    key = {"authorization": "Bearer of-a"}
    tenant = {"name": "a", "keys": [sha256(b"of-a").hexdigest()], "tokensPerMinute": 60}
    file = {"stringData": {"keys.yaml": json.dumps({"tenants": [tenant]})}}
    fleet.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, **file})
    mount = {"containers": [{"name": "gateway", "volumeMounts": [{"name": "keys", "mountPath": "/keys"}]}]}
    volume = {"volumes": [{"name": "keys", "secret": {"secretName": "keys"}}]}
    checked = {"settings": {"keys": {"file": "/keys/keys.yaml"}}, "template": {"spec": {**mount, **volume}}}
    before = {name: fleet.get("servingpool", NAME)["spec"]["gateway"].get(name) for name in checked}

    def said(count: int, headers: dict[str, str] | None = None, **fields: Any) -> set[tuple[int, str]]:
        answers = ask(fleet, CLIENT, [completion(envoy, headers, **fields) for _ in range(count)])
        bodies = [(each.status, json.loads(each.body)) for each in answers if each.status]
        return {(status, body["error"]["code"] if "error" in body else "") for status, body in bodies}

    try:
        fleet.patch("servingpool", NAME, {"spec": {"gateway": checked}})
        wait_until(lambda: said(12) == {(401, "invalid-api-key")}, 180, "no picker lets strangers in", poll_s=1.0)
        assert said(1, {"authorization": "Bearer of-b"}) == {(401, "invalid-api-key")}
        assert said(12, key, max_tokens=40) == {(200, "")}  # of some 45 tokens each, 40 of which are not known yet
        wait_until(lambda: (429, "tenant-limit") in said(6, key), 30, "outputs have used the share up")
    finally:
        fleet.patch("servingpool", NAME, {"spec": {"gateway": before}})
        wait_until(lambda: said(12) == {(200, "")}, 180, "everybody is let in again", poll_s=1.0)
        wait_whole(fleet, 120)


def test_two_serving_pools_share_the_gateway_and_a_refused_route_is_said(fleet: Kubectl, envoy: DataPlane) -> None:
    """The second one takes requests whose header names its model, the first all others. Without that it would get none,
    and says so, with the route that has them. Where the Gateway stops to take
    their routes, both say so, and the one that is reached by no other way is not available."""
    second = json.loads(json.dumps(fleet.get("servingpool", NAME)["spec"]))
    template = second["pools"][0]["template"]
    hardware = second["pools"][0]["hardware"]
    second["pools"] = [
        {"name": "all", "role": "Flexible", "hardware": hardware, "replicas": 1, "template": template},
    ]
    second["model"] = {"name": MODEL, "servedNames": ["second"]}
    second["gateway"] = {"replicas": 1, "parentRefs": [{"name": GATEWAY}]}
    kept = {key: second[key] for key in ("model", "engine", "pools", "gateway")}
    api = {"apiVersion": "serving.ballast.dev/v1alpha1", "kind": "ServingPool", "metadata": {"name": "second"}}
    fleet.apply({**api, "spec": kept})

    def said(name: str, kind: str) -> tuple[str, str]:
        found = condition(fleet.get("servingpool", name), kind)
        return found.get("status", ""), found.get("reason", "")

    wait_until(lambda: said("second", "Degraded") == ("True", "RouteShadowed"), 60, "the second one says it gets none")
    message = condition(fleet.get("servingpool", "second"), "Degraded")["message"]
    assert f"/{NAME}-gateway is older and matches alike" in message
    assert said(NAME, "Degraded")[0] == "False"
    fleet.patch("servingpool", "second", {"spec": {"gateway": {"match": {"byModel": True}}}})
    wait_until(lambda: said("second", "Degraded")[0] == "False", 60, "it is told apart now")
    wait_until(lambda: said("second", "Available")[0] == "True", 120, "the second ServingPool serves")
    to_second = completion(envoy, {"x-gateway-model-name": "second"}, model="second")

    def routed() -> bool:
        return [answer.status for answer in ask(fleet, CLIENT, [to_second, completion(envoy)])] == [200, 200]

    wait_until(routed, 60, "each request is served by the ServingPool of its model", poll_s=1.0)
    (mixed_up,) = ask(fleet, CLIENT, [completion(envoy, model="second")])
    assert mixed_up.status == 404  # no header: the first one's, which has no such model
    listener = fleet.get("gateway", GATEWAY)["spec"]["listeners"][0]
    closed = {**listener, "allowedRoutes": {"kinds": [{"kind": "GRPCRoute"}]}}
    fleet.patch("gateway", GATEWAY, {"spec": {"listeners": [closed]}})
    refused = ("True", "RouteNotAccepted")
    wait_until(lambda: said(NAME, "Degraded") == said("second", "Degraded") == refused, 120, "both say it")
    print(condition(fleet.get("servingpool", NAME), "Degraded")["message"])
    assert said(NAME, "Available") == ("False", "RouteNotAccepted")
    assert said("second", "Available")[0] == "True"
    assert said(NAME, "ResolvedRefs") == ("False", "RouteNotAccepted")
    fleet.patch("gateway", GATEWAY, {"spec": {"listeners": [listener]}})
    wait_until(lambda: said(NAME, "Available")[0] == "True" and said(NAME, "Degraded")[0] == "False", 120, "healed")
    wait_until(routed, 60, "both serve again", poll_s=1.0)
    fleet.delete("servingpool", "second")


# --- Streams whose answers are known ---------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Front:
    """Where this process reaches the Gateway's Envoy."""

    host: str
    port: int

    async def send(self, one: Ask, *, bound_s: float = 60.0) -> Outcome:
        """Ask once, and check every word of the answer."""
        return await send(self.port, one, "e2e", bound_s=bound_s, host=self.host)


@pytest.fixture
def front(cluster: Cluster, envoy: DataPlane) -> Front:
    """Envoy's Service, from within the cluster's network."""
    if not cluster.is_testbed:
        pytest.skip("streams are checked, and processes killed, from within the test bed")
    (service,) = envoy.kubectl.items("services", envoy.selector)
    return Front(service["spec"]["clusterIP"], 80)


Arrivals = Iterator[tuple[float, int, int]]
"""Seconds from the beginning, prompt tokens, output tokens."""


QUIET_S = 75.0
"""The trace's beginning at half its rate: one request a second, and 2.5 from then on."""


def even(rps: float, seed: int) -> Arrivals:
    """Requests of all sizes at even times."""
    rng = random.Random(seed)
    return ((number / rps, rng.randrange(50, 1500), rng.randrange(20, 150)) for number in itertools.count())


def public_trace() -> Arrivals:
    """The public trace at half its rate, as two cores carry it, without its quiet beginning; built-in chats where it is
    not beside the checkout."""
    trace = {"trace": AZURE_TRACE} if AZURE_TRACE.exists() else {"workload": "chat", "rate_rps": 4.0}
    return (
        (each.arrival_s - QUIET_S, each.input_tokens, each.output_tokens)
        for each in load_workload(duration_s=3000.0, rate_scale=0.5, **trace)
        if each.arrival_s >= QUIET_S
    )


@asynccontextmanager
async def load(front: Front, arrivals: Arrivals, seed: int) -> AsyncIterator[list[asyncio.Task[Outcome]]]:
    """Requests on their way; every fifth cannot be replayed. At the end all have ended."""
    running: list[asyncio.Task[Outcome]] = []
    loop = asyncio.get_running_loop()
    begun_s = loop.time()

    async def arrive() -> None:
        for number, (at_s, prompt, output) in enumerate(arrivals):
            await asyncio.sleep(begun_s + at_s - loop.time())
            one = asking(number, prompt_tokens=prompt, output_tokens=output, replayable=number % 5 != 4, seed=seed)
            running.append(asyncio.create_task(front.send(one)))

    source = asyncio.create_task(arrive())
    try:
        yield running
    finally:
        assert not source.done(), "no more requests were sent"
        source.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def read_by(fleet: Kubectl, pod: dict[str, Any]) -> list[str]:
    """The tokens that a pod's agent or gateway has before it."""
    container = "gateway" if pod["spec"]["containers"][0]["name"] == "gateway" else "agent"
    target = f"pod/{pod['metadata']['name']}"
    return fleet.text("exec", target, "--container", container, "--", "cat", "/etc/ballast-token/token").split()


def fates(outcomes: list[Outcome]) -> str:
    """For a failed assertion, and for people."""
    return str(Counter(f"{each.fate} {each.status} {each.reason}".strip() for each in outcomes))


async def test_prompts_are_computed_by_prefill_engines_behind_envoy(fleet: Kubectl, front: Front) -> None:
    """The status says so, the prefill engines' counters show it, and it is faster than the decode pod alone."""
    assert "agents of the decode pods disaggregate" in condition(fleet.get("servingpool", NAME), "Available")["message"]
    before = served_by_pods(fleet, "prefill").total()
    asks = [asking(number, prompt_tokens=2000, output_tokens=4, seed=1) for number in range(16)]
    through = [await front.send(one) for one in asks[:8]]
    assert served_by_pods(fleet, "prefill").total() - before == 8
    pod = engine_pods(fleet, "decode")[0]["status"]["podIP"]
    alone = [await Front(pod, 8000).send(one) for one in asks[8:]]
    assert {each.fate for each in [*through, *alone]} == {Fate.WHOLE}, fates([*through, *alone])
    ttft_s = [statistics.median(each.ttft_s or 0.0 for each in each_way) for each_way in (through, alone)]
    print(f"\nTTFT of 2,000 tokens behind Envoy {ttft_s[0]:.2f} s, on a decode engine alone {ttft_s[1]:.2f} s")
    assert ttft_s[0] < 0.8 * ttft_s[1]


async def test_a_stream_that_is_moved_says_what_it_would_have_said(fleet: Kubectl, front: Front) -> None:
    """Ordered by hand at the agent that holds it; word by word as without."""
    (token, *_), pods = tokens(fleet), engine_pods(fleet, "decode")
    stream = asyncio.create_task(front.send(asking(1, prompt_tokens=300, output_tokens=400, seed=2)))
    by_name = {pod["metadata"]["name"]: pod for pod in pods}

    def decoding() -> tuple[str, dict[str, Any]] | None:
        rows = [(name, row) for name, pod in by_name.items() for row in held(pod, token)]
        return next(((name, row) for name, row in rows if row["phase"] == "decoding" and row.get("movable")), None)

    holder, row = await asyncio.to_thread(wait_until, decoding, 30, "an agent holds the stream")
    target = next(name for name in by_name if name != row["decode"])
    order = {"request_id": row["id"], "target": target}
    said = await asyncio.to_thread(pod_api, by_name[holder], "/ballast/v1/migrations", token, order)
    assert said.status == 202, said

    def moved() -> bool:
        return any(each["decode"] == target for each in held(by_name[holder], token) if each["id"] == row["id"])

    await asyncio.to_thread(wait_until, moved, 30, "the stream is decoded elsewhere")
    outcome = await stream
    assert outcome.fate is Fate.WHOLE, fates([outcome])
    print(f"\nlongest pause of the moved stream {outcome.pause_s * 1000:.0f} ms")


def test_one_of_the_pickers_leads(fleet: Kubectl) -> None:
    """By the Lease that the operator has made, with no right to make one."""
    names = {pod["metadata"]["name"] for pod in gateway_pods(fleet)}

    def led() -> bool:
        spec = fleet.get("lease", f"{NAME}-gateway").get("spec") or {}
        return spec.get("holderIdentity") in names

    wait_until(led, 60, "a picker holds the Lease")


def test_strangers_get_nothing_from_the_pod_api(fleet: Kubectl, envoy: DataPlane, front: Front) -> None:
    """Without the token, with another one, by way of Envoy: nothing is said and nothing is done."""
    holders = [engine_pods(fleet, "decode")[0], gateway_pods(fleet)[0]]
    for pod in holders:
        for token in (None, "0" * 64):
            for target, body in (("/ballast/v1/state", None), ("/ballast/v1/drain", {"on": True})):
                said = pod_api(pod, target, token, body)
                assert (said.status, said.body["error"]["code"]) == (401, "unauthorized"), (target, said)
        assert pod_api(pod, "/ballast/v1/state", tokens(fleet)[0]).status == 200
    (answer,) = ask(fleet, CLIENT, [{"url": f"{envoy.url}/v1/../ballast/v1/state", "method": "GET"}])
    assert answer.status == 404
    url = f"http://{front.host}:{front.port}/ballast/v1/state"
    assert urllib.parse.urlsplit(url).hostname
    (answer,) = ask(fleet, CLIENT, [{"url": url, "method": "GET"}])
    assert answer.status == 404


async def test_a_picker_that_is_deleted_costs_no_stream_and_no_request(fleet: Kubectl, front: Front) -> None:
    """Its ext_proc streams go on as long as the streams that Envoy has by them; others take what comes."""
    before = {pod["metadata"]["name"] for pod in gateway_pods(fleet)}
    gone = min(before)

    def replaced() -> bool:
        pods = gateway_pods(fleet)
        return sum(is_ready(pod) for pod in pods if pod["metadata"]["name"] != gone) == PICKERS

    asks = [asking(number, prompt_tokens=60, output_tokens=3000, seed=5) for number in range(12)]
    long = [asyncio.create_task(front.send(one, bound_s=300)) for one in asks]
    await asyncio.sleep(3)
    async with load(front, even(3.0, seed=6), seed=6) as running:
        await asyncio.to_thread(fleet.run, "delete", "pod", gone, "--wait=false")
        await asyncio.to_thread(wait_until, replaced, 60, "another picker is there")
        outcomes = await asyncio.gather(*long)
    others = [task.result() for task in running]
    lasted = [each.ended_s - each.asked_s for each in outcomes]
    print(f"\n{fates(outcomes)} of {min(lasted):.0f} to {max(lasted):.0f} s, {fates(others)} beside them")
    assert {each.fate for each in outcomes} == {Fate.WHOLE}, fates(outcomes)
    assert {each.fate for each in others} == {Fate.WHOLE}, fates(others)
    await asyncio.to_thread(wait_whole, fleet, 320)


async def test_a_rotation_of_the_token_breaks_nothing(fleet: Kubectl, front: Front) -> None:
    """Announced, signing, alone, under load. Time is helped along: the steps' age, and the kubelets' next sync."""
    (old,) = tokens(fleet)
    pods = [*gateway_pods(fleet), *engine_pods(fleet, "decode")]

    def next_step(*annotation: str) -> list[str]:
        """The tokens after the operator's next step, when every pod has read them."""
        before = tokens(fleet)
        fleet.run("annotate", "servingpool", NAME, "--overwrite", *annotation)
        now = wait_until(lambda: found if (found := tokens(fleet)) != before else None, 60, "the Secret's next step")
        names = [pod["metadata"]["name"] for pod in pods]
        # A kubelet looks at a pod that has changed, and at its volumes.
        fleet.run("annotate", "pod", *names, "--overwrite", f"step={len(now)}-{annotation[0][-8:]}")
        wait_until(lambda: all(read_by(fleet, pod) == now for pod in pods), 120, "every pod has read it", poll_s=2.0)
        return now

    def old_enough() -> None:
        """The step began long ago."""
        since = {"serving.ballast.dev/token-step-time": "2026-01-01T00:00:00Z"}
        fleet.patch("secret", TOKEN, {"metadata": {"annotations": since}})

    def rotate() -> None:
        announced = next_step("serving.ballast.dev/rotate-token=once")
        assert announced[:1] == [old]
        old_enough()
        assert next_step("step=signing") == announced[::-1]
        old_enough()
        assert next_step("step=alone") == announced[1:]

    async with load(front, even(2.0, seed=3), seed=3) as running:
        await asyncio.to_thread(rotate)
    outcomes = [task.result() for task in running]
    print(f"\n{len(outcomes)} requests while the token was rotated")
    assert {each.fate for each in outcomes} == {Fate.WHOLE}, fates(outcomes)


# --- A second fleet, which cuts prompts and moves streams by itself -----------------------------------------------

MOVING, MOVING_HOST = "moving", "moving.example"


@pytest.fixture
def moving(fleet: Kubectl, front: Front) -> Iterator[None]:
    """Two Flexible engines behind two pickers, on the same Gateway by its hostname; `libra` cuts, `ares` moves."""
    spec = json.loads(json.dumps(fleet.get("servingpool", NAME)["spec"]))
    pool = {"name": "all", "role": "Flexible", "replicas": 2, "template": spec["pools"][1]["template"]}
    engine = spec["engine"]
    engine["kvConnector"]["config"] = {"kv_connector_extra_config": {"bidirectional_kv_xfer": True}}
    api = "serving.ballast.dev/v1alpha1"
    policy = {
        "prefill": {"type": "least-uncached-tokens"},
        "decode": {"type": "least-requests"},
        "admission": {"type": "open"},  # two engines are to have more prompts than they can take at once
        "partition": {"type": "libra", "parameters": {"cuts": "prompt"}},
        "rescheduling": {"type": "ares", "parameters": {"intervalS": 0.5, "minStayS": 2.0}},
    }
    wanted = {
        "model": spec["model"],
        "engine": engine,
        "pools": [pool | {"hardware": spec["pools"][1]["hardware"]}],
        "policyRef": {"name": MOVING},
        "gateway": {
            "face": "Picker",
            "replicas": 2,
            "parentRefs": [{"name": GATEWAY}],
            "hostnames": [MOVING_HOST],
        },
    }
    fleet.apply(
        {"apiVersion": api, "kind": "SchedulingPolicy", "metadata": {"name": MOVING}, "spec": policy},
        {"apiVersion": api, "kind": "ServingPool", "metadata": {"name": MOVING}, "spec": wanted},
    )

    def available() -> bool:
        return condition(fleet.get("servingpool", MOVING), "Available").get("status") == "True"

    wait_until(available, 240, "the second fleet serves")
    yield
    fleet.delete("servingpool", MOVING)
    fleet.delete("schedulingpolicy", MOVING)


def of_moving(number: int, *, prompt_tokens: int, output_tokens: int, seed: int) -> Ask:
    """A request for the second fleet."""
    one = asking(number, prompt_tokens=prompt_tokens, output_tokens=output_tokens, seed=seed)
    return dataclasses.replace(one, host=MOVING_HOST)


def moving_engines(fleet: Kubectl) -> list[dict[str, Any]]:
    """Its pods that are ready."""
    selector = f"serving.ballast.dev/serving-pool={MOVING},app.kubernetes.io/component=engine"
    return [pod for pod in fleet.items("pods", selector) if is_ready(pod)]


def counted(fleet: Kubectl, port: int, target: str, name: str) -> float:
    """A counter's sum over the second fleet's engine pods; `name` may have labels.

    Asked from here, a process of the nodes: NetworkPolicies keep the client's pod from the pod API.
    """
    headers = {"authorization": f"Bearer {tokens(fleet, f'{MOVING}-gateway-token')[0]}"}
    urls = [f"http://{pod['status']['podIP']}:{port}{target}" for pod in moving_engines(fleet)]
    pages = [httpx.get(url, headers=headers, trust_env=False).raise_for_status().text for url in urls]
    lines = [line.rpartition(" ") for page in pages for line in page.splitlines()]
    return sum(float(value) for said, _, value in lines if said.startswith(name))


@pytest.mark.rotating(2)
@pytest.mark.usefixtures("moving")
async def test_pickers_have_prompts_cut_and_streams_moved_by_agents(fleet: Kubectl, front: Front) -> None:
    """Two engines share long prompts; a third one that comes takes over running streams. Every byte is as without."""

    def routed() -> bool:
        return asyncio.run(front.send(of_moving(0, prompt_tokens=60, output_tokens=2, seed=8))).fate is Fate.WHOLE

    await asyncio.to_thread(wait_until, routed, 60, "its route serves", 1.0)
    asks = [of_moving(number, prompt_tokens=2000, output_tokens=8, seed=9) for number in range(12)]
    tasks = []
    for one in asks:
        tasks.append(asyncio.create_task(front.send(one)))
        await asyncio.sleep(0.25)
    outcomes = await asyncio.gather(*tasks)
    assert {each.fate for each in outcomes} == {Fate.WHOLE}, fates(outcomes)
    pulled = await asyncio.to_thread(counted, fleet, 8000, "/metrics", "vllm:external_prefix_cache_hits_total")
    print(f"\n{pulled:.0f} of {2000 * len(asks)} prompt tokens were computed by another engine than the rest")
    assert 0 < pulled < 2000 * len(asks)

    long = [of_moving(number, prompt_tokens=200, output_tokens=2500, seed=10) for number in range(16)]
    tasks = [asyncio.create_task(front.send(one, bound_s=300)) for one in long]
    await asyncio.sleep(3)
    spec = {"pools": [each | {"replicas": 3} for each in fleet.get("servingpool", MOVING)["spec"]["pools"]]}
    fleet.patch("servingpool", MOVING, {"spec": spec})
    outcomes = await asyncio.gather(*tasks)
    assert {each.fate for each in outcomes} == {Fate.WHOLE}, fates(outcomes)
    metrics = ('ballast_agent_migrations_total{outcome="moved"}', "ballast_agent_migration_pause_seconds_total")
    page = "/ballast/v1/metrics"
    moved, silent_s = [await asyncio.to_thread(counted, fleet, POD_API_PORT, page, each) for each in metrics]
    assert moved >= 2
    pause_s = statistics.median(each.pause_s for each in outcomes)
    print(
        f"{moved:.0f} moves of {len(long)} streams; {silent_s / moved * 1000:.0f} ms of silence in each on average; a "
        f"stream's longest pause, moved or not, {pause_s:.2f} s (median)"
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Kill:
    """A process that was killed."""

    from_s: float
    """It died between these two, on the loop's clock."""
    until_s: float
    container: str
    pod: str
    held: int
    """Streams that it held, where it was an agent."""

    def may_have_hit(self, one: Outcome) -> bool:
        """Whether a request ran then, and ended within what it takes to notice."""
        return one.asked_s <= self.until_s and self.from_s <= one.ended_s < self.until_s + NOTICED_S


NOTICED_S = 5.0
PAUSE_S = (4.0, 9.0)
"""Between two kills. What is killed is up again some seconds later, and its turn comes again only then."""
VICTIMS = ("gateway", "agent", "engine")


@pytest.mark.rotating(2)
async def test_pickers_agents_and_engines_die_at_random_and_only_their_own_streams_with_them(
    cluster: Cluster, fleet: Kubectl, front: Front, envoy: DataPlane
) -> None:
    """Under the public trace a stream ends early if the process that held it was killed, or if its engine was and it
    cannot be replayed; the bytes of every other one are right to the end. A new request is refused only where too
    little is left: 429."""
    rng, kills = random.Random(int(CHAOS_S)), list[Kill]()
    loop = asyncio.get_running_loop()
    token = tokens(fleet)[0]

    def strike() -> Kill | None:
        """Kill something whose like is ready elsewhere, so that there is a way on."""
        container = rng.choice(VICTIMS)
        pods = gateway_pods(fleet) if container == "gateway" else engine_pods(fleet, _pool_of(container, rng))
        if not all(map(is_ready, pods)):
            return None
        pod = rng.choice(pods)
        rows = held(pod, token) if container == "agent" else []
        name, from_s = pod["metadata"]["name"], loop.time()
        if not kill(cluster, name, container):
            return None
        return Kill(from_s, loop.time(), container, name, len(rows))

    async with load(front, public_trace(), seed=4) as running:
        until_s = loop.time() + CHAOS_S
        while loop.time() < until_s:
            await asyncio.sleep(rng.uniform(*PAUSE_S))
            struck = await asyncio.to_thread(strike)
            if struck is not None:
                kills.append(struck)
    outcomes = [task.result() for task in running]
    lost = [each for each in outcomes if each.fate is not Fate.WHOLE]
    reasons = Counter(_why_lost(each, kills) for each in lost)
    killed, whole = Counter(each.container for each in kills), len(outcomes) - len(lost)
    print(f"\n{len(outcomes)} requests, killed {dict(killed)}, lost {dict(reasons)}")
    assert len(outcomes) > 1.5 * CHAOS_S
    assert whole > 0.8 * len(outcomes), fates(lost)
    assert not any(each.fate is Fate.WRONG for each in outcomes), fates(lost)
    unexplained = [each for each in lost if _why_lost(each, kills) == "unexplained"]
    assert not unexplained, f"{fates(unexplained)}; what Envoy says of its refusals: {refusals(envoy)}"
    assert reasons[HELD] <= sum(each.held + 1 for each in kills if each.container == "agent")
    assert killed.keys() == set(VICTIMS)
    await asyncio.to_thread(wait_whole, fleet, 320)


def refusals(envoy: DataPlane) -> Counter[str]:
    """What Envoy says of the answers of 500 and above."""
    named = ("response_code", "response_flags", "response_code_details", "upstream_transport_failure_reason")
    bad = [entry for entry in envoy.access_log() if int(entry["response_code"]) >= 500]
    return Counter(" ".join(str(entry.get(name)) for name in named) for entry in bad)


HELD, NOT_REPLAYABLE = "held by an agent that was killed", "cannot be replayed"
REFUSED = "refused while engines were away"
AWAY_S = 60.0
"""How long an engine may be away: it starts in seconds, and the test bed's kubelets wait 10 s at most before that."""


def _pool_of(container: str, rng: random.Random) -> str:
    return "decode" if container == "agent" else rng.choice(["prefill", "decode"])


def _why_lost(one: Outcome, kills: list[Kill]) -> str:
    if one.status == 429:
        away = any(one.asked_s - AWAY_S < each.from_s <= one.ended_s for each in kills if each.container != "gateway")
        return REFUSED if away else "unexplained"
    hit_by = {each.container for each in kills if each.may_have_hit(one)}
    if "agent" in hit_by:
        return HELD
    return NOT_REPLAYABLE if "engine" in hit_by and not one.ask.replayable else "unexplained"
