"""Routes of the inference API beside completions and chats: placed, bounded and replayed as others, passed on as they
come."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from ballast_gateway import paths
from ballast_gateway.openai_body import InvalidBody
from ballast_gateway.proxy.bodies import Generation
from ballast_gateway.proxy.named_events import NamedMeter
from ballast_gateway.proxy.passing import read_passed
from ballast_gateway.strict_json import measure
from tests.support.gateway_kit import post, raw_exchange, running_gateway
from tests.support.scripted_engine import SSE_HEAD, Asked, chunk, json_reply, scripted_engine

EMBEDDINGS, RESPONSES = "/v1/embeddings", "/v1/responses"
SCORES = {"object": "list", "data": [{"index": 0, "object": "score", "score": 0.5}], "usage": {"prompt_tokens": 7}}
WHOLE: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "error": None,
    "status": "completed",
    "output": [],
    "usage": {"input_tokens": 3, "output_tokens": 5, "total_tokens": 8},
}
STREAM = [
    b'event: response.created\ndata: {"type":"response.created","response":{"error":null}}\n\n',
    b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"event: message_stop"}\n\n',
    b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"\\"error\\":1"}\n\n',
    b'event: response.completed\ndata: {"type":"response.completed","response":{"usage":{"output_tokens":2}}}\n\n',
]
BODIES: dict[str, dict[str, Any]] = {
    EMBEDDINGS: {"input": ["a text", "another"]},
    RESPONSES: {"input": "say something"},
    "/v1/messages": {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3},
    "/tokenize": {"prompt": "how many?"},
    "/detokenize": {"tokens": [1, 2, 3]},
    "/v1/score": {"text_1": "a", "text_2": ["b", "c"]},
    "/v1/rerank": {"query": "a", "documents": ["b", "c"]},
    "/pooling": {"input": "a"},
    "/classify": {"input": "a"},
    "/v1/systemone": {"state": "a", "questions": {"q": {"type": "bool"}}},
    "/cohere/v2/chat/render": {"messages": [{"role": "user", "content": "hello"}]},
    "/mine": {"prompt": "a"},
}


async def scores(asked: Asked, writer: asyncio.StreamWriter) -> None:
    writer.write(json_reply(SCORES))


async def fails(asked: Asked, writer: asyncio.StreamWriter) -> None:
    writer.write(json_reply({"error": {"message": "no"}}, status=500))


async def streams(asked: Asked, writer: asyncio.StreamWriter) -> None:
    writer.write(SSE_HEAD + b"".join(map(chunk, STREAM)) + b"0\r\n\r\n")


def read(path: str, **fields: Any) -> Generation:
    raw = json.dumps({"model": "tiny"} | fields).encode()
    dropped = frozenset({"priority", "kv_transfer_params"})
    return read_passed(raw, path=path, default_model="first", dropped=dropped, size=measure(raw))


@pytest.mark.parametrize("path", BODIES)
async def test_one_engine_gets_the_request_and_its_answer_is_passed_on(path: str, tmp_path: Path) -> None:
    """The decode endpoint alone, with the client's own body; the response's says that it is not to be stored."""
    body = {"model": "tiny"} | BODIES[path]
    async with (
        scripted_engine(scores) as prefill,
        scripted_engine(scores) as decode,
        running_gateway(tmp_path, {"p0": prefill.address, "d0": decode.address}, extraPaths=["/mine"]) as gateway,
    ):
        [answer] = await raw_exchange(gateway.port, post(path, body), answers=1)
        assert (answer.status, answer.json()) == (200, SCORES)
        [asked] = decode.asked
        assert (asked.path, asked.body) == (path, body | ({"store": False} if path == RESPONSES else {}))
        assert prefill.asked == []
        entry = gateway.request()
        assert (entry["path"], entry["outcome"], entry["decode"]) == (path, "completed", "d0")
        assert entry["prompt_tokens"] > 0
        assert len(gateway.gateway.driver.director.ledger) == 0


async def test_an_engine_that_fails_is_replaced(tmp_path: Path) -> None:
    """Before the first byte these requests are replayed as others are, and count in the engine's health."""
    answered: list[str] = []

    async def once_no(asked: Asked, writer: asyncio.StreamWriter) -> None:
        answered.append(asked.path)
        await (fails if len(answered) == 1 else scores)(asked, writer)

    async with (
        scripted_engine(once_no) as one,
        scripted_engine(once_no) as other,
        running_gateway(tmp_path, {"d0": one.address, "d1": other.address}) as gateway,
    ):
        [answer] = await raw_exchange(gateway.port, post(EMBEDDINGS, {"input": "a"}), answers=1)
        assert (answer.status, answered) == (200, [EMBEDDINGS] * 2)
        assert len(one.asked) == len(other.asked) == 1
        assert gateway.request()["retries"] == 1


async def test_a_stream_of_named_events_is_passed_on_untouched(tmp_path: Path) -> None:
    """Words in its texts are no events. Its tokens are those of its usage."""
    body = {"model": "tiny", "input": "hello", "stream": True}
    async with (
        scripted_engine(streams) as decode,
        running_gateway(tmp_path, {"d0": decode.address}) as gateway,
    ):
        [answer] = await raw_exchange(gateway.port, post(RESPONSES, body), answers=1)
        assert answer.whole
        assert answer.body == b"".join(STREAM)
        entry = gateway.request()
        assert (entry["outcome"], entry["output_tokens"], entry["stream"]) == ("completed", 2, True)
        assert entry["ttft_s"] > 0


async def test_a_stream_that_ends_early_is_broken_off(tmp_path: Path) -> None:
    """With an error event that official clients raise, and without the last chunk."""

    async def early(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + b"".join(map(chunk, STREAM[:2])) + b"0\r\n\r\n")

    body = {"model": "tiny", "input": "hello", "stream": True}
    async with scripted_engine(early) as decode, running_gateway(tmp_path, {"d0": decode.address}) as gateway:
        [answer] = await raw_exchange(gateway.port, post(RESPONSES, body), answers=1)
        assert not answer.whole
        sent, _, error = answer.body.rpartition(b"data: ")
        assert sent == b"".join(STREAM[:2])
        assert json.loads(error)["error"]["code"] == "upstream-broke"
        assert gateway.request()["outcome"] == "failed"


@pytest.mark.parametrize("ends", [True, False], ids=["it ends early", "its deadline passes"])
async def test_clients_of_anthropic_see_that_a_message_is_not_whole(ends: bool, tmp_path: Path) -> None:
    """Theirs pass over events without a name, and took the rest for a whole answer."""
    begun = b'event: message_start\ndata: {"type":"message_start"}\n\n'
    begun += b'event: content_block_delta\ndata: {"type":"content_block_delta"}\n\n'

    async def answer(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(begun))
        await asyncio.sleep(0 if ends else 30)
        writer.write(b"0\r\n\r\n")

    body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 9, "stream": True}
    async with scripted_engine(answer) as decode, running_gateway(tmp_path, {"d0": decode.address}) as gateway:
        limit = "x-envoy-expected-rq-timeout-ms: 1000"
        [got] = await raw_exchange(gateway.port, post("/v1/messages", body, limit), answers=1)
    sent, _, error = got.body.rpartition(b"event: error\ndata: ")
    assert sent == begun
    document = json.loads(error)
    assert document["type"] == "error"
    assert document["error"]["code"] == ("upstream-broke" if ends else "deadline-exceeded")


async def test_an_error_event_before_any_output_sends_the_request_elsewhere(tmp_path: Path) -> None:
    """What came before it has not been shown."""
    turns = iter((b'event: error\ndata: {"type":"error","message":"no"}\n\n', b"".join(STREAM)))

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(STREAM[0]))
        rest = next(turns)
        writer.write(chunk(rest.removeprefix(STREAM[0])) + b"0\r\n\r\n")

    body = {"model": "tiny", "input": "hello", "stream": True}
    async with (
        scripted_engine(script) as one,
        scripted_engine(script) as other,
        running_gateway(tmp_path, {"d0": one.address, "d1": other.address}) as gateway,
    ):
        [answer] = await raw_exchange(gateway.port, post(RESPONSES, body), answers=1)
        assert answer.body == b"".join(STREAM)
        assert gateway.request()["retries"] == 1


@pytest.mark.parametrize(
    ("reply", "whole"),
    [
        (json_reply(WHOLE), True),
        (json_reply([1, 2]), True),
        (b"HTTP/1.1 200 X\r\ncontent-type: application/octet-stream\r\ncontent-length: 3\r\n\r\n\0\1\2", True),
        (b"HTTP/1.1 200 X\r\ncontent-type: application/octet-stream\r\n\r\n\0\1\2", False),
        (b"HTTP/1.1 200 X\r\ncontent-type: application/json\r\ncontent-length: 3\r\n\r\n{\x221", False),
        (json_reply({"error": {"message": "no"}}), False),
    ],
    ids=["a response with an error field", "a list", "bytes", "bytes without a length", "no JSON", "an error"],
)
async def test_a_whole_answer_is_passed_on_as_it_came(reply: bytes, whole: bool, tmp_path: Path) -> None:
    """What is not surely whole, or an error, is tried elsewhere; here there is nowhere."""

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(reply)
        writer.close()

    async with scripted_engine(script) as decode, running_gateway(tmp_path, {"d0": decode.address}) as gateway:
        [answer] = await raw_exchange(gateway.port, post("/pooling", {"input": "a"}), answers=1)
        assert answer.status == (200 if whole else 503)
        if whole:
            assert answer.body == reply.partition(b"\r\n\r\n")[2]


async def test_the_output_of_a_whole_response_is_counted(tmp_path: Path) -> None:
    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(json_reply(WHOLE))

    async with scripted_engine(script) as decode, running_gateway(tmp_path, {"d0": decode.address}) as gateway:
        await raw_exchange(gateway.port, post(RESPONSES, {"input": "a"}), answers=1)
        assert gateway.request()["output_tokens"] == 5


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [
        ("/v1/responses/resp_1", "GET", 404),
        ("/v1/responses/resp_1/cancel", "POST", 404),
        ("/v1/audio/transcriptions", "POST", 404),
        ("/sleep", "POST", 404),
        ("/v1//embeddings", "POST", 404),
        ("/%76%31/embeddings", "POST", 404),
        (EMBEDDINGS, "GET", 405),
    ],
)
async def test_other_routes_and_methods_do_not_exist(path: str, method: str, status: int, tmp_path: Path) -> None:
    async with scripted_engine(scores) as decode, running_gateway(tmp_path, {"d0": decode.address}) as gateway:
        request = post(path, {"model": "tiny", "input": "a"}).replace(b"POST", method.encode(), 1)
        [answer] = await raw_exchange(gateway.port, request, answers=1)
        assert answer.status == status
        assert decode.asked == []


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (RESPONSES, {"input": "a", "store": True}, "store"),
        (RESPONSES, {"input": "a", "background": True}, "background"),
        (RESPONSES, {"input": "a", "store": "true"}, "store"),
        (RESPONSES, {"input": "a", "previous_response_id": "resp_1"}, "previous_response_id"),
        (EMBEDDINGS, {"input": "a", "model": 7}, "model"),
        (RESPONSES, {"input": "a", "stream": [1]}, "stream"),
    ],
)
def test_what_is_refused_names_the_field(path: str, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidBody) as raised:
        read(path, **fields)
    assert raised.value.param == param


async def test_an_unknown_model_and_a_body_that_is_none_are_refused(tmp_path: Path) -> None:
    async with scripted_engine(scores) as decode, running_gateway(tmp_path, {"d0": decode.address}) as gateway:
        [answer] = await raw_exchange(gateway.port, post(EMBEDDINGS, {"model": "other", "input": "a"}), answers=1)
        assert (answer.status, answer.json()["error"]["code"]) == (404, "model-not-found")
        for raw in (b"[]", b'{"input":"a","input":"b"}', b"", b"{"):
            request = b"POST /v1/score HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(raw), raw)
            [answer] = await raw_exchange(gateway.port, request, answers=1)
            assert (answer.status, answer.json()["error"]["code"]) == (400, "invalid-request")
        assert decode.asked == []


def test_fields_of_control_are_taken_out_and_streams_are_read_as_the_engine_reads_them() -> None:
    found = read(RESPONSES, input="a", stream="true", priority=3, kv_transfer_params={"remote_host": "x"})
    assert json.loads(found.raw) == {"model": "tiny", "input": "a", "stream": True, "store": False}
    assert found.stream
    assert found.document == json.loads(found.raw)


def test_a_null_store_is_no_store() -> None:
    """The engine's default is to store; of two equal names the last one counts."""
    assert json.loads(read(RESPONSES, input="a", store=None).raw)["store"] is False
    assert json.loads(read(RESPONSES, input="a", store=False).raw)["store"] is False


@pytest.mark.parametrize("raw", [b'{"prompt":"a"}', b'{"prompt":"a","model":null}', b'{"prompt":"a","model":""}'])
def test_without_a_model_it_is_for_the_first_one(raw: bytes) -> None:
    found = read_passed(raw, path="/tokenize", default_model="first", dropped=frozenset(), size=measure(raw))
    assert (found.model, found.raw) == ("first", raw)


@pytest.mark.parametrize(
    ("path", "fields", "tokens", "limit"),
    [
        (EMBEDDINGS, {"input": [[1, 2, 3], [4, 5]]}, 5, 1),
        (EMBEDDINGS, {"input": "x" * 40}, 10, 1),
        ("/v1/score", {"text_1": "x" * 40, "text_2": ["y" * 20, "z" * 20]}, 20, 1),
        ("/v1/rerank", {"query": "x" * 40, "documents": ["y" * 40]}, 20, 1),
        ("/detokenize", {"tokens": list(range(9))}, 9, 1),
        (RESPONSES, {"input": "x" * 40, "instructions": "y" * 40, "max_output_tokens": 7}, 20, 7),
        (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_text", "text": "x" * 40}]}]}, 10, None),
    ],
)
def test_a_prompt_is_measured_wherever_it_stands(
    path: str, fields: dict[str, Any], tokens: int, limit: int | None
) -> None:
    found = read(path, **fields)
    assert (found.prompt_tokens, found.max_output_tokens) == (tokens, limit)
    assert not found.can_hand_off


def test_events_are_told_apart_in_whatever_pieces_they_come() -> None:
    whole = b"".join(STREAM)
    for cut in range(len(whole)):
        meter = NamedMeter()
        meter.feed(whole[:cut])
        assert not meter.is_whole
        meter.feed(whole[cut:])
        assert (meter.tokens, meter.is_whole, meter.started, meter.failed) == (2, True, True, False)


def test_messages_and_chats_of_others_end_by_their_own_names() -> None:
    for last in (b'event: message_stop\ndata: {"type":"message_stop"}\n\n', b'data: {"type":"message-end"}\n\n'):
        meter = NamedMeter()
        ends = []
        for event in (
            b'event: content_block_delta\ndata: {"type":"content_block_delta"}\n\n',
            last,
            b"data: [DONE]\n\n",
        ):
            meter.feed(event)
            ends.append(meter.is_whole)
        assert ends == [False, True, True]
        assert meter.tokens == 1


@pytest.mark.parametrize("at_once", [False, True])
def test_a_message_counts_its_tokens_before_its_end_too(at_once: bool) -> None:
    """vLLM's message_start has a usage of no output: a client that leaves before the end has had more than that."""
    start = b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"output_tokens":0}}}\n\n'
    token = b'event: content_block_delta\ndata: {"type":"content_block_delta"}\n\n'
    end = b'event: message_delta\ndata: {"type":"message_delta","usage":{"output_tokens":4}}\n\n'
    meter = NamedMeter()
    for piece in [start + 3 * token] if at_once else [start, token, token, token]:
        meter.feed(piece)
    assert meter.tokens == 3
    meter.feed(end)
    assert meter.tokens == 4


def test_every_passed_route_is_one_of_the_inference_api() -> None:
    assert paths.PASSED < paths.INFERENCE
    assert paths.GENERATING < paths.PASSED
