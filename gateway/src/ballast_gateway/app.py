"""The gateway process: builds core, observation, faces and admin API, starts them in order and drains them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Collection
from contextvars import copy_context
from dataclasses import asdict, replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TextIO

from prometheus_client import CollectorRegistry

from ballast_api.attainment_report import ATTAINMENT
from ballast_api.demand_report import DEMAND
from ballast_api.errors import InvalidInput, Problem
from ballast_api.gateway_settings import GatewaySettings, KubernetesPeers, PickerTls, ProxyTls, TlsMode
from ballast_api.load_report import LOAD
from ballast_api.profile_report import PROFILES
from ballast_core import kernel
from ballast_core.beliefs.kinds import Belief
from ballast_core.directing.director import Director
from ballast_core.model import EndpointId, Observation
from ballast_core.model.effects import Effect, PulseChanged
from ballast_core.model.life_signs import Pulse
from ballast_core.state.health import HealthChange, HealthState
from ballast_gateway.admin_server import AdminServer
from ballast_gateway.attainment import Attainment
from ballast_gateway.attainment_metrics import AttainmentMetrics
from ballast_gateway.canary_counts import CanaryCounts
from ballast_gateway.decisions import DecisionLog
from ballast_gateway.demand import Demand
from ballast_gateway.draining import DrainMetrics, hold_report, load_report
from ballast_gateway.driver import Driver
from ballast_gateway.endpoint_metrics import EndpointMetrics
from ballast_gateway.http.client import UpstreamPool
from ballast_gateway.key_metrics import KeyMetrics
from ballast_gateway.keys import KeyRing
from ballast_gateway.kv_metrics import KvMetrics
from ballast_gateway.labelled import Labelled
from ballast_gateway.learned_profiles import profiles_report
from ballast_gateway.line_file import LineFile
from ballast_gateway.live.serving import Live
from ballast_gateway.live.shares import Shares, answers
from ballast_gateway.live.taking import Taking
from ballast_gateway.logs import ALONE, LineWriter, RequestLog, Whose
from ballast_gateway.metrics import Metrics
from ballast_gateway.observe.files import FileDiscovery
from ballast_gateway.observe.fleet import Fleet
from ballast_gateway.observe.scrape import Scraper
from ballast_gateway.placement_metrics import PlacementMetrics
from ballast_gateway.podapi import messages as said
from ballast_gateway.ports import opening
from ballast_gateway.probes import App, Probes
from ballast_gateway.proxy.carrying import carries
from ballast_gateway.proxy.face import ProxyFace
from ballast_gateway.records import RequestRecord
from ballast_gateway.request_ids import request_ids
from ballast_gateway.served_names import ServedNames
from ballast_gateway.service_classes import ServiceClasses
from ballast_gateway.settings import director_settings
from ballast_gateway.settings_file import News
from ballast_gateway.settings_state import SettingsState
from ballast_gateway.stand_ins import StandIns
from ballast_gateway.tls.certificates import Tls, tls_of
from ballast_gateway.tls_metrics import TlsMetrics
from ballast_gateway.tokenizing import Tokenizing
from ballast_gateway.tracing.starting import CannotTrace, tracing_of
from ballast_gateway.traffic import Bounds, TrafficRecorder
from ballast_gateway.view.fleet_view import FleetView
from ballast_gateway.view.service import PodApi
from ballast_gateway.who_may_ask import WhoMayAsk

if TYPE_CHECKING:
    from ballast_gateway.observe.kv_events import KvEventStreams
    from ballast_gateway.picker.query import Carries
    from ballast_gateway.tracing.exporting import Tracing

_log = logging.getLogger(__name__)

_SETTLES_S = 15.0
"""How long a worker waits for what it should know before it takes connections."""


class PickerServer(Protocol):
    """What the gateway needs of a running picker face."""

    @property
    def port(self) -> int: ...
    @property
    def health_port(self) -> int: ...
    @property
    def drain(self) -> Callable[[], None]: ...
    def observed(self, endpoint_id: EndpointId, observation: Observation) -> None: ...
    def lost(self, endpoint_id: EndpointId) -> None: ...
    async def aclose(self, grace_s: float | None = None) -> None: ...
    def use(
        self,
        settings: GatewaySettings,
        *,
        tokenizing: Tokenizing | None,
        served: Collection[str],
        carries: Carries | None,
    ) -> None: ...


class Gateway:
    """One gateway: `start` it, let it run, `drain` it, `close` it. `ports` holds the port of each listener by name.

    `out` takes the request log. `whose` is for log lines and metrics: this gateway's name among several, or its number
    among the workers that share its ports. `text_hash`: of the settings file's text, if they come from one.
    """

    keys: KeyRing | None = None
    """Where keys are checked, once started."""

    def __init__(
        self, settings: GatewaySettings, *, whose: Whose = ALONE, out: TextIO = sys.stdout, text_hash: str = ""
    ) -> None:
        loop = asyncio.get_running_loop()
        unix_s = time.time() - time.monotonic()
        self.settings = settings
        self.whose = whose
        self.ports: dict[str, int] = {}
        self._loop = loop
        self._context = copy_context()
        """By which log lines know whose they are."""
        self._draining = self._ends = False
        self.failed = asyncio.Event()
        """Set when the gateway cannot continue."""
        self._tasks: list[asyncio.Task[None]] = []
        self._closing = contextlib.AsyncExitStack()
        self.decisions = DecisionLog(
            kept=settings.admin.decisions_kept, unix_s=unix_s, file=self._open(settings.logs.decisions_file)
        )
        self.registry = CollectorRegistry()
        self.settings_state = SettingsState(settings, text_hash, self.registry)
        director = Director(director_settings(settings))
        self.metrics = Metrics(self.registry, in_flight=lambda: director.ledger.own)
        self.metrics.watch_queue(director)
        self.metrics.watch_health(director, now_s=time.monotonic)
        DrainMetrics(director.departures, self.registry)
        director.health.on_change = self._health_changed
        self._classes = ServiceClasses(settings.objectives)
        placements = PlacementMetrics(director, self.registry, now_s=time.monotonic, objectives=self._classes.names)
        self.driver = Driver(
            director,
            clock=time.monotonic,  # uvloop's own clock moves in whole milliseconds: too coarse for gaps of tokens
            listeners=(
                self.decisions,
                self.metrics.effect,
                placements.effect,
                StandIns(director.inventory, self.registry).effect,
                _tell_of_watch,
            ),
            on_decision_s=self.metrics.decision,
        )
        self._tracing = self._traces(unix_s)
        self.attainment = Attainment(self._classes, now_s=self.driver.now_s, unix_s=unix_s)
        AttainmentMetrics(self.attainment, self.registry)
        self._watch_canary(settings)
        self.traffic = TrafficRecorder(
            _bounds(settings),
            now_s=self.driver.now_s,
            unix_s=unix_s,
            running=lambda: (entry for entry in director.ledger if not entry.adopted),
        )
        self.demand = Demand(
            lambda: (entry for entry in director.ledger if not entry.adopted),
            lambda slot: director.inventory.endpoint(slot).id,
            now_s=self.driver.now_s,
            unix_s=unix_s,
        )
        self.pool = UpstreamPool(loop, connect_timeout_s=settings.limits.connect_timeout_s)
        self.fleet = Fleet(self.driver.feed, failures_until_lost=settings.scrape.failures_until_lost)
        self.metrics.watch_fleet(self.fleet, self.driver.now_s)
        endpoints = EndpointMetrics(self.fleet, director, self.registry)
        self.driver.listen(endpoints.effect)
        self._served = ServedNames.of(settings, self.fleet.loaded_adapters)
        self._scraper = Scraper(
            self.fleet,
            self.pool,
            interval_s=settings.scrape.interval_s,
            timeout_s=settings.scrape.timeout_s,
            served=self._served,
            now_s=self.driver.now_s,
            life_signs=self.driver.life_signs,
            on_failure=self.metrics.scrape_failed,
            told=self._is_told,
        )
        self.kv_events: KvEventStreams | None = None
        self._listens = False
        self._tokenizing: Tokenizing | None = None
        self._listen()
        self.fleet.on_change = self._members_changed
        self._lines = LineWriter(out, loop, shared=settings.workers > 1)
        self._request_log = RequestLog(self._lines, unix_s=unix_s, whose=whose)
        self.pod_api = PodApi(settings, self.driver, self.pool) if settings.pod_api.token_file is not None else None
        self.live = self._live(unix_s)
        self.proxy: ProxyFace | None = None
        self.picker: PickerServer | None = None

    def _live(self, unix_s: float) -> Live:
        taking = Taking(
            director=self.driver.director,
            fleet=self.fleet,
            decisions=self.decisions,
            attainment=self.attainment,
            now_s=self.driver.now_s,
            unix_s=unix_s,
            whose=self.whose,
            models=lambda: self._served,
            view=None if self.pod_api is None else self._view_in_short,
        )
        unit = "workers" if self.settings.workers > 1 else "gateways"
        return Live(taking, Shares(taking, self._others, unit=unit))

    def _listen(self) -> None:
        """Listen to engines' KV events, where that is asked for and while a policy reads what they tell."""
        settings = self.settings.kv_events
        self._listens = settings.enabled and Belief.PREFIXES in self.driver.abilities.beliefs
        if settings.enabled and not self._listens:
            _log.info("no policy in use reads cached prefixes: KV events are not listened to")
        if self._listens and self.kv_events is None:
            from ballast_gateway.observe.kv_events import KvEventStreams

            self.kv_events = KvEventStreams(settings, self.driver.feed)
            KvMetrics(self.kv_events.counts, self.driver.director.beliefs.reported, self.fleet, self.registry)
            self._tokenizing = Tokenizing(self.pool, self.fleet.serving, wait_s=settings.tokenize_wait_s)
            self._closing.callback(self._tokenizing.close)

    def _members_changed(self) -> None:
        self._scraper.sync()
        self._follow_agents()
        self._follow_caches()

    def _follow_caches(self) -> None:
        if self.kv_events is not None:
            self.kv_events.sync(self.fleet.members if self._listens else {})

    def _follow_agents(self) -> None:
        if self.pod_api is not None and self.pod_api.started:
            members = self.fleet.members.items()
            self.pod_api.view.follow_agents({name: member.pod_api for name, member in members if member.pod_api})

    def _engine_said(self, engine: said.Engine) -> None:
        member = self.fleet.members.get(EndpointId(engine.endpoint))
        if member is not None:
            now_s, kv_ratio = self.driver.now_s(), engine.kv_usage_ratio
            seen = Observation(now_s, engine.running, engine.waiting, kv_ratio, engine.preemptions)
            self.fleet.scraped(member, seen)

    def _is_told(self, endpoint_id: EndpointId) -> bool:
        """Whether an agent tells of this engine's metrics."""
        return self.pod_api is not None and self.pod_api.started and self.pod_api.view.has_agent(endpoint_id)

    def _view_in_short(self) -> tuple[str, bool, int, int]:
        """For the live page."""
        if self.pod_api is None or not self.pod_api.started:
            return "", False, 0, 0
        view = self.pod_api.view
        return view.me, view.leads, *view.connected()

    def _others(self) -> FleetView | None:
        return self.pod_api.view if self.pod_api is not None and self.pod_api.started else None

    def _asked_to_drain(self, on: bool) -> None:
        self._draining = on

    def _kv_cache(self, endpoint_id: EndpointId) -> dict[str, object] | None:
        """For the admin API; None where no KV events are listened to."""
        if self.kv_events is None:
            return None
        known = self.driver.director.beliefs.reported.known(endpoint_id)
        return {
            "connected": self.kv_events.connected(endpoint_id),
            **({} if known is None else asdict(known)),
        }

    # --- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the listeners and begin to observe. Raises `InvalidInput` (port taken, bad file)."""
        listeners = self.settings.listeners
        faces = self._tls()
        if self.settings.keys.checked:
            self.keys = KeyRing(self.settings.keys, self.driver.now_s)
            self.run(self.keys.follow())
            KeyMetrics(self.keys, self.registry)
        await self._serve_admin(listeners.host, listeners.admin)
        if self.pod_api is not None:
            self._closing.push_async_callback(self.pod_api.close)
            with opening("podApi.port", listeners.host, self.settings.pod_api.port):
                await self.pod_api.start(
                    ready=lambda: not self.not_ready(),
                    drain=self._asked_to_drain,
                    synced=lambda: self.fleet.synced,
                    on_engine=self._engine_said,
                    asked=answers(self.live.taking),
                    share_of=(lambda tenant: None) if self.keys is None else self.keys.named,
                )
            self.ports["pod_api"] = self.pod_api.port
            self.metrics.watch_view(self.pod_api.view)
        await self._discover()
        self._follow_agents()
        if self.settings.workers > 1:
            await self._until_settled()  # the port serves already: connections come as soon as this worker listens
        tokenizing = self._tokenizing if self._listens else None
        if self.settings.face.serves_proxy:
            self.proxy = ProxyFace(
                self.driver,
                self.pool,
                self.settings,
                new_id=request_ids(),
                created_s=int(time.time()),
                max_model_len=self.fleet.max_model_len,
                not_ready=self.not_ready,
                tokenizing=tokenizing,
                on_record=self._ended,
                served=self._served,
                classes=self._classes,
                tracing=self._tracing,
                keys=self.keys,
            )
            self._closing.push_async_callback(self.proxy.close)
            with opening("listeners.proxy", listeners.host, listeners.proxy):
                self.ports["proxy"] = await self.proxy.listen(
                    listeners.host, listeners.proxy, tls=faces.get("proxy"), shared=self.settings.workers > 1
                )
            self.driver.watch()
        if self.settings.face.serves_picker:
            from ballast_gateway import picker

            with opening("listeners.extProc, listeners.grpcHealth", listeners.host):
                self.picker = await picker.serve(
                    self.driver,
                    self.settings,
                    ready=lambda: not self.not_ready(),
                    tokenizing=tokenizing,
                    on_record=self._ended,
                    holders=None if self.pod_api is None else self.pod_api.view,
                    carries=self._carries(),
                    tls=faces.get("picker"),
                    served=self._served,
                    classes=self._classes,
                    tracing=self._tracing,
                    keys=self.keys,
                )
            self.fleet.on_scraped, self.fleet.on_lost = self.picker.observed, self.picker.lost
            self._closing.push_async_callback(self.picker.aclose, 0.0)
            if self.proxy is None:
                self.driver.watch()
            self.ports |= {"ext_proc": self.picker.port, "grpc_health": self.picker.health_port}
        if not kernel.installed():
            _log.warning("no compiled kernel: decisions run on numpy, with the same answers in several times the time")
        if self.settings.workers == 1:
            _log.info("listening", extra={"event": "listening", "ports": self.ports, "decided_by": kernel.name()})

    def _carries(self) -> Carries | None:
        abilities = self.driver.abilities
        return carries if abilities.moves or abilities.cuts else None

    def hear(self, news: News) -> None:
        """Take the settings of a new text, between two decisions; a text that is refused changes nothing."""
        before = self.settings
        if news.settings is None:
            self.settings_state.refused(news)
            return
        try:
            self._use(news.settings)
        except Exception as error:  # a fault of ours: streams must not end with it
            _log.exception("new settings cannot be used; those before are in force again")
            self._use(before)
            self.settings_state.refused(replace(news, settings=None, problem=f"cannot be used: {error!r}"))
        else:
            self.settings_state.taken(news, news.settings)

    def _use(self, settings: GatewaySettings) -> None:
        """What runs goes on; what comes is served by these settings."""
        decides = director_settings(settings)
        self.settings = settings
        self.driver.use(decides)
        self._served = ServedNames.of(settings, self.fleet.loaded_adapters)
        scrape = settings.scrape
        self._scraper.use(interval_s=scrape.interval_s, timeout_s=scrape.timeout_s, served=self._served)
        self.fleet.failures_until_lost = scrape.failures_until_lost
        self.pool.connect_timeout_s = settings.limits.connect_timeout_s
        self.traffic.bounds = _bounds(settings)
        self.attainment.adopt(settings.objectives)
        self._watch_canary(settings)
        if self.pod_api is not None:
            self.pod_api.view.max_retries = settings.limits.max_retries
        self._listen()
        self._follow_caches()
        tokenizing = self._tokenizing if self._listens else None
        if self.proxy is not None:
            self.proxy.use(settings, tokenizing=tokenizing, served=self._served)
        if self.picker is not None:
            self.picker.use(settings, tokenizing=tokenizing, served=self._served, carries=self._carries())

    def not_ready(self) -> list[str]:
        """Why the gateway should get no traffic now; empty if it is ready."""
        reasons = self._unsettled()
        if self._draining or self._ends:
            reasons.append("draining: the gateway is about to stop")
        if self.settings.face.serves_proxy and "proxy" not in self.ports:
            reasons.append("the proxy face does not listen yet")
        if self.settings.face.serves_picker and "ext_proc" not in self.ports:
            reasons.append("the picker face does not listen yet")
        return reasons

    def _unsettled(self) -> list[str]:
        """What is not known yet of the fleet."""
        reasons = []
        if not self.fleet.synced:
            reasons.append("discovery has not given its first answer yet")
        elif not self.fleet.settled:
            reasons.append("some endpoints have not been scraped yet")
        if self.pod_api is not None:
            waits = self.pod_api.view.waits_for() if self.pod_api.started else ["the pod API"]
            reasons += [f"{name} has not said yet what it holds" for name in waits]
        return reasons

    async def _until_settled(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SETTLES_S):
                while self._unsettled():  # noqa: ASYNC110 - several parts have a share in it
                    await asyncio.sleep(0.02)

    async def drain(self) -> bool:
        """Report not ready, serve for the grace period, then finish the running requests. False if one was cut off."""
        limits = self.settings.limits
        self._ends = True
        if self.proxy is not None:
            self.proxy.prepare_drain()
        if self.picker is not None:
            self.picker.drain()
        await asyncio.sleep(limits.drain_grace_s)
        waits: list[Awaitable[object]] = []
        if self.proxy is not None:
            waits.append(self.proxy.drain(limits.drain_timeout_s))
        if self.picker is not None:
            waits.append(self.picker.aclose(limits.drain_timeout_s))
        return False not in await asyncio.gather(*waits)

    async def shut_down(self) -> None:
        """End a drain, and tell the clients of the requests that still run."""
        waits: list[Awaitable[object]] = []
        if self.proxy is not None:
            waits.append(self.proxy.shut_down())
        if self.picker is not None:
            waits.append(self.picker.aclose(0.0))
        await asyncio.gather(*waits)

    async def close(self) -> None:
        """Stop everything at once, without a drain."""
        await self._closing.aclose()
        await self._scraper.close()
        if self.kv_events is not None:
            await self.kv_events.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.driver.close()
        self.pool.close()
        self._lines.flush()

    def _tls(self) -> dict[str, Tls]:
        """Of each face that is served and may speak it. Raises `InvalidInput` for files that cannot be used."""
        face, tls = self.settings.face, self.settings.tls
        asked: list[tuple[str, ProxyTls | PickerTls, str]] = []
        if face.serves_proxy:
            asked.append(("proxy", tls.proxy, "http/1.1"))
        if face.serves_picker:
            asked.append(("picker", tls.picker, "h2"))
        faces = {name: tls_of(each, alpn) for name, each, alpn in asked if each.mode is not TlsMode.PLAINTEXT}
        if faces:
            TlsMetrics(faces, self.registry)
        return faces

    # --- parts ------------------------------------------------------------------------------------------------------

    def _open(self, path: str | None) -> LineFile | None:
        """Raises `InvalidInput` for a file that cannot be written."""
        try:
            return None if path is None else self._closing.enter_context(LineFile(Path(path)))
        except OSError as error:
            said = f"{path} cannot be written: {error.strerror}; make its folder, or set another file"
            raise InvalidInput("", [Problem("logs.decisionsFile", said)]) from None

    def _traces(self, unix_s: float) -> Tracing | None:
        """None where the settings ask for none. Raises `InvalidInput` where they cannot be had."""
        asked = self.settings.tracing
        if asked is None:
            return None
        try:
            tracing = tracing_of(
                service="ballast-gateway",
                whose=self.whose,
                endpoint=asked.endpoint,
                protocol=asked.protocol,
                sample_ratio=asked.sample_ratio,
                follow_clients=asked.follow_clients,
                now_s=self.driver.now_s,
                unix_s=unix_s,
            )
        except CannotTrace as error:
            raise InvalidInput("tracing", [Problem("", str(error))]) from error
        if tracing is not None:
            self.driver.listen(tracing.effect)
            self._closing.push_async_callback(tracing.close)
        return tracing

    def _watch_canary(self, settings: GatewaySettings) -> None:
        """Counts go on as long as it is the same revision, whatever its weight."""
        canary, counts = settings.canary, self.attainment.canary
        if canary is None:
            self.attainment.canary = None
        elif counts is None or counts.canary.revision != canary.revision:
            self.attainment.canary = CanaryCounts(canary.to_core(), self.driver.director.inventory)
        else:
            counts.canary = canary.to_core()

    def _health_changed(self, change: HealthChange) -> None:
        self.metrics.health_changed(change)
        level = logging.WARNING if change.state is HealthState.EJECTED else logging.INFO
        _log.log(
            level,
            "an endpoint is %s",
            change.state,
            extra={"event": "health", "endpoint": change.endpoint_id, "state": change.state, "reason": change.reason},
        )

    def _ended(self, record: RequestRecord) -> None:
        self.attainment(record)
        self.metrics.request(record)
        self.traffic(record)
        self.demand(record)
        self.live.taking.ended(record)
        if self._tracing is not None:
            self._tracing.ended(record)
        if self.settings.logs.requests:
            self._request_log(record)

    async def _discover(self) -> None:
        discovery = self.settings.discovery
        if discovery.file is not None:
            files = FileDiscovery(Path(discovery.file), self.fleet)
            files.load()
            self.run(files.run())
        elif discovery.kubernetes is not None:
            from ballast_gateway.observe.watch import PodDiscovery, connect

            api = await connect()
            self._closing.push_async_callback(api.close)
            self.run(PodDiscovery(discovery.kubernetes, self.fleet, api).run())
        if self.pod_api is not None and self.settings.peers.kubernetes is not None:
            await self._follow_peers(self.pod_api, self.settings.peers.kubernetes)

    async def _follow_peers(self, pod_api: PodApi, peers: KubernetesPeers) -> None:
        from ballast_gateway.observe.lease import LeaseElection
        from ballast_gateway.observe.peers import PeerPods
        from ballast_gateway.observe.settings_report import SettingsReport
        from ballast_gateway.observe.watch import connect

        api = await connect()
        self._closing.push_async_callback(api.close)
        view = pod_api.view
        self.run(PeerPods(peers.namespace, peers.selector, api, view.follow_peers).run())
        if peers.lease is not None:
            election = LeaseElection(api, peers.namespace, peers.lease, view.me, view.lead)
            self.run(election.run())
            self._closing.push_async_callback(election.release)
            if self.settings_state.hash:
                report = SettingsReport(api, peers.namespace, peers.lease, view.me)
                self.settings_state.on_change = lambda: report.say(
                    self.settings_state.newest_hash, self.settings_state.problem
                )
                self.settings_state.on_change()
                self.run(report.run())
                self._closing.push_async_callback(report.withdraw)

    def run(self, work: Awaitable[None]) -> None:
        """Do this beside all else, until `close`. An error ends the gateway."""

        async def guarded() -> None:
            try:
                await work
            except Exception:
                _log.exception("what follows the fleet or the settings stopped; the gateway ends, to be started anew")
                self.failed.set()

        self._tasks.append(asyncio.create_task(guarded(), context=self._context))

    async def _serve_admin(self, host: str, port: int) -> None:
        token_file = self.settings.admin.token_file

        def build() -> App:
            from ballast_gateway.admin import build_admin

            return build_admin(
                fleet=self.fleet,
                health=self.driver.director.health.report,
                decisions=self.decisions,
                traffic=self.traffic,
                naming_key=_naming_key if self.pod_api is None else self.pod_api.naming_key,
                watch=self.driver.director.watch,
                kv_cache=self._kv_cache,
                view=None if self.pod_api is None else self.pod_api.view.report,
                now_s=self.driver.now_s,
                settings=self.settings_state.report,
                tenants=None if self.keys is None else self.keys.report,
            )

        signature = None if self.pod_api is None else self.pod_api.guard().check
        who_may_ask = WhoMayAsk(None if token_file is None else Path(token_file), signature)
        exposed = Labelled(self.registry, self.whose) if self.whose else self.registry
        director, unix_s = self.driver.director, time.time() - self.driver.now_s()
        light = {
            ATTAINMENT: self.attainment.report,
            DEMAND: self.demand.report,
            PROFILES: lambda: profiles_report(director, now_s=self.driver.now_s(), unix_s=unix_s),
            LOAD: lambda: load_report(director, self.fleet, now_s=self.driver.now_s(), unix_s=unix_s),
        }
        probes = Probes(
            exposed,
            not_ready=self.not_ready,
            who_may_ask=who_may_ask,
            build=build,
            light=light,
            live=self.live,
            hold=lambda host: hold_report(director, self.fleet, host),
        )
        with opening("listeners.admin", host, port):
            server = AdminServer(probes, host, port)
        self.ports["admin"] = server.port
        self._closing.push_async_callback(server.aclose)
        self._closing.callback(self.live.close)


def _naming_key(said: str) -> bytes:
    """Where there is no fleet's token: who knows what was asked for can tell whether a prompt was among the traffic."""
    return blake2b(said.encode(), digest_size=32).digest()


def _bounds(settings: GatewaySettings) -> Bounds:
    kept = settings.traffic
    return Bounds(requests=kept.kept_requests, seconds=kept.kept_s, blocks=kept.kept_blocks)


def _tell_of_watch(effect: Effect, now_s: float) -> None:
    """An effect listener of the driver: people read what the watch thinks."""
    if isinstance(effect, PulseChanged):
        level = logging.INFO if effect.pulse is Pulse.STEADY else logging.WARNING
        extra = {"endpoint": effect.endpoint.id, "pulse": str(effect.pulse), "reason": effect.reason}
        _log.log(level, "the watch changed its mind about an endpoint", extra=extra)
