"""Requests whose whole answer is known beforehand: engine-sim's output follows from its prompt, token by token."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ballast_sim.engine_sim.bodies import Call, parse_call
from ballast_sim.engine_sim.text import WORDS, GeneratedContent
from bench.reliability.kit.engines import MODEL

_FIRST_ID, _LAST_ID = 1_000, 30_000
_SYLLABLES = [f"{a}{b}" for a in "bdfgklmnprstv" for b in "aeiou"]
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


@dataclass(frozen=True)
class Ask:
    """One request, and what a healthy engine answers."""

    path: str
    body: dict[str, Any]
    replayable: bool = True
    """Whether its stream may go on at another engine."""
    key: str = ""
    """The client's API key; empty for none."""
    host: str = "gateway"
    """Its Host header."""

    @property
    def chat(self) -> bool:
        """Whether its answer has chat's format."""
        return self.path == CHAT

    @property
    def stream(self) -> bool:
        """Whether it is answered event by event."""
        return bool(self.body["stream"])

    @cached_property
    def call(self) -> Call:
        """The request as engine-sim reads it."""
        return parse_call(self.body, self.chat, (MODEL,), 1 << 30)

    @property
    def output_tokens(self) -> int:
        """So many does the answer have."""
        return min(self.call.max_tokens, self.call.stop_after or self.call.max_tokens)

    @cached_property
    def text(self) -> str:
        """The whole answer's text."""
        content = GeneratedContent(list(self.call.tokens), 16, self.call.seed)
        return b"".join(WORDS[content.word(index)] for index in range(self.output_tokens)).decode()

    def raw(self, request_id: str) -> bytes:
        """The request's bytes."""
        body = json.dumps(self.body).encode()
        head = f"POST {self.path} HTTP/1.1\r\nhost: {self.host}\r\ncontent-type: application/json\r\n"
        head += f"authorization: Bearer {self.key}\r\n" if self.key else ""
        head += f"x-request-id: {request_id}\r\ncontent-length: {len(body)}\r\n\r\n"
        return head.encode() + body


def ask(
    number: int,
    *,
    prompt_tokens: int = 200,
    output_tokens: int = 40,
    chat: bool = False,
    stream: bool = True,
    usage: bool | None = None,
    replayable: bool = True,
    seed: int = 0,
    **more: Any,
) -> Ask:
    """Request number `number` of a run: another prompt for each number and seed; `more` are fields of its body.

    Without an opinion every other stream asks for usage. One that is not replayable samples with a seed.
    """
    body: dict[str, Any] = {"model": MODEL, "max_tokens": output_tokens, "stream": stream, "ignore_eos": True}
    rng = np.random.default_rng([seed, number])
    if chat:
        words = rng.integers(0, len(_SYLLABLES), 2 * prompt_tokens).tolist()
        pairs = zip(words[::2], words[1::2], strict=True)
        said = " ".join(_SYLLABLES[first] + _SYLLABLES[second] for first, second in pairs)
        body["messages"] = [{"role": "user", "content": said}]
    else:
        body["prompt"] = rng.integers(_FIRST_ID, _LAST_ID, prompt_tokens).tolist()
    if stream and (number % 2 == 0 if usage is None else usage):
        body["stream_options"] = {"include_usage": True}
    if not replayable:
        body |= {"seed": 1 + number, "temperature": 0.8}
    return Ask(CHAT if chat else COMPLETIONS, body | more, replayable)
