"""Who may ask the admin API: whoever has the token, or without one whoever sits on the same host.

Health, readiness and metrics are for everybody; the rest names pods, addresses and decisions.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_log = logging.getLogger(__name__)

_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "::ffff:127.0.0.1"})
"""Not all of 127.0.0.0/8: sidecars of service meshes pass on what comes from elsewhere from other addresses in it."""
_FORWARDED: Final = frozenset({b"forwarded", b"x-forwarded-for"})
"""A proxy on the same host names its client in these."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Status and message for who may not ask."""

    status: int
    message: str


_NOT_HERE: Final = Refusal(
    403, "without admin.tokenFile this answers on loopback only (kubectl port-forward gets there); set admin.tokenFile"
)
_NO_TOKEN: Final = Refusal(401, "this needs the bearer token of admin.tokenFile")


class WhoMayAsk:
    """Judges requests by the setting `admin.tokenFile`; the file is read anew each time, so that tokens can rotate."""

    def __init__(self, token_file: Path | None) -> None:
        self._token_file = token_file
        self._problem = ""
        if token_file is not None:
            self._token(token_file)

    def refusal(self, peer: str | None, headers: Iterable[tuple[bytes, bytes]]) -> Refusal | None:
        """Why a request is refused; None if it may be answered. `peer`: its address; header names in lower case."""
        if self._token_file is None:
            local = peer in _LOOPBACK and not any(name in _FORWARDED for name, _ in headers)
            return None if local else _NOT_HERE
        token = self._token(self._token_file)
        if token is None:
            return Refusal(503, self._problem)
        given = next((value for name, value in headers if name == b"authorization"), b"")
        return None if secrets.compare_digest(given, b"Bearer " + token) else _NO_TOKEN

    def _token(self, file: Path) -> bytes | None:
        """The token; None if the file has none. A change of what is wrong with it is logged."""
        problem, token = "", b""
        try:
            token = file.read_bytes().strip()
        except OSError as error:
            problem = f"admin.tokenFile cannot be read: {error.strerror}"
        else:
            problem = "" if token else "admin.tokenFile is empty"
        if problem and problem != self._problem:
            _log.error(f"the admin API refuses everybody: {problem}", extra={"file": str(file)})
        self._problem = problem
        return None if problem else token
