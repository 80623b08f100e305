"""Local processes of the demo: started with a log file each, waited for, and ended by pid."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from ballast_cli.demo.plan import DemoError

START_S = 60.0
"""Time for a process to answer its health check; six interpreters start at once on two cores."""
STOP_S = 5.0


@dataclass(slots=True)
class Process:
    """One running program."""

    name: str
    popen: subprocess.Popen[bytes]
    log: Path

    @property
    def ending(self) -> str:
        """How it ended, in words."""
        code = self.popen.returncode
        return f"was killed by {signal.Signals(-code).name}" if code is not None and code < 0 else f"ended with {code}"

    def last_words(self) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-8:])


class ProcessGroup:
    """Programs that live as long as the `with` block."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[Process] = []

    def start(self, name: str, arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> Process:
        """Start `ballast ARGUMENTS`. It has a session of its own: Ctrl-C reaches the demo, which ends it in order. A
        demo that is killed takes it along (`ballast_cli.child`)."""
        log = self._folder / f"{name}.log"
        with log.open("wb") as output:
            popen = subprocess.Popen(
                [sys.executable, "-m", "ballast_cli.child", str(os.getpid()), *arguments],
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        process = Process(name, popen, log)
        self._processes.append(process)
        return process

    async def ready(self, checks: Mapping[str, str]) -> None:
        """Wait until each named process answers 200 at its URL. Raises `DemoError` with the log if not."""
        by_name = {process.name: process for process in self._processes}
        async with httpx.AsyncClient(timeout=2.0, trust_env=False) as client:
            await asyncio.gather(*(_wait(client, by_name[name], url) for name, url in checks.items()))

    def died(self) -> Process | None:
        """A process that has ended on its own, if any."""
        return next((process for process in self._processes if process.popen.poll() is not None), None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in reversed(self._processes):
            if process.popen.poll() is None:
                process.popen.send_signal(signal.SIGTERM)
        try:
            for process in self._processes:
                process.popen.wait(STOP_S)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):  # too slow, or a second Ctrl-C: no caller waits any more
            for process in self._processes:
                process.popen.kill()
        finally:
            for process in self._processes:
                process.popen.wait()


async def _wait(client: httpx.AsyncClient, process: Process, url: str) -> None:
    deadline_s = asyncio.get_running_loop().time() + START_S
    while True:
        if process.popen.poll() is not None:
            raise DemoError(f"{process.name} {process.ending}:\n{process.last_words()}")
        try:
            if (await client.get(url)).status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            pass
        if asyncio.get_running_loop().time() > deadline_s:
            raise DemoError(f"{process.name} did not answer at {url} within {START_S:.0f} s:\n{process.last_words()}")
        await asyncio.sleep(0.1)
