"""The plan of a request: what a picker has decided about it, signed, in one header for the agent of the decode pod.

`x-ballast-plan: BASE64URL(JSON).BASE64URL(HMAC)`, without padding. Only who has the fleet's token can write one, so a
client that reaches an agent can neither have it fetch from where it likes nor take another request's place: a plan
names its request, and holds for a minute.
"""

from __future__ import annotations

import binascii
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable
from typing import Final

import msgspec

from ballast_api.signatures import mac
from ballast_core.model.endpoints import Endpoint, EndpointId, Role
from ballast_core.model.segments import Segment

LIFE_S: Final = 60
"""Seconds for which a plan holds: Envoy sends the request on within one, and again if an endpoint refuses it."""
MOST_BYTES: Final = 16_384
_SKEW_S: Final = 120
_PURPOSE: Final = b"plan"


class PlanRefused(Exception):
    """A plan that is not to be followed, and why."""


class Place(msgspec.Struct, frozen=True, array_like=True):
    """An endpoint: `[id, address, role, revision]`."""

    id: str
    address: str
    role: Role
    revision: str = ""
    """Those of different ones exchange no KV blocks; empty if unknown."""

    @classmethod
    def of(cls, endpoint: Endpoint) -> Place:
        """That of the core's endpoint."""
        return cls(endpoint.id, endpoint.address, endpoint.role, endpoint.revision)

    def endpoint(self) -> Endpoint:
        """The core's value."""
        return Endpoint(EndpointId(self.id), self.address, self.role, revision=self.revision)


class Part(msgspec.Struct, frozen=True, array_like=True):
    """A segment of a cut: `[endpoint, end_tokens, tbt_slo_s]`, as `ballast_core.model.segments.Segment`."""

    place: Place
    end_tokens: int | None
    tbt_slo_s: float | None = None

    @classmethod
    def of(cls, segment: Segment) -> Part:
        """That of the core's segment."""
        return cls(Place.of(segment.endpoint), segment.end_tokens, segment.tbt_slo_s)

    def segment(self) -> Segment:
        """The core's value."""
        return Segment(self.place.endpoint(), self.end_tokens, self.tbt_slo_s)


class Plan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=False):
    """What a picker has decided. Fields that a later release adds are ignored."""

    id: str
    """The Director's id of the request; unique at that picker."""
    by: str
    """Name of the picker."""
    until_s: int = 0
    """Unix time up to which it holds; `sign` sets it."""
    decode: Place
    prefill: Place | None = None
    """None: the decode endpoint computes the prompt."""
    segments: tuple[Part, ...] = ()
    """In order, the decode's last; empty: not cut."""
    fallbacks: tuple[Place, ...] = ()
    """Further decode endpoints, the best first."""
    prefill_fallbacks: tuple[Place, ...] = ()
    priority: int | None = None
    """For engines that schedule by priority."""
    prompt_tokens: int = 0
    max_output_tokens: int | None = None
    model: str = ""
    traffic_class: str = ""
    tenant: str = ""
    max_retries: int = 2
    """How often it may be dispatched again."""

    @property
    def key(self) -> str:
        """Names the request in the whole fleet."""
        return key_of(self.by, self.id)


_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(Plan)


def key_of(by: str, request_id: str) -> str:
    """Names a request in the whole fleet. `by`: the gateway that decided; its name has no slash."""
    return f"{by}/{request_id}"


def sign(plan: Plan, token: bytes, unix_s: float) -> str:
    """The header's value; the plan holds for `LIFE_S` from `unix_s` on."""
    text = _ENCODER.encode(msgspec.structs.replace(plan, until_s=int(unix_s) + LIFE_S))
    return f"{_armoured(text)}.{_armoured(mac(token, _PURPOSE, text))}"


def verify(value: str, tokens: Iterable[bytes], unix_s: float) -> Plan:
    """The plan in a header's value. Raises `PlanRefused`."""
    if len(value) > MOST_BYTES:
        raise PlanRefused(f"a plan has at most {MOST_BYTES} bytes")
    body, _, signature = value.partition(".")
    try:
        text, given = _bare(body), _bare(signature)
    except (ValueError, binascii.Error) as error:
        raise PlanRefused("not base64url") from error
    if not any(hmac.compare_digest(mac(token, _PURPOSE, text), given) for token in tokens):
        raise PlanRefused("not signed with the fleet's token")
    try:
        plan = _DECODER.decode(text)
    except msgspec.DecodeError as error:
        raise PlanRefused(str(error)) from error
    if not unix_s - _SKEW_S <= plan.until_s <= unix_s + LIFE_S + _SKEW_S:
        raise PlanRefused("it does not hold any more, or not yet")
    return plan


def _armoured(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def _bare(text: str) -> bytes:
    return urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
