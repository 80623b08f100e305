"""KV events over real ZeroMQ sockets: what endpoints hold is known exactly, whatever their streams do.

1. Behind engine-sims, predicted cached tokens are those of `usage`, for token ids and for text.
2. After gaps, restarts and replays the index is the publisher's truth; where it cannot be, that is said.
3. Garbage costs bounded memory, ends no stream but its own, and raises nothing.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import httpx
import numpy as np
import pytest
import zmq
import zmq.asyncio

from ballast_api.gateway_settings import KvEvents
from ballast_cli.demo.ports import free_ports
from ballast_core.beliefs.reported_prefixes import ReportedCache, ReportedPrefixes
from ballast_core.model import Endpoint, EndpointId, Role
from ballast_core.model.events import CacheReported, CacheReportsBegun, CacheReportsEnded, Event
from ballast_core.model.prompt_tokens import PromptTokens
from ballast_gateway.observe.fleet import Member
from ballast_gateway.observe.kv_batches import BatchReader
from ballast_gateway.observe.kv_events import KvEventStreams
from ballast_gateway.observe.kv_inbox import Inbox, Room
from ballast_sim.engine import TokenContent
from ballast_sim.engine_sim.options import KvEventsConfig
from ballast_sim.engine_sim.server import EngineSimServer
from tests.support.engine_sim import FAST, TINY, engine_sim
from tests.support.gateway_kit import RunningGateway, running_gateway, until
from tests.support.kv_publisher import RandomCache, ScriptedPublisher, batch, removed, stored

pytestmark = pytest.mark.rotating(4, each=True)

E = EndpointId("e")
POLICY = {"prefill": {"type": "least-uncached-tokens"}, "decode": {"type": "least-uncached-tokens"}}

# --- engine-sims ------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def fleet(
    tmp_path: Path, count: int, *, profile: Any = FAST, wait_s: float = 10.0, **more: Any
) -> AsyncIterator[tuple[RunningGateway, list[EngineSimServer], httpx.AsyncClient]]:
    """So many engine-sims that publish, and a gateway that listens to them."""
    port, replay_port = free_ports(2, ["0.0.0.0"])
    async with AsyncExitStack() as stack:
        servers = []
        for number in range(count):
            made = engine_sim(
                profile=profile,
                host=f"127.0.0.{number + 2}",
                block_size=16,
                prompt_tokens_details=True,
                kv_events=KvEventsConfig(port, replay_port),
            )
            server, _ = await stack.enter_async_context(made)
            servers.append(server)
        addresses = {f"f{at}": f"{server.options.host}:{server.port}" for at, server in enumerate(servers)}
        kv_events = {"enabled": True, "port": port, "replayPort": replay_port, "tokenizeWaitS": wait_s}
        running = await stack.enter_async_context(
            running_gateway(
                tmp_path, addresses, model={"servedNames": ["m"]}, kvEvents=kv_events, policy=POLICY, **more
            )
        )
        await until(lambda: all(_knows(running, name).complete for name in addresses))
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=running.url, timeout=30.0))
        yield running, servers, client


def _knows(running: RunningGateway, name: str) -> ReportedCache:
    known = running.gateway.driver.director.beliefs.reported.known(EndpointId(name))
    return known or ReportedCache(complete=False, blocks=0, block_size=0, refused=0)


def truth(server: EngineSimServer, tokens: list[int]) -> int:
    """What this engine would find of a prompt in its cache now."""
    _, hashes, _ = server.service.engine._state.kv.pool.contents()
    size, held = server.config.block_size, set(hashes.values())
    names = TokenContent(list(tokens), size).upto((len(tokens) - 1) // size)[: (len(tokens) - 1) // size]
    return next((at for at, name in enumerate(names) if name not in held), len(names)) * size


def predicted(running: RunningGateway, tokens: list[int]) -> list[int]:
    """What the gateway's index finds on each endpoint."""
    slots = running.gateway.driver.director.inventory.known_slots()
    reported = running.gateway.driver.director.beliefs.reported
    found: list[int] = reported.match(PromptTokens.of(tokens), slots)[0].tolist()
    return found


async def agree(running: RunningGateway, servers: list[EngineSimServer], prompts: list[list[int]]) -> None:
    """Wait until the index is the engines' truth for all of these."""

    def agrees() -> bool:
        return all(predicted(running, each) == [truth(server, each) for server in servers] for each in prompts)

    await until(agrees)


async def ask(client: httpx.AsyncClient, **body: Any) -> tuple[int, list[int]]:
    """Cached tokens as the engine counts them, and the prompt's ids."""
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    answer = await client.post(path, json={"model": "m", "max_tokens": 4, "return_token_ids": True, **body})
    assert answer.status_code == 200, answer.text
    found = answer.json()
    ids = found.get("prompt_token_ids") or found["choices"][0].get("prompt_token_ids")
    return (found["usage"].get("prompt_tokens_details") or {}).get("cached_tokens", 0), ids


async def test_what_engines_hold_is_known_through_evictions_and_resets(tmp_path: Path) -> None:
    """A cache of 64 blocks, and prompts that share prefixes: predicted, then asked; each answer agrees."""
    random = Random(7)
    async with fleet(tmp_path, 2, profile=TINY) as (running, servers, client):
        prompts = [[random.randrange(1, 3) for _ in range(16 * random.randrange(1, 12) + 5)] for _ in range(12)]
        prompts += [prompts[0] + prompts[at] for at in range(1, 6)]
        for turn in range(60):
            prompt = random.choice(prompts)
            before = predicted(running, prompt)
            cached, _ = await ask(client, prompt=prompt)
            assert cached == max(before)
            await agree(running, servers, prompts)
            if turn == 40:
                for server in servers:
                    await until(server.service.reset_prefix_cache)
                    url = f"http://{server.options.host}:{server.port}/v1/completions"
                    await client.post(url, json={"model": "m", "prompt": [9] * 40})  # the next step tells of it
                await agree(running, servers, prompts)
        assert sum(server.service.engine._state.kv.pool.usable_blocks for server in servers) < 200


async def test_text_and_chat_prompts_are_found_by_the_tokens_that_engines_give(tmp_path: Path) -> None:
    """A conversation's next turn is sent where its history is, and all of its whole blocks are foreseen."""
    async with fleet(tmp_path, 2) as (running, servers, client):
        text = "the quick brown fox jumps over the lazy dog " * 30
        messages = [{"role": "system", "content": text}, {"role": "user", "content": "why?"}]
        for body in ({"prompt": text}, {"messages": messages}):
            cached, ids = await ask(client, **body)
            await agree(running, servers, [ids])
            again, _ = await ask(client, **body)
            assert again == (len(ids) - 1) // 16 * 16 > cached
        longer = [*messages, {"role": "assistant", "content": "because"}, {"role": "user", "content": "more"}]
        cached, ids = await ask(client, messages=longer)
        assert cached >= 16 * 20
        assert max(predicted(running, ids)) >= cached
        decisions = (await client.get(f"{running.admin_url}/ballast/v1/endpoints")).json()["endpoints"]
        assert [each["kv_cache"]["complete"] for each in decisions] == [True, True]
        assert [each["kv_cache"]["connected"] for each in decisions] == [True, True]
        metrics = (await client.get(f"{running.admin_url}/metrics")).text
        assert 'ballast_gateway_kv_endpoints{knowledge="complete"} 2.0' in metrics


async def test_an_engine_that_gives_no_tokens_delays_nobody_for_long(tmp_path: Path) -> None:
    """Its /tokenize hangs: requests are served all the same, and soon none waits."""
    async with fleet(tmp_path, 1, wait_s=0.05) as (running, servers, client):
        servers[0]._routes["POST", "/tokenize"] = lambda request, exchange: None
        for number in range(8):
            await ask(client, prompt=f"prompt {number}")
        tokenizing = running.gateway.proxy._tokenizing  # type: ignore[union-attr]
        assert tokenizing is not None
        assert tokenizing._late == 3


async def test_a_client_that_leaves_while_its_tokens_are_asked_for_is_forgotten(tmp_path: Path) -> None:
    """By its tenant's limits, too."""
    tenants = [{"name": "a", "keys": [sha256(b"key").hexdigest()], "maxInFlight": 1}]
    (tmp_path / "keys").write_text(json.dumps({"tenants": tenants}))
    async with fleet(tmp_path, 1, wait_s=60.0, keys={"file": str(tmp_path / "keys")}) as (running, servers, _):
        servers[0]._routes["POST", "/tokenize"] = lambda request, exchange: None
        face = running.gateway.proxy
        assert face is not None
        assert face._tokenizing is not None
        body = b'{"model":"m","prompt":"some words","max_tokens":1}'
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        head = b"POST /v1/completions HTTP/1.1\r\nhost: g\r\nx-api-key: key\r\ncontent-length: %d\r\n\r\n"
        writer.write(head % len(body) + body)
        asking = face._tokenizing._asking
        await until(lambda: any(each.waiting for each in asking.values()))
        assert face.in_flight == 0
        assert face._keys is not None
        tenant = face._keys.tenant([(b"x-api-key", b"key")])
        assert tenant is not None
        assert tenant._in_flight == 1
        writer.close()
        await until(running.requests)
        assert (running.request()["outcome"], running.request()["reason"]) == ("cancelled", "client-gone")
        assert not any(each.waiting for each in asking.values())
        assert tenant._in_flight == 0
        assert await reader.read() == b""


async def test_an_endpoint_that_goes_takes_its_blocks_along(tmp_path: Path) -> None:
    async with fleet(tmp_path, 2) as (running, _, client):
        for _ in range(4):
            await ask(client, prompt=list(range(1, 60)))
        reported = running.gateway.driver.director.beliefs.reported
        await until(lambda: len(reported) > 0)
        running.gateway.fleet.keep_only(set())
        assert len(reported) == 0
        assert not reported


# --- scripted publishers ----------------------------------------------------------------------------------------------


class Listener:
    """One endpoint's streams on one side, an index on the other."""

    def __init__(self, host: str = "127.0.0.9", **more: Any) -> None:
        self.ports = free_ports(3, ["0.0.0.0"])[::2]  # those of a second rank are the next
        settings = KvEvents(enabled=True, port=self.ports[0], replay_port=self.ports[1], **more)
        self.host = host
        self.index = ReportedPrefixes()
        self.index.place(0, E)
        self.streams = KvEventStreams(settings, self.feed)
        self.member = Member(Endpoint(E, f"{host}:8000", Role.FLEXIBLE), "")

    def feed(self, event: Event) -> None:
        """As the Director's learner does."""
        match event:
            case CacheReportsBegun():
                self.index.begin(event.endpoint_id, event.rank, event.most_blocks, event.problem)
            case CacheReported():
                for report in event.reports:
                    self.index.report(event.endpoint_id, event.rank, report, 0.0)
            case CacheReportsEnded():
                self.index.end(event.endpoint_id)

    def publisher(self, **more: Any) -> ScriptedPublisher:
        return ScriptedPublisher(self.host, *self.ports, **more)

    def known(self) -> ReportedCache:
        known = self.index.known(E)
        assert known is not None
        return known

    def found(self, tokens: list[int]) -> int:
        return int(self.index.match(PromptTokens.of(tokens), np.array([0]))[0][0])


@asynccontextmanager
async def listening(**more: Any) -> AsyncIterator[Listener]:
    made = Listener(**more)
    made.streams.sync({E: made.member})
    try:
        yield made
    finally:
        await made.streams.close()


async def connected(listener: Listener) -> None:
    """Wait until what is published now is heard."""
    await until(lambda: listener.streams.connected(E) and listener.known().problem != "it is not connected yet")


PROMPTS = [[(number >> bit) & 1 for bit in range(5)] * 4 for number in range(16)]


@pytest.mark.parametrize("seed", range(6))
async def test_after_any_gaps_restarts_and_replays_the_index_is_the_publishers_truth(seed: int) -> None:
    """Batches get lost on the way, engines start anew on the same port; all that they repeat fills every gap."""
    random = Random(seed)
    async with listening() as listener:
        publisher, cache, number = listener.publisher(), RandomCache(random), 0
        try:
            await connected(listener)
            for _ in range(60):
                if random.random() < 0.05:
                    publisher.close()
                    await until(lambda: not listener.streams.connected(E))
                    publisher, cache, number = listener.publisher(), RandomCache(random), 0
                    for _ in range(random.randrange(3)):  # before anybody listens
                        publisher.kept[number] = cache.change()
                        number += 1
                    if random.random() < 0.5:
                        await connected(listener)
                payload = publisher.kept[number] = cache.change()
                if random.random() < 0.7:
                    publisher.send(number, payload)
                number += 1
                if random.random() < 0.3:
                    await asyncio.sleep(0)
            await connected(listener)
            final = publisher.kept[number] = batch(stored([7], [7, 7, 7, 7]))
            truth = [cache.hit(prompt) for prompt in PROMPTS]

            def agrees() -> bool:
                publisher.send(number, final)  # again and again: the last gap is seen when something follows
                hits = [listener.found(prompt) for prompt in PROMPTS]
                return listener.found([7] * 5) == 4 and hits == truth and listener.known().complete

            await until(agrees)
        finally:
            publisher.close()


async def test_a_gap_that_is_not_repeated_is_said_and_ends_with_a_clear(caplog: pytest.LogCaptureFixture) -> None:
    async with listening() as listener:
        publisher = listener.publisher()
        try:
            publisher.kept[0] = batch(stored([1], [1] * 4))
            await until(lambda: listener.found([1] * 5) == 4 and listener.known().complete)
            publisher.kept.clear()
            publisher.kept[5] = batch(stored([2], [2] * 4))
            with caplog.at_level(logging.WARNING):
                publisher.send(5, publisher.kept[5])
                await until(lambda: listener.found([2] * 5) == 4)
            assert (listener.found([1] * 5), listener.known().complete) == (0, False)
            assert "begins with batch 5" in listener.known().problem
            assert any("KV events are not complete" in record.message for record in caplog.records)
            assert listener.streams.counts.gaps_unfilled == 1
            publisher.send(6, batch({"type": "AllBlocksCleared"}, stored([3], [3] * 4)))
            await until(lambda: listener.found([3] * 5) == 4 and listener.known().complete)
        finally:
            publisher.close()


async def test_an_engine_without_a_replay_port_is_believed_what_it_says_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ballast_gateway.observe.kv_events._REPLAY_S", 0.2)
    async with listening() as listener:
        publisher = listener.publisher(repeats=False)
        try:
            await until(lambda: "does not repeat" in listener.known().problem)
            publisher.send(40, batch(stored([1], [1] * 4)))
            await until(lambda: listener.found([1] * 5) == 4)
            assert not listener.known().complete
        finally:
            publisher.close()


async def test_a_large_fleet_is_listened_to_as_a_whole() -> None:
    """More ranks than ZeroMQ has sockets for, unless told."""
    async with listening() as listener:
        publisher = listener.publisher()
        names = [EndpointId(f"e{number}") for number in range(360)]
        listener.streams.sync(
            {name: Member(Endpoint(name, f"{listener.host}:8000", Role.FLEXIBLE), "") for name in names}
        )
        try:
            await until(lambda: all(map(listener.streams.connected, names)))
        finally:
            publisher.close()


async def test_each_rank_has_ports_of_its_own() -> None:
    async with listening(ranks=2) as listener:
        listener.ports[:] = [listener.ports[0] + 1, listener.ports[1] + 1]
        publisher = listener.publisher()
        try:
            publisher.kept[0] = batch(stored([1], [1] * 4), rank=1)
            await until(lambda: listener.found([1] * 5) == 4)
            assert not listener.known().complete
        finally:
            publisher.close()


GARBAGE = [
    (b"", b"12345678"),
    (b"",),
    (b"", b"short", b"x"),
    (b"", (1).to_bytes(8, "big"), b""),
    (b"", (1).to_bytes(8, "big"), b"\xc1"),
    (b"", (1).to_bytes(8, "big"), b"\x90"),
    (b"", (1).to_bytes(8, "big"), b"\x91" * 100_000),
    (b"", (1).to_bytes(8, "big"), batch({"type": "BlockStored"})),
    (b"", (1).to_bytes(8, "big"), batch(stored([-(2**63)], [-1] * 4))),
    (b"", (1).to_bytes(8, "big"), batch(stored([2], [2**63 + 1, -5, 1, 1]))),
    (b"", (1).to_bytes(8, "big"), batch(stored([2], [1] * 4, extra_keys=[[{"a": 1}]]))),
    (b"", (1).to_bytes(8, "big"), batch(stored([2], [1] * 4, extra_keys=[[["m"] * 3]] * 7))),
    (b"", (1).to_bytes(8, "big"), batch(stored([2], [1] * 4, size=0))),
    (b"", (1).to_bytes(8, "big"), batch(stored([b"x" * 65], [1] * 4))),  # type: ignore[list-item]
    (b"", (2**64 - 1).to_bytes(8, "big"), batch()),
    (b"", (2**63).to_bytes(8, "big"), batch(removed(1))),
]


@pytest.mark.parametrize("frames", GARBAGE, ids=range(len(GARBAGE)))
async def test_garbage_costs_no_more_than_what_was_known(frames: tuple[bytes, ...]) -> None:
    """After it the stream goes on; what it says then is believed."""
    async with listening() as listener:
        publisher = listener.publisher()
        try:
            await connected(listener)
            publisher.kept[0] = batch(stored([1], [1] * 4))
            publisher.send(0, publisher.kept[0])
            await until(lambda: listener.found([1] * 5) == 4)
            publisher.send_frames(*frames)
            last = int.from_bytes(frames[1], "big") if len(frames) == 3 and len(frames[1]) == 8 else 0
            following = batch({"type": "AllBlocksCleared"}, stored([3], [3] * 4))

            def heard() -> bool:
                publisher.send(last + 1 if last < 2**60 else 0, following)
                return listener.found([3] * 5) == 4

            if last < 2**60:
                await until(heard)
            assert len(listener.index) <= 3
            assert listener.streams.counts.batches > 0
        finally:
            publisher.close()


async def test_a_flood_is_bounded() -> None:
    """A hundred thousand blocks, of which a rank may have a hundred, and numbers that never fit."""
    async with listening(max_blocks=100) as listener:
        publisher = listener.publisher()
        try:
            await connected(listener)
            for number in range(100):
                names = list(range(number * 1000, number * 1000 + 1000))
                publisher.kept[number] = batch(*(stored([name], [name] * 4) for name in names))
                publisher.send(number, publisher.kept[number])
            await until(lambda: "more than 100 blocks" in listener.known().problem)
            await until(lambda: listener.streams.counts.batches >= 100)
            assert len(listener.index) == 0
            for number in range(2000):
                publisher.send(number % 7, b"x")

            def counts_again() -> bool:
                """The socket of an engine drops what it has no room for; a later batch shows what is missing."""
                number = len(publisher.kept)
                publisher.kept[number] = batch(stored([1], [1] * 4))
                publisher.send(number, publisher.kept[number])
                return listener.streams.counts.batches > 100

            await until(counts_again)
            assert len(listener.index) <= 100
        finally:
            publisher.close()


async def test_batches_beyond_the_room_are_lost_and_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where none follows that would show the gap; and the socket is empty meanwhile."""
    monkeypatch.setattr("ballast_gateway.observe.kv_events._WAITING_BYTES", 1)
    async with listening() as listener:
        publisher = listener.publisher()
        try:
            await connected(listener)
            for number in range(302):
                publisher.kept[number] = batch(stored([number], [number] * 4))
                publisher.send(number, publisher.kept[number])
                if number < 2:
                    await until(lambda: len(listener.index) == number + 1)  # noqa: B023 - it is over before the next
            await until(lambda: len(listener.index) == 302 and listener.known().complete)
            assert listener.streams.counts.gaps_filled
        finally:
            publisher.close()


async def test_what_still_waits_of_an_engine_that_is_gone_is_not_taken_for_the_next_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read, slow = BatchReader.read, True

    def read_slowly(self: BatchReader, payload: bytes) -> Any:
        if slow:
            time.sleep(0.01)
        return read(self, payload)

    monkeypatch.setattr(BatchReader, "read", read_slowly)
    async with listening() as listener:
        gone = listener.publisher()
        await connected(listener)
        for number in range(100):
            gone.kept[number] = batch(stored([number], [number] * 4))
            gone.send(number, gone.kept[number])
        await until(lambda: listener.streams.counts.batches > 2)
        await asyncio.sleep(0.2)
        gone.close()
        await until(lambda: not listener.streams.connected(E))
        assert listener.streams.counts.batches < 100, "many wait"
        publisher = listener.publisher()
        try:
            await until(lambda: listener.streams.connected(E))
            slow = False
            for number in range(50):
                publisher.kept[number] = batch(stored([900 + number], [900 + number] * 4))
                publisher.send(number, publisher.kept[number])
                await asyncio.sleep(0)
            await until(lambda: listener.found([949] * 5) == 4)
            await asyncio.sleep(0.3)
            assert (len(listener.index), listener.known().complete) == (50, True)
        finally:
            publisher.close()


async def test_what_is_repeated_is_taken_off_the_wire_before_it_is_read() -> None:
    """The engine drops what finds no place on its way. There is room for 20 MB here; beyond it the rest waits there."""
    with zmq.asyncio.Context() as context, context.socket(zmq.ROUTER) as router, context.socket(zmq.DEALER) as dealer:
        for socket, option in ((router, zmq.SNDHWM), (dealer, zmq.RCVHWM)):
            socket.setsockopt(option, 1)
            socket.setsockopt(zmq.LINGER, 0)
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)  # it waits where vLLM's drops
        dealer.connect(f"tcp://127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}")
        await dealer.send(b"all")
        client, _ = await router.recv_multipart()
        sent = 0

        async def send() -> None:
            nonlocal sent
            for _ in range(400):
                await router.send_multipart((client, bytes(100_000)))
                sent += 1

        room = Room(20_000_000)
        sending = asyncio.create_task(send())
        async with Inbox(dealer, room) as inbox:
            await until(lambda: not room.left)
            await asyncio.sleep(0.2)
            assert 200 <= sent < 400
            never = asyncio.get_running_loop().create_future()
            for _ in range(400):
                assert await inbox.comes(unless=never, timeout_s=20.0)
                assert inbox.pop() == [bytes(100_000)]
            await sending
            sending = asyncio.create_task(send())
            await until(lambda: not room.left)
        assert room.left, "what nobody took gives its room back"
        sending.cancel()


async def test_replays_beyond_the_room_for_all_wait_until_there_is_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for one batch: each is read before the next one comes, and none is lost where the engine has room."""
    monkeypatch.setattr("ballast_gateway.observe.kv_events._REPLAYED_BYTES", 1)
    async with listening() as listener:
        publisher = listener.publisher()
        try:
            publisher.kept |= {number: batch(stored([number], [number] * 4)) for number in range(100)}
            await until(lambda: listener.known().complete)
            assert len(listener.index) == 100
        finally:
            publisher.close()


async def test_other_tiers_and_layers_are_left_out_and_unknown_kinds_ignored() -> None:
    async with listening() as listener:
        publisher = listener.publisher()
        try:
            publisher.kept[0] = batch(
                stored([1], [1] * 4),
                stored([1], [1] * 4, group_idx=1, kv_cache_spec_kind="sliding_window"),
                stored([2], [2] * 4, medium="CPU"),
                removed(1, medium="CPU"),
                removed(1, group_idx=1),
                {"type": "BlockDreamt", "of": 1},
                stored([3], [3] * 4),
            )
            await until(lambda: listener.found([3] * 5) == 4 and listener.known().complete)
            assert (listener.found([1] * 5), listener.found([2] * 5)) == (4, 0)
        finally:
            publisher.close()


async def test_the_deadline_of_a_request_whose_tokens_are_kept_is_over_with_it(tmp_path: Path) -> None:
    """It does not end what its connection serves next."""
    async with fleet(tmp_path, 1) as (running, _, client):
        asks = {"model": "m", "prompt": "hello there, all of you", "max_tokens": 2}
        for _ in range(2):  # the second time its tokens are known at once
            answer = await client.post("/v1/completions", json=asks, headers={"x-envoy-expected-rq-timeout-ms": "1500"})
            assert answer.status_code == 200
        assert running.gateway.proxy is not None
        slow = asyncio.create_task(client.post("/v1/completions", json=asks | {"prompt": [1] * 40, "max_tokens": 3000}))
        await asyncio.sleep(2.0)
        assert (await slow).status_code == 200
        assert [entry["outcome"] for entry in running.requests()] == ["completed"] * 3
        assert running.gateway.proxy.in_flight == 0
