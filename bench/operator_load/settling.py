"""Latency, API calls, memory and processor time with many ServingPools, beside the operator of another commit."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import statistics
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from bench.operator_load import ROOT
from bench.operator_load.fleet import (
    apply,
    controllers,
    fill,
    make_nodes,
    namespace_of,
    play_nodes,
    pool_path,
    print_unsettled,
    serving_pool,
    settled,
)
from bench.operator_load.operator import WRITES, memory_mib, operator, processor_s
from bench.operator_load.server import POLL_S, Server, until
from testbed.build import KWOK, build


@dataclass
class Figures:
    """Of one operator."""

    name: str
    settle_s: float = 0.0
    edits_s: list[float] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)
    memory: float = 0.0
    settle_cpu_s: float = 0.0
    settle_calls: int = 0
    idle_cpu: float = 0.0
    """Share of a core while nothing changes."""

    def lines(self) -> str:
        """As people read them."""
        count, ordered = len(self.edits_s), sorted(self.edits_s)
        reads = sum(value for verb, value in self.calls.items() if verb not in WRITES | {"watch"})
        writes = sum(value for verb, value in self.calls.items() if verb in WRITES)
        p99 = ordered[min(count - 1, int(0.99 * count))]
        return (
            f"{self.name:>10}: start to settled {self.settle_s:6.1f} s; edit to applied p50 "
            f"{statistics.median(ordered):6.2f} s, p99 {p99:6.2f} s; per edit {self.calls['list'] / count:5.1f} lists, "
            f"{reads / count:5.1f} reads in all, {writes / count:4.1f} writes; {self.memory:5.0f} MiB; "
            f"{self.settle_cpu_s:.1f} s of processor and {self.settle_calls} requests to settle, then "
            f"{100 * self.idle_cpu:.1f} % of a core"
        )


async def measured(
    run: tuple[str, Path, int], server: Server, client: httpx.AsyncClient, args: argparse.Namespace
) -> Figures:
    """One operator on the objects as they are: its name, its sources, and the value of its first edit."""
    name, source, base = run
    found = Figures(name)
    with operator(server, source) as running:
        began_s, mark = time.monotonic(), server.mark()

        async def has_looked() -> bool:
            return running.poll() is not None or (server.mark() > mark and await settled(client))

        try:
            # Each look of ours lists them all: hundreds are looked at once in some seconds.
            await until(has_looked, args.limit, "all ServingPools are settled", max(POLL_S, args.pools / 100))
        except TimeoutError:
            await print_unsettled(client)
            raise
        assert running.poll() is None, (server.folder / "operator.log").read_text()[-3000:]
        found.settle_s = time.monotonic() - began_s
        found.settle_cpu_s, found.settle_calls = processor_s(running.pid), len(server.requests(mark))
        await asyncio.sleep(5.0)
        idle_s, used_s = time.monotonic(), processor_s(running.pid)
        await asyncio.sleep(args.idle)
        found.idle_cpu = (processor_s(running.pid) - used_s) / (time.monotonic() - idle_s)
        mark, chosen = server.mark(), random.Random(1)
        for edit in range(args.edits):
            number, batch = chosen.randrange(args.pools), base + edit
            began_s = time.monotonic()
            await apply(client, pool_path(number), serving_pool(number, batch))
            where = f"/apis/apps/v1/namespaces/{namespace_of(number)}/deployments/chat-{number}-decode"

            async def applied(where: str = where, batch: int = batch) -> bool:
                return f'"{batch}"' in (await client.get(where)).text

            await until(applied, 120.0, f"edit {edit} is applied")
            found.edits_s.append(time.monotonic() - began_s)
        await until(lambda: settled(client), args.limit, "all edits are settled", max(POLL_S, args.pools / 100))
        found.calls = Counter(each["verb"] for each in server.requests(mark))
        found.memory = memory_mib(running.pid)
    return found


@contextlib.contextmanager
def checkouts(baseline: str) -> Iterator[list[tuple[str, Path]]]:
    """This one, and one of the baseline where there is one, each with its name."""
    found = [("this", ROOT)]
    git = ["git", "-C", str(ROOT), "worktree"]
    with tempfile.TemporaryDirectory() as folder:
        if not baseline:
            yield found
            return
        other = Path(folder) / "baseline"
        subprocess.run([*git, "add", "--quiet", "--detach", str(other), baseline], check=True)
        try:
            yield [*found, (baseline[:10], other)]
        finally:
            subprocess.run([*git, "remove", "--force", str(other)], check=False)


async def scale(args: argparse.Namespace, sources: list[tuple[str, Path]]) -> None:
    """Print what the operator costs, beside that of the baseline."""
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder))
        async with server.running() as client:
            with contextlib.ExitStack() as stack:
                await fill(client, args.pools)
                nodes = None
                if args.nodes:
                    build(lambda line: print(line, flush=True), KWOK)
                    await make_nodes(client, args.nodes)
                    stack.enter_context(controllers(server))
                else:
                    nodes = asyncio.create_task(play_nodes(client))
                kubelets = f" on {args.nodes} KWOK nodes" if args.nodes else ""
                print(f"{args.pools} ServingPools{kubelets}, {args.edits} edits one after the other", flush=True)
                for number, (name, source) in enumerate(sources):
                    figures = await measured((name, source, 1000 * (number + 1)), server, client, args)
                    print(figures.lines(), flush=True)
                if nodes is not None:
                    nodes.cancel()
