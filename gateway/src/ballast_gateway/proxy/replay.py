"""Bodies that carry a stream from one engine to another: prompt and output so far as one prompt.

Token ids are bytes, as they stand in JSON between the brackets.
"""

from __future__ import annotations

import json

from ballast_gateway import openai_body
from ballast_gateway.openai_body import COMPLETION_TOKENS, JsonObject
from ballast_gateway.proxy.bodies import ASK_FOR_HANDLE, Generation
from ballast_gateway.proxy.fields import OUTPUT_TOKENS_ARG

_UNLIMITED_TOKENS = 2**31


def first_body(raw: bytes) -> bytes:
    """A client's body with token ids asked for."""
    return b'%b,"return_token_ids":true}' % raw[: raw.rindex(b"}")]


def tokens_left(generation: Generation, done_tokens: int) -> int:
    """Output tokens that the client's limits leave; a large number where it sets none."""
    document = generation.document
    limits = [document.get("max_tokens"), document.get("max_completion_tokens")]
    if not generation.chat:
        limits = [document.get("max_tokens", COMPLETION_TOKENS)]
    limits.append((document.get("vllm_xargs") or {}).get(OUTPUT_TOKENS_ARG))
    return min([limit for limit in limits if limit is not None], default=_UNLIMITED_TOKENS) - done_tokens


def continuation(generation: Generation, ids: bytes, done_tokens: int, handle: JsonObject | None) -> bytes:
    """Ask for the rest, as a stream; with the handle of an engine that holds the KV of exactly these tokens."""
    document = {key: value for key, value in generation.document.items() if key != "prompt"}
    if not generation.chat:
        document.setdefault("max_tokens", COMPLETION_TOKENS)
    for field in ("max_tokens", "max_completion_tokens"):
        if document.get(field) is not None:
            document[field] = max(1, document[field] - done_tokens)
    if document.get("min_tokens"):
        document["min_tokens"] = max(0, document["min_tokens"] - done_tokens)
    if document.get("vllm_xargs"):
        document["vllm_xargs"] = {name: max(1, n - done_tokens) for name, n in document["vllm_xargs"].items()}
    return _with_ids(generation, document | {"return_token_ids": True}, ids, handle)


def prefill(generation: Generation, ids: bytes, *, hold: bool) -> bytes:
    """Ask for one token, not streamed: computes the KV of all so far, to `hold` for a decode engine or to cache."""
    dropped = {"prompt", "stream", "stream_options", "min_tokens", "max_completion_tokens", "vllm_xargs"}
    document = {key: value for key, value in generation.document.items() if key not in dropped}
    document |= {"max_tokens": 1, "stream": False, "return_token_ids": True}
    return _with_ids(generation, document, ids, ASK_FOR_HANDLE if hold else None)


def confirmed_ids(generation: Generation, reply: bytes) -> list[int] | None:
    """The prompt that the answer to `prefill` is about, as its engine names it."""
    try:
        document = json.loads(reply)
        ids = document["prompt_token_ids"] if generation.chat else document["choices"][0]["prompt_token_ids"]
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        return None
    return ids if isinstance(ids, list) else None


def _with_ids(generation: Generation, document: JsonObject, ids: bytes, transfer: JsonObject | None) -> bytes:
    if generation.chat:
        more = openai_body.dump(transfer)[:-1] + b"," if transfer else b"{"
        tail = b'"kv_transfer_params":%b"prompt_token_ids":[%b]}}' % (more, ids)
    else:
        tail = b'"prompt":[%b]' % ids
        tail += b',"kv_transfer_params":%b}' % openai_body.dump(transfer) if transfer else b"}"
    return openai_body.dump(document)[:-1] + b"," + tail
