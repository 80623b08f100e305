"""The picker's own transport beside grpc.aio, the reference: the same exchanges give the same bytes and books."""

from __future__ import annotations

import asyncio
import gc
import random
from pathlib import Path
from typing import Any

import pytest
from envoy.config.core.v3 import base_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb

from ballast_api.gateway_settings import Limits
from ballast_gateway.picker import codec, h2_transport
from ballast_gateway.picker.messages import BodyMode
from ballast_gateway.picker.transport import Listen
from tests.gateway.test_keys import team, write
from tests.support import grpc_transport
from tests.support.h2_client import Client
from tests.support.picker_builders import MODEL, endpoint_at, picker

ENDPOINTS = [endpoint_at(f"10.0.0.{n}:8000") for n in range(1, 5)]
BODIES = (
    f'{{"model":"{MODEL}","prompt":"hello"}}'.encode(),
    f'{{"model":"{MODEL}","prompt":"hello","stream":true,"kv_transfer_params":{{}}}}'.encode(),
    f'{{"model":"{MODEL}","prompt":"{"long " * 5_000}"}}'.encode(),
    b'{"model":"other","prompt":"hello"}',
    b"{",
    b"x" * 40_000,
)
BROKEN = b"\xff\xff\xff"


def _headers(rng: random.Random, config: pb.ProtocolConfiguration, *, end: bool) -> Any:
    path = rng.choice(("/v1/completions", "/v1/completions", "/v1/chat/completions", "/nowhere"))
    values = {":path": path, ":method": "POST", "content-type": "application/json", "x-api-key": "one"}
    if rng.random() < 0.5:
        values["x-request-id"] = f"r-{rng.randrange(5)}"
    pairs = [base_pb2.HeaderValue(key=key, raw_value=value.encode()) for key, value in values.items()]
    headers = pb.HttpHeaders(headers=base_pb2.HeaderMap(headers=pairs), end_of_stream=end)
    return pb.ProcessingRequest(request_headers=headers, protocol_config=config)


def exchange(rng: random.Random) -> list[bytes]:
    """The messages of one stream: a request, mostly with its response; now and then something is wrong."""
    modes = pb.ProtocolConfiguration(
        request_body_mode=rng.choice(list(BodyMode)).value,
        response_body_mode=rng.choice((0, 1, 4)),
    )
    body = rng.choice(BODIES)
    messages: list[Any] = [_headers(rng, modes, end=rng.random() < 0.1)]
    size = rng.choice((len(body), 5000, 60_000))
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    by_trailers = rng.random() < 0.1
    for n, part in enumerate(parts):
        end = n == len(parts) - 1 and not by_trailers
        messages.append(pb.ProcessingRequest(request_body=pb.HttpBody(body=part, end_of_stream=end)))
    if by_trailers:
        messages.append(pb.ProcessingRequest(request_trailers=pb.HttpTrailers()))
    if rng.random() < 0.7:
        messages.append(pb.ProcessingRequest(response_headers=pb.HttpHeaders()))
        messages += [pb.ProcessingRequest(response_body=pb.HttpBody(body=b"data: {}\n\n" * 50)) for _ in range(3)]
        messages.append(pb.ProcessingRequest(response_body=pb.HttpBody(body=b"", end_of_stream=True)))
    raw = [bytes(message.SerializeToString()) for message in messages]
    if rng.random() < 0.1:
        raw.insert(rng.randrange(len(raw) + 1), BROKEN)
    return raw[: rng.randrange(1, len(raw) + 1)] if rng.random() < 0.2 else raw


async def _answers(port: int, exchanges: list[list[bytes]]) -> list[tuple[list[bytes], str | None]]:
    """Of each exchange the answers, and the status of its stream."""
    client = await Client.connect(port)
    async with asyncio.timeout(60):
        answers = [await client.call(codec.METHOD, messages) for messages in exchanges]
    await client.aclose()
    return [(answer.messages, answer.status) for answer in answers]


async def _seen(listen: Listen, exchanges: list[list[bytes]]) -> tuple[Any, Any, Any, int]:
    limits = Limits(max_body_bytes=30_000)
    async with picker(ENDPOINTS, limits=limits, listen=listen, scrape_interval_s=1e-6) as running:
        answers = await _answers(running.server.port, exchanges)
        async with asyncio.timeout(10):
            while running.in_flight and not running.all_idle():  # noqa: ASYNC110 (the server's own steps)
                await asyncio.sleep(0.01)
        records = [(record.id, record.status, record.outcome, record.reason) for record in running.records]
        return answers, running.events, records, running.in_flight


@pytest.mark.parametrize("seed", range(4))
async def test_the_same_exchanges_give_the_same_messages(seed: int) -> None:
    """Answers, statuses, events, request log, and what stays booked: every body mode, and what is wrong."""
    rng = random.Random(seed)
    exchanges = [exchange(rng) for _ in range(40)]
    ours = await _seen(h2_transport.listen, exchanges)
    theirs = await _seen(grpc_transport.listen, exchanges)
    for number, (own, reference) in enumerate(zip(ours[0], theirs[0], strict=True)):
        assert own == reference, f"exchange {number}"
    assert ours[1:] == theirs[1:]
    assert len({status for _, status in ours[0]}) > 1


@pytest.mark.parametrize("keyed", [False, True])
async def test_streams_that_have_ended_leave_no_reference_cycles(keyed: bool, tmp_path: Path) -> None:
    """A collection would have to find them: each walks what is in flight, and holds up whoever asks meanwhile."""
    rng = random.Random(7)
    exchanges = [exchange(rng) for _ in range(60)]
    keys = write(tmp_path / "keys", team("a", "one")) if keyed else None
    async with picker(ENDPOINTS, scrape_interval_s=1e-6, keys=keys) as running:

        async def left(some: list[list[bytes]]) -> int:
            gc.collect()
            await _answers(running.server.port, some)
            async with asyncio.timeout(10):
                while running.in_flight and not running.all_idle():  # noqa: ASYNC110 (the server's own steps)
                    await asyncio.sleep(0.01)
            return gc.collect()

        gc.disable()
        try:
            found = [await left(exchanges[:10]), await left(exchanges)]
        finally:
            gc.enable()
    assert found[1] - found[0] < 50, "garbage grows with the number of streams"
