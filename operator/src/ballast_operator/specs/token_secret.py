"""The Secret with the pod API's tokens: made once, kept while it is usable, rotated in steps. Pure.

Its text has one token a line; the first one signs, all are accepted. Pods see a new text at different times, up to two
minutes apart. So a new token is announced first (last in the text: accepted by all that have read it, used by none),
signs when all have it, and the older ones go when nothing that they signed can still be on its way:

    old  ->  old, new (Announced)  ->  new, old (Signing)  ->  new

The step and its time stand in the Secret's annotations: an operator that starts anew goes on where the last one died.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Final

from ballast_api import names
from ballast_operator.kinds import SECRET, Manifest
from ballast_operator.specs.meta import Owner, child

ANNOUNCED: Final = "Announced"
SIGNING: Final = "Signing"
STEP_S: Final = {ANNOUNCED: 150.0, SIGNING: 210.0}
"""Seconds that a step lasts: kubelets bring a Secret's new text within 90 s and the age of their caches; what the old
token has signed last, a plan, holds for a minute after that."""
_LEAST_BYTES: Final = 16
"""Shorter tokens are refused by who reads them (`ballast_gateway.podapi.auth`)."""


@dataclass(frozen=True, slots=True)
class Found:
    """The Secret as it was read."""

    manifest: Manifest | None
    """None if there is none that this ServingPool may use."""
    step_age_s: float | None
    """Seconds since its step began; None if it does not say."""


@dataclass(frozen=True, slots=True)
class TokenSecret:
    """What the Secret must be."""

    manifest: Manifest
    next_step_s: float | None = None
    """Seconds until its next step; None if it is not being rotated."""
    remark: str = ""


@dataclass(frozen=True, slots=True)
class _Wish:
    text: str
    """Base64, as in `data`."""
    rotation: str
    step: str = ""
    since: str = ""


def token_secret(owner: Owner, found: Found, *, rotation: str, fresh: str, now: str) -> TokenSecret:
    """The Secret of `owner`.

    `rotation`: the value of the ServingPool's annotation, empty without one. `fresh`: a token that nobody knows, used
    when one is needed. `now`: RFC 3339 in UTC.
    """
    tokens = tokens_of(found.manifest)
    if found.manifest is None or not tokens:
        return _secret(owner, _Wish(_text([fresh]), rotation))
    data, said = found.manifest["data"][names.TOKEN_KEY], found.manifest["metadata"].get("annotations") or {}
    step, before = said.get(names.ANNOTATION_TOKEN_STEP, ""), said.get(names.ANNOTATION_TOKEN_ROTATION, "")
    since = said.get(names.ANNOTATION_TOKEN_STEP_TIME, "")
    if step not in STEP_S:
        if not rotation or rotation == before:
            return _secret(owner, _Wish(data, before))
        return _secret(owner, _Wish(_text([*tokens, fresh]), rotation, ANNOUNCED, now), STEP_S[ANNOUNCED])
    if found.step_age_s is None or found.step_age_s < 0:  # the clock has been put back: a step never takes longer
        return _secret(owner, _Wish(data, before, step, now), STEP_S[step])
    left_s = STEP_S[step] - found.step_age_s
    if left_s > 0:
        return _secret(owner, _Wish(data, before, step, since), min(left_s, STEP_S[step]))
    if step == ANNOUNCED:
        return _secret(owner, _Wish(_text([tokens[-1], *tokens[:-1]]), before, SIGNING, now), STEP_S[SIGNING])
    return _secret(owner, _Wish(_text(tokens[:1]), before))


def _secret(owner: Owner, wish: _Wish, next_step_s: float | None = None) -> TokenSecret:
    manifest = child(SECRET, owner, names.gateway_token_name(owner.name), "gateway", data={names.TOKEN_KEY: wish.text})
    annotations = {
        names.ANNOTATION_TOKEN_ROTATION: wish.rotation,
        names.ANNOTATION_TOKEN_STEP: wish.step,
        names.ANNOTATION_TOKEN_STEP_TIME: wish.since,
    }
    said = {key: value for key, value in annotations.items() if value}
    if said:
        manifest = {**manifest, "metadata": {**manifest["metadata"], "annotations": said}}
    remark = f"the pod API's token is being rotated: {wish.step} since {wish.since}" if wish.step else ""
    return TokenSecret(manifest, next_step_s, remark)


def tokens_of(secret: Manifest | None) -> list[str]:
    """Its tokens, the first one signs; empty if it has none that gateways and agents take."""
    text = ((secret or {}).get("data") or {}).get(names.TOKEN_KEY, "")
    try:
        lines = base64.b64decode(text, validate=True).decode("ascii").split()
    except (binascii.Error, UnicodeDecodeError, TypeError):
        return []
    return lines if all(len(line) >= _LEAST_BYTES for line in lines) else []


def _text(tokens: list[str]) -> str:
    return base64.b64encode("".join(f"{token}\n" for token in tokens).encode()).decode()
