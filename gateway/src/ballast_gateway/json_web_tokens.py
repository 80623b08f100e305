"""JSON Web Tokens (RFC 7519) of clients: whose they are, by the public keys of one issuer (RFC 7517).

PyJWT checks signatures and claims. Before it comes what it leaves to its users: a token is bounded before it is parsed,
no name may stand twice in it, and its key alone says by which algorithm it is checked (RFC 8725 sections 3.1 and 3.2).
"""

from __future__ import annotations

import binascii
import logging
import re
import time
from base64 import urlsafe_b64decode
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ballast_api.errors import InvalidInput, Problem
from ballast_api.gateway_settings import Jwt
from ballast_gateway import strict_json
from ballast_gateway.file_stamps import stamp

if TYPE_CHECKING:
    from jwt import PyJWK

_log = logging.getLogger(__name__)

MOST_BYTES: Final = 8192
"""Of a token."""
LEEWAY_S: Final = 10.0
"""Clocks differ."""
_KEPT: Final = 4096
"""Tokens that need no second check until they expire."""
_ALGORITHMS: Final = frozenset({"RS256", "ES256", "EdDSA"})
_CURVES: Final = frozenset({"P-256", "Ed25519", "Ed448"})
_MOST_KEYS_BYTES: Final = 1 << 20
_LEAST_RSA_BITS: Final = 2048
_MOST_NAME: Final = 256
_PARTS: Final = re.compile(rb"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.[A-Za-z0-9_-]+")


class Refused(Exception):
    """A token that is not to be believed; the message says why, and quotes nothing."""


class TokenReader:
    """Reads tokens by the keys of a file; one that is unreadable or wrong changes nothing until it is mended."""

    def __init__(self, settings: Jwt, unix_s: Callable[[], float] = time.time) -> None:
        """Raises `InvalidInput`: without keys nobody could be believed."""
        self._settings = settings
        self._file = Path(settings.jwks_file)
        self._unix_s = unix_s
        self._known: dict[bytes, tuple[str, float]] = {}
        """Tokens that were good: tenant, and until when, by their digests."""
        self._seen = stamp(self._file)
        self._keys = _read(self._file)

    def refresh(self) -> None:
        """Read the keys if their file has changed. Tokens of keys that are gone are not believed any more."""
        seen = stamp(self._file)
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._keys = _read(self._file)
        except InvalidInput as error:
            _log.error("the file of token keys is not usable; keeping the keys", extra={"problem": str(error)})
        else:
            self._known.clear()
            _log.info("read the file of token keys", extra={"keys": len(self._keys)})

    def tenant(self, token: bytes, digest: bytes) -> str:
        """The value of the claim that names the tenant. `digest` is of the token. Raises `Refused`."""
        known = self._known.get(digest)
        if known is not None:
            if self._unix_s() < known[1]:
                return known[0]
            del self._known[digest]
            raise Refused("expired")
        claims = self._verified(token)
        tenant = claims.get(self._settings.tenant_claim)
        if not isinstance(tenant, str) or not 0 < len(tenant) <= _MOST_NAME:
            raise Refused("no tenant in the claim that names it")
        try:
            until_s = float(claims["exp"]) + LEEWAY_S
        except OverflowError:
            raise Refused("not as it should be") from None
        while len(self._known) >= _KEPT:
            del self._known[next(iter(self._known))]
        self._known[digest] = tenant, until_s
        return tenant

    def _verified(self, token: bytes) -> dict[str, Any]:
        import jwt

        if len(token) > MOST_BYTES:
            raise Refused(f"more than {MOST_BYTES} bytes")
        parts = _PARTS.fullmatch(token)
        if parts is None:
            raise Refused("no token of three parts")
        key = self._key_of(_document(parts[1]))
        _document(parts[2])
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                key.key,
                algorithms=[key.algorithm_name],
                audience=self._settings.audiences,
                issuer=self._settings.issuer,
                leeway=LEEWAY_S,
                options={"require": ["exp"]},
            )
        except jwt.PyJWTError as error:
            raise Refused(_WHY.get(type(error).__name__, "not as it should be")) from None
        except (ValueError, TypeError, OverflowError):
            raise Refused("not as it should be") from None
        return claims

    def _key_of(self, header: dict[str, Any]) -> PyJWK:
        """The one key that a token may have been signed with."""
        algorithm, kid = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in _ALGORITHMS:
            raise Refused("signed by an algorithm that is not taken")
        if "crit" in header:
            raise Refused("an extension that is not known")
        fitting = [key for key in self._keys if key.algorithm_name == algorithm and (kid is None or key.key_id == kid)]
        if len(fitting) != 1:
            raise Refused("no key is known that fits" if not fitting else "several keys fit, and it names none")
        return fitting[0]


_WHY: Final = {
    "ExpiredSignatureError": "expired",
    "ImmatureSignatureError": "not valid yet",
    "InvalidAudienceError": "for another audience",
    "InvalidIssuerError": "of another issuer",
    "InvalidSignatureError": "its signature is wrong",
    "MissingRequiredClaimError": "a claim is missing",
}
"""What went wrong, by the library's name of it."""


def _document(part: bytes) -> dict[str, Any]:
    """Raises `Refused` for what is no JSON object, or not one to all who read it."""
    try:
        found = strict_json.parse(urlsafe_b64decode(part + b"=" * (-len(part) % 4)))
    except (strict_json.InvalidJson, binascii.Error):
        raise Refused("no JSON that can be read in one way only") from None
    if not isinstance(found, dict):
        raise Refused("no JSON object")
    return found


def _read(file: Path) -> list[PyJWK]:
    """The public keys of a key set. Raises `InvalidInput`."""
    try:
        with file.open("rb") as opened:
            raw = opened.read(_MOST_KEYS_BYTES + 1)
        if len(raw) > _MOST_KEYS_BYTES:
            raise _wrong(file, f"is larger than {_MOST_KEYS_BYTES} bytes")
        found = strict_json.parse(raw)
    except OSError as error:
        raise _wrong(file, f"cannot be read: {error.strerror}") from error
    except strict_json.InvalidJson as error:
        raise _wrong(file, "is no JSON") from error
    entries = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise _wrong(file, "is no JWK Set: it has no list `keys`")
    keys = [key for number, entry in enumerate(entries) if (key := _key(file, number, entry)) is not None]
    if not keys:
        raise _wrong(file, "has no key for signatures by RS256, ES256 or EdDSA")
    names = [(key.key_id, key.algorithm_name) for key in keys]
    if len(set(names)) < len(names):
        raise _wrong(file, "has two keys with the same kid and algorithm; give each a kid of its own")
    return keys


def _key(file: Path, number: int, entry: dict[str, Any]) -> PyJWK | None:
    """None for keys of other uses and kinds, which other readers of the set may need."""
    import jwt

    if entry.get("d") is not None:
        raise _wrong(file, f"keys[{number}] is a private key; keep only public ones here")
    if entry.get("use", "sig") != "sig" or entry.get("kty") not in ("RSA", "EC", "OKP"):
        return None
    if not _is_ours(entry.get("alg"), _ALGORITHMS) or not _is_ours(entry.get("crv"), _CURVES):
        return None
    if not isinstance(entry.get("kid", ""), str):
        raise _wrong(file, f"keys[{number}].kid is no text")
    try:
        key = jwt.PyJWK(entry)
    except (jwt.PyJWTError, ValueError, TypeError, KeyError) as error:
        raise _wrong(file, f"keys[{number}] is not usable ({type(error).__name__})") from error
    if key.key_type == "RSA" and key.key.key_size < _LEAST_RSA_BITS:
        raise _wrong(file, f"keys[{number}] has less than {_LEAST_RSA_BITS} bits")
    return key


def _is_ours(stated: object, known: frozenset[str]) -> bool:
    """Whether what a key states, if it states any, is one of these."""
    return stated is None or (isinstance(stated, str) and stated in known)


def _wrong(file: Path, problem: str) -> InvalidInput:
    return InvalidInput(str(file), [Problem("", problem)])
