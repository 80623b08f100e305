"""What the engines report to a driver of requests."""

from __future__ import annotations

from typing import Protocol

from ballast_sim.engine import Finished, TokensAdvanced


class Listener(Protocol):
    """A driver of requests through the engines."""

    def token(self, request_id: str, at_s: float) -> None:
        """A request got one more output token."""
        ...

    def finished(self, event: Finished) -> None:
        """A request ended in its engine."""
        ...


class LateListener(Listener, Protocol):
    """A listener that can do without a wake-up for every token of a request in steady decode.

    First and last tokens are still reported as they happen, and `World.progress` returns how far each request has come.
    """

    def tokens(self, event: TokensAdvanced) -> None:
        """A request got more output tokens, at times that may lie in the past."""
        ...
