"""API keys and tokens: whose request it is, by files that are read again when they change. No key is kept or logged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from ballast_api.errors import InvalidInput
from ballast_api.gateway_files import TenantEntry
from ballast_api.gateway_settings import Keys
from ballast_api.loading import load_keys
from ballast_gateway.file_stamps import Stamp, stamp
from ballast_gateway.json_web_tokens import Refused, TokenReader
from ballast_gateway.tenants import Tenant, Usage

_log = logging.getLogger(__name__)

_BEARER: Final = b"bearer "
_LOOK_S: Final = 0.25
_MANY: Final = 10_000
"""Tenants, above which those that have nothing to remember are forgotten."""


class KeyRing:
    """The tenants of a keys file and of tokens. A file that is unreadable or wrong changes nothing until it is
    mended."""

    def __init__(self, settings: Keys, clock: Callable[[], float]) -> None:
        """Raises `InvalidInput`: without good files nobody could be served."""
        self._file = None if settings.file is None else Path(settings.file)
        self._tokens = None if settings.jwt is None else TokenReader(settings.jwt)
        self._others = settings.jwt
        """Has the limits of tenants that the file does not name."""
        self._named: frozenset[str] = frozenset()
        self._others_used = Usage()
        """Of all tenants together that the file does not name."""
        self._clock = clock
        self._tenants: dict[str, Tenant] = {}
        self._by_hash: dict[bytes, Tenant] = {}
        self._seen = self._stamp()
        self._read()

    def tenant(self, headers: Iterable[tuple[bytes, bytes]]) -> Tenant | None:
        """Whose key or token a request has; None if it has none, or one that is not good. Header names in lower
        case."""
        for name, value in headers:
            if name == b"authorization" and value[: len(_BEARER)].lower() == _BEARER:
                return self._bearer(value[len(_BEARER) :].strip())
            if name == b"x-api-key":
                return self._by_hash.get(sha256(value.strip()).digest())
        return None

    def _bearer(self, value: bytes) -> Tenant | None:
        digest = sha256(value).digest()
        tenant = self._by_hash.get(digest)
        if tenant is not None or self._tokens is None:
            return tenant
        try:
            name = self._tokens.tenant(value, digest)
        except Refused as refused:
            _log.debug("a token was refused", extra={"problem": str(refused)})
            return None
        return self.named(name)

    def named(self, name: str) -> Tenant | None:
        """The tenant of this name, by which other gateways tell of its requests; None if nobody could be it here."""
        tenant = self._tenants.get(name)
        if tenant is None and self._tokens is not None:
            tenant = self._tenants[name] = Tenant(self._unnamed(name), self._clock, self._others_used)
        return tenant

    def usage(self) -> dict[str, Usage]:
        """By tenant of the file; under an empty name, of all others together, where tokens are taken."""
        found = {name: self._tenants[name].used for name in sorted(self._named)}
        return found if self._tokens is None else {**found, "": self._others_used}

    def name_for_logs(self, tenant: Tenant | None) -> str:
        """Its name, if the file has it; empty for the others: those of tokens are people's."""
        return tenant.name if tenant is not None and tenant.name in self._named else ""

    def report(self, most: int) -> list[dict[str, Any]]:
        """For the admin API: these tenants at the most, the busiest first, each with what the file's has used."""
        busy = sorted(self._tenants.values(), key=lambda each: (-each.in_flight, each.name))[:most]
        return [each.report() | ({"used": asdict(each.used)} if each.name in self._named else {}) for each in busy]

    async def follow(self) -> None:
        """Read the files again whenever they change. Runs until it is cancelled."""
        while True:
            try:
                self.refresh()
            except Exception:
                _log.exception("a look at the files of keys failed; the next one follows")
            await asyncio.sleep(_LOOK_S)

    def refresh(self) -> None:
        """Read the files that have changed."""
        if self._tokens is not None:
            self._tokens.refresh()
            if len(self._tenants) > _MANY:
                self._forget_idle()
        seen = self._stamp()
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._read()
        except InvalidInput as error:
            _log.error("the keys file is not usable; keeping the keys", extra={"problem": str(error)})
        else:
            _log.info("read the keys file", extra={"tenants": len(self._tenants), "keys": len(self._by_hash)})

    def _read(self) -> None:
        entries = () if self._file is None else load_keys(self._file).tenants
        named = {entry.name: self._kept(entry) for entry in entries}
        if self._tokens is not None:  # tenants of tokens have requests that count
            unnamed = self._tenants.keys() - named.keys()
            named |= {name: self._kept(self._unnamed(name)) for name in unnamed}
        before, self._named, self._tenants = self._named, frozenset(entry.name for entry in entries), named
        for name in self._named - before:
            named[name].used = Usage()
        for name in (before - self._named) & named.keys():
            named[name].used = self._others_used
        self._by_hash = {bytes.fromhex(key): named[entry.name] for entry in entries for key in entry.keys}

    def _kept(self, entry: TenantEntry) -> Tenant:
        tenant = self._tenants.get(entry.name)
        if tenant is None:
            return Tenant(entry, self._clock, Usage())
        tenant.limit(entry)
        return tenant

    def _unnamed(self, name: str) -> TenantEntry:
        """The limits of a tenant of tokens that the file does not name."""
        if self._others is None:
            return TenantEntry(name=name)
        most = self._others
        return TenantEntry(name=name, max_in_flight=most.max_in_flight, tokens_per_minute=most.tokens_per_minute)

    def _forget_idle(self) -> None:
        """Tenants of tokens may be as many as the issuer has users. One that has its whole share comes back as new."""
        self._tenants = {
            name: tenant for name, tenant in self._tenants.items() if name in self._named or not tenant.idle
        }

    def _stamp(self) -> Stamp:
        return None if self._file is None else stamp(self._file)
