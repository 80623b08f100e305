"""The proxy's subset hint: the only endpoints that a request may go to.

The protocol has a list of `ip:port`; Envoy's header-to-metadata filter writes a comma-separated string instead. An
entry without a port allows every port of its address. Addresses are compared in canonical form, IPv6 included.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable


def canonical(address: str) -> tuple[str, str]:
    """Host and port of `host`, `host:port`, `[v6]:port` or a bare IPv6 address; the port is empty if there is none."""
    text = address.strip()
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    else:
        host, port = text, ""
    try:
        return ipaddress.ip_address(host).compressed, port
    except ValueError:
        return host.lower(), port


def allowed(hint: Iterable[str], addresses: Iterable[str]) -> frozenset[str]:
    """The known addresses that the hint allows, in their known spelling."""
    wanted = {canonical(entry) for entry in hint}
    return frozenset(address for address in addresses if (at := canonical(address)) in wanted or (at[0], "") in wanted)


def binding(hint: Iterable[str], addresses: Iterable[str]) -> frozenset[str]:
    """What a request may go to as long as it waits: the known addresses that the hint allows, and those that it names
    with a port, whose endpoints may not be ready yet."""
    entries = tuple(hint)
    return allowed(entries, addresses) | frozenset(_spelled(*at) for at in map(canonical, entries) if at[1])


def _spelled(host: str, port: str) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
