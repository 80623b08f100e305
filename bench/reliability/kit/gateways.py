"""`ballast gateway` as a process, of the installation that is tried."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from bench.reliability.kit.engines import MODEL, Engine, endpoints_text
from bench.reliability.kit.installation import Installation
from bench.reliability.kit.processes import START_S, Program, StartFailed


class GatewayProcess:
    """One gateway in front of these engines. Its ports are taken at its first start and kept at the next ones."""

    def __init__(
        self,
        installation: Installation,
        engines: Sequence[Engine],
        folder: Path,
        name: str = "gateway",
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """`settings` go over the defaults, as far as the installation knows them."""
        self._endpoints = folder / f"{name}.endpoints.yaml"
        self._config = folder / f"{name}.yaml"
        self._endpoints.write_text(endpoints_text(engines), encoding="utf-8")
        self._settings: dict[str, Any] = {
            "model": {"servedNames": [MODEL]},
            "discovery": {"file": str(self._endpoints)},
            "listeners": {"host": "127.0.0.1", "proxy": 0, "admin": 0, "extProc": 0, "grpcHealth": 0},
            "limits": {"drainGraceS": 0},
        }
        for key, value in installation.known(settings or {}).items():
            present = self._settings.get(key)
            merged = {**present, **value} if isinstance(present, dict) and isinstance(value, dict) else value
            self._settings[key] = merged
        self.ports: dict[str, int] = {}
        self.program = Program(name, [*installation.command, "gateway", "--config", str(self._config)], folder)

    @property
    def port(self) -> int:
        """Of the OpenAI API."""
        return self.ports["proxy"]

    @property
    def admin_url(self) -> str:
        """Of the admin API."""
        return f"http://127.0.0.1:{self.ports['admin']}"

    async def start(self, *, ready: bool = True) -> None:
        """Start it, or start it again, and wait until it is ready (all endpoints scraped, dead ones too)."""
        names = {"proxy": "proxy", "admin": "admin", "ext_proc": "extProc", "grpc_health": "grpcHealth"}
        self._settings["listeners"] |= {names[name]: port for name, port in self.ports.items()}
        self._config.write_text(json.dumps(self._settings), encoding="utf-8")
        self.program.spawn()
        await self.program.until_said(lambda said: '"listening"' in said, "where it listens")
        line = next(line for line in self.program.said().splitlines() if '"listening"' in line)
        self.ports = json.loads(line)["ports"]
        if ready:
            await self.until_ready()

    async def until_ready(self) -> None:
        """Wait for /readyz. Raises `StartFailed`."""
        deadline_s = asyncio.get_running_loop().time() + START_S
        async with httpx.AsyncClient(timeout=5.0, trust_env=False) as client:
            while True:
                try:
                    answer = await client.get(f"{self.admin_url}/readyz")
                    if answer.status_code == httpx.codes.OK:
                        return
                except httpx.TransportError:
                    pass
                if not self.program.running or asyncio.get_running_loop().time() > deadline_s:
                    raise StartFailed(f"{self.program.name} is not ready:\n{self.program.said()[-3000:]}")
                await asyncio.sleep(0.05)

    async def kill(self) -> None:
        """kill -9."""
        await self.program.kill()

    async def terminate(self, within_s: float = 5.0) -> None:
        """SIGTERM; kill -9 where it does not end in time."""
        self.program.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(within_s):
                await self.program.ended()
        except TimeoutError:
            await self.program.kill()

    async def metrics(self, name: str) -> dict[tuple[tuple[str, str], ...], float]:
        """The samples of this name, by their labels."""
        async with httpx.AsyncClient(timeout=20.0, trust_env=False) as client:
            page = (await client.get(f"{self.admin_url}/metrics")).text
        return {
            tuple(sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name == name
        }

    async def in_flight(self) -> float:
        """Requests that its ledger has."""
        names = ("ballast_gateway_requests_in_flight", "ballast_gateway_requests_followed")
        return sum([sum((await self.metrics(name)).values()) for name in names])

    async def endpoints(self) -> dict[str, dict[str, Any]]:
        """What /ballast/v1/endpoints says, by name."""
        async with httpx.AsyncClient(timeout=20.0, trust_env=False) as client:
            answer = await client.get(f"{self.admin_url}/ballast/v1/endpoints")
        return {each["name"]: each for each in answer.raise_for_status().json()["endpoints"]}

    def requests(self) -> list[dict[str, Any]]:
        """Its request log."""
        return [json.loads(line) for line in self.program.out.read_text(encoding="utf-8").splitlines()]

    def complaints(self) -> list[str]:
        """Lines of its log that no fault from outside excuses: errors, traces, what asyncio says of lost exceptions."""
        lines = self.program.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return [line for line in lines if _is_complaint(line)]

    def open_files(self) -> int:
        """Files and sockets that it has open."""
        return len(list(Path(f"/proc/{self.program.pid}/fd").iterdir()))

    def resident_mib(self) -> float:
        """Memory that it holds."""
        lines = Path(f"/proc/{self.program.pid}/status").read_text(encoding="ascii").splitlines()
        return next(float(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:"))


def _is_complaint(line: str) -> bool:
    try:
        said = json.loads(line)
    except ValueError:
        return bool(line.strip())  # whatever is no line of our log was written by something that broke
    return said.get("level", "").upper() in ("ERROR", "CRITICAL") or "exception" in said
