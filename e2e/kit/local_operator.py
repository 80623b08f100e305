"""The operator as a process of this machine, with the rights of its ServiceAccount, so that a scenario can kill it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from ballast_cli.demo.ports import free_port


class LocalOperator:
    """`ballast operator` for one namespace."""

    def __init__(self, kubeconfig: Path, namespace: str, image: str, log: Path) -> None:
        self._kubeconfig = kubeconfig
        self._namespace = namespace
        self._image = image
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *, resync_s: float = 2.0) -> None:
        """Start it."""
        assert self._process is None, "runs already"
        command = [
            *(str(Path(sys.executable).with_name("ballast")), "operator"),
            *("--gateway-image", self._image, "--namespace", self._namespace),
            *("--resync-s", str(resync_s), "--health-port", str(free_port())),
        ]
        with self._log.open("ab") as log:
            environment = {**os.environ, "KUBECONFIG": str(self._kubeconfig)}
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def kill(self) -> None:
        """SIGKILL, as the kernel does when memory runs out. Does not wait."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)

    def has_ended(self, within_s: float = 0.0) -> bool:
        """Whether it is dead, or dies within that time."""
        assert self._process is not None, "does not run"
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self) -> None:
        """SIGTERM, and wait; SIGKILL if it takes longer than 20 s. Fine when it does not run."""
        if self._process is None:
            return
        self._process.terminate()  # no effect on one that is dead
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def log_tail(self) -> str:
        """The end of its log."""
        return self._log.read_text(errors="replace")[-6000:] if self._log.exists() else ""
