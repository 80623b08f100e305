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
CR_SEPARATOR: Final = b"\r\n\r\n"
"""Between events too (WHATWG, server-sent events). vLLM never writes it, and JSON holds no raw line end."""
DONE: Final = b"data: [DONE]"
CHOICES: Final = b'"choices":['
NO_CHOICES: Final = b'"choices":[]'
IDS: Final = b'"token_ids":['
PROMPT_IDS: Final = b'"prompt_token_ids":['
NO_DELTA: Final = b'"delta":{}'
"""Of a chat's event that shows nothing of its tokens yet. Without a parser vLLM gives a content, empty or not."""
FINISHED: Final = b'"finish_reason":"'
ABORTED: Final = b'"finish_reason":"abort"'
_ABORTED: Final = re.compile(rb'"finish_reason"\s*:\s*"abort"')
_ERROR_EVENTS: Final = (b'data: {"error":', b'data: {"object":"error"')
"""How vLLM's error events begin, those of today and those of before."""
USAGE: Final = b'"usage":{'
_FIELDS: Final = (b"data:", b"event:", b"id:", b"retry:", b":")
MOST_DIGITS: Final = 18
"""Of a token id; more would be no integer of 64 bits."""
_IDS: Final = re.compile(rb"\d{1,%d}(?:,\d{1,%d})*" % (MOST_DIGITS, MOST_DIGITS))
_PROMPT_TOKENS: Final = re.compile(rb'"prompt_tokens":\d{1,15}')
_COMPLETION_TOKENS: Final = re.compile(rb'"completion_tokens":(\d{1,15})')
_CACHED_TOKENS: Final = re.compile(rb'"cached_tokens":(\d{1,15})')


def are_ids(ids: bytes) -> bool:
    """Whether this is a list of token ids as vLLM writes it, empty or not: whole numbers, commas, nothing else."""
    return not ids or (ids.isdigit() and len(ids) <= MOST_DIGITS) or _IDS.fullmatch(ids) is not None


def has_error(events: bytes) -> bool:
    """Whether an error event is among these events. In a text, the second quote would be escaped."""
    return b'"error"' in events and any(begin in events for begin in _ERROR_EVENTS)


def are_comments(data: bytes) -> bool:
    """Whether it holds comments alone, whole ones, such as vLLM's `: keep-alive` (`--sse-keep-alive-interval`).

    The API server sends them while the engine computes, and while it hangs: they say nothing of it.
    """
    return (
        data.startswith(b":")
        and data.endswith(SEPARATOR)
        and all(line[:1] in (b"", b":") for line in data.split(b"\n"))
    )


def is_aborted(answer: bytes) -> bool:
    """Whether an engine has aborted the work: vLLM answers 200 then, with what there was (`/pause`, its own end).

    `answer`: events, or a whole one.
    """
    return b'"abort"' in answer and _ABORTED.search(answer) is not None


def count(ids: bytes) -> int:
    """How many ids stand between the brackets."""
    return ids.count(b",") + 1 if ids else 0


def ids_of(event: bytes) -> bytes:
    """What stands between the brackets of its token ids; empty without."""
    start = event.find(IDS)
    return event[start + len(IDS) : event.find(b"]", start)] if start >= 0 else b""


def with_usage(event: bytes, *, prompt_tokens: int, earlier_tokens: int) -> bytes:
    """The usage of the whole stream: the engine of a later leg takes the replayed output for prompt."""
    event = _PROMPT_TOKENS.sub(b'"prompt_tokens":%d' % prompt_tokens, event)
    event = _CACHED_TOKENS.sub(lambda found: b'"cached_tokens":%d' % min(prompt_tokens, int(found[1])), event)
    return _COMPLETION_TOKENS.sub(lambda found: b'"completion_tokens":%d' % (int(found[1]) + earlier_tokens), event)


def text_of(event: bytes) -> str:
    """The text that an event brings."""
    choice = choice_of(event)
    text = choice.get("text") or _delta_of(choice).get("content")
    return text if isinstance(text, str) else ""


def is_parsed(event: bytes) -> bool:
    """Whether a parser of reasoning or of tool calls has read the output."""
    delta = _delta_of(choice_of(event))
    return any(delta.get(key) for key in delta if key not in ("role", "content"))


def choice_of(event: bytes) -> JsonObject:
    """The first choice of an event; empty if it has none."""
    try:
        choices = json.loads(event[6:])["choices"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}


def _delta_of(choice: JsonObject) -> JsonObject:
    delta = choice.get("delta")
    return delta if isinstance(delta, dict) else {}


def is_well_formed(event: bytes) -> bool:
    """Whether these are lines of server-sent events, with a whole object if it is JSON that they bring."""
    lines = event.splitlines()
    if not all(line.startswith(_FIELDS) for line in lines):
        return False
    payload = b"".join(line[5:] for line in lines if line.startswith(b"data:")).strip()
    if not payload.startswith(b"{"):
        return True
    try:
        json.loads(payload)
    except (ValueError, RecursionError):
        return False
    return True
