"""The actions of an exchange: replies to send, and what its session asks of the Director or reports to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from ballast_core.model import Outcome
from ballast_gateway.picker.messages import Reply
from ballast_gateway.picker.query import Query


class Pick(NamedTuple):
    """Ask the Director where this request goes; then call `routed` or `refused`."""

    query: Query


@dataclass(frozen=True, slots=True)
class FirstToken:
    """The response has begun."""


FIRST_TOKEN: Final = FirstToken()


class Served(NamedTuple):
    """The proxy says which endpoint serves. Comes with the response's headers, and only after a request was routed."""

    address: str


class Ended(NamedTuple):
    """The exchange is over. Comes at most once, and only after a request was routed."""

    outcome: Outcome
    status: int | None
    """Status of the response; None where the proxy shows none: the request may still be running."""
    shown: bool = True
    """False if the proxy closed the stream of a response whose end it does not show: it may still be running."""


Action: TypeAlias = Reply | Pick | Served | FirstToken | Ended


class Destination(NamedTuple):
    """Where a request goes: addresses as `host:port`."""

    decode: str
    prefill: str | None = None
    priority: int | None = None
    """For engines that schedule by priority; None sets none."""
    plan: str = ""
    """For the agent there; empty if none takes plans."""
    fallbacks: tuple[str, ...] = ()
    """Where the proxy may go instead, in this order."""
    trace: Mapping[str, str] = MappingProxyType({})
    """Headers of a trace context, for whoever serves."""

    @property
    def told(self) -> str:
        """The destination as header and metadata have it: an ordered list with commas between."""
        return ",".join((self.decode, *self.fallbacks)) if self.fallbacks else self.decode
