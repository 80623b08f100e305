"""The pod API over sockets: routes, who may ask, and news for those who listen."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from ballast_api.gateway_settings import GatewaySettings
from ballast_api.signatures import PROOF, RECIPIENT
from ballast_core.model import Role
from ballast_gateway.http.client import UpstreamPool
from ballast_gateway.podapi import messages, refusals
from ballast_gateway.podapi.auth import Guard
from ballast_gateway.podapi.feed import MOST_BEHIND_BYTES, MOST_READERS, PART_BYTES, Feed, Reader
from ballast_gateway.podapi.messages import (
    Beat,
    Began,
    Body,
    CancelOrder,
    DrainOrder,
    Ended,
    Engine,
    Inventory,
    LeaveOrder,
    Listed,
    Message,
    Moved,
    MoveOrder,
    Opened,
    Part,
    Prefilled,
    Progressed,
    Redirected,
    Row,
    Snapshot,
)
from ballast_gateway.podapi.rows import Rows
from ballast_gateway.podapi.server import LIVE, METRICS, MOST_BODY_BYTES, READY, PodApiServer
from ballast_gateway.view.calls import Calls
from ballast_gateway.view.lines import Lines
from ballast_gateway.view.subscription import Subscription
from tests.support.gateway_kit import assert_openai_error, post, raw_exchange, until
from tests.support.pod_api_calls import (
    TOKEN,
    NotedHolder,
    call,
    call_bytes,
    listening,
    order,
    request_bytes,
)
from tests.support.pod_api_calls import Lines as PodApiLines

ROW = Row(id="r1", by="gw-a", phase="prefilling", decode="d0", prefill="p0", prompt_tokens=100)
MOVE = MoveOrder("r1", "d1")


class Served:
    """A server with a holder that writes down."""

    def __init__(self) -> None:
        self.holder = NotedHolder()
        self.feed = Feed(asyncio.get_running_loop(), holder="pod-a", incarnation="1", holds="agent", endpoint="d0")
        guard = Guard(lambda: (TOKEN,), time.time)
        self.recipient = guard.recipient
        self.server = PodApiServer(self.holder, self.feed, guard, metrics=lambda: b"x 1\n")
        self.port = 0


@asynccontextmanager
async def served() -> AsyncIterator[Served]:
    it = Served()
    it.port = await it.server.listen("127.0.0.1", 0)
    try:
        yield it
    finally:
        await it.server.close()


# --- rows -------------------------------------------------------------------------------------------------------------


def rows(*said: tuple[float, Message]) -> Rows:
    book = Rows()
    for at_s, message in said:
        book.take(message, at_s)
    return book


def test_a_row_follows_what_is_said_of_its_request() -> None:
    """Phase, tokens, rate and place are those that the holder's own lines say."""
    key = ROW.key
    book = rows((10.0, Opened(request=ROW)), (11.0, Prefilled(key=key)), (11.5, Began(key=key)))
    book.take(Progressed(tokens={key: 11}), 12.5)
    (row,) = book.all(13.5)
    assert (row.phase, row.generated_tokens, row.rate_tokens_per_s, row.age_s) == ("decoding", 11, 5.0, 3.5)
    book.take(Moved(key=key, target="d1"), 14.0)
    assert book.all(14.0)[0].decode == "d1"
    book.take(Redirected(key=key, decode="d2", prefill="p1"), 15.0)
    assert (book.all(15.0)[0].decode, book.all(15.0)[0].prefill) == ("d2", "p1")
    book.take(Ended(key=key, outcome="completed"), 16.0)
    assert len(book) == 0


def test_progress_waits_once_and_ends_with_its_request() -> None:
    """Folded progress names each request once, with its last count, and none that is over."""
    other = Row(id="r2", by="gw-a", phase="waiting")
    book = rows((0.0, Opened(request=ROW)), (0.0, Opened(request=other)))
    for count in range(1, 100):
        book.progressed(ROW.key, count)
        book.progressed(other.key, 2 * count)
    assert not book.progressed("gw-a/nobody", 5)
    book.take(Ended(key=other.key, outcome="completed"), 1.0)
    assert book.untold() == Progressed(tokens={ROW.key: 99})
    assert book.untold() is None


def test_rows_stay_within_the_bounds_of_lines() -> None:
    """Whatever an engine says that it has made."""
    book = rows((0.0, Opened(request=ROW)), (0.0, Began(key=ROW.key)), (0.0, Progressed(tokens={ROW.key: 10**30})))
    opened = Opened(request=book.all(1e-12)[0])
    assert messages.decode(messages.encode(opened, 0)) == opened


def test_of_a_request_that_is_not_held_nothing_is_kept() -> None:
    """Late words about requests that are over take no memory."""
    assert len(rows((0.0, Began(key="gw/x")), (0.0, Progressed(tokens={"gw/x": 1})))) == 0


# --- news -------------------------------------------------------------------------------------------------------------


async def test_a_reader_gets_the_snapshot_and_then_each_line() -> None:
    """What was held before comes first, and nothing is lost in between."""
    async with served() as it:
        it.feed.say(Opened(request=ROW))
        it.feed.say(Engine(endpoint="d0", running=3, waiting=1))
        async with listening(it.port) as (snapshot, lines):
            assert (snapshot.holder, snapshot.holds, snapshot.endpoint) == ("pod-a", "agent", "d0")
            assert [row.key for row in snapshot.requests] == [ROW.key]
            assert await lines.next() == Engine(endpoint="d0", running=3, waiting=1, seq=snapshot.seq + 1)
            it.feed.say(Began(key=ROW.key))
            for tokens in range(1, 50):
                it.feed.progressed(ROW.key, tokens)
            assert await lines.next() == Began(key=ROW.key, seq=snapshot.seq + 2)
            assert await lines.next() == Progressed(tokens={ROW.key: 49}, seq=snapshot.seq + 3)
            it.feed.say(Ended(key=ROW.key, outcome="completed", output_tokens=50))
            assert isinstance(await lines.next(), Ended)
            assert isinstance(await lines.next(), Beat)
        await until(lambda: it.feed.readers == 0)


class Slow:
    """A reader's connection that takes each line only when it is told to."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.reader: Reader | None = None
        self.cut_off = False

    def write(self, data: bytes) -> None:
        self.lines += data.splitlines(keepends=True)
        if self.reader is not None:
            self.reader.pause()

    def abort(self) -> None:
        self.cut_off = True


def long_row(number: int) -> Row:
    """Of a prompt of 32,768 tokens."""
    blocks = tuple(range(2**64 - 512, 2**64))
    return replace(ROW, id=f"r{number}", blocks=blocks, block_size=64, model='"\n' * 20)


async def test_a_long_snapshot_waits_for_its_reader_and_other_lines_go_between() -> None:
    """One part lies there at a time, none is far beyond its bound, and each row is as it is by then."""
    feed = Feed(asyncio.get_running_loop(), holder="h", incarnation="1", holds="gateway")
    for number in range(200):
        feed.say(Opened(request=long_row(number)))
    slow, quick = Slow(), Slow()
    slow.reader = feed.listen(slow, parts=True)
    feed.listen(quick, parts=True)
    assert slow.reader is not None
    slow.reader.pause()
    await until(lambda: b'"more"' not in quick.lines[-1])
    assert len(slow.lines) == 1, "it has taken nothing yet"
    feed.say(Ended(key="gw-a/r199", outcome="completed"))
    feed.say(Began(key="gw-a/r198"))
    feed.say(Opened(request=long_row(200)))
    await asyncio.sleep(0)
    lines = Lines()
    found: list[Message] = []
    while not found or not isinstance(found[-1], Part) or found[-1].more:
        sent, slow.lines = slow.lines, []
        assert len(sent) <= 5
        assert max(map(len, sent)) < PART_BYTES + 20_000
        found += [message for line in sent for message in lines.feed(line)]
        slow.reader.resume()
        await asyncio.sleep(0)
    rows = {row.key: row for one in found if isinstance(one, Snapshot | Part) for row in one.requests}
    assert set(rows) == {f"gw-a/r{number}" for number in range(199)}
    assert rows["gw-a/r198"].phase == "decoding"
    assert [type(one) for one in found if not isinstance(one, Part)] == [Snapshot, Ended, Began, Opened]
    assert not slow.cut_off
    feed.close()


async def test_a_reader_of_before_gets_its_snapshot_in_one_line_and_a_short_one_is_as_it_was() -> None:
    """Who does not say that it takes parts may not know them."""
    async with served() as it:
        it.feed.say(Opened(request=long_row(0)))
        sink = Slow()
        it.feed.listen(sink, parts=True)
        assert b'"more"' not in sink.lines[0]
        for number in range(1, 100):
            it.feed.say(Opened(request=long_row(number)))
        async with listening(it.port) as (snapshot, lines):
            assert (len(snapshot.requests), snapshot.more) == (100, False)
            assert isinstance(await lines.next(), Beat)
        async with listening(it.port, headers=(messages.PARTS,)) as (snapshot, lines):
            assert snapshot.more
            numbers = [part.number async for part in parts_of(lines)]
            assert numbers == list(range(1, len(numbers) + 1))
            assert len(numbers) > 2


async def parts_of(lines: PodApiLines) -> AsyncIterator[Part]:
    """Up to the last one."""
    more = True
    while more:
        part = await lines.next()
        assert isinstance(part, Part)
        yield part
        more = part.more


async def test_a_reader_that_goes_leaves_its_parts() -> None:
    """Nothing more is written for it."""
    feed = Feed(asyncio.get_running_loop(), holder="h", incarnation="1", holds="gateway")
    for number in range(200):
        feed.say(Opened(request=long_row(number)))
    sink = Slow()
    reader = feed.listen(sink, parts=True)
    assert reader is not None
    reader.client_gone()
    for _ in range(5):
        await asyncio.sleep(0)
    reader.resume()
    assert len(sink.lines) == 1
    feed.close()


async def test_two_readers_hear_the_same_lines_by_the_same_numbers() -> None:
    """One that comes later begins with its own snapshot."""
    async with served() as it, listening(it.port) as (_, first):
        it.feed.say(Opened(request=ROW))
        async with listening(it.port) as (snapshot, second):
            assert len(snapshot.requests) == 1
            it.feed.say(Began(key=ROW.key))
            assert await first.until(Began) == await second.until(Began)


async def test_nothing_is_written_where_nobody_listens() -> None:
    """Holders without readers keep rows, and no lines."""
    async with served() as it:
        it.feed.say(Opened(request=ROW))
        for tokens in range(1000):
            it.feed.progressed(ROW.key, tokens)
        assert it.feed._lines == []
        assert it.feed._folding is None


@pytest.mark.rotating(3)
async def test_a_stalled_reader_of_a_million_events_is_cut_off_within_its_bound() -> None:
    """Memory for one that does not read is bounded, and the others hear every line."""
    async with served() as it:
        stalled_reader, stalled = await asyncio.open_connection("127.0.0.1", it.port, limit=1024)
        try:
            stalled.write(call_bytes("GET", messages.EVENTS, to=it.recipient))
            await until(lambda: it.feed.readers == 1)
            (slow,) = it.feed._readers
            async with listening(it.port) as (_, lines):
                most = told = 0
                while told < 1_000_000 and it.feed.readers == 2:
                    for _ in range(1000):
                        it.feed.say(Began(key=ROW.key))
                    told += 1000
                    await asyncio.sleep(0)
                    most = max(most, slow._behind_bytes)
                    for _ in range(1000):
                        await lines.next()
                assert it.feed.cut_off == 1
                assert most <= MOST_BEHIND_BYTES + 100_000
                it.feed.say(Ended(key=ROW.key, outcome="completed"))
                await lines.until(Ended)
        finally:
            stalled.close()
        del stalled_reader


async def test_more_readers_than_there_may_be_are_refused() -> None:
    """Each one costs memory."""
    async with served() as it:
        sinks = []
        for _ in range(MOST_READERS):
            reader, writer = await asyncio.open_connection("127.0.0.1", it.port)
            writer.write(call_bytes("GET", messages.EVENTS, to=it.recipient))
            await reader.readuntil(b"\r\n\r\n")
            sinks.append(writer)
        answer = await call(it.port, "GET", messages.EVENTS)
        assert answer.status == 503
        assert assert_openai_error(answer)["code"] == "too-many-readers"
        for writer in sinks:
            writer.close()


async def test_as_many_workers_as_settings_allow_hear_each_other() -> None:
    """All of them speak from one address, and ask while they listen."""
    bounds = GatewaySettings.model_fields["workers"].metadata
    most = next(each.le for each in bounds if hasattr(each, "le"))
    async with served() as it:
        sinks = []
        for _ in range(most - 1):
            reader, writer = await asyncio.open_connection("127.0.0.1", it.port)
            writer.write(call_bytes("GET", messages.EVENTS, to=it.recipient))
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
            sinks.append(writer)
        answers = await asyncio.gather(*(call(it.port, "GET", messages.STATE) for _ in sinks))
        assert {answer.status for answer in answers} == {200}
        for writer in sinks:
            writer.close()


# --- orders -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "method", "body", "status"),
    [
        (messages.MIGRATIONS, "POST", MOVE, 202),
        (messages.LEAVE, "POST", LeaveOrder("r1", "d0", "silent"), 202),
        (messages.CANCEL, "POST", CancelOrder("r1"), 202),
        (messages.INVENTORY, "PUT", Inventory((Listed("d1", "10.0.0.1:80", Role.DECODE),)), 204),
    ],
)
async def test_an_order_reaches_the_holder(target: str, method: str, body: Body, status: int) -> None:
    """The answer says that it was ordered; what became of it is news."""
    async with served() as it:
        assert (await order(it.port, target, body, method)).status == status
        assert it.holder.orders == [body]


async def test_state_metrics_drain_and_probes() -> None:
    """Probes need no token and say nothing but a status."""
    async with served() as it:
        it.feed.say(Opened(request=ROW))
        state = (await call(it.port, "GET", messages.STATE)).json()
        assert [row["id"] for row in state["requests"]] == ["r1"]
        assert (await call(it.port, "GET", METRICS)).body == b"x 1\n"
        assert (await order(it.port, messages.DRAIN, DrainOrder(on=True))).status == 200
        it.holder.is_ready = False
        probes = [request_bytes("GET", probe, b"") for probe in (LIVE, READY)]
        live, ready = await raw_exchange(it.port, *probes, answers=2)
        assert (live.status, live.body, ready.status, ready.body) == (200, b"", 503, b"")
        assert it.holder.orders == [True]


@pytest.mark.parametrize(
    "refusal",
    [
        refusals.unknown_request("r1"),
        refusals.ambiguous("r1"),
        refusals.not_movable(),
        refusals.moving(),
        refusals.unknown_target("d9"),
        refusals.unusable_target("d1"),
    ],
    ids=lambda refusal: refusal.error.code,
)
async def test_what_the_holder_refuses_is_said_with_its_reason(refusal: refusals.OrderRefused) -> None:
    """Codes are those of docs/pod-api.md."""
    async with served() as it:
        it.holder.refuses = refusal
        answer = await order(it.port, messages.MIGRATIONS, MOVE)
        assert answer.status == refusal.error.status
        assert assert_openai_error(answer)["code"] == refusal.error.code


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"request_id":"r1"}', "target"),
        (b'{"request_id":"r1","target":"d1","force":true}', "force"),
        (b"[" * 10_000, ""),
        (b"\xff\xfe", ""),
        (b"", ""),
    ],
)
async def test_a_wrong_body_names_its_field(body: bytes, says: str) -> None:
    """And nothing is ordered."""
    async with served() as it:
        answer = await call(it.port, "POST", messages.MIGRATIONS, body)
        assert answer.status == 400
        assert says in assert_openai_error(answer)["message"]
        assert it.holder.orders == []


_ONE = '{"id":"a","address":"10.0.0.1:80","role":"decode"}'


@pytest.mark.parametrize(
    ("endpoints", "says"),
    [
        ('{"id":"a","address":"10.0.0.1:80","role":"decode","usble":false}', "usble"),
        ('{"id":"a","address":"10.0.0.1:80","role":"nope"}', "endpoints[0].role"),
        (f"{_ONE},{_ONE}", "endpoints[1].id"),
        *(
            (f'{_ONE},{{"id":"b","address":"{address}","role":"decode"}}', "endpoints[1].address")
            for address in ("", "nonsense", "10.0.0.1", ":80", "a:0", "a:65536", "a b:80", "a\\r\\nx: y:80", "é:80")
        ),
    ],
)
async def test_a_wrong_endpoint_of_an_inventory_is_named(endpoints: str, says: str) -> None:
    """The last list stays in force."""
    async with served() as it:
        answer = await call(it.port, "PUT", messages.INVENTORY, f'{{"endpoints":[{endpoints}]}}'.encode())
        assert answer.status == 400
        assert says in assert_openai_error(answer)["message"]
        assert it.holder.orders == []


# --- those who may not ask ------------------------------------------------------------------------------------------

_BODY = messages.write(MOVE)


@pytest.mark.parametrize(
    "request_",
    [
        request_bytes("POST", messages.MIGRATIONS, _BODY),
        request_bytes("POST", messages.MIGRATIONS, _BODY, "authorization: Bearer wrong-token-wrong"),
        request_bytes("POST", messages.MIGRATIONS, _BODY, "authorization: Ballast t=1,n=2,s=3"),
        request_bytes("POST", messages.MIGRATIONS, _BODY, "authorization: Ballast " + "t=," * 4000),
        call_bytes("POST", messages.MIGRATIONS, _BODY, token=b"another-fleets-token"),
        call_bytes("POST", messages.MIGRATIONS, _BODY, "authorization: Bearer x"),
        call_bytes("POST", messages.CANCEL, _BODY).replace(b"cancel", b"migrations"),
        call_bytes("POST", messages.MIGRATIONS, _BODY).replace(b'"d1"', b'"d2"'),
        request_bytes("GET", "/ballast/v1/anything", b""),
        request_bytes("GET", messages.STATE, b""),
        request_bytes("GET", METRICS, b""),
    ],
)
async def test_who_cannot_sign_is_told_nothing(request_: bytes) -> None:
    """Wrong, missing, another fleet's, two, or for another call: 401, and nothing is ordered."""
    async with served() as it:
        (answer,) = await raw_exchange(it.port, request_, answers=1)
        assert answer.status == 401
        assert assert_openai_error(answer)["code"] == "unauthorized"
        assert PROOF not in answer.headers
        assert it.holder.orders == []
        assert it.server.refusals == 1


async def test_a_call_that_was_overheard_serves_once() -> None:
    """Also on another connection."""
    async with served() as it:
        overheard = call_bytes("POST", messages.MIGRATIONS, _BODY, to=it.recipient)
        first, again = [await raw_exchange(it.port, overheard, answers=1) for _ in range(2)]
        assert (first[0].status, again[0].status) == (202, 401)
        assert it.holder.orders == [MOVE]


async def test_a_call_that_was_overheard_serves_nowhere_else() -> None:
    """Neither at another pod nor at the same one once it has started anew; a gateway that has the token gets through
    to all of them at once."""
    drain = (messages.DRAIN, messages.write(DrainOrder(on=True)))
    pool = UpstreamPool(asyncio.get_running_loop(), connect_timeout_s=5)
    calls = Calls(asyncio.get_running_loop(), pool, lambda: (TOKEN,))
    async with served() as first, served() as other:
        overheard = call_bytes("POST", *drain, to=first.recipient)
        for it, status in ((first, 200), (first, 401), (other, 401)):
            (answer,) = await raw_exchange(it.port, overheard, answers=1)
            assert answer.status == status
            assert answer.headers.get(RECIPIENT) == (it.recipient if status == 401 else None)
        assert (first.holder.orders, other.holder.orders) == ([True], [])
        for it in (first, other, first):
            assert (await calls.call(f"127.0.0.1:{it.port}", "POST", *drain)).status == 200
        assert (first.server.refusals, other.server.refusals) == (1, 1)
        port = first.port
    again = Served()
    await again.server.listen("127.0.0.1", port)
    try:
        (answer,) = await raw_exchange(port, overheard, answers=1)
        assert (answer.status, again.holder.orders) == (401, [])
        assert "sign it for the recipient" in assert_openai_error(answer)["message"]
        assert (await calls.call(f"127.0.0.1:{port}", "POST", *drain)).status == 200
        assert again.holder.orders == [True]
    finally:
        pool.close()
        await again.server.close()


async def test_a_source_that_starts_anew_is_heard_at_once() -> None:
    """It is another recipient then: its first 401 is no failure, and costs no pause."""
    loop = asyncio.get_running_loop()
    pool = UpstreamPool(loop, connect_timeout_s=5)
    calls = Calls(loop, pool, lambda: (TOKEN,))
    again = Served()
    async with served() as it:
        source = Subscription(
            "a",
            f"127.0.0.1:{it.port}",
            loop=loop,
            calls=calls,
            on_message=lambda name, message: None,
            on_lost=lambda name: None,
        )
        await until(lambda: source.connected)
        assert (source.connections, source.problem, it.server.refusals) == (1, "", 0)
        port = it.port
    await until(lambda: not source.connected)
    await again.server.listen("127.0.0.1", port)
    try:
        await until(lambda: source.connected)
        assert "for whom to sign" not in source.problem
    finally:
        source.close()
        pool.close()
        await again.server.close()


async def test_people_may_use_the_token_itself() -> None:
    """With curl."""
    async with served() as it:
        request = request_bytes("GET", messages.STATE, b"", f"authorization: Bearer {TOKEN.decode()}")
        (answer,) = await raw_exchange(it.port, request, answers=1)
        assert answer.status == 200


async def test_wrong_routes_methods_and_sizes_are_refused() -> None:
    """Each with OpenAI's shape."""
    async with served() as it:
        assert (await call(it.port, "GET", "/ballast/v1/anything")).status == 404
        assert (await call(it.port, "GET", messages.MIGRATIONS)).status == 405
        large = json.dumps({"request_id": "x" * MOST_BODY_BYTES, "target": "d1"}).encode()
        assert (await call(it.port, "POST", messages.MIGRATIONS, large)).status == 413
        head = b"PUT /ballast/v1/inventory HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999\r\n\r\n"
        (answer,) = await raw_exchange(it.port, head, answers=1)
        assert answer.status == 413


async def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    """Slow senders hold a connection for a bounded time."""
    async with served() as it:
        it.server.request_timeout_s = 0.2
        head = post(messages.MIGRATIONS, b"x" * 100)[:-50]
        (answer,) = await raw_exchange(it.port, head)
        assert answer.status == 408
