"""The meter counts the tokens of a stream however its bytes are cut."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast_gateway.proxy.sse import TokenMeter, completion_tokens, has_token


def event(**choice: object) -> bytes:
    return b"data: %b\n\n" % json.dumps({"choices": [{"index": 0, **choice}]}).encode()


ROLE = event(delta={"role": "assistant", "content": ""})
DONE = b"data: [DONE]\n\n"
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":42,"total_tokens":51}}\n\n'
CHAT = [ROLE, *[event(delta={"content": text}) for text in ("a", "\n\n", "data: x")], DONE]


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[a:b] for a, b in pairwise(edges)]


@given(st.lists(st.integers(min_value=0), max_size=30), st.booleans(), st.sampled_from([b"\n\n", b"\r\n\r\n"]))
def test_any_cut_gives_the_same_count(places: list[int], usage: bool, separator: bytes) -> None:
    """Three tokens by events, or what the usage says; blank lines inside of JSON are escapes and do not count."""
    events = CHAT[:-1] + ([USAGE] if usage else []) + [DONE]
    stream = b"".join(events).replace(b"\n\n", separator)
    meter = TokenMeter()
    for part in cut(stream, places):
        meter.feed(part)
    assert meter.tokens == (42 if usage else 3)
    assert meter.started
    assert meter.between_events


def test_usages_of_one_choice_are_not_taken_for_that_of_all() -> None:
    """vLLM's `continuous_usage_stats`: whoever leaves before the last event has had the tokens of every choice."""
    meter = TokenMeter(choices=3)
    for number in (1, 2):
        for index in range(3):
            usage = {"prompt_tokens": 9, "completion_tokens": number, "total_tokens": 9 + number}
            choices = [{"index": index, "text": "a", "finish_reason": None}]
            meter.feed(b"data: %b\n\n" % json.dumps({"choices": choices, "usage": usage}).encode())
    assert meter.tokens == 6
    meter.feed(USAGE + DONE)
    assert meter.tokens == 42


@given(st.lists(st.binary(max_size=50), max_size=10))
def test_any_bytes_are_taken(parts: list[bytes]) -> None:
    """An engine that streams something else is no reason to fail."""
    meter = TokenMeter()
    for part in parts:
        meter.feed(part)
    assert meter.tokens >= 0


def test_a_role_alone_is_no_first_token() -> None:
    """TTFT is the time to a token, not to the head of a message."""
    meter = TokenMeter()
    meter.feed(ROLE + b": a comment\n\n")
    assert not meter.started
    meter.feed(event(delta={"content": "x"}))
    assert (meter.started, meter.tokens) == (True, 1)


def test_a_cut_event_is_seen() -> None:
    """So that an error event is put in only where it can be read."""
    meter = TokenMeter()
    meter.feed(event(text="a") + b'data: {"cho')
    assert not meter.between_events


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (event(text="a"), True),
        (event(text=""), False),
        (event(text="", finish_reason="stop"), True),
        (event(text="", token_ids=[5]), True),
        (event(delta={"reasoning_content": "hm"}), True),
        (event(delta={"tool_calls": [{"index": 0}]}), True),
        (event(delta={"role": "assistant"}), False),
        (USAGE, False),
        (DONE, False),
        (b": ping\n\n", False),
        (b"data: {broken\n\n", False),
        (b"data: 7\n\n", False),
    ],
)
def test_what_counts_as_output(data: bytes, expected: bool) -> None:
    """Text, token ids, reasoning, tool calls and an end; not a role, not a comment."""
    assert has_token(data.strip()) is expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [(b'{"usage":{"completion_tokens": 7}}', 7), (b'{"choices":[]}', 0), (b'{"text":"\\"completion_tokens\\":9"}', 0)],
)
def test_the_usage_of_a_whole_answer(body: bytes, expected: int) -> None:
    """Quotes inside of a text are escaped, so text cannot pose as usage."""
    assert completion_tokens(body) == expected


@given(
    parts=st.lists(
        st.sampled_from(
            [
                b"data: ",
                b'{"choices":[{"text":"a"}]}',
                b"\n",
                b"\r\n",
                b"[DONE]",
                b"[",
                b"\xff",
                b'{"usage":{"completion_tokens":3}}',
                b'{"usage":{"completion_tokens":' + b"9" * 40,
            ]
        )
        | st.binary(max_size=8)
    )
)
def test_whatever_comes_is_counted_alike_however_it_is_cut(parts: list[bytes]) -> None:
    """Nothing is raised."""
    meter, byte_by_byte = TokenMeter(), TokenMeter()
    for part in parts:
        meter.feed(part)
        for at in range(len(part)):
            byte_by_byte.feed(part[at : at + 1])
    assert meter.tokens >= 0
    assert (meter.tokens, meter.started) == (byte_by_byte.tokens, byte_by_byte.started)


def test_an_event_without_an_end_takes_bounded_memory() -> None:
    meter = TokenMeter()
    for _ in range(1000):
        meter.feed(b"x" * 16384)
    assert len(meter._partial) <= 2 << 20
