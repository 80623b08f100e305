"""A list and watches that end, break, are refused, or leave something out: what is kept is what the server has."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from ballast_operator.api import informer as module
from ballast_operator.api.api_failure import ApiFailure
from ballast_operator.api.informer import Informer
from ballast_operator.api.kept import Change
from ballast_operator.kinds import DEPLOYMENT, HTTP_ROUTE, OPTIONAL_CHILDREN, POD, Kind, Manifest
from tests.support.versioned_store import Events, VersionedStore

AWAY = ApiFailure(0, "Unreachable", "connection refused")
FORBIDDEN = ApiFailure(403, "Forbidden", 'deployments.apps is forbidden: cannot watch resource "deployments"')


def deployment(name: str, kind: Kind = DEPLOYMENT, **spec: object) -> Manifest:
    metadata = {"name": name, "namespace": "team", "uid": f"uid-{name}", "labels": {"managed": "us"}}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": spec}


@dataclass
class Server:
    """A store whose lists and watches may fail, or lose what they should have said."""

    store: VersionedStore
    list_errors: list[ApiFailure] = field(default_factory=list)
    watch_errors: list[ApiFailure] = field(default_factory=list)
    breaks: list[ApiFailure] = field(default_factory=list)
    loses: set[str] = field(default_factory=set)
    lists: int = 0

    def snapshot(self, kind: Kind, namespace: str | None, *, labels: str = "") -> object:
        self.lists += 1
        if self.list_errors:
            raise self.list_errors.pop(0)
        return self.store.snapshot(kind, namespace, labels=labels)

    def watch(self, kind: Kind, namespace: str | None, *, labels: str = "", since: int, lasts_s: float) -> Events:
        if self.watch_errors:
            raise self.watch_errors.pop(0)
        found = self.store.watch(kind, namespace, labels=labels, since=since, lasts_s=lasts_s)
        found.events = [each for each in found.events if each["object"]["metadata"].get("name") not in self.loses]
        found.breaks = self.breaks.pop(0) if self.breaks else None
        return found

    def kinds_of(self, api_version: str) -> frozenset[str]:
        return frozenset({"deployments"}) if api_version == "apps/v1" else self.store.kinds_of(api_version)


class Watching:
    """An informer, its server, what it told, and a clock."""

    def __init__(self, *objects: Manifest, kind: Kind = DEPLOYMENT, optional: tuple[Kind, ...] = OPTIONAL_CHILDREN):
        self.server = Server(VersionedStore(*objects, optional=optional))
        self.told: list[Change] = []
        self.turns = 0
        self.now_s = 0.0
        self.informer = Informer(
            self.server,  # type: ignore[arg-type]
            kind,
            None,
            labels="managed=us",
            told=lambda _, changes: self.told.extend(changes),
            turned=lambda _: self._turned(),
            clock=lambda: self.now_s,
        )

    def _turned(self) -> None:
        self.turns += 1

    def names(self) -> list[str]:
        return [item["metadata"]["name"] for item in self.informer.kept.list(None, {})]

    def news(self) -> dict[str, bool]:
        """Names of what was told since the last call; True: it is gone."""
        told, self.told[:] = {change.name[1]: change.manifest is None for change in self.told}, []
        return told


def test_a_list_and_then_only_watches() -> None:
    """Each turn goes on where the last watch ended."""
    each = Watching(deployment("a"))
    assert not each.informer.settled
    assert each.informer.trouble is not None
    each.informer.turn()
    assert (each.names(), each.news()) == (["a"], {"a": False})
    assert [each.informer.settled, each.informer.trouble] == [True, None]
    each.server.store.put(deployment("b"))
    each.informer.turn()
    each.server.store.remove(("Deployment", "team", "a"))
    each.server.store.put(deployment("b", replicas=3))
    each.informer.turn()
    assert (each.names(), each.news(), each.server.lists) == (["b"], {"a": True, "b": False}, 1)


def test_what_loses_its_label_is_gone_and_what_never_had_it_is_not_seen() -> None:
    """By the server's own selection."""
    each = Watching(deployment("a"))
    each.informer.turn()
    each.news()
    stripped, foreign = deployment("a"), deployment("theirs")
    stripped["metadata"]["labels"] = foreign["metadata"]["labels"] = {}
    each.server.store.put(stripped)
    each.server.store.put(foreign)
    each.informer.turn()
    assert (each.names(), each.news()) == ([], {"a": True})


@pytest.mark.parametrize("where", ["answer", "event"])
def test_a_place_that_the_server_has_forgotten_is_a_new_list(where: str) -> None:
    """410, as the answer or in the stream: at once, and what has changed meanwhile is told."""
    each = Watching(deployment("a"), deployment("b"))
    each.informer.turn()
    each.news()
    each.server.store.remove(("Deployment", "team", "a"))
    if where == "answer":
        each.server.store.forget()
        assert each.informer.turn() == 0.0
    else:
        each.server.breaks = [ApiFailure(410, "Expired", "too old resource version")]
        each.informer.turn()
    each.informer.turn()
    assert (each.names(), each.news(), each.server.lists) == (["b"], {"a": True}, 2)


def test_failures_are_tried_again_later_and_later_until_one_succeeds() -> None:
    """And what is kept counts for a while without a watch, then no more."""
    each = Watching(deployment("a"))
    each.informer.turn()
    each.server.watch_errors = [AWAY] * 9
    delays = [each.informer.turn() for _ in range(9)]
    assert delays == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    assert [each.informer.trouble] == [None]
    each.now_s += module.BELIEVED_S + 1
    trouble = each.informer.trouble
    assert trouble is not None
    assert trouble.transient
    each.informer.turn()
    assert [each.informer.trouble] == [None]
    each.server.watch_errors = [AWAY]
    assert each.informer.turn() == 0.5


def test_a_watch_that_breaks_goes_on_where_it_was() -> None:
    """What it had said is told."""
    each = Watching(deployment("a"))
    each.informer.turn()
    each.server.store.put(deployment("b"))
    each.server.breaks = [AWAY]
    assert each.informer.turn() == 0.5
    assert each.news() == {"a": False, "b": False}
    each.informer.turn()
    assert (each.server.lists, each.news()) == (1, {})


def test_what_a_failing_watch_keeps_from_being_told_is_told_later() -> None:
    """The list was read; the watch after it was refused at first."""
    each = Watching(deployment("a"))
    each.server.watch_errors = [AWAY]
    each.informer.turn()
    assert each.news() == {}
    each.informer.turn()
    assert each.news() == {"a": False}


def test_a_missing_right_is_the_servers_own_words_until_it_is_granted() -> None:
    """Of list or watch alike; a kind that is refused and not there at all is just not there."""
    each = Watching(deployment("a"))
    each.server.watch_errors = [FORBIDDEN, FORBIDDEN]
    each.informer.turn()
    assert (each.informer.trouble, each.informer.settled, each.turns) == (FORBIDDEN, True, 1)
    each.server.list_errors = [FORBIDDEN]
    each.informer.turn()
    each.informer.turn()
    assert (each.informer.trouble, each.turns) == (None, 2)
    absent = Watching(kind=HTTP_ROUTE, optional=())
    absent.server.list_errors = [FORBIDDEN]
    absent.informer.turn()
    assert (absent.informer.trouble, absent.informer.present) == (None, False)
    core = Watching(kind=POD)
    core.server.list_errors = [FORBIDDEN]
    core.informer.turn()
    assert core.informer.trouble is FORBIDDEN


def test_a_kind_that_the_cluster_does_not_have_is_looked_for_again() -> None:
    """It appears with its CRD and goes with it, and both is told."""
    each = Watching(deployment("a", HTTP_ROUTE), kind=HTTP_ROUTE, optional=())
    assert each.informer.turn() == 30.0
    assert (each.informer.settled, each.informer.present, each.informer.trouble) == (True, False, None)
    each.server.store._absent = frozenset()
    each.informer.turn()
    assert (each.informer.present, each.names(), each.turns) == (True, ["a"], 2)
    each.server.store._absent = frozenset({HTTP_ROUTE})
    each.informer.turn()
    assert (each.informer.present, each.names(), each.turns) == (False, [], 3)
    assert each.news() == {"a": True}


def test_a_watch_that_leaves_out_our_own_write_is_replaced_by_a_list() -> None:
    """A gap: what else was lost is then there, too."""
    each = Watching(deployment("a"))
    each.informer.turn()
    each.news()
    each.server.loses = {"a", "b"}
    each.informer.kept.written(each.server.store.put(deployment("a", replicas=2)))
    each.server.store.put(deployment("b"))
    each.informer.turn()
    each.informer.turn()
    assert (each.names(), each.news(), each.server.lists) == (["a", "b"], {"b": False}, 2)


def test_the_list_is_read_anew_now_and_then() -> None:
    """For what a watch has left out although nobody here wrote."""
    each = Watching(deployment("a"))
    each.informer.turn()
    each.server.loses = {"b"}
    each.server.store.put(deployment("b"))
    each.informer.turn()
    assert each.names() == ["a"]
    each.now_s += module.RELIST_S + 1
    each.informer.turn()
    assert each.names() == ["a", "b"]


def test_a_server_that_was_set_back_is_listed_anew() -> None:
    """It answers that our place is in its future."""
    each = Watching(deployment("a"))
    each.informer.turn()
    each.server.watch_errors = [ApiFailure(504, "Timeout", "Too large resource version: 900, current: 2")]
    each.informer.turn()
    each.informer.turn()
    assert each.server.lists == 2


def test_its_thread_survives_an_answer_that_nobody_foresaw(monkeypatch: pytest.MonkeyPatch) -> None:
    """It lists anew, and ends when it is told to, also in the middle of a watch."""
    monkeypatch.setattr(module, "LAST_DELAY_S", 0.01)
    each = Watching(deployment("a"))
    odd: Iterator[object] = iter([RuntimeError("odd")])
    honest = each.server.snapshot

    def snapshot(kind: Kind, namespace: str | None, *, labels: str = "") -> object:
        error = next(odd, None)
        if isinstance(error, RuntimeError):
            raise error
        return honest(kind, namespace, labels=labels)

    each.server.snapshot = snapshot  # type: ignore[method-assign]
    each.informer.start()
    while not each.informer.settled:
        time.sleep(0.005)
    assert each.informer.alive()
    each.informer.stop()
    each.informer.join(5.0)
    assert not each.informer.alive()
