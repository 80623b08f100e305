"""Which ports gateways of one process listen on, where two of them want the same, and which one cannot be had."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple

from ballast_api.errors import InvalidInput, Problem
from ballast_api.gateway_settings import GatewaySettings

_ALL: Final = frozenset({"0.0.0.0", "::"})


class _Wanted(NamedTuple):
    where: str
    field: str
    host: str
    port: int


def check_ports(gateways: Mapping[str, GatewaySettings]) -> None:
    """Raises `InvalidInput`, which names both sides, if two listeners want one port. `gateways`: by their files."""
    taken: list[_Wanted] = []
    for where, settings in gateways.items():
        for wanted in _wanted(where, settings):
            other = next((each for each in taken if _collide(each, wanted)), None)
            if other is not None:
                said = f"port {wanted.port} is {other.field} of {other.where}, too; give each listener its own"
                raise InvalidInput(where, [Problem(wanted.field, said)])
            taken.append(wanted)


@contextmanager
def opening(field: str, host: str, port: int | None = None) -> Iterator[None]:
    """A listener is opened within. Raises `InvalidInput` with its field where the system does not let it.

    `port`: None where several are opened; the system's words then say which.
    """
    try:
        yield
    except OSError as error:
        code = error.errno or 0
        said = os.strerror(code).lower() if port is not None and code in errno.errorcode else str(error)
        taken = code == errno.EADDRINUSE
        fix = "end what listens there, or set another port" if taken else "set another host or port"
        at = f"[{host}]" if ":" in host else host
        where = at if port is None else f"{at}:{port}"
        raise InvalidInput("", [Problem(field, f"cannot listen on {where}: {said}; {fix}")]) from None


def _wanted(where: str, settings: GatewaySettings) -> list[_Wanted]:
    at, face = settings.listeners, settings.face
    ports = {"listeners.admin": at.admin}
    if face.serves_proxy:
        ports["listeners.proxy"] = at.proxy
    if face.serves_picker:
        ports |= {"listeners.extProc": at.ext_proc, "listeners.grpcHealth": at.grpc_health}
    wanted = [(field, port) for field, port in ports.items() if port]
    if settings.pod_api.token_file is not None and (first := settings.pod_api.port):
        wanted += [("podApi.port", first + number) for number in range(settings.workers)]
    return [_Wanted(where, field, at.host, port) for field, port in wanted]


def _collide(one: _Wanted, other: _Wanted) -> bool:
    return one.port == other.port and (one.host == other.host or bool({one.host, other.host} & _ALL))
