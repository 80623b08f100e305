"""How many prompt tokens an engine lets into a step: vLLM's fixed budget, or what the decodes' SLO leaves room for.

The second is Libra's local scheduler (section 4.2, Algorithm 2): all decodes first, then prompts in order of arrival up
to the budget that the table of step times allows (`ballast_core.policies.partition.batch_budget`), which every step
with a prompt in it corrects. Steps of decodes alone tell the table nothing: no budget follows from them. What only
pulls KV waits for no prompt, for once the KV is there it decodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from ballast_sim.engine.queues import WaitingQueue
from ballast_sim.engine.requests import RequestState
from ballast_sim.settings import SettingError


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalBatching:
    """`chunk_tokens` is vLLM's max_num_batched_tokens, None the profile's; with `tbt_slo_s` prompts follow the SLO."""

    chunk_tokens: int | None = None
    tbt_slo_s: float | None = None

    @classmethod
    def parse(cls, text: str) -> LocalBatching:
        """Reads `default`, `chunk:512` (tokens) and `slo:0.1` (seconds). Raises ValueError."""
        kind, _, number = text.partition(":")
        try:
            if text == "default":
                return cls()
            if kind == "chunk" and int(number) >= 1:
                return cls(chunk_tokens=int(number))
            if kind == "slo" and 0 < float(number) < float("inf"):
                return cls(tbt_slo_s=float(number))
        except ValueError:
            pass
        raise SettingError(
            "local_batching",
            f"cannot read {text!r}; write default, chunk:512 (tokens a step) or slo:0.1 (seconds between tokens)",
        )

    def __str__(self) -> str:
        """As `parse` reads it."""
        if self.tbt_slo_s is not None:
            return f"slo:{self.tbt_slo_s:g}"
        return "default" if self.chunk_tokens is None else f"chunk:{self.chunk_tokens}"


PROFILES_OWN = LocalBatching()
"""vLLM's fixed budget, as large as the profile says."""


class PullsFirst:
    """Two queues in one: what has KV to pull, then the others; each in its own order."""

    __slots__ = ("_others", "_pulls")

    def __init__(self, pulls: WaitingQueue, others: WaitingQueue) -> None:
        """Both empty."""
        self._pulls, self._others = pulls, others

    def __len__(self) -> int:
        """How many wait."""
        return len(self._pulls) + len(self._others)

    def __iter__(self) -> Iterator[RequestState]:
        """In order of service."""
        return chain(self._pulls, self._others)

    def _of(self, state: RequestState) -> WaitingQueue:
        return self._others if state.pull_tried else self._pulls

    def add(self, state: RequestState) -> None:
        """To its queue."""
        self._of(state).add(state)

    def peek(self) -> RequestState:
        """The next one."""
        return (self._pulls if len(self._pulls) else self._others).peek()

    def pop(self) -> RequestState:
        """Take the next one."""
        return (self._pulls if len(self._pulls) else self._others).pop()

    def prepend(self, state: RequestState) -> None:
        """To the front of its queue."""
        self._of(state).prepend(state)

    def put_back(self, skipped: Sequence[RequestState]) -> None:
        """To the front of their queues, in the order given."""
        for queue in (self._pulls, self._others):
            queue.put_back([state for state in skipped if self._of(state) is queue])

    def remove(self, state: RequestState) -> None:
        """Take one out, wherever it stands."""
        (self._pulls if state in set(self._pulls) else self._others).remove(state)

    def reorder(self) -> None:
        """See `WaitingQueue`."""
        self._pulls.reorder()
        self._others.reorder()
