"""The gateway in front of two real vLLM processes, prefill and decode."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from tests.support.gateway_kit import running_gateway
from tests.support.real_vllm import PATIENT, RealVllm


@pytest.mark.vllm
async def test_a_stream_crosses_prefill_and_decode(tmp_path: Path, real: tuple[RealVllm, RealVllm]) -> None:
    """Every token arrives, they are those of one engine alone, and the decode engine pulled the prompt's KV."""
    prefill, decode = real
    body = {"model": "tiny", "prompt": list(range(700, 900)), "max_tokens": 12, "temperature": 0}
    body |= {"return_token_ids": True, "ignore_eos": True}
    counted = {"stream": True, "stream_options": {"include_usage": True}}  # vLLM may join tokens into one event
    addresses = {"p0": f"127.0.0.1:{prefill.port}", "d0": f"127.0.0.1:{decode.port}"}
    async with (
        running_gateway(tmp_path, addresses, ready_s=PATIENT["ready_s"]) as gateway,
        httpx.AsyncClient(timeout=120, trust_env=False) as client,
    ):
        tokens: list[int] = []
        async with client.stream("POST", f"{gateway.url}/v1/completions", json={**body, **counted}) as answer:
            assert answer.status_code == 200, await answer.aread()
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    for choice in json.loads(line[6:])["choices"]:
                        tokens += choice["token_ids"]
        alone = (await client.post(f"{prefill.url}/v1/completions", json=body)).json()
        (entry,) = gateway.requests()
    assert tokens == alone["choices"][0]["token_ids"]
    assert (entry["outcome"], entry["prefill"], entry["decode"], entry["output_tokens"]) == (
        "completed",
        "p0",
        "d0",
        12,
    )
