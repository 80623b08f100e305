"""What placement policies read of a prompt: the names of its prefix blocks, and the traffic class of its request.

Token ids are hashed exactly. Text is cut into blocks at four characters a token. Messages are joined in order into one
text, so that a conversation's next turn begins with the text of the turn before; their other content (images, tool
calls) becomes a digest in that text. The model and everything that changes how a prompt begins (tools, template, cache
salt) are part of the first block's name, and through the chain of all others. An adapter has a model name of its own,
so adapters share no names.

Work is bounded: at most `MAX_BLOCKS` blocks and `MAX_PIECES` pieces of messages are read, and every byte is hashed once
at most. Any body gets some names or none; nothing is raised.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import islice
from typing import Final, cast

import numpy as np

from ballast_core.beliefs.block_hashes import text_block_hashes, token_block_hashes
from ballast_core.beliefs.kinds import Belief
from ballast_core.model.prompt_tokens import PromptTokens
from ballast_gateway.openai_body import CHARS_PER_TOKEN, JsonObject, reads_no_cache
from ballast_gateway.token_questions import Question, tokens_of
from ballast_gateway.traffic_classes import MOST_CHARS, TrafficClasses

BLOCK_TOKENS: Final = 64
"""Tokens of one block, as in llm-d's router: four blocks of an engine, for a quarter of the work and memory."""
MAX_BLOCKS: Final = 2048
"""Blocks of a prompt that get a name: 131,072 tokens, as in llm-d's router."""
MAX_PIECES: Final = 4096
"""Messages and parts of messages that are read at most."""
MAX_NODES: Final = 16_384
"""Values within one part, or within the tools, that are read at most."""

_BLOCK_CHARS: Final = BLOCK_TOKENS * CHARS_PER_TOKEN
_ROOT_FIELDS: Final = ("cache_salt", "tools", "functions", "documents", "chat_template", "chat_template_kwargs")
"""Fields that change how the prompt begins, or that keep its cache apart."""
_ROOT_SET: Final = frozenset(_ROOT_FIELDS)
_HEAD_FIELDS: Final = ("system", "instructions")
_MESSAGE, _ROLE_END, _DIGEST = "\x1e", "\x1f", "\x1d"
_TEXT_TYPES: Final = frozenset({"text", "input_text", "output_text"})


@dataclass(frozen=True, slots=True)
class PromptFacts:
    """The fields of a `Request` that come from its prompt."""

    block_hashes: tuple[int, ...] = ()
    block_size: int = 0
    traffic_class: str = ""
    tokens: PromptTokens | Question | None = None
    """The prompt's tokens, or what to ask an engine for them."""

    def count(self, tokens: PromptTokens | None, counted: int) -> int:
        """How many tokens the prompt has: `counted`, unless that is an estimate of a text whose tokens have come."""
        return len(tokens) if tokens is not None and isinstance(self.tokens, Question) else counted


NO_FACTS: Final = PromptFacts()


class PromptReader:
    """Reads as much of a prompt as the policies in use need."""

    def __init__(self, needs: Belief, *, wants_tokens: bool = False) -> None:
        """`needs`: the beliefs that the Director learns (`Beliefs.kinds`). `wants_tokens`: whether endpoints report
        what they cache, so that the tokens themselves are looked for, too."""
        self._wants_tokens = wants_tokens and Belief.PREFIXES in needs
        self._names_blocks = Belief.PREFIXES in needs or Belief.HOTSPOTS in needs
        self._classes = TrafficClasses() if Belief.LENGTHS in needs else None

    def blocks(self, document: JsonObject, model: str) -> tuple[int, ...]:
        """The block hashes of a request body, if any are wanted. May run on any thread."""
        return tuple(block_hashes(document, model)) if self._names_blocks and _is_cached(document) else ()

    def read(
        self, document: JsonObject, *, model: str, objective: str = "", blocks: tuple[int, ...] | None = None
    ) -> PromptFacts:
        """The facts of a request body; `objective` is the value of the header that names it, `blocks` if known."""
        if not self._names_blocks and self._classes is None:
            return NO_FACTS
        hashes = self.blocks(document, model) if blocks is None else blocks
        return PromptFacts(
            block_hashes=hashes,
            block_size=BLOCK_TOKENS if hashes else 0,
            traffic_class="" if self._classes is None else self._classes.name(model, objective),
            tokens=tokens_of(document, model) if self._wants_tokens and _is_cached(document) else None,
        )


def _is_cached(document: JsonObject) -> bool:
    """Whether engines look for the prompt in their caches."""
    return not reads_no_cache(document, chat=document.get("prompt") is None)


def block_hashes(document: JsonObject, model: str) -> list[int]:
    """Names of the prompt's whole leading blocks; empty for short prompts, and for bodies of several prompts."""
    try:
        match _prompt(document):
            case [int(), *_] as ids:
                return _of_ids(ids, _root(document, model))
            case str(text):
                pieces: Iterator[str] = iter((text,))
            case [{}, *_] as messages:
                pieces = _of_messages(document, messages)
            case _:
                return []
        return text_block_hashes(_first_chars(pieces), _BLOCK_CHARS, salt=_root(document, model))
    except (TypeError, OverflowError):  # not token ids after all
        return []


def _prompt(document: JsonObject) -> object:
    """The one prompt of a body, wherever its API puts it."""
    for field in ("prompt", "messages", "input"):
        prompt = document.get(field)
        if prompt is not None:
            return prompt[0] if _holds_one_prompt(prompt) else prompt
    return None


def _holds_one_prompt(prompt: object) -> bool:
    return isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list))


def _root(document: JsonObject, model: str) -> bytes:
    shape = "messages" if document.get("prompt") is None else "prompt"
    if _ROOT_SET.isdisjoint(document) and len(model) <= MOST_CHARS:
        return _plain_root(model, shape)
    extras = {field: document[field] for field in _ROOT_FIELDS if document.get(field) is not None}
    return _digest_of([model, shape, extras])


@lru_cache(maxsize=256)
def _plain_root(model: str, shape: str) -> bytes:
    return _digest_of([model, shape, {}])


def _of_ids(ids: Sequence[object], root: bytes) -> list[int]:
    """Block names of token ids. Raises TypeError or OverflowError if one is no token id."""
    first = array("I", cast("Sequence[int]", ids[: MAX_BLOCKS * BLOCK_TOKENS]))
    return token_block_hashes(np.frombuffer(first, np.uintc), BLOCK_TOKENS, salt=root)


def _first_chars(pieces: Iterator[str]) -> str:
    """The pieces joined, up to the longest text that gets block names."""
    left = MAX_BLOCKS * _BLOCK_CHARS
    taken: list[str] = []
    for count, piece in enumerate(pieces, 1):
        taken.append(piece[:left])
        left -= len(piece)
        if left <= 0 or count >= MAX_PIECES:
            break
    return "".join(taken)


def _of_messages(document: JsonObject, messages: Sequence[object]) -> Iterator[str]:
    for field in _HEAD_FIELDS:
        head = document.get(field)
        if head is not None:
            yield f"{_MESSAGE}{field}{_ROLE_END}"
            yield from _of_content(head)
    for message in messages:
        if not isinstance(message, dict):
            yield _digest(message)
            continue
        role = message.get("role")
        yield f"{_MESSAGE}{role if isinstance(role, str) else ''}{_ROLE_END}"
        yield from _of_content(message.get("content"))
        rest = {key: value for key, value in message.items() if key not in ("role", "content") and value}
        if rest:
            yield _digest(rest)


def _of_content(content: object) -> Iterator[str]:
    match content:
        case None:
            return
        case str(text):
            yield text
        case list(parts):
            for part in parts:
                match part:
                    case str(text):
                        yield text
                    case {"type": str(kind), "text": str(text)} if kind in _TEXT_TYPES:
                        yield text
                    case _:
                        yield _digest(part)
        case _:
            yield _digest(content)


def _digest(value: object) -> str:
    return _DIGEST + _digest_of(value).hex()


def _digest_of(value: object) -> bytes:
    """Eight bytes that stand for a JSON value, or for its first `MAX_NODES` nodes. Strings count whole."""
    digest = blake2b(digest_size=8)
    pending = [value]
    for _ in range(MAX_NODES):
        if not pending:
            break
        match pending.pop():
            case str(text):
                data = text.encode("utf-8", "surrogatepass")
                digest.update(b"s%d:" % len(data))
                digest.update(data)
            case list(items):
                digest.update(b"[%d" % len(items))
                pending.extend(items[MAX_NODES::-1])
            case dict(fields):
                digest.update(b"{%d" % len(fields))
                for key, item in islice(fields.items(), MAX_NODES):
                    pending += (item, key)
            case other:
                digest.update(b"v%s;" % repr(other).encode())
    return digest.digest()
