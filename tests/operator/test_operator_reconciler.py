"""The reconciler against a store: one look writes objects, status and Events, whatever the API server answers."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from ballast_operator.api.api_failure import ApiFailure
from ballast_operator.controller import Controller, Key
from ballast_operator.kinds import HARDWARE_PROFILE, SCHEDULING_POLICY, SERVING_POOL, Kind, Manifest
from ballast_operator.reconcile import Result
from ballast_operator.settings import OperatorSettings
from tests.support.object_store import UNAVAILABLE, ObjectStore
from tests.support.operator_builders import (
    DEFAULTS,
    LATER,
    NAMESPACE,
    NOW,
    policy,
    pool,
    profile,
    reconciler,
    serving_pool,
    stored_condition,
)

DEPLOYMENTS = ("chat-gateway", "chat-prefill", "chat-decode")


class Watched(ObjectStore):
    """Notes, for another thread, that a status was written."""

    def __init__(self, *objects: Manifest) -> None:
        super().__init__(*objects)
        self.has_status = threading.Event()

    def apply_status(self, kind: Kind, of: Manifest, status: Manifest, manager: str) -> Manifest:
        live = super().apply_status(kind, of, status, manager)
        self.has_status.set()
        return live


def store_with(*objects: Manifest) -> ObjectStore:
    return ObjectStore(profile("a100"), profile("h20"), *(objects or (serving_pool(),)))


def look(store: ObjectStore, *, now: str = NOW) -> Result:
    return reconciler(store, now=now).serving_pool(NAMESPACE, "chat")


def serving(**spec: Any) -> ObjectStore:
    """A ServingPool whose pods are all ready, after a look that has nothing to write."""
    store = store_with(serving_pool(**spec))
    look(store)
    store.run_deployments()
    look(store)
    before = len(store.writes)
    assert look(store) == Result()
    assert store.writes[before:] == []
    return store


def edited(store: ObjectStore, **spec: Any) -> None:
    """`kubectl edit`: another spec, the next generation."""
    live = store.objects["ServingPool", NAMESPACE, "chat"]
    generation = live["metadata"]["generation"] + 1
    store.put(serving_pool(generation=generation, status=live["status"], **spec))


def test_a_new_serving_pool_gets_its_objects_then_its_status_then_events() -> None:
    """The status comes after the objects that it is about; each condition that changed is an Event."""
    store = store_with()
    result = look(store)
    assert result.requeue_s is not None
    assert not result.failed
    verbs = [line.partition(" ")[0] for line in store.writes]
    assert verbs == ["apply"] * verbs.count("apply") + ["status"] + ["event"] * len(store.events)
    assert {event["reason"] for event in store.events} >= {"PrefillNotReady", "Scaling"}
    for event in store.events:
        assert event["involvedObject"]["name"] == "chat"


def test_a_serving_pool_whose_pods_are_ready_costs_no_write_and_no_early_look() -> None:
    """Neither objects nor status nor Events."""
    assert stored_condition(serving(), "Available")["status"] == "True"


@pytest.mark.parametrize("value", ["", None], ids=["empty", "null"])
def test_an_empty_variable_of_an_engine_is_complete_and_costs_no_write(value: str | None) -> None:
    """The API server leaves its value out."""
    image = "registry.test/engine:1"
    store = serving(engine={"image": image, "env": [{"name": "HTTPS_PROXY", "value": value}]})
    assert stored_condition(store, "Progressing")["reason"] == "Complete"


@pytest.mark.parametrize(
    "overlay",
    [
        {"hostNetwork": False},
        {"tolerations": []},
        {"tolerations": [{"key": "gpu", "operator": "Exists", "effect": ""}]},
        {"imagePullSecrets": []},
        {"volumes": [{"name": "x", "emptyDir": {"medium": ""}}]},
        {"containers": [{"name": "engine", "readinessProbe": {"initialDelaySeconds": 0}}]},
        {"containers": [{"name": "engine", "env": [{"name": "NO_PROXY", "value": ""}]}]},
    ],
    ids=str,
)
def test_a_zero_in_an_overlay_is_complete_and_costs_no_write(overlay: Manifest) -> None:
    store = serving(pools=[pool("it", "Flexible", template={"spec": overlay})])
    assert stored_condition(store, "Progressing")["reason"] == "Complete"


TOLERATION = {"key": "gpu", "operator": "Exists", "effect": "NoExecute"}


def tolerating(**more: Any) -> Manifest:
    return {"template": {"spec": {"tolerations": [TOLERATION | more]}}}


def front(**more: Any) -> Manifest:
    return {"parentRefs": [{"name": "front"} | more]}


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        (tolerating(tolerationSeconds=300), tolerating(tolerationSeconds=None), "Deployment"),
        (tolerating(tolerationSeconds=300), tolerating(), "Deployment"),
        (front(sectionName="https"), front(), "HTTPRoute"),
        (front() | {"match": {"headers": [{"name": "x-team", "value": "a"}]}}, front(), "HTTPRoute"),
    ],
    ids=["null", "left-out", "parent", "match"],
)
def test_a_field_that_a_list_of_the_spec_loses_is_taken_away(before: Manifest, after: Manifest, kind: str) -> None:
    """In a list that is applied as a whole, of which the API server does not say what is ours."""
    store, fresh = serving(gateway=before), serving(gateway=after)
    edited(store, gateway=after)
    look(store)
    key = (kind, NAMESPACE, "chat-gateway")
    assert store.objects[key]["spec"] == fresh.objects[key]["spec"]


def test_an_edit_is_in_progress_from_the_very_look_that_writes_it() -> None:
    """The Deployment's counts are still those of the older revision: the new spec must not be reported as complete."""
    store = serving()
    edited(store, engine={"image": "registry.test/engine:1", "args": ["--max-num-seqs", "9"]})
    result = look(store, now=LATER)
    progressing = stored_condition(store, "Progressing")
    assert (progressing["status"], progressing["observedGeneration"]) == ("True", 2)
    assert progressing["lastTransitionTime"] == LATER
    assert result.requeue_s is not None
    store.run_deployments()
    look(store, now=LATER)
    assert stored_condition(store, "Progressing")["reason"] == "Complete"


def test_a_refused_object_is_named_with_its_field_and_keeps_no_other_back() -> None:
    """422 for one Deployment: the others are written, the status quotes the server, the look counts as failed."""
    store = store_with()
    words = "spec.template.spec.containers[0].resources.limits[cpu]: Invalid value: 'x'"
    store.refuse = {"Deployment chat-prefill": ApiFailure(422, "Invalid", words)}
    result = look(store)
    assert result.failed
    written = {name for kind, _, name in store.objects if kind == "Deployment"}
    assert written == set(DEPLOYMENTS) - {"chat-prefill"}
    degraded = stored_condition(store, "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "ApplyFailed")
    assert f"Deployment chat-prefill: {words}" in degraded["message"]
    assert any(event["type"] == "Warning" and words in event["message"] for event in store.events)
    store.refuse = {}
    assert not look(store).failed
    assert stored_condition(store, "Degraded")["status"] == "False"


BAD_QUANTITY = ApiFailure(
    500,
    "InternalError",
    "Internal error occurred: unable to parse quantity: quantities must match the regular expression",
)


def test_an_internal_error_of_one_object_is_a_condition_and_the_others_are_healed() -> None:
    """The server answers 500 to what it cannot read. The status is of this spec, and the next look comes by itself."""
    store = serving()
    edited(store, engine={"image": "registry.test/engine:1", "args": ["--max-num-seqs", "9"]})
    store.refuse = {"Deployment chat-prefill": BAD_QUANTITY}
    del store.objects["Deployment", NAMESPACE, "chat-decode"], store.objects["Service", NAMESPACE, "chat-prefill"]
    assert look(store).failed
    assert store.objects.keys() >= {("Deployment", NAMESPACE, "chat-decode"), ("Service", NAMESPACE, "chat-prefill")}
    degraded = stored_condition(store, "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "ApplyFailed")
    assert "Deployment chat-prefill" in degraded["message"]
    assert "quantities must match" in degraded["message"]
    status = store.objects["ServingPool", NAMESPACE, "chat"]["status"]
    assert status["observedGeneration"] == degraded["observedGeneration"] == 2


@pytest.mark.parametrize(
    ("status", "message", "transient"),
    [
        (0, "connection refused", True),
        (429, "too many requests", True),
        (503, "apiserver not ready", True),
        (500, "etcdserver: leader changed", True),
        (500, "rpc error: code = Unavailable desc = etcdserver: request timed out", True),
        (500, str(BAD_QUANTITY), False),
        (500, 'failed calling webhook "x": context deadline exceeded', False),
        (422, "Invalid value", False),
        (400, "strict decoding error", False),
    ],
)
def test_what_is_the_servers_own_trouble_is_told_from_what_comes_of_the_object(
    status: int, message: str, transient: bool
) -> None:
    """Only the first ends a look."""
    assert ApiFailure(status, "", message).transient is transient


def test_a_refused_edit_is_never_reported_as_complete() -> None:
    """All pods are ready, of the older revision."""
    store = serving()
    edited(store, engine={"image": "registry.test/engine:2"})
    store.refuse = {"Deployment": ApiFailure(403, "Forbidden", "exceeded quota")}
    for _ in range(2):
        look(store)
        assert stored_condition(store, "Progressing")["reason"] != "Complete"
        assert stored_condition(store, "Degraded")["reason"] == "ApplyFailed"
        assert stored_condition(store, "Available")["status"] == "True"


def test_a_child_that_may_not_be_deleted_is_named() -> None:
    """A pool that left the spec, and a right that the operator lacks."""
    store = serving()
    flexible = [{"name": "all", "role": "Flexible", "hardware": "h20", "replicas": 1}]
    edited(store, pools=flexible)
    store.refuse = {"Deployment chat-decode": ApiFailure(403, "Forbidden", "cannot delete resource")}
    assert look(store).failed
    assert "Deployment chat-decode: cannot delete resource" in stored_condition(store, "Degraded")["message"]
    assert ("Deployment", NAMESPACE, "chat-prefill") not in store.objects


def test_an_object_of_another_owner_is_named_with_the_fix_and_not_touched() -> None:
    """Its controller is another one: NameConflict."""
    store = store_with()
    controller = {"kind": "Rollout", "name": "other", "uid": "other", "controller": True}
    metadata = {"name": "chat-decode", "namespace": NAMESPACE, "uid": "theirs", "ownerReferences": [controller]}
    theirs: Manifest = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": {"replicas": 1}}
    store.put(theirs)
    assert look(store).failed
    assert store.objects["Deployment", NAMESPACE, "chat-decode"] == theirs
    degraded = stored_condition(store, "Degraded")
    assert degraded["reason"] == "NameConflict"
    for words in ("Deployment chat-decode", "controlled by Rollout other", "rename the ServingPool"):
        assert words in degraded["message"]


def test_objects_that_an_earlier_serving_pool_left_are_adopted() -> None:
    """Deleted with `--cascade=orphan`: its labels, and no controller."""
    store = serving()
    orphan = store.objects["Deployment", NAMESPACE, "chat-decode"]
    del orphan["metadata"]["ownerReferences"]
    look(store)
    assert store.objects["Deployment", NAMESPACE, "chat-decode"]["metadata"]["ownerReferences"][0]["name"] == "chat"
    assert stored_condition(store, "Degraded")["status"] == "False"


def test_a_transient_refusal_is_raised_leaves_the_status_as_it_was_and_heals() -> None:
    """503 is no property of the object: the look is tried again as a whole, and no condition flips for it."""
    store = serving()
    before = store.objects["ServingPool", NAMESPACE, "chat"]["status"]
    edited(store, engine={"image": "registry.test/engine:1", "args": ["--max-num-seqs", "9"]})
    store.interrupt(UNAVAILABLE, after=0)
    with pytest.raises(ApiFailure, match="etcd leader changed"):
        look(store)
    assert store.objects["ServingPool", NAMESPACE, "chat"]["status"] == before
    look(store)
    engine = store.objects["Deployment", NAMESPACE, "chat-decode"]["spec"]["template"]["spec"]["containers"][0]
    assert engine["args"][-2:] == ["--max-num-seqs", "9"]


async def test_the_controller_tries_a_look_again_that_met_a_transient_refusal() -> None:
    """The real queue, workers and reconciler: one addition of the key is enough."""
    store = Watched(profile("a100"), profile("h20"), serving_pool())
    store.interrupt(UNAVAILABLE, after=3)
    settings = OperatorSettings(gateway=DEFAULTS, workers=1, resync_s=3600.0)
    controller = Controller(reconciler(store), settings)
    controller.start()
    controller.touch(Key(SERVING_POOL, NAMESPACE, "chat"))
    assert await asyncio.to_thread(store.has_status.wait, 30)
    await controller.stop()
    assert {name for kind, _, name in store.objects if kind == "Deployment"} == set(DEPLOYMENTS)
    assert stored_condition(store, "Degraded")["status"] == "False"


@pytest.mark.parametrize(("status", "reason"), [(404, "NotFound"), (409, "Conflict")], ids=str)
def test_a_status_whose_object_has_gone_meanwhile_is_dropped_without_an_event(status: int, reason: str) -> None:
    """Deleted, or deleted and made anew, between reading and writing: its own event brings the next look."""
    store = store_with()
    store.refuse = {"ServingPool": ApiFailure(status, reason, "gone")}
    assert not look(store).failed
    assert store.events == []


def test_a_refused_status_of_an_engine_pool_is_named_in_the_serving_pools() -> None:
    """As with roles of an older chart: pods, counts and conditions go on."""
    autoscaled = pool("decode", "Decode", autoscaling={"minReplicas": 1, "maxReplicas": 4})
    store = store_with(serving_pool(pool("prefill", "Prefill", hardware="a100"), autoscaled))
    store.refuse = {"status EnginePool": ApiFailure(403, "Forbidden", 'cannot patch resource "enginepools/status"')}
    look(store)
    store.run_deployments()
    assert look(store).failed
    assert stored_condition(store, "Available")["status"] == "True"
    degraded = stored_condition(store, "Degraded")
    assert degraded["reason"] == "ApplyFailed"
    assert degraded["message"] == 'EnginePool chat-decode: cannot patch resource "enginepools/status"'
    store.refuse = {"status EnginePool": UNAVAILABLE}
    with pytest.raises(ApiFailure, match="etcd leader changed"):
        look(store)


def test_a_status_that_is_refused_for_good_is_raised() -> None:
    """The status cannot report it, so the log and the growing delay do."""
    store = store_with()
    store.refuse = {"ServingPool": ApiFailure(403, "Forbidden", "no right")}
    with pytest.raises(ApiFailure, match="no right"):
        look(store)


def test_events_that_are_refused_fail_no_look() -> None:
    """The status says the same."""
    store = store_with()
    store.refuse = {"Event": ApiFailure(403, "Forbidden", "no right")}
    assert not look(store).failed
    assert stored_condition(store, "Progressing")["status"] == "True"


def test_nothing_is_made_for_a_serving_pool_that_is_gone_or_going() -> None:
    """The garbage collector is at work: the status says so, once."""
    assert look(ObjectStore()) == Result()
    store = serving()
    store.objects["ServingPool", NAMESPACE, "chat"]["metadata"]["deletionTimestamp"] = NOW
    before = len(store.writes)
    for _ in range(2):
        assert look(store) == Result()
        assert store.writes[before:] == ["status ServingPool chat", "event Event Deleting"]
    assert stored_condition(store, "Progressing")["reason"] == "Deleting"
    assert stored_condition(store, "Available")["status"] == "True"
    assert store.objects["ServingPool", NAMESPACE, "chat"]["status"]["display"]["reason"] == "Deleting"


def test_a_spec_that_is_not_valid_touches_no_object_and_names_the_field() -> None:
    """Counts and availability stay."""
    store = serving()
    objects = {key: item for key, item in store.state().items() if key[0] != "ServingPool"}
    edited(store, model={"name": ""})
    assert look(store) == Result()
    assert {key: item for key, item in store.state().items() if key[0] != "ServingPool"} == objects
    assert stored_condition(store, "Available")["status"] == "True"
    assert stored_condition(store, "Degraded")["message"].startswith("spec.model.name: ")


def test_a_referred_object_gets_its_condition_once() -> None:
    """Cluster-scoped or not; and none when it is deleted meanwhile."""
    store = ObjectStore(profile("h20"), policy(placement="crystal-ball"))
    operator = reconciler(store)
    for _ in range(2):
        operator.referred(HARDWARE_PROFILE, None, "h20")
        operator.referred(SCHEDULING_POLICY, NAMESPACE, "fair")
        operator.referred(SCHEDULING_POLICY, NAMESPACE, "gone")
    assert store.writes == [
        *("status HardwareProfile h20", "event Event Accepted"),
        *("status SchedulingPolicy fair", "event Event InvalidSpec"),
    ]
    (condition,) = store.objects["SchedulingPolicy", NAMESPACE, "fair"]["status"]["conditions"]
    assert (condition["status"], condition["reason"]) == ("False", "InvalidSpec")
