"""Scale-down drains: whatever controllers, gateways and traffic do, and wherever the operator dies.

1. Kubernetes deletes no ready pod with requests before its deadline.
2. While gateways answer, the pods that go are those that were cheapest to empty when they were marked.
3. It ends with the wanted number of pods, no marks and no deletion costs, whatever was wanted on the way.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ballast_api.load_report import EndpointLoad
from ballast_operator.gateways.loads import Loads
from ballast_operator.kinds import Manifest
from ballast_operator.rollouts.draining import Instance, Step, next_step
from tests.support.object_store import Killed, ObjectStore
from tests.support.operator_builders import NAMESPACE, NOW, profile, reconciler, serving_pool
from tests.support.operator_builders import pool as pool_entry

DEADLINE_S = 60.0


@dataclass
class Pod:
    name: str
    ready: bool = True
    marked_at_s: float | None = None
    costed: bool = False
    known: bool = True
    drains: bool = False
    """What the gateways know: that it is ready, and its mark."""
    work: int = 0
    tied: int = 0


@dataclass
class World:
    """One Deployment, its controller, its gateways, and their traffic."""

    chance: random.Random
    asked: int
    target: int
    pods: list[Pod] = field(default_factory=list)
    now_s: float = 0.0
    made: int = 0
    fails: bool = True
    """Whether pods crash and gateways fall silent."""

    def add(self, **more: Any) -> None:
        self.made += 1
        self.pods.append(Pod(f"pod-{self.made:03}", **more))

    def control(self) -> None:
        """As a ReplicaSet: unready pods go first, then those of the lowest cost, then the youngest."""
        if len(self.pods) < self.asked:
            self.add(ready=False, known=False)
        elif len(self.pods) > self.asked:
            gone = min(self.pods, key=lambda pod: (pod.ready, not pod.costed, -int(pod.name[4:])))
            self.pods.remove(gone)
            in_time = gone.marked_at_s is None or self.now_s - gone.marked_at_s < DEADLINE_S
            assert not (gone.ready and gone.work and in_time), "1: it still had requests"

    def live(self) -> None:
        """Something happens to a pod."""
        if not self.pods:
            return
        pod = self.chance.choice(self.pods)
        match self.chance.choice(["starts", "crashes", "told", "told", "asked", "asked", "done", "done"]):
            case "starts":
                pod.ready = True
            case "crashes" if self.fails and self.chance.random() < 0.2:
                pod.ready, pod.work = False, 0
            case "told":
                pod.known, pod.drains = pod.ready, pod.ready and pod.marked_at_s is not None
            case "asked" if pod.known and pod.ready and not pod.drains:
                pod.work += self.chance.randint(1, 3)
            case "done":
                pod.work = max(pod.work - self.chance.randint(1, 3), 0)

    def loads(self) -> Loads:
        known = {
            pod.name: EndpointLoad(
                name=pod.name, draining=pod.drains, requests=pod.work, engine=pod.work, engine_age_s=0.1
            )
            for pod in self.pods
            if pod.known
        }
        silent = ("one",) if self.fails and self.chance.random() < 0.1 else ()
        return Loads(known, silent)

    def step(self) -> Step:
        seen = [
            Instance(pod.name, pod.ready, None if pod.marked_at_s is None else self.now_s - pod.marked_at_s, pod.costed)
            for pod in self.pods
        ]
        return next_step(self.asked, self.target, seen, self.loads(), deadline_s=DEADLINE_S)

    def look(self) -> None:
        """Read, plan, and write as far as the operator lives; the controller may act between two writes."""
        step = self.step()
        writes = self.chance.randint(0, 1 + len(self.pods)) if self.fails else 99
        if writes:
            self.asked = step.replicas
        by_name = {pod.name: pod for pod in self.pods}
        for victim in step.victims[: max(writes - 1, 0)]:
            if self.chance.random() < 0.2:
                self.control()
            pod = by_name[victim.name]
            pod.marked_at_s = self.now_s if pod.marked_at_s is None else pod.marked_at_s
            pod.costed = victim.goes
        for name in step.released[: max(writes - 1 - len(step.victims), 0)]:
            by_name[name].marked_at_s, by_name[name].costed = None, False

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.now_s += self.chance.choice([0.1, 1.0, 3.0])
            self.chance.choice([self.look, self.control, self.live, self.live])()


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=6), st.integers(1, 6), st.integers(0, 1 << 30))
def test_no_request_is_cut_and_every_scale_down_ends(targets: list[int], first: int, seed: int) -> None:
    """1 and 3. The wish changes again and again, up and down, before the last one is reached."""
    world = World(random.Random(seed), asked=first, target=first)
    for _ in range(first):
        world.add()
    for target in targets:
        world.target = target
        world.run(80)
    world.fails = False
    for _ in range(400):
        world.run(10)
        if world.asked == target == len(world.pods) and not any(p.costed or p.marked_at_s for p in world.pods):
            break
    assert (world.asked, len(world.pods)) == (target, target)
    assert not any(pod.costed or pod.marked_at_s for pod in world.pods)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=8), st.data())
def test_the_cheapest_to_empty_are_marked_first(work: list[tuple[int, int]], data: st.DataObject) -> None:
    """2. Those with fewer streams that cannot move, then those with fewer tokens."""
    target = data.draw(st.integers(0, len(work) - 1))
    known = {
        f"p{k}": EndpointLoad(name=f"p{k}", tied=tied, tokens=tokens, requests=tied + tokens)
        for k, (tied, tokens) in enumerate(work)
    }
    pods = [Instance(name) for name in known]
    step = next_step(len(work), target, pods, Loads(known), deadline_s=60.0)
    marked = {victim.name for victim in step.victims}
    assert (step.replicas, len(marked), step.released) == (len(work), len(work) - target, ())
    prices = {name: (load.tied, load.tokens) for name, load in known.items()}
    assert all(prices[a] <= prices[b] for a in marked for b in set(known) - marked)


def test_a_gateway_that_has_not_seen_the_mark_or_is_silent_keeps_a_pod() -> None:
    """And an engine whose last report is older than the mark. Without any gateway nobody sends anything."""
    idle = EndpointLoad(name="a", draining=True, engine_age_s=1.0)
    pods = [Instance("a", marked_s=30.0), Instance("b")]

    def goes(loads: Loads | None, deadline_s: float = 60.0) -> bool:
        (victim,) = next_step(2, 1, pods, loads, deadline_s=deadline_s).victims
        return victim.goes

    assert goes(Loads({"a": idle}))
    assert not goes(Loads({"a": EndpointLoad(name="a", engine_age_s=1.0)}))
    assert not goes(Loads({"a": EndpointLoad(name="a", draining=True, engine_age_s=40.0)}))
    assert not goes(Loads({"a": EndpointLoad(name="a", draining=True, engine=1, engine_age_s=1.0)}))
    assert not goes(Loads({"a": idle}, ("gateway-1: no answer",)))
    assert not goes(None)
    assert goes(None, deadline_s=30.0)
    assert goes(Loads())


REFERRED = (profile("a100"), profile("h20"))


class Cluster:
    """A store with the pods of its Deployments, and gateways that hold streams."""

    def __init__(self) -> None:
        self.store = ObjectStore(self.spec(4), *REFERRED)
        self.now = datetime.fromisoformat(NOW)
        self.work: dict[str, int] = {}
        self.deaf = False
        """Gateways do not learn of marks."""
        self.look()
        self.store.run_deployments()
        for k in range(4):
            name = f"chat-decode-{k}"
            self.store.put(engine_pod(name, self.deployment["metadata"]["labels"]))
            self.work[name] = 4 - k

    @staticmethod
    def spec(decodes: int, **more: Any) -> Manifest:
        return serving_pool(pool_entry("prefill", "Prefill"), pool_entry("decode", "Decode", replicas=decodes), **more)

    @property
    def deployment(self) -> Manifest:
        return self.store.objects["Deployment", NAMESPACE, "chat-decode"]

    @property
    def asked(self) -> int:
        return int(self.deployment["spec"]["replicas"])

    def want(self, decodes: int) -> None:
        live = self.store.objects["ServingPool", NAMESPACE, "chat"]
        live["spec"] = self.spec(decodes)["spec"]
        live["metadata"]["generation"] = live["metadata"].get("generation", 1) + 1

    def pods(self) -> dict[str, dict[str, str]]:
        """Annotations of the pods of decode."""
        found = (item for (kind, _, _), item in self.store.objects.items() if kind == "Pod")
        return {item["metadata"]["name"]: item["metadata"].get("annotations") or {} for item in found}

    def marked(self) -> set[str]:
        return {name for name, notes in self.pods().items() if MARK in notes}

    def ask(self, pods: Sequence[Manifest], token: bytes) -> Loads:
        assert token
        marked = set() if self.deaf else self.marked()
        return Loads(
            {
                name: EndpointLoad(
                    name=name, draining=name in marked, requests=count, engine=count, tokens=count, engine_age_s=0.5
                )
                for name, count in self.work.items()
            }
        )

    def look(self, seconds: float = 3.0) -> None:
        self.now += timedelta(seconds=seconds)
        now = self.now.strftime("%Y-%m-%dT%H:%M:%SZ")
        reconciler(self.store, now=now, ask=self.ask).serving_pool(NAMESPACE, "chat")

    def control(self) -> list[str]:
        """What Kubernetes does with a Deployment that asks for fewer pods. Returns those that go."""
        by_cost = sorted(self.pods().items(), key=lambda each: (int(each[1].get(COST, "0")), each[0]))
        gone = [name for name, _ in by_cost[: max(len(by_cost) - self.asked, 0)]]
        for name in gone:
            del self.store.objects["Pod", NAMESPACE, name]
            assert not self.work.pop(name), "it still had requests"
        return gone

    def settle(self) -> None:
        """Requests end one by one where pods are marked, until nothing is written."""
        for _ in range(60):
            before = len(self.store.writes)
            self.look()
            self.control()
            self.store.run_deployments()
            for name in self.marked() & set(self.work):
                self.work[name] = max(self.work[name] - 1, 0)
            if len(self.store.writes) == before and not self.marked():
                return
        raise AssertionError(f"still writing: {self.store.writes[-5:]}")


MARK, COST = "serving.ballast.dev/draining-since", "controller.kubernetes.io/pod-deletion-cost"


def engine_pod(name: str, labels: dict[str, str]) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "uid": name, "labels": dict(labels)},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }


def test_fewer_replicas_empty_the_cheapest_pods_one_write_after_the_other() -> None:
    """Marked, emptied, costed, and then gone; status and Events say so."""
    cluster = Cluster()
    cluster.want(2)
    cluster.look()
    assert cluster.marked() == {"chat-decode-2", "chat-decode-3"}
    assert cluster.asked == 4
    cluster.look()
    status = cluster.store.objects["ServingPool", NAMESPACE, "chat"]["status"]
    decode = next(each for each in status["pools"] if each["name"] == "decode")
    assert [(each["name"][-1], each["requests"]) for each in decode["draining"]] == [("2", 2), ("3", 1)]
    progressing = next(each for each in status["conditions"] if each["type"] == "Progressing")
    assert (progressing["status"], progressing["reason"]) == ("True", "Draining")
    cluster.work["chat-decode-3"] = 0
    cluster.look()
    assert COST in cluster.pods()["chat-decode-3"]
    assert cluster.asked == 4  # not before that was read back
    cluster.look()
    assert cluster.asked == 3
    assert cluster.control() == ["chat-decode-3"]
    cluster.settle()
    assert set(cluster.pods()) == {"chat-decode-0", "chat-decode-1"}
    events = [event["reason"] for event in cluster.store.events]
    assert events.count("Drained") == 2
    assert "DrainTimedOut" not in events


def test_a_new_image_takes_no_instance_that_was_not_emptied() -> None:
    """Not at its first look either, when nobody has asked for the pods yet: one may be missing, and none was marked."""
    cluster = Cluster()
    live = cluster.store.objects["ServingPool", NAMESPACE, "chat"]
    live["spec"] = cluster.spec(4, engine={"image": "vllm:new"}, rollout={"maxSurge": 0, "maxUnavailable": 1})["spec"]
    live["metadata"]["generation"] = 2
    for _ in range(4):
        cluster.look()
        assert cluster.asked >= 4 - sum(COST in notes for notes in cluster.pods().values())
        if cluster.marked():
            break
    assert cluster.marked() == {"chat-decode-3"}
    assert cluster.asked == 4


def test_scaled_up_again_the_marks_are_taken_back() -> None:
    """At once, and no pod goes; the Deployment's note is empty in the end."""
    cluster = Cluster()
    cluster.want(2)
    cluster.look()
    cluster.work["chat-decode-3"] = 0
    cluster.look()
    cluster.want(4)
    cluster.look()
    assert cluster.marked() == set()
    assert not any(COST in notes for notes in cluster.pods().values())
    cluster.settle()
    assert len(cluster.pods()) == cluster.asked == 4
    assert cluster.deployment["metadata"]["annotations"]["serving.ballast.dev/drains"] == ""


def test_at_the_deadline_it_goes_with_what_it_has_and_the_event_says_so() -> None:
    """300 s by default, the engines' drain time; gateways that never hear of the mark do not hold it up for ever."""
    cluster = Cluster()
    cluster.want(3)
    cluster.look()
    cluster.deaf = True
    cluster.look(299)
    assert COST not in cluster.pods()["chat-decode-3"]
    cluster.look(2)
    assert COST in cluster.pods()["chat-decode-3"]
    (event,) = [event for event in cluster.store.events if event["reason"] == "DrainTimedOut"]
    assert event["type"] == "Warning"
    assert "chat-decode-3 goes after 301 s with 1 requests" in event["message"]
    cluster.look()
    assert cluster.asked == 3


@pytest.mark.rotating(2)
@pytest.mark.parametrize("back", [False, True], ids=["down", "down and up again"])
def test_killed_between_any_two_writes_it_goes_on(back: bool) -> None:
    """For every write of a scale-down, also where the wish is taken back after it."""
    for after in range(60):
        cluster = Cluster()
        cluster.want(2)
        cluster.store.interrupt(Killed(), after=after)
        with contextlib.suppress(Killed):
            cluster.settle()
        killed = not cluster.store.end_interruption()
        if back:
            cluster.want(4)
        cluster.settle()
        kept = len(cluster.pods())
        assert cluster.asked == (4 if back else 2)
        assert kept <= cluster.asked if back else kept == 2
        assert not cluster.marked()
        if not killed:
            assert after > 8
            return
    raise AssertionError("it never ends")
