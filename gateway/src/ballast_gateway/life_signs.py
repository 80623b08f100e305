"""Signs of life of engines: legs store the time of each chunk, and the driver tells the Director at each tick.

Times are seconds on the loop's clock. A store a chunk is all that the byte path pays.
"""

from __future__ import annotations

import math

from ballast_core.model import EndpointId
from ballast_core.model.life_signs import LifeSign


class Signs:
    """One endpoint's."""

    __slots__ = ("asked_s", "heard_s", "legs", "owing_since_s")

    def __init__(self) -> None:
        self.heard_s = -math.inf
        """When a leg there last brought a byte of an answer. A head is none: servers send it before their engine is at
        work."""
        self.legs = 0
        """Legs from which something is due now."""
        self.owing_since_s = -math.inf
        """When `legs` last left 0, or since when they owe something by what is forgiven."""
        self.asked_s = math.inf
        """Since when a scrape has had no answer."""

    def owe(self, now_s: float) -> None:
        """Something is due from one more leg."""
        if not self.legs:
            self.owing_since_s = now_s
        self.legs += 1

    def settle(self) -> None:
        """Nothing is due from one of them any more."""
        self.legs -= 1

    def asked(self, now_s: float) -> None:
        """A scrape is on its way; those before it may have had no answer."""
        self.asked_s = min(self.asked_s, now_s)

    def answered(self) -> None:
        """The scrape was answered, or refused at once."""
        self.asked_s = math.inf


class LifeSigns:
    """Those of all endpoints."""

    def __init__(self) -> None:
        self._signs: dict[EndpointId, Signs] = {}

    def of(self, endpoint_id: EndpointId) -> Signs:
        """Those of one endpoint; the same object as long as anything is due there."""
        signs = self._signs.get(endpoint_id)
        if signs is None:
            signs = self._signs[endpoint_id] = Signs()
        return signs

    def told(self, ahead_s: float, known: set[EndpointId]) -> list[LifeSign]:
        """What the Director is told. `ahead_s`: its clock less the loop's. Those that are not `known` are forgotten."""
        told = []
        for endpoint_id, signs in list(self._signs.items()):
            if endpoint_id not in known and not signs.legs:
                del self._signs[endpoint_id]
                continue
            heard_s, owing_s = signs.heard_s + ahead_s, signs.owing_since_s + ahead_s
            told.append(LifeSign(endpoint_id, signs.legs, heard_s, owing_s, signs.asked_s + ahead_s))
        return told

    def forgive(self, seconds: float) -> None:
        """The loop stood still for so long: what engines sent meanwhile could not be read."""
        for signs in self._signs.values():
            signs.owing_since_s = max(signs.heard_s, signs.owing_since_s) + seconds
            signs.asked_s += seconds
