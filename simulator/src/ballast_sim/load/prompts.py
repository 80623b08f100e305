"""Prompts for workload requests: token ids or text, with equal prefixes where the workload's ids are equal."""

import json
from collections import OrderedDict
from typing import Literal

import numpy as np

from ballast_sim.workloads import WorkloadRequest

PromptKind = Literal["ids", "text"]

FIRST_ID, LAST_ID = 1_000, 30_000
"""Token ids are drawn from here: every common vocabulary has them."""

_CACHED_BLOCKS = 20_000
_WORDS = [f" {a}{b}{c}{d}" for a in "bdfgklmnprstv" for b in "aeiou" for c in "bdfgklmnprstv" for d in "aeiou"]


class PromptMaker:
    """Makes request bodies; the same seed makes the same prompts."""

    def __init__(self, model: str, kind: PromptKind, seed: int) -> None:
        """`text` prompts have one word of four letters for each token."""
        self._model = json.dumps(model)
        self._kind = kind
        self._seed = seed
        self._blocks: OrderedDict[tuple[int, int], str] = OrderedDict()

    def body(self, index: int, request: WorkloadRequest) -> bytes:
        """The JSON body of request number `index`."""
        prompt = self._prompt(index, request)
        return (
            f'{{"model":{self._model},"prompt":{prompt},"max_tokens":{request.output_tokens},"ignore_eos":true,'
            '"temperature":0,"stream":true,"stream_options":{"include_usage":true}}'
        ).encode()

    def _prompt(self, index: int, request: WorkloadRequest) -> str:
        pieces: list[str] = []
        covered, size = 0, request.block_size or 0
        for block_id in request.hash_ids or ():
            count = min(size, request.input_tokens - covered)
            if count <= 0:
                break
            pieces.append(self._block(block_id, size) if count == size else self._draw(_key(block_id), count, size))
            covered += count
        if covered < request.input_tokens:
            pieces.append(self._draw((2, index), request.input_tokens - covered))
        if self._kind == "text":
            return '"' + "".join(pieces) + '"'
        return "[" + ",".join(pieces) + "]"

    def _block(self, block_id: int, size: int) -> str:
        key = (block_id, size)
        text = self._blocks.get(key)
        if text is None:
            text = self._blocks[key] = self._draw(_key(block_id), size)
            if len(self._blocks) > _CACHED_BLOCKS:
                self._blocks.popitem(last=False)
        return text

    def _draw(self, key: tuple[int, int], count: int, out_of: int | None = None) -> str:
        """`count` tokens that depend on the key alone: the first ones of `out_of`."""
        rng = np.random.default_rng([self._seed, *key])
        if self._kind == "text":
            numbers = rng.integers(0, len(_WORDS), out_of or count)[:count]
            return "".join(_WORDS[number] for number in numbers.tolist())
        ids = rng.integers(FIRST_ID, LAST_ID, out_of or count)[:count]
        return ",".join(map(str, ids.tolist()))


def _key(block_id: int) -> tuple[int, int]:
    """Of a block; seeds have no signs, and hashes of 64 bits may."""
    return (1, block_id) if block_id >= 0 else (3, -block_id)
