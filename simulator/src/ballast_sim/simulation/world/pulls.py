"""KV on its way between engines: pulls of decode legs, and copies of requests that go on running.

The link between two engines is as fast as its slower end. A pull has the link for itself; copies share it. A pull
fails, when it would have ended, where its source has crashed since the KV was computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ballast_core.model import EndpointId
from ballast_sim.engine import Finished, PullStarted
from ballast_sim.physics import EngineModel
from ballast_sim.simulation.inputs.shapes import Machine
from ballast_sim.simulation.world.bandwidth import Bandwidth
from ballast_sim.simulation.world.clock import ENGINE_PRIORITY, Clock
from ballast_sim.simulation.world.links import Computed, Link, TransferTimes
from ballast_sim.simulation.world.server import Server


@dataclass(frozen=True, slots=True)
class Source:
    """The endpoint that holds a decode leg's KV, and the id of the leg that computed it there."""

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
    """The source's engine when the pull was announced. A crash replaces it by another one."""
    preemptions: int = 0
    """Preemptions of the source leg when the copy was ordered."""


class Pulls:
    """All transfers of a run."""

    def __init__(self, clock: Clock, servers: Mapping[EndpointId, Server], chunk_tokens: int) -> None:
        """`chunk_tokens`: KV leaves in chunks of so many tokens while its source still computes; 0: whole, after it."""
        self.times = TransferTimes()
        self.copied_bytes = 0.0
        """KV of running requests that went over links."""
        self._clock = clock
        self._servers = servers
        self._chunk_tokens = chunk_tokens
        self._origins: dict[str, _Origin] = {}
        self._computed: dict[str, Computed] = {}
        self._bandwidth = Bandwidth(clock, ENGINE_PRIORITY)
        self._awaited: dict[str, EndpointId] = {}
        """By the id of a leg, the endpoint from which it will pull, until it has."""
        for server in servers.values():
            self.add(server.machine)

    def add(self, machine: Machine) -> None:
        """One more machine."""
        self._bandwidth.link(machine.endpoint.id, machine.profile.link_gbps * 1e9 / 8)

    def awaited_from(self, endpoint_id: EndpointId) -> bool:
        """Whether something is still to be pulled from there."""
        return endpoint_id in self._awaited.values()

    def expect(self, request_id: str, source: Source) -> None:
        """Announce that this leg will pull from `source`."""
        holder = self._servers[source.endpoint_id].engine
        held = holder.stats(source.request_id) if source.running else None
        self._awaited[request_id] = source.endpoint_id
        self._origins[request_id] = _Origin(source, holder, held.preemptions if held else 0)

    def forget(self, request_id: str) -> None:
        """Drop a leg that has ended: it pulls nothing any more."""
        self._origins.pop(request_id, None)
        self._awaited.pop(request_id, None)

    def finished(self, event: Finished) -> None:
        """Note the end of a leg; another leg may pull what it holds."""
        self.forget(event.request_id)
        if self._chunk_tokens and event.hand_off is not None:
            self._computed[event.request_id] = Computed.of(event.hand_off, event.at_s)

    def copy(self, source: EndpointId, target: EndpointId, tokens: int, ended: Callable[[], None]) -> None:
        """Send the KV of so many tokens of a running request over the link. The engines are not involved."""
        profile = self._servers[target].machine.profile
        size = tokens * profile.kv_bytes_per_token
        self.copied_bytes += size
        begins_s = self._clock.now_s + profile.link_setup_s
        self._clock.at(begins_s, lambda: self._bandwidth.start(source, target, size, ended), ENGINE_PRIORITY)

    def begin(self, server: Server, event: PullStarted) -> None:
        """An engine began to pull. The end of the pull is reported to it."""
        origin, engine = self._origins[event.request_id], server.engine
        source = self._servers[origin.source.endpoint_id]
        link = Link.between(source.machine.profile, server.machine.profile)
        lasts_s = 0.0
        if event.tokens and not origin.source.running:
            computed = self._computed.pop(origin.source.request_id, None)
            lasts_s = self._lasts_s(link, event, computed if origin.source.foreseen else None)

        def ended() -> None:
            self._awaited.pop(event.request_id, None)
            source.catch_up()
            server.catch_up()
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
            source.run()
            server.run()

        if origin.source.running:
            self.copy(origin.source.endpoint_id, server.machine.endpoint.id, event.tokens, ended)
        else:
            self._clock.at(self._clock.now_s + lasts_s, ended, ENGINE_PRIORITY)

    def _lasts_s(self, link: Link, event: PullStarted, computed: Computed | None) -> float:
        """Seconds that a pull lasts which begins now. Chunks that arrived before it need no more time."""
        whole_s = exposed_s = lasts_s = link.whole_s(event.tokens)
        if computed is not None:
            arrives_s = computed.arrives_s(link, event.first, event.tokens, self._chunk_tokens)
            exposed_s = max(0.0, arrives_s - computed.ended_s)
            lasts_s = max(0.0, arrives_s - self._clock.now_s)
        self.times.transfers += 1
        self.times.whole_s += whole_s
        self.times.exposed_s += exposed_s
        return lasts_s
