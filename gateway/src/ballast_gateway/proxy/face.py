"""The proxy face: routes, admission of bodies, and the life of its listener."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ballast_api import wire_names
from ballast_api.gateway_settings import LAST_BYTES_S, GatewaySettings
from ballast_core.model import Request, RequestId
from ballast_core.model.prompt_tokens import PromptTokens
from ballast_gateway import headers, paths, strict_json
from ballast_gateway.clients import Clients, Held
from ballast_gateway.driver import Driver
from ballast_gateway.errors import (
    GATEWAY_LIMITS,
    ApiError,
    deadline_exceeded,
    gateway_shutdown,
    internal_error,
    invalid_api_key,
    invalid_request,
    method_not_allowed,
    model_not_found,
    not_found,
    without_preflight,
)
from ballast_gateway.http.client import UpstreamPool
from ballast_gateway.http.cors import Cors, skips_preflight
from ballast_gateway.http.requests import HttpRequest
from ballast_gateway.http.server import ClientConnection, Work
from ballast_gateway.keys import KeyRing
from ballast_gateway.openai_body import InvalidBody
from ballast_gateway.prompts import PromptFacts, PromptReader
from ballast_gateway.proxy.bodies import Generation, read_generation
from ballast_gateway.proxy.course import Resources
from ballast_gateway.proxy.cutting import Cutter
from ballast_gateway.proxy.fields import is_divisible
from ballast_gateway.proxy.jobs import job_of
from ballast_gateway.proxy.large_bodies import INLINE_BYTES, INLINE_WORK, LargeBodies, Reading
from ballast_gateway.proxy.passing import read_passed
from ballast_gateway.proxy.run import Run
from ballast_gateway.records import RequestRecord
from ballast_gateway.service_classes import ServiceClasses
from ballast_gateway.strict_json import Size
from ballast_gateway.tenants import Account
from ballast_gateway.tls.certificates import Tls
from ballast_gateway.tls.listener import Listening, listening
from ballast_gateway.token_questions import Question
from ballast_gateway.tokenizing import Tokenizing, Waiting
from ballast_gateway.trust import Trusted

if TYPE_CHECKING:
    from ballast_gateway.tracing.exporting import Tracing

_log = logging.getLogger(__name__)

_MODELS = paths.MODELS.encode()
_CHAT = paths.CHAT.encode()
_GENERATIONS = frozenset({paths.COMPLETIONS.encode(), _CHAT})
_HEALTH = paths.HEALTH.encode()
_OWN = {_HEALTH: "GET", _MODELS: "GET", **dict.fromkeys(sorted(_GENERATIONS, reverse=True), "POST")}
_SWEEP_S = 0.25
_BACKLOG = 2048


class ProxyFace:
    """Serves the OpenAI API on one listener. Also what `ClientConnection` calls its server.

    `on_record` gets the record of each request once, when it has ended; `new_id` makes ids for requests without one.
    `max_model_len` is what `/v1/models` says of a model's engines, `not_ready` what `/health` answers from.
    `tokenizing` has the tokens of text prompts, where endpoints report what they cache. `served` are the names that
    clients may ask for, if they are not those of the model alone. `classes` have the objectives of requests, `tracing`
    makes their traces. `keys`: whose requests are served; None: everybody's.
    """

    body_limit_names = GATEWAY_LIMITS

    def __init__(
        self,
        driver: Driver,
        pool: UpstreamPool,
        settings: GatewaySettings,
        *,
        new_id: Callable[[], str],
        created_s: int,
        max_model_len: Callable[[str], int | None] = lambda model: None,
        not_ready: Callable[[], list[str]] = list,
        tokenizing: Tokenizing | None = None,
        on_record: Callable[[RequestRecord], None] = lambda record: None,
        served: Collection[str] | None = None,
        classes: ServiceClasses | None = None,
        tracing: Tracing | None = None,
        keys: KeyRing | None = None,
    ) -> None:
        limits = settings.limits
        self.clients = Clients(
            most_bytes=limits.max_bodies_bytes,
            most_client_bytes=limits.max_client_bodies_bytes,
            most_client_connections=limits.max_client_connections,
            trusted_hops=limits.trusted_hops,
            tenant_of=lambda lines: self._trusted.tenant(partial(headers.first, lines)),
        )
        self.connections: set[ClientConnection] = set()
        self.closing = False
        self._stopping = False
        """No further request is served."""
        self._ended_all = asyncio.Event()
        """Set at each end after which no generation is in flight."""
        self._emptied = asyncio.Event()
        self.in_flight = 0
        """Generations that have not ended."""
        self._driver = driver
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._new_id = new_id
        self._on_record = on_record
        self._keys = keys
        self._created_s = created_s
        self._max_model_len = max_model_len
        self._not_ready = not_ready
        self._classes = ServiceClasses() if classes is None else classes
        self._tracing = tracing
        self.use(settings, tokenizing=tokenizing, served=served)
        self._large = LargeBodies[_Read | InvalidBody](self._loop)
        self._server: Listening | None = None
        self._sweeper: asyncio.TimerHandle | None = None

    def use(
        self, settings: GatewaySettings, *, tokenizing: Tokenizing | None = None, served: Collection[str] | None = None
    ) -> None:
        """Serve requests that come from now on by these settings, and by what the driver's policies ask for. Who is
        served, drains and the longest body stay as they were. The arguments are those of the face's making."""
        limits, abilities = settings.limits, self._driver.abilities
        self.max_header_bytes = limits.max_header_bytes
        self.max_body_bytes = limits.max_body_bytes
        self.max_text_body_bytes = limits.max_text_body_bytes
        self.request_timeout_s = limits.request_timeout_s
        self.body_timeout_s = limits.body_timeout_s
        self.min_body_bytes_per_s = limits.min_body_bytes_per_s
        self.keep_alive_timeout_s = limits.keep_alive_timeout_s
        self.client_stall_timeout_s = limits.client_stall_timeout_s
        self.clients.use(
            most_bytes=limits.max_bodies_bytes,
            most_client_bytes=limits.max_client_bodies_bytes,
            most_client_connections=limits.max_client_connections,
            trusted_hops=limits.trusted_hops,
        )
        self.cors = Cors(settings.cors_origins) if settings.cors_origins else None
        self._deadline_s = limits.deadline_s
        self._served: Collection[str] = settings.model.served_names if served is None else served
        self._default_model = settings.model.served_names[0]
        passed = sorted(path.encode() for path in paths.PASSED.union(settings.extra_paths))
        self._allowed = {**_OWN, **{path: "POST" for path in passed if path not in _OWN}}
        self._known = tuple(path.decode() for path in self._allowed)
        self._tokenizing = tokenizing
        self._prompts = PromptReader(abilities.beliefs, wants_tokens=tokenizing is not None)
        self._trusted = Trusted(settings.trust)
        own_turns = abilities.sets_priority or not self._trusted.priorities
        checked = headers.KEYS if self._keys is not None else ()
        traced = () if self._tracing is None else headers.TRACE_CONTEXT  # each leg has its own
        self._not_forwarded = (*((headers.PRIORITY,) if own_turns else ()), *checked, *traced)
        self._resources = Resources(
            self._pool,
            self._loop,
            Cutter(self._pool, self._loop, prefill_timeout_s=limits.prefill_timeout_s),
            self._driver.life_signs,
            prefill_timeout_s=limits.prefill_timeout_s,
            idle_timeout_s=limits.idle_timeout_s,
            rescue=settings.streams.rescue,
        )
        self._moves = abilities.moves
        self._cuts = abilities.cuts
        self._holds = self._moves or settings.streams.rescue

    # --- life -------------------------------------------------------------------------------------------------------

    async def listen(self, host: str, port: int, *, tls: Tls | None = None, shared: bool = False) -> int:
        """Open the listener, without `tls` for HTTP only; port 0 takes a free one. `shared`: with other processes that
        listen there. Returns the port. Raises `OSError`."""
        self._server = await listening(self._connect, host, port, backlog=_BACKLOG, tls=tls, shared=shared)
        self._sweep()
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    def _connect(self) -> ClientConnection:
        return ClientConnection(self, self._loop)

    def _sweep(self) -> None:
        self._sweeper = self._loop.call_later(_SWEEP_S, self._sweep)  # first: a fault below must not be the last sweep
        now_s = self._loop.time()
        for connection in list(self.connections):
            connection.sweep(now_s)
        self._pool.sweep(now_s)

    def prepare_drain(self) -> None:
        """Close connections that wait for a further request; those that have one close with its answer."""
        self.closing = True
        for connection in list(self.connections):
            connection.close_if_idle(fresh=False)

    async def drain(self, timeout_s: float) -> bool:
        """Let running requests end, refuse new ones; then `shut_down`. Returns False if that cut one off."""
        self.prepare_drain()
        self._stopping = True
        for connection in list(self.connections):
            connection.close_if_idle(fresh=True)
        ends_s = self._loop.time() + timeout_s
        if self.in_flight:
            self._ended_all.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ended_all.wait(), timeout_s)
        cut = self.in_flight
        await self.shut_down(flush_s=max(LAST_BYTES_S, ends_s - self._loop.time()))
        return cut == 0

    async def shut_down(self, flush_s: float = LAST_BYTES_S) -> None:
        """Tell the clients of running requests that the gateway ends, and stop listening.

        `flush_s`: how long clients may take for what is left of their answers.
        """
        self._tell_all()
        if self.connections:
            self._emptied.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._emptied.wait(), flush_s)
        self._abort_all()

    async def close(self) -> None:
        """Close the listener and every connection at once."""
        self._tell_all()
        self._abort_all()
        await asyncio.sleep(0)
        self._large.close()
        if self._sweeper is not None:
            self._sweeper.cancel()

    def _tell_all(self) -> None:
        self.closing = self._stopping = True
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.shut_down(gateway_shutdown())

    def _abort_all(self) -> None:
        for connection in list(self.connections):
            connection.abort()

    # --- requests ---------------------------------------------------------------------------------------------------

    def handle(self, client: ClientConnection, request: HttpRequest) -> Work | None:
        """Answer at once, or return what will. Never raises."""
        path = _path(request.target)
        record = RequestRecord(id=self._id_of(request), arrived_s=self._driver.now_s(), path=path.decode("latin-1"))
        if self._stopping:
            self._refuse(client, record, gateway_shutdown(), outcome="rejected")
            return None
        try:
            return self._route(client, request, path, record)
        except Exception:
            _log.exception("a request handler failed", extra={"request_id": record.id})
            self._refuse(client, record, internal_error(), outcome="failed")
            return None

    def disconnected(self, client: ClientConnection) -> None:
        """A connection is gone."""
        self.connections.discard(client)
        if not self.connections:
            self._emptied.set()

    def refused(self, error: ApiError) -> None:
        """Bytes that made no request were refused."""
        now_s = self._driver.now_s()
        record = RequestRecord(id="", arrived_s=now_s, ended_s=now_s, status=error.status)
        outcome = "rejected" if error.retry_after_s else "invalid"
        record.outcome, record.reason, record.detail = outcome, error.code, error.for_log
        self._on_record(record)

    def _route(self, client: ClientConnection, request: HttpRequest, path: bytes, record: RequestRecord) -> Work | None:
        allowed = self._allowed.get(path)
        method = request.method.decode("latin-1")
        preflight = None if self.cors is None or allowed is None else self.cors.preflight(request, allowed)
        if preflight is not None:
            client.respond(200, preflight, b"")
        elif allowed is None:
            record.path = ""  # what clients write is not repeated in metrics
            self._refuse(client, record, not_found(path[:200].decode("latin-1"), self._known))
        elif method != allowed and not (allowed == "GET" and method == "HEAD"):
            self._refuse(client, record, method_not_allowed(method, path.decode(), allowed), allow=allowed)
        elif self._keys is not None and path != _HEALTH and self._keys.tenant(request.headers) is None:
            self._refuse(client, record, invalid_api_key())
        elif path == _MODELS:
            models = _models_body(self._served, self._created_s, self._max_model_len)
            record.status, record.outcome = 200, "answered"
            client.respond(
                200, [(b"content-type", b"application/json"), (headers.REQUEST_ID, record.id.encode())], models
            )
            self._ended(record)
        elif allowed == "POST" and skips_preflight(request.headers, self.cors):
            self._refuse(client, record, without_preflight())
        elif path == _HEALTH:
            client.respond(503 if self._not_ready() else 200, (), b"")  # load balancers ask often: no entry in the log
        else:
            return self._admit(client, request, path, record)
        return None

    def _admit(self, client: ClientConnection, request: HttpRequest, path: bytes, record: RequestRecord) -> Work | None:
        """Read the body, here or on the thread for large ones, and book its memory."""
        body = request.body
        try:
            asked_s = headers.deadline_s(request.headers)
        except ValueError as error_:
            self._refuse(client, record, invalid_request(str(error_), param=wire_names.DEADLINE))
            return None
        deadline_s = min((each for each in (asked_s, self._deadline_s) if each is not None), default=None)
        if self._tracing is not None:
            record.trace = self._tracing.begin_by(request.headers)
        held = self.clients.hold(self.clients.names(client.address, request.headers))
        size = strict_json.measure(body) if len(body) <= INLINE_BYTES else None
        error = held.set(2 * len(body) if size is None else size.held_bytes)
        if error is not None:
            self._refuse(client, record, error, outcome="rejected")
            return None
        ask = _Ask(client, request, path, record, held, deadline_s)
        try:
            return self._booked(ask, size)
        except Exception:
            held.set(0)
            raise

    def _booked(self, ask: _Ask, size: Size | None) -> Work | None:
        """Read the body, whose memory is booked."""
        path, body = ask.path, ask.request.body
        if size is not None and size.work <= INLINE_WORK:
            try:
                generation = self._read(path, body, size)
            except InvalidBody as error:
                self._refuse_body(ask, error)
                return None
            return self._admitted(ask, generation, None)
        pending = _Pending(self, ask)
        pending.reading = self._large.read(ask.held.names, lambda: self._read_large(path, body), pending.read)
        return pending

    def _read(self, path: bytes, body: bytes, size: Size) -> Generation:
        """What a body asks for. Raises `InvalidBody`."""
        dropped, model = self._trusted.dropped_fields, self._default_model
        if path in _GENERATIONS:
            return read_generation(body, chat=path == _CHAT, default_model=model, dropped=dropped, size=size)
        return read_passed(body, path=path.decode(), default_model=model, dropped=dropped, size=size)

    def _read_large(self, path: bytes, body: bytes) -> _Read | InvalidBody:
        """On the thread."""
        size = strict_json.measure(body)
        try:
            generation = self._read(path, body, size)
        except InvalidBody as error:
            return error.bare()  # the raised one holds frames, and these the body
        return _Read(generation, size, self._prompts.blocks(generation.document, generation.model))

    def _refuse_body(self, ask: _Ask, error: InvalidBody) -> None:
        ask.held.set(0)
        self._refuse(ask.client, ask.record, invalid_request(str(error), param=error.param, quoteless=error.problem))

    def _admitted(self, ask: _Ask, generation: Generation, blocks: tuple[int, ...] | None) -> Work | None:
        client, record = ask.client, ask.record
        if ask.deadline_s is not None and self._driver.now_s() - record.arrived_s >= ask.deadline_s:
            ask.held.set(0)
            self._refuse(client, record, deadline_exceeded(ask.deadline_s), outcome="failed")
            return None
        if generation.model not in self._served:
            ask.held.set(0)
            self._refuse(client, record, model_not_found(generation.model[:200], self._served))
            return None
        record.model, record.stream = generation.model, generation.stream
        record.prompt_tokens = generation.prompt_tokens
        account = None
        if self._keys is not None:
            tenant = self._keys.tenant(ask.request.headers)
            record.tenant = self._keys.name_for_logs(tenant)
            refusal = invalid_api_key() if tenant is None else tenant.begin(generation.prompt_tokens)
            if refusal is not None:  # a key may be revoked while a large body is read
                ask.held.set(0)
                self._refuse(client, record, refusal, outcome="invalid" if tenant is None else "rejected")
                return None
            assert tenant is not None
            account = Account(tenant, generation.prompt_tokens)
        objective = headers.objective(ask.request.headers)
        facts = self._prompts.read(generation.document, model=generation.model, objective=objective, blocks=blocks)
        generate = partial(self._generate, ask, generation, facts, account)
        if isinstance(facts.tokens, Question) and self._tokenizing is not None:
            waits = _Tokenized(self, ask, account, generate)
            found = self._tokenizing.find(facts.tokens, waits.found)
            if isinstance(found, Waiting):
                waits.waiting = found
                return waits
            waits.waits_no_more()
            return generate(found)
        return generate(facts.tokens if isinstance(facts.tokens, PromptTokens) else None)

    def _generate(
        self,
        ask: _Ask,
        generation: Generation,
        facts: PromptFacts,
        account: Account | None,
        tokens: PromptTokens | None,
    ) -> Run:
        client, request, path, record, memory, deadline_s = ask
        if self._driver.in_flight(RequestId(record.id)):
            record.id = self._new_id()  # engines and the Director need ids that are unique
        id_line = b"%b: %b\r\n" % (headers.REQUEST_ID, record.id.encode())
        header = partial(headers.first, request.headers)
        forwarded = headers.to_engine(request.headers, without=self._not_forwarded) + id_line
        job = job_of(client, path, forwarded, generation, record, resources=self._resources, holds=self._holds)
        generation, held = job.generation, job.held
        movable = self._moves and held is not None
        objective = record.objective = self._classes.objective(generation.model, header)
        record.asked = Request(
            id=RequestId(record.id),
            prompt_tokens=facts.count(tokens, generation.prompt_tokens),
            max_output_tokens=generation.max_output_tokens,
            model=generation.model,
            block_hashes=facts.block_hashes,
            block_size=facts.block_size,
            tokens=tokens,
            traffic_class=facts.traffic_class,
            priority=self._trusted.priority(
                header, generation.priority, 0 if objective is None else objective.priority
            ),
            ttft_objective_s=None if objective is None else objective.ttft_s,
            objective="" if objective is None else objective.name,
            tenant=self._trusted.tenant(header) if account is None else account.tenant,
            movable=movable,
            divisible=self._cuts and is_divisible(generation),
        )
        if self._tracing is not None and record.trace is not None:
            self._tracing.expect(record.asked.id, record.trace)
        ticket = self._driver.open(record.asked)
        self.in_flight += 1
        over = partial(self._over, memory=memory, account=account)
        waited_s = self._driver.now_s() - record.arrived_s
        run = Run(
            *(self._resources, job, ticket), movable=movable, deadline_s=deadline_s, waited_s=waited_s, on_over=over
        )
        run.start()
        return run

    def _over(self, record: RequestRecord, memory: Held, account: Account | None) -> None:
        self.in_flight -= 1
        if account is not None:
            account.end(record.output_tokens, read=record.dispatches > 0)
        memory.set(0)
        if not self.in_flight:
            self._ended_all.set()
        self._ended(record)

    def _refuse(
        self,
        client: ClientConnection,
        record: RequestRecord,
        error: ApiError,
        *,
        outcome: str = "invalid",
        allow: str = "",
    ) -> None:
        record.status, record.outcome, record.reason, record.detail = error.status, outcome, error.code, error.for_log
        if error.quoteless is not None:
            _log.debug("a request was refused", extra={"request_id": record.id, "error": error.message})
        extra = ((headers.REQUEST_ID, record.id.encode()), *(((b"allow", allow.encode()),) if allow else ()))
        client.respond_error(error, extra)
        self._ended(record)

    def _ended(self, record: RequestRecord) -> None:
        record.ended_s = self._driver.now_s()
        self._on_record(record)

    def _id_of(self, request: HttpRequest) -> str:
        return headers.request_id(request.headers) or self._new_id()


class _Ask(NamedTuple):
    """A request to generate, before its body is read."""

    client: ClientConnection
    request: HttpRequest
    path: bytes
    record: RequestRecord
    held: Held
    deadline_s: float | None
    """Seconds from its arrival."""


class _Read(NamedTuple):
    """What the thread has read."""

    generation: Generation
    size: Size
    blocks: tuple[int, ...]


class _Later:
    """A request that is not placed yet; later, whose generation runs."""

    def __init__(self, face: ProxyFace, ask: _Ask) -> None:
        self._face = face
        self._ask = ask
        self._run: Work | None = None
        self._deadline: asyncio.TimerHandle | None = None
        if ask.deadline_s is not None:
            left_s = ask.deadline_s - (face._driver.now_s() - ask.record.arrived_s)
            self._deadline = face._resources.loop.call_later(left_s, self._expired, ask.deadline_s)

    def _expired(self, deadline_s: float) -> None:
        """The time of the request is over before it was placed."""
        self._drop()
        self._face._refuse(self._ask.client, self._ask.record, deadline_exceeded(deadline_s), outcome="failed")

    def waits_no_more(self) -> None:
        """From now on its run keeps the deadline, if there is one."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def client_gone(self) -> None:
        """The client has closed its connection."""
        if self._run is not None:
            self._run.client_gone()
            return
        self._drop()
        record = self._ask.record
        record.outcome, record.reason = "cancelled", "client-gone"
        self._face._ended(record)

    def shut_down(self) -> None:
        """The gateway ends."""
        if self._run is not None:
            self._run.shut_down()
        else:
            self._drop()
            self._face._refuse(self._ask.client, self._ask.record, gateway_shutdown(), outcome="rejected")

    def _drop(self) -> None:
        """Give back what it holds, before it was placed."""
        self.waits_no_more()
        self._ask.held.set(0)


class _Pending(_Later):
    """Its body is on the thread."""

    reading: Reading[_Read | InvalidBody] | None = None

    def read(self, outcome: asyncio.Future[_Read | InvalidBody]) -> None:
        """Take what the thread has read, or why it could not. Never raises."""
        face, ask = self._face, self._ask
        self.waits_no_more()
        self.reading = None  # which knows this method: a circle would keep the body until a full collection
        try:
            found = outcome.result()
            if isinstance(found, InvalidBody):
                face._refuse_body(ask, found)
                return
            error = ask.held.set(found.size.held_bytes)
            if error is not None:
                ask.held.set(0)
                face._refuse(ask.client, ask.record, error, outcome="rejected")
            else:
                self._run = face._admitted(ask, found.generation, found.blocks)
        except Exception:
            _log.exception("a large body could not be read", extra={"request_id": ask.record.id})
            ask.held.set(0)
            face._refuse(ask.client, ask.record, internal_error(), outcome="failed")

    def _drop(self) -> None:
        if self.reading is not None:
            self.reading.dropped = True
            self.reading = None
        super()._drop()


class _Tokenized(_Later):
    """It waits for the tokens of its prompt."""

    waiting: Waiting | None = None

    def __init__(
        self, face: ProxyFace, ask: _Ask, account: Account | None, generate: Callable[[PromptTokens | None], Run]
    ) -> None:
        super().__init__(face, ask)
        self._account = account
        self._generate = generate

    def found(self, tokens: PromptTokens | None) -> None:
        """Go on with these tokens, or without."""
        self.waits_no_more()
        self.waiting = None
        self._run = self._generate(tokens)

    def _drop(self) -> None:
        if self.waiting is not None:
            self.waiting.drop()
            self.waiting = None
        if self._account is not None:
            self._account.end(0, read=False)
        super()._drop()


def _path(target: bytes) -> bytes:
    """The path of a request target in origin or absolute form (RFC 9112 section 3.2), without its query."""
    if not target.startswith(b"/"):
        scheme, separator, rest = target.partition(b"://")
        if separator and scheme.lower() in (b"http", b"https"):
            target = b"/" + rest.partition(b"/")[2]
    return target.partition(b"?")[0]


def _models_body(served: Iterable[str], created_s: int, max_model_len: Callable[[str], int | None]) -> bytes:
    """As vLLM answers; a model without `max_model_len` where no engine has said it."""
    data = []
    for name in served:
        limit = max_model_len(name)
        card = {"id": name, "object": "model", "created": created_s, "owned_by": "ballast"}
        data.append(card if limit is None else card | {"max_model_len": limit})
    return json.dumps({"object": "list", "data": data}).encode()
