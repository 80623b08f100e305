"""The engines of a fleet and the links between them, on a clock that is passed in.

The simulator's kernel is such a clock, and so is an event loop: whoever drives requests through these engines meets
the same truth. Nothing here knows of gateways or policies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Protocol

from ballast_core.model import STAGE_ROLES, EndpointId, Observation, Stage
from ballast_sim.engine import (
    EngineEvent,
    EngineRequest,
    Finished,
    FinishReason,
    PullStarted,
    RequestStats,
    StepEnded,
    TokensAdvanced,
)
from ballast_sim.physics import VLLM, EngineModel, Physics
from ballast_sim.simulation.inputs.fleet_settings import KvTransfer
from ballast_sim.simulation.inputs.shapes import Machine
from ballast_sim.simulation.world.bandwidth import Bandwidth
from ballast_sim.simulation.world.links import Computed, Link, TransferTimes

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
    foreseen: bool = False
    """Whether the endpoint that pulls was known when this leg began: only then can chunks leave before it ends."""
    running: bool = False
    """The leg goes on decoding there: its KV may be lost to a preemption while it is copied, and copies share links."""


@dataclass(frozen=True, slots=True)
class _Origin:
    source: Source
    engine: EngineModel
    """Another one stands in its place after a crash."""
    preemptions: int = 0
    """Of the leg, when the copy was asked for."""


@dataclass(slots=True, eq=False)
class _Server:
    machine: Machine
    engine: EngineModel
    wakes_at_s: float = float("inf")
    up: bool = True
    slowdown: float = 1.0
    lost_preemptions: int = 0
    """Counted by engines that crashed."""

    def kv_tokens_used(self, now_s: float) -> float:
        """KV tokens in use."""
        return self.engine.kv_usage_ratio(now_s) * self.machine.profile.kv_tokens


def _observation(engine: EngineModel, now_s: float) -> Observation:
    running, waiting, _, kv_usage_ratio, _ = engine.load(now_s)
    return Observation(now_s, running, waiting, kv_usage_ratio, engine.preemptions)


class World:
    """Engines by endpoint id."""

    def __init__(
        self,
        machines: Sequence[Machine],
        clock: Clock,
        listener: Listener,
        late_listener: LateListener | None = None,
        progress_every_tokens: int = 0,
        *,
        physics: Physics = VLLM,
        kv_transfer: KvTransfer = "whole",
        kv_chunk_tokens: int = 256,
    ) -> None:
        """With a `late_listener` the engines are coarse: same decisions and times, fewer wake-ups.

        Tokens of steady decodes are then told to it, and in multiples of `progress_every_tokens` by `progress`.
        """
        self._physics = physics
        self._progress_every_tokens = progress_every_tokens
        self.machines = tuple(machines)
        self._clock = clock
        self._listener = listener
        self._late_listener = late_listener
        self._origins: dict[str, _Origin] = {}
        self._chunk_tokens = kv_chunk_tokens if kv_transfer == "chunked" else 0
        self._computed: dict[str, Computed] = {}
        self.transfers = TransferTimes()
        self.copied_bytes = 0.0
        """KV of running requests that went over links."""
        self._bandwidth = Bandwidth(clock, ENGINE_PRIORITY)
        for machine in self.machines:
            self._bandwidth.link(machine.endpoint.id, machine.profile.link_gbps * 1e9 / 8)
        self._servers = {machine.endpoint.id: _Server(machine, self._new_engine(machine)) for machine in self.machines}

        roles = STAGE_ROLES[Stage.DECODE]
        self._decoders = [server for server in self._servers.values() if server.machine.endpoint.role in roles]

    def _new_engine(self, machine: Machine) -> EngineModel:
        return self._physics.engine(
            machine.profile,
            machine.endpoint.role,
            coarse=self._late_listener is not None,
            mark_every_tokens=self._progress_every_tokens,
        )

    @property
    def max_model_len(self) -> int:
        """Tokens of prompt and output that fit every engine."""
        return min(server.engine.max_model_len for server in self._servers.values())

    def block_size(self, endpoint_id: EndpointId) -> int:
        """Tokens of one KV block of that engine."""
        return self._servers[endpoint_id].engine.block_size

    def submit(self, endpoint_id: EndpointId, request: EngineRequest, source: Source | None = None) -> None:
        """Hand a request to an engine; with a source, it pulls its prompt's KV from there, or a part of it.

        An engine that is down refuses: the request ends with an error.
        """
        server = self._servers[endpoint_id]
        if not server.up:
            stats = _never_begun(request)
            self._clock.at(self._clock.now_s, lambda: self._broke(request.request_id, stats), ENGINE_PRIORITY)
            return
        if source is not None:
            holder = self._servers[source.endpoint_id].engine
            held = holder.stats(source.request_id) if source.running else None
            self._origins[request.request_id] = _Origin(source, holder, held.preemptions if held else 0)
        self._catch_up(server)
        server.engine.add(request, self._clock.now_s)
        self._run(server)

    def tell_all(self, endpoint_id: EndpointId, request_id: str) -> RequestStats | None:
        """Have the listener told whatever an engine did so far, and say how far this request has come.

        None if it is not there (any more).
        """
        server = self._servers[endpoint_id]
        if not server.up:
            return None
        self._settle(server)
        self._run(server)
        return server.engine.stats(request_id)

    def abort(self, endpoint_id: EndpointId, request_id: str) -> None:
        """Stop a request: no more tokens come. Its end is told, now or with the end of the step under way."""
        server = self._servers[endpoint_id]
        self._catch_up(server)
        server.engine.abort(request_id, self._clock.now_s)
        self._run(server)

    def stats(self, endpoint_id: EndpointId, request_id: str) -> RequestStats | None:
        """A request's life so far; None if it is not there (any more)."""
        server = self._servers[endpoint_id]
        self._catch_up(server)
        return server.engine.stats(request_id)

    def is_running(self, endpoint_id: EndpointId, request_id: str) -> bool:
        """Whether a request is in an engine's batch, with its KV."""
        server = self._servers[endpoint_id]
        self._catch_up(server)
        return server.engine.is_running(request_id)

    def keeps_kv(self, endpoint_id: EndpointId) -> bool:
        """Whether KV of requests that have ended can be found again there."""
        return self._servers[endpoint_id].engine.keeps_kv

    def copy(self, source: EndpointId, target: EndpointId, tokens: int, ended: Callable[[], None]) -> None:
        """Have the KV of so many tokens of a running request on the link; no engine takes notice."""
        profile = self._servers[target].machine.profile
        size = tokens * profile.kv_bytes_per_token
        self.copied_bytes += size
        begins_s = self._clock.now_s + profile.link_setup_s
        self._clock.at(begins_s, lambda: self._bandwidth.start(source, target, size, ended), ENGINE_PRIORITY)

    def observe(self) -> list[tuple[Machine, Observation | None]]:
        """What a scrape of every engine would say now; None of one that is down."""
        now_s = self._clock.now_s
        return [
            (server.machine, _observation(server.engine, now_s) if server.up else None)
            for server in self._servers.values()
        ]

    def decode_loads(self) -> list[tuple[Machine, int, float]]:
        """Of each engine that decodes and is up: its running requests and its KV tokens in use."""
        now_s = self._clock.now_s
        return [
            (server.machine, server.engine.load(now_s).running, server.kv_tokens_used(now_s))
            for server in self._decoders
            if server.up
        ]

    def is_least_loaded(self, decode: EndpointId) -> bool:
        """Whether no other engine that decodes and is up has fewer KV tokens in use."""
        now_s, chosen = self._clock.now_s, self._servers[decode]
        if not (chosen.up and chosen in self._decoders):
            return False
        used = chosen.kv_tokens_used(now_s)
        return all(used <= server.kv_tokens_used(now_s) for server in self._decoders if server.up)

    def progress(self, *, inclusive: bool) -> list[tuple[float, str, int]]:
        """(time, request, output tokens) of steady decodes since the last call, in order of time: each multiple once.

        Of steps that have ended before now, or by now where `inclusive`.
        """
        if not self._progress_every_tokens:
            return []
        now_s = self._clock.now_s
        found: list[tuple[float, str, int]] = []
        for server in self._servers.values():
            if server.engine.silent_until_s <= now_s:
                found += server.engine.marks(now_s, inclusive)
        found.sort(key=itemgetter(0))
        return found

    def settle(self) -> None:
        """Tell the late listener every token so far."""
        for server in self._servers.values():
            self._settle(server)
            self._run(server)

    def preemptions(self) -> int:
        """Preemptions of all engines so far."""
        return sum(server.lost_preemptions + server.engine.preemptions for server in self._servers.values())

    def check_blocks(self) -> None:
        """Raise AssertionError where an engine lost a KV block."""
        for server in self._servers.values():
            server.engine.check_blocks()

    # --- failures -------------------------------------------------------------------------------------------------

    def crash(self, endpoint_id: EndpointId) -> None:
        """An engine dies: its KV is gone, its requests end with an error, and it refuses others until `restart`."""
        server = self._servers[endpoint_id]
        self._settle(server)
        dying = server.engine
        lost = [(request_id, stats) for request_id in dying.requests() if (stats := dying.stats(request_id))]
        server.lost_preemptions += dying.preemptions
        server.engine = self._new_engine(server.machine)
        server.up, server.wakes_at_s = False, float("inf")
        for request_id, stats in lost:
            self._broke(request_id, stats)

    def restart(self, endpoint_id: EndpointId) -> None:
        """An engine that crashed is up again, empty."""
        server = self._servers[endpoint_id]
        server.up = True
        server.engine.slow(server.slowdown, self._clock.now_s)

    def slow(self, endpoint_id: EndpointId, factor: float) -> None:
        """From now on an engine's work takes `factor` times as long as it should; 1 ends it."""
        server = self._servers[endpoint_id]
        server.slowdown = factor
        if server.up:
            self._catch_up(server)
            server.engine.slow(factor, self._clock.now_s)
            self._run(server)

    def _broke(self, request_id: str, stats: RequestStats) -> None:
        self._origins.pop(request_id, None)
        self._listener.finished(Finished(self._clock.now_s, request_id, FinishReason.ERROR, stats))

    # --- the engines' clockwork -----------------------------------------------------------------------------------

    def _settle(self, server: _Server) -> None:
        self._catch_up(server)
        server.engine.settle()
        self._catch_up(server)

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
                self._origins.pop(event.request_id, None)
                if self._chunk_tokens and event.hand_off is not None:
                    self._computed[event.request_id] = Computed.of(event.hand_off, event.at_s)
                self._listener.finished(event)

    def _pull(self, server: _Server, event: PullStarted) -> None:
        """The link between two engines is as fast as the slower end, and each pull has it for itself, but for `copy`.

        It fails, when it would have ended, where its source has crashed since the KV was computed.
        """
        origin, engine = self._origins[event.request_id], server.engine
        source = self._servers[origin.source.endpoint_id]
        link = Link.between(source.machine.profile, server.machine.profile)
        lasts_s = 0.0
        if event.tokens and not origin.source.running:
            computed = self._computed.pop(origin.source.request_id, None)
            lasts_s = self._lasts_s(link, event, computed if origin.source.foreseen else None)

        def ended() -> None:
            self._catch_up(source)
            self._catch_up(server)
            if server.engine is not engine:
                return
            alive = source.engine is origin.engine
            if origin.source.running:
                held = source.engine.stats(origin.source.request_id)
                alive = alive and held is not None and held.preemptions == origin.preemptions
            elif alive:
                source.engine.release(origin.source.request_id, self._clock.now_s)
            if event.tokens:
                engine.pull_ended(event.request_id, self._clock.now_s, failed=not alive)
            self._run(source)
            self._run(server)

        if origin.source.running:
            self.copy(origin.source.endpoint_id, server.machine.endpoint.id, event.tokens, ended)
        else:
            self._clock.at(self._clock.now_s + lasts_s, ended, ENGINE_PRIORITY)

    def _lasts_s(self, link: Link, event: PullStarted, computed: Computed | None) -> float:
        """How long a pull that begins now lasts; what chunks brought before is there already."""
        whole_s = exposed_s = lasts_s = link.whole_s(event.tokens)
        if computed is not None:
            arrives_s = computed.arrives_s(link, event.first, event.tokens, self._chunk_tokens)
            exposed_s = max(0.0, arrives_s - computed.ended_s)
            lasts_s = max(0.0, arrives_s - self._clock.now_s)
        self.transfers.transfers += 1
        self.transfers.whole_s += whole_s
        self.transfers.exposed_s += exposed_s
        return lasts_s


def _never_begun(request: EngineRequest) -> RequestStats:
    return RequestStats(
        arrival_s=request.arrival_s,
        scheduled_s=None,
        first_token_s=None,
        last_token_s=None,
        input_tokens=request.input_tokens,
        output_tokens=0,
        cached_tokens=0,
        pulled_tokens=0,
        preemptions=0,
    )
