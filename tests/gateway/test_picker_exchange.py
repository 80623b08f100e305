"""The ext_proc protocol machine, mode by mode.

`Proxy` below is the other side of the protocol, as Envoy's documentation describes it: it applies the replies and ends
up with what the upstream gets. Invariants, for every mode, every split of the body and with or without trailers:
1 exactly one pick; 2 the upstream gets the whole body, cleaned where the mode lets us change it; 3 the headers are
answered before the body, the body before the trailers; 4 no message waits for an answer that never comes.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast_core.beliefs.kinds import Belief
from ballast_core.model import Outcome, RejectReason
from ballast_gateway import errors
from ballast_gateway.picker.actions import Action, Destination, Ended, FirstToken, Pick, Served
from ballast_gateway.picker.exchange import Exchange, ExchangeSettings
from ballast_gateway.picker.messages import (
    CHUNK_BYTES,
    BodyMode,
    BodyReply,
    HeaderChange,
    HeadersReply,
    Immediate,
    Inbound,
    Kind,
    Modes,
    Reply,
    StreamedBody,
    TrailersReply,
    streamed_body,
)
from ballast_gateway.picker.query import Query
from ballast_gateway.prompts import BLOCK_TOKENS, NO_FACTS, PromptReader
from ballast_gateway.traffic_classes import LEAST_REQUESTS

DUPLEX = BodyMode.FULL_DUPLEX_STREAMED
SETTINGS = ExchangeSettings(max_body_bytes=1_000_000, served_models=("m",))
TARGET = Destination("10.0.0.1:8000", prefill="10.0.0.2:8000")
HEADERS = {":path": "/v1/completions", ":method": "POST", "content-type": "application/json"}
CLEAN = json.dumps({"model": "m", "prompt": "hello world"}, separators=(",", ":")).encode()
DIRTY = CLEAN[:-1] + b',"kv_transfer_params":{"remote_host":"evil"}}'


@dataclass
class Proxy:
    """Holds one exchange and applies its replies."""

    mode: BodyMode = DUPLEX
    response_mode: BodyMode = DUPLEX
    settings: ExchangeSettings = SETTINGS
    error: errors.ApiError | None = None
    """How the session answers the pick."""
    picks: list[Query] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    told: list[Served | FirstToken | Ended] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.exchange = Exchange(self.settings)
        self._modes: Modes | None = Modes(self.mode, self.response_mode)

    def send(
        self,
        kind: Kind,
        *,
        headers: dict[str, str] | None = None,
        body: bytes = b"",
        end: bool = False,
        subset: tuple[str, ...] | None = None,
        served: str | None = None,
    ) -> list[Reply]:
        """Send one message; returns the replies to it."""
        message = Inbound(
            kind=kind,
            headers=headers or {},
            body=body,
            end_of_stream=end,
            modes=self._modes,
            subset=subset,
            served=served,
        )
        self._modes = None
        before = len(self.replies)
        self._apply(self.exchange.receive(message))
        return self.replies[before:]

    def request(
        self,
        pieces: list[bytes],
        headers: dict[str, str] | None = None,
        *,
        trailers: bool = False,
        length: bool = True,
    ) -> None:
        """Send a request as a proxy in this mode shows it."""
        body = b"".join(pieces)
        known = {"content-length": str(len(body))} if length else {}
        self.send(Kind.REQUEST_HEADERS, headers=HEADERS | known | (headers or {}))
        if self.mode in (BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL):
            pieces = [body]
        for n, piece in enumerate([] if self.mode is BodyMode.NONE else pieces):
            self.send(Kind.REQUEST_BODY, body=piece, end=not trailers and n == len(pieces) - 1)
            if self.mode not in (DUPLEX, BodyMode.GRPC):
                assert isinstance(self.replies[-1], BodyReply | Immediate), "4: classic modes want an answer to each"
        if trailers:
            self.send(Kind.REQUEST_TRAILERS, end=True)
        self.sent = pieces

    def _apply(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Pick(query):
                    self.picks.append(query)
                    if self.error is not None:
                        self._apply(self.exchange.refused(self.error))
                    else:
                        self._apply(self.exchange.routed(TARGET, "made-id"))
                case Served() | FirstToken() | Ended():
                    self.told.append(action)
                case _:
                    self.replies.append(action)

    @property
    def change(self) -> HeaderChange:
        """What the exchange did to the request's headers."""
        (change,) = [r.change for r in self.replies if isinstance(r, HeadersReply | BodyReply) and r.change]
        return change

    @property
    def destination(self) -> str:
        """The one destination in the metadata."""
        answers = [r for r in self.replies if not isinstance(r, StreamedBody | Immediate)]
        (found,) = [r.destination for r in answers if r.destination]
        return found

    def upstream_body(self) -> bytes:
        """What the upstream gets."""
        if self.mode is BodyMode.NONE:
            raise AssertionError("this mode shows no body")
        chunks = [r.body for r in self.replies if isinstance(r, StreamedBody) and r.kind is Kind.REQUEST_BODY]
        if self.mode in (DUPLEX, BodyMode.GRPC):
            return b"".join(chunks)
        answers = [r for r in self.replies if isinstance(r, BodyReply) and r.kind is Kind.REQUEST_BODY]
        return b"".join(
            sent if answer.body is None else answer.body for sent, answer in zip(self.sent, answers, strict=True)
        )

    @property
    def immediate(self) -> Immediate:
        last = self.replies[-1]
        assert isinstance(last, Immediate)
        return last


def split(body: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    return [body[a:b] for a, b in itertools.pairwise(edges)]


@pytest.mark.parametrize(
    ("mode", "kinds"),
    [
        (DUPLEX, [HeadersReply, StreamedBody]),
        (BodyMode.BUFFERED, [HeadersReply, BodyReply]),
        (BodyMode.BUFFERED_PARTIAL, [HeadersReply, BodyReply]),
        (BodyMode.STREAMED, [HeadersReply, BodyReply]),
        (BodyMode.GRPC, [HeadersReply, StreamedBody]),
        (BodyMode.NONE, [HeadersReply]),
    ],
)
def test_each_mode_gets_the_answers_that_it_waits_for(mode: BodyMode, kinds: list[type]) -> None:
    """One pick, header and metadata agree, and the replies have the form that the mode asks for."""
    proxy = Proxy(mode)
    proxy.request([CLEAN])
    assert [type(reply) for reply in proxy.replies] == kinds
    assert len(proxy.picks) == 1
    assert proxy.destination == TARGET.decode
    assert dict(proxy.change.set)["x-gateway-destination-endpoint"] == TARGET.decode
    assert dict(proxy.change.set)["x-prefiller-host-port"] == TARGET.prefill


def test_modes_sent_with_the_first_message_hold_for_all_of_them() -> None:
    """Also where the proxy shows nothing but the response: its later messages carry no modes."""
    proxy = Proxy(BodyMode.NONE, response_mode=BodyMode.STREAMED)
    proxy.send(Kind.RESPONSE_HEADERS, headers={":status": "200"})
    assert proxy.send(Kind.RESPONSE_BODY, body=b"x") == [BodyReply(kind=Kind.RESPONSE_BODY)]


@pytest.mark.parametrize("mode", list(BodyMode))
@given(cuts=st.lists(st.integers(0, len(DIRTY)), max_size=6), trailers=st.booleans(), length=st.booleans())
def test_however_the_body_is_cut_it_arrives_whole_and_clean(
    mode: BodyMode, cuts: list[int], trailers: bool, length: bool
) -> None:
    """Invariants 1 to 3, and 4 by `Proxy.request`."""
    proxy = Proxy(mode)
    proxy.request(split(DIRTY, cuts), trailers=trailers, length=length)
    assert len(proxy.picks) == 1
    order = [reply.kind for reply in proxy.replies if not isinstance(reply, Immediate)]
    assert order == sorted(order, key=list(Kind).index)
    assert (Kind.REQUEST_TRAILERS in order) == trailers
    if mode is BodyMode.NONE:
        return
    changeable = mode in (DUPLEX, BodyMode.BUFFERED) or (
        # these two must know where the body ends to hold it back, or to know that they saw all of it
        (mode is BodyMode.STREAMED and length) or (mode is BodyMode.BUFFERED_PARTIAL and (length or not trailers))
    )
    assert proxy.upstream_body() == (CLEAN if changeable else DIRTY)


@pytest.mark.parametrize("trailers", [False, True])
def test_full_duplex_sends_the_end_once_and_in_the_right_message(trailers: bool) -> None:
    """End of stream stands on the last chunk, or on none if trailers follow."""
    proxy = Proxy()
    body = b'{"model":"m","prompt":"' + b"x" * 200_000 + b'"}'
    proxy.request(split(body, [70_000, 70_001]), trailers=trailers)
    chunks = [reply for reply in proxy.replies if isinstance(reply, StreamedBody)]
    assert [chunk.end_of_stream for chunk in chunks] == [False] * 3 + [not trailers]
    assert max(len(chunk.body) for chunk in chunks) == CHUNK_BYTES == 62_000
    assert isinstance(proxy.replies[-1], TrailersReply) == trailers


def test_full_duplex_answers_nothing_before_the_body_has_ended() -> None:
    """The pick needs the body, and duplex lets the headers wait for it."""
    proxy = Proxy()
    assert proxy.send(Kind.REQUEST_HEADERS, headers=HEADERS) == []
    assert proxy.send(Kind.REQUEST_BODY, body=CLEAN) == []
    assert proxy.picks == []
    assert proxy.send(Kind.REQUEST_BODY, end=True) != []


def test_a_proxy_that_sends_no_modes_is_served_in_those_of_the_protocol() -> None:
    """Without `protocol_config`: full duplex."""
    proxy = Proxy()
    proxy._modes = None
    proxy.request([CLEAN])
    assert [type(reply) for reply in proxy.replies] == [HeadersReply, StreamedBody]


@pytest.mark.parametrize("mode", list(BodyMode))
def test_a_request_without_a_body_is_picked_at_its_headers(mode: BodyMode) -> None:
    """GET: full rules, and no prefiller, for there is nothing to prefill."""
    proxy = Proxy(mode)
    proxy.send(Kind.REQUEST_HEADERS, headers={":path": "/v1/models", ":method": "GET"}, end=True)
    assert proxy.destination == TARGET.decode
    assert "x-prefiller-host-port" not in dict(proxy.change.set)


def test_a_proxy_that_keeps_its_headers_still_gets_a_pick() -> None:
    """Request header mode SKIP: the body's answer carries the change."""
    proxy = Proxy(BodyMode.BUFFERED)
    (reply,) = proxy.send(Kind.REQUEST_BODY, body=CLEAN, end=True)
    assert isinstance(reply, BodyReply)
    assert reply.destination == TARGET.decode
    assert "x-gateway-destination-endpoint-subset" in proxy.change.remove


def test_control_headers_of_the_client_do_not_pass() -> None:
    """Each is overwritten or removed."""
    proxy = Proxy()
    spoofed = {
        "x-gateway-destination-endpoint": "evil:1",
        "x-gateway-destination-endpoint-served": "evil:1",
        "x-gateway-destination-endpoint-anything": "evil:1",
        "x-encoder-hosts-ports": "evil:1",
        "x-data-parallel-host-port": "evil:1",
        "x-kv-cache-source-host-port": "evil:1",
        "x-vllm-priority": "-99",
    }
    proxy.send(Kind.REQUEST_HEADERS, headers=HEADERS | spoofed | {"x-harmless": "1"})
    proxy.send(Kind.REQUEST_BODY, body=CLEAN, end=True)
    assert dict(proxy.change.set)["x-gateway-destination-endpoint"] == TARGET.decode
    assert set(proxy.change.remove) == set(spoofed) - {"x-gateway-destination-endpoint"}


def test_a_spoofed_prefiller_is_removed_where_there_is_none() -> None:
    """Without a prefill leg nothing overwrites the header, so it must go."""
    exchange = Exchange(SETTINGS)
    headers = HEADERS | {"x-prefiller-host-port": "evil:1"}
    exchange.receive(Inbound(kind=Kind.REQUEST_HEADERS, headers=headers, modes=Modes(BodyMode.NONE, BodyMode.NONE)))
    (reply,) = exchange.routed(Destination("a:1"), "id")
    assert isinstance(reply, HeadersReply)
    assert reply.change is not None
    assert "x-prefiller-host-port" in reply.change.remove


@pytest.mark.parametrize(("priority", "expected"), [(-7, "-7"), (0, "0"), (None, None)])
def test_an_engine_gets_the_priority_of_a_request(priority: int | None, expected: str | None) -> None:
    """In the header that vLLM puts above the body's field."""
    exchange = Exchange(SETTINGS)
    exchange.receive(Inbound(kind=Kind.REQUEST_HEADERS, headers=HEADERS, modes=Modes(BodyMode.NONE, BodyMode.NONE)))
    (reply,) = exchange.routed(Destination("a:1", priority=priority), "id")
    assert isinstance(reply, HeadersReply)
    assert reply.change is not None
    assert dict(reply.change.set).get("x-vllm-priority") == expected


@pytest.mark.parametrize(("headers", "expected"), [({}, "made-id"), ({"x-request-id": "theirs"}, None)])
def test_a_request_without_an_id_gets_one(headers: dict[str, str], expected: str | None) -> None:
    """An id that is there stays."""
    proxy = Proxy()
    proxy.request([CLEAN], headers)
    assert dict(proxy.change.set).get("x-request-id") == expected


def test_a_cleaned_body_has_the_right_length() -> None:
    """Content-Length follows the body that the upstream gets; untouched bodies leave it alone."""
    proxy, untouched = Proxy(BodyMode.BUFFERED), Proxy(BodyMode.BUFFERED)
    proxy.request([DIRTY])
    untouched.request([CLEAN])
    assert dict(proxy.change.set)["content-length"] == str(len(CLEAN))
    assert "content-length" not in dict(untouched.change.set)


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        (b"", 400, "invalid-request", None),
        (b'{"model":', 400, "invalid-request", None),
        (b"[1]", 400, "invalid-request", None),
        (b"\xff\xfe\xff", 400, "invalid-request", None),
        (b"[" * 100_000, 400, "invalid-request", None),
        (b'{"model":"m","n":' + b"9" * 5_000 + b"}", 400, "invalid-request", "n"),
        (b'{"prompt":"x"}', 400, "invalid-request", "model"),
        (b'{"model":7}', 400, "invalid-request", "model"),
        (b'{"model":"other"}', 404, "model-not-found", "model"),
    ],
    ids=["empty", "cut off", "no object", "no text", "too deep", "huge number", "no model", "odd model", "other model"],
)
@pytest.mark.parametrize("mode", [DUPLEX, BodyMode.BUFFERED, BodyMode.STREAMED])
def test_a_bad_body_is_the_clients_fault(
    mode: BodyMode, body: bytes, status: int, code: str, param: str | None
) -> None:
    """OpenAI's shape, with a machine-readable reason; a routed request ends as failed."""
    proxy = Proxy(mode)
    proxy.request([body])
    if mode is BodyMode.STREAMED and not body:  # of length 0 there is nothing to wait for: the engine will answer
        assert proxy.destination == TARGET.decode
        return
    answer = proxy.immediate
    error = json.loads(answer.body)["error"]
    assert (answer.status, error["code"], error["param"]) == (status, code, param)
    assert dict(answer.headers)["x-ballast-reason"] == code
    if mode is BodyMode.STREAMED:
        assert proxy.told == [Ended(Outcome.FAILED, None)]
    else:
        assert proxy.picks == []


@pytest.mark.parametrize("mode", [DUPLEX, BodyMode.BUFFERED, BodyMode.STREAMED, BodyMode.NONE])
def test_a_body_with_too_large_a_content_length_is_refused_at_its_headers(mode: BodyMode) -> None:
    """413 before a byte of it is read."""
    proxy = Proxy(mode)
    proxy.send(Kind.REQUEST_HEADERS, headers=HEADERS | {"content-length": "1000001"})
    assert proxy.immediate.status == 413
    assert proxy.picks == []


def test_a_body_that_grows_too_large_is_refused() -> None:
    """413 as soon as the limit is passed, and what still comes is ignored."""
    proxy = Proxy()
    proxy.send(Kind.REQUEST_HEADERS, headers=HEADERS)
    proxy.send(Kind.REQUEST_BODY, body=b"x" * 1_000_000)
    assert proxy.replies == []
    proxy.send(Kind.REQUEST_BODY, body=b"x")
    assert proxy.immediate.status == 413
    assert proxy.send(Kind.REQUEST_BODY, body=b"x", end=True) == []


@pytest.mark.parametrize("mode", list(BodyMode))
def test_a_refused_pick_answers_the_client(mode: BodyMode) -> None:
    """503 with Retry-After for no endpoint; nothing is ended that never began."""
    proxy = Proxy(mode, error=errors.rejected(RejectReason.NO_ENDPOINTS, "none ready", 1.0))
    proxy.send(Kind.REQUEST_HEADERS, headers=HEADERS)
    if mode is not BodyMode.NONE:
        proxy.send(Kind.REQUEST_BODY, body=CLEAN, end=True)
    answer = next(reply for reply in proxy.replies if isinstance(reply, Immediate))
    assert (answer.status, dict(answer.headers)["retry-after"]) == (503, "1")
    assert proxy.told == []
    assert proxy.exchange.closed() == []


@pytest.mark.parametrize(
    ("path", "content_type", "model"),
    [("/v1/audio/transcriptions", "multipart/form-data", ""), ("/tokenize", "application/json", "m")],
)
def test_other_paths_are_read_if_they_can_be_and_never_judged(path: str, content_type: str, model: str) -> None:
    """The engine checks these bodies. JSON is cleaned of control fields."""
    proxy = Proxy()
    proxy.request([DIRTY], {":path": path, "content-type": content_type})
    assert proxy.picks[0].body.model == model
    assert proxy.upstream_body() == (CLEAN if model else DIRTY)


BATCH = "/v1/chat/completions/batch"
DOUBLED = DIRTY[:-1] + b',"model":"m"}'


@pytest.mark.parametrize("path", [HEADERS[":path"], BATCH, "/cohere/v2/chat", "/tokenize?x=1"])
@pytest.mark.parametrize("coding", ["gzip", "GZIP", "identity, gzip", "x"])
def test_a_content_coding_does_not_carry_control_fields_past(path: str, coding: str) -> None:
    """vLLM's server looks at no `content-encoding`: plain JSON under that header would be obeyed."""
    proxy = Proxy()
    proxy.request([DIRTY], {":path": path, "content-type": "application/json", "content-encoding": coding})
    assert (proxy.immediate.status, proxy.picks) == (415, [])


@pytest.mark.parametrize("coding", ["identity", " Identity "])
def test_a_coding_that_is_none_is_read(coding: str) -> None:
    proxy = Proxy()
    proxy.request([DIRTY], {":path": BATCH, "content-type": "application/json", "content-encoding": coding})
    assert proxy.upstream_body() == CLEAN


@pytest.mark.parametrize(
    ("path", "content_type"),
    [(BATCH, "application/json"), ("/cohere/v2/chat", ""), ("/score", "text/plain"), ("/x", "application/x+json; a=b")],
)
def test_json_that_two_parsers_read_differently_goes_nowhere(path: str, content_type: str) -> None:
    """Doubled names: the engine would take the last ones."""
    proxy = Proxy(settings=replace(SETTINGS, extra_paths=frozenset({"/x"})))
    proxy.request([DOUBLED], {":path": path, "content-type": content_type})
    assert (proxy.immediate.status, proxy.picks) == (400, [])


@pytest.mark.parametrize("path", [BATCH, "/cohere/v2/chat", "/classify"])
def test_a_model_that_is_not_served_is_refused_on_each_route(path: str) -> None:
    proxy = Proxy(settings=replace(SETTINGS, served_models=frozenset({"other"})))
    proxy.request([CLEAN], {":path": path, "content-type": "application/json"})
    assert (proxy.immediate.status, proxy.picks) == (404, [])


def test_the_query_has_what_placement_needs() -> None:
    """Ids are counted exactly, the subset hint of the headers is kept until the pick."""
    proxy = Proxy()
    proxy.send(Kind.REQUEST_HEADERS, headers=HEADERS | {"x-request-id": "r"}, subset=("10.0.0.1:8000",))
    proxy.send(Kind.REQUEST_BODY, body=b'{"model":"m","prompt":[1,2,3],"max_tokens":9}', end=True)
    (query,) = proxy.picks
    assert (query.request_id, query.subset) == ("r", ("10.0.0.1:8000",))
    assert (query.body.model, query.body.prompt_tokens, query.body.max_output_tokens) == ("m", 3, 9)


@pytest.mark.parametrize("mode", list(BodyMode))
def test_the_response_passes_and_its_first_token_and_end_are_reported_once(mode: BodyMode) -> None:
    """Chunks go back as the mode wants them; who serves is said once, with the headers."""
    served = Served("10.0.0.9:8000")
    proxy = Proxy(response_mode=mode)
    proxy.request([CLEAN])
    del proxy.replies[:]
    proxy.send(Kind.RESPONSE_HEADERS, headers={":status": "200"}, served=served.address)
    if mode is not BodyMode.NONE:
        proxy.send(Kind.RESPONSE_BODY, body=b"data: 1\n\n")
        assert proxy.told == [served, FirstToken()]
        proxy.send(Kind.RESPONSE_BODY, body=b"data: 2\n\n", end=True, served=served.address)
    proxy._apply(proxy.exchange.closed())
    shown = mode is not BodyMode.NONE
    assert proxy.told == [served, FirstToken(), Ended(Outcome.COMPLETED, 200, shown)]
    if mode in (DUPLEX, BodyMode.GRPC):
        assert [reply.body for reply in proxy.replies if isinstance(reply, StreamedBody)] == [
            b"data: 1\n\n",
            b"data: 2\n\n",
        ]
    elif mode is not BodyMode.NONE:
        assert [type(reply) for reply in proxy.replies] == [HeadersReply, BodyReply, BodyReply]


@pytest.mark.parametrize(
    ("steps", "outcome"),
    [
        ([Inbound(kind=Kind.RESPONSE_HEADERS, headers={":status": "200"}, end_of_stream=True)], Outcome.COMPLETED),
        ([Inbound(kind=Kind.RESPONSE_HEADERS, headers={":status": "503"}, end_of_stream=True)], Outcome.FAILED),
        ([Inbound(kind=Kind.RESPONSE_HEADERS, headers={":status": "404"}, end_of_stream=True)], Outcome.COMPLETED),
        ([Inbound(kind=Kind.RESPONSE_HEADERS, headers={":status": "200"})], Outcome.CANCELLED),
        (
            [
                Inbound(kind=Kind.RESPONSE_HEADERS, headers={":status": "200"}),
                Inbound(kind=Kind.RESPONSE_TRAILERS, end_of_stream=True),
            ],
            Outcome.COMPLETED,
        ),
        ([], Outcome.CANCELLED),
    ],
    ids=["no body", "engine failed", "client's fault", "broken off", "trailers", "before the response"],
)
def test_how_a_response_ends(steps: list[Inbound], outcome: Outcome) -> None:
    """By its own end if that was seen, else as broken off."""
    proxy = Proxy()
    proxy.request([CLEAN])
    for step in steps:
        proxy._apply(proxy.exchange.receive(step))
    proxy._apply(proxy.exchange.closed())
    (ended,) = [told for told in proxy.told if isinstance(told, Ended)]
    assert ended.outcome is outcome


def test_a_proxy_that_shows_no_response_ends_normally_and_unseen() -> None:
    """The session then keeps the request in the ledger for a while."""
    proxy = Proxy(response_mode=BodyMode.NONE)
    proxy.request([CLEAN])
    assert proxy.exchange.closed() == [Ended(Outcome.COMPLETED, None, shown=False)]
    assert proxy.exchange.closed() == []


@given(st.lists(st.tuples(st.sampled_from(list(Kind)), st.binary(max_size=20), st.booleans()), max_size=12))
def test_messages_in_any_order_never_break_the_machine(steps: list[tuple[Kind, bytes, bool]]) -> None:
    """Whatever a proxy sends: at most one pick, one end, and nothing after an immediate answer."""
    for mode in BodyMode:
        proxy = Proxy(mode)
        for kind, body, end in steps:
            proxy.send(kind, headers={":path": "/other"}, body=body, end=end)
        proxy._apply(proxy.exchange.closed())
        assert len(proxy.picks) <= 1
        assert sum(isinstance(told, Ended) for told in proxy.told) == len(proxy.picks)
        assert not any(isinstance(reply, Immediate) for reply in proxy.replies[:-1])


def test_a_message_during_a_pick_is_a_mistake_of_the_session() -> None:
    """The machine raises instead of guessing."""
    exchange = Exchange(SETTINGS)
    get = Inbound(kind=Kind.REQUEST_HEADERS, headers=HEADERS, end_of_stream=True)
    exchange.receive(get)
    with pytest.raises(RuntimeError, match="answer the pick"):
        exchange.receive(get)
    exchange.routed(TARGET, "id")
    with pytest.raises(RuntimeError, match="without a pick"):
        exchange.routed(TARGET, "id")


@given(st.binary(max_size=3 * CHUNK_BYTES // 1000), st.booleans())
def test_chunks_make_up_the_body(body: bytes, end: bool) -> None:
    """Nothing is sent for nothing, and an end always is."""
    chunks = streamed_body(Kind.REQUEST_BODY, body * 1000, end_of_stream=end)
    assert b"".join(chunk.body for chunk in chunks) == body * 1000
    assert [chunk.end_of_stream for chunk in chunks] == [False] * (len(chunks) - 1) + [end] * bool(chunks)
    assert bool(chunks) == (bool(body) or end)


# --- what policies read of prompts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("header", ["x-llm-d-inference-objective", "x-gateway-inference-objective"])
def test_the_query_has_prefix_blocks_and_the_class_of_an_objective(header: str) -> None:
    settings = ExchangeSettings(max_body_bytes=100_000, prompts=PromptReader(Belief.PREFIXES | Belief.LENGTHS))
    body = json.dumps({"model": "m", "prompt": "x" * 4 * BLOCK_TOKENS * 3}).encode()
    for _ in range(LEAST_REQUESTS):
        proxy = Proxy(settings=settings)
        proxy.request([body], {header: "batch"})
    (pick,) = proxy.picks
    assert len(pick.body.prompt.block_hashes) == 3
    assert pick.body.prompt.block_size == BLOCK_TOKENS
    assert pick.body.prompt.traffic_class == "m|batch"


@pytest.mark.parametrize("mode", [BodyMode.STREAMED, BodyMode.NONE, BodyMode.GRPC])
def test_a_body_that_comes_after_the_pick_is_not_read_for_it(mode: BodyMode) -> None:
    settings = ExchangeSettings(max_body_bytes=100_000, prompts=PromptReader(Belief.ALL))
    proxy = Proxy(mode, settings=settings)
    proxy.request([CLEAN])
    assert [pick.body.prompt for pick in proxy.picks] == [NO_FACTS]


@pytest.mark.parametrize(
    ("path", "text", "status"),
    [
        ("/v1/completions", b'{"model":"m","prompt":"', 413),
        ("/v1/chat/completions", b'{"model":"m","x":{"image_url":"', None),
        ("/v1/audio/transcriptions", b"RIFF", None),
    ],
    ids=["text", "an image", "no JSON"],
)
def test_a_body_without_media_has_a_limit_of_its_own(path: str, text: bytes, status: int | None) -> None:
    proxy = Proxy(DUPLEX, settings=ExchangeSettings(max_body_bytes=10_000, max_text_body_bytes=1_000))
    proxy.send(Kind.REQUEST_HEADERS, headers={":path": path})
    replies = proxy.send(Kind.REQUEST_BODY, body=text) + proxy.send(Kind.REQUEST_BODY, body=b"a" * 1_000)
    assert [each.status for each in replies if isinstance(each, Immediate)] == ([] if status is None else [status])


def test_the_offer_of_a_web_socket_is_answered_at_once_and_its_frames_pass() -> None:
    """They come when the engine has agreed, and are no body that ends."""
    proxy = Proxy()
    offer = {":method": "GET", ":path": "/v1/models", "connection": "upgrade", "upgrade": "WebSocket"}
    (answer,) = proxy.send(Kind.REQUEST_HEADERS, headers=offer)
    assert isinstance(answer, HeadersReply)
    assert answer.destination == "10.0.0.1:8000"
    assert proxy.send(Kind.REQUEST_BODY, body=b"frame") == [StreamedBody(Kind.REQUEST_BODY, b"frame", False)]


def test_a_post_that_offers_a_web_socket_has_its_body_read() -> None:
    proxy = Proxy()
    proxy.request([DIRTY], {"upgrade": "websocket"})
    assert [reply.body for reply in proxy.replies if isinstance(reply, StreamedBody)] == [CLEAN]
