"""The ext_proc protocol of one HTTP exchange, as a state machine without I/O.

Messages go in, actions come out: replies in the order in which they must be sent, and questions to the session. After
a `Pick` the session calls `routed` or `refused` before it passes the next message.

How each body mode is served (`_RULES`), after Envoy's `processing_mode.proto`:

- FULL_DUPLEX_STREAMED: nothing is answered until the body has ended, by its last chunk or by trailers; then headers,
  body chunks, trailers, in that order. The offer of a WebSocket has no body: it is answered at once.
- BUFFERED, BUFFERED_PARTIAL: the headers are answered at once without a change, the pick comes with the one body
  message; Envoy holds the headers back until then.
- STREAMED, NONE, GRPC: the proxy forwards the headers as soon as they are answered, so the pick must come with them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum, auto
from typing import Final

from ballast_api import wire_names
from ballast_api.gateway_settings import Trust
from ballast_core.model import Outcome
from ballast_gateway import errors, paths
from ballast_gateway.errors import ApiError
from ballast_gateway.headers import KEYS
from ballast_gateway.keys import KeyRing
from ballast_gateway.openai_body import is_json_path, may_hold_media
from ballast_gateway.picker.actions import Action, Destination, Pick
from ballast_gateway.picker.messages import (
    NO_HEADERS,
    BodyMode,
    BodyReply,
    HeaderChange,
    HeadersReply,
    Immediate,
    Inbound,
    Kind,
    Modes,
    TrailersReply,
    streamed_body,
)
from ballast_gateway.picker.query import BodyFacts, Carries, InvalidRequest, Query, read_body
from ballast_gateway.picker.response import ResponseHalf
from ballast_gateway.prompts import PromptReader
from ballast_gateway.service_classes import ServiceClasses
from ballast_gateway.tenants import Tenant
from ballast_gateway.trust import Trusted

_NO_BODY: Final = BodyFacts()
_KEY_NAMES: Final = tuple(name.decode() for name in KEYS)
_PROTOCOL_MODES: Final = Modes(BodyMode.FULL_DUPLEX_STREAMED, BodyMode.FULL_DUPLEX_STREAMED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeSettings:
    """Settings that all exchanges share."""

    max_body_bytes: int
    max_text_body_bytes: int | None = None
    """Of JSON without media; None sets no limit of its own."""
    served_models: Collection[str] = ()
    """Names that clients may ask for; empty accepts any."""
    default_model: str = ""
    """Whom a body without a model is for; empty: it is refused."""
    trusted: Trusted = Trusted(Trust())  # noqa: RUF009
    """What is believed of clients."""
    classes: ServiceClasses = field(default_factory=ServiceClasses)
    """Whose objective a request has."""
    prompts: PromptReader | None = None
    """Reads as much of a prompt as the policies need; None where they need nothing."""
    carries: Carries | None = None
    """What holders could do with a request; None where no policy asks."""
    extra_paths: frozenset[str] = frozenset()
    """What clients may ask engines for beside `paths.INFERENCE`."""
    keys: KeyRing | None = None
    """Whose requests are served; None: everybody's, and keys pass to engines."""
    default_modes: Modes = _PROTOCOL_MODES
    """For a proxy that sends no modes: those of the endpoint-picker protocol."""


class State(StrEnum):
    """State of the request's half. The response's half takes its messages in each of them."""

    START = auto()
    GATHER = auto()
    """The body is being gathered, no endpoint picked."""
    PICKING = auto()
    """A `Pick` is out."""
    SCREEN = auto()
    """Routed; a body of known length is held back until it is whole and can be cleaned."""
    PASS = auto()
    """Routed, and nothing is left to change."""
    CLOSED = auto()
    """Answered by us, or over."""


@dataclass(frozen=True, slots=True)
class _Rule:
    pick_at_headers: bool = False
    one_message: bool = False
    """The first body message is all of the body that will be shown; the headers are answered before it."""
    streamed: bool = False
    """Bodies go back in chunks of our own, by StreamedBodyResponse."""
    screens: bool = False
    """Routed already, but the body can still be changed chunk by chunk."""


_RULES: Final[dict[BodyMode, _Rule]] = {
    BodyMode.NONE: _Rule(pick_at_headers=True),
    BodyMode.STREAMED: _Rule(pick_at_headers=True, screens=True),
    BodyMode.GRPC: _Rule(pick_at_headers=True, streamed=True),
    BodyMode.BUFFERED: _Rule(one_message=True),
    BodyMode.BUFFERED_PARTIAL: _Rule(one_message=True),
    BodyMode.FULL_DUPLEX_STREAMED: _Rule(streamed=True),
}


class Exchange:
    """One HTTP request and its response on one ext_proc stream."""

    __slots__ = (
        "_asked_by",
        "_chunks",
        "_facts",
        "_has_body",
        "_headers",
        "_modes",
        "_response",
        "_rule",
        "_settings",
        "_size",
        "_subset",
        "_tenant",
        "state",
    )

    def __init__(self, settings: ExchangeSettings) -> None:
        self._settings = settings
        self.state = State.START
        self._response = ResponseHalf()
        self._use(settings.default_modes)
        self._headers: Mapping[str, str] | None = None
        """None until seen: the proxy may not show them."""
        self._has_body = True
        self._subset: tuple[str, ...] | None = None
        self._chunks: list[bytes] = []
        self._size = 0
        self._facts = _NO_BODY
        self._tenant: Tenant | None = None
        self._asked_by = Kind.REQUEST_HEADERS
        """The message that the pick answers."""

    @property
    def request_id(self) -> str | None:
        """The client's or the proxy's `x-request-id`, once the headers have come."""
        return (self._headers or {}).get(wire_names.REQUEST_ID) or None

    @property
    def path(self) -> str:
        """The request's path without its query, once the headers have come."""
        return (self._headers or {}).get(":path", "").partition("?")[0]

    @property
    def generates(self) -> bool:
        """Whether engines count it as running, as far as its headers are shown: a POST to one of the JSON routes."""
        posted = (self._headers or {}).get(":method", "POST") == "POST"
        return posted and (not self.path or is_json_path(self.path))

    def header(self, name: str) -> list[str]:
        """The value of a header, once the headers have come; empty without one."""
        value = (self._headers or {}).get(name)
        return [] if value is None else [value]

    def receive(self, message: Inbound) -> list[Action]:
        """Take in one message. Raises `RuntimeError` if a pick is still to be answered."""
        state = self.state
        if state is State.PICKING:
            raise RuntimeError("answer the pick before handing in the next message")
        if state is State.START and message.modes is not None:
            self._use(message.modes)
        if self._subset is None:
            self._subset = message.subset
        try:
            return _TRANSITIONS.get((state, message.kind), Exchange._neutral)(self, message)
        except InvalidRequest as error:
            return self.refused(error.answer)

    def routed(self, destination: Destination, request_id: str) -> list[Action]:
        """The answer to `Pick`: the request goes there. `request_id` is set where the request has none."""
        if self.state is not State.PICKING:
            raise RuntimeError("routed without a pick")
        kind, where = self._asked_by, destination.told
        self._response.routed = True
        screens = kind is Kind.REQUEST_HEADERS and self._screens_body()
        self.state = State.SCREEN if screens else State.PASS
        change = self._change(destination, where, request_id)
        if kind is Kind.REQUEST_HEADERS:
            return [HeadersReply(kind, change, where)]
        if self._rule.streamed:
            return self._answer_gathered(change, where)
        if kind is Kind.REQUEST_TRAILERS:  # a buffered body that never was: too late to change headers
            return [TrailersReply(kind, where)]
        return [BodyReply(kind, self._facts.cleaned, change, where)]

    def refused(self, error: ApiError) -> list[Action]:
        """The answer to `Pick`: the client gets this error."""
        self._close()
        answer = Immediate(error.status, error.headers(), error.body(), error.code)
        return [answer, *self._response.end(Outcome.FAILED)]

    def closed(self) -> list[Action]:
        """The stream is closed, by either side, in order or not."""
        self._close()
        return self._response.closed()

    # --- before the pick ----------------------------------------------------------------------------------------

    def _begin(self, message: Inbound) -> list[Action]:
        self._headers = message.headers
        offers = _offers_web_socket(message.headers)
        self._has_body = not (message.end_of_stream or offers)
        if self.path and not paths.passes(self.path, self._settings.extra_paths):
            raise InvalidRequest(errors.not_found(self.path[:200]))
        self._look_at_key()
        length = self._content_length()
        if length is not None and length > self._settings.max_body_bytes:
            raise InvalidRequest(errors.body_too_large(self._settings.max_body_bytes))
        if message.end_of_stream:
            return self._ask(message)
        if self._rule.pick_at_headers or (self._rule.streamed and offers):
            self._facts = BodyFacts.unseen(length)
            return self._ask(message)
        self.state = State.GATHER
        return [HeadersReply(kind=message.kind)] if self._rule.one_message else []

    def _look_at_key(self) -> None:
        """Raises `InvalidRequest` where keys are checked and it has none that is good. A health check needs none."""
        keys = self._settings.keys
        if keys is None or self.path == paths.HEALTH:
            return
        shown = self._headers or NO_HEADERS
        lines = [(name, shown[name.decode()].encode("latin-1", "replace")) for name in KEYS if name.decode() in shown]
        self._tenant = keys.tenant(lines)
        if self._tenant is None:
            raise InvalidRequest(errors.invalid_api_key())

    def _gather(self, message: Inbound) -> list[Action]:
        """A part of the body, also without headers (request header mode SKIP): the pick then uses what there is."""
        self.state = State.GATHER
        self._take(message)
        if self._rule.streamed:  # only the end of the stream ends the body: trailers may follow its last byte
            return self._ask_with_body(message, whole=True) if message.end_of_stream else []
        whole = message.end_of_stream or self._modes.request_body is BodyMode.BUFFERED or self._is_whole()
        return self._ask_with_body(message, whole=whole)

    def _end_by_trailers(self, message: Inbound) -> list[Action]:
        return self._ask_with_body(message, whole=True)

    def _ask_with_body(self, message: Inbound, *, whole: bool) -> list[Action]:
        self._facts = self._read(self._settings.prompts) if whole else BodyFacts.unseen(self._content_length())
        if self._facts.cleaned is not None:
            self._chunks = [self._facts.cleaned]
        return self._ask(message)

    def _ask(self, message: Inbound) -> list[Action]:
        if self._headers is None:  # they are not shown, and so no key
            self._look_at_key()
        self.state = State.PICKING
        self._asked_by = message.kind
        headers, trusted = self._headers or NO_HEADERS, self._settings.trusted
        objective = self._settings.classes.objective(self._facts.model, headers.get)
        priority = trusted.priority(headers.get, self._facts.priority, 0 if objective is None else objective.priority)
        tenant = trusted.tenant(headers.get) if self._tenant is None else self._tenant.name
        query = Query(self.request_id, self._subset, self._facts, tenant, self._tenant, priority, objective)
        return [Pick(query)]

    # --- after the pick -----------------------------------------------------------------------------------------

    def _answer_gathered(self, change: HeaderChange, destination: str) -> list[Action]:
        """Full duplex: headers, body, trailers."""
        by_trailers = self._asked_by is Kind.REQUEST_TRAILERS
        actions: list[Action] = []
        if self._headers is not None:
            actions.append(HeadersReply(Kind.REQUEST_HEADERS, change, destination))
        actions += streamed_body(Kind.REQUEST_BODY, b"".join(self._chunks), end_of_stream=not by_trailers)
        if by_trailers:
            actions.append(TrailersReply(kind=Kind.REQUEST_TRAILERS))
        self._chunks.clear()
        return actions

    def _change(self, destination: Destination, where: str, request_id: str) -> HeaderChange:
        headers = self._headers
        ours = {wire_names.DESTINATION: where}
        if destination.plan:
            ours[wire_names.PLAN] = destination.plan
        elif destination.prefill is not None and self._has_body:
            ours[wire_names.PREFILLER] = destination.prefill
        if destination.priority is not None:
            ours[wire_names.PRIORITY] = str(destination.priority)
        ours |= destination.trace
        if headers is not None and not headers.get(wire_names.REQUEST_ID):
            ours[wire_names.REQUEST_ID] = request_id
        if self._facts.cleaned is not None and self._asked_by is Kind.REQUEST_BODY:
            ours["content-length"] = str(len(self._facts.cleaned))
        from_client = wire_names.CONTROL_HEADERS if headers is None else wire_names.control_headers(headers)
        remove = [name for name in from_client if name not in ours]
        dropped = self._settings.trusted.dropped_headers
        if self._settings.keys is not None:
            dropped = (*dropped, *_KEY_NAMES)
        remove += [name for name in dropped if name not in ours and (headers is None or name in headers)]
        if destination.trace and headers is not None and "tracestate" in headers and "tracestate" not in ours:
            remove.append("tracestate")  # of a trace that this request does not belong to
        if self.state is State.SCREEN:
            remove.append("content-length")  # the cleaned body may be shorter
        return HeaderChange(tuple(ours.items()), tuple(remove))

    def _screen(self, message: Inbound) -> list[Action]:
        self._take(message)
        if not (message.end_of_stream or self._is_whole()):
            return [BodyReply(kind=message.kind, body=b"")]
        self.state = State.PASS
        cleaned = self._read().cleaned
        body = b"".join(self._chunks) if cleaned is None else cleaned
        self._chunks.clear()
        return [BodyReply(kind=message.kind, body=body)]

    def _pass_body(self, message: Inbound) -> list[Action]:
        if self._rule.streamed:
            return [*streamed_body(message.kind, message.body, end_of_stream=message.end_of_stream)]
        return [BodyReply(kind=message.kind)]

    def _on_response_headers(self, message: Inbound) -> list[Action]:
        return self._response.headers(message)

    def _on_response_body(self, message: Inbound) -> list[Action]:
        return self._response.body(message)

    def _on_response_trailers(self, message: Inbound) -> list[Action]:
        return self._response.trailers(message)

    def _neutral(self, message: Inbound) -> list[Action]:
        """An answer that changes nothing, to what is late, repeated or out of order."""
        match message.kind:
            case Kind.REQUEST_BODY:
                return self._pass_body(message)
            case Kind.REQUEST_TRAILERS:
                return [TrailersReply(kind=message.kind)]
            case _:
                return [HeadersReply(kind=message.kind)]

    def _say_nothing(self, message: Inbound) -> list[Action]:
        return []

    # --- helpers ------------------------------------------------------------------------------------------------

    def _use(self, modes: Modes) -> None:
        self._modes = modes
        self._rule = _RULES[modes.request_body]
        self._response.body_mode = modes.response_body

    def _close(self) -> None:
        self.state = State.CLOSED
        self._chunks.clear()

    def _take(self, message: Inbound) -> None:
        self._size += len(message.body)
        if self._size > self._settings.max_body_bytes:
            raise InvalidRequest(errors.body_too_large(self._settings.max_body_bytes))
        self._chunks.append(message.body)
        most = self._settings.max_text_body_bytes
        if most is None or not self._size - len(message.body) <= most < self._size or not is_json_path(self.path):
            return
        if not may_hold_media(self._chunks):
            raise InvalidRequest(errors.body_too_large(most, errors.GATEWAY_LIMITS.text, text=True))

    def _read(self, prompts: PromptReader | None = None) -> BodyFacts:
        headers = NO_HEADERS if self._headers is None else self._headers
        return read_body(
            b"".join(self._chunks),
            path=headers.get(":path", ""),
            content_type=headers.get("content-type", ""),
            content_encoding=headers.get("content-encoding", ""),
            default_model=self._settings.default_model,
            served_models=self._settings.served_models,
            prompts=prompts,
            objective=_objective(headers),
            dropped=self._settings.trusted.dropped_fields,
            carries=self._settings.carries,
        )

    def _screens_body(self) -> bool:
        """A body of known length can be held back without the risk of waiting forever for its end."""
        return self._rule.screens and self._has_body and bool(self._content_length())

    def _is_whole(self) -> bool:
        return self._size == self._content_length()

    def _content_length(self) -> int | None:
        text = (self._headers or {}).get("content-length", "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def _offers_web_socket(headers: Mapping[str, str]) -> bool:
    """Whether what follows the head is no body, but frames of a WebSocket, which come when the engine has agreed."""
    return headers.get(":method") == "GET" and headers.get("upgrade", "").lower() == "websocket"


def _objective(headers: Mapping[str, str]) -> str:
    for name in wire_names.OBJECTIVES:
        if name in headers:
            return headers[name]
    return ""


_OPEN: Final = (State.START, State.GATHER, State.SCREEN, State.PASS)

_TRANSITIONS: Final[dict[tuple[State, Kind], Callable[[Exchange, Inbound], list[Action]]]] = {
    (State.START, Kind.REQUEST_HEADERS): Exchange._begin,
    (State.START, Kind.REQUEST_BODY): Exchange._gather,
    (State.GATHER, Kind.REQUEST_BODY): Exchange._gather,
    (State.GATHER, Kind.REQUEST_TRAILERS): Exchange._end_by_trailers,
    (State.SCREEN, Kind.REQUEST_BODY): Exchange._screen,
    (State.PASS, Kind.REQUEST_BODY): Exchange._pass_body,
    **{(state, Kind.RESPONSE_HEADERS): Exchange._on_response_headers for state in _OPEN},
    **{(state, Kind.RESPONSE_BODY): Exchange._on_response_body for state in _OPEN},
    **{(state, Kind.RESPONSE_TRAILERS): Exchange._on_response_trailers for state in _OPEN},
    **{(State.CLOSED, kind): Exchange._say_nothing for kind in Kind},
}
"""What each message does in each state. What is not listed gets a neutral answer: no stream is ever rejected."""
