"""Streams held by their tokens: what the client sees, what the next engine is asked, and where a text may be cut."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast_gateway.proxy.bodies import Generation, read_generation
from ballast_gateway.proxy.fields import is_replayable
from ballast_gateway.proxy.held_stream import HeldStream

PROMPT = [5, 6, 7]
DONE = b"data: [DONE]\n\n"
ROLE = b'data: {"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""}}],"prompt_token_ids":[5]}\n\n'


def generation(chat: bool = False, **more: Any) -> Generation:
    body: dict[str, Any] = {"model": "tiny", "stream": True, "max_tokens": 20, **more}
    body |= {"messages": [{"role": "user", "content": "hi"}]} if chat else {"prompt": "abc"}
    return read_generation(json.dumps(body).encode(), chat=chat)


def event(
    text: str,
    ids: list[int] | None,
    *,
    head: str = "cmpl-1",
    prompt: list[int] | None = None,
    finish: str | None = None,
    usage: tuple[int, int] | None = None,
) -> bytes:
    """As vLLM writes it."""
    choice = {"index": 0, "text": text, "finish_reason": finish, "prompt_token_ids": prompt, "token_ids": ids}
    document: dict[str, Any] = {"id": head, "created": len(head), "model": "tiny", "choices": [choice]}
    if usage is not None:
        document["usage"] = {
            "prompt_tokens": usage[0],
            "total_tokens": sum(usage),
            "completion_tokens": usage[1],
            "prompt_tokens_details": {"cached_tokens": usage[0]},
        }
    return b"data: %b\n\n" % json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def fed(held: HeldStream, *events: bytes) -> list[dict[str, Any]]:
    shown = b"".join(held.feed(each) for each in events)
    return [json.loads(part[6:]) for part in shown.split(b"\n\n") if part.startswith(b"data: {")]


def begun(*texts: str, asked: bool = False) -> HeldStream:
    held = HeldStream(generation(return_token_ids=asked))
    for number, text in enumerate(texts):
        held.feed(event(text, [100 + number], prompt=PROMPT if number == 0 else None))
    return held


@given(cuts=st.lists(st.integers(0, 700), max_size=12))
def test_a_stream_looks_the_same_however_its_bytes_come(cuts: list[int]) -> None:
    """Ids are taken out, nothing else is touched, and texts that talk of token ids are left alone."""
    texts = ["a", 'say "token_ids":[1]', "ü", "b"]
    events = [event(text, [number], prompt=PROMPT if not number else None) for number, text in enumerate(texts)]
    whole = b"".join([*events, event("", [9], finish="length"), DONE])
    held, shown = HeldStream(generation()), b""
    edges = sorted({0, len(whole), *(min(cut, len(whole)) for cut in cuts)})
    for start, end in pairwise(edges):
        shown += held.feed(whole[start:end])
    plain = [event(text, None) for text in texts] + [event("", None, finish="length"), DONE]
    assert shown == b"".join(plain)
    assert held.ids() == [*PROMPT, 0, 1, 2, 3, 9]
    assert (held.tokens, held.finished, held.is_whole, held.may_go_on) == (5, True, True, False)


def test_the_next_engine_is_asked_for_the_rest() -> None:
    """Prompt and output as its prompt, and what the limits leave."""
    held = HeldStream(generation(min_tokens=10, vllm_xargs={"ballast_output_tokens": 15}, stop_token_ids=[3]))
    held.feed(event("a", [1], prompt=PROMPT) + event("bc", [2, 3]))
    asked = json.loads(held.continuation({"remote_port": 1}))
    assert asked == {
        "model": "tiny",
        "stream": True,
        "max_tokens": 17,
        "min_tokens": 7,
        "vllm_xargs": {"ballast_output_tokens": 12},
        "stop_token_ids": [3],
        "return_token_ids": True,
        "prompt": [*PROMPT, 1, 2, 3],
        "kv_transfer_params": {"remote_port": 1},
    }
    warm = json.loads(held.prefill(hold=False))
    assert (warm["prompt"], warm["max_tokens"], warm["stream"]) == ([*PROMPT, 1, 2, 3], 1, False)
    assert "kv_transfer_params" not in warm


def test_a_completion_without_a_limit_has_16_tokens_in_all() -> None:
    unlimited = generation()
    unlimited.document.pop("max_tokens")
    held = HeldStream(unlimited)
    held.feed(event("a", [1], prompt=PROMPT))
    assert json.loads(held.continuation())["max_tokens"] == 15


def test_later_legs_carry_the_names_and_the_counts_of_the_first() -> None:
    """The id, the time, and a usage that adds up."""
    held = begun("a", "b")
    held.begin_leg()
    (shown,) = fed(held, event("c", [7], head="cmpl-22", prompt=[*PROMPT, 100, 101], usage=(5, 1)))
    assert (shown["id"], shown["created"]) == ("cmpl-1", 6)
    assert shown["choices"][0]["prompt_token_ids"] is None
    assert shown["usage"] == {
        "prompt_tokens": 3,
        "total_tokens": 6,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 3},
    }


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (event("c", [7], prompt=[*PROMPT, 100]), "other tokens"),
        (event("c", [7]), "does not say"),
        (event("c" * 300, [7], prompt=[*PROMPT, 100, 101]), "repeats"),
        (event("c", None, prompt=[*PROMPT, 100, 101]), "no token ids"),
        (event("", [], prompt=[*PROMPT, 100, 101], finish="abort"), "aborted"),
        (b'data: {"error":{"message":"dead"}}\n\n', "error event"),
    ],
)
def test_a_leg_that_does_not_go_on_as_asked_is_broken(given: bytes, why: str) -> None:
    """Nothing of it is shown, and the tokens stay as they were."""
    held = begun("a", "b")
    held.begin_leg()
    assert held.feed(given) == b""
    assert why in held.leg.broken
    assert held.ids() == [*PROMPT, 100, 101]
    assert held.may_go_on
    assert held.rewind()


@pytest.mark.parametrize(
    ("texts", "events_back"),
    [(("a", "b"), 0), (("a", ""), 1), (("a", "b", "", ""), 2), (("a", "b\ufffd"), None), (("",), 1)],
)
def test_a_cut_is_where_a_character_ends(texts: tuple[str, ...], events_back: int | None) -> None:
    """vLLM holds the text of unfinished characters back; going on there repeats the prompt."""
    held = begun(*texts)
    assert held.at_boundary() is (events_back == 0)
    assert held.rewind() is (events_back is not None)
    assert held.tokens == len(texts) - (events_back or 0)
    if events_back is not None:
        assert held.at_boundary()


def test_a_client_that_sees_ids_is_not_taken_back() -> None:
    assert not begun("a", "", asked=True).rewind()
    assert begun("a", "b", asked=True).rewind()


def test_an_event_of_several_tokens_may_end_inside_of_a_character() -> None:
    """An engine has to say where, going back token by token, but over no more than a character has."""
    held = begun("a")
    held.feed(event("b", [7, 8, 9]))
    held.feed(event("", [10]))
    assert not held.at_boundary()
    assert held.rewind()
    assert held.unsure
    assert held.last_ids() == [100, 7, 8, 9, 10]
    assert [held.step_back() for _ in range(3)] == [True] * 3
    assert (held.last_ids(), held.tokens) == ([100, 7], 2)
    assert [held.step_back() for _ in range(2)] == [True, False]
    held.begin_leg()
    assert not held.unsure


def test_a_client_that_sees_ids_is_taken_back_over_none_of_several() -> None:
    held = begun("a", asked=True)
    held.feed(event("b", [8, 9]))
    assert held.rewind()
    assert not held.step_back()
    assert held.tokens == 3


def test_where_a_text_ends_in_what_is_no_character_nobody_asks() -> None:
    """U+FFFD may be the model's own: an engine could not tell."""
    held = begun("a")
    held.feed(event("b\ufffd", [8, 9]))
    assert not held.rewind()


@pytest.mark.parametrize(
    "first",
    [b'data: {"choices": [{"index": 0, "text": "a"}]}\n\n', event("a", None), b"data: x\r\n\r\ndata: y\r\n\r\n"],
    ids=["blanks", "no ids", "other line ends"],
)
def test_engines_that_give_no_ids_are_passed_on_byte_by_byte(first: bytes) -> None:
    held = HeldStream(generation())
    assert held.feed(first) == first
    assert held.lost
    assert not held.may_go_on


def test_reasoning_stays_where_it_is() -> None:
    """Its parser has a state. A text that says the word has none."""
    held = HeldStream(generation(chat=True))
    delta = b'data: {"id":"c","choices":[{"index":0,"delta":{%b},"finish_reason":null,"token_ids":[1]}]}\n\n'
    held.feed(ROLE)
    held.feed(delta % rb'"content":"\"reasoning\":"')
    assert held.may_go_on
    held.feed(delta % b'"reasoning":"hm"')
    assert not held.may_go_on


def shows(*deltas: dict[str, str]) -> HeldStream:
    """A chat of these, a token each."""
    held = HeldStream(generation(chat=True))
    held.feed(ROLE)
    for number, delta in enumerate(deltas):
        choice = {"index": 0, "delta": delta, "finish_reason": None, "token_ids": [number]}
        held.feed(b"data: %b\n\n" % json.dumps({"id": "c", "choices": [choice]}, separators=(",", ":")).encode())
    return held


@pytest.mark.parametrize(
    ("then", "may"),
    [("<div", False), ("\n\nSo", False), ("<\u6f22", False), ("\u6f22", True), (" \U0001f600", True)],
    ids=["a tag that was none", "blanks before a text", "a sign before a character", "a character", "an emoji"],
)
def test_a_chat_whose_parser_holds_text_back_stays_where_it_is(then: str, may: bool) -> None:
    """vLLM's show no content for such a token, nor for a part of a character where any parser reads along."""
    held = shows({"content": "a"}, {}, {}, {"content": then}, {"content": "b"})
    assert held.tokens == 5
    assert held.may_go_on is may
    assert shows({"content": "a"}, {"content": ""}, {"content": then}).may_go_on
    assert not held.unfit


def test_a_chat_is_cut_behind_a_letter_or_a_digit() -> None:
    """vLLM's parsers show the blank of a token ` <` and hold back the rest, which might begin a tag."""
    assert shows({"content": "if"}, {"content": " i"}).at_boundary()
    assert shows({"content": "a"}, {"content": "\u6f22"}).at_boundary()
    for text in (" ", "(", '">'):
        assert not shows({"content": "if"}, {"content": text}).at_boundary()
        assert begun("if", text).at_boundary()


@pytest.mark.parametrize(
    ("more", "may"),
    [
        ({}, True),
        ({"temperature": 0.7, "top_p": 0.9, "repetition_penalty": 1.1}, True),
        ({"seed": 1, "temperature": 0}, True),
        ({"seed": 1}, False),
        ({"presence_penalty": 0.0, "frequency_penalty": 0, "stop": [], "n": 1, "logprobs": None}, True),
        ({"presence_penalty": 0.5}, False),
        ({"frequency_penalty": -1}, False),
        ({"stop": ["x"]}, False),
        ({"logprobs": True}, False),
        ({"n": 2}, False),
        ({"stream": False}, True),
        ({"tools": [{"type": "function"}]}, False),
        ({"response_format": {"type": "json_object"}}, False),
        ({"response_format": {"type": "text"}}, True),
        ({"structured_outputs": {"regex": "a"}}, False),
        ({"something_new": 1}, False),
        ({"vllm_xargs": {"other": 1}}, False),
        ({"min_tokens": 3, "ignore_eos": True, "stop": None, "user": "me"}, True),
    ],
    ids=repr,
)
@pytest.mark.parametrize("chat", [False, True], ids=["completion", "chat"])
def test_only_what_is_known_to_survive_a_replay_is_replayed(chat: bool, more: dict[str, Any], may: bool) -> None:
    assert is_replayable(generation(chat, **more)) is may


@pytest.mark.parametrize("value", [0, False])
def test_the_same_value_asks_completions_for_logprobs_and_chats_for_none(value: object) -> None:
    """A number there, a switch here."""
    assert not is_replayable(generation(False, logprobs=value))
    assert is_replayable(generation(True, logprobs=value))


def test_images_and_open_ends_stay() -> None:
    """vLLM takes no ids beside media; a null limit means one thing here and another there."""
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}
    assert not is_replayable(_chat([image]))
    assert is_replayable(_chat([{"role": "user", "content": [{"type": "text", "text": "hi"}]}]))
    assert not is_replayable(generation(max_tokens=None))
    assert is_replayable(generation(True, max_tokens=None))


def _chat(messages: list[dict[str, Any]]) -> Generation:
    return read_generation(json.dumps({"model": "m", "stream": True, "messages": messages}).encode(), chat=True)


# --- bytes that no engine should send -------------------------------------------------------------------------------

PARTS = st.sampled_from(
    [
        *(
            b"data: ",
            b"data:",
            b"{",
            b"}",
            b"[",
            b"]",
            b'"choices":[',
            b'"choices":[]',
            b'"token_ids":[',
            b'"token_ids":null',
        ),
        *(
            b'"prompt_token_ids":[',
            b"5,6,7",
            b"100",
            b'"5"',
            b"-5",
            b"NaN",
            b"1e400",
            b"9" * 5000,
            b",",
            b"\n",
            b"\r\n",
        ),
        *(b"\n\n", b"\r\n\r\n", b": ping\n\n", DONE, b"id: 3\n", b"event: x\n", b'"finish_reason":"', b'stop"'),
        *(
            b'"delta":[]',
            b'"delta":{"role":"assistant"}',
            b'"reasoning":"x"',
            b'"usage":{',
            b'"prompt_tokens":',
            b"\xff\x00",
        ),
        *(b'{"error":{"message":"no"}}', b'"\\ud83d"', b"[" * 2000, b'"text":"x"', b'{"index":0,'),
        *(
            event("a", [100], prompt=PROMPT),
            event("b", [101]),
            event("c", [102], finish="stop"),
            event("", [], finish="abort"),
        ),
        event("b", [101])[:-20],
        event("x", [103], prompt=[*PROMPT, 100, 101]),
    ]
)


@given(
    chat=st.booleans(),
    unseen=st.booleans(),
    begun_with=st.integers(0, 2),
    data=st.lists(PARTS | st.binary(max_size=20)),
)
def test_whatever_comes_its_tokens_are_those_that_were_shown(
    chat: bool, unseen: bool, begun_with: int, data: list[bytes]
) -> None:
    """Nothing is raised, ids stay ids, and another engine is asked for what the client has not seen."""
    held = HeldStream(generation(chat, return_token_ids=True), unseen=unseen)
    shown = b""
    for number, text in enumerate("ab"[:begun_with]):
        shown += held.feed(event(text, [100 + number], prompt=PROMPT if number == 0 else None))
    for part in data:
        if held.lost or held.leg.broken:
            break
        shown += held.feed(part)
    if not (held.lost or held.leg.broken):
        shown += held.close()
    assert held.lost or shown.endswith(b"\n\n") or not shown
    assert not (held.lost and unseen)
    if held.lost:
        return
    ids = [number for found in re.findall(rb'"token_ids":\[([\d,]+)\]', shown) for number in found.split(b",")]
    assert held.tokens == len(ids)
    if held.may_go_on:
        assert [b"%d" % number for number in held.ids()[held.prompt_tokens :]] == [b"%d" % int(each) for each in ids]
        json.loads(held.continuation())
        json.loads(held.prefill(hold=True))
        held.rewind()


@pytest.mark.parametrize("begun", [False, True])
def test_an_event_without_an_end_is_given_up(begun: bool) -> None:
    """After 1 MiB; the first event may be longer by the prompt's ids."""
    held = HeldStream(generation())
    if begun:
        held.feed(event("a", [1], prompt=PROMPT))
    held.feed(b'data: {"id":')
    sent = 0
    while not held.leg.broken:
        assert held.feed(b"x" * 4096) == b""
        sent += 4096
        assert sent <= (1 << 20) + 8192
    assert "without an end" in held.leg.broken
    assert len(held.leg.partial) <= 1 << 20


def test_a_trickle_costs_as_much_as_its_bytes() -> None:
    """A long event byte by byte is joined once, not with every byte."""
    held = HeldStream(generation())
    ids = list(range(100_000, 130_000))
    given = event("a", [1], prompt=ids)
    parts = [given[at : at + 7] for at in range(0, len(given), 7)]
    shown = b"".join(held.feed(part) for part in parts)
    assert json.loads(shown[6:])["choices"][0]["text"] == "a"
    assert held.ids() == [*ids, 1]


def test_an_event_of_another_stream_is_none_of_this_one() -> None:
    """An engine that mixes its answers up."""
    held = begun("a")
    assert held.feed(event("b", [2], head="cmpl-other")) == b""
    assert "none of this stream's" in held.leg.broken
    assert held.tokens == 1


def test_the_last_event_may_end_with_the_answer() -> None:
    held = begun("a")
    held.feed(event("b", [2], finish="stop") + b"data: [DONE]")
    assert held.close() == DONE
    assert held.done


def test_what_one_engine_began_to_say_is_no_part_of_the_next_ones_stream() -> None:
    """Its first event was garbage after the prompt."""
    held = HeldStream(generation())
    held.begin_leg()
    assert held.feed(event("a", [1], prompt=PROMPT).replace(b'"token_ids":[1]', b'"token_ids":[1')) == b""
    assert held.leg.broken
    held.begin_leg()
    assert not held.leg.continues
    assert fed(held, event("x", [9], prompt=[8]))[0]["choices"][0]["text"] == "x"
    assert held.ids() == [8, 9]
