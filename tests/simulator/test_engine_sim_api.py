"""engine-sim speaks vLLM's HTTP API: real servers on free ports."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from ballast_sim.engine_sim.options import KvTransfer
from ballast_sim.engine_sim.text import detokenize, tokenize
from tests.support.engine_sim import TINY, engine_sim, eventually, metric

PROMPT = list(range(2000, 2100))


async def events(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> list[str]:
    """The data of each server-sent event."""
    async with client.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"].startswith("text/event-stream")
        return [line.removeprefix("data: ") async for line in response.aiter_lines() if line]


async def test_a_completion_streams_one_chunk_per_token() -> None:
    """Then usage, because it was asked for, and [DONE]."""
    async with engine_sim() as (_, client):
        body = {"model": "m", "prompt": PROMPT, "max_tokens": 7, "stream_options": {"include_usage": True}}
        *chunks, usage, done = await events(client, "/v1/completions", body)
    parsed = [json.loads(chunk) for chunk in chunks]
    assert done == "[DONE]"
    assert len(parsed) == 7
    assert [chunk["choices"][0]["finish_reason"] for chunk in parsed] == [None] * 6 + ["length"]
    assert all(len(tokenize(chunk["choices"][0]["text"])) == 1 for chunk in parsed)
    assert {chunk["object"] for chunk in parsed} == {"text_completion"}
    final = json.loads(usage)
    assert final["choices"] == []
    assert final["usage"]["prompt_tokens"] == 100
    assert final["usage"]["completion_tokens"] == 7


async def test_whole_and_streamed_answers_say_the_same() -> None:
    """Same prompt, same text and ids, whichever way it is asked for."""
    body = {"model": "m", "prompt": PROMPT, "max_tokens": 5, "return_token_ids": True}
    async with engine_sim() as (_, client):
        whole = (await client.post("/v1/completions", json=body)).json()
        streamed = [json.loads(chunk) for chunk in (await events(client, "/v1/completions", body))[:-1]]
    choice = whole["choices"][0]
    assert choice["text"] == "".join(chunk["choices"][0]["text"] for chunk in streamed)
    assert choice["token_ids"] == [token for chunk in streamed for token in chunk["choices"][0]["token_ids"]]
    assert choice["token_ids"] == tokenize(choice["text"])
    assert choice["prompt_token_ids"] == PROMPT == streamed[0]["choices"][0]["prompt_token_ids"]
    assert whole["usage"] == {
        "prompt_tokens": 100,
        "total_tokens": 105,
        "completion_tokens": 5,
        "prompt_tokens_details": None,
        "completion_tokens_details": None,
    }
    assert whole["kv_transfer_params"] is None


async def test_a_prompt_with_part_of_its_output_continues_as_the_whole_did() -> None:
    """What replay after a migration relies on, as with greedy decoding."""
    async with engine_sim() as (_, first), engine_sim() as (_, second):
        body = {"prompt": PROMPT, "max_tokens": 10, "return_token_ids": True}
        whole = (await first.post("/v1/completions", json=body)).json()["choices"][0]["token_ids"]
        body = {"prompt": [*PROMPT, *whole[:4]], "max_tokens": 6, "return_token_ids": True}
        rest = (await second.post("/v1/completions", json=body)).json()["choices"][0]["token_ids"]
    assert whole[4:] == rest


async def test_a_chat_streams_a_role_then_contents() -> None:
    """The role's chunk comes with the first token; vllm_xargs can end it early."""
    messages = [{"role": "user", "content": [{"type": "text", "text": "Hello!"}]}]
    body = {"messages": messages, "max_tokens": 50, "vllm_xargs": {"ballast_output_tokens": 3}}
    async with engine_sim() as (_, client):
        *chunks, done = await events(client, "/v1/chat/completions", body)
        whole = (await client.post("/v1/chat/completions", json=body)).json()
    deltas = [json.loads(chunk)["choices"][0]["delta"] for chunk in chunks]
    assert done == "[DONE]"
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert len(deltas) == 4
    assert json.loads(chunks[-1])["choices"][0]["finish_reason"] == "stop"
    assert whole["choices"][0]["message"]["content"] == "".join(delta["content"] for delta in deltas[1:])
    assert whole["choices"][0]["finish_reason"] == "stop"


async def test_usage_in_every_chunk_and_several_tokens_in_one() -> None:
    """continuous_usage_stats counts up; --stream-interval 4 shows the first token at once, then four at a time."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    async with engine_sim(stream_interval=4) as (_, client):
        body = {"prompt": PROMPT, "max_tokens": 10, "stream_options": options}
        *chunks, _, _ = await events(client, "/v1/completions", body)
    counted = [json.loads(chunk)["usage"]["completion_tokens"] for chunk in chunks]
    assert counted == [1, 5, 9, 10]


async def test_a_hand_off_moves_the_prompt_between_two_real_servers() -> None:
    """P holds its blocks until D has pulled them; D computes one token; both agree on the text."""
    async with (
        engine_sim(role=KvTransfer("kv_producer")) as (_, prefill),
        engine_sim(role=KvTransfer("kv_consumer"), prompt_tokens_details=True) as (_, decode),
    ):
        body = {"prompt": PROMPT, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
        first = (await prefill.post("/v1/completions", json=body)).json()
        handle = first["kv_transfer_params"]
        assert handle["do_remote_prefill"] is True
        assert handle["do_remote_decode"] is False
        assert len(handle["remote_block_ids"][0]) == 7
        assert handle["remote_num_tokens"] == 100
        assert await metric(prefill, "vllm:kv_cache_usage_perc") > 0
        assert await metric(prefill, "vllm:num_requests_running") == 0
        body = {"prompt": PROMPT, "max_tokens": 4, "kv_transfer_params": handle}
        second = (await decode.post("/v1/completions", json=body)).json()
        assert second["choices"][0]["text"].startswith(first["choices"][0]["text"])
        unused = {"created_cache_tokens": None, "multimodal_tokens": None}
        assert second["usage"]["prompt_tokens_details"] == {"cached_tokens": 100} | unused
        pulled = {"source": "external_kv_transfer"}
        assert await metric(decode, "vllm:prompt_tokens_by_source_total", **pulled) == 100
        assert await metric(decode, "vllm:nixl_xfer_time_seconds_count") == 1

        async def freed() -> bool:
            return await metric(prefill, "vllm:kv_cache_usage_perc") == 0

        await eventually(freed)
        again = await decode.post("/v1/completions", json={**body, "prompt": PROMPT[::-1]})
        assert again.status_code == 500
        assert "could not be pulled" in again.json()["error"]["message"]


@pytest.mark.rotating(3)
async def test_kv_is_kept_while_the_decode_engine_is_full_and_let_go_when_the_client_leaves() -> None:
    """D has one place, taken.

    Its heartbeats keep P from letting go when the lease is long over; a client that leaves frees P.
    """
    role = KvTransfer(lease_s=2.0)
    async with (
        engine_sim(role=role) as (_, prefill),
        engine_sim(role=role, max_num_seqs=1) as (_, decode),
    ):
        body = {"prompt": PROMPT, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
        handle = (await prefill.post("/v1/completions", json=body)).json()["kv_transfer_params"]
        long = {"prompt": "long", "max_tokens": 9000, "stream": True}
        async with decode.stream("POST", "/v1/completions", json=long):
            waiting = {"prompt": PROMPT, "max_tokens": 4, "stream": True, "kv_transfer_params": handle}
            async with decode.stream("POST", "/v1/completions", json=waiting):
                await asyncio.sleep(3.5)
                assert await metric(decode, "vllm:num_requests_waiting") == 1
                assert await metric(prefill, "vllm:nixl_num_kv_expired_reqs_total") == 0
                assert await metric(prefill, "vllm:kv_cache_usage_perc") > 0

            async def freed() -> bool:
                return await metric(prefill, "vllm:kv_cache_usage_perc") == 0

            await eventually(freed)
        assert await metric(prefill, "vllm:nixl_num_kv_expired_reqs_total") == 0


FIRST_PART = {"max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
READS_PARTS = KvTransfer(reads_parts=True, least_part_tokens=32)


async def a_part(client: httpx.AsyncClient, tokens: int) -> dict[str, Any]:
    """The handle of the first tokens, as one for a reader that computes the rest."""
    first = await client.post("/v1/completions", json={"prompt": PROMPT[:tokens], **FIRST_PART})
    handle = first.json()["kv_transfer_params"]
    assert handle["remote_num_tokens"] == tokens
    return {**handle, "do_remote_prefill": False, "do_remote_decode": True}


@pytest.mark.parametrize("tokens", [48, 55, 99, 100])
async def test_a_part_of_a_prompt_is_pulled_and_the_rest_computed(tokens: int) -> None:
    """With `bidirectional_kv_xfer`: P is freed, the text is that of one engine, and the reader holds its own KV."""
    async with engine_sim(role=READS_PARTS) as (_, first), engine_sim(role=READS_PARTS) as (_, second):
        body = {"prompt": PROMPT, "max_tokens": 4, "kv_transfer_params": await a_part(first, tokens)}
        answer = (await second.post("/v1/completions", json=body)).json()
        alone = (await first.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 4})).json()
        assert answer["choices"][0]["text"] == alone["choices"][0]["text"]
        assert await metric(second, "vllm:prompt_tokens_by_source_total", source="external_kv_transfer") == tokens
        computed = await metric(second, "vllm:prompt_tokens_by_source_total", source="local_compute")
        assert computed == len(PROMPT) - min(tokens, len(PROMPT))
        assert answer["kv_transfer_params"]["remote_num_tokens"] == len(PROMPT) + 3
        assert await metric(second, "vllm:kv_cache_usage_perc") > 0

        async def freed() -> bool:
            return await metric(first, "vllm:kv_cache_usage_perc") == 0

        await eventually(freed)


async def test_a_small_part_is_computed_again() -> None:
    """Below `kv_recompute_threshold`; P is told that nobody comes."""
    async with engine_sim(role=READS_PARTS) as (_, first), engine_sim(role=READS_PARTS) as (_, second):
        body = {"prompt": PROMPT, "max_tokens": 4, "kv_transfer_params": await a_part(first, 31)}
        assert (await second.post("/v1/completions", json=body)).status_code == 200
        assert await metric(second, "vllm:prompt_tokens_by_source_total", source="external_kv_transfer") == 0

        async def freed() -> bool:
            return await metric(first, "vllm:kv_cache_usage_perc") == 0

        await eventually(freed)
        assert await metric(first, "vllm:nixl_num_kv_expired_reqs_total") == 0


async def test_without_the_switch_a_part_is_waited_for_in_vain() -> None:
    """Until the client leaves; P lets go when its lease is over, because nobody says a word."""
    role = KvTransfer(lease_s=0.5)
    async with engine_sim(role=role) as (_, first), engine_sim(role=role) as (_, second):
        body = {"prompt": PROMPT, "max_tokens": 4, "kv_transfer_params": await a_part(first, 64)}

        async def expired() -> bool:
            return await metric(first, "vllm:nixl_num_kv_expired_reqs_total") == 1

        with pytest.raises(httpx.ReadTimeout):
            await second.post("/v1/completions", json=body, timeout=1.0)
        await eventually(expired)

        async def idle() -> bool:
            return await metric(second, "vllm:num_requests_waiting") == 0

        await eventually(idle)
        plain = await second.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 4})
        assert plain.status_code == 200


@pytest.mark.parametrize(
    "change",
    [
        {"remote_block_ids": [[1, 2, 3]]},
        {"remote_block_ids": [[1, 2, 3, 4, 5]]},
        {"remote_block_ids": "x"},
        {"remote_num_tokens": 65},
        {"remote_num_tokens": "64"},
        {"remote_num_tokens": -1},
        {"remote_host": 7},
        {"remote_port": None},
    ],
    ids=str,
)
async def test_blocks_of_other_tokens_are_refused(change: dict[str, Any]) -> None:
    """vLLM's engine dies of too few and reads the wrong ones of too many: 64 tokens are four blocks of 16."""
    async with engine_sim(role=READS_PARTS) as (_, first), engine_sim(role=READS_PARTS) as (_, second):
        handle = await a_part(first, 64)
        body = {"prompt": PROMPT, "max_tokens": 4, "kv_transfer_params": {**handle, **change}}
        answer = await second.post("/v1/completions", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "kv_transfer_params")


async def test_a_part_without_an_address_is_no_part() -> None:
    """vLLM takes it for the request of a prefill engine: it computes all and keeps it for others."""
    async with engine_sim(role=READS_PARTS) as (_, first), engine_sim(role=READS_PARTS) as (_, second):
        handle = await a_part(first, 64)
        del handle["remote_host"]
        body = {"prompt": PROMPT, "max_tokens": 4, "kv_transfer_params": handle}
        assert (await second.post("/v1/completions", json=body)).json()["kv_transfer_params"] is not None
        assert await metric(second, "vllm:prompt_tokens_by_source_total", source="external_kv_transfer") == 0


async def test_unpulled_kv_expires() -> None:
    """A lease of 50 ms: nobody pulls, the blocks come back, the counter says so."""
    async with engine_sim(role=KvTransfer(lease_s=0.05)) as (_, client):
        body = {"prompt": PROMPT, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
        await client.post("/v1/completions", json=body)

        async def expired() -> bool:
            return await metric(client, "vllm:nixl_num_kv_expired_reqs_total") == 1

        await eventually(expired)
        assert await metric(client, "vllm:kv_cache_usage_perc") == 0


def handle_of(host: str, port: int) -> dict[str, Any]:
    """A handle for `PROMPT` that no engine gave."""
    return {
        "do_remote_prefill": True,
        "remote_engine_id": "gone",
        "remote_request_id": "r",
        "remote_host": host,
        "remote_port": port,
        "remote_block_ids": [[1, 2, 3, 4, 5, 6, 7]],
    }


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "prefill..example", "h" * 64, "nul\0"], ids=["silent", "empty label", "long label", "nul"]
)
@pytest.mark.parametrize(("policy", "status"), [("fail", 500), ("recompute", 200)])
async def test_an_unreachable_prefill_engine_is_what_the_policy_makes_of_it(
    policy: Any, status: int, host: str
) -> None:
    """Nobody listens there, or that is no host: the request fails, or D computes the prompt itself; the KV is free."""
    async with engine_sim(role=KvTransfer("kv_consumer", policy)) as (_, client):
        body = {"prompt": PROMPT, "max_tokens": 2, "kv_transfer_params": handle_of(host, 1)}
        answer = await client.post("/v1/completions", json=body)
        assert answer.status_code == status
        assert await metric(client, "vllm:nixl_num_failed_transfers_total") == 1
        computed = await metric(client, "vllm:prompt_tokens_by_source_total", source="local_compute")
        assert computed == (0 if status == 500 else 100)
        assert await metric(client, "vllm:kv_cache_usage_perc") == 0


async def test_a_peer_that_answers_a_line_without_end_holds_no_kv() -> None:
    """Whatever listens there, it is no side channel."""

    async def chatter(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"x" * 200_000)
        await reader.read()
        writer.close()

    peer = await asyncio.start_server(chatter, "127.0.0.1", 0)
    async with peer, engine_sim(role=KvTransfer("kv_consumer")) as (_, client):
        handle = handle_of("127.0.0.1", peer.sockets[0].getsockname()[1])
        body = {"prompt": PROMPT, "max_tokens": 2, "kv_transfer_params": handle}
        assert (await client.post("/v1/completions", json=body)).status_code == 500
        assert await metric(client, "vllm:kv_cache_usage_perc") == 0


async def test_a_client_that_goes_away_frees_its_request() -> None:
    """The stream is dropped after a few tokens; nothing runs any more, and it does not count as a success."""
    async with engine_sim() as (_, client):
        body = {"prompt": PROMPT, "max_tokens": 5000, "stream": True}
        async with client.stream("POST", "/v1/completions", json=body) as response:
            async for _ in response.aiter_lines():
                break
            assert await metric(client, "vllm:num_requests_running") == 1

        async def idle() -> bool:
            return await metric(client, "vllm:num_requests_running") == 0

        await eventually(idle)
        assert await metric(client, "vllm:kv_cache_usage_perc") == 0
        assert await metric(client, "vllm:request_success_total", finished_reason="abort") == 0


async def test_metrics_have_the_names_and_labels_of_vllm() -> None:
    """Parsed by prometheus_client; every family that a router reads is there, with engine and model_name."""
    wanted = {
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:num_requests_waiting_by_reason",
        "vllm:kv_cache_usage_perc",
        "vllm:cache_config_info",
        "vllm:prefix_cache_queries",
        "vllm:prefix_cache_hits",
        "vllm:external_prefix_cache_queries",
        "vllm:num_preemptions",
        "vllm:prompt_tokens",
        "vllm:generation_tokens",
        "vllm:request_success",
        "vllm:time_to_first_token_seconds",
        "vllm:inter_token_latency_seconds",
        "vllm:request_time_per_output_token_seconds",
        "vllm:e2e_request_latency_seconds",
        "vllm:request_queue_time_seconds",
        "vllm:iteration_tokens_total",
        "vllm:nixl_num_kv_expired_reqs",
    }
    async with engine_sim(role=KvTransfer()) as (_, client):
        await client.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 3})
        families = {
            family.name: family for family in text_string_to_metric_families((await client.get("/metrics")).text)
        }
        assert await metric(client, "vllm:generation_tokens_total") == 3
        assert await metric(client, "vllm:prompt_tokens_total") == 100
        assert await metric(client, "vllm:time_to_first_token_seconds_count") == 1
        assert await metric(client, "vllm:inter_token_latency_seconds_count") == 2
        assert await metric(client, "vllm:request_success_total", finished_reason="length") == 1
        assert await metric(client, "vllm:cache_config_info", block_size="16", num_gpu_blocks="1024") == 1
    assert wanted <= families.keys()
    for name in wanted:
        for sample in families[name].samples:
            assert sample.labels["engine"] == "0"
            # vLLM's information about its settings names no model.
            assert sample.labels.get("model_name") == (None if name == "vllm:cache_config_info" else "m")


BAD_BODIES = {
    "not JSON": (b"{", 400, None),
    "not an object": (b"[]", 400, None),
    "no prompt": (b"{}", 400, "prompt"),
    "empty prompt": (b'{"prompt": ""}', 400, "prompt"),
    "wrong type of prompt": (b'{"prompt": 5}', 400, "prompt"),
    "mixed ids": (b'{"prompt": [1, "a"]}', 400, "prompt"),
    "boolean id": (b'{"prompt": [true]}', 400, "prompt"),
    "negative id": (b'{"prompt": [-1]}', 400, "prompt"),
    "id out of vocabulary": (b'{"prompt": [99999999999999999999]}', 400, "prompt"),
    "several prompts": (b'{"prompt": ["a", "b"]}', 400, "prompt"),
    "n": (b'{"prompt": "a", "n": 2}', 400, "n"),
    "no tokens": (b'{"prompt": "a", "max_tokens": 0}', 400, "max_tokens"),
    "too many tokens": (b'{"prompt": "a", "max_tokens": 1e9}', 400, "max_tokens"),
    "tokens as text": (b'{"prompt": "a", "max_tokens": "many"}', 400, "max_tokens"),
    "min above max": (b'{"prompt": "a", "max_tokens": 2, "min_tokens": 3}', 400, "min_tokens"),
    "stream": (b'{"prompt": "a", "stream": "yes"}', 400, "stream"),
    "stream options": (b'{"prompt": "a", "stream_options": {"include_usage": true}}', 400, "stream_options"),
    "model": (b'{"prompt": "a", "model": "other"}', 404, "model"),
    "transfer parameters": (b'{"prompt": "a", "kv_transfer_params": 5}', 400, "kv_transfer_params"),
    "incomplete handle": (b'{"prompt":"a","kv_transfer_params":{"do_remote_prefill":true}}', 400, "kv_transfer_params"),
    "logprobs": (b'{"prompt": "a", "logprobs": 3}', 400, "logprobs"),
    "chosen token's logprob": (b'{"prompt": "a", "logprobs": 0}', 400, "logprobs"),
    "prompt logprobs": (b'{"prompt": "a", "prompt_logprobs": 0}', 400, "prompt_logprobs"),
    "structured outputs": (b'{"prompt": "a", "structured_outputs": {"regex": "b"}}', 400, "structured_outputs"),
    "guided": (b'{"prompt": "a", "guided_json": {}}', 400, "guided_json"),
    "surrogate": (b'{"prompt": "\\ud800", "max_tokens": 0}', 400, "max_tokens"),
}


@pytest.mark.parametrize(("body", "status", "param"), BAD_BODIES.values(), ids=BAD_BODIES)
async def test_a_bad_body_is_refused_in_the_shape_of_openai(body: bytes, status: int, param: str | None) -> None:
    """The error names the field; the server lives on."""
    async with engine_sim(role=KvTransfer()) as (_, client):
        answer = await client.post("/v1/completions", content=body)
        assert answer.status_code == status
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["param"] == param
        assert error["code"] == status
        assert (await client.get("/health")).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": []},
        {"messages": [5]},
        {"messages": [{"role": 1}]},
        {"messages": [{"role": "user", "content": 5}]},
    ],
    ids=str,
)
async def test_a_bad_chat_is_refused(body: dict[str, Any]) -> None:
    """With the field's name."""
    async with engine_sim() as (_, client):
        answer = await client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "messages"


HELLO = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"logprobs": True}, "logprobs"),
        ({"top_logprobs": 5}, "top_logprobs"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"guided_choice": ["a"]}, "guided_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"logprobs": False, "top_logprobs": 0, "tools": [], "tool_choice": "auto"}, None),
        ({"response_format": {"type": "text"}, "structured_outputs": None}, None),
    ],
    ids=str,
)
async def test_a_chat_that_asks_for_more_than_text_is_refused(changes: dict[str, Any], param: str | None) -> None:
    """By the field that asks; values that ask for nothing are taken."""
    async with engine_sim() as (_, client):
        answer = await client.post("/v1/chat/completions", json={**HELLO, **changes})
        assert answer.json().get("error", {}).get("param") == param
        assert answer.status_code == (400 if param else 200)


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"tools": [{"type": "function", "name": "f"}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"reasoning": {"effort": "high"}}, "reasoning"),
        ({"store": True}, "store"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {}}}}, "text.format"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"store": False, "tools": [], "include": [], "reasoning": {"effort": None}}, None),
        ({"text": {"format": {"type": "text"}}, "metadata": {"a": "b"}}, None),
    ],
    ids=str,
)
async def test_a_response_that_asks_for_more_than_text_is_refused(changes: dict[str, Any], param: str | None) -> None:
    """By the field that asks; values that ask for nothing are taken."""
    async with engine_sim() as (_, client):
        answer = await client.post("/v1/responses", json={"input": "hi", "max_output_tokens": 2, **changes})
        assert ((answer.json().get("error") or {}).get("param"), answer.status_code) == (param, 400 if param else 200)


async def test_a_response_repeats_the_temperature_that_was_asked_for() -> None:
    """Zero is one; vLLM's default stands where none was."""
    async with engine_sim() as (_, client):
        for asked, said in (({"temperature": 0, "top_p": 0.5}, [0, 0.5]), ({}, [1.0, 1.0])):
            answer = await client.post("/v1/responses", json={"input": "hi", "max_output_tokens": 2, **asked})
            assert [answer.json()[field] for field in ("temperature", "top_p")] == said
            assert {type(answer.json()[field]) for field in ("temperature", "top_p")} == {float}  # as in vLLM


async def test_each_input_of_an_embedding_has_the_whole_context() -> None:
    """As in vLLM each is a request of its own; one that is too long refuses all."""
    async with engine_sim(profile=TINY) as (server, client):
        longest = server.config.max_model_len
        body = {"input": [[number] * 600 for number in range(5)]}
        answer = await client.post("/v1/embeddings", json=body)
        assert answer.json()["usage"]["prompt_tokens"] == 3000
        vectors = [each["embedding"] for each in answer.json()["data"]]
        assert await metric(client, "vllm:request_success_total", finished_reason="length") == 5
        alone = await client.post("/v1/embeddings", json={"input": [3] * 600})
        assert alone.json()["data"][0]["embedding"] == vectors[3]
        answer = await client.post("/v1/embeddings", json={"input": [[1], [2] * longest]})
        assert answer.status_code == 400
        assert f"{longest} input tokens" in answer.json()["error"]["message"]


async def test_embeddings_whose_client_leaves_free_the_engine() -> None:
    """All of their inputs."""
    async with engine_sim(profile=TINY, time_scale=50.0) as (server, client):
        body = json.dumps({"input": [[number] * 600 for number in range(8)]}).encode()
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        head = f"POST /v1/embeddings HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await eventually(lambda: _running(client, True))
        writer.close()
        await eventually(lambda: _running(client, False))


async def _running(client: httpx.AsyncClient, some: bool) -> bool:
    counts = [await metric(client, f"vllm:num_requests_{state}") for state in ("running", "waiting")]
    return (sum(counts) > 0) is some


async def test_a_prompt_that_fills_the_model_is_refused() -> None:
    """1,008 tokens is all there is; the message says both numbers."""
    async with engine_sim(profile=TINY) as (server, client):
        longest = server.config.max_model_len
        answer = await client.post("/v1/completions", json={"prompt": [1] * longest})
        assert answer.status_code == 400
        assert f"{longest} tokens" in answer.json()["error"]["message"]
        answer = await client.post("/v1/completions", json={"prompt": [1] * (longest - 2), "max_tokens": 2})
        assert answer.json()["usage"]["completion_tokens"] == 2


async def test_admission_limits_answer_503_in_the_words_of_vllm() -> None:
    """One request at a time: the second is told to go elsewhere, and counted."""
    async with engine_sim(max_num_queued_reqs=1) as (_, client):
        body = {"prompt": PROMPT, "max_tokens": 5000, "stream": True}
        async with client.stream("POST", "/v1/completions", json=body):
            answer = await client.post("/v1/completions", json={"prompt": "hello"})
            assert answer.status_code == 503
            assert answer.json()["error"]["message"].startswith("The engine is currently busy")
            assert answer.json()["error"]["type"] == "Service Unavailable"
            rejected = await metric(client, "vllm:admission_rejections_total", reason="max_num_queued_reqs")
            assert rejected == 1
    async with engine_sim(max_num_queued_tokens=0) as (_, client):
        answer = await client.post("/v1/completions", json={"prompt": "hello"})
        assert answer.status_code == 503
        assert "prefill token backlog" in answer.json()["error"]["message"]
        assert answer.json()["error"]["type"] == "Service Unavailable"


async def test_the_inputs_of_one_call_are_admitted_together() -> None:
    """As so many requests, or none of them; and nothing is left of those that are not."""
    for requests, tokens in ((2, None), (None, 10)):
        async with engine_sim(max_num_queued_reqs=requests, max_num_queued_tokens=tokens) as (_, client):
            many = {"input": ["some words of one text"] * 40}
            assert (await client.post("/v1/embeddings", json=many)).status_code == 503
            few = {"input": ["some words"] * 2}
            assert (await client.post("/v1/embeddings", json=few)).status_code == 200


async def test_the_small_routes() -> None:
    """Models, version, load, tokenize and back, unknown paths, wrong methods, API keys."""
    async with engine_sim(served_model_names=("x", "y"), api_keys=("secret",)) as (_, client):
        assert (await client.get("/v1/models")).status_code == 401
        authorized = {"authorization": "Bearer secret"}
        models = (await client.get("/v1/models", headers=authorized)).json()
        assert [model["id"] for model in models["data"]] == ["x", "y"]
        assert (await client.get("/version")).json() == {"version": "0.32.0"}
        assert (await client.get("/load")).json() == {"server_load": 0}
        assert (await client.get("/ping")).status_code == 200
        text = "Grüße,  wide world!\n"
        tokens = (await client.post("/tokenize", json={"model": "x", "prompt": text})).json()
        assert tokens["count"] == len(tokens["tokens"])
        back = await client.post("/detokenize", json={"model": "y", "tokens": tokens["tokens"]})
        assert back.json() == {"prompt": text}
        assert (await client.get("/nothing")).status_code == 404
        assert (await client.get("/tokenize")).status_code == 405


@pytest.mark.parametrize("text", ["", " ", "  a  ", "word", "two words", "ünïcödé ☃", "a" * 9, "\n\n x"])
def test_any_text_survives_tokens_and_back(text: str) -> None:
    """The tokenizer loses nothing."""
    assert detokenize(tokenize(text)) == text


async def test_priority_and_request_ids_are_taken_over() -> None:
    """The header names the request; a priority that is no number is refused."""
    async with engine_sim(policy="priority") as (_, client):
        headers = {"x-request-id": "abc", "x-vllm-priority": "-3"}
        answer = (await client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}, headers=headers)).json()
        assert answer["id"] == "cmpl-abc"
        body = {"prompt": "a", "max_tokens": 1, "request_id": "mine"}
        ids = [(await client.post("/v1/completions", json=body, headers=each)).json()["id"] for each in (headers, {})]
        assert ids == ["cmpl-abc", "cmpl-mine"]  # as in vLLM, where the header wins
        headers = {"x-vllm-priority": "high"}
        refused = await client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}, headers=headers)
        assert refused.status_code == 400


async def test_shutting_down_finishes_what_runs_and_refuses_what_is_new() -> None:
    """With a shutdown timeout: health turns 503, the running stream ends whole."""
    async with engine_sim(shutdown_timeout_s=10.0) as (server, client):
        body = {"prompt": PROMPT, "max_tokens": 300}
        running = asyncio.ensure_future(events(client, "/v1/completions", body))

        async def started() -> bool:
            return await metric(client, "vllm:num_requests_running") == 1

        await eventually(started)
        stopping = asyncio.ensure_future(server.stop())
        await asyncio.sleep(0)
        assert (await client.get("/health")).status_code == 503
        assert (await client.post("/v1/completions", json=body)).status_code == 503
        assert len(await running) == 301
        await stopping


async def test_shutting_down_without_a_timeout_aborts() -> None:
    """The stream ends with an error, not with silence."""
    async with engine_sim() as (server, client):
        body = {"prompt": PROMPT, "max_tokens": 5000}
        running = asyncio.ensure_future(events(client, "/v1/completions", body))

        async def started() -> bool:
            return await metric(client, "vllm:num_requests_running") == 1

        await eventually(started)
        await server.stop()
        *_, error, done = await running
        assert "shutting down" in json.loads(error)["error"]["message"]
        assert done == "[DONE]"
