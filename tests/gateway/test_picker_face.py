"""The session between a stream and the Director, on a scripted stream: what a real network does only sometimes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest

from ballast_core.beliefs.kinds import Belief
from ballast_core.model import EndpointId, Request, RequestId
from ballast_core.model.effects import Dispatch, Effect, Leave, Migrate, Reject
from ballast_core.model.events import EndpointObserved
from ballast_core.model.prompt_tokens import packed
from ballast_core.policies.registry import build_placement
from ballast_gateway.driver import Driver, Ticket
from ballast_gateway.http.client import UpstreamPool
from ballast_gateway.picker.exchange import ExchangeSettings
from ballast_gateway.picker.face import Finished, PickerEvent, PickerFace
from ballast_gateway.picker.messages import BodyMode, HeadersReply, Immediate, Inbound, Kind, Modes, Reply
from ballast_gateway.picker.planned import Planned
from ballast_gateway.prompts import BLOCK_TOKENS, PromptReader
from ballast_gateway.records import RequestRecord
from ballast_gateway.tokenizing import Tokenizing
from ballast_gateway.traffic import Bounds, TrafficRecorder
from ballast_sim.engine_sim.text import tokenize
from tests.support.core_builders import director, endpoint
from tests.support.engine_sim import engine_sim
from tests.support.gateway_kit import until
from tests.support.grpc_transport import converse
from tests.support.scripted_engine import silent_server

REQUEST = (
    Inbound(kind=Kind.REQUEST_HEADERS, headers={":path": "/v1/completions", "x-request-id": "r"}),
    Inbound(kind=Kind.REQUEST_BODY, body=b'{"model":"m","prompt":"x","stream":true}', end_of_stream=True),
)
RESPONSE = (
    Inbound(kind=Kind.RESPONSE_HEADERS, headers={":status": "200"}),
    Inbound(kind=Kind.RESPONSE_BODY, body=b"data: [DONE]\n\n", end_of_stream=True),
)


class ScriptedStream:
    """Gives these messages, and breaks off when the n-th reply is sent."""

    def __init__(self, messages: Sequence[Inbound], breaks_at_reply: int | None = None) -> None:
        self._messages = iter(messages)
        self._breaks_at = breaks_at_reply
        self.sent: list[Reply] = []

    async def read(self) -> Inbound | None:
        return next(self._messages, None)

    async def write(self, message: Reply) -> None:
        self.sent.append(message)
        if len(self.sent) == self._breaks_at:
            raise asyncio.CancelledError


class Agents:
    """One for each endpoint, which notes what is planned."""

    everywhere = True

    def __init__(self) -> None:
        self.planned: list[RequestId] = []

    def has_agent(self, endpoint_id: EndpointId) -> bool:
        return True

    def plan(self, ticket: Ticket, dispatch: Dispatch) -> str:
        self.planned.append(ticket.request.id)
        return "plan"

    def expect(self, request_id: RequestId, own: Planned) -> None: ...

    def forget(self, request_id: RequestId) -> None: ...

    def release(self, request_id: RequestId) -> None: ...

    def order(self, order: Migrate | Leave) -> None: ...


@pytest.mark.parametrize(
    ("breaks_at_reply", "outcome"), [(None, "completed"), (1, "cancelled"), (2, "cancelled"), (4, "completed")]
)
async def test_wherever_a_stream_breaks_the_request_ends_once(breaks_at_reply: int | None, outcome: str) -> None:
    """Also while the answer to the response's last byte is being sent: that request has completed."""
    events: list[PickerEvent] = []
    records: list[RequestRecord] = []
    driver = Driver(director(("f0",)))
    face = PickerFace(
        driver,
        ExchangeSettings(max_body_bytes=1000),
        new_id=lambda: "id",
        listeners=(events.append,),
        on_record=records.append,
    )
    serving = asyncio.create_task(converse(face.open, ScriptedStream(REQUEST + RESPONSE, breaks_at_reply)))
    await asyncio.gather(serving, return_exceptions=True)
    assert serving.cancelled() == (breaks_at_reply is not None)
    assert len(driver.director.ledger) == 0
    assert [event.outcome for event in events if isinstance(event, Finished)] == [outcome]
    assert [record.outcome for record in records] == [outcome]


async def test_a_preflight_is_no_request_of_an_agents_and_leaves_the_books_at_once() -> None:
    """A browser's OPTIONS goes to the path of what it will post; no engine counts it as running."""
    driver = Driver(director(("f0",)))
    agents = Agents()
    face = PickerFace(driver, ExchangeSettings(max_body_bytes=1000), new_id=lambda: "id", settle_s=0.01, holders=agents)
    asked = {":path": "/v1/completions", ":method": "OPTIONS"}
    modes = Modes(BodyMode.FULL_DUPLEX_STREAMED, BodyMode.NONE)
    preflight = Inbound(kind=Kind.REQUEST_HEADERS, headers=asked, end_of_stream=True, modes=modes)
    await converse(face.open, ScriptedStream((preflight,)))
    assert agents.planned == []
    assert len(face.unseen) == 0
    async with asyncio.timeout(10):
        await until(lambda: not driver.director.ledger.entries)
    driver.close()


async def test_what_the_picker_routes_is_recorded_as_traffic() -> None:
    """With its prompt; the output passes unread, so that replays leave the row out."""
    driver = Driver(director(("f0",)))
    kept = TrafficRecorder(Bounds(requests=10, seconds=60.0, blocks=100), now_s=driver.now_s, unix_s=0.0)
    face = PickerFace(driver, ExchangeSettings(max_body_bytes=1000), new_id=lambda: "id", on_record=kept)
    await converse(face.open, ScriptedStream(REQUEST + RESPONSE))
    [line] = b"".join(kept.trace()).splitlines()
    row = json.loads(line)
    assert (row["outcome"], row["output_tokens"]) == ("completed", 0)
    assert row["input_tokens"] > 0


async def test_a_client_that_leaves_while_its_request_is_held_is_forgotten() -> None:
    """Held for want of an endpoint; the proxy breaks the stream off: it leaves the ledger, and a record."""
    driver = Driver(director((), hold_s=60))
    records: list[RequestRecord] = []
    face = PickerFace(driver, ExchangeSettings(max_body_bytes=1000), new_id=lambda: "id", on_record=records.append)
    serving = asyncio.create_task(converse(face.open, ScriptedStream(REQUEST)))
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(driver.director.ledger) == 1
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    assert len(driver.director.ledger) == 0
    assert [(each.outcome, each.reason) for each in records] == [("cancelled", "client-gone")]
    driver.close()


async def test_a_held_request_is_answered_when_an_endpoint_appears() -> None:
    """Without a message of the proxy: its answers come late, and the exchange goes on."""
    driver = Driver(director((), hold_s=60))
    face = PickerFace(driver, ExchangeSettings(max_body_bytes=1000), new_id=lambda: "id")
    stream = ScriptedStream(REQUEST + RESPONSE)
    serving = asyncio.create_task(converse(face.open, stream))
    await asyncio.sleep(0)
    assert not stream.sent
    driver.feed(EndpointObserved(endpoint("f0")))
    await serving
    assert [reply.kind for reply in stream.sent if not isinstance(reply, Immediate)] == [
        Kind.REQUEST_HEADERS,
        Kind.REQUEST_BODY,
        Kind.RESPONSE_HEADERS,
        Kind.RESPONSE_BODY,
    ]
    assert len(driver.director.ledger) == 0
    driver.close()


async def test_a_request_with_a_hint_is_held_for_an_endpoint_that_the_hint_names() -> None:
    """The proxy may know an endpoint before it is ready here; another one that appears is not the request's."""
    driver = Driver(director((), hold_s=60))
    face = PickerFace(driver, ExchangeSettings(max_body_bytes=1000), new_id=lambda: "id")
    first, *rest = REQUEST + RESPONSE
    stream = ScriptedStream((first._replace(subset=("f1:8000", "f2")), *rest))
    serving = asyncio.create_task(converse(face.open, stream))
    await asyncio.sleep(0)
    driver.feed(EndpointObserved(endpoint("f0")))
    await asyncio.sleep(0)
    assert len(face.held) == 1
    driver.feed(EndpointObserved(endpoint("f1")))
    async with asyncio.timeout(5):
        await serving
    assert isinstance(stream.sent[0], HeadersReply)
    assert stream.sent[0].destination == "f1:8000"
    driver.close()


async def test_no_request_is_held_longer_than_the_proxy_may_wait() -> None:
    """In full duplex Envoy counts no time: without an answer of ours a client would wait for ever."""
    effects: list[Effect] = []
    driver = Driver(director((), hold_s=60), listeners=(lambda effect, now_s: effects.append(effect),))
    face = PickerFace(driver, ExchangeSettings(max_body_bytes=1000), new_id=lambda: "id", answer_s=0.02)
    stream = ScriptedStream(REQUEST)
    await converse(face.open, stream)
    (answer,) = stream.sent
    assert isinstance(answer, Immediate)
    assert (answer.status, answer.reason) == (429, "saturated")
    assert len(driver.director.ledger) == 0
    [shed] = [effect for effect in effects if isinstance(effect, Reject)]
    assert (shed.reason, shed.cause) == ("saturated", "waited")
    driver.close()


async def test_a_held_request_whose_time_is_up_gets_its_error_late() -> None:
    """The last answer of its exchange: no further message is read."""
    driver = Driver(director((), hold_s=0.02))
    records: list[RequestRecord] = []
    face = PickerFace(driver, ExchangeSettings(max_body_bytes=1000), new_id=lambda: "id", on_record=records.append)
    stream = ScriptedStream(REQUEST + RESPONSE)
    await converse(face.open, stream)
    (answer,) = stream.sent
    assert isinstance(answer, Immediate)
    assert (answer.status, answer.reason) == (503, "no-endpoints")
    assert [record.outcome for record in records] == ["rejected"]
    assert len(driver.director.ledger) == 0
    driver.close()


async def test_the_director_learns_prefixes_and_classes_of_what_the_picker_routes() -> None:
    """Two turns of a conversation share blocks and an endpoint; the same words for an adapter share nothing."""
    driver = Driver(director(("f0", "f1"), policy=build_placement("lmetric")))
    beliefs = driver.director.beliefs
    assert Belief.PREFIXES in beliefs.kinds
    settings = ExchangeSettings(max_body_bytes=100_000, prompts=PromptReader(beliefs.kinds | Belief.LENGTHS))
    picked: list[PickerEvent] = []
    face = PickerFace(driver, settings, new_id=lambda: "id", listeners=(picked.append,))
    question = {"role": "user", "content": "x" * 4 * BLOCK_TOKENS * 10}
    history = [question, {"role": "assistant", "content": "y"}, {"role": "user", "content": "and?"}]
    known = []
    for model, messages in (("m", [question]), ("m", history), ("adapter", [question])):
        head = {":path": "/v1/chat/completions", "x-gateway-inference-objective": "batch"}
        body = json.dumps({"model": model, "messages": messages}).encode()
        request = (
            Inbound(kind=Kind.REQUEST_HEADERS, headers=head),
            Inbound(kind=Kind.REQUEST_BODY, body=body, end_of_stream=True),
        )
        await converse(face.open, ScriptedStream(request + RESPONSE))
        known.append(len(beliefs.prefixes))
    assert known == [10, 10, 20]
    first, second, _ = (event.decode for event in picked if isinstance(event, Finished))
    assert first == second


async def test_a_text_prompt_is_placed_by_the_tokens_that_an_engine_gives_and_without_them_when_it_is_late() -> None:
    """Both are held for that; a client that leaves meanwhile is forgotten."""
    loop = asyncio.get_running_loop()
    driver = Driver(director(("f0", "f1"), policy=build_placement("lmetric")))
    placed: list[Request] = []
    admit = driver.open

    def opened(request: Request) -> Ticket:
        placed.append(request)
        return admit(request)

    driver.open = opened  # type: ignore[assignment]
    settings = ExchangeSettings(max_body_bytes=1000, prompts=PromptReader(Belief.PREFIXES, wants_tokens=True))
    pool = UpstreamPool(loop, connect_timeout_s=5.0)
    async with engine_sim() as (server, _), silent_server() as silent:
        at = [f"127.0.0.1:{server.port}"]
        patient = Tokenizing(pool, lambda model: at, wait_s=20.0)
        face = PickerFace(driver, settings, new_id=lambda: "id", tokenizing=patient)
        await converse(face.open, ScriptedStream(REQUEST + RESPONSE))
        await converse(face.open, ScriptedStream(REQUEST + RESPONSE))
        tokens = packed(tokenize("x"))
        assert [each.tokens.ids for each in placed if each.tokens is not None] == [tokens, tokens]
        assert [each.prompt_tokens for each in placed] == [1, 1]
        at[0] = silent
        hasty, again = Tokenizing(pool, lambda model: at, wait_s=0.01), Tokenizing(pool, lambda model: at, wait_s=20.0)
        face = PickerFace(driver, settings, new_id=lambda: "id", tokenizing=hasty)
        await converse(face.open, ScriptedStream(REQUEST + RESPONSE))
        assert placed[2].tokens is None
        face = PickerFace(driver, settings, new_id=lambda: "id", tokenizing=again)
        serving = asyncio.create_task(converse(face.open, ScriptedStream(REQUEST)))
        asked = again._asking.values
        await until(lambda: any(each.exchange is not None and each.exchange.connection for each in asked()))
        for _ in range(10):  # the server has accepted it, too
            await asyncio.sleep(0)
        assert len(face.held) == 1
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        assert (len(placed), len(face.held), len(driver.director.ledger)) == (3, 0, 0)
        hasty.close()
        again.close()
    pool.close()
    driver.close()


@pytest.mark.parametrize(
    ("status", "failed", "outcome"),
    [
        ("401", 5, "invalid"),
        ("404", 5, "invalid"),
        ("429", 5, "rejected"),
        ("500", 5, "failed"),
        ("503", 5, "failed"),
        ("400", 0, "invalid"),
        ("200", 0, "completed"),
    ],
)
async def test_the_status_of_a_response_counts_for_its_endpoint(status: str, failed: int, outcome: str) -> None:
    """A 400 may be the client's fault, and no second endpoint can be asked here. None of them is a first token. What
    counts for the endpoint is in the request's record, too."""
    driver = Driver(director(("f0", "f1")))
    records: list[RequestRecord] = []
    face = PickerFace(driver, ExchangeSettings(max_body_bytes=1000), new_id=lambda: "id", on_record=records.append)
    hint = (endpoint("f0").address,)
    body = Inbound(kind=Kind.REQUEST_BODY, body=b'{"model":"m","prompt":"x"}', end_of_stream=True)
    response = Inbound(kind=Kind.RESPONSE_HEADERS, headers={":status": status}, end_of_stream=True)
    for _ in range(5):
        head = Inbound(kind=Kind.REQUEST_HEADERS, headers={":path": "/v1/completions"}, subset=hint)
        await converse(face.open, ScriptedStream((head, body, response)))
    report = driver.director.health.report(endpoint("f0").id)
    assert (report.failed_legs, report.legs) == (failed, 5 if failed or status == "200" else 0)
    assert (report.state == "ejected") == bool(failed)
    assert len(driver.director.ledger) == 0
    assert {(record.outcome, len(record.faults)) for record in records} == {(outcome, failed // 5)}


async def test_a_path_that_a_client_made_up_is_in_no_record() -> None:
    """It may hold a secret, and be as long as a header may be."""
    driver = Driver(director(("f0",)))
    records: list[RequestRecord] = []
    face = PickerFace(driver, ExchangeSettings(max_body_bytes=1000), new_id=lambda: "id", on_record=records.append)
    head = Inbound(kind=Kind.REQUEST_HEADERS, headers={":path": "/v1/secret-7f3a"}, end_of_stream=True)
    await converse(face.open, ScriptedStream((head,)))
    assert [(record.status, record.reason, record.path) for record in records] == [(404, "not-found", "")]


async def test_a_fault_of_the_picker_itself_is_not_its_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """A held request ends with a 500: it failed, and was not invalid."""
    driver = Driver(director((), hold_s=60))
    records: list[RequestRecord] = []
    face = PickerFace(driver, ExchangeSettings(max_body_bytes=1000), new_id=lambda: "id", on_record=records.append)

    async def breaks(ticket: Ticket) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Ticket, "dispatched", breaks)
    session = face.open(lambda replies: None)
    for message in REQUEST:
        session.receive(message)
    await until(lambda: bool(records))
    assert [(record.status, record.outcome) for record in records] == [(500, "failed")]
    session.close(broken=False)
    driver.close()
