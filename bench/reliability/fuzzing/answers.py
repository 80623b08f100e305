"""What an honest engine answers, before it is mutated: numbered tokens, so that a lost or doubled one shows."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

PROMPT = [5, 6, 7]
FIRST_ID = 1000
HANDLE = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_engine_id": "engine-1",
    "remote_block_ids": [[1, 2, 3]],
    "remote_host": "127.0.0.1",
    "remote_port": 5600,
    "remote_request_id": "cmpl-x",
}
TEXT = re.compile(rb"<(\d+)>")
DONE = b"data: [DONE]"


class WrongIds(Exception):
    """An engine was given other tokens than the client has seen."""


@dataclass(slots=True)
class Reply:
    """One answer, in parts that mutations can change: the head's lines, and events or one body."""

    status: bytes = b"HTTP/1.1 200 OK"
    headers: list[bytes] = field(default_factory=list)
    events: list[bytes] | None = None
    """Of a stream, without the blank lines between them."""
    body: bytes = b""
    """Of an answer that is no stream."""
    lies: bool = False
    """It may say what is not so: how many tokens there are, or that it is at its end."""
    raw: bool = False
    """It was changed byte by byte: nothing that it says need be so."""


def shown(data: bytes) -> list[int]:
    """The numbers of the tokens in an answer, in order."""
    return [int(number) for number in TEXT.findall(data)]


def given_ids(document: dict[str, Any], *, chat: bool) -> list[int]:
    """The tokens that an engine is given: prompt and output so far. Raises `WrongIds`."""
    if chat:
        given = (document.get("kv_transfer_params") or {}).get("prompt_token_ids", PROMPT)
    else:
        given = document["prompt"] if isinstance(document["prompt"], list) else PROMPT
    if given != PROMPT + [FIRST_ID + number for number in range(len(given) - len(PROMPT))]:
        raise WrongIds(f"an engine was given {given}")
    return list(given)


def reply_to(document: dict[str, Any], *, chat: bool, tokens: int, ids: list[int]) -> Reply:
    """The answer to a request whose whole output has so many tokens, where so many ids are there already."""
    done = len(ids) - len(PROMPT)
    if document.get("stream"):
        return _stream(document, chat=chat, tokens=tokens, ids=ids, done=done)
    last = min(tokens, done + int(document.get("max_tokens") or document.get("max_completion_tokens") or tokens))
    text = "".join(f"<{number}>" for number in range(done, last))
    choice: dict[str, Any] = {"index": 0, "finish_reason": "length", "prompt_token_ids": None if chat else ids}
    choice |= {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    body: dict[str, Any] = {"id": "1", "object": "x", "created": 1, "model": "tiny", "choices": [choice]}
    body["usage"] = {
        "prompt_tokens": len(ids),
        "completion_tokens": last - done,
        "total_tokens": len(ids) + last - done,
    }
    if document.get("return_token_ids"):
        choice["token_ids"] = [FIRST_ID + number for number in range(done, last)]
        body |= {"prompt_token_ids": ids} if chat else {}
    if (document.get("kv_transfer_params") or {}).get("do_remote_decode"):
        body["kv_transfer_params"] = HANDLE | {"remote_num_tokens": len(ids)}
    return Reply(headers=[b"content-type: application/json"], body=json.dumps(body).encode())


def _stream(document: dict[str, Any], *, chat: bool, tokens: int, ids: list[int], done: int) -> Reply:
    front = '{"id":"1","object":"x","created":1,"model":"tiny","choices":['
    wants = bool(document.get("return_token_ids"))
    prompt = json.dumps(ids, separators=(",", ":")) if wants else "null"
    events: list[str] = []
    if chat:
        role = '{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}'
        events.append(f'data: {front}{role}],"prompt_token_ids":{prompt}}}')
    for number in range(done, tokens):
        reason = '"length"' if number == tokens - 1 else "null"
        said = f'"delta":{{"content":"<{number}>"}}' if chat else f'"text":"<{number}>"'
        named = f"[{FIRST_ID + number}]" if wants else "null"
        first = f'"prompt_token_ids":{prompt if number == done else "null"},' if not chat else ""
        events.append(f'data: {front}{{"index":0,{said},"finish_reason":{reason},{first}"token_ids":{named}}}]}}')
    if (document.get("stream_options") or {}).get("include_usage"):
        usage = {
            "prompt_tokens": len(ids),
            "total_tokens": len(ids) + tokens - done,
            "completion_tokens": tokens - done,
        }
        events.append(f'data: {front}],"usage":{json.dumps(usage, separators=(",", ":"))}}}')
    return Reply(
        headers=[b"content-type: text/event-stream; charset=utf-8"],
        events=[*(event.encode() for event in events), DONE],
    )


def _usage(prompt: int, output: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output}
