"""Hostile bytes against the code that reads requests, in this process: HTTP heads, framing, chunks and bodies.

Requests are made by a seeded generator, damaged, and fed in pieces that end anywhere. A million take some minutes.
What must hold:

1. Nothing is raised but the refusals that clients are answered with.
2. What is accepted does not depend on where the pieces end, and h11 reads the same request where it reads one.
3. An accepted body is what a strict reader (`json`, and no name twice in an object) reads in it.
4. What engines get for it, with and without a hand-off, is what was decided on.
5. Counted values are never fewer than there are, so memory is bounded by them; time is bounded by the bytes.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import h11

from ballast_gateway.http.requests import HttpRequest, RequestReader
from ballast_gateway.openai_body import InvalidBody, parse_object
from ballast_gateway.proxy.bodies import read_generation
from ballast_gateway.strict_json import measure
from bench.reliability.kit.lab import Lab
from bench.reliability.kit.tally import Row

MAX_HEADER_BYTES, MAX_BODY_BYTES, MAX_TEXT_BYTES = 1024, 4096, 2048
LONGEST_S, LONGEST_S_PER_BYTE = 0.25, 20e-6
"""Processor time for an input: far above what it takes, far below what a client could wish for."""

NAMES = (
    "model",
    "prompt",
    "messages",
    "stream",
    "max_tokens",
    "n",
    "temperature",
    "a",
    "",
    "mod\\u0065l",
    "x:y",
    "\\u003a",
)
SCALARS = (
    *("null", "true", "false", "0", "-0", "1", "16", "1.0", "-1.5e3", "1e999", "18446744073709551616", "9" * 30, "01"),
    *(
        '""',
        '"tiny"',
        '"a,b:[{"',
        '"\\""',
        '"\\\\"',
        '"\\u003a"',
        '"\\ud800"',
        '"\\ud83d\\ude00"',
        '"\u00e9\u4e2d"',
        '"true"',
    ),
    *("NaN", "-Infinity", '"user"', '"image_url"', "\x00", '"\t"', "'a'", "+1", ".5", "1.", '"unended'),
)
BLANKS = ("", "", "", " ", "\n", "\t ", "\x0b", "\ufeff")
HEADERS = (
    *(
        "content-type: application/json",
        "Transfer-Encoding: chunked",
        "transfer-encoding: gzip, chunked",
        "Connection: close",
    ),
    *("content-length: 5", "Content-Length: 0", "content-length: +5", "expect: 100-continue", "content-encoding: gzip"),
    *(
        "host: other",
        "connection: upgrade",
        "upgrade: h2c",
        "x-a: b\r\n c",
        "x-a : b",
        "x\x00: b",
        "te: trailers",
        "a" * 300 + ": b",
    ),
)
TOKENS = (
    b"\r\n",
    b"\n",
    b"\r",
    b"0\r\n\r\n",
    b"\x00",
    b"\xff",
    b":",
    b",",
    b'"',
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b"chunked",
    b" ",
    b"5\r\n",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Of the command line."""
    parser.add_argument("--inputs", type=int, default=20_000, help="requests to make; half of them as bodies alone")


async def run(lab: Lab) -> list[Row]:
    """A row for bodies, and one for whole requests."""
    inputs = lab.options.inputs
    return [fuzz(case, inputs // 2, lab.options.seed) for case in lab.cases(*CASES)]


def fuzz(case: str, inputs: int, seed: int) -> Row:
    """Try so many inputs, each its own by the seed and its number."""
    attempt, refused, found = CASES[case], Counter[str](), Counter[str]()
    longest_s, slowest = 0.0, 0.0
    accepted = 0
    for number in range(inputs):
        rng = random.Random(f"{seed}/{case}/{number}")
        begin_s = time.thread_time()
        try:
            size, verdict = attempt(rng)
        except Exception as error:
            found[f"input {number}: {type(error).__name__}: {str(error)[:200]}"] += 1
            continue
        took_s = time.thread_time() - begin_s
        longest_s, slowest = max(longest_s, took_s), max(slowest, took_s / (size + 200))
        if took_s > LONGEST_S + size * LONGEST_S_PER_BYTE:
            found[f"input {number}: {took_s:.3f} s for {size} bytes"] += 1
        if verdict:
            refused[verdict] += 1
        else:
            accepted += 1
    notes = {"longest": f"{1e3 * longest_s:.1f} ms", "most for a byte": f"{1e6 * slowest:.2f} us"}
    return Row(
        case,
        requests=inputs,
        whole=accepted,
        broken=0,
        wrong=sum(found.values()),
        stuck=0,
        refused=dict(refused),
        reasons=dict(found.most_common(20)),
        notes=dict(notes),
        failed=f"{sum(found.values())} inputs broke a promise" if found else "",
    )


# --- bodies -----------------------------------------------------------------------------------------------------------


def _value(rng: random.Random, depth: int) -> str:
    kind = rng.random()
    if depth == 0 or kind < 0.6:
        return rng.choice(SCALARS[:13] if rng.random() < 0.5 else SCALARS)
    blank = rng.choice(BLANKS[:6])
    count = rng.randrange(4)
    if kind < 0.8:
        return f"[{blank}{f',{blank}'.join(_value(rng, depth - 1) for _ in range(count))}]"
    return _object(rng, [rng.choice(NAMES) for _ in range(count)], depth)


def _object(rng: random.Random, names: Sequence[str], depth: int) -> str:
    blank = rng.choice(BLANKS[:6])
    return "{" + ",".join(f'{blank}"{name}"{blank}:{blank}{_value(rng, depth - 1)}' for name in names) + blank + "}"


def body(rng: random.Random) -> bytes:
    """A body: sometimes a good one, mostly nearly."""
    good = [
        '"model":"tiny"',
        rng.choice(('"prompt":"a:b"', '"prompt":[1,2]', '"messages":[{"role":"user","content":"x"}]')),
    ]
    more = [f'"{rng.choice(NAMES)}":{_value(rng, 4)}' for _ in range(rng.randrange(4))]
    fields = good + more
    rng.shuffle(fields)
    text = "{" + rng.choice((",", ", ")).join(fields) + "}" if rng.random() < 0.9 else _value(rng, 5)
    if rng.random() < 0.02:
        text = "[" * (deep := rng.randrange(400)) + text + "]" * deep
    raw = text.encode(
        rng.choice(("utf-16", "utf-8-sig", "utf-32-le")) if rng.random() < 0.03 else "utf-8", "surrogatepass"
    )
    return damaged(rng, raw) if rng.random() < 0.3 else raw


def damaged(rng: random.Random, raw: bytes) -> bytes:
    """Some bytes taken out, put in, doubled or changed."""
    for _ in range(rng.randrange(1, 4)):
        at, to = sorted(rng.randrange(len(raw) + 1) for _ in range(2))
        match rng.randrange(4):
            case 0:
                raw = raw[:at] + raw[min(to, at + 4) :]
            case 1:
                raw = raw[:at] + rng.choice(TOKENS) + raw[at:]
            case 2:
                raw = raw[:to] + raw[at:to] + raw[to:]
            case _:
                raw = raw[:at] + bytes([rng.randrange(256)]) + raw[at + 1 :]
    return raw


def strictly(raw: bytes) -> Any:
    """The reference. Raises ValueError, which `json`'s and Unicode's errors are, or RecursionError."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({name for name, _ in pairs}) < len(pairs):
            raise ValueError("a name stands twice")
        return dict(pairs)

    return json.loads(raw.decode(json.detect_encoding(raw)), object_pairs_hook=once)


def _read(raw: bytes) -> str:
    """Read a body as the gateway does. Returns why it is refused, or an empty text; raises where a promise broke."""
    try:
        document = parse_object(raw)
    except InvalidBody:
        return "400"
    if document != strictly(raw):
        raise AssertionError("the reference reads another body")
    if _values(document) > measure(json.dumps(document).encode()).work:
        raise AssertionError("more values than were counted")
    verdicts = [_forward(raw, chat) for chat in (False, True)]
    return "" if "" in verdicts else "400, by its fields"


def _forward(raw: bytes, chat: bool) -> str:
    try:
        generation = read_generation(raw, chat=chat)
    except InvalidBody:
        return "400"
    handle = {"remote_host": "h", "remote_block_ids": [1]}
    if strictly(generation.decode_body(None)) != generation.document:
        raise AssertionError("an engine gets another body")
    if strictly(generation.decode_body(handle)) != {**generation.document, "kv_transfer_params": handle}:
        raise AssertionError("an engine gets another body with a handle")
    prefill = strictly(generation.prefill_body())
    asked = ("model", "messages" if chat else "prompt")
    if any(prefill[name] != generation.document.get(name) for name in asked if name in generation.document):
        raise AssertionError("a prefill engine gets another prompt")
    return ""


def _values(value: object) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(_values(each) for each in inner)


def try_body(rng: random.Random) -> tuple[int, str]:
    """One body; its size, and why it is refused."""
    raw = body(rng)
    return len(raw), _read(raw)


# --- whole requests ---------------------------------------------------------------------------------------------------


def request(rng: random.Random) -> bytes:
    """One request, or two in a row."""
    raw = b"".join(_one(rng) for _ in range(rng.choice((1, 1, 2))))
    return damaged(rng, raw) if rng.random() < 0.4 else raw


def _one(rng: random.Random) -> bytes:
    content = body(rng) if rng.random() < 0.8 else b"x" * rng.choice((0, 1, 2047, 2049, 4097))
    lines = [
        rng.choice(
            ("POST /v1/completions HTTP/1.1",) * 6 + ("GET /v1/models HTTP/1.1", "POST / HTTP/1.0", "PRI * HTTP/2.0")
        )
    ]
    lines += ["Host: g"] * (rng.random() < 0.95)
    lines += rng.sample(HEADERS, rng.choice((0, 0, 0, 1, 1, 2)))
    if rng.random() < 0.5:
        lines.append(f"Content-Length: {len(content) if rng.random() < 0.9 else rng.randrange(10_000)}")
    else:
        lines.append("transfer-encoding: chunked")
        content = _chunked(rng, content)
    rng.shuffle(tail := lines[1:])
    return "\r\n".join([lines[0], *tail, "", ""]).encode("utf-8", "surrogatepass") + content


def _chunked(rng: random.Random, content: bytes) -> bytes:
    chunks = []
    while content:
        size = rng.choice((1, 3, 50, 5_000))
        part, content = content[:size], content[size:]
        extension = rng.choice((b"", b"", b"", b";a=b", b" "))
        chunks.append(b"%x%b\r\n%b\r\n" % (len(part), extension, part))
    return b"".join(chunks) + rng.choice((b"0\r\n\r\n",) * 8 + (b"0\r\nx-trailer: a\r\n\r\n", b"0\r\n", b""))


def try_request(rng: random.Random) -> tuple[int, str]:
    """One connection's bytes; their number, and why what is not read is refused."""
    raw = request(rng)
    cuts = sorted(rng.randrange(len(raw) + 1) for _ in range(rng.randrange(4)))
    pieces = [raw[start:end] for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    whole, parted = _fed([raw]), _fed(pieces)
    ours, theirs = list(whole.requests), list(parted.requests)
    common = min(len(ours), len(theirs))
    if ours[:common] != theirs[:common] or (whole.error is None and parted.error is None and ours != theirs):
        raise AssertionError("it matters where pieces end")
    for each in ours:
        if len(each.body) > MAX_BODY_BYTES or (len(each.body) > MAX_TEXT_BYTES and b'_url"' not in each.body):
            raise AssertionError("a body beyond the limit")
        _read(each.body)
    if ours:
        _compare(raw, ours[0])
    return len(raw), "" if whole.error is None and ours else str(whole.error.status) if whole.error else "not whole"


def _fed(pieces: Sequence[bytes]) -> RequestReader:
    reader = RequestReader(
        max_header_bytes=MAX_HEADER_BYTES, max_body_bytes=MAX_BODY_BYTES, max_text_body_bytes=MAX_TEXT_BYTES
    )
    for piece in pieces:
        if piece:
            reader.feed(piece)
    return reader


def _compare(raw: bytes, ours: HttpRequest) -> None:
    """With h11, where it accepts the first request: readers that differ in it could be played against each other."""
    connection = h11.Connection(h11.SERVER)
    try:
        connection.receive_data(raw)
        head = connection.next_event()
        content = b""
        while isinstance(event := connection.next_event(), h11.Data):
            content += event.data
    except h11.RemoteProtocolError:
        return
    if not isinstance(head, h11.Request) or not isinstance(event, h11.EndOfMessage):
        return
    if (ours.method, ours.target, ours.body) != (head.method, head.target, content):
        raise AssertionError("h11 reads another request")


CASES: dict[str, Callable[[random.Random], tuple[int, str]]] = {"bodies": try_body, "requests": try_request}
