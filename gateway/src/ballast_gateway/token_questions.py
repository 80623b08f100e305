"""The exact tokens of a prompt, or the question whose answer they are: what vLLM's /tokenize is asked.

vLLM tokenizes a prompt there as it does to generate from it: special tokens, chat template and tools included. Prompts
of which that is not so have neither: several prompts, images, embeddings, what cuts a prompt off.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import msgspec

from ballast_core.model.prompt_tokens import PromptTokens

MOST_TOKENS: Final = 131_072
"""Leading token ids of a prompt that are looked for."""
MOST_BYTES: Final = 1024 * 1024
"""Size of a question; what is longer is not asked."""
_CHAT_FIELDS: Final = (
    "messages",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "chat_template",
    "chat_template_kwargs",
    "tools",
)
_OTHERWISE: Final = frozenset(
    {
        "prompt_embeds",
        "truncate_prompt_tokens",
        "documents",
        "reasoning_effort",
        "media_io_kwargs",
        "mm_processor_kwargs",
        "functions",
        "input",
        "system",
        "instructions",
    }
)
"""Fields that change a prompt in ways that /tokenize does not follow, on whatever route."""


@dataclass(frozen=True, slots=True)
class Question:
    """One prompt as text."""

    key: bytes
    """Equal for equal prompts of one model."""
    body: bytes
    """JSON for /tokenize."""
    model: str
    cache_salt: str


def tokens_of(document: Mapping[str, object], model: str) -> PromptTokens | Question | None:
    """The tokens of the one prompt of a request body if it is given as such; the question if it is text."""
    if not _OTHERWISE.isdisjoint(document):
        return None
    salt = document.get("cache_salt")
    cache_salt = salt if isinstance(salt, str) else ""
    prompt = document.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    match prompt:
        case [int(), *_] as ids:
            try:
                return PromptTokens.of(ids[:MOST_TOKENS], model=model, cache_salt=cache_salt)
            except (TypeError, OverflowError):
                return None
        case str():
            if len(prompt) > MOST_BYTES:
                return None
            special = document.get("add_special_tokens")
            asked: dict[str, object] = {"model": model, "prompt": prompt}
            if special is not None:
                asked["add_special_tokens"] = special
        case None if _is_plain_chat(document.get("messages")):
            asked = {"model": model}
            asked |= {field: document[field] for field in _CHAT_FIELDS if document.get(field) is not None}
        case _:
            return None
    try:
        body = msgspec.json.encode(asked)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError, TypeError):
        return None
    if len(body) > MOST_BYTES:
        return None
    return Question(blake2b(body, digest_size=16).digest(), body, model, cache_salt)


def _is_plain_chat(messages: object) -> bool:
    """Whether all content is text: images become tokens that only the engine knows."""
    return isinstance(messages, list) and bool(messages) and all(map(_is_plain, messages))


def _is_plain(message: object) -> bool:
    if not isinstance(message, dict):
        return False
    content = message.get("content")
    if isinstance(content, list):
        return all(isinstance(part, dict) and part.get("type") == "text" for part in content)
    return content is None or isinstance(content, str)
