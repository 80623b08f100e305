"""API keys and what their tenants may use: a file of hashes, read again when it changes. No key is kept or logged.

The limit of tokens is a bucket that holds a minute's worth and may be overdrawn by the last requests that it let in:
nobody knows beforehand how much a request will generate. Until the debt is paid nothing more is let in.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path
from typing import Final

from ballast_api.errors import InvalidInput
from ballast_api.gateway_settings import TenantEntry
from ballast_api.loading import load_keys
from ballast_gateway.errors import ApiError, tenant_limit

_log = logging.getLogger(__name__)

_BEARER: Final = b"bearer "
_RETRY_S: Final = 1
"""For one who has too much in flight: nobody knows when a request ends."""


class Tenant:
    """What one tenant has of this gateway. Its limits may change while its requests run."""

    __slots__ = ("_at_s", "_clock", "_in_flight", "_left", "_limits", "name")

    def __init__(self, limits: TenantEntry, clock: Callable[[], float]) -> None:
        self.name = limits.name
        self._clock = clock
        self._in_flight = 0
        self._left, self._at_s = float(limits.tokens_per_minute or 0), clock()
        self._limits = limits

    def limit(self, limits: TenantEntry) -> None:
        """From now on these."""
        if self._limits.tokens_per_minute is None:
            self._left, self._at_s = float(limits.tokens_per_minute or 0), self._clock()
        self._limits = limits

    def begin(self, prompt_tokens: int) -> ApiError | None:
        """Count a request in, to be counted out by `end`; or why it is refused."""
        limits = self._limits
        if limits.max_in_flight is not None and self._in_flight >= limits.max_in_flight:
            return tenant_limit("requests in flight", limits.max_in_flight, _RETRY_S)
        if limits.tokens_per_minute is not None:
            self._refill(limits.tokens_per_minute)
            if self._left <= 0:
                wait_s = (1 - self._left) * 60 / limits.tokens_per_minute
                return tenant_limit("tokens a minute", limits.tokens_per_minute, math.ceil(wait_s))
            self._left -= prompt_tokens
        self._in_flight += 1
        return None

    def end(self, output_tokens: int) -> None:
        """A request has ended."""
        self._in_flight -= 1
        if self._limits.tokens_per_minute is not None:
            self._left -= output_tokens

    def _refill(self, a_minute: int) -> None:
        now_s = self._clock()
        self._left = min(float(a_minute), self._left + (now_s - self._at_s) * a_minute / 60)
        self._at_s = now_s


class KeyRing:
    """The tenants of a keys file. One that is unreadable or wrong changes nothing until it is mended."""

    def __init__(self, file: Path, clock: Callable[[], float]) -> None:
        """Raises `InvalidInput`: without a good file nobody could be served."""
        self._file = file
        self._clock = clock
        self._tenants: dict[str, Tenant] = {}
        self._by_hash: dict[bytes, Tenant] = {}
        self._seen = self._stamp()
        self._read()

    def tenant(self, headers: Iterable[tuple[bytes, bytes]]) -> Tenant | None:
        """Whose key a request has; None if it has none, or one that is not known. Header names in lower case."""
        for name, value in headers:
            if name == b"authorization" and value[: len(_BEARER)].lower() == _BEARER:
                return self._by_hash.get(sha256(value[len(_BEARER) :].strip()).digest())
            if name == b"x-api-key":
                return self._by_hash.get(sha256(value.strip()).digest())
        return None

    def refresh(self) -> None:
        """Read the file if it has changed."""
        stamp = self._stamp()
        if stamp == self._seen:
            return
        self._seen = stamp
        try:
            self._read()
        except InvalidInput as error:
            _log.error("the keys file is not usable; keeping the keys", extra={"problem": str(error)})
        else:
            _log.info("read the keys file", extra={"tenants": len(self._tenants), "keys": len(self._by_hash)})

    def _read(self) -> None:
        entries = load_keys(self._file).tenants
        tenants = {entry.name: self._kept(entry) for entry in entries}
        self._tenants = tenants
        self._by_hash = {bytes.fromhex(key): tenants[entry.name] for entry in entries for key in entry.keys}

    def _kept(self, entry: TenantEntry) -> Tenant:
        tenant = self._tenants.get(entry.name)
        if tenant is None:
            return Tenant(entry, self._clock)
        tenant.limit(entry)
        return tenant

    def _stamp(self) -> tuple[int, int, int] | None:
        """With the inode, because a mounted Secret changes by a new link."""
        try:
            status = os.stat(self._file)
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino
