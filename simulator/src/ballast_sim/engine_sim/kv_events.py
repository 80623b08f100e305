"""vLLM's ZMQ publisher of KV events (`vllm/distributed/kv_events.py`): batches with numbers, and a port that repeats.

One batch for each step that changed the cache. `tcp://*:PORT` listens on the server's own address.
"""

import asyncio
from collections import deque

import msgspec
import zmq
import zmq.asyncio

from ballast_sim.engine.content import TokenContent
from ballast_sim.engine.requests import RequestState
from ballast_sim.engine_sim.options import KvEventsConfig

_MASK = (1 << 64) - 1
_END = (-1).to_bytes(8, "big", signed=True)
_SENT_AHEAD = 100_000
"""vLLM's high-water mark."""


class KvPublisher:
    """A `CacheListener`. `open`, then `publish` after each step; `close`."""

    def __init__(self, config: KvEventsConfig, block_size: int) -> None:
        self.config = config
        self.port = self.replay_port = 0
        self._block_size = block_size
        self._events: list[dict[str, object]] = []
        self._kept: deque[tuple[bytes, bytes]] = deque(maxlen=config.buffer_steps)
        self._number = 0
        self._context: zmq.asyncio.Context | None = None
        self._out: zmq.Socket[bytes] | None = None
        self._repeating: asyncio.Task[None] | None = None

    def open(self, host: str) -> None:
        """Listen. Raises OSError where a port is taken."""
        context = self._context = zmq.asyncio.Context()
        try:
            self._out = zmq.Socket(context, zmq.PUB)
            self._out.set_hwm(_SENT_AHEAD)
            self.port = _bind(self._out, host, self.config.port)
            if self.config.replay_port is not None:
                repeats = context.socket(zmq.ROUTER)
                self.replay_port = _bind(repeats, host, self.config.replay_port)
                self._repeating = asyncio.ensure_future(self._repeat(repeats))
        except zmq.ZMQError as error:
            self.close()
            raise OSError(error.errno, error.strerror) from error

    def close(self) -> None:
        """Publish no more."""
        if self._repeating is not None:
            self._repeating.cancel()
        if self._out is not None:
            self._out.close(linger=0)
        if self._context is not None:
            self._context.destroy(linger=0)
        self._context = self._out = None

    # -- what the pool tells -----------------------------------------------------------------------------------------

    def stored(self, state: RequestState, first: int, last: int) -> None:
        """See `CacheListener`."""
        content, size = state.content, self._block_size
        assert isinstance(content, TokenContent)
        names = content.upto(last)
        self._events.append(
            {
                "type": "BlockStored",
                "block_hashes": [name & _MASK for name in names[first:last]],
                "parent_block_hash": names[first - 1] & _MASK if first else None,
                "token_ids": content.tokens[first * size : last * size],
                "block_size": size,
                "lora_id": None,
                "medium": "GPU",
                "lora_name": None,
                "extra_keys": [None] * (last - first),
                "group_idx": 0,
                "kv_cache_spec_kind": "full_attention",
            }
        )

    def removed(self, block_hash: int) -> None:
        """See `CacheListener`."""
        hashes = [block_hash & _MASK]
        self._events.append({"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU", "group_idx": 0})

    def cleared(self) -> None:
        """See `CacheListener`."""
        self._events.append({"type": "AllBlocksCleared"})

    # -- what subscribers hear ---------------------------------------------------------------------------------------

    def publish(self, now_s: float) -> None:
        """Send what has changed since the last step."""
        if not self._events or self._out is None:
            return
        payload = msgspec.msgpack.encode([now_s, self._events, 0])
        number = self._number.to_bytes(8, "big")
        self._events = []
        self._number += 1
        self._kept.append((number, payload))
        self._out.send_multipart((self.config.topic.encode(), number, payload))

    async def _repeat(self, repeats: zmq.asyncio.Socket) -> None:
        """Send what is kept, from the asked number on, and an end mark."""
        topic = self.config.topic.encode()
        while True:
            frames = await repeats.recv_multipart()
            if len(frames) != 3:
                continue
            client, _, start = frames
            for number, payload in list(self._kept):
                if number >= start:
                    await repeats.send_multipart((client, b"", topic, number, payload))
            await repeats.send_multipart((client, b"", b"", _END, b""))


def _bind(socket: "zmq.Socket[bytes] | zmq.asyncio.Socket", host: str, port: int) -> int:
    """Listen on this address; the port that it has."""
    where = "*" if host in ("", "0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    if ":" in host:
        socket.setsockopt(zmq.IPV6, 1)
    socket.bind(f"tcp://{where}:{port or '*'}")
    return int(socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
