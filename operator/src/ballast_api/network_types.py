"""Fields that name a place in a network: ports, addresses, origins, paths."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from ballast_api.addresses import is_address
from ballast_api.common import LAST_PORT

PortOrAny = Annotated[int, Field(ge=0, le=LAST_PORT)]
"""0 takes any free port."""


def _address(value: str) -> str:
    if not is_address(value):
        raise PydanticCustomError("address", "must be host:port, an IPv6 host in brackets, the port from 1 to 65535")
    return value


Address = Annotated[str, AfterValidator(_address)]
"""`host:port`; an IPv6 host stands in brackets."""

_ORIGIN = r"^(\*|https?://[^\s/:?#@]+(:[0-9]{1,5})?)$"
_RECEIVER = r"^https?://(\[[0-9A-Fa-f:.]+\]|[^\s/:?#@\[\]]+)(:[0-9]{1,5})?(/[^\s?#]*)?$"


def _origin(value: str) -> str:
    if not re.fullmatch(_ORIGIN, value):
        raise PydanticCustomError("origin", 'must be "*", or scheme://host or scheme://host:port with http or https')
    return value.lower()


def _receiver(value: str) -> str:
    if not re.fullmatch(_RECEIVER, value):
        raise PydanticCustomError("receiver", "must be http://host:port or https://host:port, with a path or without")
    return value


Path = Annotated[str, Field(pattern=r"^/[A-Za-z0-9._~/-]*$", max_length=256)]
"""An absolute path without query."""
Origin = Annotated[str, AfterValidator(_origin), Field(json_schema_extra={"pattern": _ORIGIN})]
"""`*`, or the origin of a page as browsers write it (RFC 6454 section 6.2)."""
Receiver = Annotated[str, AfterValidator(_receiver), Field(json_schema_extra={"pattern": _RECEIVER})]
"""The base URL of a receiver of traces."""
