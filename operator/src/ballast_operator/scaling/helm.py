"""Between those who look at ServingPools and the one who decides on their instances. Thread-safe."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from ballast_operator.gateways.board import Name
from ballast_operator.scaling.steered import Steered


class Helm:
    """Which ServingPools are to be steered, as the last look at each had it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._steered: dict[Name, Steered] = {}

    def steer(self, namespace: str, name: str, steered: Steered | None) -> None:
        """Decide for this ServingPool from now on; None: no more."""
        with self._lock:
            if steered is None:
                self._steered.pop((namespace, name), None)
            else:
                self._steered[namespace, name] = steered

    def steered(self) -> Mapping[Name, Steered]:
        """All of them."""
        with self._lock:
            return dict(self._steered)
