"""Mutations of engines' answers, each by a random generator: heads, framing, events, bodies and handles, bytes.

A mutation of parts leaves the numbered tokens as they are; it sets `lies` where it may say what is not so.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any

import httptools

from bench.reliability.fuzzing.answers import DONE, HANDLE, Reply

EVENTS = (
    b"data: {",
    b"data: ",
    b"data:",
    b"data: null",
    b"data: []",
    b"data: 5",
    b"data: {}",
    b'data: {"choices":[]}',
    b'data: {"choices":[null]}',
    b'data: {"choices":{}}',
    b'data: {"choices":null}',
    b'data: {"id":"1","choices":[{"index":0,"text":"","finish_reason":null,"prompt_token_ids":null,"token_ids":[5',
    b'data: {"id":"1","choices":[{"index":0,"text":"","finish_reason":null,"token_ids":[]}]}',
    b'data: {"id":"1","choices":[{"index":0,"text":"","finish_reason":null,"token_ids":null}]}',
    b'data: {"id":"1","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}',
    b'data: {"id":"1","choices":[{"index":0,"delta":null,"finish_reason":null}]}',
    b'data: {"id":"1","choices":[{"index":0,"delta":[],"text":7,"finish_reason":null}]}',
    b'data: {"id":"1","choices":[{"index":0,"text":"","prompt_token_ids":[5,6',
    b'data: {"id":"1","choices":[{"index":0,"text":"","prompt_token_ids":[]}]}',
    b'data: {"id":"1","choices":[{"index":9,"text":"","finish_reason":null}]}',
    b'data: {"id":"1","choices":[],"usage":{"prompt_tokens":-1,"completion_tokens":"x"}}',
    b'data: {"error":{"message":"no","type":"InternalServerError","code":500}}',
    b'data: {"error":"no"}',
    b'data: {"error":null}',
    b'{"object":"error","message":"no","code":500}',
    b"data: " + b"[" * 3000,
    b'data: {"choices":[' + b'{"a":' * 2000,
    b": a comment",
    b"event: ping",
    b"id: 7\nretry: 10\ndata: {}",
    b"data: \xff\xfe\x00",
    b"\x00",
    b"",
    b"\r\n\r\n",
    b"data: " + b"x" * 70_000,
    'data: {"choices":[{"index":0,"text":"\ud83d"}]}'.encode("utf-8", "surrogatepass"),
    b'data: {"choices":[{"index":0,"text":"\\ud83d","finish_reason":null,"token_ids":null}]}',
)
"""Events that no engine should send; none brings a token or an end."""
ENDS = (
    DONE,
    b'data: {"id":"1","choices":[{"index":0,"text":"","finish_reason":"stop","token_ids":[]}]}',
    b'data: {"id":"1","choices":[{"index":0,"text":"","finish_reason":"abort","token_ids":[]}]}',
    b'data: {"id":"1","choices":[{"index":0,"delta":{},"finish_reason":"length"}]}',
    b'data: {"id":"1","choices":[{"index":0,"text":"","finish_reason":"',
    b'data: {"id":"1","choices":[{"index":0,"text":"","finish_reason":null,"token_ids":[99999]}]}',
    b'data: {"id":"1","choices":[{"index":0,"delta":{"reasoning_content":"Hm"},"token_ids":[4]}]}',
    b'data: {"id":"1","choices":[{"index":0,"delta":{"tool_calls":[{"index":0}]},"token_ids":[4]}]}',
    b'data: {"id":"1","choices":[{"index":0,"text":"","finish_reason":null,"prompt_token_ids":[1,2],"token_ids":[4]}]}',
    b'data: {"id":"1","choices":[],"usage":{"prompt_tokens":3,"total_tokens":9,"completion_tokens":99999999999999999}}',
)
"""Events that say what is not so: an end, other tokens, other counts."""
STATUSES = (
    *(b"HTTP/1.1 %d X" % code for code in (100, 101, 103, 201, 202, 204, 206, 301, 304, 400, 401, 403, 404, 408, 409)),
    *(b"HTTP/1.1 %d X" % code for code in (413, 418, 422, 429, 499, 500, 501, 502, 503, 504, 599, 600, 999, 42, 0)),
    *(b"HTTP/1.0 200 OK", b"HTTP/2 200", b"HTTP/1.1 200", b"HTTP/1.1  200 OK", b"http/1.1 200 OK", b"ICY 200 OK"),
    *(
        b"HTTP/1.1 20x OK",
        b"HTTP/9.9 200 OK",
        b"",
        b"\x16\x03\x01\x02\x00",
        b"220 mail ready",
        b"HTTP/1.1 200 \xff\x00",
    ),
)
HEADERS = (
    b"content-length: 0",
    b"content-length: 5",
    b"content-length: 99999999999999999999",
    b"content-length: -1",
    b"content-length: 5, 5",
    b"content-length: 0x10",
    b"transfer-encoding: chunked",
    b"transfer-encoding: gzip, chunked",
    b"transfer-encoding: chunked, chunked",
    b"transfer-encoding: identity",
    b"Transfer-Encoding : chunked",
    b"content-encoding: gzip",
    b"connection: close",
    b"connection: upgrade\r\nupgrade: h2c",
    b"content-type: text/html",
    b"content-type: application/json",
    b"content-type: text/event-stream",
    b"retry-after: 1",
    b"retry-after: never",
    b"x-a: " + b"y" * 70_000,
    b" folded: yes",
    b"no colon",
    b": no name",
    b"x-\x00: zero",
    b"x-lf: a\nx-b: c",
    b"x-cr: a\rb",
    b"trailer: x-late",
    b"keep-alive: timeout=5",
    b"x-ballast-reason: internal-error",
    b"set-cookie: a=b\r\nset-cookie: c=d",
    b"endpoint-load-metrics: x",
)
HANDLE_BLOCKS: tuple[Any, ...] = ("x", [[[[]]]], list(range(5000)), [None])
HANDLES: tuple[Any, ...] = (
    *(None, [], {}, "x", 7, True, 1.5, [HANDLE], {"remote_block_ids": None}, {"do_remote_prefill": "yes"}),
    *({**HANDLE, "remote_num_tokens": n} for n in (-1, 0, 10**30, "3", None, 1.5)),
    *({**HANDLE, "remote_block_ids": ids} for ids in HANDLE_BLOCKS),
    {**HANDLE, "prompt_token_ids": [1, 2, 3]},
    {**HANDLE, "\ud800": "\ud800"},
    {"a": {"b": {"c": [{}] * 50}}},
)
BODIES = (
    *(b"", b"null", b"[]", b"5", b'"x"', b"{", b"{}", b'{"choices":null}', b'{"choices":[]}', b'{"choices":[null]}'),
    *(b'{"choices":[{}]}', b'{"choices":[{"text":null}],"usage":[]}', b'{"error":null}', b'{"object":"error"}'),
    *(b"[" * 100_000, b'{"a":' * 5000, b"\xff\xfe", b'{"usage":{"completion_tokens":-5},"choices":[{"text":"x"}]}'),
    *(b'{"choices":[{"text":"x"}],"usage":{"completion_tokens":1e400}}', b'{"kv_transfer_params":NaN}', b"<html>no"),
)
INSERTS = (
    *(b"\x00", b"\r", b"\n", b"\n\n", b"\r\n", b"\r\n\r\n", b'"', b"{", b"}", b"[", b"]", b",", b"data: "),
    b"0\r\n\r\n",
)


@dataclass(frozen=True, slots=True)
class Delivery:
    """How an answer comes: in these pieces, and then the connection stays, or is closed or reset."""

    pieces: tuple[bytes, ...]
    ends: str
    """"", "close" or "reset"."""


Mutation = Callable[[Reply, Random], None]


def insert_event(reply: Reply, rng: Random) -> None:
    """One that brings nothing, anywhere."""
    if reply.events is not None:
        reply.events.insert(rng.randrange(len(reply.events) + 1), rng.choice(EVENTS))


def insert_lie(reply: Reply, rng: Random) -> None:
    """An end, a count or ids that are not so."""
    if reply.events is not None:
        reply.events.insert(rng.randrange(len(reply.events) + 1), rng.choice(ENDS))
        reply.lies = True


def cut_tail(reply: Reply, rng: Random) -> None:
    """It ends too early, as if properly."""
    if reply.events:
        del reply.events[rng.randrange(len(reply.events)) :]
    else:
        reply.body = reply.body[: rng.randrange(len(reply.body) + 1)]
        reply.lies = True


def glue_events(reply: Reply, rng: Random) -> None:
    """The blank line between two events is missing."""
    if reply.events is not None and len(reply.events) > 1:
        at = rng.randrange(len(reply.events) - 1)
        reply.events[at : at + 2] = [reply.events[at] + rng.choice([b"", b"\n", b"\r\n"]) + reply.events[at + 1]]
        reply.lies = True


def break_event(reply: Reply, rng: Random) -> None:
    """An event breaks off."""
    if reply.events:
        at = rng.randrange(len(reply.events))
        reply.events[at] = reply.events[at][: rng.randrange(len(reply.events[at]) + 1)]
        reply.lies = True


def drop_ids(reply: Reply, rng: Random) -> None:
    """No token ids where they were asked for."""
    if reply.events is not None:
        names = [b'"token_ids":', b'"prompt_token_ids":', b'"choices":']
        old, new = rng.choice(names), rng.choice([b'"ids":', b'"x":null,"token_ids_":'])
        reply.events = [event.replace(old, new) for event in reply.events]
        reply.lies = True


def other_separator(reply: Reply, rng: Random) -> None:
    """Events are separated by CR LF CR LF, or have more lines."""
    if reply.events is not None:
        mark = rng.choice([b"\r\n", b"\nid: 1", b"\r"])
        reply.events = [event + mark for event in reply.events]
        reply.lies = True


def change_status(reply: Reply, rng: Random) -> None:
    reply.status = rng.choice(STATUSES)


def add_headers(reply: Reply, rng: Random) -> None:
    for _ in range(rng.randint(1, 3)):
        reply.headers.insert(rng.randrange(len(reply.headers) + 1), rng.choice(HEADERS))


def drop_headers(reply: Reply, rng: Random) -> None:
    del reply.headers[rng.randrange(len(reply.headers) + 1) :]


def change_handle(reply: Reply, rng: Random) -> None:
    """Another KV handle than a connector's; one that names other tokens lies."""
    if reply.events is None and b'"kv_transfer_params"' in reply.body:
        with suppress(ValueError):  # it was cut off before
            document = json.loads(reply.body)
            handle = document["kv_transfer_params"] = rng.choice(HANDLES)
            reply.lies = reply.lies or (isinstance(handle, dict) and "prompt_token_ids" in handle)
            reply.body = json.dumps(document).encode()


def change_body(reply: Reply, rng: Random) -> None:
    """Another body than a completion's."""
    if reply.events is None:
        reply.body = rng.choice(BODIES)
        reply.lies = True


OF_PARTS: tuple[Mutation, ...] = (
    *(insert_event, insert_event, insert_lie, cut_tail, glue_events, break_event, drop_ids, other_separator),
    *(change_status, add_headers, drop_headers, change_handle, change_body),
)
"""What is done to the parts of an answer."""


def delivered(reply: Reply, rng: Random, *, mutate: bool) -> Delivery:
    """The answer's bytes: framed, mutated once more as bytes, and cut into reads."""
    data, ends = _framed(reply, rng, mutate=mutate and rng.random() < 0.35)
    if mutate and rng.random() < 0.25:
        data = _bytes_changed(data, rng)
        reply.raw = True
    if mutate and rng.random() < 0.3:
        data, ends = data[: rng.randrange(len(data) + 1)], rng.choice(["close", "reset"])
    if mutate and not ends and not _is_whole(data):
        ends = rng.choice(["close", "reset"])  # an engine that is silent is another matter
    return Delivery(_pieces(data, rng), ends)


def _framed(reply: Reply, rng: Random, *, mutate: bool) -> tuple[bytes, str]:
    events = reply.events
    parts = [reply.body] if events is None else [event + b"\n\n" for event in events]
    framing = rng.choice(["chunked", "length", "close"]) if mutate else "chunked" if events is not None else "length"
    body, ends, headers = b"".join(parts), "", list(reply.headers)
    if framing == "chunked":
        headers.append(b"transfer-encoding: chunked")
        body = b"".join(_chunk(part, rng, mutate=mutate) for part in parts if part)
        body += rng.choice([b"0\r\n\r\n", b"0\r\nx-late: 1\r\n\r\n", b"0;a=b\r\n\r\n"]) if mutate else b"0\r\n\r\n"
    elif framing == "length":
        off = rng.choice([0, 0, 0, 1, -1, 16, -16]) if mutate else 0
        headers.append(b"content-length: %d" % max(0, len(body) + off))
        ends = "close" if off else ""
    else:
        ends = "close"
    if mutate and rng.random() < 0.2:
        body += rng.choice([b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", b"\r\n", b"x", b"\x00" * 9])
    before = b"HTTP/1.1 100 Continue\r\n\r\n" if mutate and rng.random() < 0.05 else b""
    return before + b"\r\n".join([reply.status, *headers, b"", b""]) + body, ends


def _chunk(part: bytes, rng: Random, *, mutate: bool) -> bytes:
    size = b"%x" % len(part)
    if mutate and rng.random() < 0.05:
        size = rng.choice(
            [b"zz", b"", b"-1", b"0x5", b"ffffffffffffffffff", b"%x;ext=1" % len(part), b"00%x" % len(part)]
        )
    return b"%b\r\n%b\r\n" % (size, part)


def _bytes_changed(data: bytes, rng: Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        if not changed:
            break
        at = rng.randrange(len(changed))
        match rng.randrange(4):
            case 0:
                changed[at] = rng.randrange(256)
            case 1:
                del changed[at : at + rng.randint(1, 20)]
            case 2:
                changed[at:at] = changed[at : at + rng.randint(1, 60)]
            case _:
                changed[at:at] = rng.choice(INSERTS)
    return bytes(changed)


class _Ends:
    """Whether an answer comes to its end."""

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.whole = False

    def on_message_complete(self) -> None:
        self.whole = self.whole or self.parser.get_status_code() >= 200


def _is_whole(data: bytes) -> bool:
    ends = _Ends()
    try:
        ends.parser.feed_data(data)
    except (httptools.HttpParserError, httptools.HttpParserUpgrade):
        return False
    return ends.whole


def _pieces(data: bytes, rng: Random) -> tuple[bytes, ...]:
    if len(data) > 20_000 or rng.random() < 0.3:
        return (data,) if data else ()
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.choice([1, 3, 12])))
    return tuple(data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) if a < b)
