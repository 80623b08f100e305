"""Foreign edits are set back and told, with object, fields and field manager; changes of mind of our own are not."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from ballast_operator.api.api_failure import ApiFailure
from ballast_operator.edits import Edit
from ballast_operator.kinds import Manifest, ObjectKey
from ballast_operator.metrics import OperatorMetrics
from ballast_operator.reconcile import Reconciler
from ballast_operator.settings import OperatorSettings
from ballast_operator.status.edit_notices import TELL_S, EditNotices
from ballast_operator.writing.in_place import InPlace
from tests.support.object_store import UNAVAILABLE, ObjectStore
from tests.support.operator_builders import DEFAULTS, FRESH_TOKEN, NAMESPACE, NOW, pool, profile, serving_pool

DECODE = ("Deployment", NAMESPACE, "chat-decode")
SERVICE = ("Service", NAMESPACE, "chat-decode")


class Told:
    """A settled ServingPool, its operator, and what it says of foreign edits."""

    def __init__(self) -> None:
        self.store = ObjectStore(serving_pool(), profile("a100"), profile("h20"))
        self.now_s = 0.0
        self.metrics = OperatorMetrics()
        self.restart()
        self.look()
        self.store.run_deployments()
        self.look()
        assert self.events() == []

    def restart(self) -> None:
        """Another process: it remembers nothing."""
        self.operator = Reconciler(
            self.store,
            self.store,
            OperatorSettings(gateway=DEFAULTS),
            lambda: NOW,
            lambda: FRESH_TOKEN,
            set_back=self.metrics.set_back,
            clock=lambda: self.now_s,
        )

    def look(self) -> None:
        self.operator.serving_pool(NAMESPACE, "chat")

    def change(self, key: tuple[str, str, str], by: str | None = None) -> None:
        """Somebody sets replicas; the server notes whose they are now where `by` says."""
        live = self.store.objects[key]
        live["spec"]["replicas"] = 9
        if by is not None:
            ours = live["metadata"]["managedFields"][0]
            del ours["fieldsV1"]["f:spec"]["f:replicas"]
            fields: Manifest = {"f:spec": {"f:replicas": {}}}
            live["metadata"]["managedFields"].append({"manager": by, "operation": "Update", "fieldsV1": fields})

    def edit(self, **spec: Any) -> None:
        """The ServingPool's own spec."""
        status = self.store.objects["ServingPool", NAMESPACE, "chat"]["status"]
        self.store.put(serving_pool(generation=2, status=status, **spec))

    def events(self) -> list[str]:
        return [each["message"] for each in self.store.events if each["reason"] == "EditReverted"]


def test_an_edit_is_set_back_and_told_once_with_object_field_and_manager() -> None:
    """As a Warning on the ServingPool; the next look has nothing to say."""
    told = Told()
    told.change(DECODE, by="kubectl-edit")
    told.look()
    told.look()
    assert told.store.objects[DECODE]["spec"]["replicas"] == 4
    assert told.events() == ["Deployment chat-decode: kubectl-edit changed spec.replicas; set back"]
    event = next(each for each in told.store.events if each["reason"] == "EditReverted")
    assert (event["type"], event["involvedObject"]["kind"]) == ("Warning", "ServingPool")
    labels = {"namespace": NAMESPACE, "serving_pool": "chat", "kind": "Deployment"}
    assert told.metrics.registry.get_sample_value("ballast_operator_edits_reverted_total", labels) == 1


def test_what_is_deleted_or_stripped_is_told() -> None:
    """A Service that is gone, one without its labels (so no watch shows it), and a field that nobody owns any more."""
    told = Told()
    told.store.remove(SERVICE)
    del told.store.objects["Service", NAMESPACE, "chat-prefill"]["metadata"]["labels"]
    del told.store.objects[DECODE]["spec"]["template"]["spec"]["containers"][0]["image"]
    told.look()
    assert sorted(told.events()) == [
        "Deployment chat-decode: somebody changed spec.template.spec.containers; set back",
        "Service chat-decode: somebody deleted it; made again",
        "Service chat-prefill: somebody changed metadata.labels; set back",
    ]


def test_changes_of_mind_of_our_own_are_not_told() -> None:
    """Edits of the ServingPool's spec: more, fewer, other pools and back, with pods that drain meanwhile."""
    told = Told()
    specs: tuple[tuple[Manifest, ...], ...] = (
        (pool("prefill", "Prefill", hardware="a100"), pool("decode", "Decode", replicas=6)),
        (pool("prefill", "Prefill", hardware="a100"), pool("decode", "Decode", replicas=1)),
        (pool("all", "Flexible"),),
        (pool("prefill", "Prefill", hardware="a100"), pool("decode", "Decode", replicas=4)),
    )
    for pools in specs:
        told.edit()
        told.store.put(serving_pool(*pools, status=told.store.objects["ServingPool", NAMESPACE, "chat"]["status"]))
        for _ in range(4):
            told.look()
            told.store.run_deployments()
    assert told.events() == []


def test_a_field_that_others_own_and_we_do_not_want_is_theirs() -> None:
    """An annotation of kubectl's, a status of the Deployment controller's."""
    told = Told()
    template = told.store.objects[DECODE]["spec"]["template"]
    template["metadata"].setdefault("annotations", {})["kubectl.kubernetes.io/restartedAt"] = NOW
    writes = len(told.store.writes)
    told.look()
    assert told.store.writes[writes:] == []
    told.edit(pools=[pool("prefill", "Prefill", hardware="a100"), pool("decode", "Decode", replicas=5)])
    told.look()
    assert told.events() == []


def test_after_a_restart_an_edit_is_known_by_who_owns_the_field() -> None:
    """The operator was away when it came, or the plan has followed it for a while; a change of the spec is not one."""
    told = Told()
    told.change(DECODE, by="kubectl")
    told.restart()
    told.look()
    assert told.events() == ["Deployment chat-decode: kubectl changed spec.replicas; set back"]
    told.edit(pools=[pool("prefill", "Prefill", hardware="a100"), pool("decode", "Decode", replicas=7)])
    told.restart()
    told.look()
    assert told.store.objects[DECODE]["spec"]["replicas"] == 7
    assert len(told.events()) == 1


def test_edits_again_and_again_are_one_event_in_ten_minutes() -> None:
    """Two that fight must not flood the namespace; the metric counts each, the next Event says how many."""
    told = Told()
    for _ in range(5):
        told.change(DECODE)
        told.look()
        told.now_s += 10.0
    assert len(told.events()) == 1
    told.now_s += TELL_S
    told.change(DECODE)
    told.look()
    assert told.events()[1:] == [
        "Deployment chat-decode: somebody changed spec.replicas; set back (and 4 times since the last Event about it)"
    ]
    labels = {"namespace": NAMESPACE, "serving_pool": "chat", "kind": "Deployment"}
    assert told.metrics.registry.get_sample_value("ballast_operator_edits_reverted_total", labels) == 6


def test_it_is_told_when_it_is_set_back_not_before() -> None:
    """A refused write keeps quiet; what was set back before the server went away is told all the same."""
    told = Told()
    told.store.remove(SERVICE)
    told.change(DECODE)
    told.store.refuse = {"Deployment chat-decode": UNAVAILABLE}
    with pytest.raises(ApiFailure):
        told.look()
    assert told.events() == ["Service chat-decode: somebody deleted it; made again"]
    told.store.refuse = {}
    told.look()
    assert told.events()[1:] == ["Deployment chat-decode: somebody changed spec.replicas; set back"]


def test_another_serving_pool_of_the_same_name_has_lost_nothing() -> None:
    """It is new, and none of its objects has been there."""
    told = Told()
    for key in [key for key in told.store.objects if key[0] != "HardwareProfile"]:
        told.store.remove(key)
    again = serving_pool()
    again["metadata"]["uid"] = "another"
    told.store.put(again)
    told.look()
    assert told.events() == []


DESIRED: Manifest = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "a", "namespace": NAMESPACE},
    "spec": {"selector": {"app": "a"}, "ports": [{"name": "http", "port": 80}, {"name": "grpc", "port": 81}]},
}
OWNED: Manifest = {
    "f:spec": {
        "f:selector": {},
        "f:ports": {
            f'k:{{"port":{port},"protocol":"TCP"}}': {".": {}, "f:port": {}, "f:name": {}} for port in (80, 81)
        },
    }
}


def live(*others: Manifest) -> Manifest:
    """As applied, with the fields of others beside ours."""
    found = copy.deepcopy(DESIRED)
    ours = {"manager": "ballast-operator", "operation": "Apply", "fieldsV1": copy.deepcopy(OWNED)}
    found["metadata"] |= {"managedFields": [ours, *others]}
    return found


def by(manager: str, spec: Manifest, **more: str) -> Manifest:
    return {"manager": manager, "operation": "Update", "fieldsV1": {"f:spec": spec}, **more}


def test_entries_of_lists_are_named_by_their_keys_and_taken_wholes_by_their_field() -> None:
    """A port, and a selector that somebody added a key to."""
    in_place = InPlace("u")
    in_place.is_right(DESIRED, "ballast-operator")
    port = 'k:{"port":81,"protocol":"TCP"}'
    found = live(by("argocd", {"f:ports": {port: {"f:name": {}}}, "f:selector": {}}))
    found["spec"]["ports"][1]["name"] = "other"
    found["spec"]["selector"]["x"] = "y"
    del found["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"]["f:selector"]
    assert in_place.edit_of(DESIRED, found, "ballast-operator") == Edit(
        ObjectKey("Service", "a"), ("spec.ports[grpc]", "spec.selector"), ("argocd",)
    )


def test_a_status_and_our_own_managers_are_nobody_else() -> None:
    """Unknown what was before: only a field that another manager took tells an edit."""
    found = live(by("kube-controller-manager", {"f:selector": {}}, subresource="status"))
    found["metadata"]["managedFields"].append(by("ballast-operator-rollout", {"f:selector": {}}))
    found["spec"]["selector"] = {"app": "b"}
    del found["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"]["f:selector"]
    assert InPlace("u").edit_of(DESIRED, found, "ballast-operator") is None
    found["metadata"]["managedFields"].append(by("helm", {"f:selector": {}}))
    assert InPlace("u").edit_of(DESIRED, found, "ballast-operator") == Edit(
        ObjectKey("Service", "a"), ("spec.selector",), ("helm",)
    )


def test_what_the_server_makes_of_our_own_write_is_no_edit() -> None:
    """A webhook that puts another value in place at each write: the object is never as we want it."""
    in_place = InPlace("u")
    answer = live()
    answer["spec"]["selector"] = {"app": "mirror"}
    in_place.written(DESIRED, answer, "ballast-operator", None)
    assert in_place.edit_of(DESIRED, answer, "ballast-operator") is None
    in_place.written(DESIRED, live(), "ballast-operator", None)
    assert in_place.edit_of(DESIRED, answer, "ballast-operator") is not None


def test_a_long_list_of_fields_is_cut() -> None:
    """An Event holds 1,000 characters."""
    edit = Edit(ObjectKey("Service", "a"), tuple(f"spec.f{n}" for n in range(9)), ("x", "y"))
    (notice,) = EditNotices().of([edit], 0.0)
    assert notice.message == "Service a: x, y changed spec.f0, spec.f1, spec.f2, spec.f3, spec.f4 and 4 more; set back"
