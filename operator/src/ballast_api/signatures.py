"""Signatures of the fleet's token: who asks a gateway or an agent proves to have it, and so does who answers.

A caller signs method, target, time, nonce, recipient and body with HMAC-SHA-256 (RFC 2104), so that what is overheard
is of no use elsewhere or later. The answer is signed over that nonce, so a caller knows that it has reached one of its
own.

A recipient is a listener, by a name that it draws when it starts and tells with each 401. Addresses would not do: a
Service, a forwarded port or a mesh changes them on the way, and they outlive a restart, which forgets the nonces. Who
calls for the first time signs for nobody, is told the name, and calls again.
"""

from __future__ import annotations

import hmac
import json
import secrets
from hashlib import sha256
from typing import Final

SCHEME: Final = "Ballast"
"""Of the `authorization` header: `Ballast t=UNIX_SECONDS,n=NONCE,r=RECIPIENT,s=HEX`."""
PROOF: Final = "x-ballast-proof"
"""Header of each answer: that it comes from one who has the token."""
RECIPIENT: Final = "x-ballast-recipient"
"""Header of each 401: for whom to sign here."""
NONCE_DIGITS: Final = 32
_MOST_RECIPIENTS: Final = 10_000


def mac(token: bytes, *parts: bytes) -> bytes:
    """HMAC-SHA-256 over these parts, 32 bytes. Their lengths are in it: no two lists of parts give the same text."""
    text = b"".join(b"%d:%b" % (len(part), part) for part in parts)
    return hmac.digest(token, text, "sha256")


class NotSigned(Exception):
    """A call that is not let in, and why, for whoever made it. Who lacks the token learns no more than that."""

    def __init__(self, why: str = "this needs a call signed with the fleet's token, for this method, route and body"):
        super().__init__(why)
        self.recipient = ""
        """Who judged."""


class Recipients:
    """The names of listeners that were called, by address."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def at(self, address: str) -> str:
        """Empty until it is learned."""
        return self._names.get(address, "")

    def learn(self, address: str, status: int, name: str, signed: Signed) -> bool:
        """Take the name from the answer to a call. Whether the call is to be signed anew with it."""
        if status != 401 or len(name) != NONCE_DIGITS or not name.isalnum() or name == signed.to:
            return False
        if len(self._names) >= _MOST_RECIPIENTS:  # of pods that are long gone
            self._names.clear()
        self._names[address] = name
        return True


class Signed:
    """A signed request: the header to send, and the answer's proof that is due. `to`: the recipient, empty if it is not
    known yet."""

    __slots__ = ("_nonce", "_token", "authorization", "to")

    def __init__(self, token: bytes, method: str, target: str, body: bytes, unix_s: float, *, to: str = "") -> None:
        self._token = token
        self.to = to
        self._nonce = secrets.token_hex(NONCE_DIGITS // 2)
        at = str(int(unix_s))
        signature = signature_of(token, (method, target, at, self._nonce, to), body)
        self.authorization = f"{SCHEME} t={at},n={self._nonce},r={to},s={signature}"

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


def signature_of(token: bytes, said: tuple[str, ...], body: bytes) -> str:
    """Of a request. `said`: method, target, time, nonce and recipient."""
    texts = (text.encode("utf-8", "surrogateescape") for text in ("request", *said))
    return mac(token, *texts, sha256(body).digest()).hex()


def proof_of(token: bytes, nonce: str) -> str:
    """Of an answer to the request with this nonce."""
    return mac(token, b"answer", nonce.encode()).hex()
