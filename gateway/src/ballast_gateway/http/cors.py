"""Cross-origin requests of browsers (the Fetch standard, section 3.3): who may read answers, and the preflight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ballast_gateway.http.requests import Headers, HttpRequest

_MAX_AGE_S: Final = 600
_EXPOSED: Final = b"x-request-id, x-ballast-reason, retry-after"


class Cors:
    """The rules for `origins`; `*` among them admits every one. Credentials (cookies) are never admitted."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._any = "*" in origins
        self._origins = frozenset(origin.encode() for origin in origins)

    def answer_lines(self, headers: Headers) -> list[bytes]:
        """Header lines for each answer to a request with these headers."""
        vary = [] if self._any else [b"vary: origin\r\n"]
        origin = self._admitted(headers)
        if origin is None:
            return vary
        return [
            b"access-control-allow-origin: %b\r\n" % origin,
            b"access-control-expose-headers: %b\r\n" % _EXPOSED,
            *vary,
        ]

    def preflight(self, request: HttpRequest, allowed: str) -> Headers | None:
        """Headers of the answer to a preflight for a route with this method; None if this is no preflight."""
        if request.method != b"OPTIONS" or not any(
            name == b"access-control-request-method" for name, _ in request.headers
        ):
            return None
        if self._admitted(request.headers) is None:
            return []
        wanted = b", ".join(value for name, value in request.headers if name == b"access-control-request-headers")
        named = [(b"access-control-allow-headers", wanted)] if wanted else []
        return [
            (b"access-control-allow-methods", allowed.encode()),
            *named,
            (b"access-control-max-age", b"%d" % _MAX_AGE_S),
        ]

    def _admitted(self, headers: Headers) -> bytes | None:
        """What to admit: `*`, the request's own origin, or None."""
        for name, value in headers:
            if name == b"origin":
                if self._any:
                    return b"*"
                return value if value in self._origins else None
        return None
