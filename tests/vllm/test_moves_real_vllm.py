"""A running stream moves between two real vLLM processes, again and again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.gateway_kit import running_gateway
from tests.support.real_vllm import PATIENT, RealVllm
from tests.support.shuffle import shuffle
from tests.support.streams import heard

TOKENS = 600
ATTEMPTS = 8
"""Streams until one has moved: a busy machine joins tokens into events, and then there is seldom a place to cut."""


def request(path: str, number: int) -> dict[str, Any]:
    if "chat" in path:
        return {"messages": [{"role": "user", "content": f"Tell me of the sea, {number} times."}]}
    return {"prompt": list(range(700 + number, 900 + number))}


@pytest.mark.vllm
@pytest.mark.rotating(2)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_a_stream_that_moves_says_what_one_engine_says(
    tmp_path: Path, real: tuple[RealVllm, RealVllm], path: str
) -> None:
    """Greedy: the same text, token by token, the same end and the same usage.

    The model speaks bytes at random, so most tokens end inside of a character: cuts have to wait for the others.
    """
    plain = {"model": "tiny", "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    plain |= {"stream": True, "stream_options": {"include_usage": True}}
    addresses = {f"f{number}": f"127.0.0.1:{server.port}" for number, server in enumerate(real)}
    async with (
        running_gateway(
            tmp_path, addresses, policy={"rescheduling": {"type": "ares"}}, ready_s=PATIENT["ready_s"]
        ) as gateway,
        httpx.AsyncClient(timeout=300, trust_env=False) as client,
    ):
        shuffle(gateway, 0.05)
        for number in range(ATTEMPTS):
            body = plain | request(path, number)
            alone = await heard(client, f"{real[0].url}{path}", body, f"r{number}")
            moved = await heard(client, f"{gateway.url}{path}", body, f"r{number}")
            entry = gateway.requests()[-1]
            assert moved == alone
            assert entry["output_tokens"] == TOKENS
            if entry.get("migrations", 0) >= 1:
                return
    pytest.fail(f"none of {ATTEMPTS} streams moved")
