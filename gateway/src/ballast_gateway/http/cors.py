"""Cross-origin requests of browsers (the Fetch standard, section 3.3): who may read answers, and the preflight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ballast_gateway.http.requests import Headers, HttpRequest

_MAX_AGE_S: Final = 600
_EXPOSED: Final = b"x-request-id, x-ballast-reason, retry-after"

_NEEDS_NO_PREFLIGHT: Final = (b"text/plain", b"application/x-www-form-urlencoded", b"multipart/form-data")
"""CORS-safelisted types of bodies (Fetch, section 2.2.2): a browser sends them for any page, without asking."""


def skips_preflight(headers: Headers, cors: Cors | None) -> bool:
    """Whether a browser sent this body for a page of another origin without a preflight, which could have refused it.

    Browsers send `Origin` with each POST; other clients, such as curl, do not.
    """
    if not any(name == b"origin" for name, _ in headers) or (cors is not None and cors.admits(headers)):
        return False
    kinds = [value.partition(b";")[0].strip().lower() for name, value in headers if name == b"content-type"]
    return not kinds or any(kind in _NEEDS_NO_PREFLIGHT for kind in kinds)


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

    def admits(self, headers: Headers) -> bool:
        """Whether it is from a page that may read answers."""
        return self._admitted(headers) is not None

    def _admitted(self, headers: Headers) -> bytes | None:
        """What to admit: `*`, the request's own origin, or None."""
        for name, value in headers:
            if name == b"origin":
                if self._any:
                    return b"*"
                return value if value in self._origins else None
        return None
