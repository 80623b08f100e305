"""Who names an object stands in its status, and the chart's admission policy asks there before a deletion."""

from __future__ import annotations

from pathlib import Path

import pytest

from ballast_api import names
from ballast_operator.kinds import HARDWARE_PROFILE, REFERRED, SCHEDULING_POLICY, Kind
from ballast_operator.planning.references import named_objects
from ballast_operator.reading.users import Referred, Users
from tests.support.object_store import ObjectStore
from tests.support.operator_builders import NAMESPACE, policy, profile, reconciler, serving_pool

ADMISSION = Path(__file__).parents[2] / "charts" / "ballast" / "templates" / "admission.yaml"


def used_by(store: ObjectStore, kind: Kind, name: str) -> list[str]:
    """What the status says."""
    found = store.objects[kind.kind, NAMESPACE if kind.namespaced else None, name]
    said: list[str] = found["status"]["usedBy"]
    return said


def looked_at(
    store: ObjectStore, users: Users, kind: Kind, name: str, *, namespaces: tuple[str, ...] = ()
) -> list[str]:
    operator = reconciler(store, users=users, namespaces=namespaces)
    operator.referred(kind, NAMESPACE if kind.namespaced else None, name)
    return used_by(store, kind, name)


def test_the_status_of_what_is_named_says_by_whom_until_nobody_does() -> None:
    """By watches at first; a look at a ServingPool corrects what a watch has missed, such as its end."""
    named = serving_pool(policyRef={"name": "fair"})
    store, users = ObjectStore(profile("a100"), profile("h20"), policy(), named), Users()
    assert users.put(NAMESPACE, "chat", named_objects(named)) == {
        Referred(SCHEDULING_POLICY, NAMESPACE, "fair"),
        Referred(HARDWARE_PROFILE, None, "a100"),
        Referred(HARDWARE_PROFILE, None, "h20"),
    }
    assert looked_at(store, users, SCHEDULING_POLICY, "fair") == [f"{NAMESPACE}/chat"]
    assert looked_at(store, users, HARDWARE_PROFILE, "h20") == [f"{NAMESPACE}/chat"]
    other = serving_pool()
    assert users.put(NAMESPACE, "chat", named_objects(other)) == {Referred(SCHEDULING_POLICY, NAMESPACE, "fair")}
    assert looked_at(store, users, SCHEDULING_POLICY, "fair") == []
    del store.objects["ServingPool", NAMESPACE, "chat"]
    reconciler(store, users=users).serving_pool(NAMESPACE, "chat")
    assert looked_at(store, users, HARDWARE_PROFILE, "h20") == []


def test_an_operator_of_single_namespaces_leaves_others_users_as_they_are() -> None:
    """Two operators share a HardwareProfile: neither takes away what the other has written, nor do they take turns."""
    store = ObjectStore(profile("h20"))
    mine, theirs = Users(), Users()
    mine.put("team", "chat", [(HARDWARE_PROFILE, "h20")])
    theirs.put("lab", "demo", [(HARDWARE_PROFILE, "h20")])
    for _ in range(2):
        looked_at(store, mine, HARDWARE_PROFILE, "h20", namespaces=("team",))
        assert looked_at(store, theirs, HARDWARE_PROFILE, "h20", namespaces=("lab",))[0] == "lab/demo"
    assert used_by(store, HARDWARE_PROFILE, "h20") == ["lab/demo", "team/chat"]
    assert len(store.writes) == 3  # two statuses and an Event
    mine.put("team", "chat", [])
    assert looked_at(store, mine, HARDWARE_PROFILE, "h20", namespaces=("team",)) == ["lab/demo"]


def test_a_status_names_a_bounded_number_of_users() -> None:
    """The first ones, in order."""
    store, users = ObjectStore(profile("h20")), Users()
    for number in range(100):
        users.put("team", f"chat-{number:03}", [(HARDWARE_PROFILE, "h20")])
    assert looked_at(store, users, HARDWARE_PROFILE, "h20") == [f"team/chat-{number:03}" for number in range(64)]


@pytest.mark.parametrize(
    "word", [f"'{names.ANNOTATION_ALLOW_DELETION}'", "oldObject.status.usedBy", *(kind.plural for kind in REFERRED)]
)
def test_the_admission_policy_asks_what_the_operator_writes(word: str) -> None:
    """The same kinds, field and annotation."""
    assert word in ADMISSION.read_text()
