"""Prefill, hand-off and decode behind the proxy face, against engines whose every byte the test chooses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from ballast_core.model import Endpoint, EndpointId, Role
from ballast_core.model.events import EndpointObserved
from tests.support.gateway_kit import (
    RunningGateway,
    assert_openai_error,
    post,
    raw_exchange,
    running_gateway,
    until,
)
from tests.support.scripted_engine import (
    HANDLE,
    SSE_HEAD,
    Asked,
    Script,
    ScriptedEngine,
    chunk,
    completion,
    decode_script,
    json_reply,
    prefill_script,
    scripted_engine,
    sse_events,
    vllm_events,
)

COMPLETION = {"model": "tiny", "prompt": "hello", "max_tokens": 3}
STREAM = {**COMPLETION, "stream": True}
PATH = "/v1/completions"
Writer = asyncio.StreamWriter


class Fleet(AsyncExitStack):
    """Scripted engines and a gateway in front of them, by name: p* prefill, d* decode, f* flexible."""

    def __init__(self, tmp_path: Path, **settings: Any) -> None:
        super().__init__()
        self._tmp_path = tmp_path
        self._settings = settings
        self.engines: dict[str, ScriptedEngine] = {}

    async def serve(self, **scripts: Script) -> RunningGateway:
        for name, script in scripts.items():
            self.engines[name] = await self.enter_async_context(scripted_engine(script))
        addresses = {name: engine.address for name, engine in self.engines.items()}
        return await self.enter_async_context(running_gateway(self._tmp_path, addresses, **self._settings))


def answers(status: int, body: object | None = None) -> Script:
    async def script(asked: Asked, writer: Writer) -> None:
        writer.write(json_reply(body or {"error": {"message": "no", "code": status}}, status))

    return script


def streams(*parts: bytes, end: bool = True, after: Callable[[Writer], Awaitable[None] | None] | None = None) -> Script:
    """An SSE answer in these chunks; `after` may do something before the end."""

    async def script(asked: Asked, writer: Writer) -> None:
        writer.write(SSE_HEAD)
        for part in parts:
            writer.write(chunk(part))
            await writer.drain()
            await asyncio.sleep(0.002)
        if after is not None:
            waiting = after(writer)
            if waiting is not None:
                await waiting
        if end:
            writer.write(b"0\r\n\r\n")

    return script


async def hang_up(asked: Asked, writer: Writer) -> None:
    writer.transport.abort()


async def never(asked: Asked, writer: Writer) -> None:
    await asyncio.Event().wait()


async def drained(gateway: RunningGateway) -> None:
    """Nothing is left in the ledger, however the request ended."""
    await until(lambda: len(gateway.gateway.driver.director.ledger) == 0)


async def test_prefill_hands_its_handle_to_decode(tmp_path: Path) -> None:
    """The order of calls and what each leg is sent."""
    async with Fleet(tmp_path) as fleet:
        gateway = await fleet.serve(p0=prefill_script, d0=decode_script)
        (answer,) = await raw_exchange(gateway.port, post(PATH, STREAM), answers=1)
        prefill, decode = fleet.engines["p0"].asked[0], fleet.engines["d0"].asked[0]
        assert (prefill.body["max_tokens"], prefill.body["stream"]) == (1, False)
        assert prefill.body["kv_transfer_params"]["do_remote_decode"] is True
        assert decode.body == {**STREAM, "kv_transfer_params": HANDLE, "return_token_ids": True}
        assert prefill.headers["x-request-id"] == decode.headers["x-request-id"] == answer.headers["x-request-id"]
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.body == b"".join(sse_events(["a", "b", "c"]))
        line = gateway.request()
        assert (line["prefill"], line["decode"], line["output_tokens"], line["outcome"]) == ("p0", "d0", 3, "completed")
        assert 0 < line["prefill_s"] <= line["ttft_s"] <= line["e2e_s"]


async def test_a_client_that_asks_for_one_token_is_decoded_all_the_same(tmp_path: Path) -> None:
    """The prefill's token is not the client's: the decode engine counts, formats and stops."""
    async with Fleet(tmp_path) as fleet:
        gateway = await fleet.serve(p0=prefill_script, d0=decode_script)
        await raw_exchange(gateway.port, post(PATH, {**COMPLETION, "max_tokens": 1}), answers=1)
        assert fleet.engines["d0"].asked[0].body["max_tokens"] == 1


@pytest.mark.parametrize("reply", [completion("a"), completion("a", kv_transfer_params=None), ["odd"]])
async def test_without_a_handle_decode_computes_the_prompt_itself(tmp_path: Path, reply: object) -> None:
    """Byte for byte what the client sent, and what the gateway asks for beside that."""
    async with Fleet(tmp_path) as fleet:
        gateway = await fleet.serve(p0=answers(200, reply), d0=decode_script)
        for body in (STREAM, {**COMPLETION, "n": 2}):
            (answer,) = await raw_exchange(gateway.port, post(PATH, body), answers=1)
            assert answer.status == 200
        streamed, whole = (asked.raw for asked in fleet.engines["d0"].asked)
        assert streamed == json.dumps(STREAM).encode()[:-1] + b',"return_token_ids":true}'
        assert whole == json.dumps({**COMPLETION, "n": 2}).encode()


@pytest.mark.parametrize("more", [{"n": 2}, {"prompt_logprobs": 1}, {"echo": True, "logprobs": 1}], ids=str)
async def test_what_cannot_be_handed_off_skips_the_prefill_leg(tmp_path: Path, more: dict[str, Any]) -> None:
    """NIXL has no handle for several choices, and for a prompt's log-probabilities vLLM reads no KV: the work would be
    done twice."""
    async with Fleet(tmp_path) as fleet:
        gateway = await fleet.serve(p0=prefill_script, d0=decode_script)
        await raw_exchange(gateway.port, post(PATH, {**COMPLETION, **more}), answers=1)
        assert (fleet.engines["p0"].asked, len(fleet.engines["d0"].asked)) == ([], 1)
        await drained(gateway)


@pytest.mark.parametrize("told", [True, False])
async def test_engines_get_the_priority_of_a_request_where_the_policy_sets_it(tmp_path: Path, told: bool) -> None:
    """On both legs, in place of the client's own; otherwise that of a client that is trusted passes."""
    queue = {"type": "shortest-prompt", "parameters": {"enginePriority": True}}
    trust = {"priorities": True}
    async with Fleet(tmp_path, trust=trust, **({"policy": {"queue": queue}} if told else {})) as fleet:
        gateway = await fleet.serve(p0=prefill_script, d0=decode_script)
        await raw_exchange(gateway.port, post(PATH, COMPLETION, "x-vllm-priority: -99"), answers=1)
        seen = [fleet.engines[name].asked[0].headers["x-vllm-priority"] for name in ("p0", "d0")]
        assert seen[0] == seen[1]
        assert (seen[0] == "-99") is not told


async def test_no_client_sets_a_priority_by_default(tmp_path: Path) -> None:
    """Neither in the gateway's queue nor in an engine's: not by header, not by field."""
    async with Fleet(tmp_path) as fleet:
        gateway = await fleet.serve(p0=prefill_script, d0=decode_script)
        await raw_exchange(gateway.port, post(PATH, COMPLETION | {"priority": "-9"}, "x-vllm-priority: -9"), answers=1)
        for name in ("p0", "d0"):
            (asked,) = fleet.engines[name].asked
            assert "x-vllm-priority" not in asked.headers
            assert "priority" not in asked.body


async def test_control_fields_and_headers_of_clients_are_stripped(tmp_path: Path) -> None:
    """On both legs: no client chooses an endpoint or reads another client's KV."""
    evil = [
        "X-Gateway-Destination-Endpoint: evil:1",
        "x-gateway-destination-endpoint-subset: evil:1",
        "x-prefiller-host-port: evil:1",
        "X-Data-Parallel-Host-Port: evil:1",
        "x-data-parallel-rank: 3",
        "connection: keep-alive, x-secret",
        "x-secret: evil",
        "keep-alive: timeout=5",
        "te: trailers",
        "proxy-authorization: evil",
        "accept-encoding: gzip",
        "x-forwarded-for: 1.2.3.4",
        "authorization: Bearer mine",
    ]
    async with Fleet(tmp_path) as fleet:
        gateway = await fleet.serve(p0=prefill_script, d0=decode_script)
        body = {**COMPLETION, "kv_transfer_params": {"remote_host": "evil"}}
        (answer,) = await raw_exchange(gateway.port, post(PATH, body, *evil), answers=1)
        assert answer.status == 200
        for name in ("p0", "d0"):
            (asked,) = fleet.engines[name].asked
            assert "evil" not in json.dumps(asked.headers) + asked.raw.decode()
            assert set(asked.headers) == {
                "host",
                "content-type",
                "content-length",
                "x-request-id",
                "x-forwarded-for",
                "authorization",
            }


async def test_internals_of_engines_do_not_reach_clients(tmp_path: Path) -> None:
    """Hop-by-hop headers and load reports."""

    async def script(asked: Asked, writer: Writer) -> None:
        extra = b"keep-alive: timeout=5\r\nendpoint-load-metrics: JSON {}\r\nx-custom: yes\r\nx-request-id: engine\r\n"
        writer.write(json_reply(completion(), extra=extra))

    async with Fleet(tmp_path) as fleet:
        gateway = await fleet.serve(f0=script)
        (answer,) = await raw_exchange(gateway.port, post(PATH, COMPLETION, "x-request-id: mine"), answers=1)
        assert set(answer.headers) == {"content-type", "content-length", "x-custom", "x-request-id"}
        assert answer.headers["x-request-id"] == "mine"


async def test_request_ids_in_flight_are_unique(tmp_path: Path) -> None:
    """Two requests of one id at a time: the second gets an id of its own, as does one with an odd id."""
    release = asyncio.Event()

    async def script(asked: Asked, writer: Writer) -> None:
        await release.wait()
        writer.write(json_reply(completion()))

    async with Fleet(tmp_path) as fleet:
        gateway = await fleet.serve(f0=script)
        calls = [
            asyncio.create_task(raw_exchange(gateway.port, post(PATH, COMPLETION, f"x-request-id: {given}"), answers=1))
            for given in ("same", "same", "not ok")
        ]
        await until(lambda: len(fleet.engines["f0"].asked) == 3)
        release.set()
        ids = [(await call)[0].headers["x-request-id"] for call in calls]
        assert "same" in ids
        assert len(set(ids)) == 3
        assert "not ok" not in ids


async def test_late_binding_follows_the_load_at_hand_off(tmp_path: Path) -> None:
    """While it prefills, its decode endpoint gets busy: the hand-off goes to the other one."""
    release = asyncio.Event()

    async def slow_prefill(asked: Asked, writer: Writer) -> None:
        await release.wait()
        await prefill_script(asked, writer)

    async with Fleet(tmp_path) as fleet:
        gateway = await fleet.serve(p0=slow_prefill, d0=decode_script, d1=decode_script)
        call = asyncio.create_task(raw_exchange(gateway.port, post(PATH, COMPLETION), answers=1))
        await until(lambda: len(fleet.engines["p0"].asked) == 1)
        (entry,) = list(gateway.gateway.driver.director.ledger)
        assert entry.decode_slot is not None
        first = gateway.gateway.driver.director.inventory.endpoint(entry.decode_slot).id
        other = {"d0": "d1", "d1": "d0"}[first]
        gauges = fleet.engines[first].metrics.replace(
            b'requests_running{engine="0",model_name="tiny"} 0.0', b'requests_running{engine="0",model_name="tiny"} 9.0'
        )
        assert gauges != fleet.engines[first].metrics
        fleet.engines[first].metrics = gauges
        scrapes = fleet.engines[first].scrapes
        await until(lambda: fleet.engines[first].scrapes >= scrapes + 4)
        release.set()
        (answer,) = await call
        assert answer.status == 200
        assert len(fleet.engines[other].asked) == 1
        assert fleet.engines[first].asked == []
        decisions = gateway.gateway.decisions.last(10)
        assert [d["decision"] for d in decisions] == ["handoff", "dispatch"]
        assert (decisions[0]["decode"], decisions[1]["decode"]) == (other, first)


@pytest.mark.parametrize("status", [500, 502, 503])
@pytest.mark.parametrize("stage", ["prefill", "decode"])
async def test_an_engine_that_answers_5xx_is_replaced_by_another(tmp_path: Path, stage: str, status: int) -> None:
    """vLLM's admission limits answer 503: the client does not see it."""
    bad = answers(status)
    scripts: dict[str, Script] = (
        {"p0": bad, "p1": prefill_script, "d0": decode_script}
        if stage == "prefill"
        else {"p0": prefill_script, "d0": bad, "d1": decode_script}
    )
    async with Fleet(tmp_path) as fleet:
        gateway = await fleet.serve(**scripts)
        results = [await raw_exchange(gateway.port, post(PATH, COMPLETION), answers=1) for _ in range(4)]
        assert [answer.status for (answer,) in results] == [200] * 4
        lines = gateway.requests()
        assert sum(line.get("retries", 0) for line in lines) >= 1
        assert len(fleet.engines["p0" if stage == "prefill" else "d0"].asked) >= 1
        await drained(gateway)


async def test_an_endpoint_that_refuses_connections_is_replaced_by_another(tmp_path: Path) -> None:
    """Known to the Director, gone from the network, and not yet noticed by the scrapes."""
    async with Fleet(tmp_path) as fleet:
        gateway = await fleet.serve(p0=prefill_script, d0=decode_script)
        async with scripted_engine(decode_script) as gone:
            address = gone.address
        gateway.gateway.driver.feed(EndpointObserved(Endpoint(EndpointId("a-dead"), address, Role.DECODE)))
        (answer,) = await raw_exchange(gateway.port, post(PATH, COMPLETION), answers=1)
        assert answer.status == 200
        line = gateway.request()
        assert (line["decode"], line["retries"]) == ("d0", 1)


@pytest.mark.parametrize("body", [STREAM, COMPLETION])
async def test_when_every_engine_fails_the_client_gets_503(tmp_path: Path, body: dict[str, object]) -> None:
    """With a reason and a time to come back after."""
    async with Fleet(tmp_path) as fleet:
        fails = answers(500, {})
        gateway = await fleet.serve(p0=fails, d0=fails)
        (answer,) = await raw_exchange(gateway.port, post(PATH, body), answers=1)
        error = assert_openai_error(answer)
        assert (answer.status, error["code"]) == (503, "upstream-failed")
        assert int(answer.headers["retry-after"]) > 0
        assert "127.0.0.1" not in error["message"]
        await drained(gateway)


@pytest.mark.parametrize("status", [400, 404, 422, 429])
async def test_a_4xx_on_which_engines_agree_reaches_the_client_as_it_is(tmp_path: Path, status: int) -> None:
    """None is asked twice."""
    refuses = answers(status, {"error": {"message": "too long"}})
    async with Fleet(tmp_path) as fleet:
        gateway = await fleet.serve(p0=refuses, d0=refuses)
        (answer,) = await raw_exchange(gateway.port, post(PATH, STREAM), answers=1)
        assert (answer.status, answer.json()) == (status, {"error": {"message": "too long"}})
        assert [len(engine.asked) for engine in fleet.engines.values()] == [1, 1]
        await drained(gateway)


@pytest.mark.parametrize("stage", ["p0", "d0"])
@pytest.mark.parametrize("status", [400, 404, 422, 429])
async def test_a_4xx_of_one_engine_alone_does_not(tmp_path: Path, stage: str, status: int) -> None:
    """The other one serves the request whole."""
    scripts: dict[str, Script] = {"p0": decode_script, "d0": decode_script}
    async with Fleet(tmp_path) as fleet:
        gateway = await fleet.serve(**(scripts | {stage: answers(status, {"error": {"message": "too long"}})}))
        (answer,) = await raw_exchange(gateway.port, post(PATH, STREAM), answers=1)
        assert answer.status == 200
        await drained(gateway)


async def test_no_endpoint_is_a_503_with_a_reason(tmp_path: Path) -> None:
    """And a time to come back after."""
    async with Fleet(tmp_path) as fleet:
        gateway = await fleet.serve()
        (answer,) = await raw_exchange(gateway.port, post(PATH, COMPLETION), answers=1)
        error = assert_openai_error(answer)
        assert (answer.status, error["code"]) == (503, "no-endpoints")
        assert int(answer.headers["retry-after"]) > 0


async def test_beyond_the_limit_in_flight_is_a_429(tmp_path: Path) -> None:
    """And it is taken again when there is room."""
    async with Fleet(tmp_path, limits={"maxInFlight": 1}) as fleet:
        gateway = await fleet.serve(f0=never)
        first = asyncio.create_task(raw_exchange(gateway.port, post(PATH, COMPLETION), answers=1))
        await until(lambda: len(fleet.engines["f0"].asked) == 1)
        (answer,) = await raw_exchange(gateway.port, post(PATH, COMPLETION), answers=1)
        assert (answer.status, assert_openai_error(answer)["code"]) == (429, "saturated")
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await drained(gateway)


@pytest.mark.parametrize("stage", ["p0", "d0"])
@pytest.mark.parametrize("body", [COMPLETION, STREAM], ids=["whole", "stream"])
async def test_a_client_that_leaves_frees_its_engines_at_once(tmp_path: Path, stage: str, body: dict[str, Any]) -> None:
    """The connection to the engine is closed, which is how vLLM learns that it may stop."""
    scripts: dict[str, Script] = {"p0": prefill_script, "d0": decode_script, stage: never}
    async with Fleet(tmp_path) as fleet:
        gateway = await fleet.serve(**scripts)
        _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(post(PATH, body))
        await until(lambda: len(fleet.engines[stage].asked) == 1)
        writer.close()
        async with asyncio.timeout(20):
            await fleet.engines[stage].hung_up.wait()
        await drained(gateway)
        await until(lambda: len(gateway.requests()) == 1)
        line = gateway.request()
        assert (line["outcome"], line["reason"]) == ("cancelled", "client-gone")


async def test_a_client_that_leaves_in_the_middle_of_a_stream_frees_the_engine(tmp_path: Path) -> None:
    """After the first tokens as before them."""
    async with Fleet(tmp_path) as fleet:
        gateway = await fleet.serve(f0=streams(*sse_events(["a"])[:1], after=lambda _: asyncio.Event().wait()))  # type: ignore[arg-type,return-value]
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(post(PATH, STREAM))
        await reader.readuntil(b"\n\n")
        writer.transport.abort()
        async with asyncio.timeout(20):
            await fleet.engines["f0"].hung_up.wait()
        await drained(gateway)


@pytest.mark.parametrize("step", [1, 2, 3, 7, 64])
async def test_a_stream_arrives_whole_however_it_is_cut(tmp_path: Path, step: int) -> None:
    """Chunks that end anywhere in an event, in a line, in a character."""
    whole = b"".join(sse_events(["a", "ü", "\n\n", "data: b", "🙂"]))
    parts = [whole[k : k + step] for k in range(0, len(whole), step)]
    async with Fleet(tmp_path) as fleet:
        gateway = await fleet.serve(f0=streams(*parts))
        (answer,) = await raw_exchange(gateway.port, post(PATH, STREAM), answers=1)
        assert answer.body == whole
        line = gateway.request()
        assert line["output_tokens"] == 5


async def test_an_engine_that_breaks_before_its_first_event_is_replaced(tmp_path: Path) -> None:
    """The head of the answer alone commits to nothing."""
    async with Fleet(tmp_path) as fleet:
        gateway = await fleet.serve(f0=streams(end=False, after=lambda w: w.transport.abort()), f1=decode_script)
        for _ in range(3):
            (answer,) = await raw_exchange(gateway.port, post(PATH, STREAM), answers=1)
            assert answer.body == b"".join(sse_events(["a", "b", "c"]))
        assert len(fleet.engines["f0"].asked) >= 1


WITH_IDS = (
    b'data: {"id":"1","choices":[{"index":0,"text":"a","finish_reason":"stop","prompt_token_ids":[5],"token_ids":[7]}]}'
    b"\n\n",
    b"data: [DONE]\n\n",
)
ABORTED = b'data: {"id":"1","choices":[{"index":0,"text":"","finish_reason":"abort","token_ids":[]}]}\n\n'


@pytest.mark.parametrize("begun", [WITH_IDS[0][:40], ABORTED], ids=["half an event", "an abort"])
async def test_what_an_engine_left_before_its_first_event_does_not_reach_the_next_one(
    tmp_path: Path, begun: bytes
) -> None:
    """The client sees the answer of the second engine alone."""

    async def breaks(asked: Asked, writer: Writer) -> None:
        await streams(begun, end=False, after=lambda writer: writer.transport.abort())(asked, writer)

    async with Fleet(tmp_path) as fleet:
        gateway = await fleet.serve(f0=breaks, f1=streams(*WITH_IDS))
        (answer,) = await raw_exchange(gateway.port, post(PATH, STREAM), answers=1)
        assert answer.body == b"".join(WITH_IDS).replace(b"[5]", b"null").replace(b"[7]", b"null")
        assert [len(engine.asked) for engine in fleet.engines.values()] == [1, 1]
        await drained(gateway)


async def test_a_stream_that_breaks_after_its_first_token_ends_with_an_error_event(tmp_path: Path) -> None:
    """And without its last chunk, so that no client takes it for whole."""
    event = sse_events(["a"])[0]
    async with Fleet(tmp_path) as fleet:
        gateway = await fleet.serve(f0=streams(event, end=False, after=lambda w: w.transport.abort()))
        (answer,) = await raw_exchange(gateway.port, post(PATH, STREAM))
        assert answer.body.startswith(event)
        error = json.loads(answer.body.removeprefix(event).removeprefix(b"data: "))["error"]
        assert error["code"] == "upstream-broke"
        assert not answer.whole
        line = gateway.request()
        assert (line["outcome"], line["reason"]) == ("failed", "upstream-broke")
        await drained(gateway)


async def test_a_stream_that_breaks_inside_of_an_event_is_just_cut(tmp_path: Path) -> None:
    """An error event glued to half an event would be read as neither."""
    part = sse_events(["a"])[0] + b'data: {"cho'
    async with Fleet(tmp_path) as fleet:
        gateway = await fleet.serve(f0=streams(part, end=False, after=lambda w: w.transport.abort()))
        (answer,) = await raw_exchange(gateway.port, post(PATH, STREAM))
        assert (answer.body, answer.whole) == (part, False)


async def test_a_whole_answer_that_breaks_half_way_is_asked_for_again(tmp_path: Path) -> None:
    """Nothing had gone to the client yet."""

    async def half(asked: Asked, writer: Writer) -> None:
        writer.write(json_reply(completion())[:-20])
        await writer.drain()
        writer.transport.close()

    async with Fleet(tmp_path) as fleet:
        gateway = await fleet.serve(f0=half, f1=decode_script)
        for _ in range(3):
            (answer,) = await raw_exchange(gateway.port, post(PATH, COMPLETION), answers=1)
            assert answer.json()["choices"][0]["text"] == "abc"
        assert len(fleet.engines["f0"].asked) >= 1


async def test_an_engine_that_answers_no_http_is_replaced(tmp_path: Path) -> None:
    """Whatever listens there."""

    async def garbage(asked: Asked, writer: Writer) -> None:
        writer.write(b"220 mail.example ESMTP\r\n")

    async with Fleet(tmp_path) as fleet:
        gateway = await fleet.serve(f0=garbage, f1=decode_script)
        for _ in range(3):
            (answer,) = await raw_exchange(gateway.port, post(PATH, COMPLETION), answers=1)
            assert answer.status == 200


async def test_a_body_that_ends_with_its_connection_is_whole(tmp_path: Path) -> None:
    """RFC 9112 section 6.3: neither length nor chunks."""

    async def script(asked: Asked, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n" + json.dumps(completion()).encode())
        await writer.drain()
        writer.close()

    async with Fleet(tmp_path) as fleet:
        gateway = await fleet.serve(f0=script)
        (answer,) = await raw_exchange(gateway.port, post(PATH, COMPLETION), answers=1)
        assert answer.json() == completion()


async def test_a_pooled_connection_that_the_engine_closed_is_no_failure(tmp_path: Path) -> None:
    """The request goes over a new connection to the same engine; no retry is counted."""
    async with Fleet(tmp_path, scrape={"intervalS": 60}) as fleet:
        gateway = await fleet.serve(f0=decode_script)
        engine = fleet.engines["f0"]
        for turn in range(4):
            engine.close_after = turn % 2 == 1
            (answer,) = await raw_exchange(gateway.port, post(PATH, COMPLETION), answers=1)
            assert answer.status == 200
        assert all("retries" not in line for line in gateway.requests())


async def test_connections_to_engines_are_reused(tmp_path: Path) -> None:
    """One connection carries many requests in a row."""
    async with Fleet(tmp_path, scrape={"intervalS": 60}) as fleet:
        gateway = await fleet.serve(p0=prefill_script, d0=decode_script)
        before = {name: engine.connections for name, engine in fleet.engines.items()}
        await raw_exchange(gateway.port, *[post(PATH, STREAM)] * 20, answers=20)
        assert all(fleet.engines[name].connections - before[name] <= 1 for name in before)


async def test_a_slow_reader_slows_its_engine_down(tmp_path: Path) -> None:
    """Backpressure: the gateway holds a bounded part of what the client does not read."""
    sent = 0
    part = b"data: %b\n\n" % (b"x" * 65536)

    async def flood(asked: Asked, writer: Writer) -> None:
        nonlocal sent
        writer.write(SSE_HEAD)
        for _ in range(800):
            writer.write(chunk(part))
            await writer.drain()
            sent += len(part)
        writer.write(b"0\r\n\r\n")

    async with Fleet(tmp_path) as fleet:
        gateway = await fleet.serve(f0=flood)
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port, limit=1 << 16)
        writer.write(post(PATH, STREAM))
        await reader.readexactly(1000)
        last = -1
        while sent != last:
            last = sent
            await asyncio.sleep(0.3)
        assert sent < 800 * len(part) / 2
        received = 1000
        async with asyncio.timeout(60):
            while received < 800 * len(part):
                received += len(await reader.read(1 << 20))
        writer.close()


async def test_a_client_that_stops_reading_is_given_up(tmp_path: Path) -> None:
    """It would hold its engine for ever."""
    part = b"data: %b\n\n" % (b"x" * 65536)
    async with Fleet(tmp_path, limits={"clientStallTimeoutS": 0.5}) as fleet:
        gateway = await fleet.serve(f0=streams(*[part] * 2000))
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port, limit=1 << 16)
        writer.write(post(PATH, STREAM))
        await reader.readexactly(1000)
        async with asyncio.timeout(30):
            await fleet.engines["f0"].hung_up.wait()
        writer.transport.abort()
        await drained(gateway)


async def test_an_engine_that_falls_silent_in_a_stream_is_given_up(tmp_path: Path) -> None:
    """The client gets an error event, and the engine's connection is closed."""
    event = sse_events(["a"])[0]
    async with Fleet(tmp_path, limits={"idleTimeoutS": 0.3}) as fleet:
        gateway = await fleet.serve(f0=streams(event, after=lambda _: asyncio.Event().wait()))  # type: ignore[arg-type,return-value]
        (answer,) = await raw_exchange(gateway.port, post(PATH, STREAM))
        assert b"upstream-broke" in answer.body
        async with asyncio.timeout(20):
            await fleet.engines["f0"].hung_up.wait()


@pytest.mark.parametrize("event", [sse_events(["a"])[0], vllm_events(["a", "b"])[0]], ids=["passed", "held"])
async def test_comments_are_no_sign_of_life(tmp_path: Path, event: bytes) -> None:
    """vLLM's API server sends them while its engine hangs (`--sse-keep-alive-interval`). Clients get them, and they
    count as no token."""

    async def hangs(writer: Writer) -> None:
        while not writer.is_closing():
            writer.write(chunk(b": keep-alive\n\n"))
            await asyncio.sleep(0.05)

    async with Fleet(tmp_path, limits={"idleTimeoutS": 0.5}) as fleet:
        gateway = await fleet.serve(f0=streams(event, after=hangs))
        (answer,) = await raw_exchange(gateway.port, post(PATH, STREAM))
        assert b": keep-alive\n\n" in answer.body
        assert b"upstream-broke" in answer.body
        assert gateway.request()["output_tokens"] == 1


async def test_a_prefill_that_takes_too_long_is_tried_elsewhere(tmp_path: Path) -> None:
    """`limits.prefillTimeoutS`."""
    async with Fleet(tmp_path, limits={"prefillTimeoutS": 0.3}) as fleet:
        gateway = await fleet.serve(p0=never, p1=prefill_script, d0=decode_script)
        for _ in range(2):
            (answer,) = await raw_exchange(gateway.port, post(PATH, COMPLETION), answers=1)
            assert answer.status == 200


async def test_a_request_is_held_until_an_endpoint_appears(tmp_path: Path) -> None:
    """`limits.holdS`: a pod that is about to be ready."""
    async with Fleet(tmp_path, limits={"holdS": 30}) as fleet, scripted_engine(decode_script) as late:
        gateway = await fleet.serve()
        call = asyncio.create_task(raw_exchange(gateway.port, post(PATH, COMPLETION), answers=1))
        await until(lambda: len(gateway.gateway.driver.director.ledger) == 1)
        gateway.gateway.driver.feed(EndpointObserved(Endpoint(EndpointId("d9"), late.address, Role.FLEXIBLE)))
        (answer,) = await call
        assert answer.status == 200
