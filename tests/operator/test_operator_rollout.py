"""Coupled rollouts: the bounds hold at every instant, and every rollout that can end does.

1. Pods that are not ending: never more than wanted + surge.
2. Ready pods: never fewer than wanted - unavailable.
3. The shares of new ready pods of two pools never differ by more than maxSkew, or one pod's share where that is more.
4. With pods that start, it ends with new pods only.
5. Back to the old spec from any point, it ends with old pods only.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ballast_api.names import ANNOTATION_HARDWARE
from ballast_operator.kinds import Kind, Manifest
from ballast_operator.planning.references import parse_pool
from ballast_operator.rollouts.allowances import Allowance, allowances, share
from ballast_operator.rollouts.canary import has_room, pods_of
from ballast_operator.rollouts.rollout import Counts, Rolling, next_counts, strengths
from ballast_operator.specs.revision import kv_revision
from tests.support.object_store import ObjectStore
from tests.support.operator_builders import NAMESPACE, profile, reconciler, serving_pool, stored_condition
from tests.support.operator_builders import pool as pool_entry

pytestmark = pytest.mark.rotating(4, each=True)


@dataclass
class Controller:
    """What Kubernetes does with one Deployment, at its own pace."""

    asked: int = 0
    pods: list[bool] = field(default_factory=list)
    """Ready or not, of each pod that is not ending."""

    def counts(self, name: str) -> Counts:
        return Counts(name, self.asked, len(self.pods), sum(self.pods))

    def act(self, chance: random.Random, *, starts: bool) -> None:
        """One thing at a time: a pod more, a pod less, or a pod that gets ready."""
        if len(self.pods) < self.asked:
            self.pods.append(False)
        elif len(self.pods) > self.asked:
            self.pods.remove(False) if False in self.pods else self.pods.pop()
        elif starts and False in self.pods and chance.random() < 0.7:
            self.pods[self.pods.index(False)] = True


@dataclass
class Pool:
    wanted: int
    surge: int
    unavailable: int
    revisions: dict[str, Controller]

    def rolling(self, name: str, target: str, canary: int | None = None) -> Rolling:
        old = tuple(c.counts(f"{name}-{r}") for r, c in self.revisions.items() if r != target)
        new = self.revisions.setdefault(target, Controller()).counts(f"{name}-{target}")
        return Rolling(self.wanted, self.surge, self.unavailable, new, old, canary)

    def share(self, revision: str) -> float:
        return sum(self.revisions[revision].pods) / self.wanted if revision in self.revisions else 0.0


def settled(wanted: int, surge: int, unavailable: int) -> Pool:
    given = unavailable if surge or unavailable else 1  # as `allowances` has it
    return Pool(wanted, surge, given, {"a": Controller(wanted, [True] * wanted)})


def look(pools: dict[str, Pool], target: str, skew: float, drains: random.Random | None = None) -> None:
    """`drains`: pods that are to go are emptied first, so a Deployment may ask for more than it should for long."""
    order = strengths(
        [
            ("Prefill" if name == "p" else "Decode", revision, controller.counts(name))
            for name, pool in pools.items()
            for revision, controller in pool.revisions.items()
        ]
    )
    rolling = [pool.rolling(name, target) for name, pool in pools.items()]
    ordered = [replace(each, old=tuple(sorted(each.old, key=lambda old: order[old.name[2:]]))) for each in rolling]
    act_on(pools, next_counts(ordered, skew), drains)


def act_on(pools: dict[str, Pool], counts: Mapping[str, int], drains: random.Random | None) -> None:
    for name, pool in pools.items():
        for revision, controller in pool.revisions.items():
            wanted = counts[f"{name}-{revision}"]
            empty = max(controller.asked - wanted, 0) if drains is None else drains.choice([0, 0, 1])
            controller.asked = max(wanted, controller.asked - empty)


def check(pools: dict[str, Pool], target: str, skew: float) -> None:
    for pool in pools.values():
        controllers = pool.revisions.values()
        assert sum(len(each.pods) for each in controllers) <= pool.wanted + pool.surge
        least = pool.wanted - pool.unavailable
        assert sum(sum(each.pods) for each in controllers) >= least
    bound = max([skew, *(1 / pool.wanted for pool in pools.values())]) + 1e-9
    rolling = [pool for pool in pools.values() if any(c.pods for r, c in pool.revisions.items() if r != target)]
    if len(rolling) == len(pools) == 2:
        shares = [pool.share(target) for pool in rolling]
        assert max(shares) - min(shares) <= bound


def roll(
    pools: dict[str, Pool],
    target: str,
    skew: float,
    chance: random.Random,
    *,
    steps: int,
    starts: bool = True,
    drains: bool = False,
) -> bool:
    """Whether all pods are of the target in the end."""
    for _ in range(steps):
        if chance.random() < 0.3:
            look(pools, target, skew, chance if drains else None)
        controller = chance.choice([each for pool in pools.values() for each in pool.revisions.values()])
        controller.act(chance, starts=starts)
        check(pools, target, skew)
    return all(
        len(c.pods) == (pool.wanted if r == target else 0) == c.asked
        for pool in pools.values()
        for r, c in pool.revisions.items()
    )


POOL = st.builds(settled, st.integers(1, 8), st.integers(0, 2), st.integers(0, 2))


@settings(max_examples=60, deadline=None)
@given(POOL, POOL, st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0]), st.booleans(), st.integers(0, 1 << 30))
def test_the_bounds_hold_at_every_instant_and_the_rollout_ends(
    p: Pool, d: Pool, skew: float, drains: bool, seed: int
) -> None:
    """Whatever the controllers do between two looks, and however long pods take to be emptied."""
    assert roll({"p": p, "d": d}, "b", skew, random.Random(seed), steps=4000, drains=drains)


@settings(max_examples=40, deadline=None)
@given(POOL, POOL, st.integers(0, 300), st.booleans(), st.integers(0, 1 << 30))
def test_the_old_spec_rolls_back_from_any_point(p: Pool, d: Pool, after: int, starts: bool, seed: int) -> None:
    """Also from a revision whose pods never get ready: there it has stopped, with the bounds kept."""
    chance, pools = random.Random(seed), {"p": p, "d": d}
    roll(pools, "b", 0.25, chance, steps=after, starts=starts)
    for _ in range(3000):
        if chance.random() < 0.3:
            look(pools, "a", 0.25)
        chance.choice([c for pool in pools.values() for c in pool.revisions.values()]).act(chance, starts=True)
    assert all(len(pool.revisions["a"].pods) == pool.wanted for pool in pools.values())
    assert not any(c.pods for pool in pools.values() for r, c in pool.revisions.items() if r == "b")


@settings(max_examples=30, deadline=None)
@given(POOL, POOL, st.integers(1, 50), st.tuples(st.integers(1, 8), st.booleans()), st.integers(0, 1 << 30))
def test_a_canary_stays_at_its_number_and_a_pause_gives_it_back(
    p: Pool, d: Pool, weight: int, growth: tuple[int, bool], seed: int
) -> None:
    """The bounds hold all the time, old pods go on to serve and grow with their pool; what room there is for the canary
    it gets; paused, all pods are old ones again."""
    (scaled, drains), chance, pools = growth, random.Random(seed), {"p": p, "d": d}
    fits = all(has_room(pool.wanted, pool.surge) for pool in pools.values())
    least = {name: pods_of(weight, pool.wanted) if fits else 0 for name, pool in pools.items()}
    for step in range(2000):
        if step == 800 and p.wanted < scaled:  # scaled up while it is watched
            p.wanted = scaled
            least["p"] = pods_of(weight, scaled) if fits else 0
        if chance.random() < 0.3:
            rolling = [pool.rolling(name, "b", least[name]) for name, pool in pools.items()]
            act_on(pools, next_counts(rolling, 1.0), chance if drains else None)
        chance.choice([c for pool in pools.values() for c in pool.revisions.values()]).act(chance, starts=True)
        if step < 800:
            check(pools, "b", 1.0)
        assert all(len(pool.revisions["a"].pods) >= 1 for pool in pools.values())
        assert all(sum(len(c.pods) for c in pool.revisions.values()) <= pool.wanted + pool.surge for pool in (p, d))
    assert {name: sum(pool.revisions["b"].pods) for name, pool in pools.items()} == least
    assert all(sum(sum(c.pods) for c in pool.revisions.values()) >= pool.wanted for pool in pools.values())
    assert roll(pools, "a", 1.0, chance, steps=4000, drains=drains)


def test_pods_that_never_start_stop_the_rollout_at_its_first_step() -> None:
    """With surge 0 and one pod that may be missing, three of four old pods go on serving."""
    pools = {"p": settled(4, 0, 1), "d": settled(4, 0, 1)}
    assert not roll(pools, "b", 0.25, random.Random(7), steps=2000, starts=False)
    assert [sum(pool.revisions["a"].pods) for pool in pools.values()] == [3, 3]


def test_the_last_old_pair_stays_until_the_new_one_is_ready() -> None:
    """One prefill and one decode: a new prefill serves nothing beside an old decode, however long the new one loads."""
    pools = {"p": settled(1, 1, 0), "d": settled(1, 1, 0)}
    chance = random.Random(7)
    for _ in range(400):
        look(pools, "b", 0.25)
        for name, pool in pools.items():
            for revision, controller in pool.revisions.items():
                controller.act(chance, starts=(name, revision) != ("d", "b"))
        assert all(pool.revisions["a"].pods == [True] for pool in pools.values())
    assert pools["p"].revisions["b"].pods == [True]
    assert roll(pools, "b", 0.25, chance, steps=400)


ROOMY = st.builds(settled, st.integers(1, 5), st.integers(1, 2), st.just(0))
TIGHT = st.builds(settled, st.integers(2, 5), st.integers(0, 1), st.integers(0, 1))


@settings(max_examples=40, deadline=None)
@given(st.one_of(st.tuples(ROOMY, ROOMY), st.tuples(TIGHT, TIGHT)), st.booleans(), st.integers(0, 1 << 30))
def test_one_revision_always_serves_whatever_is_applied_in_between(
    pools: tuple[Pool, Pool], drains: bool, seed: int
) -> None:
    """Three specs in any order, at any time: some revision has a ready pod in each pool."""
    fleet, chance, target = dict(zip("pd", pools, strict=True)), random.Random(seed), "b"
    for _ in range(1500):
        if chance.random() < 0.005:
            target = chance.choice("abc")
        if chance.random() < 0.3:
            look(fleet, target, 0.25, chance if drains else None)
        chance.choice([c for pool in pools for c in pool.revisions.values()]).act(chance, starts=True)
        assert any(all(pool.share(revision) for pool in pools) for revision in "abc")


@pytest.mark.parametrize("unready", [True, False])
def test_the_revision_that_serves_loses_its_pods_last(unready: bool) -> None:
    """By the stage of which it has least, and by those that are ready."""
    b = Counts("d-b", 3, 3, 0 if unready else 3)
    order = strengths(
        [
            ("Prefill", "a", Counts("p-a", 1, 1, 1)),
            ("Decode", "a", Counts("d-a", 1, 1, 1)),
            ("Prefill", "b", Counts("p-b", 1, 1, 1)),
            ("Decode", "b", b),
            ("Decode", "c", Counts("d-c", 4, 4, 4)),
        ]
    )
    assert sorted(order, key=order.__getitem__) == (["c", "b", "a"] if unready else ["c", "a", "b"])


def test_prefill_does_not_run_ahead_of_decode() -> None:
    """Decode pods take long to start: prefill waits with one new pod of four."""
    p = Rolling(4, 1, 0, Counts("p-b", 1, 1, 1), (Counts("p-a", 3, 3, 3),))
    d = Rolling(4, 1, 0, Counts("d-b", 1, 1, 0), (Counts("d-a", 4, 4, 4),))
    assert next_counts([p, d], 0.25) == {"p-b": 1, "p-a": 3, "d-b": 1, "d-a": 4}


def test_a_pool_alone_goes_as_fast_as_surge_allows() -> None:
    """Nothing to keep in step with."""
    assert next_counts([Rolling(8, 2, 0, Counts("b", 0), (Counts("a", 8, 8, 8),))], 0.0) == {"b": 2, "a": 8}


def test_a_scaled_pool_without_old_pods_gets_its_number_at_once() -> None:
    """No rollout, no steps."""
    assert next_counts([Rolling(5, 0, 1, Counts("a", 2, 2, 2))], 0.25) == {"a": 5}


REFERRED = (profile("a100"), profile("h20"))
FIRST = serving_pool(rollout={"maxSurge": 0, "maxUnavailable": 1})


def look_at(store: ObjectStore) -> None:
    reconciler(store).serving_pool(NAMESPACE, "chat")


def edit(store: ObjectStore, **engine: Any) -> None:
    live = store.objects["ServingPool", NAMESPACE, "chat"]
    spec = {**live["spec"], "engine": {"image": "registry.test/engine:1", **engine}}
    store.put({**live, "metadata": {**live["metadata"], "generation": 2}, "spec": spec})


def shares(store: ObjectStore) -> dict[str, dict[str, int]]:
    """Pods that are asked for, by pool and image."""
    found: dict[str, dict[str, int]] = {"prefill": {}, "decode": {}}
    for (kind, _, _), item in store.objects.items():
        pool = item["metadata"].get("labels", {}).get("serving.ballast.dev/pool")
        if kind == "Deployment" and pool in found:
            image = item["spec"]["template"]["spec"]["containers"][0]["image"]
            found[pool][image[-1]] = item["spec"]["replicas"]
    return found


def test_an_image_goes_through_prefill_and_decode_together_and_back() -> None:
    """2 prefills and 4 decodes without a free GPU: never two steps of prefill ahead; the status follows."""
    store = ObjectStore(FIRST, *REFERRED)
    look_at(store)
    store.run_deployments()
    look_at(store)
    edit(store, image="registry.test/engine:2")
    seen = []
    for _ in range(30):
        look_at(store)
        seen.append(shares(store))
        progressing = stored_condition(store, "Progressing")
        if progressing["status"] == "False":
            break
        assert progressing["reason"] in {"RollingOut", "Scaling"}  # the last old pods may have gone already
        store.run_deployments()
    assert seen[-1] == {"prefill": {"2": 2}, "decode": {"2": 4}}
    for each in seen:
        assert sum(each["prefill"].values()) <= 2
        assert sum(each["decode"].values()) <= 4
        assert abs(each["prefill"].get("2", 0) / 2 - each["decode"].get("2", 0) / 4) <= 0.5
    edit(store)
    for _ in range(30):
        look_at(store)
        store.run_deployments()
    assert shares(store) == {"prefill": {"1": 2}, "decode": {"1": 4}}
    names = {name for kind, _, name in store.objects if kind == "Deployment"}
    assert names == {"chat-prefill", "chat-decode", "chat-gateway"}


def test_what_no_kv_block_depends_on_rolls_in_place() -> None:
    """One Deployment for each pool, and the next generation of it."""
    store = ObjectStore(FIRST, *REFERRED)
    look_at(store)
    edit(store, args=["--max-num-seqs", "64"])
    look_at(store)
    assert sorted(name for kind, _, name in store.objects if kind == "Deployment") == [
        "chat-decode",
        "chat-gateway",
        "chat-prefill",
    ]


def start_pods(store: ObjectStore) -> None:
    """One pod of each Deployment's template, in place of those that there were."""
    for key in [key for key in store.objects if key[0] == "Pod"]:
        store.remove(key)
    for (kind, _, name), item in list(store.objects.items()):
        if kind == "Deployment":
            template = item["spec"]["template"]
            metadata = {**template["metadata"], "name": f"{name}-1", "namespace": NAMESPACE, "uid": f"pod-{name}"}
            store.put({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})


def mountable(store: ObjectStore) -> set[str]:
    """HardwareProfiles whose numbers engines find; gateways know the very same."""
    files = store.objects["ConfigMap", NAMESPACE, "chat-profiles"]["data"].keys() - {"engine_hold.py"}
    known = yaml.safe_load(store.objects["ConfigMap", NAMESPACE, "chat-gateway"]["data"]["gateway.yaml"])["profiles"]
    assert set(known) == files
    return set(files)


def test_hardware_that_a_spec_names_no_more_keeps_its_numbers_until_its_pods_have_gone() -> None:
    """No pod could start without the key that it mounts, nor a container once more."""
    store = ObjectStore(FIRST, *REFERRED, profile("h200"))
    look_at(store)
    start_pods(store)
    store.run_deployments()
    live = store.objects["ServingPool", NAMESPACE, "chat"]
    prefill, decode = live["spec"]["pools"]
    store.put({**live, "spec": {**live["spec"], "pools": [prefill, {**decode, "hardware": "h200"}]}})
    store.remove(("HardwareProfile", None, "h20"))
    for _ in range(3):
        look_at(store)
        assert mountable(store) == {"a100", "h20", "h200"}
    start_pods(store)
    look_at(store)
    assert mountable(store) == {"a100", "h200"}


def test_a_canary_leaves_the_old_revision_its_hardware() -> None:
    """Its Deployment makes pods, too: all of them, should the canary be paused."""
    store = ObjectStore(FIRST, *REFERRED, profile("h200"))
    look_at(store)
    store.run_deployments()
    edit(store, image="registry.test/engine:2")
    live = store.objects["ServingPool", NAMESPACE, "chat"]
    prefill, decode = live["spec"]["pools"]
    pools = [prefill, {**decode, "hardware": "h200"}]
    store.put({**live, "spec": {**live["spec"], "pools": pools, "rollout": {"canary": {}}}})
    for _ in range(3):
        look_at(store)
        store.run_deployments()
    assert shares(store)["decode"].keys() == {"1", "2"}
    assert mountable(store) == {"a100", "h20", "h200"}


class Listed(ObjectStore):
    """Notes which kinds are listed."""

    kinds: ClassVar[set[str]] = set()

    def list(self, kind: Kind, namespace: str | None, *, labels: str = "") -> tuple[Manifest, ...]:
        self.kinds.add(kind.kind)
        return super().list(kind, namespace, labels=labels)


def test_a_note_that_somebody_keeps_beside_numbers_costs_no_list_of_pods() -> None:
    """It stays for ever: no look takes a key of somebody else away."""
    store = Listed(FIRST, *REFERRED)
    for _ in range(3):
        look_at(store)
        store.run_deployments()
    store.objects["ConfigMap", NAMESPACE, "chat-profiles"]["data"]["note.txt"] = "by kubectl"
    store.kinds.clear()
    look_at(store)
    assert "Deployment" in store.kinds
    assert "Pod" not in store.kinds


def test_an_ended_pod_keeps_no_numbers() -> None:
    """It starts no container any more."""
    store = ObjectStore(FIRST, *REFERRED, profile("h200"))
    look_at(store)
    start_pods(store)
    live = store.objects["ServingPool", NAMESPACE, "chat"]
    prefill, decode = live["spec"]["pools"]
    store.put({**live, "spec": {**live["spec"], "pools": [prefill, {**decode, "hardware": "h200"}]}})
    look_at(store)
    assert mountable(store) == {"a100", "h20", "h200"}
    store.objects["Pod", NAMESPACE, "chat-decode-1"]["status"] = {"phase": "Failed"}
    look_at(store)
    assert mountable(store) == {"a100", "h200"}


def test_numbers_that_somebody_has_spoilt_stop_no_look() -> None:
    store = ObjectStore(FIRST, *REFERRED)
    look_at(store)
    store.objects["ConfigMap", NAMESPACE, "chat-profiles"]["data"]["h200"] = "no numbers"
    look_at(store)
    start_pods(store)
    store.objects["Pod", NAMESPACE, "chat-decode-1"]["metadata"]["annotations"][ANNOTATION_HARDWARE] = "h200"
    look_at(store)
    assert stored_condition(store, "Degraded")["status"] == "False"


def test_a_rollout_of_pools_that_others_scale_keeps_their_number() -> None:
    """Pods above it are surge: they must not become the next number."""
    bounds = {"minReplicas": 1, "maxReplicas": 9}
    pools = (pool_entry("prefill", "Prefill"), pool_entry("decode", "Decode", autoscaling=bounds))
    store = ObjectStore(serving_pool(*pools, rollout={"maxSurge": 2}), *REFERRED)
    look_at(store)
    store.objects["EnginePool", NAMESPACE, "chat-decode"]["spec"]["replicas"] = 3  # another scaler
    for _ in range(2):
        store.run_deployments()
        look_at(store)
    edit(store, image="registry.test/engine:2")
    for _ in range(30):
        look_at(store)
        store.run_deployments()
    assert shares(store) == {"prefill": {"2": 2}, "decode": {"2": 3}}


ENGINE = {"image": "e:1", "command": ["vllm"], "args": ["serve", "m", "--block-size", "16"]}


@pytest.mark.parametrize(
    ("change", "counts"),
    [
        ({"image": "e:2"}, True),
        ({"command": ["vllm", "-v"]}, True),
        ({"args": ["serve", "m", "--block-size", "32"]}, True),
        ({"args": ["serve", "m", "--block-size=16"]}, False),
        ({"args": ["serve", "m", "--block_size", "16"]}, False),
        ({"args": ["serve", "m", "--block-size", "8", "--block-size", "16"]}, False),
        ({"args": ["serve", "m", "--block-size", "16", "--kv-cache-dtype", "fp8"]}, True),
        ({"args": ["serve", "m", "--block-size", "16", "--something-new"]}, True),
        ({"args": ["serve", "m", "--max-num-seqs", "9", "--block-size", "16"]}, False),
        ({"args": ["serve", "m", "--block-size", "16", "--no-enable-prefix-caching", "-tp", "2"]}, False),
        ({"args": ["serve", "m", "--block-size", "16", "--seed", "-1"]}, False),
        ({"env": [{"name": "VLLM_KV_CACHE_LAYOUT", "value": "HND"}]}, True),
        (
            {"env": [{"name": "VLLM_LOGGING_LEVEL", "value": "DEBUG"}, {"name": "BALLAST_PROFILE", "value": "{}"}]},
            False,
        ),
        ({"resources": {"limits": {"cpu": "1"}}}, False),
    ],
    ids=str,
)
def test_the_revision_is_what_kv_compatibility_depends_on(change: dict[str, Any], counts: bool) -> None:
    """And no more: what it leaves out rolls one pool alone."""
    assert (kv_revision("m", [{**ENGINE, **change}]) != kv_revision("m", [ENGINE])) is counts


def test_roles_and_further_pools_of_the_same_engine_share_a_revision() -> None:
    """kv_role differs by design; another connector does not."""

    def with_connector(**config: str) -> Manifest:
        return {**ENGINE, "args": [*ENGINE["args"], "--kv-transfer-config", json.dumps(config)]}

    prefill, decode = (with_connector(kv_connector="N", kv_role=role) for role in ("kv_producer", "kv_consumer"))
    assert kv_revision("m", [prefill]) == kv_revision("m", [prefill, decode, decode])
    assert kv_revision("m", [prefill]) != kv_revision("m", [with_connector(kv_connector="M")])
    assert kv_revision("m", [prefill]) != kv_revision("n", [prefill])


def test_percentages_are_rounded_as_kubernetes_does() -> None:
    """Surge up, unavailable down."""
    assert (share("25%", 2, up=True), share("25%", 2, up=False), share(3, 2, up=True)) == (1, 0, 3)


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (None, [Allowance(2, 0), Allowance(1, 0)]),
        (20, [Allowance(2, 0), Allowance(1, 0)]),
        (19, [Allowance(2, 0), Allowance(0, 1, cut=True)]),
        (15, [Allowance(1, 0, cut=True), Allowance(0, 1, cut=True)]),
        (14, [Allowance(0, 1, cut=True), Allowance(0, 1, cut=True)]),
        (9, [Allowance(0, 1, cut=True), Allowance(0, 1, cut=True)]),
    ],
)
def test_a_budget_is_for_surplus_instances_too(budget: int | None, expected: list[Allowance]) -> None:
    """6 instances of 1 GPU and 2 of 4 need 14: what is left goes to surge, the first pool first, and never less than
    one instance can be replaced."""
    spec = parse_pool(serving_pool(gpuBudget=budget)).spec
    found = allowances(spec, {"prefill": 6, "decode": 2}, {"prefill": 1, "decode": 4}, {"prefill": 6, "decode": 2})
    assert [found["prefill"], found["decode"]] == expected


def test_larger_instances_count_for_a_budget_until_they_are_gone() -> None:
    """A fleet of 34 GPUs in use goes from 8 to 4 for each decode: the first new pod has no GPU before an old one went,
    and the Deployment has the new template only."""

    def decodes_of(gpus: int, generation: int) -> Manifest:
        decode = pool_entry("decode", "Decode", replicas=4, tensorParallelSize=gpus)
        prefill = pool_entry("prefill", "Prefill", hardware="a100")
        return serving_pool(prefill, decode, gpuBudget=34, generation=generation)

    store = ObjectStore(decodes_of(8, 1), *REFERRED)
    for _ in range(2):
        look_at(store)
        start_pods(store)
        store.run_deployments()
    store.put({**decodes_of(4, 2), "status": store.objects["ServingPool", NAMESPACE, "chat"]["status"]})
    for _ in range(3):
        look_at(store)
        decode = store.objects["Deployment", NAMESPACE, "chat-decode"]
        assert decode["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "4"}
        assert decode["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
        decode["metadata"]["generation"] = 2  # of which its controller has not said anything yet
    start_pods(store)
    decode["status"]["observedGeneration"] = 2
    look_at(store)
    decode = store.objects["Deployment", NAMESPACE, "chat-decode"]
    assert decode["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": "25%", "maxUnavailable": 0}


def test_a_surplus_that_has_begun_stays_when_others_need_its_gpus() -> None:
    """The last ready instance must not go before its successor is ready."""
    spec = parse_pool(serving_pool(gpuBudget=6)).spec
    gpus, asked = {"prefill": 1, "decode": 1}, {"prefill": 2, "decode": 5}
    (prefill, decode) = allowances(spec, {"prefill": 1, "decode": 5}, gpus, asked).values()
    assert (prefill, decode) == (Allowance(1, 0), Allowance(0, 1, cut=True))
    roll = Rolling(1, prefill.surge, prefill.unavailable, Counts("b", 1, 1, 0), (Counts("a", 1, 1, 1),))
    assert next_counts([roll], 0.25) == {"b": 1, "a": 1}
