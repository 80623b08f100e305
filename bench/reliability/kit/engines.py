"""engine-sims as processes: they misbehave by command, are killed, stopped, and started again at the same address."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from ballast_cli.demo.ports import free_port
from bench.reliability.kit.processes import Program

MODEL = "tiny"
PROFILE = "h200-qwen3-32b"
"""A step takes 20 ms or so: some 50 tokens a second in each stream, as users have it."""
_ROLES = {"p": "kv_producer", "d": "kv_consumer", "f": "kv_both"}
_WHERE = re.compile(r"on http://127\.0\.0\.1:\d+\n(?:.*\n)*?.*command of http")


class Engine:
    """One engine-sim. Names begin with p (prefill), d (decode) or f (flexible)."""

    def __init__(self, name: str, folder: Path, *flags: str, profile: str = PROFILE) -> None:
        self.name = name
        self.port, self._control = free_port(), free_port()
        transfer = {"kv_connector": "NixlConnector", "kv_role": _ROLES[name[0]]}
        self.program = Program(
            name,
            [
                *(sys.executable, "-m", "ballast_cli", "engine-sim", "serve", MODEL, "--host", "127.0.0.1"),
                *("--port", str(self.port), "--misbehave-api", str(self._control), "--profile", profile),
                *("--kv-transfer-config", json.dumps(transfer), *flags),
            ],
            folder,
            {"VLLM_NIXL_SIDE_CHANNEL_PORT": "0"},
        )

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"127.0.0.1:{self.port}"

    @property
    def role(self) -> str:
        """Its role, by its name."""
        return {"p": "prefill", "d": "decode", "f": "flexible"}[self.name[0]]

    async def start(self) -> None:
        """Start it, or start it again, and wait until it listens."""
        self.program.spawn()
        await self.program.until_said(lambda said: _WHERE.search(said) is not None, "where it listens")

    def stop(self) -> None:
        """SIGSTOP: its sockets stay open, and nothing answers."""
        self.program.signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        self.program.signal(signal.SIGCONT)

    async def kill(self) -> None:
        """kill -9."""
        await self.program.kill()

    async def misbehave(self, *faults: dict[str, Any]) -> dict[str, Any]:
        """Have these faults and no others (docs/engine-sim/misbehaviour.md); the state."""
        async with httpx.AsyncClient(timeout=20.0, trust_env=False) as client:
            answer = await client.post(f"http://127.0.0.1:{self._control}/engine-sim/misbehave", json=list(faults))
        answer.raise_for_status()
        return dict(answer.json())

    async def given(self) -> int:
        """How many requests got one of the faults that are on."""
        async with httpx.AsyncClient(timeout=20.0, trust_env=False) as client:
            state = (await client.get(f"http://127.0.0.1:{self._control}/engine-sim/misbehave")).json()
        return sum(each["given"] for each in state["faults"])

    async def metric(self, name: str) -> float:
        """The sum of the samples of `/metrics` whose line begins so."""
        async with httpx.AsyncClient(timeout=20.0, trust_env=False) as client:
            page = (await client.get(f"http://{self.address}/metrics")).text
        return sum(float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(name))


def endpoints_text(engines: Sequence[Engine]) -> str:
    """An endpoints file with these engines."""
    entries = [{"name": each.name, "address": each.address, "role": each.role} for each in engines]
    return json.dumps({"endpoints": entries})
