"""The server: routes, admission, hand-offs, shutting down."""

import asyncio
import json
import logging
import socket
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ballast_sim.engine import EngineEvent, EngineRequest, Finished, StepEnded
from ballast_sim.engine_sim import handoff
from ballast_sim.engine_sim.bodies import (
    BUSY,
    ApiError,
    Call,
    chat_text,
    check_ids,
    check_model,
    parse_call,
    parse_json,
)
from ballast_sim.engine_sim.door import Door
from ballast_sim.engine_sim.embeddings import Embedding, Gathering, check_format, inputs
from ballast_sim.engine_sim.http11 import Exchange, HttpProtocol, Request
from ballast_sim.engine_sim.metrics import Metrics
from ballast_sim.engine_sim.options import ServerOptions, describe, model_root
from ballast_sim.engine_sim.responses import StreamedResponse, WholeResponse, as_chat
from ballast_sim.engine_sim.service import Clock, EngineService, LoopClock
from ballast_sim.engine_sim.streams import Answer, StreamedAnswer, WholeAnswer
from ballast_sim.engine_sim.text import GeneratedContent, detokenize, tokenize

if TYPE_CHECKING:
    from ballast_sim.engine_sim.kv_events import KvPublisher
    from ballast_sim.engine_sim.misbehave.saboteur import Saboteur

VLLM_VERSION = "0.32.0"
_PROMETHEUS_TEXT = b"text/plain; version=1.0.0; charset=utf-8"
_BACKLOG = "The engine has reached its prefill token backlog limit. Please try again later or on a different instance."

logger = logging.getLogger("ballast.engine_sim")


class ListenError(Exception):
    """A port that cannot be had; the message names the option and the address."""

    def __init__(self, option: str, host: str, port: int, error: OSError) -> None:
        """`option` is the flag or variable that chose the port."""
        super().__init__(f"{option}: cannot listen on {host}:{port}: {error.strerror or error}")


class EngineSimServer:
    """One server on one event loop. `start`, then `stop`; `port` is known in between."""

    def __init__(
        self, options: ServerOptions, clock: Clock | None = None, observe: Callable[[EngineEvent], None] | None = None
    ) -> None:
        """Inside a running loop. `clock` replaces the loop's; `observe` gets every engine event."""
        self.options = options
        self.config = options.engine_config()
        loop = asyncio.get_running_loop()
        self._observe = observe
        self._saboteur, clock = self._misbehaving(clock or LoopClock(loop))
        self.service = EngineService(self.config, clock, options.time_scale, self._on_event)
        self._started_s = time.time()
        transfer = options.kv_transfer
        self.metrics = Metrics(options.names[0], self.config.max_model_len, self._started_s, transfer is not None)
        self.kv_events = self._publishing()
        self.engine_id = str(uuid.uuid4())
        self.side_channel = handoff.SideChannel(self.service, self.metrics, self.engine_id)
        self.port = 0
        self.side_channel_port = 0
        self.control_port = 0
        self._connections: set[HttpProtocol] = set()
        handler = self.handle if self._saboteur is None else self._saboteur.handle
        self.door = Door(partial(HttpProtocol, handler, self._connections), options.host, options.port)
        self._controllers: set[HttpProtocol] = set()
        self._listeners: list[Door] = []
        self._answers: dict[str, Answer] = {}
        self._prefilling: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._draining = False
        self._routes: dict[tuple[str, str], Callable[[Request, Exchange], None]] = {
            ("POST", "/v1/completions"): partial(self._generate, chat=False),
            ("POST", "/v1/chat/completions"): partial(self._generate, chat=True),
            ("POST", "/v1/responses"): self._respond,
            ("POST", "/v1/embeddings"): self._embed,
            ("GET", "/v1/models"): self._models,
            ("GET", "/health"): self._health,
            ("GET", "/ping"): self._health,
            ("POST", "/ping"): self._health,
            ("GET", "/version"): partial(self._json, value={"version": VLLM_VERSION}),
            ("GET", "/load"): self._load,
            ("GET", "/metrics"): self._metrics,
            ("POST", "/tokenize"): self._tokenize,
            ("POST", "/detokenize"): self._detokenize,
            ("POST", "/reset_prefix_cache"): self._reset_prefix_cache,
        }

    # -- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen. Raises ListenError where a port cannot be had."""
        options = self.options
        if options.kv_transfer is not None and options.kv_transfer.produces:
            ear = partial(HttpProtocol, self.side_channel.handle, self._connections)
            side = Door(ear, self._side_bind(), options.side_channel_port)
            self.side_channel_port = await self._listen("VLLM_NIXL_SIDE_CHANNEL_PORT", side)
        if self.kv_events is not None:
            self._open_publisher(self.kv_events)
        if self._saboteur is not None:
            await self._take_commands(self._saboteur)
        self.port = await self._listen("--port", self.door)
        if self._saboteur is not None:
            await self._saboteur.command(options.misbehave)
        logger.info("serving on port %d: %s", self.port, json.dumps(describe(options, self.config)))

    def _publishing(self) -> "KvPublisher | None":
        """What publishes KV events, where that is asked for; other servers load nothing."""
        if self.options.kv_events is None:
            return None
        from ballast_sim.engine_sim.kv_events import KvPublisher

        publisher = KvPublisher(self.options.kv_events, self.config.block_size)
        self.service.engine.publish_cache(publisher)
        return publisher

    def _open_publisher(self, publisher: "KvPublisher") -> None:
        host = self._side_bind()  # other pods listen, also where the API is behind an agent on the pod's loopback
        try:
            publisher.open(host)
        except OSError as error:
            for listener in self._listeners:
                listener.close()
            port = publisher.config.port
            raise ListenError("--kv-events-config", host, port, error) from error

    def _misbehaving(self, clock: Clock) -> "tuple[Saboteur | None, Clock]":
        """Who stands in front of this server if it may misbehave, with a clock to stop; honest servers load nothing."""
        if not self.options.may_misbehave:
            return None, clock
        from ballast_sim.engine_sim.misbehave.clock import StoppableClock
        from ballast_sim.engine_sim.misbehave.saboteur import Saboteur

        stoppable = StoppableClock(clock)
        return Saboteur(self, stoppable), stoppable

    async def _take_commands(self, saboteur: "Saboteur") -> None:
        if self.options.misbehave_api is None:
            return
        from ballast_sim.engine_sim.misbehave.control import Control

        control = Control(saboteur, self._spawn)
        host, port = self.options.misbehave_api
        door = Door(partial(HttpProtocol, control.handle, self._controllers), host, port)
        self.control_port = await self._listen("--misbehave-api", door)

    async def _listen(self, option: str, door: Door) -> int:
        """Open a door; the port that it has. `option` chose it."""
        try:
            await door.open()
        except OSError as error:
            for listener in self._listeners:
                listener.close()
            raise ListenError(option, door.host, door.port, error) from error
        self._listeners.append(door)
        return door.port

    def _side_bind(self) -> str:
        """The address on which P listens for D: the configured one, or all where it is not this machine's."""
        host = self.options.side_channel_host or self.options.host
        return host if host.startswith("127.") or host == "localhost" else "0.0.0.0"

    def remote_host(self) -> str:
        """The address that P's handles give to D."""
        if self.options.side_channel_host:
            return self.options.side_channel_host
        if self.options.host not in ("", "0.0.0.0", "::"):
            return self.options.host
        try:
            return socket.gethostbyname(socket.gethostname())
        except OSError:
            return "127.0.0.1"

    async def stop(self) -> None:
        """Refuse new work, let running requests finish for `shutdown_timeout_s`, then abort what is left."""
        self._draining = True
        deadline_s = time.monotonic() + self.options.shutdown_timeout_s
        if self._saboteur is not None:
            await self._saboteur.terminate()
        while self._busy() and time.monotonic() < deadline_s:  # noqa: ASYNC110 - leases end without an event
            await asyncio.sleep(0.02)
        for request_id in list(self._answers):
            self.service.abort(request_id)
        for _ in range(20):
            if not self._answers:
                break
            await asyncio.sleep(0.01)
        for listener in self._listeners:
            listener.close()
        if self.kv_events is not None:
            self.kv_events.close()
        self.service.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        connections = self._connections | self._controllers
        for connection in connections:
            connection.close_when_idle()
        await asyncio.sleep(0)
        for connection in connections:
            connection.abort()

    def abort_waiting(self) -> int:
        """Abort the requests that have no first token yet; how many there were."""
        waiting = [request_id for request_id, answer in self._answers.items() if not answer.count]
        for request_id in waiting:
            self.service.abort(request_id)
        return len(waiting)

    def cut_connections(self) -> None:
        """Reset every connection."""
        for connection in list(self._connections):
            connection.reset()

    def _busy(self) -> bool:
        """Requests under way, or KV that another engine is still to pull."""
        return bool(self._answers) or self.service.engine.holds_kv()

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("work in the background failed unexpectedly", exc_info=task.exception())

    # -- requests ----------------------------------------------------------------------------------------------------

    def handle(self, request: Request, exchange: Exchange) -> None:
        """An `http11.Handler`: never raises."""
        try:
            if request.path.startswith("/v1/") and not self._authorized(request):
                exchange.respond(401, b'{"error":"Unauthorized"}')
                return
            method = "GET" if request.method == "HEAD" else request.method
            route = self._routes.get((method, request.path))
            if route is None:
                known = any(path == request.path for _, path in self._routes)
                exchange.respond(
                    405 if known else 404, b'{"detail":"%b"}' % (b"Method Not Allowed" if known else b"Not Found")
                )
                return
            route(request, exchange)
        except ApiError as error:
            exchange.respond(error.status, error.body())
        except Exception:
            logger.exception("request to %s failed", request.path)
            if exchange.started:
                exchange.break_off()
            else:
                exchange.respond(500, ApiError("Internal server error.", None, 500, "InternalServerError").body())

    def _authorized(self, request: Request) -> bool:
        keys = self.options.api_keys
        if not keys:
            return True
        scheme, _, key = request.headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        return scheme.lower() == "bearer" and key in keys

    def _generate(self, request: Request, exchange: Exchange, chat: bool) -> None:
        call = self._call(parse_json(request.body), chat)
        header = request.headers.get(b"x-request-id", b"").decode("latin-1")
        base = header or call.request_id or uuid.uuid4().hex
        response_id = f"{'chatcmpl' if chat else 'cmpl'}-{base}"
        engine_id = f"{response_id}{'' if chat else '-0'}-{uuid.uuid4().hex[:8]}"
        kind = partial(StreamedAnswer, stream_interval=self.options.stream_interval) if call.stream else WholeAnswer
        self._take(call, request, exchange, response_id=response_id, engine_id=engine_id, kind=kind)

    def _respond(self, request: Request, exchange: Exchange) -> None:
        body = parse_json(request.body)
        call = self._call(as_chat(body), chat=True)
        response_id = f"resp_{uuid.uuid4().hex}"
        kind = StreamedResponse if call.stream else WholeResponse
        self._take(
            call,
            request,
            exchange,
            response_id=response_id,
            engine_id=f"{response_id}-0",
            kind=partial(kind, asked=body),
        )

    def _embed(self, request: Request, exchange: Exchange) -> None:
        body = parse_json(request.body)
        check_format(body)
        prompts, model = inputs(body), body.get("model")
        calls: list[Call] = []
        for prompt in prompts:
            calls.append(self._call({"model": model, "prompt": prompt, "max_tokens": 1}, chat=False, before=calls))
        response_id = f"embd-{uuid.uuid4().hex}"
        kind = partial(Embedding, gathering=Gathering(body, prompts))
        engine_ids = [f"{response_id}-{index}" for index in range(len(calls))]
        for call, engine_id in zip(calls, engine_ids, strict=True):
            self._take(call, request, exchange, response_id=response_id, engine_id=engine_id, kind=kind)
        exchange.on_disconnect = partial(self._client_gone, *engine_ids)

    def _call(self, body: dict[str, Any], chat: bool, before: Sequence[Call] = ()) -> Call:
        """`before`: those that are taken with it, if it is."""
        if self._draining:
            raise ApiError("The server is shutting down.", None, 503, "ServiceUnavailableError")
        call = parse_call(body, chat, self.options.accepted, self.config.max_model_len)
        self._admit(before)
        return call

    def _take(
        self,
        call: Call,
        request: Request,
        exchange: Exchange,
        *,
        response_id: str,
        engine_id: str,
        kind: Callable[..., Answer],
    ) -> None:
        """Have the engine work on it; an answer of this kind takes what comes."""
        priority = _priority(request, call.priority)
        adapter = call.model if call.model in self.options.lora_modules else ""
        seed = self.options.seed + call.seed
        content = GeneratedContent(list(call.tokens), self.config.block_size, seed, adapter)
        pull = self._pull(call)
        spec = EngineRequest(
            request_id=engine_id,
            input_tokens=len(call.tokens),
            max_tokens=call.max_tokens,
            stop_after=call.stop_after,
            content=content,
            arrival_s=self.service.now_s(),
            priority=priority,
            pull=pull is not None and pull.needed,
            pull_tokens=None if pull is None else pull.tokens,
            hold=self._holds(call),
            adapter=adapter,
        )
        answer = self._answer(partial(kind, call), content, exchange, response_id, spec)
        if pull is not None and pull.ends:
            session = handoff.PullSession(
                pull.remote,
                request_id=engine_id,
                service=self.service,
                metrics=self.metrics,
                profile=self.options.profile,
                spawn=self._spawn,
                part=pull.tokens is not None,
            )
            if pull.needed:
                answer.pull = session
            else:
                session.needless()
        self._answers[engine_id] = answer
        self._prefilling[engine_id] = spec.input_tokens
        exchange.on_disconnect = partial(self._client_gone, engine_id)
        answer.begin()
        self.service.submit(spec, answer)

    def _answer(
        self,
        kind: Callable[..., Answer],
        content: GeneratedContent,
        exchange: Exchange,
        response_id: str,
        spec: EngineRequest,
    ) -> Answer:
        common: dict[str, Any] = {
            "response_id": response_id,
            "created_s": int(time.time()),
            "arrival_s": spec.arrival_s,
            "time_scale": self.options.time_scale,
            "show_cached": self.options.prompt_tokens_details,
            "on_end": partial(self._ended, spec.request_id),
        }
        answer = kind(content, exchange, self.metrics, **common)
        if not isinstance(answer, StreamedAnswer):
            answer.hand_off_params = self._hand_off
        return answer

    def _pull(self, call: Call) -> handoff.Pull | None:
        transfer, params = self.options.kv_transfer, call.kv_transfer_params
        if transfer is None or not transfer.consumes or params is None:
            return None
        block_size = self.config.block_size
        if handoff.wants_pull(params):
            return handoff.Pull(handoff.remote_kv(params, len(call.tokens), block_size))
        if not handoff.wants_part(params):
            return None
        tokens = handoff.part_tokens(params, len(call.tokens), block_size)
        return handoff.Pull(
            handoff.remote_kv(params, tokens, block_size),
            tokens,
            needed=tokens >= transfer.least_part_tokens,
            ends=transfer.reads_parts,
        )

    def _holds(self, call: Call) -> bool:
        transfer = self.options.kv_transfer
        return transfer is not None and transfer.produces and handoff.wants_hold(call.kv_transfer_params)

    def _hand_off(self, event: Finished) -> dict[str, Any] | None:
        """The handle that D needs to pull this request's KV."""
        if event.hand_off is None:
            return None
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [list(event.hand_off.blocks)],
            "remote_engine_id": self.engine_id,
            "remote_request_id": event.request_id,
            "remote_host": self.remote_host(),
            "remote_port": self.side_channel_port,
            "tp_size": self.options.tensor_parallel_size,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": event.hand_off.tokens,
            "remote_blocks_expiry_time": None,
            "transfer_mode": "pull",
            "remote_prefill_cached_tokens": event.stats.cached_tokens,
        }

    def _admit(self, before: Sequence[Call]) -> None:
        """vLLM's admission limits, for one call behind these. Raises ApiError (503)."""
        options, rejections = self.options, self.metrics.rejections
        limit = options.max_num_queued_reqs
        if limit is not None and len(self._answers) + len(before) + 1 > limit:
            rejections["max_num_queued_reqs"] += 1
            raise ApiError(BUSY, None, 503, "Service Unavailable")
        limit = options.max_num_queued_tokens
        if limit is not None and sum(self._prefilling.values()) + sum(len(each.tokens) for each in before) >= limit:
            rejections["max_num_queued_tokens"] += 1
            raise ApiError(_BACKLOG, None, 503, "Service Unavailable")

    def _client_gone(self, *engine_ids: str) -> None:
        for engine_id in engine_ids:
            answer = self._answers.get(engine_id)
            if answer is not None:
                answer.by_client = True
                self.service.abort(engine_id)

    def _ended(self, engine_id: str, _: Answer, event: Finished) -> None:
        self._answers.pop(engine_id, None)
        if self._prefilling.pop(engine_id, None) is not None and event.stats.first_token_s is not None:
            self.metrics.prefill_done(event.stats)

    def _on_event(self, event: EngineEvent) -> None:
        if isinstance(event, StepEnded):
            self.metrics.iteration_tokens.observe(event.scheduled_tokens)
            for request_id in event.tokens:
                if request_id in self._prefilling:
                    self._first_token(request_id)
            if self.kv_events is not None:
                self.kv_events.publish(event.at_s)
        if self._observe is not None:
            self._observe(event)

    def _first_token(self, request_id: str) -> None:
        stats = self.service.engine.stats(request_id)
        if stats is not None:
            del self._prefilling[request_id]
            self.metrics.prefill_done(stats)

    # -- the rest ----------------------------------------------------------------------------------------------------

    def _json(self, _: Request, exchange: Exchange, value: object) -> None:
        exchange.respond(200, json.dumps(value, separators=(",", ":")).encode())

    def _health(self, _: Request, exchange: Exchange) -> None:
        exchange.respond(503 if self._draining else 200, b"", b"text/plain")

    def _load(self, request: Request, exchange: Exchange) -> None:
        count = len(self._answers) if self.options.server_load_tracking else 0
        self._json(request, exchange, {"server_load": count})

    def _metrics(self, _: Request, exchange: Exchange) -> None:
        self.service.pump()
        exchange.respond(200, self.metrics.render(self.service.engine), _PROMETHEUS_TEXT)

    def _models(self, request: Request, exchange: Exchange) -> None:
        models = [
            {
                "id": name,
                "object": "model",
                "created": int(self._started_s),
                "owned_by": "vllm",
                "root": model_root(self.options.model),
                "parent": None,
                "max_model_len": self.config.max_model_len,
            }
            for name in self.options.names
        ]
        base = models[0]
        models += [
            {**base, "id": name, "root": path, "parent": base["id"], "max_model_len": None}
            for name, path in self.options.lora_modules.items()
        ]
        self._json(request, exchange, {"object": "list", "data": models})

    def _reset_prefix_cache(self, request: Request, exchange: Exchange) -> None:
        """As vLLM's route for development: 200 in any case; nothing happens while requests run."""
        self.service.reset_prefix_cache()
        exchange.respond(200, b"")

    def _tokenize(self, request: Request, exchange: Exchange) -> None:
        body = parse_json(request.body)
        check_model(body, self.options.accepted)
        prompt = body.get("prompt")
        if prompt is not None and not isinstance(prompt, str):
            raise ApiError("prompt: must be a string.", "prompt")
        if prompt is None and "messages" not in body:
            raise ApiError("prompt: send a prompt or messages.", "prompt")
        tokens = tokenize(prompt if prompt is not None else chat_text(body))
        strings = [detokenize([token]) for token in tokens] if body.get("return_token_strs") is True else None
        answer = {"count": len(tokens), "max_model_len": self.config.max_model_len, "tokens": tokens}
        self._json(request, exchange, {**answer, "token_strs": strings})

    def _detokenize(self, request: Request, exchange: Exchange) -> None:
        body = parse_json(request.body)
        check_model(body, self.options.accepted)
        tokens = body.get("tokens")
        if not isinstance(tokens, list):
            raise ApiError("tokens: must be a list of token ids.", "tokens")
        self._json(request, exchange, {"prompt": detokenize(check_ids(tokens, "tokens")) if tokens else ""})


def _priority(request: Request, asked: int) -> int:
    """The header wins over the body, as in vLLM."""
    header = request.headers.get(b"x-vllm-priority")
    if header is None:
        return asked
    try:
        return int(header)
    except ValueError:
        raise ApiError("X-Vllm-Priority: must be a whole number.", "priority") from None
