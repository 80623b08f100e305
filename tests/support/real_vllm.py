"""Real `vllm serve` processes on the CPU, with a tiny random model."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from ballast_cli.demo.ports import free_port
from ballast_gateway.proxy.bodies import ASK_FOR_HANDLE

ROOT = Path(__file__).parents[2]
BIN = ROOT / ".tools" / "vllm" / "bin"
START_S = 420.0
BLOCK_SIZE = 32  # the smallest that the CPU backend takes
MAX_MODEL_LEN = 2048
LEASE_S = 90  # an engine that holds KV polls without a pause: with few cores, others then wait for theirs

_HANDSHAKES = 5

PATIENT: dict[str, Any] = {
    "scrape": {"intervalS": 1.0, "timeoutS": 30.0},
    "watch": {"enabled": False},
    "ready_s": 2 * LEASE_S,
}
"""Engines that hold KV poll without a pause: with few cores, one may be silent for long, and then goes on. That the
watch takes it for hung is right, and tested elsewhere."""


@dataclass(frozen=True, slots=True)
class RealVllm:
    """One server."""

    role: str
    port: int
    log: Path

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"


def prefill_and_decode(folder: Path) -> AbstractContextManager[tuple[RealVllm, RealVllm]]:
    """A producer and a consumer that hand KV over by NIXL."""
    return _pair(folder, {"producer": {"kv_role": "kv_producer"}, "consumer": {"kv_role": "kv_consumer"}})


def flexible_pair(folder: Path) -> AbstractContextManager[tuple[RealVllm, RealVllm]]:
    """Two that do both and read parts of prompts from each other; they keep KV for `LEASE_S`."""
    extra = {"bidirectional_kv_xfer": True, "kv_lease_duration": LEASE_S}
    config = {"kv_role": "kv_both", "kv_connector_extra_config": extra}
    return _pair(folder, {"first": config, "second": config})


def warm_up(first: RealVllm, second: RealVllm) -> None:
    """A first request compiles, and a first hand-off shakes hands, which vLLM gives up with a 500 after some seconds if
    both are busy: then once more. Call it for each way on its own."""
    with httpx.Client(timeout=300, trust_env=False) as client:

        def generate(server: RealVllm, **more: object) -> httpx.Response:
            body = {"model": "tiny", "prompt": list(range(1600, 1700)), "max_tokens": 2, **more}
            return client.post(f"{server.url}/v1/completions", json=body)

        generate(second, prompt=list(range(1700, 1800))).raise_for_status()
        for _ in range(_HANDSHAKES):
            handle = generate(first, kv_transfer_params=ASK_FOR_HANDLE).raise_for_status().json()["kv_transfer_params"]
            handed = generate(second, kv_transfer_params=handle)
            if handed.status_code == 200:
                return
        handed.raise_for_status()


@contextmanager
def one_engine(folder: Path, *arguments: str, **environment: str) -> Iterator[RealVllm]:
    """One server that hands nothing over, with further arguments and environment."""
    model = folder / "tiny"
    subprocess.run([BIN / "python", "-m", "tiny_model", model], env=_environment(), check=True, timeout=300)
    with _serve(model, folder, "alone", None, 0, *arguments, **environment) as server:
        _wait(server)
        yield server


@contextmanager
def _pair(folder: Path, transfers: Mapping[str, Mapping[str, object]]) -> Iterator[tuple[RealVllm, RealVllm]]:
    model = folder / "tiny"
    subprocess.run([BIN / "python", "-m", "tiny_model", model], env=_environment(), check=True, timeout=300)
    with ExitStack() as stack:
        servers = [
            stack.enter_context(_serve(model, folder, role, transfer, core))
            for core, (role, transfer) in enumerate(transfers.items())
        ]
        for server in servers:
            _wait(server)
        yield servers[0], servers[1]


def _environment(**more: str) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT / "tools"),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "UCX_NET_DEVICES": "lo",
        "UCX_TLS": "tcp,self,sm",
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
        **more,
    }


@contextmanager
def _serve(
    model: Path,
    folder: Path,
    role: str,
    config: Mapping[str, object] | None,
    core: int,
    *arguments: str,
    **more: str,
) -> Iterator[RealVllm]:
    server = RealVllm(role, free_port(), folder / f"{role}.log")
    transfer = {"kv_connector": "NixlConnector", "kv_buffer_device": "cpu", **(config or {})}
    command: list[str] = [
        *(str(BIN / "vllm"), "serve", str(model), "--served-model-name", "tiny", "--host", "127.0.0.1"),
        *("--port", str(server.port), "--dtype", "float32", "--max-model-len", str(MAX_MODEL_LEN)),
        *("--enforce-eager", "--seed", "7", "--max-num-seqs", "16", "--block-size", str(BLOCK_SIZE)),
        *(() if config is None else ("--kv-transfer-config", json.dumps(transfer))),
        *arguments,
    ]
    cores = os.cpu_count() or 1
    environment = _environment(
        VLLM_CPU_OMP_THREADS_BIND=str(core % cores), VLLM_NIXL_SIDE_CHANNEL_PORT=str(free_port()), **more
    )
    with server.log.open("wb") as log:
        process = subprocess.Popen(
            command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, cwd=folder
        )
        try:
            yield server
        finally:
            _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """The server and the processes that it started: it leads a session of its own."""
    process.send_signal(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(30)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)


def _wait(server: RealVllm) -> None:
    ends_s = time.monotonic() + START_S
    while time.monotonic() < ends_s:
        try:
            if httpx.get(f"{server.url}/health", timeout=2, trust_env=False).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.5)
        if "Traceback" in (text := server.log.read_text(errors="replace")) and "EngineCore failed" in text:
            break
    raise AssertionError(f"vllm serve ({server.role}) did not start:\n{server.log.read_text(errors='replace')[-4000:]}")
