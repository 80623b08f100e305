"""Signs of life of engines: legs store the time of each chunk, and the driver tells the Director at each tick.

Times are seconds on the loop's clock. A store a chunk is all that the byte path pays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

from ballast_core.model import EndpointId
from ballast_core.model.life_signs import LifeSign

TOLD_S: Final = 1.0
"""Holders tell five times a second while anything is due to them."""


class Signs:
    """One endpoint's."""

    __slots__ = ("_computed", "asked_s", "computed_s", "heard_s", "legs", "owing_since_s", "stood_s")

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
        self.stood_s = math.inf
        """Since when scrapes show requests that run, and no token computed."""
        self.computed_s = -math.inf
        """When one last showed that tokens had been computed since the one before."""
        self._computed: int | None = None

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

    def shown(self, computed_tokens: int | None, now_s: float, *, runs: bool) -> None:
        """What a scrape says: output tokens since the engine's start (None: it does not), and whether requests run.

        An engine that has not computed anything yet may compile, or warm up.
        """
        before, self._computed = self._computed, computed_tokens
        if computed_tokens and before is not None and computed_tokens != before:
            self.computed_s = now_s
        if not (runs and computed_tokens and computed_tokens == before):
            self.stood_s = math.inf
        elif math.isinf(self.stood_s):
            self.stood_s = now_s

    def unseen(self) -> None:
        """A scrape has shown nothing of its work."""
        self.stood_s = math.inf


class _Told(NamedTuple):
    """What another holder sees of one endpoint, as in `Signs`."""

    legs: int
    heard_s: float
    owing_since_s: float


class LifeSigns:
    """Those of all endpoints."""

    def __init__(self) -> None:
        self._signs: dict[EndpointId, Signs] = {}
        self._others: dict[str, tuple[float, dict[EndpointId, _Told]]] = {}
        """By who has told it: when, and what."""

    def heard(self, source: str, engines: Mapping[str, tuple[int, float | None, float]], now_s: float) -> None:
        """What another holder sees of engines that owe it something: legs, seconds since the last byte (None: none has
        come) and since something is due. It holds for `TOLD_S`, or until the same one tells again."""
        told = {
            EndpointId(name): _Told(legs, -math.inf if byte_s is None else now_s - byte_s, now_s - due_s)
            for name, (legs, byte_s, due_s) in engines.items()
            if legs > 0
        }
        if told:
            self._others[source] = now_s, told
        else:
            self._others.pop(source, None)

    def of(self, endpoint_id: EndpointId) -> Signs:
        """Those of one endpoint; the same object as long as anything is due there."""
        signs = self._signs.get(endpoint_id)
        if signs is None:
            signs = self._signs[endpoint_id] = Signs()
        return signs

    def told(self, ahead_s: float, known: set[EndpointId], now_s: float = -math.inf) -> list[LifeSign]:
        """What the Director is told. `ahead_s`: its clock less the loop's. Those that are not `known` are forgotten."""
        told = []
        others = self._of_others(known, now_s) if self._others else {}
        for endpoint_id, signs in list(self._signs.items()):
            if endpoint_id not in known and not signs.legs:
                del self._signs[endpoint_id]
                continue
            legs, heard_s, owing_s = signs.legs, signs.heard_s, signs.owing_since_s
            for other in others.get(endpoint_id, ()):
                owing_s = min(owing_s, other.owing_since_s) if legs else other.owing_since_s
                legs, heard_s = legs + other.legs, max(heard_s, other.heard_s)
            times_s = (heard_s, owing_s, signs.asked_s, signs.stood_s, signs.computed_s)
            told.append(LifeSign(endpoint_id, legs, *[each + ahead_s for each in times_s]))
        return told

    def _of_others(self, known: set[EndpointId], now_s: float) -> dict[EndpointId, list[_Told]]:
        """By endpoint; each gets signs of its own, too. What has not been told again in time is forgotten."""
        found: dict[EndpointId, list[_Told]] = {}
        for source, (at_s, engines) in list(self._others.items()):
            if now_s - at_s > TOLD_S:
                del self._others[source]
                continue
            for endpoint_id, told in engines.items():
                if endpoint_id in known:
                    self.of(endpoint_id)
                    found.setdefault(endpoint_id, []).append(told)
        return found

    def forgive(self, seconds: float) -> None:
        """The loop stood still for so long: what engines sent meanwhile could not be read."""
        for signs in self._signs.values():
            signs.owing_since_s = max(signs.heard_s, signs.owing_since_s) + seconds
            signs.asked_s += seconds
            signs.stood_s += seconds
        for source, (at_s, engines) in self._others.items():
            later = {name: told._replace(owing_since_s=told.owing_since_s + seconds) for name, told in engines.items()}
            self._others[source] = at_s + seconds, later
