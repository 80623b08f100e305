"""What counts as `host:port`. Apart from the schema: an agent's process imports no pydantic."""

from __future__ import annotations

import re
from typing import Final

_ADDRESS: Final = re.compile(r"(\[[0-9A-Fa-f:.%a-z]+\]|[^\s:\[\]/]+):([0-9]{1,5})")


def is_address(text: str) -> bool:
    """Whether it is `host:port`, an IPv6 host in brackets, the port from 1 to 65535. ASCII: it stands in heads, too."""
    found = _ADDRESS.fullmatch(text) if text.isascii() and text.isprintable() else None
    return found is not None and 0 < int(found[2]) < 1 << 16
