"""Demand: what this gateway's clients asked for in the last two minutes, for those who decide on instances.

A ring of counts takes each request that has ended, and the requests in flight are looked at when somebody asks. What is
kept of an ended request are its time and its lengths. A request that was refused counts as an arrival like any other:
it was demand.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from ballast_api.demand_report import BIN_S, BINS, LENGTHS, WINDOW_S, DemandReport, Load, Seen
from ballast_core.model import EndpointId
from ballast_core.state.ledger import Entry
from ballast_gateway.records import RequestRecord

_ENGINES: Final = frozenset({"completed", "failed", "routed", "cancelled"})
"""Outcomes of requests that engines had; of others only the arrival counts."""


class Demand:
    """Times are seconds on the driver's clock; `unix_s` plus that clock gives seconds since 1970.

    `running` are this gateway's own requests in flight; `endpoint` names that of a slot.
    """

    def __init__(
        self,
        running: Callable[[], Iterable[Entry]],
        endpoint: Callable[[int], EndpointId],
        *,
        now_s: Callable[[], float],
        unix_s: float,
    ) -> None:
        self._running = running
        self._endpoint = endpoint
        self._now_s = now_s
        self._unix_s = unix_s
        self._since_s = self._newest_end_s = now_s()
        self._arrivals: Counter[int] = Counter()
        """Of ended requests, by number of the window."""
        self._ended: deque[Seen] = deque(maxlen=LENGTHS)
        """In order of their ends."""

    def __call__(self, record: RequestRecord) -> None:
        """Count a request that has ended, if it was one for engines."""
        asked = record.asked
        if asked is None:
            return
        self._newest_end_s = self._now_s()
        arrived_s = record.arrived_s + self._unix_s
        number = int(arrived_s // BIN_S)
        if number not in self._arrivals and len(self._arrivals) > 2 * BINS:
            self._forget()
        self._arrivals[number] += 1
        if record.outcome in _ENGINES:
            prompt_tokens = record.measured_prompt_tokens or asked.prompt_tokens
            self._ended.append(Seen(arrived_s, prompt_tokens, record.output_tokens, True))

    def _forget(self) -> None:
        newest = int((self._now_s() + self._unix_s) // BIN_S)
        for number in [each for each in self._arrivals if each <= newest - BINS]:
            del self._arrivals[number]

    def report(self) -> bytes:
        """The answer of `/ballast/v1/demand`, in JSON."""
        return msgspec.json.encode(self.now())

    def now(self) -> DemandReport:
        """The traffic as it is now."""
        unix_s = self._now_s() + self._unix_s
        newest, since_s = int(unix_s // BIN_S), unix_s - WINDOW_S
        arrivals = Counter(self._arrivals)
        seen = [each for each in self._ended if each.arrived_unix_s >= since_s]
        loads: dict[str, list[int]] = {}
        waiting = waiting_tokens = decoding = decoding_tokens = prompt_tokens = cached_tokens = 0
        oldest_s: float | None = None
        for entry in self._running():
            arrived_s, prompt, generated = (
                entry.arrived_s + self._unix_s,
                entry.request.prompt_tokens,
                entry.generated_tokens,
            )
            arrivals[int(arrived_s // BIN_S)] += 1
            seen.append(Seen(arrived_s, prompt, generated, False))
            if not generated:
                oldest_s = arrived_s if oldest_s is None else min(oldest_s, arrived_s)
            if entry.decodes:
                decoding += 1
                decoding_tokens += prompt + generated
                self._load(loads, entry.decode_slot, 1, prompt + generated)
            else:
                waiting += 1
                waiting_tokens += prompt
                self._load(loads, entry.decode_slot if entry.prefill_slot is None else entry.prefill_slot, 0, 0)
            if entry.prefill.known and entry.prefill.tokens:
                prompt_tokens += entry.prefill.tokens
                cached_tokens += entry.prefill.cached_tokens
        seen.sort(key=lambda each: each.arrived_unix_s)
        return DemandReport(
            unix_s=round(unix_s, 3),
            since_unix_s=round(self._since_s + self._unix_s, 3),
            arrivals=tuple(arrivals[newest - BINS + 1 + k] for k in range(BINS)),
            requests=tuple(seen[-LENGTHS:]),
            waiting=waiting,
            waiting_tokens=waiting_tokens,
            oldest_unix_s=oldest_s,
            decoding=decoding,
            decoding_tokens=decoding_tokens,
            idle_since_unix_s=None if waiting or decoding else round(self._newest_end_s + self._unix_s, 3),
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
            endpoints={name: Load(*counts) for name, counts in loads.items()},
        )

    def _load(self, loads: dict[str, list[int]], slot: int | None, decoding: int, tokens: int) -> None:
        if slot is None:
            return
        counts = loads.setdefault(self._endpoint(slot), [0, 0, 0])
        counts[0] += 1 - decoding
        counts[1] += decoding
        counts[2] += tokens
