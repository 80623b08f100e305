"""What a tenant may use, and has used: its share of the fleet, as one gateway knows it.

The limit of tokens is a bucket that holds a minute's worth and may be overdrawn by the last requests that it let in:
nobody knows beforehand how much a request will generate. Until the debt is paid nothing more is let in.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ballast_api.gateway_files import TenantEntry
from ballast_gateway.errors import ApiError, tenant_limit

_RETRY_S: Final = 1
"""For one who has too much in flight: nobody knows when a request ends."""


@dataclass(slots=True)
class Usage:
    """What was let in and refused at this gateway, since it began."""

    requests: int = 0
    prompt_tokens: int = 0
    """Of requests that have ended and of which an engine was asked."""
    output_tokens: int = 0
    too_many: int = 0
    """Refused for the limit of requests in flight."""
    overdrawn: int = 0
    """Refused for the limit of tokens a minute."""


class Tenant:
    """What one tenant has of this gateway, and of the others that it hears. Its limits may change while its requests
    run."""

    __slots__ = ("_at_s", "_clock", "_elsewhere", "_in_flight", "_left", "_limits", "name", "used")

    def __init__(self, limits: TenantEntry, clock: Callable[[], float], used: Usage) -> None:
        self.name = limits.name
        self.used = used
        self._clock = clock
        self._in_flight = 0
        self._elsewhere = 0
        """Requests in flight that other gateways let in."""
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
        if limits.max_in_flight is not None and self.in_flight >= limits.max_in_flight:
            self.used.too_many += 1
            return tenant_limit("requests in flight", limits.max_in_flight, _RETRY_S)
        if limits.tokens_per_minute is not None:
            self._refill(limits.tokens_per_minute)
            if self._left <= 0:
                self.used.overdrawn += 1
                wait_s = (1 - self._left) * 60 / limits.tokens_per_minute
                return tenant_limit("tokens a minute", limits.tokens_per_minute, math.ceil(wait_s))
            self._left -= prompt_tokens
        self._in_flight += 1
        self.used.requests += 1
        return None

    def end(self, prompt_tokens: int, output_tokens: int, *, read: bool = True) -> None:
        """A request that `begin` let in has ended. `read`: whether an engine was asked for it, and so its prompt."""
        self._in_flight -= 1
        self.used.output_tokens += output_tokens
        if read:
            self.used.prompt_tokens += prompt_tokens
        if self._limits.tokens_per_minute is not None:
            self._left -= output_tokens if read else output_tokens - prompt_tokens

    def began_elsewhere(self, prompt_tokens: int) -> None:
        """Another gateway has let a request in, to be counted out by `ended_elsewhere`."""
        self._elsewhere += 1
        if (limit := self._limits.tokens_per_minute) is not None:
            self._refill(limit)
            self._left -= prompt_tokens

    def ended_elsewhere(self, output_tokens: int) -> None:
        """A request that another gateway let in has ended."""
        self._elsewhere -= 1
        if self._limits.tokens_per_minute is not None:
            self._left -= output_tokens

    def report(self) -> dict[str, Any]:
        """For the admin API. Tokens that are left may be less than none."""
        limits = self._limits
        if limits.tokens_per_minute is not None:
            self._refill(limits.tokens_per_minute)
        return {
            "name": self.name,
            "in_flight": {"here": self._in_flight, "elsewhere": self._elsewhere, "limit": limits.max_in_flight},
            "tokens": {
                "left": None if limits.tokens_per_minute is None else round(self._left),
                "a_minute": limits.tokens_per_minute,
            },
        }

    @property
    def in_flight(self) -> int:
        """Its requests, of all gateways that are heard."""
        return self._in_flight + self._elsewhere

    @property
    def idle(self) -> bool:
        """Whether nothing would be lost with it."""
        limit = self._limits.tokens_per_minute
        if limit is not None:
            self._refill(limit)
        return not self.in_flight and (limit is None or self._left >= limit)

    def _refill(self, a_minute: int) -> None:
        now_s = self._clock()
        self._left = min(float(a_minute), self._left + (now_s - self._at_s) * a_minute / 60)
        self._at_s = now_s


class Account:
    """A request that its tenant's share let in (`Tenant.begin`), until it ends."""

    __slots__ = ("_open", "_prompt_tokens", "_tenant")

    def __init__(self, tenant: Tenant, prompt_tokens: int) -> None:
        self._tenant = tenant
        self._prompt_tokens = prompt_tokens
        self._open = True

    @property
    def tenant(self) -> str:
        """The tenant's name."""
        return self._tenant.name

    def end(self, output_tokens: int, *, read: bool) -> None:
        """The request has ended; further calls change nothing. `read`: whether an engine was asked for it."""
        if self._open:
            self._open = False
            self._tenant.end(self._prompt_tokens, output_tokens, read=read)
