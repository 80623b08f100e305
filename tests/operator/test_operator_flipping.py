"""Roles of flexible pods: which ones change, and that a role stays with its pod."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast_api.demand_report import Load
from ballast_core.model import Role
from ballast_core.policies.scaling.protocol import Counts
from ballast_operator.api.api_failure import ApiFailure
from ballast_operator.scaling.flipping import flips, split
from ballast_operator.scaling.steered import Instance
from tests.support.operator_builders import NAMESPACE, pool
from tests.support.scaled_fleet import Fleet, autoscaled

P, D, F = Role.PREFILL, Role.DECODE, Role.FLEXIBLE
PREFILLS = {"prompt": 3000, "output": 30}
DECODES = {"prompt": 400, "output": 1200}


def pod(name: str, role: Role = F, *, ready: bool = True, ending: bool = False, revision: str = "r") -> Instance:
    return Instance(
        name=name, pool="flex", role=role, ready=ready, ending=ending, age_s=1.0, revision=revision, uid=name
    )


def changed(instances: list[Instance], wanted: Counts, loads: dict[str, Load] | None = None) -> dict[str, Role]:
    return {each.instance.name: each.role for each in flips(instances, wanted, loads or {})}


def test_new_pods_get_the_role_that_lacks() -> None:
    assert changed([pod("a", P), pod("b", D), pod("c"), pod("d")], Counts(1, 3)) == {"c": D, "d": D}
    assert changed([pod("a"), pod("b"), pod("c")], Counts(1, 2)) == {"a": P, "b": D, "c": D}


def test_those_change_that_are_not_ready_then_those_with_least_to_do() -> None:
    loads = {"a": Load(0, 3, 900), "b": Load(0, 1, 300), "c": Load(0, 9, 100)}
    three = [pod("a", D), pod("b", D), pod("c", D), pod("p", P)]
    assert changed(three, Counts(2, 2), loads) == {"c": P}
    assert changed([*three, pod("u", D, ready=False)], Counts(2, 3), loads) == {"u": P}


def test_each_revision_has_both_roles_while_two_are_there() -> None:
    """Engines of different revisions exchange no KV: one role of each would leave all of them alone."""
    old, new = [pod("a", P), pod("b", P), pod("c", D)], [pod("x", revision="new"), pod("y", revision="new")]
    found = changed([*old, *new], Counts(2, 2))
    assert sorted(found[name] for name in ("x", "y")) == [D, P]
    assert changed([*old, new[0]], Counts(2, 2)) == {}
    assert changed([pod("z", P, revision="new")], Counts(2, 2)) == {"z": F}


def test_a_pod_that_ends_is_left_alone() -> None:
    assert changed([pod("a", P), pod("b", D), pod("c", P, ending=True)], Counts(1, 1)) == {}


roles = st.lists(st.sampled_from([P, D, F]), min_size=0, max_size=9)


@given(roles, st.integers(0, 6), st.integers(0, 6), st.lists(st.booleans(), min_size=9, max_size=9))
def test_roles_come_to_the_wanted_proportion_with_the_fewest_changes(
    labels: list[Role], prefill: int, decode: int, ready: list[bool]
) -> None:
    """Once made, they are not made again; no pod changes between the two stages if a new one could take the role."""
    pods = [pod(f"{k}", role, ready=ready[k]) for k, role in enumerate(labels)]
    wanted = Counts(prefill, decode)
    found = changed(pods, wanted)
    after = [pod(each.name, found.get(each.name, each.role), ready=each.ready) for each in pods]
    assert changed(after, wanted) == {}
    if not wanted.replicas or len(pods) < 2:
        return
    target, counts, before = split(wanted, len(pods)), Counter(each.role for each in after), Counter(labels)
    assert (counts[P], counts[D]) == (target.prefill, target.decode)
    fewest = max(0, before[P] - target.prefill) + max(0, before[D] - target.decode) + before[F]
    assert len(found) == fewest


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 20))
def test_a_split_keeps_every_stage_that_has_an_instance(prefill: int, decode: int, count: int) -> None:
    found = split(Counts(prefill, decode), count)
    assert found.replicas == count
    if count >= 2:
        assert (found.prefill > 0) >= (prefill > 0)
        assert (found.decode > 0) >= (decode > 0)


# --- in the operator ------------------------------------------------------------------------------------------------


def flexible(replicas: int = 4) -> Fleet:
    return Fleet(pools=[pool("flex", "Flexible", replicas=replicas, hardware="h200")])


def count_of(fleet: Fleet) -> Counts:
    counts = Counter(fleet.roles().values())
    assert counts["flexible"] == 0
    return Counts(counts["prefill"], counts["decode"])


def test_roles_follow_the_mix_without_a_restart_of_any_pod() -> None:
    fleet = flexible()
    fleet.round(4)
    assert count_of(fleet) == Counts(2, 2)
    pods = set(fleet.pods)
    fleet.rate_rps, fleet.lengths = 20.0, PREFILLS
    fleet.round(8)
    assert count_of(fleet) == Counts(3, 1)
    assert "RolesFlipped" in [event["reason"] for event in fleet.store.events]
    fleet.rate_rps, fleet.lengths = 8.0, DECODES
    fleet.round(8)
    assert count_of(fleet) == Counts(1, 3)
    assert set(fleet.pods) == pods
    assert fleet.counts() == {"flex": 4}


def test_a_role_survives_looks_and_operators_and_a_new_pod_takes_the_lost_ones() -> None:
    fleet = flexible()
    fleet.rate_rps, fleet.lengths = 8.0, DECODES
    fleet.round(8)
    roles = fleet.roles()
    fleet.restart()
    fleet.look()
    fleet.round(2)
    assert fleet.roles() == roles
    gone = next(name for name, role in roles.items() if role == "prefill")
    del fleet.pods[gone], fleet.store.objects["Pod", NAMESPACE, gone]
    fleet.round(1)
    assert count_of(fleet) == Counts(1, 3)
    assert {name: role for name, role in fleet.roles().items() if name in roles} == {
        name: role for name, role in roles.items() if name != gone
    }


def test_settled_roles_are_written_once() -> None:
    fleet = flexible()
    fleet.round(10)
    fleet.store.writes.clear()
    fleet.round(10)
    assert fleet.store.writes == []


def test_a_pod_that_cannot_be_labelled_keeps_its_role_and_the_others_get_theirs() -> None:
    fleet = flexible()
    fleet.round(1)
    name = next(iter(fleet.roles()))
    fleet.rate_rps, fleet.lengths = 8.0, DECODES
    fleet.store.refuse["Pod"] = ApiFailure(403, "Forbidden", "pods is forbidden: cannot patch")
    fleet.round(8)
    assert count_of(fleet) == Counts(2, 2)
    del fleet.store.refuse["Pod"]
    fleet.round(1)
    assert count_of(fleet) == Counts(1, 3)
    assert name in fleet.roles()


@pytest.mark.parametrize("mode", ["Advisory", "Off"])
def test_roles_are_changed_by_auto_alone(mode: str) -> None:
    fleet = Fleet(pools=[pool("flex", "Flexible", replicas=4, hardware="h200")], spec={"ratio": {"mode": mode}})
    fleet.round(8)
    assert set(fleet.roles().values()) == {"flexible"}


def test_a_pool_that_grows_gives_its_new_pods_the_role_that_lacks() -> None:
    fleet = Fleet(pools=[autoscaled("flex", "Flexible", least=2)])
    fleet.round(4)
    before = fleet.roles()
    fleet.rate_rps = 40.0
    fleet.round(6)
    assert fleet.counts()["flex"] > len(before)
    asked = fleet.said
    assert count_of(fleet) == Counts(asked["prefillReplicas"], asked["decodeReplicas"])
    assert {name: fleet.roles()[name] for name in before} == before
