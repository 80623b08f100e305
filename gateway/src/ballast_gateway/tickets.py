"""What the holder of a stream knows of who decides: one `Ticket` for each request.

The gateway's is `driver.Ticket`, a call away from the Director; an agent's follows a picker's plan.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from ballast_core.model import EndpointId, Fault, Outcome, Request, Stage
from ballast_core.model.effects import Dispatch, Handoff, Leave, Migrate, Reject

Mover: TypeAlias = Callable[[Migrate], None]
"""Begins to move a running decode, and sooner or later reports `Ticket.migrated` or `Ticket.migration_failed`."""

Leaver: TypeAlias = Callable[[Leave], None]
"""Leaves the leg that the order names, if it still runs, and reports `Ticket.failed`."""

Canceller: TypeAlias = Callable[[], None]
"""Leaves the engines and tells the client that the request was cancelled, and reports `Ticket.end`."""


class Rejected(Exception):
    """The request is not served. The faces map `reason` to a status code."""

    def __init__(self, reject: Reject) -> None:
        super().__init__(reject.message)
        self.reason = reject.reason
        self.retry_after_s = reject.retry_after_s


class Ticket(Protocol):
    """One request in flight."""

    request: Request
    mover: Mover | None
    leaver: Leaver | None
    canceller: Canceller | None

    def now_s(self) -> float:
        """The time on the clock of its record."""
        ...

    def poll(self) -> Dispatch | None:
        """The (next) dispatch, if it is there. Raises `Rejected`."""
        ...

    def when_arrived(self, call: Callable[[], object]) -> None:
        """Call this once, soon, when the next dispatch or rejection is there to be polled."""
        ...

    def prefill_done(self, *, computed: bool = True) -> Handoff:
        """Report the end of prefill; returns the decode endpoint to use. `computed`: False if there was no such leg."""
        ...

    def segment_done(self, generated_tokens: int, *, computed: bool = True) -> Handoff:
        """Report that a segment other than the last has reached its cut, or was skipped; returns the next endpoint."""
        ...

    def first_token(self) -> None:
        """Report the first token."""
        ...

    def progress(self, generated_tokens: int) -> None:
        """Report the tokens generated so far."""
        ...

    def failed(self, stage: Stage, endpoint_id: EndpointId, fault: Fault, status: int = 0) -> None:
        """Report a failed leg, with the status of its answer if it gave one; then poll the next dispatch."""
        ...

    def migrated(self, target: EndpointId) -> None:
        """Report that the decode runs on `target` now."""
        ...

    def migration_failed(self, target: EndpointId) -> None:
        """Report that the decode stays on its endpoint."""
        ...

    def end(self, outcome: Outcome, output_tokens: int = 0, fault: Fault | None = None) -> None:
        """Report the end; further calls change nothing. `fault`: of its engine, unless `failed` has reported it."""
        ...
