"""Engines, links, scrapes and one gateway on the kernel's clock.

The gateway is the Director with the proxy face's behaviour: prefill leg, hand-off, decode leg; the first token that
counts is the decode endpoint's. A pull holds the prefill endpoint's blocks until it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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
from ballast_core.model import STAGE_ROLES, Endpoint, EndpointId, Observation, Outcome, Request, RequestId, Stage
from ballast_sim.engine import (
    BlockHashes,
    Engine,
    EngineConfig,
    EngineEvent,
    EngineRequest,
    Finished,
    FinishReason,
    PullStarted,
    StepEnded,
    TraceContent,
    UniqueContent,
)
from ballast_sim.simulation.kernel import Kernel
from ballast_sim.simulation.shapes import Machine

PROGRESS_EVERY_TOKENS = 16
"""How often a running request's tokens are reported to the Director."""

_OBSERVE, _ENGINE, _ARRIVE = 0, 1, 2  # order at one time: what is known first, then what runs, then what is new


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


@dataclass(slots=True)
class _Server:
    machine: Machine
    engine: Engine
    wakes_at_s: float = float("inf")


@dataclass(slots=True)
class _Leg:
    """A request inside an engine: its record, and on which side of a hand-off it is."""

    record: Record
    prefilling: bool
    source: EndpointId | None = None
    """Where a decode leg pulls its KV from."""


@dataclass(slots=True)
class Fleet:
    """One run: feed it the workload, `run`, read `records`."""

    machines: tuple[Machine, ...]
    director_settings: DirectorSettings
    settings: FleetSettings = field(default_factory=FleetSettings)
    on_effect: Callable[[Effect, float], None] | None = None
    """Sees every effect with its time: the decision log."""
    kernel: Kernel = field(default_factory=Kernel)
    records: list[Record] = field(default_factory=list)
    decision_s: list[float] = field(default_factory=list)
    """Wall time of each arrival's decision, where `stopwatch` is given."""
    stopwatch: Callable[[], float] | None = None
    open_requests: int = 0
    director: Director = field(init=False)
    _servers: dict[EndpointId, _Server] = field(init=False)
    _legs: dict[str, _Leg] = field(default_factory=dict)
    _arrivals: list[Arrival] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.director = Director(self.director_settings)
        self._servers = {
            machine.endpoint.id: _Server(
                machine, Engine(EngineConfig.from_profile(machine.profile, pulls_kv=True, external_pulls=True))
            )
            for machine in self.machines
        }
        for machine in self.machines:
            self._feed(EndpointObserved(machine.endpoint))
        self.kernel.at(self.settings.scrape_interval_s, self._scrape, _OBSERVE)

    def load(self, workload: Sequence[Arrival]) -> None:
        """Add a workload's requests. Raises `ValueError` naming a request that no engine could hold."""
        longest = min(server.engine.config.max_model_len for server in self._servers.values())
        for arrival in workload:
            if arrival.input_tokens + arrival.output_tokens > longest:
                raise ValueError(
                    f"request {len(self._arrivals)}: {arrival.input_tokens} + {arrival.output_tokens} tokens do not "
                    f"fit the smallest KV cache of the fleet, {longest} tokens"
                )
            index = len(self._arrivals)
            self._arrivals.append(arrival)
            self.records.append(Record(index, arrival.arrival_s, arrival.input_tokens, arrival.output_tokens))
            self.kernel.at(arrival.arrival_s, lambda index=index: self._arrive(index), _ARRIVE)  # type: ignore[misc]
            self.open_requests += 1

    def run(self, until_s: float = float("inf")) -> None:
        """Until every request has ended, or the time is over."""
        self.kernel.run(until_s, stop=lambda: self.open_requests == 0)

    def preemptions(self) -> int:
        """Preemptions of all engines so far."""
        return sum(server.engine.scheduler.counters.preemptions for server in self._servers.values())

    def prefix_hit_ratio(self) -> float:
        """Share of the prompt tokens that prefix caches of the prefilling engines held."""
        queries = sum(server.engine.scheduler.counters.prefix_queries for server in self._servers.values())
        hits = sum(server.engine.scheduler.counters.prefix_hits for server in self._servers.values())
        return hits / queries if queries else 0.0

    # --- the gateway ----------------------------------------------------------------------------------------------

    def _feed(self, event: Event) -> None:
        self._carry_out_all(self.director.on_event(event, self.kernel.now_s))

    def _carry_out_all(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if self.on_effect is not None:
                self.on_effect(effect, self.kernel.now_s)
            self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Dispatch():
                self._dispatch(effect)
            case Handoff():
                self._hand_off(effect)
            case Reject():
                self.records[_index(effect.request_id)].rejected = effect.reason
                self.open_requests -= 1
            case WakeAt():
                self.kernel.at(max(effect.at_s, self.kernel.now_s), lambda: self._feed(TimerFired()))
            case Hold() | Cancel():
                pass

    def _arrive(self, index: int) -> None:
        arrival = self._arrivals[index]
        limit = arrival.output_tokens if self.settings.known_limits else None
        request = Request(RequestId(str(index)), arrival.input_tokens, max_output_tokens=limit)
        started_s = self.stopwatch() if self.stopwatch else 0.0
        effects = self.director.on_event(RequestArrived(request), self.kernel.now_s)
        if self.stopwatch:
            self.decision_s.append(self.stopwatch() - started_s)
        self._carry_out_all(effects)

    def _dispatch(self, effect: Dispatch) -> None:
        record = self.records[_index(effect.request_id)]
        record.decode = effect.decode.id
        if effect.prefill is None:
            self._submit(effect.decode, _Leg(record, prefilling=False))
        else:
            record.prefill = effect.prefill.id
            self._submit(effect.prefill, _Leg(record, prefilling=True))

    def _hand_off(self, effect: Handoff) -> None:
        record = self.records[_index(effect.request_id)]
        record.decode = effect.decode.id
        self._submit(effect.decode, _Leg(record, prefilling=False, source=record.prefill))

    def _submit(self, endpoint: Endpoint, leg: _Leg) -> None:
        server = self._servers[endpoint.id]
        arrival = self._arrivals[leg.record.index]
        name = _leg_name(leg)
        self._legs[name] = leg
        request = EngineRequest(
            request_id=name,
            input_tokens=arrival.input_tokens,
            max_tokens=1 if leg.prefilling else arrival.output_tokens,
            content=self._content(arrival, leg.record.index, server.engine.config.block_size),
            arrival_s=self.kernel.now_s,
            hold=leg.prefilling,
            pull=leg.source is not None,
        )
        server.engine.add(request, self.kernel.now_s)
        self._run_engine(server)

    @staticmethod
    def _content(arrival: Arrival, index: int, block_size: int) -> BlockHashes:
        if arrival.hash_ids and arrival.block_size:
            return TraceContent(arrival.hash_ids, arrival.block_size, arrival.input_tokens, block_size, index)
        return UniqueContent(index)

    # --- the engines ----------------------------------------------------------------------------------------------

    def _run_engine(self, server: _Server) -> None:
        """Let the engine do what is due, act on what it reports, and wake it for what comes next."""
        for event in server.engine.advance(self.kernel.now_s):
            self._engine_event(server, event)
        self._wake(server)

    def _wake(self, server: _Server) -> None:
        due_s = server.engine.next_event_s()
        if due_s < server.wakes_at_s and due_s < float("inf"):
            due_s = max(due_s, self.kernel.now_s)
            server.wakes_at_s = due_s
            self.kernel.at(due_s, lambda: self._woken(server, due_s), _ENGINE)

    def _woken(self, server: _Server, due_s: float) -> None:
        if server.wakes_at_s == due_s:  # else a nearer wake-up took its place
            server.wakes_at_s = float("inf")
            self._run_engine(server)

    def _engine_event(self, server: _Server, event: EngineEvent) -> None:
        match event:
            case StepEnded():
                for name in event.tokens:
                    self._token(name, event.at_s)
            case PullStarted():
                self._pull(server, event)
            case Finished():
                self._finished(event)

    def _token(self, name: str, at_s: float) -> None:
        leg = self._legs.get(name)
        if leg is None or leg.prefilling:
            return
        record = leg.record
        record.generated_tokens += 1
        if record.generated_tokens == 1:
            record.first_token_s = at_s
            self._feed(FirstToken(RequestId(str(record.index))))
        elif record.generated_tokens % PROGRESS_EVERY_TOKENS == 0:
            self._feed(Progress(RequestId(str(record.index)), record.generated_tokens))

    def _pull(self, server: _Server, event: PullStarted) -> None:
        leg = self._legs[event.request_id]
        assert leg.source is not None
        source, profile = self._servers[leg.source], server.machine.profile
        gbps = min(profile.link_gbps, source.machine.profile.link_gbps)
        lasts_s = profile.link_setup_s + event.tokens * profile.kv_bytes_per_token / (gbps * 1e9 / 8)

        def ended() -> None:
            source.engine.release(f"{leg.record.index}p", self.kernel.now_s)
            server.engine.pull_ended(event.request_id, self.kernel.now_s)
            self._run_engine(source)
            self._run_engine(server)

        self.kernel.at(self.kernel.now_s + lasts_s, ended, _ENGINE)

    def _finished(self, event: Finished) -> None:
        leg = self._legs.pop(event.request_id)
        record, request_id = leg.record, RequestId(str(leg.record.index))
        record.preemptions += event.stats.preemptions
        if leg.prefilling:
            record.cached_tokens = event.stats.cached_tokens
            record.optimal = self._is_least_loaded(record.decode)
            self._feed(PrefillDone(request_id))
            return
        if leg.source is None:
            record.cached_tokens = event.stats.cached_tokens
        self.open_requests -= 1
        done = event.reason in (FinishReason.LENGTH, FinishReason.STOP)
        if done:
            record.last_token_s = event.stats.last_token_s
        outcome = Outcome.COMPLETED if done else Outcome.FAILED
        self._feed(RequestEnded(request_id, outcome, record.generated_tokens))

    def _is_least_loaded(self, decode: EndpointId | None) -> bool:
        used = {
            name: server.engine.scheduler.pool.usage_ratio * server.machine.profile.kv_tokens
            for name, server in self._servers.items()
            if server.machine.endpoint.role in STAGE_ROLES[Stage.DECODE]
        }
        return decode is not None and used[decode] <= min(used.values())

    # --- observation ----------------------------------------------------------------------------------------------

    def _scrape(self) -> None:
        now_s = self.kernel.now_s
        for server in self._servers.values():
            load = server.engine.load()
            observation = Observation(
                observed_at_s=now_s,
                running=load.running,
                waiting=load.waiting,
                kv_usage_ratio=load.kv_usage_ratio,
                preemptions=server.engine.scheduler.counters.preemptions,
            )
            event = EndpointObserved(server.machine.endpoint, observation)
            self.kernel.at(now_s + self.settings.scrape_delay_s, lambda event=event: self._feed(event), _OBSERVE)  # type: ignore[misc]
        self.kernel.at(now_s + self.settings.scrape_interval_s, self._scrape, _OBSERVE)


def _leg_name(leg: _Leg) -> str:
    return f"{leg.record.index}{'p' if leg.prefilling else 'd'}"


def _index(request_id: RequestId) -> int:
    return int(request_id)
