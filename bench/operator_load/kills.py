"""kill -9 of the operator at random writes: it converges each time."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import signal
import tempfile
from pathlib import Path

import httpx

from bench.operator_load import ROOT
from bench.operator_load.fleet import (
    apply,
    fill,
    namespace_of,
    play_nodes,
    pool_path,
    serving_pool,
    settled,
)
from bench.operator_load.operator import WRITES, operator
from bench.operator_load.server import Server, until

KILLED_S = 400.0
"""For one convergence: on a machine that others keep busy an operator takes long to start."""


async def state(client: httpx.AsyncClient) -> set[str]:
    """Names of all objects of the ServingPool, and what its Deployments ask for."""
    found = set()
    for api, plural in (("/apis/apps/v1", "deployments"), ("/api/v1", "services"), ("/api/v1", "configmaps"),
                        ("/apis/policy/v1", "poddisruptionbudgets"), ("/apis/rbac.authorization.k8s.io/v1", "roles"),
                        ("/apis/rbac.authorization.k8s.io/v1", "rolebindings"), ("/api/v1", "secrets"),
                        ("/apis/coordination.k8s.io/v1", "leases"), ("/api/v1", "serviceaccounts")):  # fmt: skip
        selector = "serving.ballast.dev%2Fserving-pool%3Dchat-0"
        items = (await client.get(f"{api}/namespaces/{namespace_of(0)}/{plural}?labelSelector={selector}")).json()[
            "items"
        ]
        for item in items:
            asked = {key: item.get(key) for key in ("spec", "data", "rules") if plural not in ("secrets", "leases")}
            for volatile in ("clusterIP", "clusterIPs"):
                (asked.get("spec") or {}).pop(volatile, None)
            found.add(f"{plural}/{item['metadata']['name']}: {json.dumps(asked, sort_keys=True)}")
    return found


async def explain(server: Server, client: httpx.AsyncClient, expected: set[str]) -> None:
    """Print what is there in place of what should be, the status, and the end of the operator's log."""
    there = await state(client)
    for word, lines in (("missing", expected - there), ("beyond", there - expected)):
        for line in sorted(lines):
            print(f"{word}: {line[:2000]}")
    print(json.dumps((await client.get(pool_path(0))).json().get("status"), indent=1))
    print((server.folder / "operator.log").read_text()[-6000:], flush=True)


async def kills(args: argparse.Namespace) -> None:
    """Edit, kill at a random write, start again; what is there must be what the last spec asks for."""
    chosen = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as name:
        server = Server(Path(name))
        async with server.running() as client:
            await fill(client, 1)
            nodes = asyncio.create_task(play_nodes(client))
            expected: dict[str, set[str]] = {}
            shapes = [(decode, count) for decode in ("decode", "other") for count in (1, 3)]
            done, stack = 0, contextlib.ExitStack()
            running = stack.enter_context(operator(server, ROOT))
            await until(lambda: settled(client), 120.0, "settled")
            for decode, count in shapes:  # undisturbed, for comparison
                await apply(client, pool_path(0), serving_pool(0, 64, decode=decode, replicas=count))
                await until(lambda: settled(client), 120.0, f"settled as {decode} {count}")
                expected[f"{decode} {count}"] = await state(client)
            last = shapes[-1]
            while done < args.kills:
                last = chosen.choice([shape for shape in shapes if shape != last])
                kill_at, mark = chosen.randint(1, 9), server.mark()
                await apply(client, pool_path(0), serving_pool(0, 64, decode=last[0], replicas=last[1]))
                while running.poll() is None:
                    written = sum(each["verb"] in WRITES for each in server.requests(mark))
                    if written >= kill_at:
                        running.send_signal(signal.SIGKILL)
                        running.wait()
                        done += 1
                    elif await settled(client):
                        break
                    await asyncio.sleep(0.002)
                if running.poll() is not None:
                    stack.close()
                    running = stack.enter_context(operator(server, ROOT))
                key = f"{last[0]} {last[1]}"

                async def converged(key: str = key) -> bool:
                    return await settled(client) and await state(client) == expected[key]

                try:
                    await until(converged, KILLED_S, f"converged to {key} after kill {done}")
                except TimeoutError:
                    await explain(server, client, expected[key])
                    raise
                if done % 10 == 0:
                    print(f"{done} kills, converged each time", flush=True)
            stack.close()
            nodes.cancel()
    print(f"killed {done} times at random writes (seed {args.seed}); converged each time")
