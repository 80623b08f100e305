"""Signs of life of endpoints, and what the watch makes of them."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import NamedTuple

from ballast_core.model.endpoints import EndpointId


class Pulse(StrEnum):
    """Whether an endpoint that owes something gives it."""

    STEADY = "steady"
    SUSPECTED = "suspected"
    """It is late: no new work, unless nothing else is left."""
    LOST = "lost"
    """It is so late that its legs are left. It must prove itself by one request before it gets others."""


class LifeSign(NamedTuple):
    """What a driver knows of one endpoint. Times are seconds on the Director's clock."""

    endpoint_id: EndpointId
    legs: int
    """Legs in flight there from which something is due: no whole answers, and no streams whose clients are slow."""
    heard_s: float = -math.inf
    """When a leg there last brought a byte of an answer."""
    owing_since_s: float = -math.inf
    """When `legs` last left 0, or later, where the driver itself stood still."""
    asked_s: float = math.inf
    """Since when a scrape of it has had no answer; inf: the last one was answered, or refused at once."""
    stood_s: float = math.inf
    """Since when its metrics show requests that run, and no token computed; inf: they do not."""
    computed_s: float = -math.inf
    """When its metrics last showed tokens that it had computed since the scrape before."""
