"""A listening port that can be shut, so that connections are refused, and opened again."""

import asyncio
import socket
from collections.abc import Callable

BACKLOG = 2048


class Door:
    """While it is shut the port stays bound, so that no other process is given it."""

    def __init__(self, factory: Callable[[], asyncio.Protocol], host: str, port: int) -> None:
        """Shut, and not bound before it is opened for the first time; port 0: any free one."""
        self._factory = factory
        self.host = host
        self._servers: list[asyncio.Server] = []
        self._held: list[socket.socket] = []
        self.port = port

    @property
    def is_open(self) -> bool:
        """Whether connections are accepted."""
        return bool(self._servers)

    async def open(self) -> None:
        """Accept connections. Raises OSError where the port cannot be had."""
        if self._servers:
            return
        listen = asyncio.get_running_loop().create_server
        if self._held:
            held, self._held = self._held, []
            self._servers = [await listen(self._factory, sock=one, backlog=BACKLOG) for one in held]
        else:
            self._servers = [await listen(self._factory, self.host, self.port, backlog=BACKLOG)]
            self.port = self._servers[0].sockets[0].getsockname()[1]

    def shut(self) -> None:
        """Refuse connections from now on; those that there are stay."""
        if not self._servers:
            return
        bound = [(one.family, one.getsockname()) for server in self._servers for one in server.sockets]
        self.close()
        self._held = [_hold(family, address) for family, address in bound]

    def close(self) -> None:
        """Shut, and let the port go."""
        for server in self._servers:
            server.close()
        for held in self._held:
            held.close()
        self._servers, self._held = [], []


def _hold(family: int, address: tuple[str, int]) -> socket.socket:
    """A socket that is bound and does not listen: connections to it are refused."""
    held = socket.socket(family)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    held.bind(address)
    return held
