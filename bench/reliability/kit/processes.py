"""Programs of an experiment: started with a log file each, signalled and ended by their pid."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

START_S = 60.0
"""Time for a process to say that it is up; many interpreters start at once on few cores."""


class StartFailed(Exception):
    """A program ended, or said nothing, in place of coming up; with the end of its log."""


class Program:
    """One program that can be started again and again; all of them write into one log."""

    def __init__(
        self, name: str, command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.command = list(command)
        self.log = folder / f"{name}.log"
        self.out = folder / f"{name}.out"
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._said_before = 0

    @property
    def pid(self) -> int:
        """Of the process that runs, or ran last."""
        assert self._process is not None, f"{self.name} was never started"
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has been started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def spawn(self) -> None:
        """Start the process. Standard error goes to `log`, standard output to `out`."""
        assert not self.running, f"{self.name} runs already"
        self._said_before = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log, self.out.open("ab") as out:
            self._process = subprocess.Popen(
                self.command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                start_new_session=True,
            )

    def said(self) -> str:
        """What the process that runs, or ran last, has logged."""
        with self.log.open("rb") as log:
            log.seek(self._said_before)
            return log.read().decode("utf-8", "replace")

    async def until_said(self, find: Callable[[str], bool], what: str) -> None:
        """Wait until its log says something. Raises `StartFailed`."""
        deadline_s = asyncio.get_running_loop().time() + START_S
        while not find(self.said()):
            if not self.running or asyncio.get_running_loop().time() > deadline_s:
                raise StartFailed(f"{self.name} did not say {what}:\n{self.said()[-3000:]}")
            await asyncio.sleep(0.05)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it runs."""
        if self.running:
            assert self._process is not None
            self._process.send_signal(number)

    async def ended(self) -> int:
        """Wait for its end; the exit status."""
        assert self._process is not None
        while (status := self._process.poll()) is None:  # noqa: ASYNC110 - only asking says that a process ended
            await asyncio.sleep(0.01)
        return status

    async def kill(self) -> None:
        """kill -9, stopped or not, and wait for its end."""
        if self.running:
            self.signal(signal.SIGKILL)
            await self.ended()
