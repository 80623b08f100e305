"""Surgery on the events of vLLM's streams, byte by byte.

Keys of JSON are looked for with their quotes, which inside of a text are escaped. vLLM writes JSON without blanks and
`choices` after the fields that all events of a stream share.
"""

from __future__ import annotations

import json
import re
from typing import Final

from ballast_gateway.openai_body import JsonObject

SEPARATOR: Final = b"\n\n"
DONE: Final = b"data: [DONE]"
CHOICES: Final = b'"choices":['
IDS: Final = b'"token_ids":['
PROMPT_IDS: Final = b'"prompt_token_ids":['
FINISHED: Final = b'"finish_reason":"'
ABORTED: Final = b'"finish_reason":"abort"'
_ERROR_EVENTS: Final = (b'data: {"error":', b'data: {"object":"error"')
"""How vLLM's error events begin, those of today and those of before."""
USAGE: Final = b'"usage":{'
_PROMPT_TOKENS: Final = re.compile(rb'"prompt_tokens":\d+')
_COMPLETION_TOKENS: Final = re.compile(rb'"completion_tokens":(\d+)')
_CACHED_TOKENS: Final = re.compile(rb'"cached_tokens":(\d+)')


def has_error(events: bytes) -> bool:
    """Whether an error event is among these events. In a text, the second quote would be escaped."""
    return b'"error"' in events and any(begin in events for begin in _ERROR_EVENTS)


def count(ids: bytes) -> int:
    """How many ids stand between the brackets."""
    return ids.count(b",") + 1 if ids else 0


def with_usage(event: bytes, *, prompt_tokens: int, earlier_tokens: int) -> bytes:
    """The usage of the whole stream: the engine of a later leg takes the replayed output for prompt."""
    event = _PROMPT_TOKENS.sub(b'"prompt_tokens":%d' % prompt_tokens, event)
    event = _CACHED_TOKENS.sub(lambda found: b'"cached_tokens":%d' % min(prompt_tokens, int(found[1])), event)
    return _COMPLETION_TOKENS.sub(lambda found: b'"completion_tokens":%d' % (int(found[1]) + earlier_tokens), event)


def text_of(event: bytes) -> str:
    """The text that an event brings."""
    choice = choice_of(event)
    text = choice.get("text") or (choice.get("delta") or {}).get("content")
    return text if isinstance(text, str) else ""


def is_parsed(event: bytes) -> bool:
    """Whether a parser of reasoning or of tool calls has read the output."""
    delta = choice_of(event).get("delta") or {}
    return any(delta.get(key) for key in delta if key not in ("role", "content"))


def choice_of(event: bytes) -> JsonObject:
    """The first choice of an event; empty if it has none."""
    try:
        choices = json.loads(event[6:])["choices"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
