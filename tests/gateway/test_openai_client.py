"""The official `openai` client, unchanged, in front of engine-sims: chat, completions, embeddings, responses, models
and errors of the proxy face, and the same through a real Envoy whose picker the gateway is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest
import pytest_asyncio

from ballast_sim.engine_sim.options import KvTransfer
from tests.support.engine_sim import engine_sim
from tests.support.envoy import EnvoySetup, PickerAt, envoy, needs_envoy
from tests.support.gateway_kit import RunningGateway, running_gateway

HELLO = "Hello there, who are you?"


@pytest_asyncio.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[RunningGateway]:
    """In front of a prefill and a decode engine."""
    async with (
        engine_sim(role=KvTransfer("kv_producer")) as (prefill, _),
        engine_sim(role=KvTransfer("kv_consumer")) as (decode, _),
        running_gateway(
            tmp_path,
            {"p0": f"127.0.0.1:{prefill.port}", "d0": f"127.0.0.1:{decode.port}"},
            model={"servedNames": ["m"]},
        ) as running,
    ):
        yield running


@pytest_asyncio.fixture
async def client(gateway: RunningGateway) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="key", max_retries=0) as made:
        yield made


async def test_models(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == ["m"]


async def test_chat(client: openai.AsyncOpenAI, gateway: RunningGateway) -> None:
    """Disaggregated, whole and streamed: the same text."""
    await chat(client)
    assert {(entry["prefill"], entry["decode"]) for entry in gateway.requests()} == {("p0", "d0")}


async def chat(client: openai.AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": HELLO}], max_completion_tokens=8, temperature=0
    )
    text = whole.choices[0].message.content
    assert text
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 8
    stream = await client.chat.completions.create(
        model="m",
        messages=[{"role": "user", "content": HELLO}],
        max_completion_tokens=8,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
    assert chunks[-1].usage == whole.usage


async def test_completions(client: openai.AsyncOpenAI) -> None:
    whole = await client.completions.create(model="m", prompt=[1, 2, 3], max_tokens=5)
    stream = await client.completions.create(model="m", prompt=[1, 2, 3], max_tokens=5, stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == whole.choices[0].text


async def test_embeddings(client: openai.AsyncOpenAI, gateway: RunningGateway) -> None:
    """As the client asks for them (base64) and as numbers: the same vectors; of one engine, with nothing handed off."""
    packed = await client.embeddings.create(model="m", input=["one text", "another"])
    plain = await client.embeddings.create(model="m", input=["one text", "another"], encoding_format="float")
    assert [len(each.embedding) for each in packed.data] == [64, 64]
    for one, other in zip(packed.data, plain.data, strict=True):
        assert one.embedding == pytest.approx(other.embedding, rel=1e-5)
    assert packed.data[0].embedding != packed.data[1].embedding
    assert packed.usage.prompt_tokens > 0
    for entry in gateway.requests():
        assert (entry["decode"], "prefill" in entry, entry["outcome"]) == ("d0", False, "completed")


async def test_responses(client: openai.AsyncOpenAI, gateway: RunningGateway) -> None:
    """Whole, and as a stream of events that the client takes apart by name."""
    whole = await client.responses.create(model="m", input=HELLO, instructions="Be short.", max_output_tokens=6)
    assert whole.output_text
    assert whole.usage is not None
    assert whole.usage.output_tokens == 6
    stream = await client.responses.create(
        model="m", input=HELLO, instructions="Be short.", max_output_tokens=6, stream=True
    )
    events = [event async for event in stream]
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == whole.output_text
    assert [entry["output_tokens"] for entry in gateway.requests()] == [6, 6]


async def test_a_conversation_goes_on_with_all_of_its_items(client: openai.AsyncOpenAI) -> None:
    """Without a store on either side."""
    first = await client.responses.create(model="m", input=HELLO, max_output_tokens=3, store=False)
    second = await client.responses.create(
        model="m",
        input=[
            {"role": "user", "content": HELLO},
            {"role": "assistant", "content": first.output_text},
            {"role": "user", "content": "And then?"},
        ],
        max_output_tokens=3,
    )
    assert second.output_text


async def test_errors_are_those_that_the_client_knows(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="does not exist here"):
        await client.embeddings.create(model="other", input="a")
    with pytest.raises(openai.BadRequestError, match="responses are not kept") as refused:
        await client.responses.create(model="m", input="a", previous_response_id="resp_1")
    assert refused.value.param == "previous_response_id"
    with pytest.raises(openai.BadRequestError, match="responses are not kept"):
        await client.responses.create(model="m", input="a", store=True)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve("resp_1")


@pytest.mark.envoy
@needs_envoy
async def test_all_of_it_behind_envoy(tmp_path: Path) -> None:
    """Set up as the operator sets up Envoy Gateway, without agents."""
    async with (
        engine_sim() as (first, _),
        engine_sim() as (second, _),
        running_gateway(
            tmp_path,
            {f"e{n}": f"127.0.0.1:{engine.port}" for n, engine in enumerate((first, second))},
            model={"servedNames": ["m"]},
            face="Picker",
        ) as running,
    ):
        at = PickerAt(running.gateway.ports["ext_proc"], running.gateway.ports["grpc_health"])
        setup = EnvoySetup(response_body=None, survives=True)
        async with (
            envoy([at], setup, tmp_path / "envoy") as front,
            openai.AsyncOpenAI(base_url=f"{front.url}/v1", api_key="key", max_retries=0) as client,
        ):
            await test_models(client)
            await chat(client)
            await test_completions(client)
            assert len((await client.embeddings.create(model="m", input=["one", "two"])).data) == 2
            answer = await client.responses.create(model="m", input=HELLO, max_output_tokens=6)
            assert answer.output_text
            await test_a_conversation_goes_on_with_all_of_its_items(client)
            await test_errors_are_those_that_the_client_knows(client)
