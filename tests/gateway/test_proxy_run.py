"""A whole generation without sockets: engines, Director and client are the test's, and do what they like in any order.

1. No token is lost or doubled: the client's text is that of one engine, or a part of its beginning if it was cut.
2. Every engine is given exactly the tokens that are there, none left out, none twice, and none inside of a character.
3. The client's answer has one end at most, and exactly one is reported to the Director.
4. One engine owns the stream at every instant: a second one is asked only when the first has been left.
5. Every order to move is answered once: moved, failed, or ended by the request's own end or its engine's failure.
6. Nothing is left open at the end.
7. A whole answer that comes as a stream is answered once, in full or with an error that has a status.
8. Bytes that no engine should send change none of this, and no event is impossible.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ballast_core.model import Endpoint, EndpointId, Fault, Outcome, RejectReason, Request, RequestId, Role, Stage
from ballast_core.model.effects import Dispatch, Handoff, Leave, Migrate, Reject
from ballast_gateway.driver import Ticket
from ballast_gateway.http.client import Exchange, Over, UpstreamError, UpstreamPool
from ballast_gateway.http.server import ClientConnection
from ballast_gateway.life_signs import LifeSigns
from ballast_gateway.proxy.bodies import read_generation
from ballast_gateway.proxy.course import Resources
from ballast_gateway.proxy.cutting import Cutter
from ballast_gateway.proxy.held_stream import HeldStream
from ballast_gateway.proxy.legs import Job
from ballast_gateway.proxy.life import Action, State
from ballast_gateway.proxy.run import _BEGINS, _DOES, Run
from ballast_gateway.proxy.whole_answers import WholeAnswer
from ballast_gateway.records import RequestRecord
from ballast_gateway.tickets import Rejected

PROMPT = [5, 6, 7]
TOKENS = 24
FIRST_TOKEN = 1000
ENDPOINTS = [Endpoint(EndpointId(name), name, Role.FLEXIBLE) for name in ("e0", "e1", "e2")]
HEADERS = [(b"content-type", b"text/event-stream")]


def text(number: int) -> str:
    """What the token brings: each fourth one begins a character that the next one ends."""
    return "" if number % 4 == 1 else f"<{number - 1}-{number}>" if number % 4 == 2 else f"<{number}>"


WHOLE = "".join(text(number) for number in range(TOKENS))


def event(number: int, prompt: list[int] | None, *, count: int = 1) -> bytes:
    """Of so many tokens from this one on."""
    numbers = range(number, min(number + count, TOKENS))
    finish = "length" if numbers[-1] == TOKENS - 1 else None
    choice: dict[str, Any] = {"index": 0, "text": "".join(map(text, numbers)), "finish_reason": finish}
    choice |= {"prompt_token_ids": prompt, "token_ids": [FIRST_TOKEN + each for each in numbers]}
    return written({"id": "1", "created": 1, "model": "tiny", "choices": [choice]})


def usage(prompt: int) -> bytes:
    output = len(PROMPT) + TOKENS - prompt
    counts = {"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output}
    return written({"id": "1", "created": 1, "model": "tiny", "choices": [], "usage": counts})


def written(document: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % json.dumps(document, separators=(",", ":")).encode()


GARBAGE = (
    *(
        b'"token_ids":[5',
        b"\n\n",
        b"\r\n\r\n",
        b"\r\n",
        b"\n",
        b": ping\n\n",
        b"data: [DONE]\n\n",
        b"data: {",
        b"\x00\xff",
    ),
    event(3, None).replace(b"[1003]", b'["1003"]'),
    event(3, None).replace(b"[1003]", b"[-1003]"),
    event(3, None).replace(b"[1003]", b"[NaN]"),
    event(3, None).replace(b"[1003]", b"null"),
    event(3, None).replace(b"[1003]", b"[1003"),
    event(3, None).replace(b'"choices"', b'\ndata: "choices"'),
    b'data: {"id":"1","choices":[{"index":0,"delta":[]}]}\n\n',
    b'data: {"id":"1","choices":[{"index":0,"delta":7,"token_ids":[]}]}\n\n',
    b'data: {"error":{"message":"no"}}\n\n',
    usage(3),
)
"""Each of them is seen to be none of the stream, wherever it comes in it."""


@dataclass(eq=False)
class Call:
    """A request to an engine that is being answered."""

    engines: Engines
    body: dict[str, Any]
    exchange: Exchange
    over: Over
    pending: bytes = b""

    @property
    def streams(self) -> bool:
        return bool(self.body.get("stream"))

    def open(self) -> None:
        """Check what the engine is given, and make its answer."""
        if "tokens" in self.body:
            numbers = [each - FIRST_TOKEN for each in self.body["tokens"]]
            read = "".join(map(text, numbers)) + "\ufffd" * (numbers[-1] % 4 == 1)
            self.exchange.on_head(200, [(b"content-type", b"application/json")])
            self.pending = json.dumps({"prompt": read}).encode()
            return
        given = PROMPT if isinstance(self.body["prompt"], str) else self.body["prompt"]
        done = len(given) - len(PROMPT)
        assert given == PROMPT + [FIRST_TOKEN + number for number in range(done)]
        if self.streams:
            assert self.body["max_tokens"] == TOKENS - done
            assert done % 4 != 2, "inside of a character: vLLM would repeat the prompt"
            self.exchange.on_head(200, HEADERS)
            joins = self.engines.joins
            starts = [done, *range(done + 1, TOKENS, joins)]  # the first token comes at once
            events = [
                event(number, given if number == done else None, count=1 if number == done else joins)
                for number in starts
            ]
            if self.body.get("stream_options"):
                events.append(usage(len(given)))
            self.pending = b"".join([*events, b"data: [DONE]\n\n"])
        else:
            self.exchange.on_head(200, [(b"content-type", b"application/json")])
            choice = {"prompt_token_ids": given, "text": WHOLE, "finish_reason": "length"}
            self.pending = json.dumps({"choices": [choice]}).encode()

    def give(self, size: int) -> None:
        """The next bytes arrive."""
        data, self.pending = self.pending[:size], self.pending[size:]
        try:
            self.exchange.on_data(data)
        except UpstreamError as error:
            self.fail(error)
            return
        if not self.pending:
            self.exchange.on_end()
            self.end(None)

    def fail(self, error: UpstreamError) -> None:
        self.end(error)

    def end(self, error: UpstreamError | None) -> None:
        self.engines.calls.remove(self)
        self.over(error)


class Engines:
    """In place of the pool of connections. `joins`: so many tokens come in one event."""

    def __init__(self, joins: int = 1) -> None:
        self.calls: list[Call] = []
        self.joins = joins

    def start(self, address: str, payload: bytes, exchange: Exchange, over: Over) -> None:
        body = json.loads(payload.partition(b"\r\n\r\n")[2])
        call = Call(self, body, exchange, over)
        assert not (call.streams and any(other.streams for other in self.calls)), "two engines own the stream"
        self.calls.append(call)
        asyncio.get_running_loop().call_soon(call.open)

    def cancel(self, exchange: Exchange) -> None:
        self.calls = [call for call in self.calls if call.exchange is not exchange]


@dataclass
class Director:
    """In place of the ticket: answers at once, and counts what is reported."""

    request: Request
    mover: Callable[[Migrate], None] | None = None
    dispatches: list[Dispatch | None] = field(default_factory=list)
    ends: list[Outcome] = field(default_factory=list)
    wanted: Callable[[], object] | None = None
    """What the request that waits for a dispatch has called."""
    moved: int = 0
    failed_moves: int = 0
    first_tokens: int = 0
    garbage: bool = False
    """Engines send it: where they give no ids either, events are counted."""

    def now_s(self) -> float:
        return 0.0

    def poll(self) -> Dispatch | None:
        if not self.dispatches:
            return None
        dispatch = self.dispatches.pop()
        if dispatch is None:
            self.ends.append(Outcome.FAILED)
            raise Rejected(Reject(RequestId("r"), RejectReason.UPSTREAM_FAILED, "no endpoint is left"))
        return dispatch

    def when_arrived(self, call: Callable[[], object]) -> None:
        self.wanted = call

    def give(self, dispatch: Dispatch | None) -> None:
        self.dispatches.append(dispatch)
        assert self.wanted is not None
        asyncio.get_running_loop().call_soon(self.wanted)
        self.wanted = None

    def prefill_done(self, *, computed: bool = True) -> Handoff:
        return Handoff(self.request.id, ENDPOINTS[1])

    def failed(self, stage: Stage, endpoint_id: EndpointId, fault: Fault, status: int = 0) -> None:
        assert not self.ends

    def first_token(self) -> None:
        self.first_tokens += 1

    def progress(self, generated_tokens: int) -> None:
        assert generated_tokens >= 0
        assert generated_tokens <= TOKENS or self.garbage

    def migrated(self, target: EndpointId) -> None:
        self.moved += 1

    def migration_failed(self, target: EndpointId) -> None:
        self.failed_moves += 1

    def end(self, outcome: Outcome, output_tokens: int = 0, fault: Fault | None = None) -> None:
        if not self.ends:
            self.ends.append(outcome)


@dataclass
class Client:
    """In place of the client's connection."""

    sent: bytes = b""
    heads: int = 0
    head_sent: bool = False
    ends: list[str] = field(default_factory=list)
    answer: dict[str, Any] = field(default_factory=dict)

    @property
    def answering(self) -> bool:
        return not self.ends

    def respond(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        assert (status, self.heads) == (200, 0)
        self.ends.append("end")
        self.answer = json.loads(body)

    def start_stream(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self.heads += 1
        self.head_sent = True

    def write(self, data: bytes, *, last: bool = False) -> None:
        assert not self.ends
        assert self.heads == 1
        self.sent += data

    def end(self) -> None:
        self.ends.append("end")

    def abort(self) -> None:
        self.ends.append("abort")

    def respond_error(self, error: object, extra: object) -> None:
        self.ends.append("error")

    def attach(self, flow: object) -> None: ...

    def detach(self, flow: object) -> None: ...

    @property
    def text(self) -> str:
        if self.answer:
            return str(self.answer["choices"][0]["text"])
        documents = [json.loads(part[6:]) for part in self.sent.split(b"\n\n") if part.startswith(b'data: {"id"')]
        return "".join(choice["text"] for document in documents for choice in document["choices"])


class World:
    """A generation with everything around it."""

    def __init__(self, rescue: bool, *, whole: bool = False, garbage: bool = False, joins: int = 1) -> None:
        loop = asyncio.get_running_loop()
        raw = json.dumps({"model": "tiny", "prompt": "abc", "stream": not whole, "max_tokens": TOKENS}).encode()
        generation = read_generation(raw, chat=False)
        self.whole, self.garbage = whole, garbage
        self.engines, self.client = Engines(joins), Client()
        self.director = Director(Request(RequestId("r"), 3, TOKENS), garbage=garbage)
        self.passed = False
        """An engine that gives no ids was taken at its word."""
        pool = cast("UpstreamPool", self.engines)
        cutter = Cutter(pool, loop, prefill_timeout_s=60)
        self.life_signs = LifeSigns()
        resources = Resources(
            pool, loop, cutter, self.life_signs, prefill_timeout_s=60, idle_timeout_s=60, rescue=rescue
        )
        self.record = RequestRecord("r", 0.0)
        client = cast("ClientConnection", self.client)
        if whole:
            held = HeldStream(generation.as_stream(), unseen=True)
            sink = WholeAnswer(client, generation, held)
            job = Job(sink, b"/v1/completions", b"", generation.as_stream(), self.record, held, sink)
        else:
            job = Job(client, b"/v1/completions", b"", generation, self.record, HeldStream(generation))
        self.over = 0
        self.run = Run(resources, job, cast("Ticket", self.director), movable=True, on_over=self.ended)
        self.run.start()
        self.orders = 0
        self.left = False
        self.gateway_ends = False

    def ended(self, record: RequestRecord) -> None:
        assert record is self.record
        assert record.outcome != "failed" or record.status != 500, "a fault of the gateway"
        self.over += 1

    async def settle(self) -> None:
        for _ in range(8):
            await asyncio.sleep(0)
        self.passed = self.passed or self.run.life.state is State.PASSING

    def steps(self) -> dict[str, int]:
        """What can happen now, and how often it does beside the others."""
        found = (
            {"order": 3, "leave": 1, "shut down": 1, "silent": 3, "late": 1}
            if self.run.life.state is not State.ENDED
            else {}
        )
        if self.run.life.state is State.WARM:
            found["patience"] = 2
        if self.director.wanted:
            found |= {"dispatch": 20, "split": 20, "reject": 1}
        for call in self.engines.calls:
            found |= {"stream": 20, "break": 2, "abort": 1} if call.streams else {"answer": 10, "refuse": 2}
            if call.streams and self.garbage:
                found["garbage"] = 4
        return found

    def take(self, step: str, size: int) -> None:
        streaming = next((call for call in self.engines.calls if call.streams), None)
        waiting = next((call for call in self.engines.calls if not call.streams), None)
        match step:
            case "order":
                self.orders += 1
                assert self.director.mover is not None
                self.director.mover(Migrate(RequestId("r"), ENDPOINTS[0], ENDPOINTS[2]))
            case "leave" | "shut down":
                self.left, self.gateway_ends = step == "leave", step == "shut down"
                (self.run.client_gone if self.left else self.run.shut_down)()
            case "dispatch":
                self.director.give(Dispatch(RequestId("r"), None, ENDPOINTS[0]))
            case "split":
                self.director.give(Dispatch(RequestId("r"), ENDPOINTS[1], ENDPOINTS[0]))
            case "reject":
                self.director.give(None)
            case "stream" if streaming is not None:
                streaming.give(size)
            case "break" if streaming is not None:
                streaming.fail(UpstreamError("broke"))
            case "abort" if streaming is not None:
                streaming.pending = b'data: {"id":"1","choices":[{"index":0,"finish_reason":"abort"}]}\n\n'
                streaming.give(10_000)
            case "garbage" if streaming is not None:
                event, end, rest = streaming.pending.partition(b"\n\n")
                sent = event + end + GARBAGE[size % len(GARBAGE)]
                streaming.pending = sent + rest
                streaming.give(len(sent) + size // len(GARBAGE))
            case "answer" if waiting is not None:
                waiting.give(10_000)
            case "refuse" if waiting is not None:
                waiting.fail(UpstreamError("refused"))
            case _:
                self.take_of_time(step, ENDPOINTS[size % 2].id)

    def take_of_time(self, step: str, silent: EndpointId) -> None:
        match step:
            case "patience":
                assert self.run._orders is not None
                assert self.run._orders.move is not None
                self.run._orders.move._lose_patience()
            case "silent":
                self.run.order_leave(Leave(RequestId("r"), silent, "silent"))
            case "late":
                self.left = True
                self.run._expired(1.0)

    async def finish(self) -> None:
        """Nothing goes wrong any more."""
        for _ in range(100):
            if self.over:
                break
            step = next(step for step in ("dispatch", "stream", "answer") if step in self.steps())
            self.take(step, 10_000)
            await self.settle()

    def check(self) -> None:
        cancelled = self.left
        assert self.passed or WHOLE.startswith(self.client.text)
        assert len(self.director.ends) == 1
        assert len(self.client.ends) == (not cancelled) or cancelled
        expired = b"deadline-exceeded" in self.client.sent
        assert self.passed or (self.client.text == WHOLE) or expired or self.client.ends != ["end"]
        assert (self.client.ends == ["end"]) == (self.director.ends == [Outcome.COMPLETED]) or cancelled
        assert self.client.heads == bool(self.client.sent)
        assert self.whole or self.passed or self.director.first_tokens == bool(self.client.text)
        assert not self.whole or "abort" not in self.client.ends
        assert not (self.whole and self.passed)
        assert (self.record.reason == "gateway-shutdown") == self.gateway_ends
        if self.gateway_ends:
            assert self.client.ends == ["abort" if self.client.head_sent else "error"]
            assert self.passed or self.client.head_sent == (b'"gateway-shutdown"' in self.client.sent)
            assert self.director.ends == [Outcome.FAILED]
        assert len(self.record.moves) == self.orders
        assert sum(move.pause_s is not None for move in self.record.moves) == self.director.moved
        assert not self.engines.calls
        assert not any(self.life_signs.of(endpoint.id).legs for endpoint in ENDPOINTS), "something is due for ever"
        assert self.run.life.state is State.ENDED
        assert self.over == 1


SIZES = [1, 40, 150, 400]


@pytest.mark.rotating(3)
@settings(max_examples=300, deadline=None)
@given(st.randoms(use_true_random=True), st.booleans(), st.booleans(), st.booleans(), st.sampled_from([1, 1, 2, 3]))
def test_whatever_happens_the_client_gets_one_answer(
    chance: Random, rescue: bool, whole: bool, garbage: bool, joins: int
) -> None:
    """The invariants at the top, in any order of events."""

    async def live() -> None:
        world = World(rescue, whole=whole, garbage=garbage, joins=joins)
        await world.settle()
        for _ in range(80):
            possible = world.steps()
            if world.over:
                break
            (step,) = chance.choices(list(possible), list(possible.values()))
            world.take(step, chance.randrange(1000) if step == "garbage" else chance.choice(SIZES))
            await world.settle()
        await world.finish()
        await world.settle()
        world.check()

    asyncio.run(live())


@pytest.mark.parametrize("rescue", [True, False])  # a stream that we have cut is brought to its end in any case
async def test_a_stream_moves_dies_and_goes_on(rescue: bool) -> None:
    """One road through everything: dispatched, begun, moved, and its next engine dies."""
    world = World(rescue)
    await world.settle()

    async def take(*steps: str, until: State) -> None:
        while world.run.life.state is not until:
            for step in steps:
                world.take(step, 40)
                await world.settle()

    await take("split", until=State.PREFILLING)
    await take("answer", until=State.OPENING)
    await take("stream", until=State.FLOWING)
    await take("order", "answer", until=State.WARM)
    await take("stream", until=State.CROSSING)
    await take("stream", until=State.FLOWING)
    await take("break", until=State.REPLACING)
    assert (world.director.moved, world.record.rescues) == (1, 1)
    assert world.run.life.state is State.REPLACING
    await world.finish()
    world.check()
    assert world.client.text == WHOLE


@pytest.mark.parametrize("joins", [2, 3])
@pytest.mark.parametrize("whole", [False, True])
async def test_a_stream_whose_events_have_several_tokens_goes_on_at_the_token(whole: bool, joins: int) -> None:
    """After a break behind each of its events. An engine says which of the last tokens belong to the text so far."""
    for events in range(1, TOKENS // joins):
        world = World(True, whole=whole, joins=joins)
        await world.settle()
        world.take("dispatch", 0)
        await world.settle()
        (call,) = world.engines.calls
        world.take("stream", sum(len(each) + 2 for each in call.pending.split(b"\n\n")[:events]))
        world.take("break", 0)
        await world.settle()
        await world.finish()
        world.check()
        assert (world.client.text, world.record.rescues) == (WHOLE, 1)


async def broken_behind(world: World, events: int) -> None:
    """The engine breaks after so many more of its events."""
    (call,) = [call for call in world.engines.calls if call.streams]
    world.take("stream", sum(len(each) + 2 for each in call.pending.split(b"\n\n")[:events]))
    world.take("break", 0)
    await world.settle()


async def test_without_rescue_no_warm_target_goes_on_inside_of_a_character() -> None:
    """The stream is cut off, as it is without a target."""
    world = World(False, joins=3)
    await world.settle()
    world.take("dispatch", 0)
    await world.settle()
    world.take("stream", len(world.engines.calls[0].pending.split(b"\n\n")[0]) + 2)
    for step in ("order", "answer"):
        world.take(step, 0)
        await world.settle()
    await broken_behind(world, 3)
    world.check()
    assert world.client.ends == ["abort"]


async def test_a_whole_answer_starts_over_where_no_engine_says_what_its_last_tokens_read() -> None:
    """Nothing has been sent: the error of a stream would be worse."""
    world = World(True, whole=True, joins=3)
    await world.settle()
    world.take("dispatch", 0)
    await world.settle()
    await broken_behind(world, 4)
    world.take("dispatch", 0)
    await world.settle()
    states = [world.run.life.state]
    world.take("refuse", 0)
    await world.settle()
    assert [*states, world.run.life.state] == [State.MEASURING, State.PLACING]
    await world.finish()
    world.check()
    assert world.client.text == WHOLE


async def test_a_stream_with_a_slow_client_stays_while_its_engine_serves_others() -> None:
    """It is late because nobody reads it."""
    world = World(True)
    await world.settle()
    for step in ("dispatch", "stream"):
        world.take(step, 400)
        await world.settle()
    late = Leave(RequestId("r"), ENDPOINTS[0].id, "others got their tokens", alone=True)
    leg = world.run._leg
    leg.pause()
    world.run.order_leave(late)
    states = [world.run.life.state]
    leg.resume()
    world.run.order_leave(late)
    assert [*states, world.run.life.state] == [State.FLOWING, State.REPLACING]
    await world.finish()
    world.check()
    assert world.client.text == WHOLE


async def test_a_stream_does_not_go_back_to_an_engine_that_has_failed() -> None:
    """Its source is left as hung while a target is warm, and then the target dies: another dispatch is asked for."""
    world = World(True)
    await world.settle()
    for step in ("dispatch", "stream", "order", "answer"):
        world.take(step, 400)
        await world.settle()
    states = [world.run.life.state]
    world.run.order_leave(Leave(RequestId("r"), ENDPOINTS[0].id, "silent"))
    await world.settle()
    states.append(world.run.life.state)
    world.take("break", 0)
    await world.settle()
    assert [*states, world.run.life.state] == [State.WARM, State.ESCAPING, State.REPLACING]
    assert not world.engines.calls
    await world.finish()
    world.check()
    assert world.client.text == WHOLE


def test_every_state_has_its_work_and_every_action_its_code() -> None:
    assert set(_BEGINS) == set(State) - {State.ENDED}
    assert set(_DOES) == set(Action)
