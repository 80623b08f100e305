"""`ballast engine-sim serve --misbehave`: a process with faults from its start, told more while it runs."""

import json
import signal
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from ballast_cli.demo.ports import free_port
from ballast_cli.main import app
from tests.support.served_engine import serving

pytestmark = pytest.mark.rotating(4, each=True)

BODY = {"prompt": "once upon a time", "max_tokens": 3}
PATH = "/v1/completions"


def post(url: str, body: object) -> httpx.Response:
    return httpx.post(url, json=body, trust_env=False, timeout=20)


def test_a_request_that_kills_the_engine() -> None:
    """kill -9: its connection breaks off, the process leaves no word and no status of its own."""
    die = json.dumps({"fault": "die", "scope": {"prompt": "POISON"}})
    with serving("--misbehave", die) as (process, url):
        assert post(url + PATH, BODY).status_code == 200
        with pytest.raises(httpx.TransportError):
            post(url + PATH, {**BODY, "prompt": "here is POISON"})
        _, errors = process.communicate(timeout=20)
    assert process.returncode == -signal.SIGKILL
    assert "Traceback" not in errors


def test_faults_come_and_go_while_the_process_serves() -> None:
    """It starts with two, is told others on loopback, and refuses connections while it flaps."""
    port = free_port()
    first = json.dumps([{"fault": "status", "status": 429, "scope": {"requests": 1}}, {"fault": "wrong-key"}])
    with serving("--misbehave", first, "--misbehave-api", str(port)) as (process, url):
        control = f"http://127.0.0.1:{port}/engine-sim/misbehave"
        assert [post(url + PATH, BODY).status_code for _ in range(2)] == [429, 401]
        post(control, {"fault": "flap", "down_s": 60, "up_s": 60})
        with pytest.raises(httpx.ConnectError):
            post(url + PATH, BODY)
        post(control, {"fault": "reset", "after": "head"})
        with pytest.raises(httpx.ReadError):
            post(url + PATH, BODY)
        assert post(control, []).json()["faults"] == []
        assert post(url + PATH, BODY).status_code == 200
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 0
    assert f"engine-sim: misbehaves at the command of {control}" in errors


def test_sigterm_with_an_error_event_in_place_of_the_first_token() -> None:
    """A process that was asked to end still takes streams for a while, and gives each an error event."""
    with serving("--misbehave", json.dumps({"fault": "sigterm", "linger_s": 3})) as (process, url):
        process.send_signal(signal.SIGTERM)
        while httpx.get(f"{url}/health", trust_env=False).status_code == 200:
            pass
        answer = post(url + PATH, {**BODY, "stream": True})
        process.communicate(timeout=20)
    error, done = filter(None, answer.text.split("\n\n"))
    assert (answer.status_code, done) == (200, "data: [DONE]")
    assert json.loads(error.removeprefix("data: "))["error"]["message"].startswith("EngineCore encountered an issue.")
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--misbehave", "{"], "--misbehave: must be a fault as JSON"),
        (["--misbehave", '{"fault":"status","status":200}'], "--misbehave: faults[0].status: must be 400, "),
        (["--misbehave-api", "here"], "--misbehave-api: must be a port from 0 to 65535, or HOST:PORT, not 'here'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_options_that_cannot_work_are_refused(arguments: list[str], message: str) -> None:
    """Status 2, the option, the field and the fix."""
    result = CliRunner().invoke(app, ["engine-sim", "serve", "m", *arguments])
    assert result.exit_code == 2
    assert message in result.output


def examples() -> list[str]:
    """The faults in the table of docs/engine-sim/misbehaviour.md."""
    page = (Path(__file__).parents[2] / "docs" / "engine-sim" / "misbehaviour.md").read_text(encoding="utf-8")
    return [part for part in page.split("`") if part.startswith(('{"fault"', '[{"fault"'))]


def test_the_page_has_an_example_of_every_fault_and_they_are_right() -> None:
    """Each can be read, and no fault is missing."""
    from ballast_sim.engine_sim.misbehave.faults import NAMES, read_faults

    shown = {fault.fault for example in examples() for fault in read_faults(example)}
    assert shown == set(NAMES)
