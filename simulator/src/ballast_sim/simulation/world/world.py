"""The engines of a fleet and the links between them, on a clock that is passed in.

The simulator's kernel is such a clock, and so is an event loop. Nothing here knows of gateways or policies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from operator import itemgetter

import numpy as np

from ballast_core.model import STAGE_ROLES, EndpointId, Observation, Role, Stage
from ballast_core.model.observations import Observations
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
from ballast_sim.simulation.world.clock import ENGINE_PRIORITY, Clock
from ballast_sim.simulation.world.links import TransferTimes
from ballast_sim.simulation.world.listeners import LateListener, Listener
from ballast_sim.simulation.world.pulls import Pulls, Source
from ballast_sim.simulation.world.server import Server


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

        It then gets the tokens of steady decodes late, and `progress` returns multiples of `progress_every_tokens`.
        """
        self._physics = physics
        self._progress_every_tokens = progress_every_tokens
        self._clock = clock
        self._listener = listener
        self._late_listener = late_listener
        self._servers = {machine.endpoint.id: self._new_server(machine) for machine in machines}
        self._lost_preemptions = 0
        self._pulls = Pulls(clock, self._servers, kv_chunk_tokens if kv_transfer == "chunked" else 0)
        self._changed()

    def _changed(self) -> None:
        """The machines, or their roles, have changed."""
        roles = STAGE_ROLES[Stage.DECODE]
        self.machines = tuple(server.machine for server in self._servers.values())
        self._endpoints = tuple(machine.endpoint for machine in self.machines)
        self._decoders = [server for server in self._servers.values() if server.machine.endpoint.role in roles]

    def _new_server(self, machine: Machine) -> Server:
        return Server(machine, self._new_engine, self._clock, self._engine_reports)

    def _new_engine(self, machine: Machine) -> EngineModel:
        return self._physics.engine(
            machine.profile,
            machine.engine_role,
            coarse=self._late_listener is not None,
            mark_every_tokens=self._progress_every_tokens,
        )

    # --- requests -------------------------------------------------------------------------------------------------

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
            self._pulls.expect(request.request_id, source)
        server.catch_up()
        server.engine.add(request, self._clock.now_s)
        server.run()

    def abort(self, endpoint_id: EndpointId, request_id: str) -> None:
        """Stop a request: no more tokens come. Its end follows, now or with the end of the step under way."""
        server = self._servers[endpoint_id]
        server.catch_up()
        server.engine.abort(request_id, self._clock.now_s)
        server.run()

    def settled_stats(self, endpoint_id: EndpointId, request_id: str) -> RequestStats | None:
        """`stats`, after the listener got every token of that engine so far. None also where the engine is down."""
        server = self._servers[endpoint_id]
        if not server.up:
            return None
        server.settle()
        server.run()
        return server.engine.stats(request_id)

    def stats(self, endpoint_id: EndpointId, request_id: str) -> RequestStats | None:
        """A request's life so far; None if it is not there (any more)."""
        server = self._servers[endpoint_id]
        server.catch_up()
        return server.engine.stats(request_id)

    def is_running(self, endpoint_id: EndpointId, request_id: str) -> bool:
        """Whether a request is in an engine's batch, with its KV."""
        server = self._servers[endpoint_id]
        server.catch_up()
        return server.engine.is_running(request_id)

    def copy(self, source: EndpointId, target: EndpointId, tokens: int, ended: Callable[[], None]) -> None:
        """Send the KV of so many tokens of a running request over the link. The engines are not involved."""
        self._pulls.copy(source, target, tokens, ended)

    # --- what engines are -----------------------------------------------------------------------------------------

    @property
    def max_model_len(self) -> int:
        """Tokens of prompt and output that fit every engine."""
        return min(server.engine.max_model_len for server in self._servers.values())

    def block_size(self, endpoint_id: EndpointId) -> int:
        """Tokens of one KV block of that engine."""
        return self._servers[endpoint_id].engine.block_size

    def keeps_kv(self, endpoint_id: EndpointId) -> bool:
        """Whether that engine's cache keeps the KV of requests that have ended."""
        return self._servers[endpoint_id].engine.keeps_kv

    # --- what can be seen -----------------------------------------------------------------------------------------

    def observe(self) -> list[tuple[Machine, Observation | None]]:
        """What a scrape of every engine would find now; None of one that is down."""
        now_s = self._clock.now_s
        return [(server.machine, server.observation(now_s)) for server in self._servers.values()]

    def scrape(self, *, kv: bool) -> Observations:
        """What a scrape of the engines that are up would find now; KV in use only where `kv` asks for it, or else 0."""
        now_s = self._clock.now_s
        up = [server for server in self._servers.values() if server.up]
        each = chain.from_iterable([server.counts(now_s) for server in up])
        counts = np.fromiter(each, np.int64, 2 * len(up)).reshape(-1, 2)
        return Observations(
            self._endpoints if len(up) == len(self._endpoints) else tuple(server.machine.endpoint for server in up),
            np.full(len(up), now_s),
            counts[:, 0],
            counts[:, 1],
            np.array([server.kv_usage_ratio(now_s) for server in up]) if kv else np.zeros(len(up)),
        )

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
        """(time, `mark_as`, output tokens) of steady decodes since the last call, in order of time: each multiple once.

        The tokens are those of the leg and its `mark_from`, of steps that have ended before now, or by now where
        `inclusive`.
        """
        if not self._progress_every_tokens:
            return []
        now_s = self._clock.now_s
        found: list[tuple[float, str, int]] = []
        for server in self._servers.values():
            if server.silent_until_s <= now_s:
                found += server.marks(now_s, inclusive)
        found.sort(key=itemgetter(0))
        return found

    @property
    def settles(self) -> bool:
        """Whether `settle` has every token reported, and not only `progress` most of them."""
        return all(server.engine.settles for server in self._servers.values())

    def settle(self) -> None:
        """Report every token so far to the late listener."""
        for server in self._servers.values():
            server.settle()
            server.run()

    @property
    def transfers(self) -> TransferTimes:
        """Sums over all pulls."""
        return self._pulls.times

    @property
    def copied_bytes(self) -> float:
        """KV of running requests that went over links."""
        return self._pulls.copied_bytes

    def preemptions(self) -> int:
        """Preemptions of all engines so far."""
        return self._lost_preemptions + sum(server.preemptions for server in self._servers.values())

    def check_blocks(self) -> None:
        """Raise AssertionError where an engine lost a KV block."""
        for server in self._servers.values():
            server.engine.check_blocks()

    def current(self, answers: Observations) -> Observations:
        """Those of machines that are still there, and have the role in which they were scraped."""
        if answers.endpoints is self._endpoints:
            return answers
        there = set(self._endpoints)
        kept = [row for row, endpoint in enumerate(answers.endpoints) if endpoint in there]
        return answers if len(kept) == len(answers) else answers.take(kept)

    # --- machines that come, change and go --------------------------------------------------------------------------

    def add(self, machine: Machine) -> None:
        """One more engine, empty."""
        self._servers[machine.endpoint.id] = self._new_server(machine)
        self._pulls.add(machine)
        self._changed()

    def become(self, endpoint_id: EndpointId, role: Role) -> Machine:
        """An engine that may do both stages is used for another role from now on. What it does already goes on."""
        server = self._servers[endpoint_id]
        before = server.machine
        server.machine = replace(before, endpoint=replace(before.endpoint, role=role), started_as=before.engine_role)
        self._changed()
        return server.machine

    def is_empty(self, endpoint_id: EndpointId) -> bool:
        """Whether an engine has no request, and no other one is to pull KV from it."""
        server = self._servers[endpoint_id]
        server.catch_up()
        return not server.engine.requests() and not self._pulls.awaited_from(endpoint_id)

    def remove(self, endpoint_id: EndpointId) -> None:
        """An engine that is empty goes."""
        self._lost_preemptions += self._servers.pop(endpoint_id).preemptions
        self._changed()

    # --- failures -------------------------------------------------------------------------------------------------

    def crash(self, endpoint_id: EndpointId) -> None:
        """An engine dies: its KV is gone, its requests end with an error, and it refuses others until `restart`."""
        for request_id, stats in self._servers[endpoint_id].crash():
            self._broke(request_id, stats)

    def restart(self, endpoint_id: EndpointId) -> None:
        """An engine that crashed is up again, empty."""
        self._servers[endpoint_id].restart()

    def slow(self, endpoint_id: EndpointId, factor: float) -> None:
        """From now on an engine's work takes `factor` times as long as it should; 1 ends it."""
        self._servers[endpoint_id].slow(factor)

    def _broke(self, request_id: str, stats: RequestStats) -> None:
        self._pulls.forget(request_id)
        self._listener.finished(Finished(self._clock.now_s, request_id, FinishReason.ERROR, stats))

    # --- what the engines report ----------------------------------------------------------------------------------

    def _engine_reports(self, server: Server, event: EngineEvent) -> None:
        match event:
            case StepEnded():
                for request_id in event.tokens:
                    self._listener.token(request_id, event.at_s)
            case TokensAdvanced():
                assert self._late_listener is not None
                self._late_listener.tokens(event)
            case PullStarted():
                self._pulls.begin(server, event)
            case Finished():
                self._pulls.finished(event)
                self._listener.finished(event)


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
