"""`ballast agent`: small and quick to start, strict about its flags, and ended in order."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from ballast_api.gateway_settings import Limits
from ballast_core.model import Role
from ballast_gateway.agent.command import main, read
from ballast_gateway.agent.settings import BadSetting
from ballast_gateway.podapi.plan import Place, Plan
from tests.support.agents import plan_header
from tests.support.gateway_kit import post, raw_exchange
from tests.support.pod_api_calls import TOKEN
from tests.support.scripted_engine import SSE_HEAD, Asked, chunk, scripted_engine, vllm_events

REQUIRED = {"BALLAST_TOKEN_FILE": "/token", "POD_NAME": "pod-a", "POD_IP": "10.0.0.7"}


def test_an_agent_is_started_without_what_makes_a_gateway_large() -> None:
    """Its memory is paid in every engine's pod."""
    heavy = {"numpy", "pydantic", "fastapi", "prometheus_client", "typer", "rich", "yaml", "uvicorn", "kubernetes"}
    code = (
        "import asyncio, sys, pathlib, tempfile\n"
        "from ballast_gateway.agent.command import read\n"
        "from ballast_gateway.agent.app import Agent\n"
        "token = pathlib.Path(tempfile.mkdtemp()) / 'token'\n"
        "token.write_text('0123456789abcdef')\n"
        "arguments = ['--port', '0', '--pod-api-port', '0', '--host', '127.0.0.1', '--name', 'a', '--address', 'h:1']\n"
        "settings, _ = read([*arguments, '--token-file', str(token)], {})\n"
        "async def run():\n"
        "    agent = Agent(settings)\n"
        "    await agent.start()\n"
        "    await agent.close()\n"
        "asyncio.run(run())\n"
        f"print(sorted({heavy!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_console_script_takes_the_short_way() -> None:
    """`ballast agent` imports neither the other commands nor their libraries."""
    code = (
        "import sys; sys.argv = ['ballast', 'agent', '--engine', 'x']\n"
        "from ballast_cli.start import run\n"
        "try:\n    run()\n"
        "except SystemExit as end:\n    print(end.code, sorted({'typer', 'numpy', 'pydantic'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "2 []\n"
    assert done.stderr.startswith("--token-file: is missing")


def test_a_sidecar_is_set_by_its_environment_and_flags_win() -> None:
    """The downward API gives name and address."""
    settings, level = read([], REQUIRED)
    assert (settings.name, settings.address, settings.engine) == ("pod-a", "10.0.0.7:8000", "127.0.0.1:8200")
    assert (settings.trust_prefiller_header, settings.rescue, level) == (False, True, "info")
    more = {**REQUIRED, "BALLAST_PORT": "8001", "BALLAST_TRUST_PREFILLER_HEADER": "true", "POD_IP": "fd00::7"}
    settings, _ = read(["--pod-api-port", "9005", "--no-rescue"], more)
    assert (settings.address, settings.pod_api_port) == ("[fd00::7]:8001", 9005)
    assert (settings.trust_prefiller_header, settings.rescue) == (True, False)


@pytest.mark.parametrize(
    ("arguments", "environment", "says"),
    [
        ([], {}, "--token-file"),
        ([], {"BALLAST_TOKEN_FILE": "/token", "POD_NAME": "a"}, "POD_IP"),
        ([], REQUIRED | {"POD_NAME": ""}, "POD_NAME"),
        ([], REQUIRED | {"POD_NAME": "a/b"}, "--name"),
        (["--engine", "8200"], REQUIRED, "--engine"),
        (["--engine", "localhost:0"], REQUIRED, "--engine"),
        (["--engine", "127.0.0.1:8200:1"], REQUIRED, "--engine"),
        (["--engine", "fd00::7:8200"], REQUIRED, "--engine"),
        (["--address", "10.0.0.7:8000/"], REQUIRED, "--address"),
        (["--port", "-1"], REQUIRED, "--port"),
        (["--port", "70000"], REQUIRED, "--port"),
        (["--pod-api-port", "x"], REQUIRED, "--pod-api-port"),
        (["--drain-timeout", "nan"], REQUIRED, "--drain-timeout"),
        (["--drain-timeout", "soon"], REQUIRED, "--drain-timeout"),
        (["--log-level", "loud"], REQUIRED, "--log-level"),
        (["--unknown"], REQUIRED, "--unknown"),
        ([], REQUIRED | {"BALLAST_TRUST_PREFILLER_HEADER": "maybe"}, "BALLAST_TRUST_PREFILLER_HEADER"),
        ([], REQUIRED | {"BALLAST_PORT": "http"}, "--port"),
    ],
)
def test_wrong_settings_name_their_flag(arguments: list[str], environment: dict[str, str], says: str) -> None:
    """And nothing is started."""
    with pytest.raises(BadSetting, match=says.replace("-", "[-]")):
        read(arguments, environment)


@pytest.mark.parametrize(
    ("flag", "field"),
    [
        ("--prefill-timeout", "prefillTimeoutS"),
        ("--idle-timeout", "idleTimeoutS"),
        ("--drain-timeout", "drainTimeoutS"),
        ("--max-body-mib", "maxBodyBytes"),
    ],
)
def test_bounds_are_those_of_the_gateways_limits(flag: str, field: str) -> None:
    """What would refuse every request is refused at the start, by both."""
    with pytest.raises(ValidationError, match=field):
        Limits.model_validate({field: 0})
    with pytest.raises(BadSetting, match=flag.replace("-", "[-]")):
        read([flag, "0"], REQUIRED)
    Limits.model_validate({field: 1})
    read([flag, "1"], REQUIRED)


@pytest.mark.parametrize("flag", ["--port", "--pod-api-port"])
def test_a_port_that_is_taken_is_named_with_its_flag(
    flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, and status 2."""
    (tmp_path / "token").write_bytes(TOKEN)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = {"--port": "0", "--pod-api-port": "0", flag: str(taken.getsockname()[1])}
        arguments = [word for each in ports.items() for word in each]
        environment = REQUIRED | {"BALLAST_TOKEN_FILE": str(tmp_path / "token")}
        assert main(["--host", "127.0.0.1", "--address", "h:1", *arguments], environment) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{flag} {ports[flag]}")


def test_a_token_file_that_cannot_be_used_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Missing, or too short a token: the flag, the file, and what it is to hold."""
    short = tmp_path / "token"
    short.write_text("short")
    for file in (tmp_path / "none", short):
        arguments = ["--port", "0", "--pod-api-port", "0", "--address", "h:1"]
        assert main(arguments, REQUIRED | {"BALLAST_TOKEN_FILE": str(file)}) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"--token-file: {file}: ")
        assert "one a line" in line or "one token a line" in line


async def test_on_sigterm_running_streams_end_first(tmp_path: Path) -> None:
    """Then the process ends with status 0."""
    go_on = asyncio.Event()

    async def waiting(asked: Asked, writer: asyncio.StreamWriter) -> None:
        events = vllm_events(["a", "b", "c"], usage=bool(asked.body.get("stream_options")))
        writer.write(SSE_HEAD + chunk(events[0]))
        await go_on.wait()
        writer.write(b"".join(chunk(event) for event in events[1:]) + b"0\r\n\r\n")

    (tmp_path / "token").write_bytes(TOKEN)
    async with scripted_engine(waiting) as engine:
        ports = ("--port", "0", "--pod-api-port", "0", "--host", "127.0.0.1", "--address", "127.0.0.1:1")
        flags = (*ports, "--name", "d0", "--engine", engine.address, "--token-file", str(tmp_path / "token"))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "ballast_cli", "agent", *flags), stderr=asyncio.subprocess.PIPE
        )
        assert process.stderr is not None
        said = json.loads(await asyncio.wait_for(process.stderr.readline(), 60))
        body = {"model": "tiny", "prompt": [1, 2, 3], "max_tokens": 3, "stream": True}
        planned = plan_header(Plan(id="r1", by="gw", decode=Place("d0", "127.0.0.1:1", Role.DECODE)))
        request = post("/v1/completions", body, planned)
        asking = asyncio.create_task(raw_exchange(said["ports"]["openai"], request, answers=1))
        while not engine.asked:  # noqa: ASYNC110 - the other side is a process
            await asyncio.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert "draining" in json.loads(await asyncio.wait_for(process.stderr.readline(), 60))["message"]
        go_on.set()
        (answer,) = await asking
        assert answer.whole
        assert answer.body.endswith(b"data: [DONE]\n\n")
        assert await asyncio.wait_for(process.wait(), 60) == 0
