"""Ports for programs that are started on a port named beforehand."""

import socket
import subprocess
import sys
from pathlib import Path

from ballast_cli.demo import ports


def test_ports_lie_below_those_that_connections_get() -> None:
    """Otherwise any connection of any program may take one before ours does."""
    given = Path("/proc/sys/net/ipv4/ip_local_port_range")
    lowest = int(given.read_text().split()[0]) if given.exists() else 49_152
    found = ports.free_ports(50)
    assert len(set(found)) == 50
    assert max(lowest, 32_768) >= ports.FIRST + ports.COUNT
    assert all(ports.FIRST <= each < ports.FIRST + ports.COUNT for each in found)


def test_a_taken_port_is_passed_over() -> None:
    """Also where it is taken on another address of those that are asked."""
    first = ports.free_port()
    with socket.create_server(("127.0.0.3", first + 1)):
        assert first + 1 < ports.free_port("127.0.0.1", "127.0.0.3") < first + 10


def test_processes_that_ask_at_once_get_different_ones() -> None:
    """As the tests' own workers do."""
    command = [sys.executable, "-c", "from ballast_cli.demo.ports import free_ports; print(*free_ports(100))"]
    asked = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    found = [port for each in asked for port in each.communicate(timeout=60)[0].split()]
    assert len(set(found)) == len(found) == 400
