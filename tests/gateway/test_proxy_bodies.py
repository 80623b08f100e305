"""Bodies: malformed ones are the client's fault, named field by field; good ones reach the two legs as they should."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast_gateway.openai_body import InvalidBody
from ballast_gateway.proxy.bodies import read_generation
from tests.support.gateway_kit import RunningGateway, assert_openai_error, post, raw_exchange, running_gateway
from tests.support.scripted_engine import HANDLE, decode_script, scripted_engine

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
OK = {"model": "tiny", "prompt": "hello"}
OK_CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}

BAD: dict[str, tuple[str, object, str | None]] = {
    "nothing": (COMPLETIONS, b"", None),
    "no JSON": (COMPLETIONS, b"prompt=hello", None),
    "cut JSON": (COMPLETIONS, b'{"model":"tiny","prompt":"hel', None),
    "two documents": (COMPLETIONS, b'{"model":"tiny","prompt":"a"}{}', None),
    "a trailing comma": (COMPLETIONS, b'{"model":"tiny","prompt":"a",}', None),
    "no UTF-8": (COMPLETIONS, b'{"model":"tiny","prompt":"\xff\xfe"}', None),
    "nested too deeply": (COMPLETIONS, b'{"model":"tiny","prompt":' + b"[" * 200_000, None),
    "an integer of thousands of digits": (COMPLETIONS, b'{"model":"tiny","prompt":"a","n":' + b"9" * 6000 + b"}", "n"),
    "a list": (COMPLETIONS, [OK], None),
    "a text": (COMPLETIONS, "hello", None),
    "null": (COMPLETIONS, b"null", None),
    "a model that is a number": (COMPLETIONS, {**OK, "model": 7}, "model"),
    "a model that is a list": (CHAT, {**OK_CHAT, "model": []}, "model"),
    "no prompt": (COMPLETIONS, {"model": "tiny"}, "prompt"),
    "a null prompt": (COMPLETIONS, {**OK, "prompt": None}, "prompt"),
    "an empty list as prompt": (COMPLETIONS, {**OK, "prompt": []}, "prompt"),
    "a prompt that is an object": (COMPLETIONS, {**OK, "prompt": {"a": 1}}, "prompt"),
    "a prompt that is a number": (COMPLETIONS, {**OK, "prompt": 5}, "prompt"),
    "a prompt of mixed kinds": (COMPLETIONS, {**OK, "prompt": [1, "a"]}, "prompt"),
    "a negative token id": (COMPLETIONS, {**OK, "prompt": [1, -2]}, "prompt"),
    "a token id that is true": (COMPLETIONS, {**OK, "prompt": [1, True]}, "prompt"),
    "a token id that is no integer": (COMPLETIONS, {**OK, "prompt": [1, 2.5]}, "prompt"),
    "an empty batch entry": (COMPLETIONS, {**OK, "prompt": [[1], []]}, "prompt"),
    "no messages": (CHAT, {"model": "tiny"}, "messages"),
    "messages that are a text": (CHAT, {**OK_CHAT, "messages": "hi"}, "messages"),
    "no message in messages": (CHAT, {**OK_CHAT, "messages": []}, "messages"),
    "a message that is a text": (CHAT, {**OK_CHAT, "messages": ["hi"]}, "messages[0]"),
    "a message without a role": (CHAT, {**OK_CHAT, "messages": [{"content": "x"}]}, "messages[0].role"),
    "a role that is a number": (CHAT, {**OK_CHAT, "messages": [{"role": 1}]}, "messages[0].role"),
    "a content that is a number": (
        CHAT,
        {**OK_CHAT, "messages": [{"role": "user", "content": "x"}, {"role": "user", "content": 3}]},
        "messages[1].content",
    ),
    "stream as text": (COMPLETIONS, {**OK, "stream": "maybe"}, "stream"),
    "stream as number": (CHAT, {**OK_CHAT, "stream": 2}, "stream"),
    "stream_options without stream": (COMPLETIONS, {**OK, "stream_options": {"include_usage": True}}, "stream_options"),
    "stream_options that are a list": (COMPLETIONS, {**OK, "stream": True, "stream_options": []}, "stream_options"),
    "max_tokens zero": (COMPLETIONS, {**OK, "max_tokens": 0}, "max_tokens"),
    "max_tokens zero in a chat that echoes": (CHAT, {**OK_CHAT, "max_tokens": 0, "echo": True}, "max_tokens"),
    "max_tokens negative beside echo": (COMPLETIONS, {**OK, "max_tokens": -1, "echo": True}, "max_tokens"),
    "max_tokens negative": (COMPLETIONS, {**OK, "max_tokens": -5}, "max_tokens"),
    "max_tokens as text": (COMPLETIONS, {**OK, "max_tokens": "five"}, "max_tokens"),
    "max_tokens as fraction": (COMPLETIONS, {**OK, "max_tokens": 1.5}, "max_tokens"),
    "max_completion_tokens as text": (CHAT, {**OK_CHAT, "max_completion_tokens": "5.5"}, "max_completion_tokens"),
    "n zero": (CHAT, {**OK_CHAT, "n": 0}, "n"),
    "n as boolean": (CHAT, {**OK_CHAT, "n": False}, "n"),
    "temperature as text": (COMPLETIONS, {**OK, "temperature": "hot"}, "temperature"),
    "top_p as list": (COMPLETIONS, {**OK, "top_p": [1]}, "top_p"),
}


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[RunningGateway]:
    async with (
        scripted_engine(decode_script) as engine,
        running_gateway(tmp_path, {"f0": engine.address}) as made,
    ):
        yield made


async def test_malformed_bodies_get_an_openai_shaped_400_that_names_the_field(gateway: RunningGateway) -> None:
    """All of them over one connection: it stays usable, and so does the gateway."""
    requests = [post(path, body) for path, body, _ in BAD.values()]
    for case, request in zip(BAD, requests, strict=True):
        answer, good = await raw_exchange(gateway.port, request, post(COMPLETIONS, OK), answers=2)
        param = BAD[case][2]
        error = assert_openai_error(answer)
        assert (answer.status, error["param"], error["type"]) == (400, param, "invalid_request_error"), case
        assert param is None or param in error["message"], case
        assert good.status == 200, case
    assert all(line["outcome"] in ("invalid", "completed") for line in gateway.requests())


async def test_an_unknown_model_is_not_found_and_the_served_ones_are_named(gateway: RunningGateway) -> None:
    """As OpenAI answers it."""
    (answer,) = await raw_exchange(gateway.port, post(CHAT, {**OK_CHAT, "model": "gpt-9"}), answers=1)
    error = assert_openai_error(answer)
    assert (answer.status, error["code"], error["param"]) == (404, "model-not-found", "model")
    assert "tiny-alias" in error["message"]


async def test_every_served_name_is_accepted(gateway: RunningGateway) -> None:
    """And listed."""
    (answer,) = await raw_exchange(gateway.port, post(COMPLETIONS, {**OK, "model": "tiny-alias"}), answers=1)
    assert answer.status == 200
    (listing,) = await raw_exchange(gateway.port, b"GET /v1/models HTTP/1.1\r\nhost: g\r\n\r\n", answers=1)
    assert [model["id"] for model in listing.json()["data"]] == ["tiny", "tiny-alias"]


@pytest.mark.parametrize("stream", [{}, {"stream": False}, {"stream": None}], ids=str)
async def test_stream_options_that_say_nothing_need_no_stream(gateway: RunningGateway, stream: dict[str, Any]) -> None:
    """vLLM passes over `{}`, which clients send that fill in all fields."""
    (answer,) = await raw_exchange(gateway.port, post(COMPLETIONS, {**OK, "stream_options": {}, **stream}), answers=1)
    assert answer.status == 200


@pytest.mark.parametrize("model", [{}, {"model": None}, {"model": ""}], ids=str)
async def test_without_a_model_it_is_for_the_first_one(gateway: RunningGateway, model: dict[str, Any]) -> None:
    """As with vLLM, and on all other routes. The body goes on as it came."""
    (answer,) = await raw_exchange(gateway.port, post(COMPLETIONS, {"prompt": "hello", **model}), answers=1)
    assert (answer.status, gateway.request()["model"]) == (200, "tiny")
    raw = json.dumps({"messages": OK_CHAT["messages"], **model}).encode()
    chat = read_generation(raw, chat=True, default_model="first")
    assert (chat.model, chat.decode_body(None)) == ("first", raw)


def generation(body: dict[str, Any], *, chat: bool = False) -> Any:
    return read_generation(json.dumps(body).encode(), chat=chat)


def test_the_prefill_leg_asks_for_one_token_and_a_handle() -> None:
    """NIXL's first step; everything that shapes the prompt stays."""
    made = generation(
        {**OK, "max_tokens": 50, "min_tokens": 10, "stream": True, "stream_options": {"include_usage": True}, "seed": 3}
    )
    body = json.loads(made.prefill_body())
    assert body["kv_transfer_params"]["do_remote_decode"] is True
    assert body | {"kv_transfer_params": None} == {
        **OK,
        "seed": 3,
        "max_tokens": 1,
        "stream": False,
        "kv_transfer_params": None,
    }


def test_a_prompt_may_be_asked_back_alone() -> None:
    """`echo` with no output, as evaluation harnesses ask for log-probabilities: vLLM computes one token."""
    body = {**OK, "echo": True, "max_tokens": 0, "logprobs": 1}
    made = generation(body)
    assert made.max_output_tokens == 1
    assert json.loads(made.decode_body(None)) == body
    assert json.loads(made.prefill_body())["max_tokens"] == 1


def test_a_chat_prefill_limits_both_spellings() -> None:
    """max_completion_tokens would win over max_tokens in vLLM."""
    body = json.loads(generation({**OK_CHAT, "max_completion_tokens": 50}, chat=True).prefill_body())
    assert (body["max_tokens"], body["max_completion_tokens"]) == (1, 1)


def test_the_decode_leg_is_the_clients_own_body_with_the_handle() -> None:
    """Verbatim, whatever is in the handle."""
    body = {**OK, "max_tokens": 1, "stream": True, "prompt": [1, 2, 3], "x": {"kv": "}"}}
    made = json.loads(generation(body).decode_body(HANDLE))
    assert made == {**body, "kv_transfer_params": HANDLE}


def test_the_decode_leg_without_a_handle_is_byte_for_byte_the_clients() -> None:
    """Odd spacing and numbers included."""
    raw = b'  {"model": "tiny",\n "prompt": "a", "temperature": 1.0e0}  '
    assert read_generation(raw, chat=False).decode_body(None) == raw


@pytest.mark.parametrize("field", ["kv_transfer_params", "ec_transfer_params", "kv_\\u0074ransfer_params"])
def test_control_fields_of_clients_never_reach_an_engine(field: str) -> None:
    """Also when the name is written with escapes. Twice it is refused: readers would differ in which one counts."""
    raw = b'{"model":"tiny","%b":{"remote_host":"evil"},"prompt":"a"}' % field.encode()
    with pytest.raises(InvalidBody, match="stands twice"):
        read_generation(raw[:-1] + b',"%b":1}' % field.encode(), chat=False)
    made = read_generation(raw, chat=False)
    assert json.loads(made.decode_body(None)) == {"model": "tiny", "prompt": "a"}
    assert b"evil" not in made.decode_body(HANDLE) + made.prefill_body()


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig"])
def test_other_encodings_of_json_become_utf_8(encoding: str) -> None:
    """Python reads them, other engines need not."""
    made = read_generation(json.dumps({**OK, "prompt": "héllo"}).encode(encoding), chat=False)
    assert json.loads(made.decode_body(HANDLE).decode("utf-8"))["prompt"] == "héllo"


@pytest.mark.parametrize(
    ("body", "chat", "expected"),
    [
        ({**OK, "prompt": [5, 6, 7]}, False, 3),
        ({**OK, "prompt": [[5, 6], [7]]}, False, 3),
        ({**OK, "prompt": "a" * 400}, False, 100),
        ({**OK_CHAT, "messages": [{"role": "user", "content": "a" * 40}]}, True, 10),
        ({**OK_CHAT, "messages": [{"role": "user", "content": [{"type": "text", "text": "a" * 40}]}]}, True, 10),
        ({**OK_CHAT, "messages": [{"role": "assistant", "content": None}]}, True, 0),
    ],
)
def test_prompt_tokens_are_exact_for_ids_and_a_quarter_of_the_characters_for_text(
    body: dict[str, Any], chat: bool, expected: int
) -> None:
    """The estimate is documented as one."""
    assert generation(body, chat=chat).prompt_tokens == expected


@pytest.mark.parametrize(
    ("more", "expected"),
    [({}, True), ({"n": 1}, True), ({"n": 2}, False), ({"best_of": 3}, False), ({"prompt": ["a", "b"]}, False)],
)
def test_only_a_single_choice_can_be_handed_off(more: dict[str, Any], expected: bool) -> None:
    """NIXL gives no handle for several."""
    assert generation({**OK, **more}).can_hand_off is expected


@pytest.mark.parametrize(
    ("more", "chat", "expected"),
    [
        ({"prompt_logprobs": 0}, False, False),
        ({"prompt_logprobs": 1}, True, False),
        ({"echo": True, "logprobs": 1}, False, False),
        ({"echo": True}, True, False),
        ({"echo": True, "top_logprobs": None}, True, True),
        ({"echo": True}, False, True),
        ({"logprobs": 1, "echo": False}, False, True),
        ({"logprobs": True, "top_logprobs": 3}, True, True),
        ({"prompt_logprobs": None}, False, True),
        ({"prompt": None, "prompt_embeds": "AAAA"}, False, False),
    ],
)
def test_no_kv_is_handed_off_to_an_engine_that_reads_none(more: dict[str, Any], chat: bool, expected: bool) -> None:
    """vLLM computes a whole prompt whose log-probabilities are asked, or that comes as embeddings."""
    assert generation({**(OK_CHAT if chat else OK), **more}, chat=chat).can_hand_off is expected


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=8), children, max_size=4),
    max_leaves=10,
)
FIELDS = st.sampled_from(
    [
        "model",
        "prompt",
        "messages",
        "stream",
        "stream_options",
        "max_tokens",
        "n",
        "best_of",
        "temperature",
        "seed",
        "kv_transfer_params",
    ]
)


@pytest.mark.rotating(3)
@given(st.dictionaries(FIELDS | st.text(max_size=5), JSON, max_size=6), st.booleans())
def test_any_json_object_is_either_refused_or_carried_over_faithfully(body: dict[str, Any], chat: bool) -> None:
    """Never another exception; what is accepted differs from what was sent only by the control fields."""
    body = {"model": "tiny", "prompt": "a", "messages": [{"role": "user"}], **body}
    try:
        made = generation(body, chat=chat)
        legs = made.prefill_body(), made.decode_body(HANDLE)
    except InvalidBody:
        return
    body.pop("kv_transfer_params", None)
    assert json.loads(legs[1]) == {**body, "kv_transfer_params": HANDLE}
    assert json.loads(legs[0])["max_tokens"] == 1


@given(st.binary(max_size=60))
def test_any_bytes_are_refused_without_another_exception(raw: bytes) -> None:
    """A body of nothing in particular."""
    with pytest.raises(InvalidBody):
        read_generation(raw, chat=False)


@pytest.mark.parametrize(
    ("value", "own"),
    [(3, 3), (-2, -2), (True, 1), ("1", 1), (2.0, 2), ("x", None), (1.5, None), (None, None), ([1], None)],
)
def test_a_clients_own_priority_is_known(value: object, own: int | None) -> None:
    """It ranks before the queue's order; what is no whole number is the engine's to refuse."""
    made = generation({**OK, "priority": value})
    assert made.priority == own
    assert json.loads(made.decode_body(None))["priority"] == (own or value)
