"""Why this pod? The last decisions as data: in memory for the admin API and, if the settings name one, in a file."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import TypeAlias

from ballast_core.model.effects import Dispatch, Effect, Handoff, Migrate, Reject
from ballast_gateway.line_file import LineFile

Decision: TypeAlias = Dispatch | Handoff | Migrate | Reject


class DecisionLog:
    """An effect listener of the driver. `unix_s` plus the driver's clock gives seconds since 1970."""

    def __init__(self, *, kept: int, unix_s: float, file: LineFile | None = None) -> None:
        self._decisions: deque[tuple[float, Decision]] = deque(maxlen=kept)
        self._unix_s = unix_s
        self._file = file
        self.count = 0
        """Decisions, ever."""

    def __call__(self, effect: Effect, now_s: float) -> None:
        if isinstance(effect, (Dispatch, Handoff, Migrate, Reject)):
            self.count += 1
            self._decisions.append((now_s, effect))
            if self._file is not None:
                line = as_dict(effect, now_s + self._unix_s)
                self._file.write(json.dumps(line, separators=(",", ":")) + "\n")

    def last(self, limit: int, *, request_id: str | None = None) -> list[dict[str, object]]:
        """The newest decisions first, at most `limit`; those of one request if `request_id` is given."""
        found: list[dict[str, object]] = []
        for now_s, decision in self._newest():
            if len(found) >= limit:
                break
            if request_id is None or decision.request_id == request_id:
                found.append(as_dict(decision, now_s + self._unix_s))
        return found

    def newest(self, most: int) -> list[Decision]:
        """The last ones, `most` at most, in the order in which they were taken."""
        return [decision for _, decision in islice(self._newest(), most)][::-1]

    def _newest(self) -> Iterable[tuple[float, Decision]]:
        return reversed(self._decisions)


def as_dict(decision: Decision, unix_s: float) -> dict[str, object]:
    """One decision as plain JSON values."""
    shared: dict[str, object] = {"unix_s": round(unix_s, 6), "request_id": decision.request_id}
    match decision:
        case Reject(reason=reason, message=message, cause=cause, retry_after_s=after_s):
            shared |= {"decision": "reject", "reason": str(reason), "message": message}
            return shared | ({} if cause is None else {"cause": str(cause)}) | {"retry_after_s": round(after_s, 3)}
        case Migrate(source=source, target=target, trace=trace):
            shared |= {"decision": "migrate", "source": source.id, "target": target.id}
            return shared | {"round": None if trace is None else trace.as_dict()}
        case Dispatch(prefill=prefill, decode=decode):
            shared |= {"decision": "dispatch", "prefill": prefill.id if prefill else None, "decode": decode.id}
        case Handoff(decode=decode):
            shared |= {"decision": "handoff", "decode": decode.id}
    return shared | {"placements": [trace.as_dict() for trace in decision.traces]}
