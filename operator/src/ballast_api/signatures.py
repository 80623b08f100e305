"""Signatures of the fleet's token: who asks a gateway or an agent proves to have it, and so does who answers.

A caller signs method, target, time, nonce and body with HMAC-SHA-256 (RFC 2104), so that what is overheard is of no use
elsewhere or later. The answer is signed over that nonce, so a caller knows that it has reached one of its own.
"""

from __future__ import annotations

import hmac
import json
import secrets
from hashlib import sha256
from typing import Final

SCHEME: Final = "Ballast"
"""Of the `authorization` header: `Ballast t=UNIX_SECONDS,n=NONCE,s=HEX`."""
PROOF: Final = "x-ballast-proof"
"""Header of each answer: that it comes from one who has the token."""
NONCE_DIGITS: Final = 32


def mac(token: bytes, *parts: bytes) -> bytes:
    """HMAC-SHA-256 over these parts, 32 bytes. Their lengths are in it: no two lists of parts give the same text."""
    text = b"".join(b"%d:%b" % (len(part), part) for part in parts)
    return hmac.digest(token, text, "sha256")


class NotSigned(Exception):
    """A call that is not let in, and why, for whoever made it. Who lacks the token learns no more than that."""

    def __init__(self, why: str = "this needs a call signed with the fleet's token, for this method, route and body"):
        super().__init__(why)


class Signed:
    """A signed request: the header to send, and the answer's proof that is due."""

    __slots__ = ("_nonce", "_token", "authorization")

    def __init__(self, token: bytes, method: str, target: str, body: bytes, unix_s: float) -> None:
        self._token = token
        self._nonce = secrets.token_hex(NONCE_DIGITS // 2)
        at = str(int(unix_s))
        signature = signature_of(token, (method, target, at, self._nonce), body)
        self.authorization = f"{SCHEME} t={at},n={self._nonce},s={signature}"

    def is_proof(self, proof: str) -> bool:
        """Whether an answer's `PROOF` is right."""
        return hmac.compare_digest(proof.encode(), proof_of(self._token, self._nonce).encode())


def refusal_of(status: int, body: bytes) -> str:
    """ ": REASON" for a 401, as the body says it, of a pod API (`error.message`) or an admin API (`detail`): to add to
    an error. 200 printable characters at most, of unknown origin. Empty for any other answer."""
    if status != 401:
        return ""
    try:
        found = json.loads(body)
        message = found["detail"] if "detail" in found else found["error"]["message"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return ""
    return f": {message[:200]}" if isinstance(message, str) and message.isprintable() else ""


def signature_of(token: bytes, said: tuple[str, str, str, str], body: bytes) -> str:
    """Of a request. `said`: method, target, time and nonce."""
    texts = (text.encode("utf-8", "surrogateescape") for text in ("request", *said))
    return mac(token, *texts, sha256(body).digest()).hex()


def proof_of(token: bytes, nonce: str) -> str:
    """Of an answer to the request with this nonce."""
    return mac(token, b"answer", nonce.encode()).hex()
