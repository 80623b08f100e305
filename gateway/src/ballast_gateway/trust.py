"""Whose request it is, and what it may say about itself: `trust` of the settings, applied alike by both faces."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from ballast_api import wire_names
from ballast_api.gateway_settings import Trust
from ballast_gateway.openai_body import CONTROL_FIELDS

_KEYS: Final = ("authorization", "x-api-key")
_KEPT = 4096
_PRIORITY = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)


class Trusted:
    """What is believed of clients. `header(name)` returns the first value of a header; names are in lower case."""

    def __init__(self, settings: Trust) -> None:
        self.priorities = settings.priorities
        self._names = _KEYS if settings.tenant_header is None else (settings.tenant_header,)
        self.dropped_fields = CONTROL_FIELDS if self.priorities else CONTROL_FIELDS | {"priority"}
        """Fields of bodies that no engine gets from a client."""
        self.dropped_headers = () if self.priorities else (wire_names.PRIORITY,)
        """Headers that no engine gets from a client, beyond those of control."""

    def tenant(self, header: Callable[[str], str | None]) -> str:
        """A hash of the API key or of the tenant's header; empty without one. No log or metric shows it."""
        for name in self._names:
            value = header(name)
            if value:
                return _hashed(value)
        return ""

    def priority(self, header: Callable[[str], str | None], of_body: int | None, of_class: int = 0) -> int:
        """The priority of a request, lower first: its header's if that holds a number, else its body's, else its
        class's."""
        if not self.priorities:
            return of_class
        named = header(wire_names.PRIORITY)
        if named is not None and _PRIORITY.fullmatch(named.strip()):
            return int(named)
        return of_class if of_body is None else of_body


@lru_cache(maxsize=_KEPT)
def _hashed(value: str) -> str:
    return blake2b(value.encode("utf-8", "surrogateescape"), digest_size=12).hexdigest()
