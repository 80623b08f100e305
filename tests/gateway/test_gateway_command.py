"""`ballast gateway` as a process: start, port 0, drain on SIGTERM, clear errors."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.rotating(4, each=True)

COMMAND = [sys.executable, "-m", "ballast_cli", "gateway"]
SETTINGS = """
model: {servedNames: [tiny]}
discovery: {file: ENDPOINTS}
listeners: {host: 127.0.0.1, proxy: 0, admin: 0}
limits: {drainGraceS: 0}
"""


@contextmanager
def process(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A started gateway and its line about where it listens."""
    with subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        try:
            assert running.stderr is not None
            yield running, json.loads(running.stderr.readline())
        finally:
            running.kill()


def files(tmp_path: Path, endpoints: str = "endpoints: []") -> Path:
    (tmp_path / "endpoints.yaml").write_text(endpoints)
    config = tmp_path / "gateway.yaml"
    config.write_text(SETTINGS.replace("ENDPOINTS", str(tmp_path / "endpoints.yaml")))
    return config


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_a_signal_and_exits_with_0(tmp_path: Path, number: signal.Signals) -> None:
    """It logs its ports, and one JSON line for each request."""
    with process("--config", str(files(tmp_path))) as (running, line):
        assert line["event"] == "listening"
        url = f"http://127.0.0.1:{line['ports']['proxy']}"
        listing = httpx.get(f"{url}/v1/models").json()
        assert [model["id"] for model in listing["data"]] == ["tiny"]
        refused = httpx.post(f"{url}/v1/completions", json={"model": "tiny", "prompt": "a"})
        assert refused.status_code == 503
        assert httpx.get(f"http://127.0.0.1:{line['ports']['admin']}/readyz").status_code == 200
        running.send_signal(number)
        out, _ = running.communicate(timeout=30)
    assert running.returncode == 0
    logged = [json.loads(text) for text in out.splitlines()]
    assert [(entry["outcome"], entry["status"]) for entry in logged] == [("answered", 200), ("rejected", 503)]


@pytest.mark.rotating(3)
@pytest.mark.parametrize(
    ("settings", "arguments", "expected"),
    [
        ("model: {servedNames: [tiny]}", [], "discovery: is missing; add it"),
        ("model: {servedNames: []}\ndiscovery: {file: x}", [], "model.servedNames: must have 1 or more entries"),
        ("model: [", [], "is not YAML"),
        ("model: {servedNames: [a]}\ndiscovery: {file: x}\npolicy: {decode: {type: best}}", [], "policy.decode.type"),
        (SETTINGS, ["--port", "70000"], "listeners.proxy: must be 65535 or less"),
        (SETTINGS, ["--face", "Both sides"], "face: must be 'Proxy', 'Picker' or 'Both'"),
        (SETTINGS, ["--endpoints", "/nowhere/endpoints.yaml"], "/nowhere/endpoints.yaml: cannot be read"),
        (None, [], "gateway.yaml: cannot be read"),
        (
            "model: {servedNames: [a]}\ndiscovery: {kubernetes: {namespace: n, selector: a=b}}\nlisteners: {admin: 0}",
            [],
            "discovery.kubernetes: no service account and no usable kubeconfig",
        ),
    ],
)
def test_wrong_settings_are_reported_in_one_line(
    tmp_path: Path, settings: str | None, arguments: list[str], expected: str
) -> None:
    """The field and the problem; exit status 2."""
    config = tmp_path / "gateway.yaml"
    if settings is not None:
        config.write_text(settings.replace("ENDPOINTS", str(tmp_path / "missing.yaml")))
    done = subprocess.run(
        [*COMMAND, "--config", str(config), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"KUBECONFIG": str(tmp_path / "none")},
    )
    assert done.returncode == 2
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


def test_a_taken_port_is_reported_in_one_line(tmp_path: Path) -> None:
    """And not traced."""
    config = files(tmp_path)
    with process("--config", str(config)) as (_, line):
        done = subprocess.run(
            [*COMMAND, "--config", str(config), "--port", str(line["ports"]["proxy"])],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=os.environ | {"PYTHONWARNINGS": "ignore"},
        )
    assert done.returncode == 2
    port = line["ports"]["proxy"]
    said = f"listeners.proxy: cannot listen on 127.0.0.1:{port}: address already in use; end what listens there"
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_decisions_file_without_a_folder_is_named_by_its_field(tmp_path: Path) -> None:
    config = files(tmp_path)
    config.write_text(config.read_text() + f"logs: {{decisionsFile: {tmp_path}/none/d.jsonl}}\n")
    assert f"logs.decisionsFile: {tmp_path}/none/d.jsonl cannot be written: No such file" in refused(
        "--config", str(config)
    )


def imported_before_listening(config: Path, *arguments: str) -> set[str]:
    """The modules that a gateway has loaded when it says that it listens."""
    command = [sys.executable, "-X", "importtime", *COMMAND[1:], "--config", str(config), *arguments]
    imported = set()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        for line in running.stderr:
            if '"listening"' in line:
                break
            imported.add(line.rpartition("|")[2].strip())
        running.kill()
    return imported


def test_a_proxy_starts_without_what_only_others_need(tmp_path: Path) -> None:
    """A start is paid by each new pod: no Kubernetes client, no gRPC, no frameworks, before the first request."""
    imported = imported_before_listening(files(tmp_path))
    assert {"ballast_gateway.proxy.face", "uvicorn", "uvloop"} <= imported
    heavy = {"kubernetes", "kubernetes_asyncio", "aiohttp", "grpc", "fastapi", "starlette", "httpx", "kopf", "rich"}
    heavy |= {"ballast_sim", "ballast_operator", "ballast_gateway.picker.server", "numpy.random"}
    assert heavy & imported == set()


def test_a_picker_starts_without_grpcs_runtime(tmp_path: Path) -> None:
    """It speaks HTTP/2 by itself; of gRPC it has the messages of health alone, and it makes no certificate yet."""
    config = files(tmp_path)
    ports = "listeners: {host: 127.0.0.1, proxy: 0, admin: 0, extProc: 0, grpcHealth: 0}"
    config.write_text(config.read_text().replace("listeners: {host: 127.0.0.1, proxy: 0, admin: 0}", ports))
    imported = imported_before_listening(config, "--face", "Picker")
    assert "ballast_gateway.h2.server" in imported
    assert not {"grpc", "cryptography"} & imported


def test_both_faces_serve_from_one_process_and_drain_together(tmp_path: Path) -> None:
    """One pipeline behind them; each on a port of its own."""
    config = files(tmp_path)
    ports = "listeners: {host: 127.0.0.1, proxy: 0, admin: 0, extProc: 0, grpcHealth: 0}"
    config.write_text(config.read_text().replace("listeners: {host: 127.0.0.1, proxy: 0, admin: 0}", ports))
    with process("--config", str(config), "--face", "Both") as (running, line):
        assert set(line["ports"]) == {"admin", "proxy", "ext_proc", "grpc_health"}
        ready = httpx.get(f"http://127.0.0.1:{line['ports']['admin']}/readyz")
        assert ready.status_code == 200
        with socket.create_connection(("127.0.0.1", line["ports"]["ext_proc"]), timeout=10):
            pass
        running.send_signal(signal.SIGTERM)
        running.communicate(timeout=60)
    assert running.returncode == 0


# --- several gateways --------------------------------------------------------------------------------------------


def configs(tmp_path: Path, *names: str, **listeners: int) -> list[str]:
    """Arguments for gateways that serve models of these names."""
    arguments = []
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / "endpoints.yaml").write_text("endpoints: []")
        ports = {"host": "127.0.0.1", "proxy": 0, "admin": 0} | listeners
        settings = {
            "model": {"servedNames": [Path(name).stem]},
            "discovery": {"file": str(tmp_path / "endpoints.yaml")},
            "listeners": ports,
            "limits": {"drainGraceS": 0},
        }
        (tmp_path / name).write_text(json.dumps(settings))
        arguments += ["--config", str(tmp_path / name)]
    return arguments


def test_one_process_serves_several_gateways(tmp_path: Path) -> None:
    """Each its model, on ports of its own; logs and metrics say whose they are; one signal drains all."""
    with process(*configs(tmp_path, "chat.yaml", "code.yaml")) as (running, line):
        assert running.stderr is not None
        second = json.loads(running.stderr.readline())
        assert [line["gateway"], second["gateway"]] == ["chat", "code"]
        for each in (line, second):
            url = f"http://127.0.0.1:{each['ports']['proxy']}"
            assert [model["id"] for model in httpx.get(f"{url}/v1/models").json()["data"]] == [each["gateway"]]
            text = httpx.get(f"http://127.0.0.1:{each['ports']['admin']}/metrics").text
            series = [row for row in text.splitlines() if row.startswith("ballast_gateway_requests_total{")]
            assert series
            assert all(f'gateway="{each["gateway"]}"' in row for row in series)
        running.send_signal(signal.SIGTERM)
        out, _ = running.communicate(timeout=60)
    assert running.returncode == 0
    assert [json.loads(text)["gateway"] for text in out.splitlines()] == ["chat", "code"]


def refused(*arguments: str) -> str:
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    return done.stderr


def test_gateways_that_want_one_port_are_refused_by_both_names(tmp_path: Path) -> None:
    said = refused(*configs(tmp_path, "a.yaml", "b.yaml", admin=18431))
    assert f"{tmp_path}/b.yaml: listeners.admin: port 18431 is listeners.admin of {tmp_path}/a.yaml, too" in said
    said = refused(*configs(tmp_path, "a.yaml", admin=18431, proxy=18431))
    assert f"listeners.proxy: port 18431 is listeners.admin of {tmp_path}/a.yaml, too" in said


def test_pod_apis_that_want_one_port_are_refused_by_both_names(tmp_path: Path) -> None:
    """Of two gateways of one process; a gateway's workers have the ports from its own on."""
    (tmp_path / "token").write_text("0123456789abcdef")
    arguments = configs(tmp_path, "a.yaml", "b.yaml", admin=18431)
    for name, own in {"a.yaml": {}, "b.yaml": {"listeners": {"proxy": 0, "admin": 0}}}.items():
        file = tmp_path / name
        more = {"podApi": {"tokenFile": str(tmp_path / "token"), "port": 18430}, **own}
        file.write_text(json.dumps(json.loads(file.read_text()) | more))
    said = refused(*arguments)
    assert f"{tmp_path}/b.yaml: podApi.port: port 18430 is podApi.port of {tmp_path}/a.yaml, too" in said
    said = refused(*arguments[:2], "--workers", "2")
    assert f"podApi.port: port 18431 is listeners.admin of {tmp_path}/a.yaml, too" in said


def test_what_opentelemetry_refuses_as_it_is_loaded_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "-5")
    config = files(tmp_path)
    config.write_text(config.read_text() + "tracing: {endpoint: 'http://127.0.0.1:9'}\n")
    said = refused("--config", str(config))
    assert "tracing: OpenTelemetry refuses its environment (OTEL_*): OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT" in said


def test_a_gateway_that_cannot_start_is_named(tmp_path: Path) -> None:
    """And none is left behind, though the first had started."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        arguments = configs(tmp_path, "a.yaml")
        arguments += configs(tmp_path, "other/a.yaml", proxy=taken.getsockname()[1])
        said = refused(*arguments)
    assert "other/a.yaml: this gateway cannot start" in said
    assert "in use" in said


def test_options_that_several_gateways_cannot_share_are_refused(tmp_path: Path) -> None:
    several = configs(tmp_path, "a.yaml", "b.yaml")
    assert "--port: several gateways cannot share it" in refused(*several, "--port", "0")
    assert "--endpoints: several gateways cannot share it" in refused(*several, "--endpoints", "x.yaml")
    assert "names one file twice" in refused(*several, *several[:2])
