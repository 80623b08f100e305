"""Two operators: one leads, the other one waits; and it takes over where the first one ends or hangs."""

from __future__ import annotations

import asyncio
import copy
import threading
import time

import pytest

from ballast_operator import leading
from ballast_operator.api.api_failure import ApiFailure
from ballast_operator.kinds import Kind, Manifest
from ballast_operator.leading import LEASE_S, RENEW_DEADLINE_S, Election, lead


class Store:
    """One Lease, with the API server's answer to writes of an old version."""

    def __init__(self) -> None:
        self.lease: Manifest | None = None
        self.away = False
        self.now_s = 0.0
        self._version = 0

    def get(self, kind: Kind, namespace: str | None, name: str) -> Manifest | None:
        self._answer()
        return copy.deepcopy(self.lease)

    def create(self, manifest: Manifest) -> None:
        self._answer()
        if self.lease is not None:
            raise ApiFailure(409, "AlreadyExists", "exists")
        self._keep(manifest)

    def replace(self, manifest: Manifest) -> None:
        self._answer()
        if self.lease is None or manifest["metadata"]["resourceVersion"] != str(self._version):
            raise ApiFailure(409, "Conflict", "another version")
        self._keep(manifest)

    def _keep(self, manifest: Manifest) -> None:
        self._version += 1
        metadata = {**manifest["metadata"], "resourceVersion": str(self._version)}
        self.lease = copy.deepcopy({**manifest, "metadata": metadata})

    def _answer(self) -> None:
        if self.away:
            raise ApiFailure(0, "Unreachable", "away")

    def candidate(self, name: str) -> Election:
        return Election(self, "sys", "ballast", name, clock=lambda: self.now_s, now=lambda: f"t{self.now_s:06.1f}")


def test_one_of_two_leads_and_keeps_it_while_it_renews() -> None:
    """The second one waits, however long."""
    store = Store()
    a, b = store.candidate("a"), store.candidate("b")
    for _ in range(60):
        assert (a.leads(), b.leads()) == (True, False)
        store.now_s += 2.0


def test_the_second_one_takes_over_when_the_lease_has_run_out() -> None:
    """The first one hangs; when it wakes up it leads no more."""
    store = Store()
    a, b = store.candidate("a"), store.candidate("b")
    assert a.leads()
    assert not b.leads()
    store.now_s += LEASE_S - 0.1
    assert not b.leads()
    store.now_s += 0.2
    assert b.leads()
    assert not a.leads()


def test_one_that_ends_is_followed_at_once() -> None:
    """It releases the Lease."""
    store = Store()
    a, b = store.candidate("a"), store.candidate("b")
    assert a.leads()
    a.release()
    assert b.leads()
    assert not a.leads()


def test_a_leader_that_cannot_renew_ends_before_another_may_begin() -> None:
    """A blink of the API server costs nothing."""
    store = Store()
    a = store.candidate("a")
    assert a.leads()
    store.away = True
    store.now_s += RENEW_DEADLINE_S - 0.1
    assert a.leads()
    store.now_s += 0.2
    assert not a.leads()
    assert RENEW_DEADLINE_S < LEASE_S


@pytest.mark.parametrize("exists", [False, True])
def test_of_two_writes_at_once_one_wins(exists: bool) -> None:
    """Both have read the same Lease."""
    store = Store()
    if exists:
        gone = store.candidate("gone")
        assert gone.leads()
        gone.release()
    a = store.candidate("a")
    read = store.get

    def read_and_lose(kind: Kind, namespace: str | None, name: str) -> Manifest | None:
        found = read(kind, namespace, name)
        store.get = read  # type: ignore[method-assign]
        assert a.leads()
        return found

    store.get = read_and_lose  # type: ignore[method-assign]
    assert not store.candidate("b").leads()
    assert a.leads()


def test_a_write_whose_answer_was_lost_does_not_end_a_leader() -> None:
    """It was stored, and the next one of the same version is refused: the Lease is ours all the same."""
    store = Store()
    a = store.candidate("a")
    assert a.leads()
    stored = store.replace

    def twice(manifest: Manifest) -> None:
        store.replace = stored  # type: ignore[method-assign]
        stored(manifest)
        stored(manifest)

    store.replace = twice  # type: ignore[method-assign]
    store.now_s += 2.0
    assert a.leads()
    store.now_s += 2.0
    assert a.leads()
    assert store.lease is not None
    assert store.lease["spec"]["renewTime"] == "t0004.0"


async def test_a_leader_whose_api_server_hangs_ends_before_another_may_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the call takes."""
    monkeypatch.setattr(leading, "RENEW_DEADLINE_S", 0.3)
    store, hangs, lost = Store(), threading.Event(), asyncio.Event()
    me = Election(store, "sys", "ballast", "me", clock=time.monotonic, now=lambda: "t")
    read = store.get

    def read_or_hang(kind: Kind, namespace: str | None, name: str) -> Manifest | None:
        if store.away:
            hangs.wait(30)
        return read(kind, namespace, name)

    store.get = read_or_hang  # type: ignore[method-assign]

    async def end() -> None:
        lost.set()

    task = asyncio.create_task(lead(me, lambda: setattr(store, "away", True), end, retry_s=0.01))
    try:
        await asyncio.wait_for(lost.wait(), 10)
        await task
    finally:
        store.away = False
        hangs.set()


async def test_work_begins_with_leadership_and_ends_with_it() -> None:
    """Not before, and once."""
    store, said = Store(), list[str]()
    other = store.candidate("other")
    assert other.leads()
    begun, lost = asyncio.Event(), asyncio.Event()

    def begin() -> None:
        said.append("begin")
        begun.set()

    async def end() -> None:
        said.append("lost")
        lost.set()

    task = asyncio.create_task(lead(store.candidate("me"), begin, end, retry_s=0.001))
    await asyncio.sleep(0.05)
    assert said == []
    other.release()
    await asyncio.wait_for(begun.wait(), 10)
    assert store.lease is not None
    store.lease["spec"] |= {"holderIdentity": "thief", "renewTime": "later"}
    await asyncio.wait_for(lost.wait(), 10)
    assert said == ["begin", "lost"]
    await task
