"""Asking gateways: real ones, on addresses of their own as pods have them, and ones that misbehave."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ballast_api.attainment_report import ATTAINMENT
from ballast_cli.demo.ports import free_port
from ballast_core.attainment import Counts, Objective, Threshold
from ballast_operator.api.api_failure import ApiFailure
from ballast_operator.gateways.board import Board, Name
from ballast_operator.gateways.collecting import Collector
from ballast_operator.gateways.gateway_pods import GatewayPod
from ballast_operator.gateways.measured import Followed
from ballast_operator.kinds import POD, Kind, Manifest
from ballast_operator.steering.rehearsing import recorded
from ballast_sim.workloads import read_trace
from tests.support.gateway_kit import RunningGateway, post, running_gateway, until
from tests.support.pod_api_calls import TOKEN
from tests.support.scripted_engine import SSE_HEAD, Asked, chunk, scripted_engine, vllm_events

CHAT: Name = ("team", "chat")
CLASS = {"name": "all", "ttftS": 60.0}
FOLLOWED = Followed("uid", (Objective("all", ttft_s=60.0),), TOKEN)


def gateway_pod(name: str, ip: str, *, ready: bool = True, pool: str = "chat", **metadata: Any) -> Manifest:
    labels = {"serving.ballast.dev/serving-pool": pool}
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    status = {"podIP": ip, "phase": "Running", "conditions": conditions}
    return {"metadata": {"name": name, "namespace": "team", "labels": labels, **metadata}, "status": status}


@dataclass
class Pods:
    """The API server, as far as it is asked."""

    pods: list[Manifest] = field(default_factory=list)
    asked: list[tuple[str | None, str]] = field(default_factory=list)
    fails: bool = False

    def list(self, kind: Kind, namespace: str | None, *, labels: str = "") -> tuple[Manifest, ...]:
        assert kind is POD
        self.asked.append((namespace, labels))
        if self.fails:
            raise ApiFailure(503, "ServiceUnavailable", "later")
        return tuple(self.pods)


async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
    events = vllm_events(["a", "b", "c"], prompt=asked.body["prompt"])
    writer.write(SSE_HEAD + b"".join(map(chunk, events)) + b"0\r\n\r\n")


async def ask(gateway: RunningGateway, host: str, prompt: list[int]) -> None:
    reader, writer = await asyncio.open_connection(host, gateway.port)
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 3, "stream": True}
    writer.write(post("/v1/completions", body, "connection: close"))
    await reader.read()
    writer.close()


@asynccontextmanager
async def gateways(tmp_path: Path, engine: str, *hosts: str) -> AsyncIterator[tuple[int, list[RunningGateway]]]:
    """Gateways at one admin port of several addresses, and that port."""
    token, port = tmp_path / "token", free_port("127.0.0.2")
    token.write_bytes(TOKEN)
    async with AsyncExitStack() as stack:
        running = []
        for host in hosts:
            folder = tmp_path / host
            folder.mkdir()
            settings: dict[str, Any] = {
                "listeners": {"host": host, "admin": port},
                "podApi": {"tokenFile": str(token), "port": 0},
                "objectives": [CLASS],
            }
            running.append(await stack.enter_async_context(running_gateway(folder, {"f0": engine}, **settings)))
        yield port, running


def collector(api: Pods, port: int, board: Board | None = None, **more: Any) -> tuple[Collector, Board, list[Name]]:
    changed: list[Name] = []
    board = Board() if board is None else board
    board.follow(*CHAT, FOLLOWED)
    return Collector(api, board, changed.append, admin_port=port, **more), board, changed


async def test_the_counts_of_all_gateways_are_summed_without_sending_the_token(tmp_path: Path) -> None:
    """One list of pods for all of them; a pod of another pool, or one without an address, is not asked."""
    async with (
        scripted_engine(script) as engine,
        gateways(tmp_path, engine.address, "127.0.0.2", "127.0.0.3") as (port, running),
    ):
        for number in range(5):
            await ask(running[number % 2], f"127.0.0.{2 + number % 2}", [number])
        api = Pods([gateway_pod("a", "127.0.0.2"), gateway_pod("b", "127.0.0.3"), gateway_pod("c", "", ready=False)])
        collects, board, changed = collector(api, port)
        await asyncio.to_thread(collects.collect)
        found = board.shown(*CHAT)
        assert found is not None
        assert found.classes[0].by_window[60][Threshold.JOINT] == Counts(5, 0, 0)
        assert (found.asked, found.problems, changed, len(api.asked)) == (2, (), [CHAT], 1)
        await asyncio.to_thread(collects.collect)
        assert changed == [CHAT]


async def test_the_recorded_traffic_of_all_gateways_is_one_trace(tmp_path: Path) -> None:
    """A conversation that went to both shares its prefix in it."""
    async with (
        scripted_engine(script) as engine,
        gateways(tmp_path, engine.address, "127.0.0.2", "127.0.0.3") as (port, running),
    ):
        await ask(running[0], "127.0.0.2", [7] * 64)
        await ask(running[1], "127.0.0.3", [7] * 128)
        await ask(running[1], "127.0.0.3", [8] * 64)
        pods = [GatewayPod(name, f"127.0.0.{number}:{port}", True) for number, name in enumerate("abc", start=2)]
        trace = await asyncio.to_thread(recorded, pods, FOLLOWED.token, 5)
        file = tmp_path / "trace.jsonl"
        file.write_bytes(b"".join(trace.lines))
        assert [list(each.hash_ids or ()) for each in read_trace(file)] == [[0], [0, 1], [2]]
        assert all(json.loads(line)["objective"] == "all" for line in trace.lines)
        assert trace.asked == 3
        assert [each.partition(":")[0] for each in trace.problems] == ["c"]


async def test_a_gateway_that_ends_counts_as_long_as_it_answers(tmp_path: Path) -> None:
    """One that drains is asked, too; when it is gone, nobody misses it."""
    async with scripted_engine(script) as engine:
        async with gateways(tmp_path, engine.address, "127.0.0.2") as (port, [running]):
            await ask(running, "127.0.0.2", [1])
            api = Pods([gateway_pod("a", "127.0.0.2", ready=False, deletionTimestamp="2026-11-21T06:00:00Z")])
            collects, board, changed = collector(api, port)
            await asyncio.to_thread(collects.collect)
            found = board.shown(*CHAT)
            assert found is not None
            assert (found.asked, found.classes[0].by_window[60][Threshold.JOINT]) == (1, Counts(1, 0, 0))
        await asyncio.to_thread(collects.collect)
        found = board.shown(*CHAT)
        assert found is not None
        assert (found.asked, found.classes, found.problems, len(changed)) == (0, (), (), 2)


Reply = Callable[[asyncio.StreamWriter], Awaitable[None]]


def fixed(status: int, body: bytes) -> Reply:
    async def reply(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body))

    return reply


async def trickle(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 X\r\ncontent-length: 100000\r\n\r\n")
    while not writer.is_closing():
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.02)


async def flood(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 X\r\ntransfer-encoding: chunked\r\n\r\n")
    while not writer.is_closing():
        writer.write(chunk(b" " * 65536))
        await writer.drain()


async def hang(writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


WORDS = b'{"unix_s": 1, "since_unix_s": 0, "objectives": []}'
MISBEHAVE: list[tuple[str, Reply, str]] = [
    ("older", fixed(404, b"{}"), "answered 404"),
    ("stranger", fixed(200, WORDS), "without proof"),
    (
        "clock",
        fixed(401, b'{"error": {"message": "signed some 200 s behind this clock"}}'),
        "401: signed some 200 s behind",
    ),
    ("refuses", fixed(401, b"no"), "answered 401"),
    ("trickles", trickle, "no answer"),
    ("floods", flood, "answered more than"),
    ("hangs", hang, "no answer"),
]


@pytest.mark.rotating(3)
@pytest.mark.parametrize(("reply", "said"), [case[1:] for case in MISBEHAVE], ids=[case[0] for case in MISBEHAVE])
async def test_a_gateway_that_misbehaves_is_left_out_and_named(reply: Reply, said: str) -> None:
    """Within its time, and with the reason."""
    targets: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            targets.append((await reader.readuntil(b"\r\n\r\n")).split(b" ")[1])
            await reply(writer)
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.2", 0)
    port = server.sockets[0].getsockname()[1]
    collects, board, _ = collector(Pods([gateway_pod("a", "127.0.0.2")]), port)
    try:
        began_s = time.monotonic()
        await asyncio.to_thread(collects.collect)
        assert time.monotonic() - began_s < 30
        found = board.shown(*CHAT)
        assert found is not None
        assert (found.asked, found.classes, targets) == (1, (), [ATTAINMENT.encode()])
        [problem] = found.problems
        assert said in problem
    finally:
        server.close()


async def test_it_goes_on_whatever_the_api_server_answers(tmp_path: Path) -> None:
    """In a thread of its own, until it is stopped."""
    api = Pods(fails=True)
    collects, board, changed = collector(api, 1)
    rounds = collects.rounds(round_s=0.01)
    rounds.start()
    await until(lambda: len(api.asked) > 3)
    assert (changed, rounds.alive()) == ([], True)
    api.fails = False
    await until(lambda: changed == [CHAT])
    board.follow(*CHAT, None)
    await asyncio.to_thread(rounds.stop)
    assert not rounds.alive()


def test_namespaces_are_asked_one_by_one_where_not_all_are_served() -> None:
    """The operator may have no right to list pods of all."""
    api = Pods()
    board = Board()
    board.follow("other", "chat", FOLLOWED)
    collects, _, _ = collector(api, 1, board, namespaces=("team", "other"))
    collects.collect()
    assert sorted(str(namespace) for namespace, _ in api.asked) == ["other", "team"]
