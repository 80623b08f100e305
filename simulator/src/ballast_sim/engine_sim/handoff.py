"""The KV hand-off between two engine-sims: what NIXL's side channel and its READs do, over HTTP.

The prefill side (P) listens on a port of its own. The decode side (D) sends, for a `remote_request_id`:

    POST /kv/pull       D starts reading; the lease starts anew
    POST /kv/heartbeat  D still means to read; the lease starts anew
    POST /kv/pulled     D has read all, or will not read: free the blocks

Each body is {"engine_id", "request_id"}. The status is 200, or 410 where P does not hold that KV.

No KV bytes are sent; only their time on the link is simulated. A handle works once: a second pull finds nothing held
and fails (real vLLM answers 200 there and reads whatever lies in the blocks now).
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ballast_core.profiles import HardwareProfile
from ballast_sim.engine import PullStarted
from ballast_sim.engine_sim.bodies import ApiError
from ballast_sim.engine_sim.http11 import Exchange, Request
from ballast_sim.engine_sim.metrics import Metrics
from ballast_sim.engine_sim.service import EngineService

HANDSHAKE_TIMEOUT_S = 10.0
HEARTBEATS_PER_LEASE = 6
_FIELD = "kv_transfer_params"
_WHERE = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port")


@dataclass(frozen=True, slots=True)
class RemoteKv:
    """The engine and request that hold a prompt's KV, from `kv_transfer_params`."""

    engine_id: str
    request_id: str
    host: str
    port: int
    tokens: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Pull:
    """What a request is to pull."""

    remote: RemoteKv
    tokens: int | None = None
    """Leading tokens of the prompt; None: all."""
    needed: bool = True
    """False: so few tokens are computed here."""
    ends: bool = True
    """False: vLLM lets such a request wait for KV that it never asks for, until its client disconnects."""


def wants_pull(params: Mapping[str, Any] | None) -> bool:
    """Whether the parameters ask to pull the prompt's KV."""
    return bool(params and params.get("do_remote_prefill"))


def wants_hold(params: Mapping[str, Any] | None) -> bool:
    """Whether the parameters ask to keep this request's KV for another engine."""
    return bool(params and params.get("do_remote_decode"))


def wants_part(params: Mapping[str, Any] | None) -> bool:
    """Whether the parameters ask to pull the KV of the prompt's first `remote_num_tokens` and to compute the rest.

    vLLM's way of reading a conversation back; parameters that lack a field count as a plain `wants_hold`.
    """
    return bool(
        params
        and not params.get("do_remote_prefill")
        and params.get("do_remote_decode")
        and params.get("remote_block_ids")
        and params.get("remote_num_tokens")
        and all(field in params for field in _WHERE)
    )


def part_tokens(params: Mapping[str, Any], input_tokens: int, block_size: int) -> int:
    """How many of the prompt's tokens are to be pulled. Raises ApiError where the blocks are not those of so many."""
    stated = params["remote_num_tokens"]
    if not isinstance(stated, int) or isinstance(stated, bool) or stated < 1:
        raise ApiError(f"{_FIELD}.remote_num_tokens: must be a whole number of 1 or more.", _FIELD)
    tokens, count = min(stated, input_tokens), len(_first_group(params))
    if -(-tokens // block_size) != count:
        raise ApiError(
            f"{_FIELD}.remote_block_ids: {count} blocks of {block_size} tokens are not those of {tokens} tokens "
            "(vLLM's engine dies of too few and reads the wrong ones of too many).",
            _FIELD,
        )
    return tokens


def remote_kv(params: Mapping[str, Any], input_tokens: int, block_size: int) -> RemoteKv:
    """Read the handle that P gave. Raises ApiError naming what is missing or does not fit the prompt.

    `input_tokens`: those that the blocks must cover.
    """
    where = _FIELD
    texts = {}
    for field in ("remote_engine_id", "remote_request_id", "remote_host"):
        value = params.get(field)
        if not isinstance(value, str) or not value:
            raise ApiError(f"{where}.{field}: must be a string; send P's kv_transfer_params unchanged.", where)
        texts[field] = value
    port = params.get("remote_port")
    if isinstance(port, str) and port.isdecimal():
        port = int(port)
    if not isinstance(port, int) or not 0 < port < 65536:
        raise ApiError(f"{where}.remote_port: must be a port number; send P's kv_transfer_params unchanged.", where)
    count = len(_first_group(params))
    if input_tokens > count * block_size:
        raise ApiError(
            f"{where}.remote_block_ids: {count} blocks of {block_size} tokens do not cover the prompt of "
            f"{input_tokens} tokens (vLLM's decode engine dies here); send the prompt that P prefilled.",
            where,
        )
    covered = params.get("remote_num_tokens")
    tokens = covered if isinstance(covered, int) else input_tokens
    return RemoteKv(texts["remote_engine_id"], texts["remote_request_id"], texts["remote_host"], port, tokens, count)


def _first_group(params: Mapping[str, Any]) -> list[Any]:
    blocks = params.get("remote_block_ids")
    groups = blocks if isinstance(blocks, list) and blocks and isinstance(blocks[0], list) else [blocks]
    if not isinstance(groups[0], list):
        raise ApiError(f"{_FIELD}.remote_block_ids: must be a list of block ids for each KV cache group.", _FIELD)
    return groups[0]


class SideChannel:
    """P's listener: answers D's three messages."""

    def __init__(self, service: EngineService, metrics: Metrics, engine_id: str) -> None:
        """`engine_id` is the one in P's handles."""
        self._service = service
        self._metrics = metrics
        self.engine_id = engine_id

    def handle(self, request: Request, exchange: Exchange) -> None:
        """An `http11.Handler`."""
        try:
            body = json.loads(request.body or b"{}")
            engine_id, request_id = body["engine_id"], body["request_id"]
        except (ValueError, KeyError, TypeError):
            exchange.respond(400, b'{"error":"expected engine_id and request_id"}')
            return
        action = {
            "/kv/pull": self._service.extend_lease,
            "/kv/heartbeat": self._service.extend_lease,
            "/kv/pulled": self._service.release,
        }.get(request.path)
        if action is None or request.method != "POST":
            exchange.respond(404, b'{"error":"POST /kv/pull, /kv/heartbeat or /kv/pulled"}')
            return
        held = engine_id == self.engine_id and action(request_id)
        if not held and request.path == "/kv/pulled":
            self._metrics.nixl_late_notifications += 1
        exchange.respond(200 if held else 410, b'{"held":true}' if held else b'{"held":false}')


Post = Callable[[str, int, str, bytes], Awaitable[int]]


async def post(host: str, port: int, path: str, body: bytes) -> int:
    """One POST on a connection of its own: the status code. Raises OSError or TimeoutError."""
    try:
        async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
            parts = (await _first_line(host, port, path, body)).split()
    except ValueError as error:  # a host that is no name, a line without end
        raise OSError(f"{host}:{port} is no side channel: {error}") from None
    if len(parts) < 2 or not parts[1].isdigit():
        raise OSError(f"{host}:{port} is no side channel")
    return int(parts[1])


async def _first_line(host: str, port: int, path: str, body: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        head = f"POST {path} HTTP/1.1\r\nhost: {host}:{port}\r\nconnection: close\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        return await reader.readline()
    finally:
        writer.close()


class PullSession:
    """D's side of one pull: heartbeats while it waits, the read, the notification."""

    def __init__(
        self,
        remote: RemoteKv,
        *,
        request_id: str,
        service: EngineService,
        metrics: Metrics,
        profile: HardwareProfile,
        spawn: Callable[[Awaitable[None]], None],
        send: Post = post,
        part: bool = False,
    ) -> None:
        """`profile` sets how long a read takes; `spawn` runs a coroutine in the background.

        `part`: only a part of the prompt is read. vLLM then sends no heartbeats while the request waits, and no
        notification if it ends before it has read: P frees the blocks when its lease is over.
        """
        self._part = part
        self._remote = remote
        self._request_id = request_id
        self._service = service
        self._metrics = metrics
        self._profile = profile
        self._spawn = spawn
        self._send = send
        self._message = json.dumps({"engine_id": remote.engine_id, "request_id": remote.request_id}).encode()
        self._waiting = True
        self._told = False
        lease_s = service.wall_s(service.engine.config.lease_s)
        self._heartbeat_s = lease_s / HEARTBEATS_PER_LEASE
        self._timer: asyncio.TimerHandle | None = None
        if not part:
            self._timer = asyncio.get_running_loop().call_later(self._heartbeat_s, self._beat)

    async def _post(self, path: str) -> int:
        return await self._send(self._remote.host, self._remote.port, path, self._message)

    def _beat(self) -> None:
        """While the request waits for blocks, keep P's lease alive."""
        if not self._waiting:
            return
        self._timer = asyncio.get_running_loop().call_later(self._heartbeat_s, self._beat)
        self._spawn(self._heartbeat())

    async def _heartbeat(self) -> None:
        try:
            await self._post("/kv/heartbeat")
        except (OSError, TimeoutError):
            return  # the pull itself will fail

    def started(self, event: PullStarted) -> None:
        """The blocks are reserved: begin to read."""
        self._begin_reading()
        self._spawn(self._read(event))

    def _begin_reading(self) -> None:
        self._waiting = False
        if self._timer is not None:
            self._timer.cancel()

    async def _read(self, event: PullStarted) -> None:
        try:
            status = await self._post("/kv/pull")
        except (OSError, TimeoutError):
            status = 0
        if status != 200:
            self._metrics.nixl_failed_transfers += 1
            self._told = True
            self._service.pull_ended(self._request_id, failed=True)
            return
        lasts_s = self._profile.transfer_s(event.tokens)
        done = asyncio.Event()
        self._service.call_at_engine(event.at_s + lasts_s, done.set)
        await done.wait()
        self._service.pull_ended(self._request_id, failed=False)
        self._metrics.nixl_time.observe(self._service.wall_s(lasts_s))
        self._metrics.nixl_post_time.observe(self._service.wall_s(self._profile.link_setup_s))
        self._metrics.nixl_bytes.observe(event.tokens * self._profile.kv_bytes_per_token)
        self._metrics.nixl_descriptors.observe(self._remote.blocks)
        await self._notify()

    def dropped(self) -> None:
        """The request ended before the read: P need not wait for its lease."""
        if self._waiting:
            self._begin_reading()
            if not self._part:
                self._spawn(self._notify())

    def needless(self) -> None:
        """There is nothing to read."""
        self._begin_reading()
        self._spawn(self._notify())

    async def _notify(self) -> None:
        if self._told:
            return
        self._told = True
        try:
            status = await self._post("/kv/pulled")
        except (OSError, TimeoutError):
            status = 0
        if status == 0:
            self._metrics.nixl_failed_notifications += 1
            self._metrics.nixl_failed_transfers += 1
