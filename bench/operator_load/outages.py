"""kill -9 of the API server while specs are edited: no edit is lost."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from pathlib import Path

import httpx

from bench.operator_load import ROOT
from bench.operator_load.fleet import (
    fill,
    is_settled,
    namespace_of,
    play_nodes,
    pool_path,
    print_unsettled,
    serving_pool,
    settled,
)
from bench.operator_load.operator import operator
from bench.operator_load.server import Manifest, Server, ok, until


class Editor:
    """Edits ServingPools and deletes what the operator made of them, without a pause; knows what was acknowledged."""

    def __init__(self, client: httpx.AsyncClient, pools: int, chosen: random.Random) -> None:
        self._client = client
        self._chosen = chosen
        self._batches = iter(range(1000, 1_000_000))
        self.possible: list[list[tuple[int, int]]] = [[(64, 2)] for _ in range(pools)]
        """Batch and replicas of each spec: what was last acknowledged, and after it what got no answer."""
        self.edits = self.deletions = self.unanswered = 0

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(0.03)
            number = self._chosen.randrange(len(self.possible))
            try:
                await (self._delete(number) if self._chosen.random() < 0.25 else self._edit(number))
            except httpx.TransportError:
                self.unanswered += 1

    async def _edit(self, number: int) -> None:
        wanted = next(self._batches), self._chosen.randint(1, 4)
        self.possible[number].append(wanted)
        body = serving_pool(number, wanted[0], replicas=wanted[1])
        headers = {"content-type": "application/apply-patch+yaml"}
        path = f"{pool_path(number)}?fieldManager=bench&force=true"
        answer = await self._client.patch(path, content=json.dumps(body), headers=headers)
        if answer.status_code == 200:
            self.possible[number] = [wanted]
            self.edits += 1
        else:
            self.unanswered += 1

    async def _delete(self, number: int) -> None:
        kinds = [("/api/v1", "services", "gateway"), ("/api/v1", "configmaps", "gateway")]
        kinds.append(("/apis/apps/v1", "deployments", "decode"))
        api, plural, part = self._chosen.choice(kinds)
        what = f"{api}/namespaces/{namespace_of(number)}/{plural}/chat-{number}-{part}"
        answer = await self._client.delete(what)
        self.deletions += answer.status_code == 200


async def carried_out(client: httpx.AsyncClient, number: int) -> bool:
    """Whether the ServingPool is settled, all its objects are there, and its engines are those of its spec."""
    pool = (await client.get(pool_path(number))).json()
    batch, replicas = spec_of(pool)
    space = f"namespaces/{namespace_of(number)}"
    deployment = (await client.get(f"/apis/apps/v1/{space}/deployments/chat-{number}-decode")).json()
    if not is_settled(pool) or deployment.get("spec", {}).get("replicas") != replicas:
        return False
    others = (f"/api/v1/{space}/services/chat-{number}-gateway", f"/api/v1/{space}/configmaps/chat-{number}-gateway")
    there = [await ok(client, other) for other in others]
    return f'"{batch}"' in json.dumps(deployment["spec"]) and all(there)


def spec_of(pool: Manifest) -> tuple[int, int]:
    """What edits change: batch, and replicas of the decode pool."""
    return int(pool["spec"]["engine"]["args"][1]), int(pool["spec"]["pools"][1]["replicas"])


async def outages(args: argparse.Namespace) -> None:
    """Kill kube-apiserver again and again while specs are edited; each ServingPool must become what its last one says,
    and the operator must live."""
    chosen = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as name:
        server = Server(Path(name))
        async with server.running() as client:
            await fill(client, args.pools)
            nodes = asyncio.create_task(play_nodes(client))
            editor = Editor(client, args.pools, chosen)
            took_s = []
            with operator(server, ROOT) as running:
                await until(lambda: settled(client), args.limit, "all are settled")
                for outage in range(args.outages):
                    editing = asyncio.create_task(editor.run())
                    await asyncio.sleep(chosen.uniform(0.5, 2.0))
                    server.kill()
                    await asyncio.sleep(chosen.choice((0.0, 2.0, 12.0)))
                    server.start()
                    await until(lambda: ok(client, "/readyz"), 120.0, "kube-apiserver is back")
                    await asyncio.sleep(0.5)
                    editing.cancel()
                    await asyncio.gather(editing, return_exceptions=True)
                    began_s = time.monotonic()
                    for number, possible in enumerate(editor.possible):
                        spec = spec_of((await client.get(pool_path(number))).json())
                        assert spec in possible, f"chat-{number} is {spec}, acknowledged was {possible}"
                        editor.possible[number] = [spec]
                    try:
                        for number in range(args.pools):
                            await until(lambda n=number: carried_out(client, n), args.limit, f"chat-{number} follows")
                    except TimeoutError:
                        await print_unsettled(client)
                        print((server.folder / "operator.log").read_text()[-6000:], flush=True)
                        raise
                    took_s.append(time.monotonic() - began_s)
                    assert running.poll() is None, (server.folder / "operator.log").read_text()[-3000:]
                    print(f"outage {outage + 1}: all follow {took_s[-1]:.1f} s after the last edit", flush=True)
            assert "Traceback" not in (log := (server.folder / "operator.log").read_text()), log[-6000:]
            nodes.cancel()
    print(
        f"killed it {args.outages} times with {args.pools} ServingPools: {editor.edits} edits acknowledged, "
        f"{editor.deletions} objects deleted, {editor.unanswered} calls without an answer; no edit lost; all as their "
        f"last specs say {statistics.median(took_s):.1f} s after the last edit in the median, {max(took_s):.1f} s at "
        "most; the operator lived"
    )
