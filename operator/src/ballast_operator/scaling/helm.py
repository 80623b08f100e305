"""Between those who look at ServingPools and the one who decides on their instances. Thread-safe."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

from ballast_operator.gateways.board import Name
from ballast_operator.scaling.steered import Steered


@dataclass(frozen=True, slots=True)
class Unstored:
    """Why decisions on a ServingPool cannot be stored."""

    message: str
    taken: bool = False
    """Whether the ConfigMap for them is somebody else's."""


class Helm:
    """Which ServingPools are to be steered, as the last look at each had it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._steered: dict[Name, Steered] = {}
        self._unstored: dict[Name, Unstored] = {}

    def steer(self, namespace: str, name: str, steered: Steered | None) -> None:
        """Decide for this ServingPool from now on; None: no more."""
        with self._lock:
            if steered is None:
                self._steered.pop((namespace, name), None)
                self._unstored.pop((namespace, name), None)
            else:
                self._steered[namespace, name] = steered

    def steered(self) -> Mapping[Name, Steered]:
        """All of them."""
        with self._lock:
            return dict(self._steered)

    def stored(self, name: Name, unstored: Unstored | None) -> bool:
        """Decisions on it can be stored, or cannot, and why. Returns whether that is news."""
        with self._lock:
            before = self._unstored.pop(name, None)
            if unstored is not None and name in self._steered:
                self._unstored[name] = unstored
            return before != self._unstored.get(name)

    def unstored(self, namespace: str, name: str) -> Unstored | None:
        """Why decisions cannot be stored; None: they can, as far as that was tried."""
        with self._lock:
            return self._unstored.get((namespace, name))
