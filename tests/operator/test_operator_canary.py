"""Canaries: by the figures of both sides they become the fleet, wait, or are paused; and back at any instant."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest

from ballast_api.attainment_report import AttainmentReport, CanaryReport, SideReport, Tally
from ballast_api.gateway_settings import GatewaySettings
from ballast_api.loading import parse_settings
from ballast_api.serving_pool import CanarySpec
from ballast_operator.gateways.board import Board
from ballast_operator.gateways.measured import Answer, measured
from ballast_operator.gateways.settings_reports import settings_hash
from ballast_operator.kinds import Manifest
from ballast_operator.reconcile import Reconciler
from ballast_operator.rollouts.canary import Memory, Phase, next_memory, pods_of, remembered
from ballast_operator.settings import OperatorSettings
from tests.support.object_store import Killed, ObjectStore
from tests.support.operator_builders import (
    DEFAULTS,
    FRESH_TOKEN,
    NAMESPACE,
    NOW,
    objective,
    policy,
    pool,
    profile,
    serving_pool,
    stored_condition,
)

SPEC = CanarySpec(weight=10, observe_s=300.0, min_requests=50)
GOOD, BAD, FEW, SLOW = Tally(98, 2, 0), Tally(70, 30, 0), Tally(9, 0, 0), Tally(40, 40, 0)
MANY, UNSEEN = Tally(970, 30, 0), Tally(0, 0, 500)


def report(canary: Tally, others: Tally = MANY, *, fast: tuple[Tally, Tally] | None = None) -> CanaryReport:
    """`fast`: counts of an objective of that name, of both sides."""
    new, old = fast or (None, None)
    return CanaryReport(
        revision="b",
        canary=SideReport(served=canary, objectives={} if new is None else {"fast": new}),
        others=SideReport(served=others, objectives={} if old is None else {"fast": old}),
    )


@pytest.mark.parametrize(
    ("counted", "age_s", "ready", "phase", "said"),
    [
        (None, 10.0, True, Phase.OBSERVED, "10 of 300 s; no gateway has counts"),
        (report(GOOD), 10.0, True, Phase.OBSERVED, "10 of 300 s; served at once: 98.0 %"),
        (report(GOOD), 300.0, True, Phase.PROMOTED, ""),
        (report(GOOD), 300.0, False, Phase.OBSERVED, "not all its pods are ready"),
        (report(GOOD, fast=(GOOD, MANY)), 300.0, True, Phase.PROMOTED, ""),
        (report(FEW), 3000.0, True, Phase.OBSERVED, "too few requests to say: 9 of 50"),
        (report(UNSEEN), 3000.0, True, Phase.OBSERVED, "too few requests to say: 0 of 50"),
        (None, 3000.0, True, Phase.OBSERVED, "too few requests to say: 0 of 50; no gateway"),
        (report(BAD), 10.0, True, Phase.PAUSED, ""),
        (report(Tally(0, 8, 0)), 10.0, False, Phase.PAUSED, ""),
        (report(Tally(3, 1, 0)), 10.0, True, Phase.OBSERVED, "10 of 300 s"),
        (report(GOOD, fast=(SLOW, MANY)), 10.0, True, Phase.PAUSED, ""),
        (report(BAD, Tally(60, 40, 0)), 300.0, True, Phase.PROMOTED, ""),
        (report(GOOD, Tally(0, 0, 0)), 300.0, True, Phase.PROMOTED, ""),
    ],
)
def test_a_canary_is_judged_by_intervals(
    counted: CanaryReport | None, age_s: float, ready: bool, phase: Phase, said: str
) -> None:
    """Clearly worse at once; fit only after its time and with enough requests; as bad as the others is not worse."""
    before = Memory(Phase.OBSERVED, NOW)
    memory, message = next_memory(before, SPEC, counted, ready=ready, now=NOW, age_s=age_s)
    assert memory.phase is phase
    assert said in message
    again = next_memory(memory, SPEC, report(BAD), ready=ready, now=NOW, age_s=age_s)[0]
    assert phase is Phase.OBSERVED or again == memory  # a verdict stays


def test_time_counts_from_when_its_pods_were_ready() -> None:
    """Not before, and anew where somebody spoilt it, or has put the operator's clock back."""
    waits, message = next_memory(Memory(), SPEC, None, ready=False, now=NOW, age_s=None)
    assert (waits, message) == (Memory(), "its pods start")
    began, _ = next_memory(waits, SPEC, None, ready=True, now=NOW, age_s=None)
    assert began == Memory(Phase.OBSERVED, NOW)
    assert next_memory(Memory(Phase.OBSERVED, "soon"), SPEC, None, ready=True, now=NOW, age_s=None)[0] == began
    assert next_memory(Memory(Phase.OBSERVED, "later"), SPEC, None, ready=True, now=NOW, age_s=-3600.0)[0] == began


def test_a_verdict_counts_as_soon_as_one_deployment_has_it() -> None:
    """The others were still to be written; what cannot be read is watched anew."""
    paused, observed = Memory(Phase.PAUSED, NOW, "worse"), Memory(Phase.OBSERVED, NOW)
    assert remembered([observed.annotations(), paused.annotations(), {}]) == paused
    assert remembered([Memory().annotations(), observed.annotations()]) == observed
    assert remembered([{"serving.ballast.dev/canary": "{"}]) == Memory()
    assert remembered([{}]) is None


@pytest.mark.parametrize(("weight", "wanted", "pods"), [(10, 4, 1), (10, 10, 1), (10, 11, 2), (50, 2, 1), (50, 7, 4)])
def test_the_fewest_pods_carry_the_weight(weight: int, wanted: int, pods: int) -> None:
    """At least one."""
    assert pods_of(weight, wanted) == pods


@dataclass
class World:
    """A ServingPool of 2 prefills and 4 decodes with a canary, its gateways, and time."""

    spec: dict[str, Any] = field(default_factory=dict)
    pools: tuple[Manifest, ...] = ()
    now: datetime = field(default_factory=lambda: datetime.fromisoformat(NOW))
    board: Board = field(default_factory=Board)
    canary: Tally = GOOD
    """What gateways count of it."""
    image: str = "1"

    def __post_init__(self) -> None:
        """The first revision serves."""
        self.store = ObjectStore(profile("a100"), profile("h20"), objective("fast"))
        self.apply("1")
        for _ in range(3):
            self.turn()

    def apply(self, image: str, **rollout: Any) -> None:
        """The spec with this engine."""
        canary = {"weight": 25, "observeS": 60, "minRequests": 50}
        given = {"maxSurge": 0, "maxUnavailable": 1, "canary": canary} | rollout
        rolled = {key: value for key, value in given.items() if value is not None}
        before = self.store.objects.get(("ServingPool", NAMESPACE, "chat"))
        engine = {"image": f"registry.test/engine:{image}"}
        spec = {"sloRef": {"name": "fast"}, **self.spec}
        made = serving_pool(*self.pools, engine=engine, rollout=rolled, **spec)
        self.store.put(made if before is None or "status" not in before else {**made, "status": before["status"]})

    def look(self) -> None:
        settings = OperatorSettings(gateway=DEFAULTS)
        Reconciler(self.store, self.store, settings, self.time, lambda: FRESH_TOKEN, board=self.board).serving_pool(
            NAMESPACE, "chat"
        )

    def time(self) -> str:
        return self.now.strftime("%Y-%m-%dT%H:%M:%SZ")

    def turn(self, canary: Tally | None = None) -> None:
        """20 s: a look, what Kubernetes does, and what gateways have counted if they have a canary."""
        self.canary = self.canary if canary is None else canary
        self.now += timedelta(seconds=20)
        self.look()
        self.check()
        self.store.run_deployments()
        found = self.settings().canary
        if found is not None:
            both = CanaryReport(
                revision=found.revision, canary=SideReport(served=self.canary), others=SideReport(served=MANY)
            )
            said = Answer("g", AttainmentReport(unix_s=1.0, since_unix_s=0.0, canary=both))
            of = self.board.followed()[NAMESPACE, "chat"]
            self.board.answered((NAMESPACE, "chat"), of, measured((), [said]), self.now.timestamp() + 1e6)

    def settings(self) -> GatewaySettings:
        """Of gateways."""
        return parse_settings(self.store.objects["ConfigMap", NAMESPACE, "chat-gateway"]["data"]["gateway.yaml"])

    def pods(self) -> dict[str, dict[str, int]]:
        """Instances asked for, by pool and image; those of which there are none left out."""
        found: dict[str, dict[str, int]] = {"prefill": {}, "decode": {}}
        for (kind, _, _), item in self.store.objects.items():
            name = item["metadata"].get("labels", {}).get("serving.ballast.dev/pool")
            if kind in ("Deployment", "LeaderWorkerSet") and name in found and item["spec"]["replicas"]:
                spec = item["spec"]
                template = spec["template"] if kind == "Deployment" else spec["leaderWorkerTemplate"]["leaderTemplate"]
                image = template["spec"]["containers"][0]["image"]
                found[name][image[-1]] = item["spec"]["replicas"]
        return found

    def check(self) -> None:
        """Never above the wanted number, nor two below it."""
        for name, wanted in (("prefill", 2), ("decode", 4)) if not self.pools else ():
            assert wanted - 1 <= sum(self.pods()[name].values()) <= wanted

    def progressing(self) -> tuple[str, str, str]:
        found = stored_condition(self.store, "Progressing")
        return found["status"], found["reason"], found["message"]


OLD = {"prefill": {"1": 2}, "decode": {"1": 4}}
WATCHED = {"prefill": {"1": 1, "2": 1}, "decode": {"1": 3, "2": 1}}
NEW = {"prefill": {"2": 2}, "decode": {"2": 4}}


def watched(world: World) -> None:
    """Until a canary has its pods, and gateways know its weight."""
    world.apply("2")
    for _ in range(6):
        world.turn()
    assert world.pods() == WATCHED
    canary = world.settings().canary
    assert canary is not None
    assert canary.weight == 0.25
    status, reason, message = world.progressing()
    assert (status, reason) == ("True", "CanaryProgressing")
    assert "25 % of the requests" in message


def test_a_good_canary_becomes_the_fleet() -> None:
    """One pair of 2 and 4 first; after its time the rollout goes on as without it, and nothing of it is left."""
    world = World()
    watched(world)
    for _ in range(12):
        world.turn()
    assert world.pods() == NEW
    assert world.progressing()[:2] == ("False", "Complete")
    assert world.settings().canary is None
    world.turn()
    annotations = [item["metadata"].get("annotations") or {} for item in world.store.objects.values()]
    assert not any("serving.ballast.dev/canary" in each for each in annotations)


def test_few_requests_make_it_wait() -> None:
    """As long as it takes, and it says so."""
    world = World()
    world.canary = FEW
    watched(world)
    for _ in range(6):
        world.turn()
    assert world.pods() == WATCHED
    assert "too few requests to say: 9 of 50" in world.progressing()[2]
    for _ in range(12):
        world.turn(GOOD)
    assert world.pods() == NEW


def paused(world: World) -> None:
    watched(world)
    world.turn(BAD)
    world.turn()
    assert world.progressing()[:2] == ("False", "CanaryPaused")
    for _ in range(5):
        world.turn(GOOD)
    assert world.pods() == OLD


def test_a_worse_canary_is_paused_and_gives_its_pods_back() -> None:
    """It gets no requests, the old revision has all pods; condition, Event and `kubectl get` say why and what to do.

    A new operator knows that, and what it counts later changes nothing.
    """
    world = World()
    paused(world)
    canary = world.settings().canary
    assert canary is not None
    assert canary.weight == 0.0
    status, reason, message = world.progressing()
    assert (status, reason) == ("False", "CanaryPaused")
    assert "served at once: 70.0 % (" in message
    assert "others 97.0 % (" in message
    assert "apply the old spec" in message
    events = [each for each in world.store.events if each["reason"] == "CanaryPaused"]
    assert [each["type"] for each in events] == ["Warning"]
    assert world.store.objects["ServingPool", NAMESPACE, "chat"]["status"]["display"]["reason"] == "CanaryPaused"
    world.board = Board()
    world.look()
    assert world.progressing() == (status, reason, message)


@pytest.mark.rotating(3)
def test_the_ways_out_of_a_pause() -> None:
    """The old spec: complete at once, and nothing is left. Without a canary: the rollout goes on. Another engine: a
    canary of its own."""
    for image, rollout, end in (("1", {}, OLD), ("2", {"canary": None}, NEW)):
        world = World()
        paused(world)
        world.apply(image, **rollout)
        for _ in range(14):
            world.turn()
        assert world.pods() == end
        assert world.progressing()[:2] == ("False", "Complete")
        assert world.settings().canary is None
        assert len([key for key in world.store.objects if key[0] == "Deployment"]) == 3
    world = World()
    paused(world)
    world.apply("3")
    for _ in range(4):
        world.turn()
    assert world.pods() == {"prefill": {"1": 1, "3": 1}, "decode": {"1": 3, "3": 1}}


def test_another_engine_while_a_canary_is_watched_takes_the_same_revision_from_all_pools() -> None:
    """The one that serves keeps a pod of each stage, whatever their names and numbers in one pool; worse, the new one
    gives all back to it."""
    world = World()
    watched(world)
    world.apply("3")
    for counts in (*[FEW] * 6, *[BAD] * 8):
        world.turn(counts)
        assert all(each.get("1") for each in world.pods().values())
    assert world.progressing()[1] == "CanaryPaused"
    assert world.pods() == OLD


@pytest.mark.parametrize("turns", range(0, 12, 2))
def test_the_old_spec_rolls_back_from_any_point_without_a_canary(turns: int) -> None:
    """Also in the middle of the rollout that follows it."""
    world = World()
    world.apply("2")
    for _ in range(turns):
        world.turn()
    world.apply("1")
    for _ in range(10):
        world.turn()
        assert world.progressing()[1] != "CanaryProgressing"
    assert world.pods() == OLD
    assert world.progressing()[:2] == ("False", "Complete")


@pytest.mark.rotating(3)
def test_an_operator_that_dies_goes_on_with_the_canary() -> None:
    """Between any two writes of the looks that begin it, pause it and give its pods back."""
    for after in (0, 2, 5, 9):
        world = World()
        world.apply("2")
        for counts in (GOOD, GOOD, GOOD, BAD, GOOD, GOOD):
            world.store.interrupt(Killed(), after=after)
            try:
                world.turn(counts)
            except Killed:
                world.turn(counts)
            world.store.end_interruption()
        for _ in range(5):
            world.turn(BAD)
        assert world.progressing()[1] == "CanaryPaused", after
        assert world.pods() == OLD


def test_groups_of_nodes_have_canaries_as_pods_do() -> None:
    """A group is an instance: one of four is tried, becomes the fleet, or is given back; at every look nearly all of
    the wanted number are there."""
    decode = pool("decode", "Decode", replicas=4, nodesPerInstance=2)
    wide = (pool("prefill", "Prefill", replicas=2, hardware="a100"), decode)
    good = World(pools=wide)
    watched(good)
    for _ in range(12):
        good.turn()
        assert 3 <= sum(good.pods()["decode"].values()) <= 4
    assert good.pods() == NEW
    assert good.progressing()[:2] == ("False", "Complete")
    assert len([key for key in good.store.objects if key[0] == "LeaderWorkerSet"]) == 1
    bad = World(pools=wide)
    paused(bad)
    bad.apply("1")
    for _ in range(4):
        bad.turn()
    assert bad.progressing()[:2] == ("False", "Complete")


def test_other_nodes_of_the_same_revision_need_no_canary() -> None:
    """All pods would be of its revision: there is nothing to compare, and nobody to wait for."""
    prefill = pool("prefill", "Prefill", replicas=1, hardware="a100")
    world = World(pools=(prefill, pool("decode", "Decode", replicas=1)))
    world.pools = (prefill, pool("decode", "Decode", replicas=1, nodesPerInstance=2))
    world.apply("1")
    for _ in range(6):
        world.turn(FEW)
        assert world.settings().canary is None
    sets = [item["spec"]["replicas"] for (kind, _, _), item in world.store.objects.items() if kind == "LeaderWorkerSet"]
    assert sets == [1]
    assert world.progressing()[:2] == ("False", "Complete")


def test_a_canary_without_room_waits_and_says_so() -> None:
    """One instance and no surge: nothing is touched; with surge it starts beside it."""
    one = (pool("prefill", "Prefill", replicas=1, hardware="a100"), pool("decode", "Decode", replicas=2))
    world = World(pools=one)
    world.apply("2")
    for _ in range(4):
        world.turn()
    assert world.pods() == {"prefill": {"1": 1}, "decode": {"1": 2}}
    assert "no room in prefill" in world.progressing()[2]
    world.apply("2", maxSurge=1)
    for _ in range(4):
        world.turn()
    assert world.pods() == {"prefill": {"1": 1, "2": 1}, "decode": {"1": 1, "2": 1}}


def test_its_pods_start_when_gateways_know_its_weight() -> None:
    """Without it they would send it what the least busy revision gets."""
    world = World()
    lease = world.store.objects["Lease", NAMESPACE, "chat-gateway"]
    old = {"settings.serving.ballast.dev/g-1": "0123456789"}
    lease["metadata"]["annotations"] = old
    world.apply("2")
    for _ in range(3):
        world.turn()
    assert world.pods() == OLD
    del world.store.objects["Lease", NAMESPACE, "chat-gateway"]["metadata"]["annotations"]
    for _ in range(4):
        world.turn()
    assert world.pods() == WATCHED


def test_its_pods_wait_for_settings_that_are_held_or_refused() -> None:
    """The same: no gateway weighs it, and nobody counts it."""
    world = World()
    world.spec = {"policyRef": {"name": "fair"}}
    world.apply("2")
    for _ in range(4):
        world.turn()
        assert world.pods() == OLD
    world.store.put(policy())
    world.turn()
    newest = settings_hash(world.store.objects.values())
    lease = world.store.objects["Lease", NAMESPACE, "chat-gateway"]
    lease["metadata"]["annotations"] = {"settings.serving.ballast.dev/g-1": f"{newest} it has no such field"}
    for _ in range(4):
        world.turn()
        assert world.pods() == OLD
    del world.store.objects["Lease", NAMESPACE, "chat-gateway"]["metadata"]["annotations"]
    for _ in range(6):
        world.turn()
    assert world.pods() == WATCHED
