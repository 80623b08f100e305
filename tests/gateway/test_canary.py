"""What clients and engines write stays out of logs, metrics and admin answers: it may be secret."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import httpx
import pytest

from ballast_gateway.logs import JsonFormatter
from tests.support.gateway_kit import RunningGateway, post, raw_exchange, running_gateway
from tests.support.scripted_engine import SSE_HEAD, Asked, chunk, decode_script, json_reply, scripted_engine

pytestmark = pytest.mark.rotating(4, each=True)

CANARY = "CANARY-7f3a"
GOOD = {"model": "tiny", "prompt": f"my secret is {CANARY}", "max_tokens": 3}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": CANARY}]}
BAD: list[tuple[str, Any]] = [
    ("/v1/completions", {**GOOD, "max_tokens": CANARY}),
    ("/v1/completions", {**GOOD, "stream": CANARY}),
    ("/v1/completions", {**GOOD, "stream_options": CANARY}),
    ("/v1/completions", {**GOOD, "temperature": CANARY}),
    ("/v1/completions", {**GOOD, "model": CANARY}),
    ("/v1/completions", {**GOOD, "prompt": {CANARY: CANARY}}),
    ("/v1/completions", {**GOOD, "prompt": [CANARY, 1]}),
    ("/v1/completions", f'{{"prompt": "{CANARY}", "x": {CANARY}'.encode()),
    ("/v1/completions", f'{{"{CANARY}": 1, "{CANARY}": 2, "model": "tiny", "prompt": "a"}}'.encode()),
    ("/v1/completions", f'["{CANARY}"]'.encode()),
    ("/v1/chat/completions", {**CHAT, "messages": CANARY}),
    ("/v1/chat/completions", {**CHAT, "messages": [CANARY]}),
    ("/v1/chat/completions", {**CHAT, "messages": [{"role": "", "content": CANARY}]}),
    ("/v1/chat/completions", {**CHAT, "messages": [{"role": "user", "content": 5.5, "name": CANARY}]}),
    (f"/v1/{CANARY}", GOOD),
]


async def errs(asked: Asked, writer: asyncio.StreamWriter) -> None:
    writer.write(json_reply({"error": {"message": f"cannot do {asked.body}", "type": CANARY}}, 500))


async def refuses(asked: Asked, writer: asyncio.StreamWriter) -> None:
    writer.write(json_reply({"error": {"message": f"cannot do {asked.body}", "type": CANARY}}, 400))


async def errs_in_its_answer(asked: Asked, writer: asyncio.StreamWriter) -> None:
    event = b'data: {"error": {"message": "%b", "code": 500}}\n\n' % CANARY.encode()
    if asked.body.get("stream"):
        writer.write(SSE_HEAD + chunk(event) + b"0\r\n\r\n")
    else:
        writer.write(json_reply({"error": {"message": CANARY}}))


async def says_something_else(asked: Asked, writer: asyncio.StreamWriter) -> None:
    """A token, then what is no event of a stream."""
    head = b'data: {"id":"1","choices":[{"index":0,"text":"a","prompt_token_ids":[1],"token_ids":[2]}]}\n\n'
    writer.write(SSE_HEAD + chunk(head) + chunk(b'data: {"%b": 1}\n\n' % CANARY.encode()) + b"0\r\n\r\n")


async def is_no_http(asked: Asked, writer: asyncio.StreamWriter) -> None:
    writer.write(f"{CANARY}\r\n\r\n".encode())
    writer.close()


ENGINES = (errs, refuses, errs_in_its_answer, says_something_else, is_no_http, decode_script)


async def shown(gateway: RunningGateway) -> str:
    """All that an operator of the gateway can see, but for the messages in its log."""
    gateway.gateway._lines.flush()
    paths = ("/metrics", "/readyz", "/ballast/v1/endpoints", "/ballast/v1/decisions?limit=1000")
    async with httpx.AsyncClient(base_url=gateway.admin_url) as admin:
        answers = [(await admin.get(path)).text for path in paths]
    return "\n".join([gateway.out.getvalue(), *answers])


@pytest.mark.parametrize("level", [logging.INFO, logging.DEBUG], ids=["info", "debug"])
async def test_no_text_of_a_client_or_an_engine_is_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, level: int
) -> None:
    """At debug it is, in the log's messages."""
    caplog.set_level(level, logger="ballast_gateway")
    seen = ""
    for script in ENGINES:
        async with scripted_engine(script) as one, running_gateway(tmp_path, {"f0": one.address}) as gateway:
            for stream in (False, True):
                await raw_exchange(gateway.port, post("/v1/completions", {**GOOD, "stream": stream}), answers=1)
                await raw_exchange(gateway.port, post("/v1/chat/completions", {**CHAT, "stream": stream}), answers=1)
            if script is decode_script:
                for path, body in BAD:
                    [answer] = await raw_exchange(gateway.port, post(path, body), answers=1)
                    assert answer.status in (200, 400, 404)
            assert len(gateway.requests()) >= 4
            seen += await shown(gateway)
    assert CANARY not in seen
    lines = [JsonFormatter().format(record) for record in caplog.records]
    assert any("a leg failed" in line for line in lines)
    found = {line for line in lines if CANARY in line}
    assert bool(found) == (level == logging.DEBUG), found


async def test_a_metrics_page_that_is_none_is_not_quoted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Not in the log, and not as the endpoint's problem."""
    async with scripted_engine(decode_script) as engine:
        engine.metrics = f"vllm:num_requests_running {CANARY}\n".encode()
        async with running_gateway(tmp_path, {"f0": engine.address}, wait=False) as gateway:
            async with asyncio.timeout(20):
                while engine.scrapes < 2:  # noqa: ASYNC110 - the engine counts
                    await asyncio.sleep(0.01)
            assert CANARY not in await shown(gateway)
    assert not [record for record in caplog.records if CANARY in JsonFormatter().format(record)]


async def test_the_client_sees_its_own_value(tmp_path: Path) -> None:
    """It has to find it."""
    async with running_gateway(tmp_path, {}) as gateway:
        body = {**GOOD, "max_tokens": CANARY}
        [answer] = await raw_exchange(gateway.port, post("/v1/completions", body), answers=1)
        assert CANARY in answer.json()["error"]["message"]
        assert gateway.request()["detail"] == "max_tokens: must be a whole number of 1 or more"


async def test_a_list_of_models_is_booked_as_no_generation(tmp_path: Path) -> None:
    """It has an outcome of its own, so that completed requests are those that generated."""
    async with running_gateway(tmp_path, {}) as gateway:
        [answer] = await raw_exchange(gateway.port, b"GET /v1/models HTTP/1.1\r\nhost: g\r\n\r\n", answers=1)
        assert answer.status == 200
        assert gateway.request()["outcome"] == "answered"
        text = await shown(gateway)
    assert 'ballast_gateway_requests_total{model="",outcome="answered",reason=""} 1.0' in text
    assert 'outcome="completed"' not in text
