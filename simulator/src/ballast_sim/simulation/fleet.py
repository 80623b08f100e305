"""One gateway in front of a world of engines, on the kernel's clock.

The gateway is the Director with the proxy face's behaviour: prefill leg, hand-off, decode leg; the first token that
counts is the decode endpoint's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ballast_core.director import Director, DirectorSettings
from ballast_core.effects import Cancel, Dispatch, Effect, Handoff, Hold, Reject, WakeAt
from ballast_core.events import (
    EndpointObserved,
    Event,
    FirstToken,
    PrefillDone,
    Progress,
    RequestArrived,
    RequestEnded,
    TimerFired,
)
from ballast_core.model import EndpointId, Outcome, Request, RequestId
from ballast_sim.engine import BlockHashes, EngineRequest, Finished, FinishReason, TraceContent, UniqueContent
from ballast_sim.simulation.kernel import Kernel
from ballast_sim.simulation.shapes import Machine
from ballast_sim.simulation.world import Source, World

PROGRESS_EVERY_TOKENS = 16
"""How often a running request's tokens are reported to the Director."""

_OBSERVE, _ARRIVE = 0, 2  # order at one time: what is known first, then what runs, then what is new


class Arrival(Protocol):
    """A request of a workload."""

    @property
    def arrival_s(self) -> float:
        """Seconds since the start."""
        ...

    @property
    def input_tokens(self) -> int:
        """Tokens of the prompt."""
        ...

    @property
    def output_tokens(self) -> int:
        """Tokens that it will generate: known to the engine, hidden from the policies."""
        ...

    @property
    def hash_ids(self) -> Sequence[int] | None:
        """Ids of the prompt's prefix blocks, or None."""
        ...

    @property
    def block_size(self) -> int | None:
        """Tokens of one such block."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """What surrounds the engines."""

    scrape_interval_s: float = 0.2
    scrape_delay_s: float = 0.005
    """Age of an observation when the Director gets it."""
    known_limits: bool = True
    """Whether requests carry max_tokens (equal to their output, as with forced lengths in benchmarks)."""


@dataclass(slots=True)
class Record:
    """What became of one request. Times are seconds of the run; None where it did not come to that."""

    index: int
    arrival_s: float
    input_tokens: int
    output_tokens: int
    prefill: EndpointId | None = None
    decode: EndpointId | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    generated_tokens: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    rejected: str | None = None
    optimal: bool | None = None
    """Whether the decode endpoint assigned at arrival was the least loaded (KV in use) when prefill ended."""

    @property
    def completed(self) -> bool:
        """Whether every token came."""
        return self.last_token_s is not None

    @property
    def ttft_s(self) -> float | None:
        """Time to first token."""
        return None if self.first_token_s is None else self.first_token_s - self.arrival_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time per output token after the first; None for one token."""
        if self.last_token_s is None or self.first_token_s is None or self.generated_tokens < 2:
            return None
        return (self.last_token_s - self.first_token_s) / (self.generated_tokens - 1)

    @property
    def e2e_s(self) -> float | None:
        """Arrival to last token."""
        return None if self.last_token_s is None else self.last_token_s - self.arrival_s


def leg_id(index: int, *, prefill: bool) -> str:
    """The id under which an engine knows one leg of a request."""
    return f"{index}{'p' if prefill else 'd'}"


def engine_request(
    arrival: Arrival, index: int, *, prefill: bool, pull: bool, block_size: int, now_s: float
) -> EngineRequest:
    """One leg as the engine is asked for it: a prefill leg ends after one token and holds its KV."""
    content: BlockHashes = UniqueContent(index)
    if arrival.hash_ids and arrival.block_size:
        content = TraceContent(arrival.hash_ids, arrival.block_size, arrival.input_tokens, block_size, index)
    return EngineRequest(
        request_id=leg_id(index, prefill=prefill),
        input_tokens=arrival.input_tokens,
        max_tokens=1 if prefill else arrival.output_tokens,
        content=content,
        arrival_s=now_s,
        hold=prefill,
        pull=pull,
    )


class Fleet:
    """One run: `load` a workload, `run`, read `records`."""

    def __init__(
        self,
        machines: Sequence[Machine],
        director_settings: DirectorSettings,
        settings: FleetSettings | None = None,
        *,
        on_effect: Callable[[Effect, float], None] | None = None,
        stopwatch: Callable[[], float] | None = None,
    ) -> None:
        """`on_effect` sees every effect with its time: the decision log. With a `stopwatch` (such as
        `time.perf_counter`) the wall time of each arrival's decision is kept in `decision_s`.
        """
        self.settings = settings or FleetSettings()
        self.kernel = Kernel()
        self.director = Director(director_settings)
        self.world = World(machines, self.kernel, self)
        self.records: list[Record] = []
        self.open_requests = 0
        self.decision_s: list[float] = []
        self._on_effect = on_effect
        self._stopwatch = stopwatch
        self._arrivals: list[Arrival] = []
        for machine in machines:
            self._feed(EndpointObserved(machine.endpoint))
        self.kernel.at(self.settings.scrape_interval_s, self._scrape, _OBSERVE)

    def load(self, workload: Sequence[Arrival]) -> None:
        """Add a workload's requests. Raises `ValueError` naming a request that no engine could hold."""
        longest = self.world.max_model_len
        for arrival in workload:
            index = len(self._arrivals)
            if arrival.input_tokens + arrival.output_tokens > longest:
                raise ValueError(
                    f"request {index}: {arrival.input_tokens} + {arrival.output_tokens} tokens do not fit the smallest "
                    f"KV cache of the fleet, {longest} tokens"
                )
            self._arrivals.append(arrival)
            self.records.append(Record(index, arrival.arrival_s, arrival.input_tokens, arrival.output_tokens))
            self.kernel.at(arrival.arrival_s, lambda index=index: self._arrive(index), _ARRIVE)  # type: ignore[misc]
            self.open_requests += 1

    def run(self, until_s: float = float("inf")) -> None:
        """Until every request has ended, or the time is over."""
        self.kernel.run(until_s, stop=lambda: self.open_requests == 0)

    # --- the gateway ----------------------------------------------------------------------------------------------

    def _feed(self, event: Event) -> None:
        self._carry_out_all(self.director.on_event(event, self.kernel.now_s))

    def _carry_out_all(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if self._on_effect is not None:
                self._on_effect(effect, self.kernel.now_s)
            self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Dispatch():
                record = self._record(effect.request_id)
                record.decode = effect.decode.id
                record.prefill = effect.prefill.id if effect.prefill else None
                self._submit(record, prefill=effect.prefill is not None)
            case Handoff():
                record = self._record(effect.request_id)
                record.decode = effect.decode.id
                self._submit(record, prefill=False)
            case Reject():
                self._record(effect.request_id).rejected = effect.reason
                self.open_requests -= 1
            case WakeAt():
                self.kernel.at(max(effect.at_s, self.kernel.now_s), lambda: self._feed(TimerFired()))
            case Hold() | Cancel():
                pass

    def _arrive(self, index: int) -> None:
        arrival = self._arrivals[index]
        limit = arrival.output_tokens if self.settings.known_limits else None
        request = Request(RequestId(str(index)), arrival.input_tokens, max_output_tokens=limit)
        started_s = self._stopwatch() if self._stopwatch else 0.0
        effects = self.director.on_event(RequestArrived(request), self.kernel.now_s)
        if self._stopwatch:
            self.decision_s.append(self._stopwatch() - started_s)
        self._carry_out_all(effects)

    def _submit(self, record: Record, *, prefill: bool) -> None:
        endpoint_id = record.prefill if prefill else record.decode
        assert endpoint_id is not None
        source = None
        if not prefill and record.prefill is not None:
            source = Source(record.prefill, leg_id(record.index, prefill=True))
        request = engine_request(
            self._arrivals[record.index],
            record.index,
            prefill=prefill,
            pull=source is not None,
            block_size=self.world.block_size(endpoint_id),
            now_s=self.kernel.now_s,
        )
        self.world.submit(endpoint_id, request, source)

    # --- what the engines report ----------------------------------------------------------------------------------

    def token(self, request_id: str, at_s: float) -> None:
        """See `world.Listener`."""
        if request_id[-1] == "p":
            return
        record = self.records[int(request_id[:-1])]
        record.generated_tokens += 1
        if record.generated_tokens == 1:
            record.first_token_s = at_s
            self._feed(FirstToken(RequestId(str(record.index))))
        elif record.generated_tokens % PROGRESS_EVERY_TOKENS == 0:
            self._feed(Progress(RequestId(str(record.index)), record.generated_tokens))

    def finished(self, event: Finished) -> None:
        """See `world.Listener`."""
        record = self.records[int(event.request_id[:-1])]
        record.preemptions += event.stats.preemptions
        if event.request_id[-1] == "p":
            record.cached_tokens = event.stats.cached_tokens
            record.optimal = record.decode is not None and self.world.is_least_loaded(record.decode)
            self._feed(PrefillDone(RequestId(str(record.index))))
            return
        if record.prefill is None:
            record.cached_tokens = event.stats.cached_tokens
        self.open_requests -= 1
        done = event.reason in (FinishReason.LENGTH, FinishReason.STOP)
        record.last_token_s = event.stats.last_token_s if done else None
        outcome = Outcome.COMPLETED if done else Outcome.FAILED
        self._feed(RequestEnded(RequestId(str(record.index)), outcome, record.generated_tokens))

    # --- observation ----------------------------------------------------------------------------------------------

    def _scrape(self) -> None:
        now_s = self.kernel.now_s
        for machine, observation in self.world.observe():
            event = EndpointObserved(machine.endpoint, observation)
            self.kernel.at(now_s + self.settings.scrape_delay_s, lambda event=event: self._feed(event), _OBSERVE)  # type: ignore[misc]
        self.kernel.at(now_s + self.settings.scrape_interval_s, self._scrape, _OBSERVE)

    def _record(self, request_id: RequestId) -> Record:
        return self.records[int(request_id)]
