"""`ballast conformance epp`, as a user types it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, cast

from typer.testing import CliRunner

from ballast_cli.main import app
from ballast_conformance import suite
from ballast_conformance.grpc_call import Call, End
from ballast_conformance.http2 import Headers
from tests.conformance.pickers import ENDPOINTS, Honest, running
from tests.conformance.wrong_pickers import ListsOnly, NoMetadata
from tests.support.scripted_engine import silent_server

QUICK = ("--model", "m", "--only", "destination.*", "--only", "subset.*")


async def command(*arguments: str) -> Any:
    return await asyncio.to_thread(CliRunner().invoke, app, ["conformance", "epp", *arguments])


async def test_a_conformant_picker_exits_0_with_a_line_for_each_case(tmp_path: Path) -> None:
    """And a file for programs."""
    file = tmp_path / "results.json"
    async with running(Honest) as picker:
        result = await command(f"127.0.0.1:{picker.port}", *QUICK, "--json", str(file))
    assert result.exit_code == 0, result.output
    lines = [line for line in result.stdout.splitlines() if line.startswith(("pass", "fail", "skip"))]
    assert len(lines) == len(suite.chosen(QUICK[3::2]))
    assert "pass  MUST    subset.one " in result.stdout
    document = json.loads(file.read_text())
    assert document["conformant"]
    assert document["endpoints"] == list(ENDPOINTS)
    assert {case["verdict"] for case in document["cases"]} == {"pass", "skip"}


async def test_a_failed_must_exits_1_and_says_what_was_expected_and_seen() -> None:
    """On the case's line."""
    async with running(NoMetadata) as picker:
        result = await command(f"127.0.0.1:{picker.port}", *QUICK)
    assert result.exit_code == 1
    [line] = [line for line in result.stdout.splitlines() if "destination.metadata" in line]
    assert line.startswith("fail  MUST")
    assert "Expected: dynamic_metadata has envoy.lb / x-gateway-destination-endpoint" in line
    assert "Seen: request_headers, request_body." in line


async def test_a_failed_may_is_told_and_exits_0() -> None:
    """Only what the protocol demands counts."""
    async with running(ListsOnly) as picker:
        result = await command(f"127.0.0.1:{picker.port}", *QUICK)
    assert result.exit_code == 0, result.output
    assert "fail  MAY     subset.string" in result.stdout


async def test_json_to_standard_output_is_json_alone() -> None:
    """For pipes."""
    async with running(Honest) as picker:
        result = await command(f"127.0.0.1:{picker.port}", *QUICK, "--json", "-")
    assert json.loads(result.stdout)["conformant"]


async def test_a_model_is_needed_where_no_endpoint_can_be_asked() -> None:
    """The message says what was tried, and which option helps."""
    async with running(Honest) as picker:
        result = await command(f"127.0.0.1:{picker.port}", "--endpoints", "127.0.0.1:1")
    assert result.exit_code == 2
    assert "--model" in result.stderr


async def test_what_cannot_work_exits_2_with_a_reason() -> None:
    """Before anything is asked."""
    for arguments, reason in {
        (): "name the picker",
        ("nowhere",): "is not HOST:PORT",
        ("127.0.0.1:1", "--only", "no.such"): "no case matches",
        ("127.0.0.1:1", "--timeout", "1"): "no HTTP/2 server at 127.0.0.1:1",
    }.items():
        result = await command(*arguments)
        assert result.exit_code == 2, arguments
        assert reason in result.stderr


async def test_digits_that_are_no_numbers_are_refused_in_words() -> None:
    """A superscript two is a digit to Python, and no number."""
    told = await command("127.0.0.1:\N{SUPERSCRIPT TWO}")
    assert (told.exit_code, told.stderr) == (2, "error: HOST:PORT: '127.0.0.1:\N{SUPERSCRIPT TWO}' is not HOST:PORT\n")


def test_a_status_that_is_no_number_is_none() -> None:
    """Of a picker that answers garbage: its byte 0xB2 is a superscript two."""

    class Opened:
        secure = False

        def open(self, fields: object) -> None:
            pass

    call = Call(cast("Any", Opened()), "/health", "picker")
    call._take(Headers({":status": "200", "grpc-status": "\xb2"}, end=True))
    assert call._end == End(None, "no gRPC status, HTTP 200")


async def test_a_port_that_says_nothing_is_said_to_say_nothing() -> None:
    """With the time that it had, for either transport."""
    async with silent_server() as address:
        result = await command(address, "--timeout", "0.3")
    assert result.exit_code == 2
    reason = "no answer within 0.3 s"
    assert f"no HTTP/2 server at {address} (without TLS: {reason}; with TLS: {reason})" in result.stderr


def test_the_list_names_each_case_once_with_its_level_and_source() -> None:
    """Ids are what results and options name."""
    result = CliRunner().invoke(app, ["conformance", "epp", "--list"])
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert len(lines) == len(suite.ALL) == len({line.split()[1] for line in lines})
    assert all(line.split()[0] in {"MUST", "SHOULD", "MAY"} for line in lines)
