"""Leadership by a Lease: client-go's rules, on an API server that judges writes by resourceVersion."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from kubernetes.aio import client as kubernetes

from ballast_gateway.observe import lease as leases
from ballast_gateway.observe.lease import LeaseElection
from ballast_gateway.observe.settings_report import SettingsReport
from tests.support.gateway_kit import until

QUICK_S = 0.05


class LeaseServer:
    """Holds Leases, and refuses a write that did not see the last one."""

    def __init__(self) -> None:
        self.port = 0
        self.leases: dict[str, dict[str, Any]] = {}
        self.version = 0
        self.down = False
        self.answers = asyncio.Event()
        """Cleared: calls hang."""
        self.answers.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                method, path, _ = head.split(b" ", 2)
                lengths = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if b"content-length:" in line]
                body = await reader.readexactly(int(lengths[0])) if lengths else b""
                await self.answers.wait()
                status, answer = self.answer(method.decode(), path.decode(), json.loads(body) if body else {})
                text = json.dumps(answer).encode()
                writer.write(b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\n" % status)
                writer.write(b"content-length: %d\r\n\r\n%b" % (len(text), text))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        prefix = "/apis/coordination.k8s.io/v1/namespaces/ns/leases"
        assert path.startswith(prefix)
        if self.down:
            return 500, {}
        name = path.removeprefix(prefix).strip("/") or body["metadata"]["name"]
        known = self.leases.get(name)
        if method == "GET":
            return (404, {}) if known is None else (200, known)
        if method == "PATCH":
            if known is None:
                return 404, {}
            notes = known["metadata"].setdefault("annotations", {})
            for key, value in body["metadata"]["annotations"].items():
                notes.pop(key, None) if value is None else notes.update({key: value})
            self.version += 1
            known["metadata"]["resourceVersion"] = str(self.version)
            return 200, known
        given = body["metadata"].get("resourceVersion")
        if (known is None) is (method == "PUT") or (known and given != known["metadata"]["resourceVersion"]):
            return 409, {}
        self.version += 1
        body["metadata"]["resourceVersion"] = str(self.version)
        self.leases[name] = body
        return 200, body


@pytest.fixture
async def server() -> AsyncIterator[LeaseServer]:
    made = LeaseServer()
    listener = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = listener.sockets[0].getsockname()[1]
    yield made
    listener.close()


@asynccontextmanager
async def candidate(server: LeaseServer, me: str) -> AsyncIterator[tuple[LeaseElection, list[bool]]]:
    configuration = kubernetes.Configuration(host=f"http://127.0.0.1:{server.port}")
    configuration.retries = None
    changes: list[bool] = []
    async with kubernetes.ApiClient(configuration) as api:
        election = LeaseElection(api, "ns", "fleet", me, changes.append, retry_s=QUICK_S)
        task = asyncio.create_task(election.run())
        try:
            yield election, changes
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_one_of_two_leads_and_the_other_takes_over_when_it_is_released(server: LeaseServer) -> None:
    """A clean end hands over at once; transitions are counted, and the fields are those of client-go."""
    async with candidate(server, "b") as (_, theirs):
        async with candidate(server, "a") as (_, ours):
            await until(lambda: ours == [True] or theirs == [True])
            first = "a" if ours else "b"
        spec = server.leases["fleet"]["spec"]
        assert spec["holderIdentity"] == first
        assert spec["leaseDurationSeconds"] == 15
    server.leases.clear()
    async with candidate(server, "a") as (election, ours):
        await until(lambda: ours == [True])
        async with candidate(server, "b") as (_, theirs):
            renewed = server.leases["fleet"]["spec"]["renewTime"]
            await until(lambda: server.leases["fleet"]["spec"]["renewTime"] != renewed)
            assert theirs == []
            await election.release()
            assert ours == [True, False]
            await until(lambda: theirs == [True])
            assert server.leases["fleet"]["spec"]["leaseTransitions"] == 1


async def test_a_lease_that_is_not_renewed_is_taken_after_its_time(server: LeaseServer) -> None:
    """By the taker's own clock, from when it saw the last renewal: clocks need not agree."""
    spec = {"holderIdentity": "gone", "leaseDurationSeconds": 1, "renewTime": "2099-01-01T00:00:00.000000Z"}
    server.leases["fleet"] = {"metadata": {"name": "fleet", "resourceVersion": "0"}, "spec": spec}
    async with candidate(server, "a") as (_, ours):
        await until(lambda: ours == [True])
    assert server.leases["fleet"]["spec"]["leaseTransitions"] == 1


async def test_a_leader_that_cannot_renew_stops_before_another_may_begin(
    server: LeaseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And leads again when it can."""
    monkeypatch.setattr(leases, "RENEW_DEADLINE_S", 0.2)
    async with candidate(server, "a") as (_, ours):
        await until(lambda: ours == [True])
        server.down = True
        await until(lambda: ours == [True, False])
        server.down = False
        await until(lambda: ours == [True, False, True])


async def test_a_leader_whose_call_hangs_stops_at_its_deadline(
    server: LeaseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not when the call is given up: the Lease may have another holder by then."""
    monkeypatch.setattr(leases, "RENEW_DEADLINE_S", 0.5)
    monkeypatch.setattr(leases, "_CALL_S", 3600.0)
    async with candidate(server, "a") as (_, ours):
        await until(lambda: ours == [True])
        server.answers.clear()
        await until(lambda: ours == [True, False])
        server.answers.set()
        await until(lambda: ours == [True, False, True])


async def test_who_holds_it_goes_on_to_lead_when_a_note_comes_between(server: LeaseServer) -> None:
    """A write that did not see another gateway's annotation is refused; it is no loss of the Lease."""
    async with candidate(server, "a") as (_, ours):
        await until(lambda: ours == [True])
        judge, refused = server.answer, 0

        def with_a_note_between(method: str, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
            nonlocal refused
            if method == "PUT" and refused < 3:
                refused += 1
                judge("PATCH", path, {"metadata": {"annotations": {"n": str(refused)}}})
            return judge(method, path, body)

        server.answer = with_a_note_between  # type: ignore[method-assign]
        renewed = server.leases["fleet"]["spec"]["renewTime"]
        await until(lambda: server.leases["fleet"]["spec"]["renewTime"] != renewed)
        assert refused == 3
        assert ours == [True]


async def test_gateways_say_which_settings_they_have_and_withdraw_it(server: LeaseServer) -> None:
    """Each by an annotation of its own, whose key has no colon; what could not be written is written again."""
    server.answer("POST", "/apis/coordination.k8s.io/v1/namespaces/ns/leases", {"metadata": {"name": "fleet"}})
    configuration = kubernetes.Configuration(host=f"http://127.0.0.1:{server.port}")
    configuration.retries = None
    async with kubernetes.ApiClient(configuration) as api:
        one, two = (SettingsReport(api, "ns", "fleet", me, retry_s=QUICK_S) for me in ("one", "two:9005"))
        tasks = [asyncio.create_task(each.run()) for each in (one, two)]

        def said() -> dict[str, str]:
            notes = server.leases["fleet"]["metadata"].get("annotations", {})
            return {key.removeprefix("settings.serving.ballast.dev/"): value for key, value in notes.items()}

        server.down = True
        one.say("aaaaaaaaaa", "")
        await asyncio.sleep(2 * QUICK_S)
        two.say("bbbbbbbbbb", "limits.novel: is not a field")
        server.down = False
        await until(lambda: said() == {"one": "aaaaaaaaaa", "two_9005": "bbbbbbbbbb limits.novel: is not a field"})
        one.say("bbbbbbbbbb", "")
        await until(lambda: said()["one"] == "bbbbbbbbbb")
        await two.withdraw()
        assert said() == {"one": "bbbbbbbbbb"}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
