"""Free ports for programs that are started on a port named beforehand."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Sequence

FIRST, COUNT = 10_000, 20_000
"""The ports that are tried: below those that systems give to connections and to port 0 (from 32,768 on Linux, 49,152 on
macOS), so that nobody who did not ask for one takes it before our program does."""


def free_ports(count: int, addresses: Sequence[str] = ("127.0.0.1",)) -> list[int]:
    """So many ports that nobody has at any of these addresses (`0.0.0.0`: at none at all).

    Each process goes round the ports from a place of its own: two that ask at the same time get different ones.
    Raises `OSError` where too few are free.
    """
    tried = itertools.islice(_round, COUNT)
    found = list(itertools.islice((port for port in tried if all(_is_free(each, port) for each in addresses)), count))
    if len(found) < count:
        raise OSError(f"of the ports {FIRST} to {FIRST + COUNT - 1} {len(found)} are free, {count} are needed")
    return found


def free_port(*addresses: str) -> int:
    """One of them; of 127.0.0.1 where no address is named."""
    return free_ports(1, addresses or ("127.0.0.1",))[0]


def _is_free(address: str, port: int) -> bool:
    try:
        with socket.socket() as probe:
            probe.bind((address, port))
    except OSError:
        return False
    return True


_begin = os.getpid() * 7919  # a prime: neighbouring processes begin far from each other
_round = (FIRST + (_begin + number) % COUNT for number in itertools.count())
