"""The agent's listener: who holds what, and what is refused before it is held."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from ballast_api import wire_names
from ballast_core.model import Role
from ballast_gateway import headers, paths, strict_json
from ballast_gateway.agent.connections import AgentConnection
from ballast_gateway.agent.metrics import Counts
from ballast_gateway.agent.passing import CONTROL, Links
from ballast_gateway.agent.places import Places
from ballast_gateway.agent.planned import PlannedTicket, plan_of_llmd, request_of
from ballast_gateway.agent.settings import MOST_TEXT_MIB, AgentSettings
from ballast_gateway.clients import Clients, Held
from ballast_gateway.errors import (
    ApiError,
    BodyLimitNames,
    gateway_shutdown,
    internal_error,
    invalid_request,
    not_found,
)
from ballast_gateway.http.client import UpstreamPool
from ballast_gateway.http.cors import Cors
from ballast_gateway.http.requests import HttpRequest
from ballast_gateway.http.server import ClientConnection, Work
from ballast_gateway.life_signs import LifeSigns
from ballast_gateway.openai_body import CONTROL_FIELDS, InvalidBody
from ballast_gateway.podapi.feed import Feed
from ballast_gateway.podapi.plan import Place, Plan, PlanRefused, verify
from ballast_gateway.proxy.bodies import Generation, read_generation
from ballast_gateway.proxy.course import Resources
from ballast_gateway.proxy.cutting import Cutter
from ballast_gateway.proxy.jobs import job_of
from ballast_gateway.proxy.large_bodies import INLINE_BYTES, INLINE_WORK, LargeBodies, Reading
from ballast_gateway.proxy.passing import read_passed
from ballast_gateway.proxy.run import Run
from ballast_gateway.records import RequestRecord
from ballast_gateway.strict_json import Size

if TYPE_CHECKING:
    from ballast_gateway.tracing.exporting import Tracing

_log = logging.getLogger(__name__)

_GENERATIONS: Final = frozenset({paths.COMPLETIONS.encode(), paths.CHAT.encode()})
_HELD: Final = _GENERATIONS | {path.encode() for path in paths.PASSED}
_PLAN: Final = wire_names.PLAN.encode()
_PREFILLER: Final = wire_names.PREFILLER.encode()
_SWEEP_S: Final = 0.25
_BACKLOG: Final = 2048
_MANY: Final = 1 << 30
"""Clients come through few proxies: what one address may have is no bound here."""


def plan_refused(reason: str) -> ApiError:
    """A plan that is not to be followed: 403."""
    message = f"the plan of this request is refused: {reason}"
    return ApiError(status=403, type="invalid_request_error", code="plan-refused", message=message)


def not_planned_here(name: str) -> ApiError:
    """A plan that does not name this place: 421."""
    message = f"the plan of this request does not name {name} among its decode endpoints"
    return ApiError(status=421, type="invalid_request_error", code="not-planned-here", message=message)


def held_already(key: str) -> ApiError:
    """The request is held, and its plan was sent again: 409."""
    message = f"request {key} is held here already"
    return ApiError(status=409, type="invalid_request_error", code="held-already", message=message)


class HeldRequest(NamedTuple):
    """One that is held."""

    run: Run
    ticket: PlannedTicket


class AgentFace:
    """Serves on one listener. Also what `AgentConnection` calls its server."""

    max_header_bytes = 64 * 1024
    body_limit_names = BodyLimitNames(
        "this agent's --max-body-mib", f"this agent's --max-body-mib, {MOST_TEXT_MIB} at most without media"
    )
    request_timeout_s = 30.0
    body_timeout_s = 300.0
    min_body_bytes_per_s = 1024
    keep_alive_timeout_s = 3700.0
    """Longer than Envoy keeps idle connections by default, so that it never sends on one that we close."""
    client_stall_timeout_s = 300.0
    cors: Cors | None = None

    def __init__(
        self,
        settings: AgentSettings,
        places: Places,
        feed: Feed,
        *,
        tokens: Callable[[], tuple[bytes, ...]],
        unix_s: Callable[[], float] = time.time,
        tracing: Tracing | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.max_body_bytes = settings.max_body_bytes
        self.max_text_body_bytes = settings.max_text_body_bytes
        self.clients = Clients(
            most_bytes=settings.max_bodies_bytes,
            most_client_bytes=settings.max_bodies_bytes,
            most_client_connections=_MANY,
        )
        self.connections: set[ClientConnection] = set()
        self.closing = False
        self.draining = False
        """No further plan is taken."""
        self.held: dict[str, HeldRequest] = {}
        """By key."""
        self.passing = 0
        self.counts = Counts()
        self.tracing = tracing
        self.life_signs = LifeSigns()
        self.places = places
        self.pool = UpstreamPool(loop, connect_timeout_s=settings.connect_timeout_s)
        self.links = Links(loop, settings.engine, connect_timeout_s=settings.connect_timeout_s)
        self._own = Place(places.name, places.address, Role.DECODE)
        self._trusts = settings.trust_prefiller_header
        self.not_passed_on = frozenset({_PLAN, _PREFILLER}) if self._trusts else CONTROL
        self._feed = feed
        self._tokens = tokens
        self._unix_s = unix_s
        self._loop = loop
        self._resources = Resources(
            self.pool,
            loop,
            Cutter(self.pool, loop, prefill_timeout_s=settings.prefill_timeout_s),
            self.life_signs,
            prefill_timeout_s=settings.prefill_timeout_s,
            idle_timeout_s=settings.idle_timeout_s,
            rescue=settings.rescue,
        )
        self._large = LargeBodies[Generation | InvalidBody](loop)
        self._idle = asyncio.Event()
        self._emptied = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None

    # --- life -------------------------------------------------------------------------------------------------------

    async def listen(self, host: str, port: int) -> int:
        """Open the listener; port 0 takes a free one. Returns the port. Raises `OSError`."""
        self._server = await self._loop.create_server(self._connect, host, port, backlog=_BACKLOG)
        self._sweep()
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    def _connect(self) -> ClientConnection:
        return AgentConnection(self, self._loop)

    def _sweep(self) -> None:
        now_s = self._loop.time()
        for connection in list(self.connections):
            connection.sweep(now_s)
        self.pool.sweep(now_s)
        self.links.sweep()
        self._sweeper = self._loop.call_later(_SWEEP_S, self._sweep)

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until nothing is held or passed on; False if that took too long."""
        ends_s = self._loop.time() + timeout_s
        while self.held or self.passing:
            self._idle.clear()
            try:
                await asyncio.wait_for(self._idle.wait(), max(0.0, ends_s - self._loop.time()))
            except TimeoutError:
                return not (self.held or self.passing)
        return True

    async def shut_down(self, flush_s: float) -> None:
        """End what runs, telling why, and stop listening. `flush_s`: how long clients may take for what is left."""
        self.closing = True
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.shut_down(gateway_shutdown())
        if self.connections:
            self._emptied.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._emptied.wait(), flush_s)
        for connection in list(self.connections):
            connection.abort()
        await asyncio.sleep(0)
        self._large.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        self.pool.close()
        self.links.drop()

    # --- called by connections --------------------------------------------------------------------------------------

    def holds(self, head: bytes) -> bool:
        """Whether a request with this head, in lower case, is held."""
        if b"\nx-ballast-plan:" not in head and not (self._trusts and b"\nx-prefiller-host-port:" in head):
            return False
        method, _, rest = head.partition(b" ")
        return method == b"post" and _path(rest.partition(b" ")[0]) in _HELD

    def passage(self, change: int) -> None:
        """So many more requests are passed on now."""
        self.passing += change
        if change > 0:
            self.counts.passed += 1
        self._look_idle()

    def disconnected(self, client: ClientConnection) -> None:
        """A connection is gone."""
        self.connections.discard(client)
        if not self.connections:
            self._emptied.set()

    def refused(self, error: ApiError) -> None:
        """Bytes that made no request, or none that is passed on."""
        self.counts.refuse(error.code)

    def handle(self, client: ClientConnection, request: HttpRequest) -> Work | None:
        """Hold a request: answer at once, or return what will. Never raises."""
        try:
            return self._handle(client, request)
        except Exception:
            _log.exception("a request handler failed")
            self._refuse(client, internal_error())
            return None

    def _handle(self, client: ClientConnection, request: HttpRequest) -> Work | None:
        path = _path(request.target)
        if path not in _HELD:
            self._refuse(client, not_found(path[:200].decode("latin-1")))
            return None
        plan = self._plan(request)
        if isinstance(plan, ApiError):
            self._refuse(client, plan)
            return None
        body = request.body
        held = self.clients.hold(self.clients.names(client.address, request.headers))
        size = strict_json.measure(body) if len(body) <= INLINE_BYTES else None
        error = held.set(2 * len(body) if size is None else size.held_bytes)
        if error is not None:
            self._refuse(client, error)
            return None
        ask = _Ask(client, request, path, plan, held)
        try:
            return self._booked(ask, size)
        except Exception:
            held.set(0)
            raise

    def _booked(self, ask: _Ask, size: Size | None) -> Work | None:
        """Read the body, whose memory is booked."""
        if size is not None and size.work <= INLINE_WORK:
            try:
                generation = _read(ask, size)
            except InvalidBody as error:
                self._refuse_body(ask, error)
                return None
            return self._hold(ask, generation)
        pending = _Pending(self, ask)
        pending.reading = self._large.read(ask.held.names, lambda: _read_large(ask), pending.read)
        return pending

    def _plan(self, request: HttpRequest) -> Plan | ApiError:
        values = [value for name, value in request.headers if name == _PLAN]
        if values:
            try:
                if len(values) > 1:
                    raise PlanRefused("there are two")
                plan = verify(values[0].decode("latin-1"), self._tokens(), self._unix_s())
            except PlanRefused as refusal:
                return plan_refused(str(refusal))
            if not any(self.places.is_own(place) for place in (plan.decode, *plan.fallbacks)):
                return not_planned_here(self.places.name)
        else:
            prefillers = [value for name, value in request.headers if name == _PREFILLER] if self._trusts else []
            if not prefillers:
                return invalid_request("send a request without a plan after the last one's answer", code="bad-http")
            plan = self._llmd(prefillers[0], headers.request_id(request.headers))
        if self.draining:
            return gateway_shutdown()
        return held_already(plan.key) if plan.key in self.held else plan

    def _llmd(self, prefillers: bytes, request_id: str | None) -> Plan:
        """llm-d's way: one of a list, each time another one."""
        chosen = random.choice(prefillers.decode("latin-1").split(",")).strip()
        given = request_id or secrets.token_hex(16)
        plan = plan_of_llmd(given, self._own, chosen, self.places.name)
        if plan.key in self.held:
            plan = plan_of_llmd(secrets.token_hex(16), self._own, chosen, self.places.name)
        return plan

    def _hold(self, ask: _Ask, generation: Generation) -> Run | None:
        client, request, path, plan, memory = ask
        if plan.key in self.held:  # meanwhile
            self._drop(ask, held_already(plan.key))
            return None
        try:
            deadline_s = headers.deadline_s(request.headers)
        except ValueError as error:
            self._drop(ask, invalid_request(str(error), param=wire_names.DEADLINE))
            return None
        record = RequestRecord(
            id=headers.request_id([(headers.REQUEST_ID, plan.id.encode())]) or secrets.token_hex(16),
            arrived_s=time.monotonic(),
            path=path.decode("latin-1"),
            stream=generation.stream,
        )
        not_forwarded: tuple[bytes, ...] = (headers.PRIORITY,) if plan.priority is not None else ()
        if self.tracing is not None:
            record.model = plan.model
            record.trace = self.tracing.begin_by(request.headers)
            not_forwarded += headers.TRACE_CONTEXT
        id_line = b"%b: %b\r\n" % (headers.REQUEST_ID, record.id.encode())
        forwarded = headers.to_engine(request.headers, without=not_forwarded) + id_line
        job = job_of(client, path, forwarded, generation, record, resources=self._resources, holds=True)
        record.prompt_tokens = job.generation.prompt_tokens
        asked = request_of(plan, job.generation, movable=job.held is not None)
        ticket = PlannedTicket(plan, asked, self.places, self._feed, lambda: record.status)
        run = Run(
            self._resources,
            job,
            ticket,
            movable=job.held is not None,
            deadline_s=deadline_s,
            on_over=lambda record: self._over(record, ticket.key, memory),
        )
        self.held[plan.key] = HeldRequest(run, ticket)
        run.start()
        return run

    def _over(self, record: RequestRecord, key: str, memory: Held) -> None:
        self.held.pop(key, None)
        memory.set(0)
        record.ended_s = time.monotonic()
        self.counts.ended(record)
        if self.tracing is not None:
            self.tracing.ended(record)
        self._look_idle()

    def _look_idle(self) -> None:
        if not (self.held or self.passing):
            self._idle.set()

    def _refuse(self, client: ClientConnection, error: ApiError) -> None:
        self.counts.refuse(error.code)
        client.respond_error(error)

    def _refuse_body(self, ask: _Ask, error: InvalidBody) -> None:
        self._drop(ask, invalid_request(str(error), param=error.param, quoteless=error.problem))

    def _drop(self, ask: _Ask, error: ApiError) -> None:
        ask.held.set(0)
        self._refuse(ask.client, error)


class _Ask(NamedTuple):
    """A planned request before its body is read."""

    client: ClientConnection
    request: HttpRequest
    path: bytes
    plan: Plan
    held: Held


class _Pending:
    """Its body is on the thread; then its generation runs."""

    def __init__(self, face: AgentFace, ask: _Ask) -> None:
        self.reading: Reading[Generation | InvalidBody] | None = None
        self._face = face
        self._ask = ask
        self._run: Run | None = None

    def read(self, outcome: asyncio.Future[Generation | InvalidBody]) -> None:
        """Take what the thread has read. Never raises."""
        face, ask = self._face, self._ask
        self.reading = None  # which knows this method: a circle would keep the body until a full collection
        try:
            found = outcome.result()
            if isinstance(found, InvalidBody):
                face._refuse_body(ask, found)
            else:
                self._run = face._hold(ask, found)
        except Exception:
            _log.exception("a large body could not be read")
            face._drop(ask, internal_error())

    def client_gone(self) -> None:
        """The client has closed its connection."""
        if self._run is not None:
            self._run.client_gone()
        else:
            self._forget()

    def shut_down(self) -> None:
        """The agent ends."""
        if self._run is not None:
            self._run.shut_down()
        else:
            self._forget()
            self._face._refuse(self._ask.client, gateway_shutdown())

    def _forget(self) -> None:
        if self.reading is not None:
            self.reading.dropped = True
            self.reading = None
        self._ask.held.set(0)


def _read(ask: _Ask, size: Size) -> Generation:
    """Raises `InvalidBody`."""
    path, body, model = ask.path.decode(), ask.request.body, ask.plan.model
    if ask.path in _GENERATIONS:
        return read_generation(body, chat=path == paths.CHAT, default_model=model, dropped=CONTROL_FIELDS, size=size)
    return read_passed(body, path=path, default_model=model, dropped=CONTROL_FIELDS, size=size)


def _read_large(ask: _Ask) -> Generation | InvalidBody:
    """On the thread."""
    try:
        return _read(ask, strict_json.measure(ask.request.body))
    except InvalidBody as error:
        return error.bare()


def _path(target: bytes) -> bytes:
    return target.partition(b"?")[0]
