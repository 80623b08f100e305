"""Who may speak on the pod API, both ways: whoever has the fleet's token proves it without sending it.

A caller signs method, target, time, nonce and body with HMAC-SHA-256 (RFC 2104), so that what is overheard is of no use
elsewhere or later; a nonce is taken once. The answer is signed over that nonce, so a caller knows that it has reached
one of its own. `Authorization: Bearer TOKEN` is taken as well, for people with curl.
"""

from __future__ import annotations

import hmac
import logging
import secrets
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Final

_log = logging.getLogger(__name__)

SCHEME: Final = "Ballast"
PROOF: Final = "x-ballast-proof"
"""Header of each answer: that it comes from one who has the token."""
SKEW_S: Final = 120
"""How far two clocks may differ."""
LEAST_TOKEN_BYTES: Final = 16
_RELOAD_S: Final = 1.0
_MOST_NONCES: Final = 100_000
_NONCE_DIGITS: Final = 32


def mac(token: bytes, *parts: bytes) -> bytes:
    """HMAC-SHA-256 over these parts, 32 bytes. Their lengths are in it: no two lists of parts give the same text."""
    text = b"".join(b"%d:%b" % (len(part), part) for part in parts)
    return hmac.digest(token, text, "sha256")


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


class Signed:
    """A signed request: the header to send, and the answer's proof that is due."""

    __slots__ = ("_nonce", "_token", "authorization")

    def __init__(self, token: bytes, method: str, target: str, body: bytes, unix_s: float) -> None:
        self._token = token
        self._nonce = secrets.token_hex(_NONCE_DIGITS // 2)
        at = str(int(unix_s))
        signature = _signature(token, (method, target, at, self._nonce), body)
        self.authorization = f"{SCHEME} t={at},n={self._nonce},s={signature}"

    def is_proof(self, proof: str) -> bool:
        """Whether an answer's `PROOF` is right."""
        return hmac.compare_digest(proof.encode(), _proof(self._token, self._nonce).encode())


class Guard:
    """Judges requests. One for each listener: it remembers the nonces that it has seen."""

    def __init__(self, tokens: Callable[[], tuple[bytes, ...]], unix_s: Callable[[], float]) -> None:
        self._tokens = tokens
        self._unix_s = unix_s
        self._seen: dict[str, float] = {}
        """Nonces and the times up to which they could come again, oldest first."""

    def check(self, authorization: str, method: str, target: str, body: bytes) -> str | None:
        """The proof for the answer, empty for a bearer token; None if the request is refused."""
        scheme, _, rest = authorization.partition(" ")
        if scheme.lower() == "bearer":
            given = rest.strip().encode()
            found = [token for token in self._tokens() if hmac.compare_digest(token, given)]
            return "" if found else None
        if scheme != SCHEME:
            return None
        fields = dict(part.split("=", 1) for part in rest.split(",") if "=" in part)
        at, nonce, signature = (fields.get(name, "") for name in "tns")
        now_s = self._unix_s()
        if not (at.isascii() and at.isdigit() and len(at) <= 12 and abs(int(at) - now_s) <= SKEW_S):
            return None
        if len(nonce) != _NONCE_DIGITS or not nonce.isalnum() or nonce in self._seen:
            return None
        for token in self._tokens():
            if hmac.compare_digest(_signature(token, (method, target, at, nonce), body).encode(), signature.encode()):
                return _proof(token, nonce) if self._remember(nonce, now_s) else None
        return None

    def _remember(self, nonce: str, now_s: float) -> bool:
        """False if there are too many to remember: then nobody is let in rather than somebody twice."""
        for old, until_s in list(self._seen.items()):
            if until_s >= now_s:
                break
            del self._seen[old]
        if len(self._seen) >= _MOST_NONCES:
            return False
        self._seen[nonce] = now_s + 2 * SKEW_S  # its time may lie ahead by SKEW_S
        return True


def _signature(token: bytes, said: tuple[str, str, str, str], body: bytes) -> str:
    """`said`: method, target, time and nonce."""
    texts = (text.encode("utf-8", "surrogateescape") for text in ("request", *said))
    return mac(token, *texts, sha256(body).digest()).hex()


def _proof(token: bytes, nonce: str) -> str:
    return mac(token, b"answer", nonce.encode()).hex()
