"""What the live page costs a gateway: processor time with 0, 1 and 3 watchers, 100 endpoints, hundreds of requests.

A real admin port serves real streams to clients in another process. The fleet is said to be there: its endpoints are
never asked for anything, and 400 requests stand on the books. Every 5 ms one of them goes on (a prompt ends, a first
token comes, a request ends and another one comes), so 200 steps of requests a second change rows. What they cost by
themselves is in every line, so lines are compared with that of 0 watchers; the cost of making frames alone
(`Watchers.spent_s`) stands beside it. With `--gateways N` so many gateways hear each other in this one process, each
with such a load: lines are of all of them, so what the others spend on being asked is in them, too.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import logging
import random
import subprocess
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from statistics import median

import msgspec

from ballast_api.gateway_settings import GatewaySettings
from ballast_core.model import Endpoint, EndpointId, Observation, Outcome, Request, RequestId, Role
from ballast_gateway.app import Gateway
from ballast_gateway.driver import Ticket
from ballast_gateway.live.rows import EVENTS, Frame
from ballast_gateway.live.shares import answers
from ballast_gateway.podapi.messages import SHARE
from ballast_gateway.records import RequestRecord

WATCH = """
import sys, urllib.request
with urllib.request.urlopen(sys.argv[1]) as stream:
    while (part := stream.read1(65536)):
        print(len(part), part.count(b"event: "), flush=True)
"""
LINE = "{:>8} {:>16} {:>16} {:>14} {:>12} {:>12}"


async def gateway_of(endpoints: int, folder: Path, peers: list[Gateway] | None) -> Gateway:
    """A gateway that knows so many endpoints, a fifth of them for prefill; None: there are no other gateways."""
    file = folder / f"endpoints-{len(peers or ())}.yaml"
    file.write_text('{"endpoints": []}')
    settings = {
        "model": {"servedNames": ["tiny"]},
        "discovery": {"file": str(file)},
        "listeners": {"host": "127.0.0.1", "proxy": 0, "admin": 0},
        "scrape": {"intervalS": 3600, "failuresUntilLost": 1000},
        "objectives": [{"name": name, "ttftS": 2, "attainment": 0.99, "match": {}} for name in ("chat", "code")],
        "limits": {"maxInFlight": 10_000},
        "policy": {"admission": {"type": "open"}},
    }
    if peers is not None:
        (folder / "token").write_text("fleet-" * 8)
        settings["podApi"] = {"tokenFile": str(folder / "token"), "port": 0}
        settings["peers"] = {"addresses": [pod_api_of(each) for each in peers]}
    gateway = Gateway(GatewaySettings.parse(settings), out=io.StringIO())
    await gateway.start()
    for each in peers or ():
        everybody = {pod_api_of(one) for one in (*(peers or ()), gateway) if one is not each}
        assert each.pod_api is not None
        each.pod_api.view.follow_peers(sorted(everybody))
    for number in range(endpoints):
        role = Role.PREFILL if number % 5 == 0 else Role.DECODE
        profile = ("a100-qwen3-32b", "h20-qwen3-32b")[number % 2]
        endpoint = Endpoint(EndpointId(f"{role}-{number:03d}-5f7d8c9b4-x2x7k"), "127.0.0.1:1", role, "pool", profile)
        gateway.fleet.ready(endpoint, proven=True)
        seen = Observation(gateway.driver.now_s(), 4, 0, 0.3)
        gateway.fleet.scraped(gateway.fleet.members[endpoint.id], seen)
    return gateway


def pod_api_of(gateway: Gateway) -> str:
    """Where the others hear it."""
    return f"127.0.0.1:{gateway.ports['pod_api']}"


async def work(gateway: Gateway, requests: int) -> None:
    """Requests go on, one step in 5 ms, for ever."""
    rng, number = random.Random(7), 0
    flying: deque[tuple[Ticket, int]] = deque()
    while True:
        while len(flying) < requests:
            number += 1
            ticket = gateway.driver.open(
                Request(RequestId(f"request-{number:08d}"), rng.randint(100, 2000), 500, "tiny")
            )
            ticket.poll()
            flying.append((ticket, 0))
        flying.rotate(rng.randrange(requests))
        ticket, step = flying.popleft()
        if step == 0:
            ticket.prefill_done()
        elif step == 1:
            ticket.first_token()
        else:
            ticket.end(Outcome.COMPLETED, 100)
            now_s = gateway.driver.now_s()
            gateway.live.taking.ended(
                RequestRecord(
                    ticket.request.id, now_s - 3, model="tiny", dispatches=1, first_token_s=now_s - 2, ended_s=now_s
                )
            )
        if step < 2:
            flying.append((ticket, step + 1))
        await asyncio.sleep(0.005)


def client_of(url: str) -> subprocess.Popen[str]:
    """A process that reads a stream, and prints how much of it came."""
    return subprocess.Popen([sys.executable, "-c", WATCH, url], stdout=subprocess.PIPE, text=True)


async def watched(gateway: Gateway, watchers: int, seconds: float) -> tuple[float, float, float, float]:
    """Milliseconds of processor time in a second, of all and for frames; kB and events a second to a watcher."""
    url = f"http://127.0.0.1:{gateway.ports['admin']}{EVENTS}"
    clients = [client_of(url) for _ in range(watchers)]
    while len(gateway.live.watchers) < watchers:  # noqa: ASYNC110 - other processes
        await asyncio.sleep(0.05)
    await asyncio.sleep(1.0)
    began_s, cpu_s, spent_s = time.perf_counter(), time.process_time(), gateway.live.watchers.spent_s
    await asyncio.sleep(seconds)
    took_s = time.perf_counter() - began_s
    cpu_ms = 1e3 * (time.process_time() - cpu_s) / took_s
    frames_ms = 1e3 * (gateway.live.watchers.spent_s - spent_s) / took_s
    sent, events = 0, 0
    for client in clients:
        client.terminate()
        said, _ = await asyncio.to_thread(client.communicate)
        parts = [tuple(map(int, line.split())) for line in said.splitlines()[1:]]
        sent += sum(part[0] for part in parts)
        events += sum(part[1] for part in parts)
    while len(gateway.live.watchers):  # noqa: ASYNC110 - other processes
        await asyncio.sleep(0.05)
    share = max(1, watchers) * (took_s + 1)
    return cpu_ms, frames_ms, sent / 1e3 / share, events / share


def share_costs(gateway: Gateway) -> str:
    """Processor time of one gateway's share: the answer that it makes once a second, and its reading by who asked."""
    tell, decode = answers(gateway.live.taking)[SHARE], msgspec.json.Decoder(Frame).decode
    now = gateway.live.taking.snapshot(0)
    second = {"ended": str(now.ended - 70), "decided": str(now.decided - 140)}
    lines = []
    for title, query in (("the first", {}), ("each second", second)):
        made, read, size = [], [], 0
        for _ in range(200):
            began_s = time.thread_time()
            said = tell(query) or b""
            between_s = time.thread_time()
            decode(said)
            made.append(between_s - began_s)
            read.append(time.thread_time() - between_s)
            size = len(said)
        lines.append(f"{title}: {1e3 * median(made):.2f} ms, {1e3 * median(read):.2f} ms to read, {size / 1e3:.0f} kB")
    return "a share, medians of 200; " + "; ".join(lines)


async def main(arguments: argparse.Namespace) -> None:
    """Print a line for each number of watchers."""
    with tempfile.TemporaryDirectory(prefix="ballast-live-bench-") as folder:
        gateways: list[Gateway] = []
        for _ in range(arguments.gateways):
            peers = gateways if arguments.gateways > 1 else None
            gateways.append(await gateway_of(arguments.endpoints, Path(folder), None if peers is None else [*peers]))
        gateway, share = gateways[0], arguments.requests // arguments.gateways
        working = [asyncio.create_task(work(each, share)) for each in gateways]
        try:
            print(
                f"{arguments.endpoints} endpoints, {share * arguments.gateways} requests in flight at "
                f"{arguments.gateways} gateways, 200 changes a second at each"
            )
            print(LINE.format("watchers", "all, ms/s", "above none, ms/s", "frames, ms/s", "kB/s each", "frames/s"))
            none: list[float] = []
            for _ in range(arguments.rounds):
                for watchers in (0, 1, 3):
                    all_ms, frames_ms, kb, events = await watched(gateway, watchers, arguments.seconds)
                    if not watchers:
                        none.append(all_ms)
                    more = all_ms - none[-1]
                    row = (f"{all_ms:.1f}", f"{more:.1f}" if watchers else "-", f"{frames_ms:.2f}")
                    print(LINE.format(watchers, *row, f"{kb:.0f}" if watchers else "-", f"{events:.1f}"), flush=True)
            if len(gateways) > 1:
                print(share_costs(gateways[1]))
            for each in working:
                if each.done():
                    each.result()
        finally:
            for each in working:
                each.cancel()
            for one in gateways:
                await one.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--endpoints", type=int, default=100)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--gateways", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=2)
    logging.disable()  # of scrapes that nobody answers
    asyncio.run(main(parser.parse_args()))
