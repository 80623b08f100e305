"""Rounds in a thread of their own: kopf's loop and the looks at resources go on meanwhile."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from ballast_operator.api.api_failure import ApiFailure

logger = logging.getLogger(__name__)


class Rounds:
    """`start` them, and `stop` them at the end. A round that fails is logged, and the next one is made in its time."""

    def __init__(self, name: str, make: Callable[[], None], *, due_s: Callable[[float], float], without: str) -> None:
        """`make`: makes one round. `due_s`: from when one began to when the next one begins, seconds on the monotonic
        clock. `without`: what does not happen where a round fails, for the log."""
        self._make = make
        self._due_s = due_s
        self._without = without
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def no_more(self) -> None:
        """Begin no other round."""
        self._stopping.set()

    def stop(self) -> None:
        """End, when the round in hand has."""
        self.no_more()
        if self._thread.ident is not None:
            self._thread.join()

    def alive(self) -> bool:
        """Whether the thread still runs."""
        return self._thread.is_alive()

    @property
    def stopping(self) -> bool:
        """Whether a long round should end early."""
        return self._stopping.is_set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            began_s = time.monotonic()
            try:
                self._make()
            except ApiFailure as error:
                logger.warning("%s: %s; trying again", self._without, error)
            except Exception:
                logger.exception("%s: unexpected error; trying again", self._without)
            self._stopping.wait(max(0.0, self._due_s(began_s) - time.monotonic()))


def every(seconds: float) -> Callable[[float], float]:
    """When rounds are due that begin so long after one another."""
    return lambda began_s: began_s + seconds
