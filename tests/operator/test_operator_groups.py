"""Instances that span several nodes: a LeaderWorkerSet instead of a Deployment, and all else as with one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from ballast_operator.kinds import LEADER_WORKER_SET, Manifest, key_of
from ballast_operator.planning.plan import plan
from ballast_operator.planning.scaling import steered
from ballast_operator.rollouts.workloads import ending_of
from ballast_operator.specs.engine_group import MAX_NAME, engine_group_name
from tests.support.object_store import ObjectStore
from tests.support.operator_builders import (
    NAMESPACE,
    NOW,
    observed,
    pod,
    pool,
    profile,
    reconciler,
    serving_pool,
    stored_condition,
)
from tests.support.testbed_programs import missing

DEFINITION = (
    Path(os.environ.get("GOMODCACHE", Path.home() / "go" / "pkg" / "mod"))
    / "sigs.k8s.io/lws@v0.7.0/config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml"
)
INSTALLED = frozenset({LEADER_WORKER_SET})
WIDE = pool("decode", "Decode", replicas=4, nodesPerInstance=2, tensorParallelSize=8)
NARROW = pool("prefill", "Prefill", hardware="a100")


def spanning(**spec: Any) -> Manifest:
    """Prefill on one node each, decode on two."""
    return serving_pool(NARROW, WIDE, **spec)


def group_of(manifest: Manifest) -> Manifest:
    """The one LeaderWorkerSet of its plan."""
    (found,) = [item for item in plan(observed(manifest, optional_kinds=INSTALLED)).apply if is_group(item)]
    return found


def is_group(item: Manifest) -> bool:
    return bool(item["kind"] == "LeaderWorkerSet")


def parts(group: Manifest) -> tuple[Manifest, Manifest]:
    """Templates of leader and worker."""
    template = group["spec"]["leaderWorkerTemplate"]
    return template["leaderTemplate"], template["workerTemplate"]


def engine(template: Manifest) -> Manifest:
    (found,) = [each for each in template["spec"]["containers"] if each["name"] == "engine"]
    return dict(found)


def value(arguments: list[str], option: str) -> str:
    """The last one counts."""
    at = len(arguments) - 1 - arguments[::-1].index(option)
    return arguments[at + 1]


def test_the_ranks_of_an_instance_are_spread_over_its_nodes() -> None:
    """vLLM's mp executor: no pipeline stages, which NixlConnector cannot pull from."""
    group = group_of(spanning(engine={"image": "registry.test/engine:1", "args": ["--seed", "7"]}))
    leader, worker = (engine(part) for part in parts(group))
    assert group["spec"]["leaderWorkerTemplate"]["size"] == 2
    for container, rank in ((leader, "0"), (worker, "$(LWS_WORKER_INDEX)")):
        assert value(container["args"], "--tensor-parallel-size") == "16"
        assert value(container["args"], "--nnodes") == "2"
        assert value(container["args"], "--node-rank") == rank
        assert value(container["args"], "--master-addr") == "$(LWS_LEADER_ADDRESS)"
        assert container["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    assert ("--headless" in worker["args"], "--headless" in leader["args"]) == (True, False)
    common = worker["args"][: worker["args"].index("--nnodes")]
    assert common == leader["args"][: len(common)]


def test_only_the_leader_is_an_endpoint() -> None:
    """What finds engines finds leaders: gateways, Services, budgets. Workers have no port, probe or agent."""
    group = group_of(spanning(gateway={"face": "Both"}))
    leader, worker = parts(group)
    assert leader["metadata"]["labels"]["app.kubernetes.io/component"] == "engine"
    assert worker["metadata"]["labels"]["app.kubernetes.io/component"] == "engine-worker"
    assert "serving.ballast.dev/pool" not in worker["metadata"]["labels"]
    assert leader["metadata"]["labels"]["serving.ballast.dev/kv-revision"] in group["metadata"]["name"]
    assert [each["name"] for each in leader["spec"]["initContainers"]] == ["agent"]
    assert "initContainers" not in worker["spec"]
    assert not {"ports", "readinessProbe", "startupProbe", "livenessProbe", "lifecycle"} & engine(worker).keys()
    assert "terminationGracePeriodSeconds" not in worker["spec"]


def test_no_overlay_takes_the_group_apart() -> None:
    """`args` of an overlay replace ours; those that make the group stand after them, in all pods."""
    overlay = {"spec": {"containers": [{"name": "engine", "args": ["serve", "other"]}], "nodeSelector": {"rack": "a"}}}
    group = group_of(serving_pool(NARROW, {**WIDE, "template": overlay}))
    for part in parts(group):
        assert engine(part)["args"][:3] == ["serve", "other", "--nnodes"]
        assert part["spec"]["nodeSelector"]["rack"] == "a"


def test_gpus_of_all_nodes_count_for_the_budget() -> None:
    """4 instances of 2 nodes of 8, and 2 of 1: the profile has the GPUs that the spec leaves out."""
    wide = {key: item for key, item in WIDE.items() if key != "tensorParallelSize"}
    eight = {"a100": profile("a100"), "h20": profile("h20", gpus=8)}
    enough, less = (
        plan(observed(serving_pool(NARROW, wide, gpuBudget=budget), profiles=eight, optional_kinds=INSTALLED)).problems
        for budget in (66, 65)
    )
    assert enough == ()
    assert "64 (decode) = 66 GPUs" in less[0].message


def test_scaling_counts_the_gpus_of_all_nodes_of_an_instance() -> None:
    """Else a decision goes beyond the budget, and the budget then holds all that it is for."""
    wide = {key: item for key, item in WIDE.items() if key != "tensorParallelSize"}
    eight = {"a100": profile("a100"), "h20": profile("h20", gpus=8)}
    auto = serving_pool(NARROW, wide, gpuBudget=66, ratio={"mode": "Auto"})
    found = observed(auto, profiles=eight, optional_kinds=INSTALLED)
    asked = steered(found, plan(found), b"t" * 32)
    assert asked is not None
    assert {pool.name: pool.gpus for pool in asked.pools} == {"prefill": 1, "decode": 16}


def test_without_its_api_the_pool_waits_and_all_else_goes_on() -> None:
    """The condition says what to install; what runs is neither changed nor pruned, also where the API went away."""
    found = plan(observed(spanning()))
    written = {str(key_of(item)) for item in found.apply}
    assert {"Deployment chat-prefill", "Deployment chat-gateway", "Service chat-decode"} <= written
    assert not {"Deployment chat-decode", "LeaderWorkerSet chat-decode"} & written
    (problem,) = found.problems
    assert problem.field == "spec.pools[1].nodesPerInstance"
    assert "leaderworkerset.x-k8s.io/v1" in str(problem)
    assert "helm install lws" in str(problem)


def test_several_revisions_roll_by_groups_as_pods_do() -> None:
    """Another image: a second set beside the first; each step is bounded; at the end the first one is gone."""
    store = ObjectStore(profile("a100"), profile("h20"), spanning())
    for _ in range(2):
        reconciler(store).serving_pool(NAMESPACE, "chat")
        run(store)
    (first,) = groups(store)
    edited = spanning(generation=2, engine={"image": "registry.test/engine:2"})
    store.put({**edited, "status": store.objects["ServingPool", NAMESPACE, "chat"]["status"]})
    seen = []
    for _ in range(20):
        reconciler(store).serving_pool(NAMESPACE, "chat")
        seen.append({name: item["spec"]["replicas"] for name, item in groups(store).items()})
        run(store)
    reconciler(store).serving_pool(NAMESPACE, "chat")
    assert all(4 <= sum(each.values()) <= 5 for each in seen)  # maxSurge 25 %, maxUnavailable 0
    assert max(len(each) for each in seen) == 2
    (last,) = groups(store)
    assert last != first
    assert stored_condition(store, "Progressing")["reason"] == "Complete"
    (status,) = [
        each for each in store.objects["ServingPool", NAMESPACE, "chat"]["status"]["pools"] if each["role"] == "Decode"
    ]
    assert (status["replicas"], status["readyReplicas"], status["updatedReplicas"]) == (4, 4, 4)


def test_from_one_node_to_two_the_pool_rolls_over_from_its_deployment() -> None:
    """Of one KV revision: NixlConnector reads caches of another tensor parallel size, so the other pool stays."""
    store = ObjectStore(profile("a100"), profile("h20"), serving_pool(NARROW, {**WIDE, "nodesPerInstance": 1}))
    for _ in range(2):
        reconciler(store).serving_pool(NAMESPACE, "chat")
        run(store)
    before = store.objects["Deployment", NAMESPACE, "chat-prefill"]["spec"]
    store.put({**spanning(generation=2), "status": store.objects["ServingPool", NAMESPACE, "chat"]["status"]})
    ready = []
    for _ in range(20):
        reconciler(store).serving_pool(NAMESPACE, "chat")
        run(store)
        ready.append(sum(item["status"]["readyReplicas"] for item in workloads(store, "decode")))
    assert min(ready) >= 4
    assert store.objects["Deployment", NAMESPACE, "chat-prefill"]["spec"] == before
    assert [(item["kind"], item["spec"]["replicas"]) for item in workloads(store, "decode")] == [("LeaderWorkerSet", 4)]


def test_names_leave_room_for_what_the_controller_makes_of_them() -> None:
    """StatefulSets give pods a label of their name and a hash."""
    long = engine_group_name("a" * 61, 16, "0123456789")
    assert len(long) == MAX_NAME
    assert long != engine_group_name("a" * 60 + "b", 16, "0123456789")
    assert engine_group_name("chat-decode", 2, "0123456789") == "chat-decode-2n-0123456789"


def test_a_published_definition_takes_the_generated_set(golden: Callable[[str, str], None]) -> None:
    """The golden file was applied to a real API server with the CRD of LWS v0.7.0, strictly. Where Go has that module
    in its cache, its schema is asked again."""
    group = group_of(spanning(gateway={"face": "Both"}))
    golden("leader_worker_set.yaml", yaml.safe_dump(group, sort_keys=False, width=120))
    if not DEFINITION.exists():
        missing(f"no {DEFINITION}: go mod download sigs.k8s.io/lws@v0.7.0 brings it")
    definition = yaml.load(DEFINITION.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert list(strangers(group["spec"], schema["properties"]["spec"], "spec")) == []


TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "boolean": (bool,),
}


def strangers(value: Any, schema: Manifest, path: str) -> Iterator[str]:
    """Fields that the schema does not know, lacks, or has with another type or other values."""
    if schema.get("x-kubernetes-int-or-string"):
        schema = {"type": "integer" if isinstance(value, int) else "string"}
    if not isinstance(value, TYPES[schema["type"]]) or value not in schema.get("enum", [value]):
        yield path
    elif isinstance(value, dict):
        known = schema.get("properties", {})
        yield from (f"{path}.{each}" for each in schema.get("required", ()) if each not in value)
        for key, item in value.items():
            below = known.get(key) or schema.get("additionalProperties")
            yield from strangers(item, below, f"{path}.{key}") if below else [f"{path}.{key}"]
    elif isinstance(value, list):
        for item in value:
            yield from strangers(item, schema["items"], path)


def groups(store: ObjectStore) -> dict[str, Manifest]:
    return {name: item for (kind, _, name), item in store.objects.items() if kind == "LeaderWorkerSet"}


def workloads(store: ObjectStore, of: str) -> list[Manifest]:
    return [
        item
        for (kind, _, _), item in store.objects.items()
        if kind in ("Deployment", "LeaderWorkerSet")
        and item["metadata"]["labels"].get("serving.ballast.dev/pool") == of
    ]


def run(store: ObjectStore) -> None:
    """All instances that are asked for run and are ready."""
    for kind, namespace, name in list(store.objects):
        if kind in ("Deployment", "LeaderWorkerSet"):
            item = store.objects[kind, namespace, name]
            count = item["spec"]["replicas"]
            item["status"] = {"replicas": count, "readyReplicas": count, "updatedReplicas": count}


def test_hardware_that_a_group_goes_by_keeps_its_numbers_while_the_group_is_there() -> None:
    """It makes pods anew by its templates, which mount that key."""
    written = plan(observed(spanning(), optional_kinds=INSTALLED)).apply
    children = tuple(item for item in written if item["kind"] in ("ConfigMap", "LeaderWorkerSet"))
    other = serving_pool(NARROW, {**WIDE, "hardware": "h200"})
    profiles = {each: profile(each) for each in ("a100", "h200")}
    result = plan(observed(other, optional_kinds=INSTALLED, children=children, profiles=profiles))
    (numbers,) = [item for item in result.apply if item["metadata"]["name"] == "chat-profiles"]
    assert {"a100", "h20", "h200"} <= numbers["data"].keys()


def test_a_group_that_ends_is_counted_by_its_set_alone() -> None:
    """A StatefulSet counts its pods until they are gone, a Deployment until they are to go."""
    ends = pod("chat-decode-1")
    ends["metadata"]["deletionTimestamp"] = NOW
    assert ending_of(observed(pods=(ends,)), "decode") == 1
    ends["metadata"]["labels"]["leaderworkerset.sigs.k8s.io/name"] = "chat-decode"
    assert ending_of(observed(pods=(ends,)), "decode") == 0
