"""A publisher of KV events whose every message a test decides, on vLLM's two sockets."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import Any

import msgspec
import zmq
import zmq.asyncio

_END = (-1).to_bytes(8, "big", signed=True)


class ScriptedPublisher:
    """Publishes on two ports of a loopback address; what it repeats is `kept`."""

    def __init__(self, host: str, port: int, replay_port: int, *, repeats: bool = True) -> None:
        self.kept: dict[int, bytes] = {}
        self.asked: list[int] = []
        """The first number of each replay that was asked for."""
        self._context = zmq.asyncio.Context()
        self._out = zmq.Socket(self._context, zmq.PUB)
        self._out.bind(f"tcp://{host}:{port}")
        self._task: asyncio.Task[None] | None = None
        if repeats:
            router = self._context.socket(zmq.ROUTER)
            router.bind(f"tcp://{host}:{replay_port}")
            self._task = asyncio.ensure_future(self._repeat(router))

    def send(self, number: int, payload: bytes) -> None:
        """Publish live."""
        self.send_frames(b"", number.to_bytes(8, "big"), payload)

    def send_frames(self, *frames: bytes) -> None:
        """Publish any frames at all."""
        self._out.send_multipart(frames)

    async def _repeat(self, router: zmq.asyncio.Socket) -> None:
        while True:
            client, _, start = await router.recv_multipart()
            first = int.from_bytes(start, "big")
            self.asked.append(first)
            for number in sorted(self.kept):
                if number >= first:
                    await router.send_multipart((client, b"", b"", number.to_bytes(8, "big"), self.kept[number]))
            await router.send_multipart((client, b"", b"", _END, b""))

    def close(self) -> None:
        """Let go of the ports."""
        if self._task is not None:
            self._task.cancel()
        self._out.close(linger=0)
        self._context.destroy(linger=0)


def batch(*events: dict[str, Any], rank: int = 0) -> bytes:
    """One batch as vLLM encodes it."""
    return msgspec.msgpack.encode([0.0, list(events), rank])


def stored(
    names: list[int], tokens: list[int], *, parent: int | None = None, size: int = 4, **more: Any
) -> dict[str, Any]:
    """`BlockStored` of vLLM 0.32, with all its fields."""
    return {
        "type": "BlockStored",
        "block_hashes": names,
        "parent_block_hash": parent,
        "token_ids": tokens,
        "block_size": size,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [None] * len(names),
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
        "session_id": "s",
        **more,
    }


def removed(*names: int, **more: Any) -> dict[str, Any]:
    """`BlockRemoved`."""
    return {"type": "BlockRemoved", "block_hashes": list(names), "medium": "GPU", "group_idx": 0, **more}


class RandomCache:
    """A cache of blocks of four tokens that changes at random; each change is one batch."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.copies: Counter[tuple[int, ...]] = Counter()

    def change(self) -> bytes:
        """Store a prompt, evict a block or clear everything."""
        held = [prefix for prefix, count in self.copies.items() if count]
        kind = self._random.random()
        if kind < 0.05:
            self.copies.clear()
            return batch({"type": "AllBlocksCleared"})
        if kind < 0.35 and held:
            longest = max(held, key=len)
            self.copies[longest] -= 1
            return batch(removed(hash(longest) & 0xFFFF_FFFF_FFFF))
        tokens = [self._random.randrange(2) for _ in range(4 * self._random.randrange(1, 5))]
        prefixes = [tuple(tokens[:end]) for end in range(4, len(tokens) + 1, 4)]
        self.copies.update(prefixes)
        return batch(stored([hash(prefix) & 0xFFFF_FFFF_FFFF for prefix in prefixes], tokens))

    def hit(self, tokens: list[int]) -> int:
        """Cached leading tokens, the last one left out."""
        ends = range(4, len(tokens), 4)
        return next((end - 4 for end in ends if not self.copies[tuple(tokens[:end])]), len(ends) * 4)
