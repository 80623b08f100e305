"""vLLM's KV event batches as bytes (msgpack; `vllm/distributed/kv_events.py`), read into the core's reports.

Only what the prefix cache of the model's full attention on the device holds counts: events of other tiers (`medium`),
of other groups of layers (sliding windows, Mamba) and of unknown kinds are left out.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from ballast_core.model.kv_reports import BlockName, BlocksRemoved, BlocksStored, CacheCleared, ExtraKeys, KvReport
from ballast_core.model.prompt_tokens import packed

_DEVICE = (None, "GPU")
_FULL = (None, "full_attention", "mla_attention", "sink_full_attention")
_LONGEST_NAME = 64
"""Bytes of a block's name; SHA-256 has 32."""
_MOST_KEYS = 64


class BadBatch(ValueError):
    """It is no batch of KV events; the message says why."""


class _Event(msgspec.Struct, tag=True):
    pass


class BlockStored(_Event):
    """As vLLM sends it; fields without use here are left out."""

    block_hashes: list[int | bytes]
    token_ids: list[int]
    block_size: int
    parent_block_hash: int | bytes | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[list[object] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class BlockRemoved(_Event):
    """As vLLM sends it."""

    block_hashes: list[int | bytes]
    medium: str | None = None
    group_idx: int | None = None


class AllBlocksCleared(_Event):
    """As vLLM sends it."""


class _Kind(msgspec.Struct):
    type: str


class _Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[msgspec.Raw]
    data_parallel_rank: int | None = None


_Known: TypeAlias = BlockStored | BlockRemoved | AllBlocksCleared
_batches = msgspec.msgpack.Decoder(_Batch)
_events: msgspec.msgpack.Decoder[_Known] = msgspec.msgpack.Decoder(_Known)
_kinds = msgspec.msgpack.Decoder(_Kind)
_KINDS = frozenset({"BlockStored", "BlockRemoved", "AllBlocksCleared"})


class BatchReader:
    """Reads the batches of one rank in order."""

    def __init__(self) -> None:
        self._group: int | None = None
        """The group of layers whose blocks count: the first one of full attention that stored any."""

    def read(self, payload: bytes) -> list[KvReport]:
        """The reports of one batch. Raises `BadBatch`."""
        try:
            return [report for raw in _batches.decode(payload).events if (report := self._report(raw)) is not None]
        except (msgspec.MsgspecError, OverflowError, TypeError, RecursionError, UnicodeDecodeError) as error:
            raise BadBatch(str(error)[:200]) from None

    def _report(self, raw: msgspec.Raw) -> KvReport | None:
        try:
            event = _events.decode(raw)
        except msgspec.ValidationError:
            if _kinds.decode(raw).type in _KINDS:
                raise
            return None
        match event:
            case BlockStored():
                return self._stored(event)
            case BlockRemoved():
                if event.medium not in _DEVICE or event.group_idx not in (None, self._group):
                    return None
                return BlocksRemoved(_names(event.block_hashes))
            case _:
                return CacheCleared()

    def _stored(self, event: BlockStored) -> BlocksStored | None:
        if event.medium not in _DEVICE or event.kv_cache_spec_kind not in _FULL:
            return None
        if self._group is None:
            self._group = event.group_idx
        if event.group_idx not in (None, self._group):
            return None
        extras: tuple[ExtraKeys, ...] = ()
        if event.extra_keys is not None and any(event.extra_keys):
            extras = tuple(_hashable(keys) for keys in event.extra_keys)
        parent = event.parent_block_hash
        return BlocksStored(
            names=_names(event.block_hashes),
            parent=None if parent is None else _names([parent])[0],
            ids=packed(event.token_ids),
            block_size=event.block_size,
            extras=extras,
            adapter=event.lora_name or "",
        )


def _names(hashes: list[int | bytes]) -> tuple[BlockName, ...]:
    if any(isinstance(each, bytes) and len(each) > _LONGEST_NAME for each in hashes):
        raise TypeError(f"a block hash has more than {_LONGEST_NAME} bytes")
    return tuple(hashes)


def _hashable(keys: list[object] | None) -> ExtraKeys:
    """Adapter and salt as text, an image as its name and place: lists of scalars become tuples, the rest is refused."""
    if not keys:
        return None
    if len(keys) > _MOST_KEYS:
        raise TypeError(f"a block has more than {_MOST_KEYS} extra keys")
    return tuple(tuple(map(_scalar, key)) if isinstance(key, list) else _scalar(key) for key in keys)


def _scalar(value: object) -> object:
    if isinstance(value, (str, int, float, bytes, type(None))):
        return value
    raise TypeError("an extra key of a block is no text, number or bytes")
