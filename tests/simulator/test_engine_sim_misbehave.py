"""engine-sim misbehaves as it is told: every fault as a client sees it on a socket, and in the state that counts it."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from ballast_sim.engine_sim.misbehave.answers import HUGE_BYTES
from ballast_sim.engine_sim.misbehave.control import PATH
from ballast_sim.engine_sim.misbehave.faults import NAMES
from ballast_sim.engine_sim.options import KvTransfer
from ballast_sim.engine_sim.server import EngineSimServer
from tests.support.engine_sim import engine_sim, eventually, metric, misbehave

pytestmark = pytest.mark.rotating(4, each=True)

BODY: dict[str, Any] = {"prompt": "once upon a time", "max_tokens": 5, "stream": True}
WHOLE = {**BODY, "stream": False}
CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5, "stream": True}


@dataclass(frozen=True, slots=True)
class Heard:
    """What came back on one connection, and how it ended: eof, reset, or open when nothing more came."""

    head: bytes
    body: bytes
    end: str
    pieces: int

    @property
    def status(self) -> int:
        return int(self.head.split()[1]) if self.head else 0

    @property
    def events(self) -> list[bytes]:
        """What stands in the chunks, event by event."""
        return [event for event in dechunked(self.body).split(b"\n\n") if event]

    @property
    def text(self) -> str:
        """The tokens."""
        chunks = [json.loads(event[6:]) for event in self.events if event.startswith(b"data: {")]
        return "".join(choice["text"] for chunk in chunks for choice in chunk.get("choices", ()))


def dechunked(data: bytes) -> bytes:
    """The content of well-formed chunks."""
    content = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        content += data[: int(size, 16)]
        data = data[int(size, 16) + 2 :]
    return content


def complete(head: bytes, body: bytes) -> bool:
    """Whether the framing says that there is no more."""
    if b"content-length: " in head:
        return len(body) == int(head.partition(b"content-length: ")[2].split()[0])
    return body.endswith(b"0\r\n\r\n")


async def ask(port: int, body: dict[str, Any] | None, path: str = "/v1/completions", quiet_s: float = 10) -> Heard:
    """Send one request on a connection of its own; listen until the answer is complete, ends, or falls silent."""
    data = b"" if body is None else json.dumps(body).encode()
    verb = b"GET" if body is None else b"POST"
    head, rest, heard, pieces, end = b"", b"", b"", 0, "open"
    loop, client = asyncio.get_running_loop(), socket.socket()  # asyncio's streams forget what came before a reset
    client.setblocking(False)
    try:
        await loop.sock_connect(client, ("127.0.0.1", port))
        request = b"%b %b HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % (verb, path.encode(), len(data))
        await loop.sock_sendall(client, request + data)
        while not complete(head, rest):
            piece = await asyncio.wait_for(loop.sock_recv(client, 2**20), quiet_s)
            if not piece:
                end = "eof"
                break
            heard, pieces = heard + piece, pieces + 1
            head, _, rest = heard.partition(b"\r\n\r\n")
    except TimeoutError:
        pass
    except ConnectionResetError:
        end = "reset"
    finally:
        client.close()
    return Heard(head, rest, end, pieces)


@dataclass(frozen=True, slots=True)
class Rig:
    """A server that can misbehave, and who tells it to."""

    server: EngineSimServer
    client: httpx.AsyncClient

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.control_port}{PATH}"

    async def command(self, *faults: dict[str, Any]) -> dict[str, Any]:
        """Switch these on, and all others off."""
        return await misbehave(self.server, *faults)

    async def shown(self, name: str) -> int:
        """How often a fault has shown."""
        return int((await self.client.get(self.url)).json()["shown"][name])

    async def ask(self, body: dict[str, Any] | None, path: str = "/v1/completions", quiet_s: float = 10) -> Heard:
        return await ask(self.server.port, body, path, quiet_s)

    async def silent(self, body: dict[str, Any] | None, path: str = "/v1/completions") -> Heard:
        """What comes of an answer that is never complete."""
        heard = await self.ask(body, path, quiet_s=1)
        assert heard.end == "open"
        assert not complete(heard.head, heard.body)
        return heard


@asynccontextmanager
async def rig(**options: Any) -> AsyncIterator[Rig]:
    async with engine_sim(misbehave_api=("127.0.0.1", 0), **options) as (server, client):
        yield Rig(server, client)


# -- answers in place of the engine's ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "status", "error"),
    [
        ({"fault": "wrong-key"}, 401, "Unauthorized"),
        (
            {"fault": "wrong-model"},
            404,
            {"message": "The model `m` does not exist.", "type": "NotFoundError", "param": "model", "code": 404},
        ),
        ({"fault": "status", "status": 408}, 408, {"type": "Request Timeout", "code": 408}),
        ({"fault": "status", "status": 429}, 429, {"type": "Too Many Requests", "code": 429}),
        ({"fault": "status", "status": 500}, 500, {"type": "InternalServerError", "code": 500}),
        ({"fault": "status", "status": 503}, 503, {"type": "Service Unavailable", "code": 503}),
        ({"fault": "small-context", "tokens": 3}, 400, {"type": "BadRequestError", "param": "input_tokens"}),
    ],
    ids=str,
)
async def test_errors_before_any_byte_have_vllms_bodies(fault: dict[str, Any], status: int, error: Any) -> None:
    """At once, for streams and whole answers, without a trace in the engine; and honest again afterwards."""
    async with rig() as bad:
        await bad.command(fault)
        for body in ({**BODY, "model": "m"}, {**WHOLE, "model": "m"}):
            heard = await bad.ask(body)
            told = json.loads(heard.body)["error"]
            assert (heard.status, heard.end) == (status, "open")
            assert told == error if isinstance(error, str) else error.items() <= told.items()
        assert await bad.shown(fault["fault"]) == 2
        assert await metric(bad.client, "vllm:iteration_tokens_total_count") == 0
        await bad.command()
        assert (await bad.ask(BODY)).events[-1] == b"data: [DONE]"


async def test_a_small_context_takes_short_prompts() -> None:
    """The message names the limit and the prompt's length, as vLLM's does."""
    async with rig() as bad:
        await bad.command({"fault": "small-context", "tokens": 10})
        assert (await bad.ask({**WHOLE, "prompt": [5] * 10})).status == 200
        refused = await bad.ask({**WHOLE, "prompt": [5] * 11})
    message = json.loads(refused.body)["error"]["message"]
    assert message.startswith(
        "This model's maximum context length is 10 tokens. However, your prompt contains 11 input"
    )


# -- answers that break ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [0, 1, 4])
@pytest.mark.parametrize(("path", "body"), [("/v1/completions", BODY), ("/v1/chat/completions", CHAT)])
async def test_an_error_event_in_place_of_a_token(path: str, body: dict[str, Any], after: int) -> None:
    """200 and so many tokens, the error, [DONE]; the engine is rid of the request."""
    async with rig() as bad:
        await bad.command({"fault": "error-event", "after": after})
        heard = await bad.ask({**body, "max_tokens": 2000}, path)
        assert heard.status == 200
        opening = 1 if path.endswith("chat/completions") and after else 0
        *tokens, error, done = heard.events
        assert len(tokens) == after + opening
        assert json.loads(error.removeprefix(b"data: ")) == {
            "error": {"message": "Internal server error", "type": "InternalServerError", "param": None, "code": 500}
        }
        assert done == b"data: [DONE]"
        assert await bad.shown("error-event") == 1
        await eventually(lambda: _idle(bad))
        assert await metric(bad.client, "vllm:generation_tokens_total") < 2000


async def _idle(bad: Rig) -> bool:
    return await metric(bad.client, "vllm:num_requests_running") == 0


async def test_an_error_event_is_a_500_where_nothing_streams() -> None:
    async with rig() as bad:
        await bad.command({"fault": "error-event"})
        heard = await bad.ask(WHOLE)
        assert (heard.status, json.loads(heard.body)["error"]["code"]) == (500, 500)
        assert await bad.shown("error-event") == 1


async def test_a_stream_that_is_shorter_than_the_point_stays_whole() -> None:
    """It got the fault, but the fault did not show."""
    async with rig() as bad:
        await bad.command({"fault": "reset", "after": 5})
        assert (await bad.ask(BODY)).events[-1] == b"data: [DONE]"
        state = (await bad.client.get(bad.url)).json()
        assert (state["faults"][0]["given"], state["shown"]["reset"]) == (1, 0)


async def test_an_honest_refusal_stays_what_it_is() -> None:
    """A bad body gets its 400, not the fault of an answer."""
    async with rig() as bad:
        await bad.command({"fault": "end"})
        assert (await bad.ask({**BODY, "max_tokens": -1})).status == 400
        assert await bad.shown("end") == 0


@pytest.mark.parametrize("after", ["request", "head", 0, 2])
async def test_a_reset(after: str | int) -> None:
    """Before the answer, after its head, in place of a token: an RST, and the engine is rid of the request."""
    async with rig() as bad:
        await bad.command({"fault": "reset", "after": after})
        heard = await bad.ask({**BODY, "max_tokens": 2000})
        assert heard.end == "reset"
        assert heard.status == (0 if after == "request" else 200)
        assert heard.body.count(b"data: ") == (after if isinstance(after, int) else 0)
        whole = await bad.ask(WHOLE)
        assert (whole.end, whole.status, whole.body) == ("reset", 200 if after == "head" else 0, b"")
        assert await bad.shown("reset") == 2
        await eventually(lambda: _idle(bad))
        assert await metric(bad.client, "vllm:generation_tokens_total") < 2000


@pytest.mark.parametrize("after", [0, 3])
async def test_a_stream_that_ends_early_as_if_it_were_complete(after: int) -> None:
    """A proper last chunk, but neither finish_reason nor [DONE]. A whole answer breaks off in its middle."""
    async with rig() as bad:
        await bad.command({"fault": "end", "after": after})
        heard = await bad.ask({**BODY, "max_tokens": 2000})
        assert heard.body.endswith(b"0\r\n\r\n")
        assert len(heard.events) == after
        assert all(json.loads(event[6:])["choices"][0]["finish_reason"] is None for event in heard.events)
        whole = await bad.ask(WHOLE)
        length = int(whole.head.lower().partition(b"content-length: ")[2].split()[0])
        assert (whole.end, len(whole.body)) == ("eof", length // 2)
        assert await bad.shown("end") == 2
        await eventually(lambda: _idle(bad))
        assert await metric(bad.client, "vllm:generation_tokens_total") < 2000


@pytest.mark.parametrize("after", ["request", "head", 0, 2])
async def test_a_hang_keeps_the_connection_and_says_nothing_more(after: str | int) -> None:
    """Other requests and scrapes are answered; a client that leaves takes its request with it."""
    async with rig() as bad:
        await bad.command({"fault": "hang", "after": after, "scope": {"requests": 2}})
        heard, whole = await asyncio.gather(bad.silent(BODY), bad.silent(WHOLE))
        assert heard.status == (0 if after == "request" else 200)
        assert heard.body.count(b"data: ") == (after if isinstance(after, int) else 0)
        assert whole.body == b""
        assert await bad.shown("hang") == 2
        assert (await bad.ask(BODY)).events[-1] == b"data: [DONE]"
        assert (await bad.client.get("/health")).status_code == 200
        await eventually(lambda: _idle(bad))


async def test_metrics_and_health_may_hang_as_well() -> None:
    """Or alone: what hangs is a matter of paths. The control route is never among them."""
    async with rig() as bad:
        await bad.command({"fault": "hang", "scope": {"paths": ["/metrics", "/health"]}})
        scrape, probe = await asyncio.gather(bad.silent(None, "/metrics"), bad.silent(None, "/health"))
        assert scrape.head == probe.head == b""
        assert (await bad.ask(BODY)).status == 200
        await bad.command({"fault": "hang", "scope": {"paths": ["/*"]}})
        stream, version = await asyncio.gather(bad.silent(BODY), bad.silent(None, "/version"))
        assert stream.head == version.head == b""
        assert await bad.shown("hang") == 4


# -- answers that are wrong --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("garbage", ["not-json", "broken-token-ids", "huge", "not-sse"])
async def test_garbage_in_a_stream_that_goes_on(garbage: str) -> None:
    """One piece that no engine should send after the first token; the text is all there."""
    async with rig() as bad:
        honest = await bad.ask(BODY)
        await bad.command({"fault": "garbage", "garbage": garbage, "after": 1})
        heard = await bad.ask(BODY)
        assert [len(heard.events), heard.events[-1]] == [len(honest.events) + 1, b"data: [DONE]"]
        odd = heard.events[1]
        match garbage:
            case "huge":
                assert json.loads(odd[6:])["choices"] == []
                assert HUGE_BYTES < len(odd) < HUGE_BYTES + 1000
                assert heard.text == honest.text
            case "not-sse":
                assert b"data: " not in odd
                assert {0, 255} <= set(odd)
            case _:
                with pytest.raises(ValueError, match=r"Expecting|delimiter"):
                    json.loads(odd.removeprefix(b"data: "))
                assert odd.endswith(b'"token_ids":[5') == (garbage == "broken-token-ids")
        whole = await bad.ask(WHOLE)
        assert whole.status == 200
        assert b"once" not in whole.body
        assert await bad.shown("garbage") == 2


@pytest.mark.parametrize("off_by", [16, -16])
async def test_a_wrong_content_length(off_by: int) -> None:
    """Too many or too few bytes come, then the connection ends. A stream says 64 and goes on."""
    async with rig() as bad:
        await bad.command({"fault": "content-length", "off_by": off_by})
        whole, stream = await bad.ask(WHOLE), await bad.ask(BODY)
        assert (whole.end, stream.end) == ("eof", "eof")
        assert b"content-length: %d\r\n" % (len(whole.body) + off_by) in whole.head
        assert json.loads(whole.body)["object"] == "text_completion"
        assert b"content-length: 64\r\n" in stream.head
        assert stream.body.endswith(b"data: [DONE]\n\n")
        assert stream.body.startswith(b"data: ")
        assert await bad.shown("content-length") == 2


async def test_invalid_chunk_framing() -> None:
    """A size that is no number, after a good chunk."""
    async with rig() as bad:
        await bad.command({"fault": "chunk-framing", "after": 1})
        heard, whole = await bad.ask(BODY), await bad.ask(WHOLE)
        good, _, rest = heard.body.partition(b"\r\nzz\r\n")
        assert dechunked(good + b"\r\n").startswith(b"data: {")
        assert rest
        assert b"transfer-encoding: chunked" in whole.head
        assert whole.body.startswith(b"zz\r\n")
        async with bad.client.stream("POST", "/v1/completions", json=BODY) as answer:
            with pytest.raises(httpx.RemoteProtocolError):
                await answer.aread()
        assert await bad.shown("chunk-framing") == 3


# -- answers that are slow ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [BODY, WHOLE], ids=["stream", "whole"])
async def test_a_trickle(body: dict[str, Any]) -> None:
    """All bytes come, in order, few at a time; a pause before each piece adds up."""
    async with rig() as bad:
        honest = await bad.ask(body)
        await bad.command({"fault": "trickle", "pause_s": 0.002, "size": 10})
        begun_s = asyncio.get_running_loop().time()
        heard = await bad.ask(body)
        took_s = asyncio.get_running_loop().time() - begun_s
        assert (heard.status, len(heard.body)) == (200, len(honest.body))
        assert heard.pieces > 3 * honest.pieces
        assert took_s > 0.9 * 0.002 * len(heard.body) / 10
        assert await bad.shown("trickle") == 1


async def test_a_slow_head() -> None:
    """Byte by byte up to the empty line; the rest at once."""
    async with rig() as bad:
        await bad.command({"fault": "trickle", "pause_s": 0.002, "part": "head"})
        begun_s = asyncio.get_running_loop().time()
        reader, writer = await asyncio.open_connection("127.0.0.1", bad.server.port)
        data = json.dumps(BODY).encode()
        writer.write(b"POST /v1/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(data) + data)
        head = await reader.readuntil(b"\r\n\r\n")
        assert asyncio.get_running_loop().time() - begun_s > 0.9 * 0.002 * len(head)
        rest = await reader.readuntil(b"0\r\n\r\n")
        assert dechunked(rest).endswith(b"data: [DONE]\n\n")
        writer.close()


async def test_tokens_that_take_x_times_as_long() -> None:
    """Measured against the time that the engine itself had for the request."""
    async with rig() as bad:
        honest = await bad.ask(BODY)
        spent_s = await metric(bad.client, "vllm:e2e_request_latency_seconds_sum")
        await bad.command({"fault": "slow", "factor": 8})
        begun_s = asyncio.get_running_loop().time()
        async with bad.client.stream("POST", "/v1/completions", json=BODY) as answer:
            data = await answer.aread()
        took_s = asyncio.get_running_loop().time() - begun_s
        needed_s = await metric(bad.client, "vllm:e2e_request_latency_seconds_sum") - spent_s
        assert took_s > 0.9 * 8 * needed_s
        assert data.count(b"data: ") == len(honest.events)
        assert await bad.shown("slow") == 1


async def test_a_client_that_leaves_a_slow_answer_frees_the_server() -> None:
    """Nothing is left under way, and the server stops at once."""
    async with rig() as bad:
        await bad.command({"fault": "trickle", "pause_s": 30})
        assert (await bad.silent(BODY)).head == b""
        await eventually(lambda: _idle(bad))


# -- the whole server --------------------------------------------------------------------------------------------------


async def test_a_frozen_engine_stops_in_mid_stream_and_goes_on_where_it_was() -> None:
    """Scrapes answer and show a request that runs and tokens that stand still; new requests get their head."""
    body = {**BODY, "max_tokens": 150}
    async with rig(time_scale=5.0) as bad, bad.client.stream("POST", "/v1/completions", json=body) as answer:
        lines = answer.aiter_lines()
        for _ in range(6):
            await anext(lines)
        assert (await bad.command({"fault": "freeze"}))["frozen"] is True
        tokens = await metric(bad.client, "vllm:generation_tokens_total")
        late = await bad.silent(BODY)
        assert (late.status, late.body) == (200, b"")
        assert await metric(bad.client, "vllm:generation_tokens_total") == tokens < 150
        assert await metric(bad.client, "vllm:num_requests_running") >= 1
        assert (await bad.command())["frozen"] is False
        assert [line async for line in lines][-2] == "data: [DONE]"
        assert await bad.shown("freeze") == 1


async def _accepts(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionError:  # refused, or reset when the port was shut with the connection in its queue
        return False
    writer.close()
    return True


async def _refuses(port: int) -> bool:
    return not await _accepts(port)


@pytest.mark.parametrize("cut", [False, True])
async def test_flapping(cut: bool) -> None:
    """Refused at once, then accepted, then refused again; a connection that there was is cut only if asked."""
    async with rig() as bad:
        port = bad.server.port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /version HTTP/1.1\r\n\r\n")
        assert await reader.readuntil(b"}")
        state = await bad.command({"fault": "flap", "down_s": 0.2, "up_s": 0.2, "cut": cut})
        assert (state["refusing"], state["shown"]["flap"]) == (True, 1)
        await eventually(lambda: _refuses(port))
        if cut:
            with pytest.raises(ConnectionResetError):
                await reader.read()
        else:
            writer.write(b"GET /version HTTP/1.1\r\n\r\n")
            assert await reader.readuntil(b"}")
        writer.close()
        await eventually(lambda: _accepts(port))
        await eventually(lambda: _refuses(port))
        assert await bad.shown("flap") >= 2
        assert (await bad.command())["refusing"] is False
        assert (await bad.ask(BODY)).status == 200


async def test_flapping_may_be_commanded_while_it_refuses() -> None:
    """The port stays its own, and opens when it behaves again."""
    async with rig() as bad:
        for _ in range(3):
            assert (await bad.command({"fault": "flap", "down_s": 60, "up_s": 60}))["refusing"] is True
            with pytest.raises(OSError, match="in use"):
                await asyncio.start_server(lambda *_: None, "127.0.0.1", bad.server.port, reuse_address=False)
        await bad.command()
        assert (await bad.ask(BODY)).status == 200


async def test_a_server_that_flaps_can_be_stopped() -> None:
    """While it refuses; the port is free afterwards."""
    async with rig() as bad:
        await bad.command({"fault": "flap", "down_s": 60, "up_s": 60})
        port = bad.server.port
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", port)
    server.close()


async def test_stopping_with_an_error_event_in_place_of_the_first_token() -> None:
    """For the request that waits, as soon as its step is over, and for those that come while the server lingers."""
    async with rig(time_scale=400.0) as bad:
        await bad.command({"fault": "sigterm", "linger_s": 2.0})
        waiting = asyncio.ensure_future(bad.ask(BODY))
        await eventually(lambda: _busy(bad))
        stopping = asyncio.ensure_future(bad.server.stop())
        await eventually(lambda: _unhealthy(bad))
        new, whole = await bad.ask(BODY), await bad.ask(WHOLE)
        shown = await bad.shown("sigterm")
        await stopping
        for heard in (new, await waiting):
            error, done = heard.events
            assert (heard.status, done) == (200, b"data: [DONE]")
            assert json.loads(error[6:])["error"]["code"] >= 500
        assert whole.status == 500
        assert shown == 3


async def _busy(bad: Rig) -> bool:
    return await metric(bad.client, "vllm:num_requests_running") == 1


async def _unhealthy(bad: Rig) -> bool:
    return (await bad.client.get("/health")).status_code == 503


# -- telling it to -----------------------------------------------------------------------------------------------------


async def test_only_prefill_legs_or_only_decode_legs() -> None:
    async with rig(role=KvTransfer()) as bad:
        leg = {**WHOLE, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
        await bad.command({"fault": "status", "status": 500, "scope": {"legs": "prefill"}})
        assert [(await bad.ask(body)).status for body in (leg, WHOLE)] == [500, 200]
        await bad.command({"fault": "status", "status": 500, "scope": {"legs": "decode"}})
        assert [(await bad.ask(body)).status for body in (leg, WHOLE)] == [200, 500]


async def test_the_state_shows_what_is_on_and_what_has_shown() -> None:
    """With every default, the requests that got each fault, and counts that outlive the faults."""
    async with rig() as bad:
        await bad.command({"fault": "status", "status": 503, "scope": {"requests": 2}}, {"fault": "slow", "factor": 2})
        assert [(await bad.ask(WHOLE)).status for _ in range(3)] == [503, 503, 200]
        state = (await bad.client.get(bad.url)).json()
        scope = {"share": 1.0, "seed": 0, "requests": None, "paths": None, "legs": "all", "prompt": None}
        assert state["faults"] == [
            {"fault": "status", "scope": {**scope, "requests": 2}, "status": 503, "given": 2},
            {"fault": "slow", "scope": scope, "factor": 2.0, "given": 1},
        ]
        assert set(state["shown"]) == set(NAMES)
        assert (state["shown"]["status"], state["shown"]["slow"]) == (2, 1)
        assert (await bad.command())["shown"] == state["shown"]


async def test_the_control_route_names_what_is_wrong() -> None:
    """And the faults that were on stay on."""
    async with rig() as bad:
        await bad.command({"fault": "wrong-key"})
        answer = await bad.client.post(bad.url, json={"fault": "hang", "scope": {"share": 7}})
        assert (answer.status_code, answer.json()["error"]["message"]) == (
            400,
            "faults[0].scope.share: must be 1 or less, not 7",
        )
        assert (await bad.client.delete(bad.url)).status_code == 405
        assert (await bad.client.get(bad.url + "s")).status_code == 404
        assert (await bad.ask(BODY)).status == 401


async def test_only_the_port_for_control_has_the_route() -> None:
    """And there is no such port without the option."""
    async with engine_sim() as (server, client):
        assert (server.control_port, (await client.post(PATH, json=[])).status_code) == (0, 404)
    async with rig() as bad:
        assert (await bad.client.post(PATH, json=[])).status_code == 404
