"""What each client has of the gateway: connections, and memory for request bodies. Does no I/O.

A client is an address, and also a tenant (an API key, say) where a request names one. Both are counted and the fuller
one decides: the gateway does not know which keys are valid, so one who invents keys must gain nothing by it, nor one
who uses a key from many addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Final, TypeAlias

from ballast_gateway.errors import ApiError, bodies_full, client_limit

Headers: TypeAlias = Sequence[tuple[bytes, bytes]]
"""Names in lower case."""
Names: TypeAlias = tuple[Hashable, ...]
"""The accounts that a request is booked on: the address, and the tenant if there is one."""
_FORWARDED: Final = b"x-forwarded-for"


class Clients:
    """Books of all clients of one gateway.

    `trusted_hops`: proxies in front that append to X-Forwarded-For. `tenant_of` names the tenant of a request, or "".
    """

    def __init__(
        self,
        *,
        most_bytes: int,
        most_client_bytes: int,
        most_client_connections: int,
        trusted_hops: int = 0,
        tenant_of: Callable[[Headers], str] = lambda headers: "",
    ) -> None:
        self.use(
            most_bytes=most_bytes,
            most_client_bytes=most_client_bytes,
            most_client_connections=most_client_connections,
            trusted_hops=trusted_hops,
        )
        self._tenant_of = tenant_of
        self._bytes: dict[Hashable, int] = {}
        self._connections: dict[str, int] = {}
        self.held_bytes = 0
        """Of all clients together."""

    def use(
        self, *, most_bytes: int, most_client_bytes: int, most_client_connections: int, trusted_hops: int = 0
    ) -> None:
        """Bounds from now on; what is booked stays."""
        self._most_bytes = most_bytes
        self._most_client_bytes = most_client_bytes
        self._most_connections = most_client_connections
        self._trusted_hops = trusted_hops

    def connect(self, address: str) -> ApiError | None:
        """Count a connection; `disconnect` it in any case. Returns why it is refused, if it is."""
        count = self._connections[address] = self._connections.get(address, 0) + 1
        if count > self._most_connections and not self._trusted_hops:
            return client_limit("the connections of this address", self._most_connections, "maxClientConnections")
        return None

    def disconnect(self, address: str) -> None:
        """A connection is gone."""
        left = self._connections[address] - 1
        if left:
            self._connections[address] = left
        else:
            del self._connections[address]

    def names(self, address: str, headers: Headers) -> Names:
        """Who sends a request with these headers over a connection from this address."""
        who: Hashable = address
        if self._trusted_hops:
            hops = [hop.strip() for name, value in headers if name == _FORWARDED for hop in value.split(b",")]
            who = hops[-min(self._trusted_hops, len(hops))] if hops else address
        tenant = self._tenant_of(headers)
        return (who, tenant) if tenant else (who,)

    def hold(self, names: Names) -> Held:
        """A booking of nothing yet."""
        return Held(self, names)

    def fits(self, names: Names, more: int) -> ApiError | None:
        """Why so many bytes more must be refused; None if they fit."""
        if self.held_bytes + more > self._most_bytes:
            return bodies_full(self._most_bytes)
        if any(self._bytes.get(name, 0) + more > self._most_client_bytes for name in names):
            what = "the memory for this client's request bodies, in bytes,"
            return client_limit(what, self._most_client_bytes, "maxClientBodiesBytes")
        return None

    def _book(self, names: Names, more: int) -> None:
        self.held_bytes += more
        for name in names:
            held = self._bytes.get(name, 0) + more
            if held:
                self._bytes[name] = held
            else:
                self._bytes.pop(name, None)


class Held:
    """Memory that is booked on one request's client. Set it to 0 at the end."""

    __slots__ = ("_clients", "bytes", "names")

    def __init__(self, clients: Clients, names: Names) -> None:
        self._clients = clients
        self.names = names
        self.bytes = 0

    def set(self, held_bytes: int) -> ApiError | None:
        """Book so many bytes in all. Returns why they are refused, if they are: then the booking stays as it was."""
        more = held_bytes - self.bytes
        if more > 0 and (error := self._clients.fits(self.names, more)) is not None:
            return error
        self._clients._book(self.names, more)
        self.bytes = held_bytes
        return None
