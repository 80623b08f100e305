"""What several parts of the suite look at alike."""

from __future__ import annotations

import ipaddress
import json

from ballast_conformance.transcript import Transcript
from ballast_conformance.verdicts import Failed, expect

UNKNOWN_ENDPOINT = "192.0.2.1:9"
"""Of TEST-NET-1: in nobody's fleet."""


def expect_routed(said: Transcript, what: str = "the request is routed") -> None:
    """Raise `Failed` unless a destination was named."""
    expect(said.destination is not None, what, said)


def expect_own_body(said: Transcript, body: bytes) -> None:
    """Raise `Failed` unless routed with no other request's body; whether it comes back at all is judged elsewhere."""
    expect_routed(said)
    back = said.body("request_body")
    if back:
        expect(same_document(back, body), "the body of this request", f"{len(back)} bytes of another, or not all")


def same_document(back: bytes, body: bytes) -> bool:
    """Whether both are the same JSON object, but for the model's name, which a picker may rewrite."""
    try:
        got, sent = json.loads(back), json.loads(body)
    except ValueError:
        return back == body
    return isinstance(got, dict) and isinstance(sent, dict) and got | {"model": ""} == sent | {"model": ""}


def expect_status(said: Transcript, status: int) -> None:
    """Raise `Failed` unless the picker has answered the client with this status."""
    if said.status != status:
        seen = f"routed to {said.destination}" if said.destination else said
        raise Failed(f"ImmediateResponse with status {status}", seen)


def is_endpoint(text: str) -> bool:
    """Whether it is `ip:port`, with brackets around IPv6."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        return False
    bracketed = host.startswith("[") and host.endswith("]")
    try:
        address = ipaddress.ip_address(host[1:-1] if bracketed else host)
    except ValueError:
        return False
    return bracketed == (address.version == 6)
