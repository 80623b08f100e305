"""Who may speak on the pod API: whoever has the fleet's token proves it without sending it (`ballast_api.signatures`).

A nonce is taken once, and only what was signed for this very listener since it started. `Authorization: Bearer TOKEN`
is taken as well, for people with curl.
"""

from __future__ import annotations

import hmac
import logging
import secrets
from collections.abc import Callable
from heapq import heappop, heappush
from pathlib import Path
from typing import Final

from ballast_api.signatures import NONCE_DIGITS, RECIPIENT, SCHEME, NotSigned, proof_of, signature_of

_log = logging.getLogger(__name__)

SKEW_S: Final = 120
"""How far two clocks may differ."""
LEAST_TOKEN_BYTES: Final = 16
_RELOAD_S: Final = 1.0
_MOST_NONCES: Final = 100_000


class TokenFile:
    """The tokens of a file, one a line, such as of a mounted Secret; read again when it changes.

    The first one signs, all are accepted: to rotate, put the new token first, and drop the old one when all have it.
    """

    def __init__(self, path: Path, now_s: Callable[[], float]) -> None:
        """`now_s`: seconds on any clock. Raises `OSError` and `ValueError` (no usable token)."""
        self._path = path
        self._now_s = now_s
        self._tokens = read_tokens(path)
        self._read_s = now_s()
        self._problem = ""

    def tokens(self) -> tuple[bytes, ...]:
        """At least one. A file that cannot be read any more leaves the last ones in force, and is logged."""
        if self._now_s() - self._read_s >= _RELOAD_S:
            self._read_s = self._now_s()
            try:
                self._tokens, problem = read_tokens(self._path), ""
            except (OSError, ValueError) as error:
                problem = str(error)
            if problem and problem != self._problem:
                extra = {"file": str(self._path), "problem": problem}
                _log.error("the pod API's tokens cannot be read; the last ones stay in force", extra=extra)
            self._problem = problem
        return self._tokens


def read_tokens(path: Path) -> tuple[bytes, ...]:
    """Raises `OSError`, and `ValueError` without a usable token."""
    tokens = tuple(line for line in path.read_bytes().split() if line)
    if not tokens or min(map(len, tokens)) < LEAST_TOKEN_BYTES:
        raise ValueError(f"{path}: needs one token a line, each of {LEAST_TOKEN_BYTES} characters or more")
    return tokens


class Guard:
    """Judges requests. One for each listener: it has a name of its own, and remembers the nonces that it has seen."""

    def __init__(self, tokens: Callable[[], tuple[bytes, ...]], unix_s: Callable[[], float]) -> None:
        self._tokens = tokens
        self._unix_s = unix_s
        self.recipient = secrets.token_hex(NONCE_DIGITS // 2)
        """For whom callers sign; another one after each start."""
        self._seen: set[str] = set()
        """Nonces that could come again."""
        self._until: list[tuple[float, str]] = []
        """A heap of them by the times up to which they could: a clock may be set back."""

    def check(self, authorization: str, method: str, target: str, body: bytes) -> str:
        """The proof for the answer, empty for a bearer token. Raises `NotSigned`."""
        try:
            return self._check(authorization, method, target, body)
        except NotSigned as why:
            why.recipient = self.recipient
            raise

    def _check(self, authorization: str, method: str, target: str, body: bytes) -> str:
        scheme, _, rest = authorization.partition(" ")
        if scheme.lower() == "bearer":
            given = rest.strip().encode()
            found = [token for token in self._tokens() if hmac.compare_digest(token, given)]
            if found:
                return ""
        if scheme != SCHEME:
            raise NotSigned
        fields = dict(part.split("=", 1) for part in rest.split(",") if "=" in part)
        at, nonce, signature = (fields.get(name, "") for name in "tns")
        if not (at.isascii() and at.isdigit() and len(at) <= 12 and len(nonce) == NONCE_DIGITS and nonce.isalnum()):
            raise NotSigned
        to = fields.get("r")
        said = (method, target, at, nonce) if to is None else (method, target, at, nonce, to)
        for token in self._tokens():
            if hmac.compare_digest(signature_of(token, said, body).encode(), signature.encode()):
                if to != self.recipient:
                    raise _for_another(to)
                self._take(nonce, int(at))
                return proof_of(token, nonce)
        raise NotSigned

    def _take(self, nonce: str, at_s: int) -> None:
        """Once, and in time. Raises `NotSigned`."""
        now_s = self._unix_s()
        ahead_s = at_s - now_s
        if abs(ahead_s) > SKEW_S:
            where = "ahead of" if ahead_s > 0 else "behind"
            raise NotSigned(
                f"this call was signed some {abs(ahead_s):.0f} s {where} this clock, and {SKEW_S} s are allowed: set "
                "the clocks of both nodes (NTP)"
            )
        if nonce in self._seen:
            raise NotSigned("this very call was made before: sign each call anew")
        while self._until and self._until[0][0] < now_s:
            self._seen.discard(heappop(self._until)[1])
        if len(self._seen) >= _MOST_NONCES:  # nobody is let in rather than somebody twice
            raise NotSigned(f"{_MOST_NONCES} signed calls came within {2 * SKEW_S} s, more than can be remembered")
        self._seen.add(nonce)
        heappush(self._until, (now_s + 2 * SKEW_S, nonce))  # its time may lie ahead by SKEW_S


class FirstCall(NotSigned):
    """Its caller has the token, and does not know yet for whom to sign."""


def _for_another(to: str | None) -> NotSigned:
    if to is None:
        return NotSigned("this call is signed for no recipient: its caller is of an older version of Ballast")
    kind = NotSigned if to else FirstCall
    return kind(f"this call is not signed for this listener as it runs now: sign it for the recipient in {RECIPIENT}")
