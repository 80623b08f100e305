"""`ballast traffic`: the recorded traffic of several gateways as one trace."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ballast_cli.main import app
from ballast_sim.workloads import read_trace
from tests.support.gateway_kit import post, raw_exchange, running_gateway
from tests.support.raw_server import canned_server
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


ROW = b'{"arrival_s":1.5,"input_tokens":8,"output_tokens":2,"class":0}\n'
OK = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (OK + b"content-length: 5000\r\n\r\n" + ROW, "broke off"),
        (OK + b"transfer-encoding: chunked\r\n\r\n%x\r\n" % len(ROW) + ROW, "broke off"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "no HTTP"),
        (b"", "cannot be fetched"),
        (OK + b"\r\n<html>\n", "something else than its traffic"),
        (OK + b'\r\n{"arrival_s":"x","input_tokens":8,"class":0}\n', "something else than its traffic"),
    ],
    ids=["short", "chunks", "no-http", "nothing", "page", "types"],
)
async def test_half_an_answer_or_another_one_is_an_error_that_names_the_gateway(
    tmp_path: Path, answer: bytes, said: str
) -> None:
    """Nothing is written: half of the traffic would look like all of it."""
    file = tmp_path / "trace.jsonl"
    async with canned_server(answer) as address:
        command = ["traffic", "--gateway", f"http://{address}", "--output", str(file)]
        result = await asyncio.to_thread(CliRunner().invoke, app, command)
    assert (result.exit_code, file.exists()) == (2, False)
    assert f"http://{address}" in result.output
    assert said in " ".join(result.output.split())


async def test_a_whole_answer_needs_no_length(tmp_path: Path) -> None:
    """In chunks with their end, or until the connection ends."""
    for head, body in ((b"transfer-encoding: chunked\r\n", b"%x\r\n%b\r\n0\r\n\r\n" % (len(ROW), ROW)), (b"", ROW)):
        async with canned_server(OK + head + b"\r\n" + body) as address:
            command = ["traffic", "--gateway", f"http://{address}"]
            result = await asyncio.to_thread(CliRunner().invoke, app, command)
        assert (result.exit_code, result.stdout) == (0, ROW.decode())


@pytest.mark.parametrize("gateway", ["127.0.0.1:9090", "gateway", "ftp://gateway", ""])
def test_a_gateway_without_http_is_refused(gateway: str) -> None:
    """Nobody is asked: the other one may well be right."""
    result = CliRunner().invoke(app, ["traffic", "--gateway", "http://127.0.0.1:1", "--gateway", gateway])
    assert result.exit_code == 2
    assert result.output == f"error: --gateway: {gateway!r} is no address such as http://127.0.0.1:9090\n"


async def test_a_gateway_that_refuses_is_named_without_the_secret_of_the_question() -> None:
    async with canned_server(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n") as address:
        command = ["traffic", "--gateway", f"http://{address}"]
        result = await asyncio.to_thread(CliRunner().invoke, app, command)
    said = f"error: --gateway: http://{address}: answered 404 Not Found; is this its admin port?\n"
    assert (result.exit_code, result.output) == (2, said)


@pytest.mark.parametrize(
    ("answer", "said"),
    [(b"<!doctype html>\n<html>\n", "line 2: unknown columns <!doctype html>"), (b"", "has no rows")],
    ids=["page", "nothing yet"],
)
@pytest.mark.parametrize(
    "command",
    [
        ["simulate", "--endpoints", "1P1D@h20"],
        ["recommend", "--budget", "h20=2"],
        ["calibrate"],
        ["load", "--url", "http://127.0.0.1:1", "--model", "m"],
        ["demo"],
    ],
    ids=lambda words: words[0],
)
async def test_a_trace_by_url_that_is_none_is_named_by_its_url(command: list[str], answer: bytes, said: str) -> None:
    """Not by the file that it was fetched to, which is gone."""
    async with canned_server(OK + b"\r\n" + answer) as address:
        url = f"http://{address}/ballast/v1/traffic"
        result = await asyncio.to_thread(CliRunner().invoke, app, [*command, "--trace", url])
    assert result.exit_code == 2, result.output
    assert "".join(f"error: {url}: {said}".split()) in "".join(result.output.split())


@pytest.mark.parametrize("command", [["load", "--url", "http://127.0.0.1:1", "--model", "m"], ["demo"]])
def test_a_trace_and_a_built_in_workload_are_refused(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "t.csv").write_text("arrival_s,input_tokens,output_tokens\n0,1,1\n")
    asked = [*command, "--trace", str(tmp_path / "t.csv"), "--workload", "chat"]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 2
    assert "--trace, --workload" in result.output


def test_a_setting_of_the_demo_is_named_by_its_option() -> None:
    result = CliRunner().invoke(app, ["demo", "--workload", "chatt"])
    assert result.exit_code == 2
    assert "error: --workload: unknown workload 'chatt'" in result.output


def test_a_rate_beside_a_trace_is_refused_with_the_option_that_works(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("arrival_s,input_tokens,output_tokens\n0,1,1\n")
    load = ["load", "--url", "http://127.0.0.1:1", "--model", "m", "--trace", str(tmp_path / "t.csv"), "--rate", "2"]
    result = CliRunner().invoke(app, load)
    assert result.output == "error: --rate: a trace has its own rate; use --rate-scale\n"
