"""The operator against a real API server, with the rights that its chart gives it.

It runs as a local process behind a relay that counts its writes and kills it at will; nothing in the product knows.
Pools have no replicas here: the scenarios are about objects, conditions and rights, and leave the nodes alone.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit import Cluster, Kubectl, wait_until
from kit.api_relay import ApiRelay
from kit.commands import CommandError
from kit.local_operator import LocalOperator
from kit.quickstart import condition, objects, with_own_profiles
from kit.release import NAME as RELEASE
from kit.release import Release

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900), pytest.mark.xdist_group("operator")]

NAME = "quickstart"
KINDS = (
    "servingpools,deployments,services,configmaps,serviceaccounts,roles,rolebindings,poddisruptionbudgets,"
    "secrets,leases,networkpolicies,schedulingpolicies,servicelevelobjectives"
)
TOKEN = f"{NAME}-gateway-token"
SELECTOR = f"serving.ballast.dev/serving-pool={NAME}"
CHILDREN = {"Proxy": 18, "Picker": 20}
"""Objects of the ServingPool by its face, itself among them; the picker's is the one with agents."""


@pytest.fixture(scope="module")
def alone(release: Release) -> Iterator[Release]:
    """No operator in the cluster while the local ones are tested; it is back afterwards."""
    release.kubectl.run("scale", f"deployment/{RELEASE}", "--replicas=0")
    selector = "app.kubernetes.io/component=operator"
    wait_until(lambda: not release.kubectl.items("pods", selector), 60, "the cluster's own operator is gone")
    yield release
    release.kubectl.run("scale", f"deployment/{RELEASE}", "--replicas=1")
    release.kubectl.rollout(f"deployment/{RELEASE}")


@pytest.fixture
def relay(cluster: Cluster) -> Iterator[ApiRelay]:
    """The relay in front of the API server."""
    relay = ApiRelay(cluster.kubectl)
    yield relay
    relay.close()


@pytest.fixture
def operator(alone: Release, relay: ApiRelay, kubectl: Kubectl, tmp_path: Path) -> Iterator[LocalOperator]:
    """An operator that is not started yet; with the ServiceAccount's token, by way of the relay."""
    token = alone.kubectl.with_token(RELEASE, tmp_path)
    kubeconfig = relay.kubeconfig(token.kubeconfig, tmp_path / "relay.kubeconfig")
    assert kubectl.namespace is not None
    process = LocalOperator(kubeconfig, kubectl.namespace, alone.cluster.images.ballast, tmp_path / "operator.log")
    yield process
    process.stop()
    print(process.log_tail())


@pytest.fixture
def referred(kubectl: Kubectl, cluster: Cluster) -> Iterator[dict[str, Any]]:
    """Everything of the quickstart but the ServingPool, applied; the ServingPool, without replicas, returned."""
    found, profiles = with_own_profiles(objects(cluster.images.ballast, 1.0), str(kubectl.namespace))
    pool = next(item for item in found if item["kind"] == "ServingPool")
    others = [item for item in found if item is not pool]
    kubectl.apply(*others)
    for entry in pool["spec"]["pools"]:
        entry["replicas"] = 0
    pool["spec"]["gateway"]["replicas"] = 0
    yield pool
    for name in profiles:
        cluster.kubectl.delete_named("hardwareprofile", name)


def settled(kubectl: Kubectl) -> dict[str, Any] | None:
    """The ServingPool, when nothing is left to do for it."""
    pool = kubectl.get("servingpool", NAME)
    done = (
        condition(pool, "Progressing").get("reason") == "Complete"
        and condition(pool, "Degraded").get("status") == "False"
        and pool["status"]["observedGeneration"] == pool["metadata"]["generation"]
        and len(kubectl.items(KINDS, SELECTOR)) == CHILDREN[pool["spec"]["gateway"]["face"]]
    )
    return pool if done else None


def state(kubectl: Kubectl) -> list[dict[str, Any]]:
    """Every object of the ServingPool without what no two runs have alike. `generation` stays: an object that was
    written twice with different content shows."""
    found = [item for item in kubectl.items(KINDS) if item["metadata"]["name"] != "kube-root-ca.crt"]
    return sorted(
        (_same_each_run(item) for item in found if item["metadata"]["name"] != "default"),
        key=lambda item: (item["kind"], item["metadata"]["name"]),
    )


def _same_each_run(value: Any) -> Any:
    volatile = {
        *("uid", "resourceVersion", "creationTimestamp", "managedFields", "lastTransitionTime", "lastUpdateTime"),
        *("clusterIP", "clusterIPs", "deployment.kubernetes.io/revision"),
    }
    if isinstance(value, dict):
        if value.get("kind") == "Secret":
            value = {**value, "data": sorted(value["data"])}  # its token is another one in each life of the ServingPool
        return {key: _same_each_run(item) for key, item in sorted(value.items()) if key not in volatile}
    if isinstance(value, list):
        items = [_same_each_run(item) for item in value]
        by_type = all(isinstance(item, dict) and "type" in item and "status" in item for item in items)
        return sorted(items, key=lambda item: str(item["type"])) if by_type else items
    return value


def remove(kubectl: Kubectl) -> None:
    """Delete the ServingPool, and wait for its objects: the garbage collector's work, none of the operator's."""
    kubectl.run("delete", "servingpool", NAME, "--cascade=foreground", "--timeout=60s", timeout_s=70)
    wait_until(lambda: not kubectl.items(KINDS, SELECTOR), 60, "no object of the ServingPool is left")


@pytest.mark.rotating(4)
def test_killed_after_any_of_its_writes_it_converges(
    operator: LocalOperator, relay: ApiRelay, kubectl: Kubectl, referred: dict[str, Any]
) -> None:
    """kill -9 after the k-th API write, for every k of one reconcile; the state afterwards is the undisturbed one's."""
    operator.start()
    wait_until(
        lambda: all(item.get("status") for item in kubectl.items("schedulingpolicies,servicelevelobjectives")),
        60,
        "the referred objects have their status",
    )
    relay.reset()
    kubectl.apply(referred)
    wait_until(lambda: settled(kubectl), 60, "the ServingPool has settled")
    operator.stop()
    expected = state(kubectl)
    for kill_at in itertools.count(1):
        remove(kubectl)
        kubectl.apply(referred)
        relay.reset(kill_at=kill_at, kill=operator.kill)
        operator.start()
        wait_until(lambda: operator.has_ended() or settled(kubectl), 90, f"settled, or killed at write {kill_at}")
        if not operator.has_ended(within_s=2.0):
            break  # it needs fewer writes than that; news that come together make one status of several
        assert len(relay.writes) >= kill_at  # another worker may have been in the midst of one
        operator.stop()
        relay.reset()
        made = kubectl.find("secret", TOKEN)
        operator.start()
        wait_until(lambda: settled(kubectl), 90, f"settled after a kill at write {kill_at}", poll_s=0.5)
        operator.stop()
        assert made is None or kubectl.get("secret", TOKEN)["data"] == made["data"]
        assert state(kubectl) == expected, f"killed after write {kill_at}"
    assert kill_at - 1 > CHILDREN["Proxy"], relay.writes
    print(f"killed after each of {kill_at - 1} writes, converged every time")


@pytest.mark.parametrize("face", ["Proxy", "Picker"])
def test_a_settled_pool_costs_no_write(
    operator: LocalOperator, relay: ApiRelay, kubectl: Kubectl, referred: dict[str, Any], face: str
) -> None:
    """Neither resyncs nor a restart write anything."""
    token = f"/api/v1/namespaces/{kubectl.namespace}/secrets/{TOKEN}"  # each look reads it
    referred["spec"]["gateway"]["face"] = face
    kubectl.apply(referred)
    operator.start(resync_s=1.0)
    wait_until(lambda: settled(kubectl), 60, "the ServingPool has settled")
    before = state(kubectl)
    operator.stop()
    relay.reset()
    operator.start(resync_s=1.0)
    wait_until(lambda: relay.reads[token] > 3, 60, "the ServingPool was looked at again and again")
    operator.stop()
    assert relay.writes == []
    assert state(kubectl) == before


def test_what_people_break_is_healed(operator: LocalOperator, kubectl: Kubectl, referred: dict[str, Any]) -> None:
    """Deleted, edited, stripped of labels: as the spec wants it again, without anybody touching the ServingPool."""
    kubectl.apply(referred)
    operator.start()
    wait_until(lambda: settled(kubectl), 60, "the ServingPool has settled")
    kubectl.delete("service", f"{NAME}-gateway")
    kubectl.delete("configmap", f"{NAME}-gateway")
    kubectl.patch("deployment", f"{NAME}-decode", {"spec": {"progressDeadlineSeconds": 7}})
    kubectl.patch("role", f"{NAME}-gateway", {"rules": []})
    kubectl.patch("poddisruptionbudget", f"{NAME}-decode", {"metadata": {"labels": {"serving.ballast.dev/pool": None}}})

    def healed() -> bool:
        deadline = kubectl.get("deployment", f"{NAME}-decode")["spec"]["progressDeadlineSeconds"]
        return settled(kubectl) is not None and deadline != 7 and bool(kubectl.get("role", f"{NAME}-gateway")["rules"])

    wait_until(healed, 60, "everything is as the spec wants it")


def test_what_the_api_server_cannot_read_is_named_and_all_else_goes_on(
    operator: LocalOperator, kubectl: Kubectl, referred: dict[str, Any]
) -> None:
    """A bad quantity is refused at once where the schema knows it. Elsewhere Degraded quotes the field, the status is
    of the newest spec, and a Deployment that somebody deletes comes back."""
    kubectl.apply(referred)
    operator.start()
    wait_until(lambda: settled(kubectl), 60, "the ServingPool has settled")
    (engine,) = referred["spec"]["pools"][0]["template"]["spec"]["containers"]
    engine["resources"] = {"limits": {"memory": "4 Gi"}}
    with pytest.raises(CommandError, match="memory"):
        kubectl.apply(referred)
    for broken, words in (
        ({"volumes": [{"name": "more", "emptyDir": {"sizeLimit": "4 Gi"}}]}, "sizeLimit"),
        ({"terminationGracePeriodSeconds": "soon"}, "terminationGracePeriodSeconds"),
        ({"overhead": {"memory": "4 Gi"}}, "quantit"),
    ):
        engine["resources"] = {}
        referred["spec"]["pools"][0]["template"]["spec"] = {"containers": [engine], **broken}
        kubectl.apply(referred)

        def said(words: str = words) -> bool:
            pool = kubectl.get("servingpool", NAME)
            degraded = condition(pool, "Degraded")
            newest = pool["metadata"]["generation"] == pool["status"]["observedGeneration"]
            return newest and degraded["status"] == "True" and words in degraded["message"]

        wait_until(said, 60, f"Degraded names {words}")
        print(condition(kubectl.get("servingpool", NAME), "Degraded")["message"])
    kubectl.delete("deployment", f"{NAME}-decode")
    wait_until(lambda: kubectl.find("deployment", f"{NAME}-decode"), 60, "the deleted Deployment is back")
    referred["spec"]["pools"][0]["template"]["spec"] = {"containers": [engine]}
    kubectl.apply(referred)
    wait_until(lambda: settled(kubectl), 60, "all is well again")


def test_edits_are_followed_and_a_removed_pool_goes(
    operator: LocalOperator, kubectl: Kubectl, referred: dict[str, Any]
) -> None:
    """Scale a pool, rename another one, change the image: one Deployment each, the old one gone."""
    kubectl.apply(referred)
    operator.start()
    wait_until(lambda: settled(kubectl), 60, "the ServingPool has settled")
    edited = json.loads(json.dumps(referred))
    edited["spec"]["pools"][0]["name"] = "fresh"
    edited["spec"]["engine"]["image"] = "localhost/other:1"
    kubectl.apply(edited)

    def followed() -> bool:
        names = {
            item["metadata"]["name"] for item in kubectl.items("deployments,services,poddisruptionbudgets", SELECTOR)
        }
        decode = kubectl.get("deployment", f"{NAME}-decode")["spec"]["template"]["spec"]["containers"]
        return f"{NAME}-fresh" in names and f"{NAME}-prefill" not in names and decode[0]["image"] == "localhost/other:1"

    wait_until(followed, 60, "the edit has been followed")
    remove(kubectl)


@pytest.mark.parametrize("kind", ["schedulingpolicy", "servicelevelobjective", "hardwareprofile"])
def test_a_missing_reference_is_named_and_heals(
    operator: LocalOperator, cluster: Cluster, kubectl: Kubectl, referred: dict[str, Any], kind: str
) -> None:
    """ResolvedRefs is False and says which; True again as soon as the object is there."""
    name = referred["spec"]["pools"][1]["hardware"] if kind == "hardwareprofile" else NAME
    missing = kubectl.get(kind, name)
    kubectl.delete(kind, name)
    kubectl.apply(referred)
    operator.start()

    def said() -> bool:
        found = condition(kubectl.get("servingpool", NAME), "ResolvedRefs")
        return found.get("status") == "False" and f"{missing['kind']} {name}" in found["message"]

    wait_until(said, 60, f"ResolvedRefs names {missing['kind']} {name}")
    kubectl.apply({key: missing[key] for key in ("apiVersion", "kind", "spec")} | {"metadata": {"name": name}})
    wait_until(lambda: settled(kubectl), 30, "healed")


def test_policies_that_make_no_sense_or_do_not_suit_are_refused_with_the_reason(
    operator: LocalOperator, kubectl: Kubectl, referred: dict[str, Any]
) -> None:
    """The server refuses an order that orders nothing; what this fleet cannot do is in the ServingPool's conditions."""
    policy = kubectl.get("schedulingpolicy", NAME)
    bare = {key: policy[key] for key in ("apiVersion", "kind")} | {"metadata": {"name": NAME}}
    with pytest.raises(CommandError, match="orders nothing"):
        kubectl.apply(
            {**bare, "spec": {**policy["spec"], "queue": {"type": "uniboost"}, "admission": {"type": "open"}}}
        )
    parts = {"queue": {"type": "uniboost"}, "admission": {"type": "bounded"}}
    kubectl.apply({**bare, "spec": {**policy["spec"], **parts, "partition": {"type": "libra"}}})
    kubectl.apply(referred)
    operator.start()

    def said(reason: str) -> bool:
        return condition(kubectl.get("servingpool", NAME), "Degraded").get("reason") == reason

    wait_until(lambda: said("PolicyUnsuited"), 60, "Degraded says PolicyUnsuited")
    assert condition(kubectl.get("schedulingpolicy", NAME), "Accepted").get("status") == "True"
    kubectl.apply({**bare, "spec": {**policy["spec"], **parts}})
    wait_until(lambda: settled(kubectl), 60, "healed")


def test_a_taken_name_is_a_condition_and_nobodys_object_is_lost(
    operator: LocalOperator, kubectl: Kubectl, referred: dict[str, Any]
) -> None:
    """Somebody's Service stays as it is; once it is gone, ours takes the name."""
    theirs = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": f"{NAME}-decode"},
        "spec": {"ports": [{"port": 1234}]},
    }
    kubectl.apply(theirs)
    before = kubectl.get("service", f"{NAME}-decode")
    kubectl.apply(referred)
    operator.start()
    wait_until(
        lambda: condition(kubectl.get("servingpool", NAME), "Degraded").get("reason") == "NameConflict",
        60,
        "Degraded says NameConflict",
    )
    assert kubectl.get("service", f"{NAME}-decode") == before
    kubectl.delete("service", f"{NAME}-decode")
    wait_until(lambda: settled(kubectl), 90, "healed")


def test_it_waits_for_an_api_server_that_is_away(
    operator: LocalOperator, relay: ApiRelay, kubectl: Kubectl, referred: dict[str, Any]
) -> None:
    """Requests fail for a while in the middle of everything; it neither ends nor gives up."""
    operator.start()
    wait_until(
        lambda: all(item.get("status") for item in kubectl.items("schedulingpolicies,servicelevelobjectives")),
        60,
        "the operator is at work",
    )
    relay.down = True
    kubectl.apply(referred)
    wait_until(lambda: "trying again" in operator.log_tail(), 60, "it has noticed")
    relay.down = False
    wait_until(lambda: settled(kubectl), 90, "settled")


def test_a_slow_api_server_makes_it_slow_and_nothing_else(
    operator: LocalOperator, relay: ApiRelay, kubectl: Kubectl, referred: dict[str, Any]
) -> None:
    """Each answer takes a second. What comes of an edit amid its writes is what a quick one makes of it, and stays."""

    def edited() -> None:
        kubectl.apply(referred)
        wait_until(lambda: kubectl.find("deployment", f"{NAME}-gateway"), 60, "it is at work")
        limits = {"limits": {"drainGraceS": 2.0}}
        kubectl.patch("servingpool", NAME, {"spec": {"gateway": {"settings": limits}}})
        wait_until(lambda: settled(kubectl), 120, "the ServingPool has settled")
        wait_until(
            lambda: condition(kubectl.get("servingpool", NAME), "SLOMet")["message"] == "no gateway runs",
            90,
            "a round of questions to gateways is over",
        )

    operator.start()
    edited()
    wait_until(lambda: is_quiet(relay, 3), 60, "it has told of it by Events, too", poll_s=0)
    expected = state(kubectl)
    operator.stop()
    remove(kubectl)
    relay.delay_s = 1.0
    operator.start()
    edited()
    wait_until(lambda: is_quiet(relay, 5), 90, "it has told of it by Events, too", poll_s=0)
    assert state(kubectl) == expected
    assert is_quiet(relay, 10), relay.writes[-5:]  # five resyncs
    assert not operator.has_ended()


def is_quiet(relay: ApiRelay, seconds: float) -> bool:
    """Whether nothing is written for so long."""
    before = len(relay.writes)
    time.sleep(seconds)
    return len(relay.writes) == before
