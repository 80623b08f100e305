"""Who may ask the admin API: whoever has the token, or without one whoever sits on the same host.

The fleet's own, the operator above all, may, too: they sign their calls with the fleet's token
(`ballast_api.signatures`) and get a proof with the answer, so that no token passes over the wire, and none need be set.
Health, readiness and metrics are for everybody; the rest names pods, addresses and decisions.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from ballast_api.signatures import SCHEME, NotSigned

_log = logging.getLogger(__name__)

LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "::ffff:127.0.0.1"})
"""Not all of 127.0.0.0/8: sidecars of service meshes pass on what comes from elsewhere from other addresses in it."""
_FORWARDED: Final = frozenset({b"forwarded", b"x-forwarded-for"})
"""A proxy on the same host names its client in these."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Status and message for who may not ask."""

    status: int
    message: str
    recipient: str = ""
    """For whom the fleet's own are to sign."""


Signature: TypeAlias = Callable[[str, str, str, bytes], str]
"""Judges an `authorization` with method, target and body: the proof for the answer. Raises `NotSigned`."""

_NOT_HERE: Final = Refusal(
    403, "without admin.tokenFile this answers on loopback only (kubectl port-forward gets there); set admin.tokenFile"
)
_NO_TOKEN: Final = Refusal(401, "this needs the bearer token of admin.tokenFile")
_SIGNED: Final = SCHEME.encode() + b" "


class WhoMayAsk:
    """Judges requests by the setting `admin.tokenFile`; the file is read anew each time, so that tokens can rotate."""

    def __init__(self, token_file: Path | None, signature: Signature | None = None) -> None:
        """`signature` judges calls of the fleet's own; None where there is no fleet's token."""
        self._token_file = token_file
        self._signature = signature
        self._problem = ""
        if token_file is not None:
            self._token(token_file)

    def proof(self, method: str, target: str, headers: Iterable[tuple[bytes, bytes]]) -> Refusal | str | None:
        """Of a signed call: its proof, or why it is refused. None for a call that is not signed.

        Signed calls have no body.
        """
        given = next((value for name, value in headers if name == b"authorization"), b"")
        if self._signature is None or not given.startswith(_SIGNED):
            return None
        try:
            return self._signature(given.decode("latin-1"), method, target, b"")
        except NotSigned as why:
            return Refusal(401, str(why), why.recipient)

    def refusal(self, peer: str | None, headers: Iterable[tuple[bytes, bytes]]) -> Refusal | None:
        """Why a request is refused; None if it may be answered. `peer`: its address; header names in lower case."""
        if self._token_file is None:
            local = peer in LOOPBACK and not any(name in _FORWARDED for name, _ in headers)
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
