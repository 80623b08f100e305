"""Level-based: whatever the reconciler finds, and wherever it dies, it ends in the same state.

1. From any starting state, looks until one writes nothing end in the state that an empty namespace ends in
   (references alike).
2. Killed before its k-th write, or answered 503 there, for every k, and run again, it ends in that same state. Objects,
   status and Events count as writes.
3. The look after that writes nothing.
4. Nothing of another owner is ever written or deleted.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable

import pytest

from ballast_operator.api.api_failure import ApiFailure
from ballast_operator.kinds import Manifest
from tests.support.object_store import UNAVAILABLE, Killed, ObjectStore, StoreKey
from tests.support.operator_builders import (
    NAMESPACE,
    objective,
    policy,
    pool,
    profile,
    reconciler,
    serving_pool,
    stored_condition,
)

pytestmark = pytest.mark.rotating(4, each=True)

REFERRED = (profile("a100", gpus=2), profile("h20"), policy(), objective())
SPEC = serving_pool(
    policyRef={"name": "fair"},
    sloRef={"name": "fast"},
    gateway={"face": "Both", "parentRefs": [{"name": "front"}]},
)
FRONT = {
    "apiVersion": "gateway.networking.k8s.io/v1",
    "kind": "Gateway",
    "metadata": {"name": "front", "namespace": NAMESPACE, "uid": "front"},
}
MOST_LOOKS = 5


def look(store: ObjectStore) -> None:
    """One look of an operator that has just started: it remembers nothing."""
    reconciler(store).serving_pool(NAMESPACE, "chat")


def settle(store: ObjectStore) -> None:
    """Looks until one writes nothing."""
    for _ in range(MOST_LOOKS):
        before = len(store.writes)
        look(store)
        if len(store.writes) == before:
            return
    raise AssertionError(f"still writing after {MOST_LOOKS} looks: {store.writes[-5:]}")


def reference() -> dict[StoreKey, Manifest]:
    store = ObjectStore(SPEC, FRONT, *REFERRED)
    settle(store)
    return store.state()


def empty() -> ObjectStore:
    return ObjectStore(SPEC, FRONT, *REFERRED)


def from_another_spec() -> ObjectStore:
    """Another shape of the same ServingPool, settled, then edited into SPEC: everything changes or goes."""
    other = serving_pool(pool("old", "Flexible"), pool("decode", "Decode", replicas=1), gateway={"face": "Proxy"})
    store = ObjectStore(other, FRONT, *REFERRED)
    settle(store)
    store.put({**SPEC, "status": store.objects["ServingPool", NAMESPACE, "chat"]["status"]})
    return store


def tampered() -> ObjectStore:
    """Children that were edited, stripped and deleted by hand."""
    store = empty()
    settle(store)
    deployment = store.objects["Deployment", NAMESPACE, "chat-decode"]
    deployment["spec"]["replicas"] = 0
    deployment["spec"]["template"]["spec"]["containers"][0]["image"] = "evil:1"
    del store.objects["Service", NAMESPACE, "chat-gateway"]["spec"]["ports"]
    del store.objects["ConfigMap", NAMESPACE, "chat-gateway"]
    del store.objects["Deployment", NAMESPACE, "chat-prefill"]["metadata"]["labels"]
    return store


def without_field_owners() -> ObjectStore:
    """Restored from a backup that keeps no managedFields."""
    store = empty()
    settle(store)
    for manifest in store.objects.values():
        manifest["metadata"].pop("managedFields", None)
    return store


STARTS: list[Callable[[], ObjectStore]] = [empty, from_another_spec, tampered, without_field_owners]


@pytest.mark.parametrize("start", STARTS, ids=lambda start: start.__name__)
def test_every_starting_state_ends_alike(start: Callable[[], ObjectStore]) -> None:
    """Invariants 1 and 3."""
    store = start()
    settle(store)
    assert reference() == store.state()
    before = len(store.writes)
    look(store)
    assert store.writes[before:] == []


@pytest.mark.rotating(2)
@pytest.mark.parametrize("interruption", [Killed(), UNAVAILABLE], ids=["killed", "answered-503"])
@pytest.mark.parametrize("start", STARTS, ids=lambda start: start.__name__)
def test_interrupted_before_any_write_it_converges(start: Callable[[], ObjectStore], interruption: Exception) -> None:
    """Invariant 2, for every k until a look is not interrupted any more."""
    expected = reference()
    interruptions = 0
    while True:
        store = start()
        store.interrupt(interruption, after=interruptions)
        with contextlib.suppress(Killed, ApiFailure):
            look(store)
        if store.end_interruption():  # the look had fewer writes
            break
        interruptions += 1
        settle(store)
        assert expected == store.state(), f"interrupted before write {interruptions}"
    assert interruptions > 3


def test_killed_at_every_single_write_it_still_gets_there() -> None:
    """A process that dies after each write makes progress all the same."""
    store = empty()
    for _ in range(100):
        store.interrupt(Killed(), after=1)
        try:
            look(store)
            look(store)
        except Killed:
            continue
        break
    store.end_interruption()
    settle(store)
    assert reference() == store.state()


def test_an_object_of_another_owner_is_left_alone_and_named() -> None:
    """Invariant 4: a name that is taken is a condition, never a take-over."""
    theirs: Manifest = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "chat-decode", "namespace": NAMESPACE, "uid": "theirs", "labels": {}},
        "spec": {"ports": []},
    }
    store = empty()
    store.put(theirs)
    look(store)
    assert store.objects["Service", NAMESPACE, "chat-decode"] == theirs
    degraded = stored_condition(store, "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "NameConflict")
    assert "Service chat-decode" in degraded["message"]
    del store.objects["Service", NAMESPACE, "chat-decode"]
    settle(store)
    assert reference() == store.state()


def test_children_of_another_serving_pool_are_not_pruned() -> None:
    """The label is a hint, the controller's uid is the truth."""
    store = empty()
    settle(store)
    stranger = copy.deepcopy(store.objects["Service", NAMESPACE, "chat-decode"])
    stranger["metadata"] |= {"name": "other", "uid": "stranger"}
    stranger["metadata"]["ownerReferences"][0]["uid"] = "another-pool"
    store.put(stranger)
    settle(store)
    assert store.objects["Service", NAMESPACE, "other"] == stranger


def test_a_refused_write_does_not_keep_the_others_back() -> None:
    """One forbidden kind, everything else in place, the refusal in the status; healed once it is allowed."""
    store = empty()
    store.refuse = {"PodDisruptionBudget": ApiFailure(403, "Forbidden", "not allowed here")}
    look(store)
    assert stored_condition(store, "Degraded")["message"].count("not allowed here") == 3
    assert ("Deployment", NAMESPACE, "chat-decode") in store.objects
    store.refuse = {}
    settle(store)
    assert reference() == store.state()


@pytest.mark.parametrize("missing", REFERRED, ids=lambda manifest: str(manifest["kind"]))
def test_a_missing_reference_heals_when_it_appears(missing: Manifest) -> None:
    """Whatever was held back is written then."""
    store = ObjectStore(SPEC, FRONT, *(item for item in REFERRED if item is not missing))
    settle(store)
    assert reference().keys() != store.state().keys()
    store.put(missing)
    settle(store)
    assert reference() == store.state()


def test_optional_objects_appear_with_their_api_and_go_with_it() -> None:
    """CRDs that are installed later."""
    store = ObjectStore(SPEC, FRONT, *REFERRED, optional=())
    settle(store)
    assert not [key for key in store.objects if key[0] in {"HTTPRoute", "InferencePool"}]
    later = ObjectStore(*store.objects.values())
    settle(later)
    assert reference().keys() == later.state().keys()
