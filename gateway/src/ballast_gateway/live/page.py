"""The page: one file with its script and its style, and a policy by which a browser runs these two and nothing else."""

from __future__ import annotations

import re
from base64 import b64encode
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

_INLINE: Final = re.compile(rb"<(script|style)>(.*?)</\1>", re.DOTALL)


class Page(NamedTuple):
    """The body, and the headers that go with it."""

    body: bytes
    headers: dict[str, str]


def _hash(text: bytes) -> str:
    return b64encode(sha256(text).digest()).decode()


@cache
def page() -> Page:
    """The page as it is served to everybody: it holds nothing of the fleet."""
    body = Path(__file__).with_name("page.html").read_bytes()
    allowed = {
        kind.decode(): f"'sha256-{b64encode(sha256(text).digest()).decode()}'" for kind, text in _INLINE.findall(body)
    }
    policy = (
        f"default-src 'none'; script-src {allowed['script']}; style-src {allowed['style']}; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return Page(
        body,
        {
            "content-type": "text/html; charset=utf-8",
            "content-security-policy": policy,
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
            "cache-control": "no-cache",
        },
    )
