"""What one view over several gateways gives and costs: load balance, age of the view, processor time of following.

1. 1,000 requests come as fast as gateways of processes of their own place them, over six decode endpoints: the largest
   load over the mean, at one gateway, at three that hear each other, and at three that do not. None ends before all are
   placed. Real sockets between the gateways; requests enter at the picker's session.
2. Seconds from a dispatch to the other gateways' ledgers, of the same run.
3. Processor time of a gateway that follows so many agents, each with 20 requests and 20 lines of progress a second.

Run `python -m bench.view_bench`; it takes a minute or two, and prints three tables. `--json FILE` writes the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

from ballast_api.gateway_settings import GatewaySettings
from ballast_core.directing.settings import SettingsChanged
from ballast_core.model import Outcome
from ballast_core.model.events import Event, RequestAdopted
from ballast_gateway.app import Gateway
from ballast_gateway.podapi import messages as said
from ballast_gateway.podapi.auth import Guard
from ballast_gateway.podapi.feed import Feed
from ballast_gateway.podapi.messages import Row
from ballast_gateway.podapi.server import PodApiServer
from tests.support.gateway_kit import until
from tests.support.pod_api_calls import NotedHolder
from tests.support.view_kit import address_of, ask, face_of

TOKEN = b"a-token-for-the-bench"
DECODES = tuple(f"d{k}" for k in range(6))
REQUESTS = 1_000
ROUNDS = 5
EACH_AGENT_HOLDS = 20
FOLLOW_S = 4.0


def _settings(folder: Path, name: str, entries: list[dict[str, str]], peers: bool) -> GatewaySettings:
    (folder / "token").write_bytes(TOKEN)
    file = folder / f"{name}.json"
    file.write_text(json.dumps({"endpoints": entries}))
    return GatewaySettings.parse(
        {
            "model": {"servedNames": ["tiny"]},
            "face": "Picker",
            "discovery": {"file": str(file)},
            "listeners": {"host": "127.0.0.1", "proxy": 0, "admin": 0, "extProc": 0, "grpcHealth": 0},
            "podApi": {"tokenFile": str(folder / "token"), "port": 0},
            **({"peers": {"addresses": ["127.0.0.1:9"]}} if peers else {}),
            "policy": {"admission": {"type": "open"}},
            "logs": {"requests": False},
        }
    )


async def _worker(folder: Path, name: str, peers: bool) -> None:
    """One gateway: commands come as lines of JSON, answers go as such."""
    entries = json.loads((folder / "endpoints.json").read_text())
    gateway = Gateway(_settings(folder, name, entries, peers), out=io.StringIO())
    await gateway.start()
    adopted: dict[str, float] = {}
    tell = gateway.driver.on_event

    def hear(event: Event | SettingsChanged) -> None:
        if isinstance(event, RequestAdopted):
            adopted.setdefault(event.request.id, time.monotonic())
        if tell is not None:
            tell(event)

    gateway.driver.on_event = hear
    _answer({"address": address_of(gateway)})
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        command = json.loads(line)
        _answer(await _carry_out(gateway, command, adopted))
    await gateway.close()


async def _carry_out(gateway: Gateway, command: dict[str, Any], adopted: dict[str, float]) -> dict[str, Any]:
    assert gateway.pod_api is not None
    view = gateway.pod_api.view
    match command["do"]:
        case "follow":
            view.follow_peers(command["peers"])
            await until(lambda: not gateway.not_ready() and view.connected()[1] == len(command["peers"]))
        case "place":
            placed, sent = [], {}
            engines = {name: (await asyncio.open_connection(*at.split(":")))[1] for name, at in command["at"].items()}
            for k in range(command["count"]):
                request_id = f"{command['round']}-{k}"
                sent[f"{view.me}/{request_id}"] = time.monotonic()
                ask(gateway, request_id)
                entry = gateway.driver.director.ledger.entries[request_id]  # type: ignore[index]
                assert entry.decode_slot is not None
                placed.append(gateway.driver.director.inventory.endpoint(entry.decode_slot).id)
                engines[placed[-1]].write(b"POST /v1/completions HTTP/1.1\r\n\r\n")
                await asyncio.sleep(0)
            for writer in engines.values():
                writer.close()
            return {"placed": placed, "sent": sent}
        case "adopted":
            await asyncio.sleep(0.5)
            known, adopted_now = dict(adopted), len(gateway.driver.director.ledger)
            adopted.clear()
            for entry in list(gateway.driver.director.ledger):
                if not entry.adopted:
                    ticket = gateway.driver.ticket(entry.request.id)
                    if ticket is not None:
                        ticket.end(Outcome.COMPLETED)
            return {"adopted": known, "in_flight": adopted_now}
        case "measure":
            began = time.process_time()
            await asyncio.sleep(command["seconds"])
            return {"cpu_s": time.process_time() - began, "followed": len(view.book)}
        case _:
            face_of(gateway).shut_down()
    return {}


def _answer(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


class _Process:
    """A worker and its pipes."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.address = ""

    @classmethod
    async def start(cls, *arguments: str) -> _Process:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench.view_bench", *arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 24,
        )
        made = cls(process)
        made.address = (await made.read()).get("address", "")
        return made

    async def read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        found: dict[str, Any] = json.loads(await self._process.stdout.readline() or b"{}")
        return found

    async def ask(self, **command: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        return await self.read()

    async def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()


class _Engines:
    """Engines that count what comes, end nothing, and say so when they are scraped."""

    def __init__(self) -> None:
        self.running = dict.fromkeys(("p0", "p1", *DECODES), 0)
        self.addresses: dict[str, str] = {}

    async def start(self, stack: AsyncExitStack) -> None:
        for name in self.running:
            server = await asyncio.start_server(partial(self._serve, name), "127.0.0.1", 0)
            stack.callback(server.close)
            self.addresses[name] = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _serve(self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                if head.startswith(b"POST"):
                    self.running[name] += 1
                    continue
                gauges = (b"num_requests_running %d" % self.running[name], b"num_requests_waiting 0")
                text = b"".join(b"vllm:%b\n" % each for each in (*gauges, b"kv_cache_usage_perc 0"))
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(text), text))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


async def _spread(folder: Path, engines: _Engines, gateways: int, *, view: bool) -> dict[str, Any]:
    """Bursts of `REQUESTS` over so many gateways."""
    peers = ["peers"] if view and gateways > 1 else []
    workers = [await _Process.start("worker", str(folder), f"gw{k}", *peers) for k in range(gateways)]
    try:
        for worker in workers:
            others = [one.address for one in workers if one is not worker] if peers else []
            await worker.ask(do="follow", peers=others)
        ratios, ages, took_s = [], list[float](), list[float]()
        for number in range(ROUNDS):
            count = REQUESTS // gateways
            began_s = time.monotonic()
            at = {name: engines.addresses[name] for name in DECODES}
            answers = await asyncio.gather(*(one.ask(do="place", count=count, round=number, at=at) for one in workers))
            took_s.append(time.monotonic() - began_s)
            placed = [name for answer in answers for name in answer["placed"]]
            loads = [placed.count(name) for name in DECODES]
            ratios.append(max(loads) * len(loads) / sum(loads))
            sent = {key: at_s for answer in answers for key, at_s in answer["sent"].items()}
            heard = await asyncio.gather(*(one.ask(do="adopted") for one in workers))
            ages += [at_s - sent[key] for answer in heard for key, at_s in answer["adopted"].items() if key in sent]
            engines.running.update(dict.fromkeys(engines.running, 0))
            await asyncio.sleep(0.6)
        ages.sort()
        return {
            "gateways": gateways,
            "view": bool(peers),
            "largest_over_mean": max(ratios),
            "median_largest_over_mean": sorted(ratios)[len(ratios) // 2],
            "placed_in_s": sorted(took_s)[len(took_s) // 2],
            "heard": len(ages),
            "age_p50_ms": 1e3 * ages[len(ages) // 2] if ages else None,
            "age_p99_ms": 1e3 * ages[int(len(ages) * 0.99)] if ages else None,
        }
    finally:
        for worker in workers:
            await worker.stop()


async def _agents(count: int) -> None:
    """So many agents in one process, whose requests all progress every 50 ms."""
    loop = asyncio.get_running_loop()
    feeds, addresses = [], {}
    for k in range(count):
        feed = Feed(loop, holder=f"pod-{k}", incarnation="1", holds="agent", endpoint=f"e{k}")
        server = PodApiServer(NotedHolder(), feed, Guard(lambda: (TOKEN,), time.time))
        addresses[f"e{k}"] = f"127.0.0.1:{await server.listen('127.0.0.1', 0)}"
        for number in range(EACH_AGENT_HOLDS):
            row = Row(id=f"{k}-{number}", by="gw", phase="decoding", decode=f"e{k}", prompt_tokens=500)
            feed.say(said.Opened(request=row))
        feeds.append(feed)
    _answer({"address": json.dumps(addresses)})
    tokens = 1
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while not reader.at_eof():
        await asyncio.sleep(0.05)
        tokens += 2
        for k, feed in enumerate(feeds):
            for number in range(EACH_AGENT_HOLDS):
                feed.progressed(f"gw/{k}-{number}", tokens)


async def _following(folder: Path, count: int) -> dict[str, Any]:
    holders = await _Process.start("agents", str(count))
    try:
        pod_apis = json.loads(holders.address)
        engine = next(iter(json.loads((folder / "endpoints.json").read_text())))["address"]
        entries = [
            {"name": name, "address": engine, "role": "decode", "podApi": pod_api} for name, pod_api in pod_apis.items()
        ]
        shares = []
        for follows in (False, True):
            plain = [{key: value for key, value in one.items() if key != "podApi"} for one in entries]
            (folder / "endpoints.json").write_text(json.dumps(entries if follows else plain))
            worker = await _Process.start("worker", str(folder), "follower")
            await asyncio.sleep(2.0)
            answer = await worker.ask(do="measure", seconds=FOLLOW_S)
            shares.append(answer["cpu_s"] / FOLLOW_S)
            followed = answer["followed"]
            await worker.stop()
        return {"agents": count, "requests": followed, "cpu_share": shares[1] - shares[0], "cpu_alone": shares[0]}
    finally:
        await holders.stop()


async def _run() -> dict[str, list[dict[str, Any]]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with AsyncExitStack() as stack:
            engines = _Engines()
            await engines.start(stack)
            roles = {"p": "prefill"}
            entries = [
                {"name": name, "address": address, "role": roles.get(name[0], "decode")}
                for name, address in engines.addresses.items()
            ]
            (folder / "endpoints.json").write_text(json.dumps(entries))
            spread = [
                await _spread(folder, engines, 1, view=True),
                await _spread(folder, engines, 3, view=True),
                await _spread(folder, engines, 3, view=False),
            ]
            following = [await _following(folder, count) for count in (6, 100)]
    return {"spread": spread, "following": following}


def _print(found: dict[str, list[dict[str, Any]]]) -> None:
    print(f"{REQUESTS} requests at once over {len(DECODES)} decodes, worst and median of {ROUNDS} bursts\n")
    print("| gateways | hear each other | largest / mean | median | placed in | age p50 | age p99 |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for one in found["spread"]:
        ages = [f"{one[key]:.1f} ms" if one[key] is not None else "-" for key in ("age_p50_ms", "age_p99_ms")]
        print(
            f"| {one['gateways']} | {'yes' if one['view'] else 'no'} | {one['largest_over_mean']:.3f} "
            f"| {one['median_largest_over_mean']:.3f} | {one['placed_in_s']:.2f} s | {ages[0]} | {ages[1]} |"
        )
    print(f"\nFollowing agents with {EACH_AGENT_HOLDS} requests each, 20 lines of progress a second\n")
    print("| agents | requests | of a core |\n| --- | --- | --- |")
    for one in found["following"]:
        print(f"| {one['agents']} | {one['requests']} | {100 * one['cpu_share']:.1f} % |")


def main() -> None:
    """Run as a program, or as one of its processes."""
    if sys.argv[1:2] == ["worker"]:
        asyncio.run(_worker(Path(sys.argv[2]), sys.argv[3], "peers" in sys.argv[4:]))
        return
    if sys.argv[1:2] == ["agents"]:
        asyncio.run(_agents(int(sys.argv[2])))
        return
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    found = asyncio.run(_run())
    _print(found)
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
