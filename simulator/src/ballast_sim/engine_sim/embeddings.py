"""`/v1/embeddings` as vLLM 0.32 gives it: vectors that depend on the tokens alone, after the work of their prompts."""

import base64
import json
import struct
from random import Random
from typing import Any

from ballast_sim.engine import Finished, FinishReason
from ballast_sim.engine_sim.bodies import ApiError, prompt_tokens
from ballast_sim.engine_sim.streams import Answer
from ballast_sim.engine_sim.text import rolling_hash

_DIMENSIONS = 64
_FORMATS = ("float", "base64")


def inputs(body: dict[str, Any]) -> list[list[int]]:
    """Token ids of each input. Raises ApiError."""
    asked = body.get("input")
    prompts = asked if isinstance(asked, list) and asked and isinstance(asked[0], str | list) else [asked]
    try:
        return [prompt_tokens(each) for each in prompts]
    except ApiError as error:
        raise ApiError(str(error).replace("prompt", "input", 1), "input") from None


class Gathering:
    """The inputs of one call, each of them an engine request of its own, as in vLLM."""

    def __init__(self, asked: dict[str, Any], prompts: list[list[int]]) -> None:
        """`asked`: the client's body; `prompts`: its inputs."""
        self._asked = asked
        self._prompts = prompts
        self.left = len(prompts)
        self.failed = False

    def result(self) -> dict[str, Any]:
        """All vectors, and the usage of all."""
        kind, size = self._asked.get("encoding_format") or "float", self._asked.get("dimensions") or _DIMENSIONS
        data = [
            {"index": index, "object": "embedding", "embedding": _written(_vector(tokens, size), kind)}
            for index, tokens in enumerate(self._prompts)
        ]
        count = sum(map(len, self._prompts))
        usage = {"prompt_tokens": count, "total_tokens": count, "completion_tokens": 0, "prompt_tokens_details": None}
        return {"data": data, "usage": usage}


class Embedding(Answer):
    """One input. The last one that ends writes the JSON body for all, the first one that fails an error."""

    def __init__(self, *args: Any, gathering: Gathering, **kwargs: Any) -> None:
        """`gathering` is shared by all inputs of a call."""
        super().__init__(*args, **kwargs)
        self._gathering = gathering

    def _show(self, count: int) -> None:
        pass

    def _end(self, event: Finished) -> None:
        gathering = self._gathering
        if gathering.failed:
            return
        if event.reason in (FinishReason.ERROR, FinishReason.ABORT):
            gathering.failed = True
            self.exchange.respond(*self._error(event))
            return
        gathering.left -= 1
        if not gathering.left:
            head = {"id": self._id, "object": "list", "created": self._created_s, "model": self.call.model}
            self.exchange.respond(200, json.dumps({**head, **gathering.result()}).encode())


def check_format(body: dict[str, Any]) -> None:
    """Raises ApiError for an encoding or a size that cannot be written."""
    if body.get("encoding_format") not in (None, *_FORMATS):
        raise ApiError("encoding_format: engine-sim writes float and base64.", "encoding_format")
    size = body.get("dimensions")
    if size is not None and (type(size) is not int or not 1 <= size <= _DIMENSIONS):
        raise ApiError(f"dimensions: must be a whole number from 1 to {_DIMENSIONS}.", "dimensions")


def _vector(tokens: list[int], size: int) -> list[float]:
    rng = Random(rolling_hash(tokens))
    values = [rng.gauss(0, 1) for _ in range(size)]
    norm = sum(value * value for value in values) ** 0.5
    return [value / norm for value in values]


def _written(vector: list[float], kind: str) -> list[float] | str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode() if kind == "base64" else vector
