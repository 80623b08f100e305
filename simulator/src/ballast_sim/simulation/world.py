"""The engines of a fleet and the links between them, on a clock that is passed in.

The simulator's kernel is such a clock, and so is an event loop: whoever drives requests through these engines meets
the same truth. Nothing here knows of gateways or policies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Protocol

from ballast_core.model import STAGE_ROLES, EndpointId, Observation, Role, Stage
from ballast_sim.engine import (
    CoarseEngine,
    Engine,
    EngineConfig,
    EngineEvent,
    EngineRequest,
    Finished,
    PullStarted,
    StepEnded,
    TokensAdvanced,
)
from ballast_sim.simulation.shapes import Machine

ENGINE_PRIORITY = 1
"""Place of an engine's work among what happens at one time: after what is observed, before what arrives."""


class Clock(Protocol):
    """Tells the time and calls back at a later one."""

    @property
    def now_s(self) -> float:
        """Seconds since the start."""
        ...

    def at(self, time_s: float, action: Callable[[], None], priority: int = 0) -> None:
        """Call `action` at that time."""
        ...


class Listener(Protocol):
    """Whoever drives requests through the engines."""

    def token(self, request_id: str, at_s: float) -> None:
        """A request got one more output token."""
        ...

    def finished(self, event: Finished) -> None:
        """A request ended in its engine."""
        ...


class LateListener(Listener, Protocol):
    """A listener that can do without a wake-up for every token of a request in steady decode.

    First and last tokens still come as they happen, and `World.progress` tells how far all have come.
    """

    def tokens(self, request_id: str, first: int, times_s: Sequence[float]) -> None:
        """After `first` output tokens a request got one more at each of these times, which may lie in the past."""
        ...


@dataclass(frozen=True, slots=True)
class Source:
    """Where a decode leg's KV lies: the endpoint, and the id of the leg that computed it there."""

    endpoint_id: EndpointId
    request_id: str


@dataclass(slots=True)
class _Server:
    machine: Machine
    engine: Engine
    wakes_at_s: float = float("inf")


def _engine_config(machine: Machine) -> EngineConfig:
    """As a pod of that role is configured: kv_producer, kv_consumer, or kv_both for a flexible one."""
    role = machine.endpoint.role
    return EngineConfig.from_profile(
        machine.profile,
        pulls_kv=role is not Role.PREFILL,
        hands_over_kv=role is not Role.DECODE,
        external_pulls=True,
    )


class World:
    """Engines by endpoint id."""

    def __init__(
        self,
        machines: Sequence[Machine],
        clock: Clock,
        listener: Listener,
        late_listener: LateListener | None = None,
        progress_every_tokens: int = 0,
    ) -> None:
        """With a `late_listener` the engines are coarse: same decisions and times, fewer wake-ups.

        Tokens of steady decodes are then told to it, and in multiples of `progress_every_tokens` by `progress`.
        """
        self.machines = tuple(machines)
        self._clock = clock
        self._listener = listener
        self._late_listener = late_listener
        self._sources: dict[str, Source] = {}
        self._coarse: list[CoarseEngine] = []
        self._servers = {
            machine.endpoint.id: _Server(machine, self._new_engine(machine, progress_every_tokens))
            for machine in self.machines
        }

    def _new_engine(self, machine: Machine, progress_every_tokens: int) -> Engine:
        config = _engine_config(machine)
        if self._late_listener is None:
            return Engine(config)
        engine = CoarseEngine(config, mark_every_tokens=progress_every_tokens)
        self._coarse.append(engine)
        return engine

    @property
    def max_model_len(self) -> int:
        """Tokens of prompt and output that fit every engine."""
        return min(server.engine.config.max_model_len for server in self._servers.values())

    def block_size(self, endpoint_id: EndpointId) -> int:
        """Tokens of one KV block of that engine."""
        return self._servers[endpoint_id].engine.config.block_size

    def submit(self, endpoint_id: EndpointId, request: EngineRequest, source: Source | None = None) -> None:
        """Hand a request to an engine; with a source, it pulls its prompt's KV from there."""
        server = self._servers[endpoint_id]
        if source is not None:
            self._sources[request.request_id] = source
        self._catch_up(server)
        server.engine.add(request, self._clock.now_s)
        self._run(server)

    def observe(self) -> list[tuple[Machine, Observation]]:
        """What a scrape of every engine would say now."""
        return [
            (
                server.machine,
                Observation(
                    observed_at_s=self._clock.now_s,
                    running=(load := server.engine.load(self._clock.now_s)).running,
                    waiting=load.waiting,
                    kv_usage_ratio=load.kv_usage_ratio,
                    preemptions=server.engine.scheduler.counters.preemptions,
                ),
            )
            for server in self._servers.values()
        ]

    def is_least_loaded(self, decode: EndpointId) -> bool:
        """Whether no other engine that decodes has fewer KV tokens in use."""
        used = {
            name: server.engine.kv_usage_ratio(self._clock.now_s) * server.machine.profile.kv_tokens
            for name, server in self._servers.items()
            if server.machine.endpoint.role in STAGE_ROLES[Stage.DECODE]
        }
        return used[decode] <= min(used.values())

    def progress(self, *, inclusive: bool) -> list[tuple[float, str, int]]:
        """(time, request, output tokens) of steady decodes since the last call, in order of time: each multiple once.

        Of steps that have ended before now, or by now where `inclusive`.
        """
        now_s = self._clock.now_s
        found = [mark for engine in self._coarse for mark in engine.marks(now_s, inclusive)]
        found.sort(key=itemgetter(0))
        return found

    def settle(self) -> None:
        """Tell the late listener every token so far."""
        for server in self._servers.values():
            if isinstance(server.engine, CoarseEngine):
                self._catch_up(server)
                server.engine.settle()
                self._run(server)

    def preemptions(self) -> int:
        """Preemptions of all engines so far."""
        return sum(server.engine.scheduler.counters.preemptions for server in self._servers.values())

    def check_blocks(self) -> None:
        """Raise AssertionError where an engine lost a KV block."""
        for server in self._servers.values():
            server.engine.check_blocks()

    def _catch_up(self, server: _Server) -> None:
        """Whatever ended by now comes before news of now, however the engine is woken."""
        for event in server.engine.advance(self._clock.now_s):
            self._tell(server, event)

    def _run(self, server: _Server) -> None:
        """Let the engine do what is due, tell what it reports, and wake it for what comes next."""
        self._catch_up(server)
        due_s = server.engine.next_event_s()
        if due_s < server.wakes_at_s:
            due_s = max(due_s, self._clock.now_s)
            server.wakes_at_s = due_s
            self._clock.at(due_s, lambda: self._woken(server, due_s), ENGINE_PRIORITY)

    def _woken(self, server: _Server, due_s: float) -> None:
        if server.wakes_at_s == due_s:  # else a nearer wake-up took its place
            server.wakes_at_s = float("inf")
            self._run(server)

    def _tell(self, server: _Server, event: EngineEvent) -> None:
        match event:
            case StepEnded():
                for request_id in event.tokens:
                    self._listener.token(request_id, event.at_s)
            case TokensAdvanced():
                assert self._late_listener is not None
                self._late_listener.tokens(event.request_id, event.first, event.times_s)
            case PullStarted():
                self._pull(server, event)
            case Finished():
                self._sources.pop(event.request_id, None)
                self._listener.finished(event)

    def _pull(self, server: _Server, event: PullStarted) -> None:
        """The link between two engines is as fast as the slower end, and each pull has it for itself."""
        source = self._sources[event.request_id]
        origin, profile = self._servers[source.endpoint_id], server.machine.profile
        gbps = min(profile.link_gbps, origin.machine.profile.link_gbps)
        lasts_s = profile.link_setup_s + event.tokens * profile.kv_bytes_per_token / (gbps * 1e9 / 8)

        def ended() -> None:
            self._catch_up(origin)
            self._catch_up(server)
            origin.engine.release(source.request_id, self._clock.now_s)
            server.engine.pull_ended(event.request_id, self._clock.now_s)
            self._run(origin)
            self._run(server)

        self._clock.at(self._clock.now_s + lasts_s, ended, ENGINE_PRIORITY)
