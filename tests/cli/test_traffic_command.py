"""`ballast traffic`: the recorded traffic of several gateways as one trace."""

from __future__ import annotations

import asyncio
from pathlib import Path

from typer.testing import CliRunner

from ballast_cli.main import app
from ballast_sim.workloads import read_trace
from tests.support.gateway_kit import post, raw_exchange, running_gateway
from tests.support.scripted_engine import SSE_HEAD, Asked, chunk, scripted_engine, vllm_events


async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
    events = vllm_events(["a", "b", "c"], prompt=asked.body["prompt"])
    writer.write(SSE_HEAD + b"".join(map(chunk, events)) + b"0\r\n\r\n")


async def test_two_gateways_give_one_trace_with_shared_prefixes(tmp_path: Path) -> None:
    """Two conversations, each with a turn at either gateway."""
    file = tmp_path / "trace.jsonl"
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    async with (
        scripted_engine(script) as engine,
        running_gateway(tmp_path / "a", {"f0": engine.address}) as first,
        running_gateway(tmp_path / "b", {"f0": engine.address}) as second,
    ):
        for tokens in (64, 128):
            for talk in (1, 2):
                gateway = first if (talk + tokens // 64) % 2 else second
                body = {"model": "tiny", "prompt": [talk] * tokens, "max_tokens": 3, "stream": True}
                await raw_exchange(gateway.port, post("/v1/completions", body), answers=1)
        urls = [option for each in (first, second) for option in ("--gateway", each.admin_url + "/")]
        command = ["traffic", *urls, "--minutes", "5", "--output", str(file)]
        result = await asyncio.to_thread(CliRunner().invoke, app, command)
    assert result.exit_code == 0, result.output
    assert [list(each.hash_ids or ()) for each in read_trace(file)] == [[0], [1], [0, 2], [1, 3]]
    assert [each.output_tokens for each in read_trace(file)] == [3] * 4


async def test_a_gateway_that_does_not_answer_is_an_error_that_names_it(tmp_path: Path) -> None:
    """And nothing is written."""
    file = tmp_path / "trace.jsonl"
    command = ["traffic", "--gateway", "http://127.0.0.1:1", "--output", str(file)]
    result = await asyncio.to_thread(CliRunner().invoke, app, command)
    assert (result.exit_code, file.exists()) == (2, False)
    assert "http://127.0.0.1:1" in result.output
