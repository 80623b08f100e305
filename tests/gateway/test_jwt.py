"""JSON Web Tokens: whose requests they let in, and every way to forge, twist or outlive one."""

from __future__ import annotations

import json
import logging
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from ballast_api.errors import InvalidInput
from ballast_api.gateway_settings import Jwt, Keys
from ballast_gateway import json_web_tokens
from ballast_gateway.json_web_tokens import Refused, TokenReader
from ballast_gateway.keys import KeyRing
from tests.support.gateway_kit import post, raw_exchange, running_gateway, until
from tests.support.scripted_engine import decode_script, scripted_engine

ISSUER, AUDIENCE = "https://issuer.example", "ballast"
RSA = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
OTHER = rsa.generate_private_key(65537, 2048)
PRIVATE: dict[str, tuple[str, Any]] = {"r": ("RS256", RSA), "e": ("ES256", EC), "d": ("EdDSA", ED)}


def public(kid: str | None, key: Any, **more: Any) -> dict[str, Any]:
    maker: Any = {"r": RSAAlgorithm, "e": ECAlgorithm}.get(
        "r" if isinstance(key, rsa.RSAPrivateKey) else "e" if isinstance(key, ec.EllipticCurvePrivateKey) else "d",
        OKPAlgorithm,
    )
    named = {} if kid is None else {"kid": kid}
    return {**json.loads(maker.to_jwk(key.public_key())), **named, **more}


KEYS = [public(kid, key) for kid, (_, key) in PRIVATE.items()]


def jwks(file: Path, *keys: dict[str, Any]) -> str:
    """In place of what is there, by a new link."""
    new = file.with_suffix(".new")
    new.write_text(json.dumps({"keys": list(keys)}))
    new.replace(file)
    return str(file)


def claims(**more: Any) -> dict[str, Any]:
    now = int(time.time())
    found = {"iss": ISSUER, "aud": AUDIENCE, "sub": "search", "exp": now + 600, "nbf": now - 5, "iat": now - 5} | more
    return {name: value for name, value in found.items() if value is not None}


def token(kid: str | None = "r", *, signed_by: str = "r", head: dict[str, Any] | None = None, **more: Any) -> bytes:
    algorithm, key = PRIVATE[signed_by]
    named = {} if kid is None else {"kid": kid}
    return jwt.encode(claims(**more), key, algorithm, headers={**named, **(head or {})}).encode()


def encoded(part: bytes) -> bytes:
    return urlsafe_b64encode(part).rstrip(b"=")


def written(head: str, payload: str, *, sign: bool = True) -> bytes:
    """Of exactly this text, with a signature that is right."""
    signing = encoded(head.encode()) + b"." + encoded(payload.encode())
    signature = PRIVATE["d"][1].sign(signing) if sign else b""
    return signing + b"." + encoded(signature)


def reader(file: Path, *keys: dict[str, Any], unix_s: Callable[[], float] = time.time, **more: Any) -> TokenReader:
    path = jwks(file, *(keys or KEYS))
    return TokenReader(Jwt(jwks_file=path, issuer=ISSUER, audiences=(AUDIENCE, "other"), **more), unix_s)


def tenant_of(tokens: TokenReader, value: bytes) -> str:
    return tokens.tenant(value, sha256(value).digest())


@pytest.mark.parametrize("kid", PRIVATE)
def test_each_algorithm_names_the_tenant(kid: str, tmp_path: Path) -> None:
    tokens = reader(tmp_path / "jwks")
    for _ in range(2):
        assert tenant_of(tokens, token(kid, signed_by=kid)) == "search"
    assert tenant_of(tokens, token(kid, signed_by=kid, aud=["x", AUDIENCE], nbf=None, iat=None)) == "search"


def test_the_claim_of_the_tenant_is_a_setting(tmp_path: Path) -> None:
    tokens = reader(tmp_path / "jwks", tenant_claim="https://example.org/team")
    more: dict[str, Any] = {"https://example.org/team": "ads"}
    assert tenant_of(tokens, token(**more)) == "ads"


def confused() -> bytes:
    """HMAC with the public key as its secret (CVE-2015-9235)."""
    import hmac

    pem = RSA.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    signing = encoded(b'{"alg":"HS256","kid":"r","typ":"JWT"}') + b"." + encoded(json.dumps(claims()).encode())
    return signing + b"." + encoded(hmac.digest(pem, signing, "sha256"))


def tampered() -> bytes:
    head, _, signature = token().split(b".")
    return b".".join((head, encoded(json.dumps(claims(sub="admin")).encode()), signature))


ED_HEAD = '{"alg":"EdDSA","kid":"d"}'
NOW = int(time.time())
FORGED = {
    "none": (written('{"alg":"none"}', json.dumps(claims()), sign=False) + b"x", "algorithm"),
    "a list of algorithms": (written('{"alg":[]}', json.dumps(claims()), sign=False) + b"x", "algorithm"),
    "an object as algorithm": (written('{"alg":{}}', json.dumps(claims()), sign=False) + b"x", "algorithm"),
    "an end beyond all numbers": (token(exp=10**400), "not as it should be"),
    "None in capitals": (written('{"alg":"NONE","kid":"d"}', json.dumps(claims())), "algorithm"),
    "no signature": (written(ED_HEAD, json.dumps(claims()), sign=False), "three parts"),
    "HMAC with the public key": (confused(), "algorithm"),
    "an algorithm of another key": (
        written('{"alg":"RS256","kid":"d"}', json.dumps(claims())),
        "no key is known that fits",
    ),
    "another key's signature": (jwt.encode(claims(), OTHER, "RS256", headers={"kid": "r"}).encode(), "signature"),
    "RS512": (jwt.encode(claims(), RSA, "RS512", headers={"kid": "r"}).encode(), "algorithm"),
    "a key of its own": (
        jwt.encode(claims(), OTHER, "RS256", headers={"kid": "r", "jwk": public("r", OTHER)}).encode(),
        "signature",
    ),
    "tampered": (tampered(), "signature"),
    "an unknown kid": (token("z"), "no key is known that fits"),
    "a kid that is no text": (written('{"alg":"EdDSA","kid":["d"]}', json.dumps(claims())), "no key is known"),
    "an extension": (token(head={"crit": ["b64"], "b64": True}), "extension"),
    "expired": (token(exp=NOW - 3600), "expired"),
    "from the future": (token(nbf=NOW + 3600), "not valid yet"),
    "issued in the future": (token(iat=NOW + 3600), "not valid yet"),
    "without an end": (token(exp=None), "a claim is missing"),
    "an end that is no number": (token(exp="soon"), "not as it should be"),
    "an end that is a list": (token(exp=[NOW + 100]), "not as it should be"),
    "an endless end": (written(ED_HEAD, json.dumps(claims()).replace(str(claims()["exp"]), "1e999")), "JSON"),
    "another audience": (token(aud="somebody"), "audience"),
    "no audience": (token(aud=None), "a claim is missing"),
    "another issuer": (token(iss="https://evil.example"), "issuer"),
    "no issuer": (token(iss=None), "a claim is missing"),
    "no tenant": (token(sub=None), "no tenant"),
    "an empty tenant": (token(sub=""), "no tenant"),
    "a claim that stands twice": (written(ED_HEAD, json.dumps(claims())[:-1] + ', "sub": "admin"}'), "one way only"),
    "a header that stands twice": (
        written('{"alg":"none","kid":"d","alg":"EdDSA"}', json.dumps(claims())),
        "one way only",
    ),
    "huge": (token(pad="x" * 9000), "more than 8192 bytes"),
    "deep": (written(ED_HEAD, '{"sub":' + "[" * 2000 + "]" * 2000 + "}"), "one way only"),
    "not an object": (written(ED_HEAD, '["sub"]'), "no JSON object"),
    "not base64": (b"ey!.ey!.ey!", "three parts"),
    "a length that base64 has not": (b"e.e.e", "one way only"),
    "four parts": (token() + b".x", "three parts"),
    "nothing": (b"..", "three parts"),
    "another alphabet": (b"\xff.\xff.\xff", "three parts"),
}


@pytest.mark.parametrize(("forged", "why"), FORGED.values(), ids=FORGED)
def test_what_is_forged_is_refused(forged: bytes, why: str, tmp_path: Path) -> None:
    """Twice, so that nothing of it is kept either."""
    tokens = reader(tmp_path / "jwks")
    for _ in range(2):
        with pytest.raises(Refused, match=why):
            tenant_of(tokens, forged)
    assert not tokens._known


def test_without_kid_one_key_must_fit(tmp_path: Path) -> None:
    assert tenant_of(reader(tmp_path / "one"), token(None)) == "search"
    two = reader(tmp_path / "two", public("r", RSA), public("s", OTHER))
    with pytest.raises(Refused, match="several keys fit"):
        tenant_of(two, token(None))
    assert tenant_of(two, token("r")) == "search"


def test_a_good_token_is_checked_once_and_no_longer_good_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [time.time()]
    tokens = reader(tmp_path / "jwks", unix_s=lambda: now[0])
    value = token(exp=int(now[0]) + 60)
    assert tenant_of(tokens, value) == "search"
    monkeypatch.setattr(jwt, "decode", lambda *_, **__: pytest.fail("checked again"))
    assert tenant_of(tokens, value) == "search"
    now[0] += 60 + json_web_tokens.LEEWAY_S
    with pytest.raises(Refused, match="expired"):
        tenant_of(tokens, value)
    assert not tokens._known


def test_what_is_remembered_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_web_tokens, "_KEPT", 5)
    tokens = reader(tmp_path / "jwks")
    for number in range(20):
        assert tenant_of(tokens, token("d", signed_by="d", sub=f"t{number}")) == f"t{number}"
        assert len(tokens._known) <= 5


def test_keys_rotate_by_their_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A new key is taken, an old one's tokens are not, remembered or new; a bad file changes nothing."""
    file = tmp_path / "jwks"
    tokens = reader(file, public("r", RSA))
    old = token("r")
    assert tenant_of(tokens, old) == "search"
    jwks(file, public("r", RSA), public("d", ED))
    tokens.refresh()
    assert tenant_of(tokens, old) == tenant_of(tokens, token("d", signed_by="d")) == "search"
    jwks(file, public("d", ED))
    tokens.refresh()
    with pytest.raises(Refused):
        tenant_of(tokens, old)
    for bad in ("{", "[]", '{"keys": {}}', '{"keys": []}'):
        file.write_text(bad)
        tokens.refresh()
    file.unlink()
    tokens.refresh()
    assert tenant_of(tokens, token("d", signed_by="d")) == "search"
    assert len([entry for entry in caplog.records if entry.levelno == logging.ERROR]) == 5


def private(key: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RSAAlgorithm.to_jwk(key))
    return found


BAD_SETS = {
    "a private key": ([private(RSA)], "private key"),
    "a short key": ([public("r", rsa.generate_private_key(65537, 1024))], "less than 2048 bits"),
    "only a secret": ([{"kty": "oct", "k": "c2VjcmV0", "kid": "o"}], "no key for signatures"),
    "only encryption": ([public("r", RSA, use="enc")], "no key for signatures"),
    "another curve": ([public("c", ec.generate_private_key(ec.SECP384R1()))], "no key for signatures"),
    "one kid twice": ([public("r", RSA), public("r", OTHER)], "two keys with the same kid"),
    "garbage": ([{"kty": "RSA", "n": "!", "e": "AQAB"}], "is not usable"),
    "an EC key without a curve": ([{"kty": "EC", "x": "AA", "y": "AA", "kid": "e"}], "is not usable"),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("keys", "why"), BAD_SETS.values(), ids=BAD_SETS)
def test_a_key_set_that_cannot_be_used_is_an_error(keys: list[dict[str, Any]], why: str, tmp_path: Path) -> None:
    """Which names the file and quotes no key."""
    with pytest.raises(InvalidInput, match=why) as raised:
        reader(tmp_path / "jwks", *keys)
    assert "jwks" in str(raised.value)
    assert "c2VjcmV0" not in str(raised.value)


def test_a_key_that_states_another_algorithm_is_not_used_by_ours(tmp_path: Path) -> None:
    tokens = reader(tmp_path / "jwks", public("r", RSA, alg="RS512"), public("d", ED))
    with pytest.raises(Refused, match="no key is known that fits"):
        tenant_of(tokens, token("r"))


@pytest.mark.parametrize(
    "other",
    [
        public("x", OTHER, alg="RSA-OAEP"),
        public("x", OTHER, alg="RS999"),
        {"kty": "OKP", "crv": "X25519", "x": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "kid": "x"},
        {"kty": "EC", "crv": "BP-256", "x": "AA", "y": "AA", "kid": "x"},
        {"kty": "EC", "crv": ["P-256"], "x": "AA", "y": "AA", "kid": "x"},
    ],
    ids=["of encryption", "of no algorithm", "of an exchange", "of another curve", "of no curve"],
)
def test_keys_that_others_need_keep_none_of_ours_from_being_read(other: dict[str, Any], tmp_path: Path) -> None:
    """RFC 7517 section 5. An issuer may add one with the next rotation, and need not say its `use`."""
    tokens = reader(tmp_path / "jwks", other, public("d", ED))
    jwks(tmp_path / "jwks", other, public("r", RSA))
    tokens.refresh()
    assert tenant_of(tokens, token("r")) == "search"


# --- tenants -----------------------------------------------------------------------------------------------------


def ring(tmp_path: Path, *, tenants: list[dict[str, Any]] | None = None, **limits: Any) -> KeyRing:
    path = jwks(tmp_path / "jwks", *KEYS)
    file = None
    if tenants is not None:
        (tmp_path / "keys").write_text(json.dumps({"tenants": tenants}))
        file = str(tmp_path / "keys")
    of = Jwt(jwks_file=path, issuer=ISSUER, audiences=(AUDIENCE,), **limits)
    return KeyRing(Keys(file=file, jwt=of), lambda: 0.0)


def bearer(value: bytes) -> list[tuple[bytes, bytes]]:
    return [(b"authorization", b"Bearer " + value)]


def test_limits_are_those_of_the_file_or_those_of_all_others(tmp_path: Path) -> None:
    """A key and a token of one tenant have one share; the file may change while requests run."""
    hashed = sha256(b"key").hexdigest()
    named = {"name": "search", "keys": [hashed], "maxInFlight": 2}
    keys = ring(tmp_path, tenants=[named], max_in_flight=1)
    by_key, by_token = keys.tenant(bearer(b"key")), keys.tenant(bearer(token()))
    assert by_key is by_token
    other = keys.tenant(bearer(token(sub="ads")))
    assert by_token is not None
    assert other is not None
    assert [tenant.begin(1) is None for tenant in (by_token, by_token, by_token)] == [True, True, False]
    assert [tenant.begin(1) is None for tenant in (other, other)] == [True, False]
    (tmp_path / "keys").write_text(json.dumps({"tenants": [{"name": "ads", "maxInFlight": 2}]}))
    keys.refresh()
    assert keys.tenant(bearer(token(sub="ads"))) is other
    assert other.begin(1) is None
    assert keys.tenant(bearer(b"key")) is None
    assert keys.tenant([(b"x-api-key", token())]) is None


def test_tenants_that_have_nothing_to_remember_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the file stay, and who has requests in flight, or has used some of its tokens."""
    monkeypatch.setattr("ballast_gateway.keys._MANY", 3)
    keys = ring(tmp_path, tenants=[{"name": "ads", "maxInFlight": 1}], tokens_per_minute=100)
    found = {name: keys.tenant(bearer(token(sub=name))) for name in ("ads", "idle", "busy", "spent", "x", "y")}
    busy, spent = found["busy"], found["spent"]
    assert busy is not None
    assert spent is not None
    assert busy.begin(0) is None
    assert spent.begin(10) is None
    spent.end(10, 0)
    keys.refresh()
    for name, same in {"ads": True, "busy": True, "spent": True, "idle": False}.items():
        assert (keys.tenant(bearer(token(sub=name))) is found[name]) is same, name


async def test_who_has_a_token_is_served_and_no_engine_sees_it(tmp_path: Path) -> None:
    """Through the gateway: a good one, none, a bad one, a limit; nothing of a token in the log."""
    of = {"jwksFile": jwks(tmp_path / "jwks", *KEYS), "issuer": ISSUER, "audiences": [AUDIENCE], "tokensPerMinute": 1}
    good = token("e", signed_by="e")
    async with (
        scripted_engine(decode_script) as engine,
        running_gateway(tmp_path, {"d0": engine.address}, keys={"jwt": of}) as gateway,
    ):
        statuses = []
        for header in (f"authorization: Bearer {good.decode()}", "x-other: 1", f"authorization: Bearer {tampered()!r}"):
            raw = post("/v1/completions", {"model": "tiny", "prompt": "hello there", "max_tokens": 3}, header)
            [answer] = await raw_exchange(gateway.port, raw, answers=1)
            statuses.append(answer.status)
        assert statuses == [200, 401, 401]
        raw = post("/v1/completions", {"model": "tiny", "prompt": "hello"}, f"authorization: bearer {good.decode()}")
        [answer] = await raw_exchange(gateway.port, raw, answers=1)
        assert (answer.status, answer.json()["error"]["code"]) == (429, "tenant-limit")
        assert all(not {"authorization", "x-api-key"} & asked.headers.keys() for asked in engine.asked)
        jwks(tmp_path / "jwks", public("d", ED))
        face = gateway.gateway.proxy
        assert face is not None
        await until(lambda: face._keys is not None and face._keys.tenant(bearer(good)) is None)
        gateway.requests()
        assert good.decode() not in gateway.out.getvalue()


@pytest.mark.parametrize("odd", [{"kid": []}, {"kid": {}}, {"kid": 7}, {"kty": ["RSA"]}])
def test_odd_entries_of_a_key_set_are_refused_or_skipped(odd: dict[str, Any], tmp_path: Path) -> None:
    """With a message, and what was read before stays."""
    tokens = reader(tmp_path / "jwks")
    jwks(tmp_path / "jwks", KEYS[0] | odd)
    tokens.refresh()
    assert tenant_of(tokens, token()) == "search"
    with pytest.raises(InvalidInput, match=r"kid is no text|no key for signatures"):
        reader(tmp_path / "odd", KEYS[0] | odd)
