"""The operator as a process, and what it costs."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from ballast_cli.demo.ports import free_ports
from bench.operator_load.server import Server, process

WRITES = frozenset({"create", "update", "patch", "delete"})
"""Verbs of the API."""


@contextlib.contextmanager
def operator(server: Server, source: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The real one, with its sources of a checkout."""
    command = [sys.executable, "-m", "ballast_cli", "operator", "--gateway-image", "registry.test/ballast:1"]
    command += ["--health-port", str(free_ports(1)[0]), "--no-network-policies"]
    environment = {"KUBECONFIG": str(server.kubeconfig), "PYTHONPATH": str(source / "operator" / "src")}
    with process(command, server.folder / "operator.log", **environment) as started:
        yield started


def memory_mib(pid: int) -> float:
    """Resident."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def processor_s(pid: int) -> float:
    """Seconds of processor time that a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
