"""What exact knowledge of prefix caches gains over belief, and what it costs.

gain: conversations over four engine-sims whose caches hold a part of them, through a gateway that believes (by the
approximate index, without and with the engines' profile) and through one that listens to KV events; the same requests
in the same run, with one gateway and with two that share the engines. Shown is the share of prompt tokens that engines
found cached, by their own count (`usage`).

cost: processor time of a match and of a record in either index, and of reading and applying a stored block; best of
several rounds, one process, no network.

    python -m bench.kv_events_bench [--requests 240]
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np

from ballast_api.gateway_settings import GatewaySettings
from ballast_api.hardware_profile import EngineProfile
from ballast_cli.demo.ports import free_port
from ballast_core.beliefs.block_hashes import token_block_hashes
from ballast_core.beliefs.prefix_index import PrefixIndex
from ballast_core.beliefs.reported_prefixes import ReportedPrefixes
from ballast_core.model import EndpointId
from ballast_core.model.prompt_tokens import PromptTokens
from ballast_core.profiles import SHIPPED_PROFILES
from ballast_gateway.app import Gateway
from ballast_gateway.observe.kv_batches import BatchReader
from ballast_gateway.prompts import BLOCK_TOKENS
from ballast_sim.engine_sim.options import KvEventsConfig, ServerOptions
from ballast_sim.engine_sim.server import EngineSimServer

ENGINES = 4
CACHE_TOKENS = 8192
SESSIONS = 64
AT_ONCE = 6
PROFILE = replace(SHIPPED_PROFILES["h20-qwen3-32b"], name="short", kv_tokens=CACHE_TOKENS)
POLICY = {"prefill": {"type": "least-uncached-tokens"}, "decode": {"type": "least-uncached-tokens"}}


# --- gain -------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def serving(kind: str, gateways: int, folder: Path) -> AsyncIterator[list[str]]:
    """Fresh engines and so many gateways before them; the gateways' addresses."""
    port, replay_port = free_port(), free_port()
    async with AsyncExitStack() as stack:
        entries = []
        for number in range(ENGINES):
            options = ServerOptions(
                model="m",
                profile=PROFILE,
                host=f"127.0.0.{number + 2}",
                port=0,
                block_size=16,
                max_model_len=CACHE_TOKENS // 2,
                prompt_tokens_details=True,
                time_scale=0.02,
                kv_events=KvEventsConfig(port, replay_port),
            )
            server = EngineSimServer(options)
            await server.start()
            stack.push_async_callback(server.stop)
            address = f"{options.host}:{server.port}"
            profile = "short" if kind == "believed, with profile" else ""
            entries.append({"name": f"f{number}", "address": address, "role": "flexible", "profile": profile})
        file = folder / "endpoints.yaml"
        file.write_text(json.dumps({"endpoints": entries}))
        fields = {name: getattr(PROFILE, name) for name in EngineProfile.model_fields if hasattr(PROFILE, name)}
        settings = GatewaySettings.parse(
            {
                "model": {"servedNames": ["m"]},
                "discovery": {"file": str(file)},
                "listeners": {"host": "127.0.0.1", "proxy": 0, "admin": 0},
                "policy": POLICY,
                "profiles": {"short": EngineProfile(**fields).dump()},
                "kvEvents": {
                    "enabled": kind == "reported",
                    "port": port,
                    "replayPort": replay_port,
                    "tokenizeWaitS": 1.0,
                },
            }
        )
        urls = []
        for _ in range(gateways):
            gateway = Gateway(settings, out=io.StringIO())
            await gateway.start()
            stack.push_async_callback(gateway.close)
            while gateway.not_ready():  # noqa: ASYNC110 - scrapes have no event
                await asyncio.sleep(0.02)
            urls.append(f"http://127.0.0.1:{gateway.ports['proxy']}/v1/completions")
        yield urls


async def hit_share(kind: str, gateways: int, requests: int, *, text: bool) -> float:
    """Share of prompt tokens that the engines found cached."""
    draw = random.Random(1)
    histories = [[draw.randrange(300, 900) for _ in range(draw.randrange(200, 900))] for _ in range(SESSIONS)]
    order = [min(int(draw.expovariate(0.05)), SESSIONS - 1) for _ in range(requests)]
    asked = cached = 0
    turn = iter(enumerate(order))
    with tempfile.TemporaryDirectory() as folder:
        async with serving(kind, gateways, Path(folder)) as urls, httpx.AsyncClient(timeout=60) as client:

            async def one_client() -> None:
                nonlocal asked, cached
                for number, session in turn:
                    history = histories[session]
                    prompt: Any = " ".join(map(str, history)) if text else list(history)
                    body = {"model": "m", "prompt": prompt, "max_tokens": 32}
                    found = (await client.post(urls[number % gateways], json=body)).json()
                    usage = found["usage"]
                    asked += usage["prompt_tokens"]
                    cached += (usage["prompt_tokens_details"] or {}).get("cached_tokens", 0)
                    history += [draw.randrange(300, 900) for _ in range(40)]
                    if len(history) > 1500:
                        del history[400:]

            await asyncio.gather(*(one_client() for _ in range(AT_ONCE)))
    return cached / asked


def gain(requests: int) -> None:
    kinds = ("believed", "believed, with profile", "reported")
    sys.stdout.write(f"{'share of prompt tokens hit':34}" + "".join(f"{kind:>26}" for kind in kinds) + "\n")
    for gateways in (1, 2):
        for text in (False, True):
            what = f"{gateways} gateway{'s' * (gateways > 1)}, {'text' if text else 'token ids'}"
            shares = [asyncio.run(hit_share(kind, gateways, requests, text=text)) for kind in kinds]
            sys.stdout.write(f"{what:34}" + "".join(f"{share:>26.1%}" for share in shares) + "\n")


# --- cost -------------------------------------------------------------------------------------------------------------


def best_us(work: Callable[[], object], rounds: int = 30) -> float:
    took = []
    for _ in range(rounds):
        start = time.process_time_ns()
        work()
        took.append(time.process_time_ns() - start)
    return min(took) / 1e3


def stored_batch(ids: list[int], size: int) -> bytes:
    blocks = len(ids) // size
    event = {
        "type": "BlockStored",
        "block_hashes": [hash((number, ids[0], ids[-1])) & (2**64 - 1) for number in range(blocks)],
        "parent_block_hash": None,
        "token_ids": ids[: blocks * size],
        "block_size": size,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [None] * blocks,
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }
    return msgspec.msgpack.encode([0.0, [event], 0])


def cost() -> None:
    header = ("endpoints", "prompt", "believed: match", "record", "reported: match", "record", "a stored block")
    sys.stdout.write("\nmicroseconds\n" + "".join(f"{each:>18}" for each in header) + "\n")
    for endpoints in (1, 16, 100):
        for tokens in (300, 3_000, 30_000):
            ids = list(range(7, 7 + tokens))
            approximate, exact = PrefixIndex(), ReportedPrefixes()
            slots = np.arange(endpoints)
            reader, payload = BatchReader(), stored_batch(ids, 16)
            for slot in range(endpoints):
                name = EndpointId(str(slot))
                approximate.add(slot, 100_000)
                approximate.record(slot, token_block_hashes(ids, BLOCK_TOKENS), 0.0)
                exact.place(slot, name)
                exact.begin(name, 0, 1_000_000)
                for report in reader.read(payload):
                    exact.report(name, 0, report, 0.0)

            def believed_match(index: PrefixIndex = approximate, ids: list[int] = ids) -> None:
                index.match(tuple(token_block_hashes(ids, BLOCK_TOKENS)))

            def believed_record(index: PrefixIndex = approximate, ids: list[int] = ids) -> None:
                index.record(0, token_block_hashes(ids, BLOCK_TOKENS), 0.0)

            def reported_match(index: ReportedPrefixes = exact, ids: list[int] = ids, at: Any = slots) -> None:
                index.match(PromptTokens.of(ids), at)

            def reported_record(index: ReportedPrefixes = exact, ids: list[int] = ids) -> None:
                index.record(0, PromptTokens.of(ids), 0.0)

            def stored(index: ReportedPrefixes = exact, payload: bytes = payload) -> None:
                index.begin(EndpointId("0"), 0, 1_000_000)
                for report in BatchReader().read(payload):
                    index.report(EndpointId("0"), 0, report, 0.0)

            works = (believed_match, believed_record, reported_match, reported_record, stored)
            figures = [best_us(work) for work in works]
            figures[-1] /= tokens // 16
            cells = "".join(f"{figure:>18.2f}" for figure in figures)
            sys.stdout.write(f"{endpoints:>18}{tokens:>18}{cells}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=240)
    arguments = parser.parse_args()
    gain(arguments.requests)
    cost()


if __name__ == "__main__":
    main()
