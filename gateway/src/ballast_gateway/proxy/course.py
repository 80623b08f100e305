"""What a generation is carried out with, and where it goes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from ballast_core.model import Endpoint
from ballast_core.model.effects import Dispatch
from ballast_gateway.http.client import UpstreamPool
from ballast_gateway.life_signs import LifeSigns
from ballast_gateway.openai_body import JsonObject
from ballast_gateway.proxy.cutting import Cutter, Remainder
from ballast_gateway.proxy.whole_answers import Unfit

NEVER_S: Final = float("inf")


@dataclass(frozen=True, slots=True)
class Resources:
    """What all generations share."""

    pool: UpstreamPool
    loop: asyncio.AbstractEventLoop
    cutter: Cutter
    life_signs: LifeSigns
    prefill_timeout_s: float
    """For a whole prefill, and for the first byte of a decode."""
    idle_timeout_s: float
    rescue: bool
    """Whether a stream goes on elsewhere when its engine fails."""
    unfit: Unfit = field(default_factory=Unfit)


@dataclass(slots=True)
class Course:
    """Where the request goes since its last dispatch. Handle, rest and limit are good for one leg."""

    dispatch: Dispatch
    endpoint: Endpoint
    """Of the next decode leg, or of the one that runs."""
    handle: JsonObject | None = None
    """For the KV of a prefill leg."""
    rest: Remainder | None = None
    """After a first part."""
    due_s: float = NEVER_S
    """When the next decode leg must have begun, on the loop's clock."""
    crossed: bool = False
    """The gateway has cut this stream, so it must bring it to its end, with rescue off too."""
