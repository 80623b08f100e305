"""The first part of a prompt that is cut: computed by one engine, and the request with which the next one goes on.

vLLM 0.32 has one way to read the KV of a part: that of a conversation that is read back (`bidirectional_kv_xfer`).
The reader takes `remote_num_tokens` tokens from the blocks that are named and computes the rest. It checks nothing, so
all of this holds before it is asked:

- the handle is for exactly the tokens that were sent, which it is not for models whose prefill stops short (Mamba,
  several prediction heads): there vLLM would also end the answer after one token;
- the reader is given the token ids themselves, in place of text or messages;
- its stream must begin within `FIRST_TOKEN_DUE_S`. The first engine keeps the KV for one lease (30 s) and no heartbeat
  prolongs it on this way; a later reader gets what lies there by then. One that has not begun is left, which ends it.

Where one of these is not so, the next engine computes the whole prompt.
"""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass, replace
from typing import Final

from ballast_core.model import Endpoint, Stage
from ballast_core.model.effects import Dispatch
from ballast_gateway import openai_body
from ballast_gateway.http.client import Collect, UpstreamPool
from ballast_gateway.openai_body import JsonObject
from ballast_gateway.proxy.bodies import ASK_FOR_HANDLE, Generation
from ballast_gateway.proxy.fields import TEMPLATE_FIELDS
from ballast_gateway.proxy.legs import Job, payload, perform

_log = logging.getLogger(__name__)

LEAST_PART_TOKENS: Final = 64
"""vLLM's `kv_recompute_threshold`: readers compute fewer tokens again rather than pull them."""
FIRST_TOKEN_DUE_S: Final = 20.0
"""From the end of the first part to the first token: less than vLLM's default `kv_lease_duration`, by some delay."""
_TOKENIZE_TIMEOUT_S: Final = 10.0
_MOST_ENGINES: Final = 4096
PROOF_HOLDS_S: Final = 300.0
"""An engine may come back at its address with another chat template, without a failed leg in between."""
_COMPLETIONS: Final = b"/v1/completions"
_CHAT: Final = b"/v1/chat/completions"
_TOKENIZE: Final = b"/tokenize"
_TEXTS: Final = ("remote_engine_id", "remote_request_id", "remote_host")


@dataclass(frozen=True, slots=True)
class Remainder:
    """What the next engine is sent."""

    body: bytes
    """The client's request, with the KV of its first tokens."""
    part_tokens: int
    """How many these are."""
    due_s: float
    """When its stream must have begun, on the loop's clock."""


class Cutter:
    """Has first parts computed; one instance serves all."""

    def __init__(self, pool: UpstreamPool, loop: asyncio.AbstractEventLoop, *, prefill_timeout_s: float) -> None:
        self._pool = pool
        self._loop = loop
        self._prefill_timeout_s = prefill_timeout_s
        self._renders_alike: dict[str, dict[str, tuple[bool, float]]] = {}
        """By address and model: whether the engine's `/tokenize` renders chats as its chats are rendered, and until
        when that holds, on the loop's clock."""

    def forget(self, endpoint: Endpoint) -> None:
        """A leg has failed there: it may be another engine that answers next."""
        self._renders_alike.pop(endpoint.address, None)

    async def first_part(self, job: Job, dispatch: Dispatch, planned_tokens: int) -> Remainder | None:
        """Have the first segment computed; None where the next one has to compute the whole prompt.

        `planned_tokens`: the prompt's as the plan had them. Raises `LegFailed`.
        """
        endpoint, end_tokens = dispatch.prefill, dispatch.segments[0].end_tokens
        assert endpoint is not None
        assert end_tokens is not None
        ids = await self._ids(job, endpoint)
        tokens = None if ids is None else part_tokens(end_tokens, planned_tokens, len(ids))
        if ids is None or tokens is None:
            return None
        body = first_body(job.generation, ids[:tokens])
        reply = await self._ask(replace(job, path=_COMPLETIONS), endpoint, body, priority=dispatch.priority)
        handle = handle_of(reply.body, tokens) if reply.status == 200 else None
        if handle is None:
            _log.warning(
                "the first part of a prompt is computed again: no use of its KV",
                extra={"request_id": job.record.id, "endpoint": endpoint.id, "status": reply.status},
            )
            return None
        return Remainder(remainder_body(job.generation, ids, handle), tokens, self._loop.time() + FIRST_TOKEN_DUE_S)

    async def _ids(self, job: Job, endpoint: Endpoint) -> list[int] | None:
        """The ids of the prompt, if they can be known."""
        document, chat = job.generation.document, job.generation.chat
        prompt = None if chat else document["prompt"]
        if isinstance(prompt, list):
            return prompt
        if chat and not await self._chats_are_tokenized(job, endpoint):
            return None
        fields = ("model", "messages", *TEMPLATE_FIELDS) if chat else ("model", "prompt", "add_special_tokens")
        return await self._tokenized(
            job, endpoint, {key: document[key] for key in fields if document.get(key) is not None}
        )

    async def _chats_are_tokenized(self, job: Job, endpoint: Endpoint) -> bool:
        """Check each engine now and then: models with their own renderer (gpt-oss) have another prompt in a chat."""
        model = job.generation.model
        was_alike, until_s = self._renders_alike.get(endpoint.address, {}).get(model, (True, 0.0))
        if self._loop.time() < until_s:
            return was_alike
        document: JsonObject = {"model": model, "messages": [{"role": "user", "content": "Hello"}]}
        body = openai_body.dump(document | {"max_tokens": 1, "return_token_ids": True})
        reply = await self._ask(replace(job, path=_CHAT), endpoint, body)
        used, ids = _field(reply, "prompt_token_ids"), await self._tokenized(job, endpoint, document)
        if used is None or ids is None:
            return False  # asked again with the next one
        if len(self._renders_alike) >= _MOST_ENGINES:
            self._renders_alike.clear()
        alike = used == ids
        self._renders_alike.setdefault(endpoint.address, {})[model] = alike, self._loop.time() + PROOF_HOLDS_S
        if was_alike and not alike:
            _log.warning(
                "chats are not cut: /tokenize gives other tokens than a chat has", extra={"endpoint": endpoint.id}
            )
        return alike

    async def _tokenized(self, job: Job, endpoint: Endpoint, document: JsonObject) -> list[int] | None:
        body = openai_body.dump(document)
        reply = await self._ask(replace(job, path=_TOKENIZE), endpoint, body, timeout_s=_TOKENIZE_TIMEOUT_S)
        ids = _field(reply, "tokens")
        return ids if isinstance(ids, list) and ids and all(type(each) is int and each >= 0 for each in ids) else None

    async def _ask(
        self, job: Job, endpoint: Endpoint, body: bytes, *, timeout_s: float = 0.0, priority: int | None = None
    ) -> Collect:
        reply = Collect(self._loop.time() + (timeout_s or self._prefill_timeout_s))
        await perform(self._pool, Stage.PREFILL, endpoint, payload(job, endpoint, body, priority), reply)
        return reply


def part_tokens(end_tokens: int, planned_tokens: int, actual_tokens: int) -> int | None:
    """Where to cut a prompt that was planned with an estimate of its length: at the same share of it.

    The last token is the next engine's in any case; None where the part would be too small to be pulled.
    Example: cut at 600 of 1,000 planned tokens; the prompt has 800 -> 480.
    """
    share = end_tokens if planned_tokens == actual_tokens else end_tokens * actual_tokens // max(planned_tokens, 1)
    tokens = min(share, actual_tokens - 1)
    return tokens if tokens >= LEAST_PART_TOKENS else None


def first_body(generation: Generation, ids: list[int]) -> bytes:
    """The first segment: these tokens, one output token that the client never sees, and a KV handle please."""
    kept = {key: generation.document[key] for key in ("priority", "cache_salt") if key in generation.document}
    document = {"model": generation.model, "prompt": ids, "max_tokens": 1, "temperature": 0, "stream": False}
    return openai_body.dump(kept | document | {"kv_transfer_params": ASK_FOR_HANDLE})


def handle_of(reply: bytes, tokens: int) -> JsonObject | None:
    """The handle in the answer to `first_body`, turned into one for a part; None unless it is for so many tokens."""
    try:
        handle = json.loads(reply)["kv_transfer_params"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if not isinstance(handle, dict) or type(handle.get("remote_num_tokens")) is not int:
        return None
    named = all(isinstance(handle.get(field), str) and handle[field] for field in _TEXTS)
    if not named or type(handle.get("remote_port")) is not int or handle.get("transfer_mode", "pull") != "pull":
        return None
    if handle["remote_num_tokens"] != tokens or not _are_groups(handle.get("remote_block_ids")):
        return None
    return {**handle, "do_remote_prefill": False, "do_remote_decode": True}


def _are_groups(blocks: object) -> bool:
    """Block ids for each group of the KV cache."""
    return (
        isinstance(blocks, list)
        and bool(blocks)
        and all(isinstance(group, list) and group and all(type(each) is int for each in group) for group in blocks)
    )


def remainder_body(generation: Generation, ids: list[int], handle: JsonObject) -> bytes:
    """The client's request with the handle, about exactly these ids."""
    if generation.chat:
        return generation.decode_body({**handle, "prompt_token_ids": ids})
    if isinstance(generation.document["prompt"], list):
        return generation.decode_body(handle)
    return openai_body.dump({**generation.document, "prompt": ids, "kv_transfer_params": handle})


def _field(reply: Collect, field: str) -> object:
    """A field of a good answer; None of any other."""
    if reply.status != 200:
        return None
    try:
        document = json.loads(reply.body)
    except (ValueError, RecursionError):
        return None
    return document.get(field) if isinstance(document, dict) else None
