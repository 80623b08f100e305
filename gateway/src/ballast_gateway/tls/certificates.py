"""The certificate of a listener: files that are read again when they change, or one that is made when it is needed.

A new certificate is for new connections. One that cannot be used changes nothing until it is mended.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ballast_api.errors import InvalidInput, Problem
from ballast_api.gateway_settings import PickerTls, ProxyTls, TlsMode
from ballast_gateway.file_stamps import Stamp, stamp
from ballast_gateway.tls import pem

_log = logging.getLogger(__name__)

_DAY_S: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class PairOfFiles:
    """A certificate with the chain that leads to its authority, and its private key; both in PEM, not encrypted."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class Tls:
    """What a listener needs."""

    certificates: Certificates
    required: bool
    """Whether a client without TLS is refused; if not, the first byte of a connection tells which it is."""


class Certificates:
    """What the clients of one face are shown. `refresh` it now and then."""

    def __init__(self, files: PairOfFiles | None, *, alpn: Sequence[str]) -> None:
        """Without `files` one of its own is made when the first client asks for TLS. `alpn`: protocols that clients
        may agree on (RFC 7301). Raises `InvalidInput`: with files that cannot be used nobody could connect."""
        self._files = files
        self._alpn = list(alpn)
        self._context: ssl.SSLContext | None = None
        self._making: asyncio.Task[ssl.SSLContext] | None = None
        self._seen = self._stamp()
        self.expires_unix_s: float | None = None
        """None until there is a certificate."""
        self.reloads: Counter[str] = Counter(loaded=0, failed=0)
        """Changes of the files, by what came of them."""
        self.refused: Counter[str] = Counter(dict.fromkeys(REASONS, 0))
        """Connections that came to nothing, by reason."""
        if files is not None:
            self._read(files)

    async def context(self) -> ssl.SSLContext:
        """For a connection that begins now."""
        if self._context is None:
            if self._making is None:
                self._making = asyncio.create_task(self._make())
            return await asyncio.shield(self._making)
        return self._context

    async def _make(self) -> ssl.SSLContext:
        try:
            made, expires_unix_s = await asyncio.to_thread(pem.make)
            with pem.as_file(made) as file:
                self._context = _context(file, file, self._alpn)
            self.expires_unix_s = expires_unix_s
            _log.info("made a self-signed certificate: no files of one are set")
            return self._context
        finally:
            self._making = None

    def refresh(self) -> None:
        """Read the files if they have changed."""
        if self._files is None:
            return
        seen = self._stamp()
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._read(self._files)
        except InvalidInput as error:
            self.reloads["failed"] += 1
            _log.error("a certificate is not usable; keeping the one before", extra={"problem": str(error)})
        else:
            self.reloads["loaded"] += 1
            _log.info("read a certificate", extra={"file": str(self._files.certificate)})

    def _read(self, files: PairOfFiles) -> None:
        try:
            expires_unix_s = pem.expires_unix_s(files.certificate.read_bytes())
            context = _context(str(files.certificate), str(files.key), self._alpn)
        except OSError as error:  # of ssl, too
            reason = error.reason if isinstance(error, ssl.SSLError) else error.strerror
            which = files.certificate if error.filename is None else error.filename
            raise InvalidInput(
                str(which), [Problem("", f"cannot be used, or not with {files.key}: {reason}")]
            ) from error
        except ValueError as error:
            raise InvalidInput(str(files.certificate), [Problem("", f"cannot be used: {error}")]) from error
        self._context, self.expires_unix_s = context, expires_unix_s
        left_s = expires_unix_s - time.time()
        if left_s < _DAY_S:
            about = {"file": str(files.certificate), "days_left": round(left_s / _DAY_S, 2)}
            _log.warning("a certificate has expired, or is about to", extra=about)

    def _stamp(self) -> tuple[Stamp, ...]:
        return () if self._files is None else (stamp(self._files.certificate), stamp(self._files.key))


def tls_of(settings: ProxyTls | PickerTls, alpn: str) -> Tls:
    """As the settings have it. Raises `InvalidInput` for files that cannot be used."""
    files = None
    if settings.cert_file is not None and settings.key_file is not None:
        files = PairOfFiles(Path(settings.cert_file), Path(settings.key_file))
    return Tls(Certificates(files, alpn=[alpn]), required=settings.mode is TlsMode.REQUIRED)


REASONS: Final = ("plaintext", "tls", "timeout", "crowded", "gone")
"""Of a connection that comes to nothing: it came without TLS where that is required, its handshake failed, it was too
slow, it was the oldest of too many that had not come to their end, its client left."""


def _context(certificate: str, key: str, alpn: list[str]) -> ssl.SSLContext:
    """Raises `OSError`, also where the two do not belong together, and `ValueError`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(alpn)
    context.load_cert_chain(certificate, key, password=_no_password)
    return context


def _no_password() -> str:
    """In place of OpenSSL's own question at the terminal."""
    raise ValueError("the private key is encrypted; store it without a password")
