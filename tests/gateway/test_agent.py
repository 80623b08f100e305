"""The pod agent with engines whose every byte the test chooses: plans, fall-backs, and bytes that are passed on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, Literal

import pytest
import uvicorn

from ballast_core.model import Role
from ballast_gateway.podapi import messages
from ballast_gateway.podapi.messages import (
    Began,
    CancelOrder,
    DrainOrder,
    Ended,
    Engine,
    LeaveOrder,
    LegFailed,
    Opened,
    Prefilled,
    Redirected,
    Signs,
)
from ballast_gateway.podapi.plan import Place
from ballast_gateway.podapi.server import METRICS, READY
from tests.support.agents import agents, ask, plan, plan_header, running_agent
from tests.support.gateway_kit import assert_openai_error, post, raw_exchange, running_gateway, until
from tests.support.pod_api_calls import call, listening, order, request_bytes
from tests.support.scripted_engine import (
    HANDLE,
    SSE_HEAD,
    Asked,
    chunk,
    decode_script,
    json_reply,
    prefill_script,
    scripted_engine,
    silent_server,
    vllm_events,
)

BODY = {"model": "tiny", "prompt": [1, 2, 3], "max_tokens": 3, "stream": True}
GONE = "127.0.0.1:9"


async def whole_script(asked: Asked, writer: asyncio.StreamWriter) -> None:
    """Prefills and decodes, with token ids, and goes on from where a stream broke."""
    if "kv_transfer_params" in asked.body and asked.body["kv_transfer_params"].get("do_remote_decode"):
        await prefill_script(asked, writer)
        return
    prompt = asked.body["prompt"]
    texts = ["a", "b", "c"][len(prompt) - 3 :]
    events = vllm_events(texts, prompt=prompt, usage=bool(asked.body.get("stream_options")))
    writer.write(SSE_HEAD + b"".join(chunk(event) for event in events) + b"0\r\n\r\n")


async def refusing_script(asked: Asked, writer: asyncio.StreamWriter) -> None:
    writer.write(json_reply({"error": {"message": "too long"}}, 400))


async def breaking_script(asked: Asked, writer: asyncio.StreamWriter) -> None:
    """Breaks off after one token."""
    writer.write(SSE_HEAD + chunk(vllm_events(["a", "b", "c"])[0]))
    await writer.drain()
    writer.transport.abort()


def text_of(body: bytes) -> str:
    """What a client reads."""
    events = [line.removeprefix(b"data: ") for line in body.split(b"\n\n") if line.startswith(b"data: {")]
    choices = [choice for event in events for choice in json.loads(event)["choices"]]
    return "".join(choice["text"] for choice in choices)


# --- planned requests -----------------------------------------------------------------------------------------------


async def test_a_planned_request_has_the_bytes_of_the_proxy_face(tmp_path: Path) -> None:
    """Prefill there, decode on the pod's own engine, and every byte as through `ballast gateway`."""
    async with scripted_engine(whole_script) as prefill, scripted_engine(whole_script) as decode:
        async with running_gateway(tmp_path, {"p0": prefill.address, "d0": decode.address}) as gateway:
            (expected,) = await raw_exchange(gateway.port, post("/v1/completions", BODY), answers=1)
        for engine in (prefill, decode):
            engine.asked.clear()
        async with agents(tmp_path, {"p0": prefill.address, "d0": decode.address}) as running:
            at = running["d0"]
            async with listening(at.pod_api) as (_, lines):
                answer = await ask(at, BODY, plan_header(plan(at.place, running["p0"].place)))
                assert (answer.status, answer.body) == (200, expected.body)
                kinds = [type(await lines.next()) for _ in range(4)]
                assert kinds == [Opened, Prefilled, Began, Ended]
        (prefilled,), (decoded,) = prefill.asked, decode.asked
        assert prefilled.body["max_tokens"] == 1
        assert decoded.body["kv_transfer_params"] == HANDLE
        assert not {"x-ballast-plan", "x-prefiller-host-port"} & (prefilled.headers.keys() | decoded.headers.keys())


async def test_a_whole_answer_is_that_of_the_proxy_face(tmp_path: Path) -> None:
    """`stream: false` is watched as a stream inside."""
    body = {**BODY, "stream": False}
    async with scripted_engine(decode_script) as engine:
        async with running_gateway(tmp_path, {"f0": engine.address}) as gateway:
            (expected,) = await raw_exchange(gateway.port, post("/v1/completions", body), answers=1)
        async with agents(tmp_path, {"f0": engine.address}) as running:
            answer = await ask(running["f0"], body, plan_header(plan(running["f0"].place)))
        assert (answer.status, answer.json()) == (200, expected.json())
        assert [asked.body["stream"] for asked in engine.asked] == [True, True]


async def test_rows_say_what_is_held(tmp_path: Path) -> None:
    """With what the picker said about it."""
    begun = asyncio.Event()

    async def slow(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(vllm_events(["a", "b", "c"])[0]))
        await begun.wait()

    async with scripted_engine(slow) as engine, running_agent(tmp_path, engine.address) as at:
        planned = plan(at.place, prompt_tokens=77, traffic_class="chat", tenant="t", max_output_tokens=9)
        asking = asyncio.create_task(ask(at, BODY, plan_header(planned)))
        await until(lambda: [row.generated_tokens for row in at.agent.feed.state().requests] == [1])
        (row,) = (await call(at.pod_api, "GET", messages.STATE)).json()["requests"]
        assert (row["id"], row["by"], row["decode"], row["phase"]) == ("r1", "gw-a", "d0", "decoding")
        assert (row["prompt_tokens"], row["traffic_class"], row["tenant"]) == (77, "chat", "t")
        assert row["movable"] is True
        asking.cancel()
        await until(lambda: not at.agent.face.held)
        await asyncio.wait_for(engine.hung_up.wait(), 20)


@pytest.mark.parametrize("where", ["named", "inventory"])
async def test_a_dead_prefiller_is_replaced(tmp_path: Path, where: str) -> None:
    """By the plan's fall-back, else by one of the inventory; the own engine stays the decode endpoint."""
    async with scripted_engine(whole_script) as prefill, scripted_engine(whole_script) as decode:
        async with agents(tmp_path, {"p1": prefill.address, "d0": decode.address}) as running:
            at, dead = running["d0"], Place("p0", GONE, Role.PREFILL)
            named = (running["p1"].place,) if where == "named" else ()
            async with listening(at.pod_api) as (_, lines):
                answer = await ask(at, BODY, plan_header(plan(at.place, dead, prefill_fallbacks=named)))
                assert text_of(answer.body) == "abc"
                failed = await lines.until(LegFailed)
                assert isinstance(failed, LegFailed)
                assert (failed.stage, failed.endpoint, failed.fault) == ("prefill", "p0", "unreachable")
                redirected = await lines.next()
                assert isinstance(redirected, Redirected)
                assert (redirected.decode, redirected.prefill) == ("d0", "p1")
        assert len(prefill.asked) == 1


async def test_without_any_prefiller_the_engine_computes_the_prompt(tmp_path: Path) -> None:
    """As the proxy face does."""
    async with scripted_engine(whole_script) as decode, agents(tmp_path, {"d0": decode.address}) as running:
        at = running["d0"]
        answer = await ask(at, BODY, plan_header(plan(at.place, Place("p0", GONE, Role.PREFILL))))
        assert text_of(answer.body) == "abc"
        assert "kv_transfer_params" not in decode.asked[0].body


@pytest.mark.parametrize("engine_dies", ["before", "in the middle"])
async def test_an_engine_that_dies_behind_a_live_agent_is_replaced(tmp_path: Path, engine_dies: str) -> None:
    """Before the first byte, and in the middle of the stream: no byte is lost or doubled."""
    async with scripted_engine(breaking_script) as bad, scripted_engine(whole_script) as good:
        address = bad.address if engine_dies == "in the middle" else GONE
        async with agents(tmp_path, {"d0": address, "d1": good.address}) as running:
            at = running["d0"]
            async with listening(at.pod_api) as (_, lines):
                answer = await ask(at, BODY, plan_header(plan(at.place)))
                assert text_of(answer.body) == "abc"
                redirected = await lines.until(Redirected)
                assert isinstance(redirected, Redirected)
                assert redirected.decode == "d1"
                ended = await lines.until(Ended)
                assert isinstance(ended, Ended)
                assert (ended.outcome, ended.output_tokens) == ("completed", 3)


async def test_the_plans_fall_backs_come_before_others_and_unusable_ones_are_passed_over(tmp_path: Path) -> None:
    """In the plan's order."""
    async with scripted_engine(whole_script) as good:
        engines = {"d0": GONE, "d1": good.address, "d2": good.address, "d3": good.address}
        async with agents(tmp_path, engines) as running:
            at = running["d0"]
            await at.listed([each.place for each in running.values()], unusable=["d1"])
            fallbacks = (running["d1"].place, running["d3"].place, running["d2"].place)
            async with listening(at.pod_api) as (_, lines):
                answer = await ask(at, BODY, plan_header(plan(at.place, fallbacks=fallbacks)))
                assert text_of(answer.body) == "abc"
                redirected = await lines.until(Redirected)
                assert isinstance(redirected, Redirected)
                assert redirected.decode == "d3"


async def test_where_all_are_dead_the_error_is_that_of_the_proxy_face(tmp_path: Path) -> None:
    """503 with its reason, after `max_retries` more, none twice."""
    async with running_agent(tmp_path, GONE) as at:
        dead = tuple(Place(f"d{number}", GONE, Role.DECODE) for number in range(1, 6))
        async with listening(at.pod_api) as (_, lines):
            answer = await ask(at, BODY, plan_header(plan(at.place, fallbacks=dead, max_retries=2)))
            assert answer.status == 503
            assert assert_openai_error(answer)["code"] == "upstream-failed"
            assert answer.headers["retry-after"]
            failed = [await lines.until(LegFailed) for _ in range(3)]
            assert [each.endpoint for each in failed if isinstance(each, LegFailed)] == ["d0", "d1", "d2"]
            ended = await lines.until(Ended)
            assert isinstance(ended, Ended)
            assert ended.outcome == "failed"


async def test_what_two_engines_refuse_is_the_clients_fault(tmp_path: Path) -> None:
    """Their own 400 goes to the client."""
    async with (
        scripted_engine(refusing_script) as first,
        scripted_engine(refusing_script) as second,
        agents(tmp_path, {"d0": first.address, "d1": second.address, "d2": second.address}) as running,
    ):
        answer = await ask(running["d0"], BODY, plan_header(plan(running["d0"].place)))
        assert (answer.status, answer.json()) == (400, {"error": {"message": "too long"}})
        assert len(first.asked) + len(second.asked) == 2


async def test_an_agent_that_envoy_falls_back_to_serves(tmp_path: Path) -> None:
    """It finds itself among the fall-backs, and those before it are not asked again."""
    async with scripted_engine(whole_script) as engine, running_agent(tmp_path, engine.address, name="d1") as at:
        gone = Place("d0", GONE, Role.DECODE)
        async with listening(at.pod_api) as (_, lines):
            answer = await ask(at, BODY, plan_header(plan(gone, fallbacks=(at.place,))))
            assert text_of(answer.body) == "abc"
            opened = await lines.next()
            assert isinstance(opened, Opened)
            assert opened.request.decode == "d1"


async def test_a_plan_that_is_wrong_is_refused_and_the_engine_is_not_asked(tmp_path: Path) -> None:
    """Forged, out of date, twice, or for another place."""
    async with scripted_engine(whole_script) as engine, running_agent(tmp_path, engine.address) as at:
        other = plan(Place("d9", GONE, Role.DECODE))
        good = plan_header(plan(at.place))
        for lines, status, code in (
            ((plan_header(plan(at.place), token=b"another-fleets-token"),), 403, "plan-refused"),
            ((plan_header(plan(at.place), at_s=time.time() - 3600),), 403, "plan-refused"),
            ((good[:-4] + "AAAA",), 403, "plan-refused"),
            (("x-ballast-plan: x",), 403, "plan-refused"),
            ((good, good), 403, "plan-refused"),
            ((plan_header(other),), 421, "not-planned-here"),
        ):
            answer = await ask(at, BODY, *lines)
            assert (answer.status, assert_openai_error(answer)["code"]) == (status, code)
        bad = await ask(at, {**BODY, "max_tokens": "many"}, good)
        assert bad.status == 400
        assert engine.asked == []
        assert at.agent.face.clients.held_bytes == 0
        text = (await call(at.pod_api, "GET", METRICS)).body.decode()
        assert 'ballast_agent_refusals_total{reason="plan-refused"} 5' in text


async def test_one_key_is_held_once(tmp_path: Path) -> None:
    """A plan that is sent again while its request runs is a 409; after its end it is taken."""
    go_on = asyncio.Event()

    async def waiting(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await go_on.wait()
        await whole_script(asked, writer)

    async with scripted_engine(waiting) as engine, running_agent(tmp_path, engine.address) as at:
        header = plan_header(plan(at.place))
        first = asyncio.create_task(ask(at, BODY, header))
        await until(lambda: at.agent.face.held)
        again = await ask(at, BODY, header)
        assert (again.status, assert_openai_error(again)["code"]) == (409, "held-already")
        go_on.set()
        assert text_of((await first).body) == "abc"
        assert (await ask(at, BODY, header)).status == 200


async def test_a_large_planned_body_is_read_on_the_thread(tmp_path: Path) -> None:
    """And held like any other."""
    body = {**BODY, "prompt": [1, 2, 3], "user": "x" * 200_000}
    async with scripted_engine(whole_script) as engine, running_agent(tmp_path, engine.address) as at:
        answer = await ask(at, body, plan_header(plan(at.place)))
        assert text_of(answer.body) == "abc"
        assert at.agent.face.clients.held_bytes == 0


@pytest.mark.parametrize(("length", "limit"), [(3000, 2000), (9000, 6000)])
async def test_a_body_that_is_too_large_names_the_agents_flag(tmp_path: Path, length: int, limit: int) -> None:
    """An agent has no `limits` of a gateway's settings; nor has its pod API."""
    body = {**BODY, "user": "x" * length}
    most: dict[str, Any] = {"max_body_bytes": 6000, "max_text_body_bytes": 2000}
    async with scripted_engine(whole_script) as engine, running_agent(tmp_path, engine.address, **most) as at:
        answer = await ask(at, body, plan_header(plan(at.place)))
        said = assert_openai_error(answer)["message"]
        assert (answer.status, f"{limit} bytes, this agent's --max-body-mib" in said) == (413, True), said
        refused = await call(at.pod_api, "POST", messages.LEAVE, b" " * (64 * 1024 + 1))
        assert (refused.status, "the pod API's bound" in refused.json()["error"]["message"]) == (413, True)


# --- orders ---------------------------------------------------------------------------------------------------------


async def test_a_request_is_cancelled_by_order(tmp_path: Path) -> None:
    """Its engine is left, and its stream ends with an error event."""

    async def endless(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(vllm_events(["a", "b", "c"])[0]))
        await asyncio.Event().wait()

    async with scripted_engine(endless) as engine, running_agent(tmp_path, engine.address) as at:
        asking = asyncio.create_task(ask(at, BODY, plan_header(plan(at.place))))
        async with listening(at.pod_api) as (_, lines):
            await until(lambda: at.agent.feed.state().requests and at.agent.feed.state().requests[0].generated_tokens)
            assert (await order(at.pod_api, messages.CANCEL, CancelOrder("r1", "gw-b"))).status == 404
            assert (await order(at.pod_api, messages.CANCEL, CancelOrder("r1", "gw-a"))).status == 202
            ended = await lines.until(Ended)
            assert isinstance(ended, Ended)
            assert ended.outcome == "cancelled"
        answer = await asking
        assert not answer.whole
        assert b'"code": "cancelled"' in answer.body
        await asyncio.wait_for(engine.hung_up.wait(), 20)
        assert (await order(at.pod_api, messages.CANCEL, CancelOrder("r1"))).status == 404


async def test_a_silent_engine_is_left_by_order(tmp_path: Path) -> None:
    """The stream goes on elsewhere; an order about another endpoint is refused."""

    async def hangs(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(vllm_events(["a", "b", "c"])[0]))
        await asyncio.Event().wait()

    async with (
        scripted_engine(hangs) as hung,
        scripted_engine(whole_script) as good,
        agents(tmp_path, {"d0": hung.address, "d1": good.address}) as running,
    ):
        at = running["d0"]
        asking = asyncio.create_task(ask(at, BODY, plan_header(plan(at.place))))
        async with listening(at.pod_api) as (_, lines):
            signs = await lines.until(Signs)
            assert isinstance(signs, Signs)
            assert signs.engines["d0"][0] == 1
            await until(lambda: at.agent.feed.state().requests[0].generated_tokens)
            assert (await order(at.pod_api, messages.LEAVE, LeaveOrder("r1", "d1"))).status == 409
            assert (await order(at.pod_api, messages.LEAVE, LeaveOrder("r1", "d0", "silent"))).status == 202
            assert text_of((await asking).body) == "abc"
            failed = await lines.until(LegFailed)
            assert isinstance(failed, LegFailed)
            assert failed.fault == "silent"


async def test_orders_that_cannot_be_followed_name_their_reason(tmp_path: Path) -> None:
    """And nothing moves."""
    go_on = asyncio.Event()

    async def waiting(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await go_on.wait()
        await whole_script(asked, writer)

    async with (
        scripted_engine(waiting) as engine,
        agents(tmp_path, {"d0": engine.address, "d1": engine.address, "p0": engine.address}) as running,
    ):
        at = running["d0"]
        asking = asyncio.create_task(ask(at, BODY, plan_header(plan(at.place))))
        await until(lambda: at.agent.face.held)
        for request, target, status, code in (
            ("r9", "d1", 404, "unknown-request"),
            ("r1", "d9", 422, "unknown-target"),
            ("r1", "d0", 422, "unusable-target"),
            ("r1", "p0", 422, "unusable-target"),
            ("r1", "d1", 409, "not-movable"),
        ):
            answer = await at.order_move(request, target)
            assert (answer.status, assert_openai_error(answer)["code"]) == (status, code)
        go_on.set()
        assert text_of((await asking).body) == "abc"


async def test_draining_takes_no_plans_and_lets_streams_end(tmp_path: Path) -> None:
    """Ready says 503; what runs goes on; legs of peers are passed on; drain can be taken back."""
    go_on = asyncio.Event()

    async def waiting(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await go_on.wait()
        await whole_script(asked, writer)

    async with scripted_engine(waiting) as engine, running_agent(tmp_path, engine.address) as at:
        asking = asyncio.create_task(ask(at, BODY, plan_header(plan(at.place))))
        await until(lambda: at.agent.face.held)
        assert (await order(at.pod_api, messages.DRAIN, DrainOrder(on=True))).status == 200
        (ready,) = await raw_exchange(at.pod_api, request_bytes("GET", READY, b""), answers=1)
        assert ready.status == 503
        refused = await ask(at, BODY, plan_header(plan(at.place, id="r2")))
        assert (refused.status, assert_openai_error(refused)["code"]) == (503, "gateway-shutdown")
        draining = asyncio.create_task(at.agent.drain())
        go_on.set()
        assert (await ask(at, BODY)).status == 200
        assert text_of((await asking).body) == "abc"
        assert await draining
        await order(at.pod_api, messages.DRAIN, DrainOrder(on=False))
        assert (await ask(at, BODY, plan_header(plan(at.place, id="r2")))).status == 200


async def test_what_outlasts_the_drain_is_told_why_it_ends(tmp_path: Path) -> None:
    """A stream that is held gets an error event, one that is passed on breaks off."""

    async def endless(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + chunk(vllm_events(["a", "b", "c"])[0]))
        await asyncio.Event().wait()

    async with scripted_engine(endless) as engine, running_agent(tmp_path, engine.address, drain_timeout_s=0.1) as at:
        asking = [asyncio.create_task(ask(at, BODY, *lines)) for lines in ((plan_header(plan(at.place)),), ())]
        await until(lambda: at.agent.face.held and at.agent.face.passing and len(engine.asked) == 2)
        await until(lambda: at.agent.feed.state().requests[0].generated_tokens)
        assert not await at.agent.drain()
        await at.agent.close()
        held, passed = [await each for each in asking]
        assert b"gateway-shutdown" in held.body
        assert not held.whole
        assert not passed.whole


async def test_the_engines_metrics_are_told_when_they_change(tmp_path: Path) -> None:
    """A scrape a few times a second, a line at a change."""
    async with scripted_engine(whole_script) as engine, running_agent(tmp_path, engine.address) as at:
        async with listening(at.pod_api) as (_, lines):
            first = await lines.until(Engine)
            engine.metrics = re.sub(rb"(running\{.*\}) 0.0", rb"\1 5.0", engine.metrics)
            second = await lines.until(Engine)
        assert isinstance(first, Engine)
        assert isinstance(second, Engine)
        assert (first.endpoint, first.running, second.running) == ("d0", 0, 5)


# --- what is passed on -----------------------------------------------------------------------------------------------


async def test_requests_without_a_plan_pass_as_they_are(tmp_path: Path) -> None:
    """Bodies of peers' legs, any route, any method; of headers only those of control are taken out."""
    async with scripted_engine(whole_script) as engine, running_agent(tmp_path, engine.address) as at:
        body = b'{ "prompt": [1, 2, 3],  "kv_transfer_params": {"do_remote_prefill": true} }'
        control = ("x-data-parallel-rank: 1", "x-prefiller-host-port: 10.0.0.9:80", "x-kept: yes")
        answer = await ask(at, body, *control)
        assert text_of(answer.body) == "abc"
        (asked,) = engine.asked
        assert asked.raw == body
        assert asked.headers["x-kept"] == "yes"
        assert not {"x-data-parallel-rank", "x-prefiller-host-port"} & asked.headers.keys()
        gets = [request_bytes("GET", path, b"") for path in ("/metrics", "/v1/models")]
        page, models = await raw_exchange(at.port, *gets, answers=2)
        assert page.body == models.body == engine.metrics
        assert at.agent.face.passing == 0
        assert at.agent.face.held == {}


@asynccontextmanager
async def raw_server(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    """A server of which the test writes every byte. Yields its address."""
    tasks: set[asyncio.Task[None]] = set()

    async def guarded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            tasks.discard(task)
            writer.transport.abort()

    server = await asyncio.start_server(guarded, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_chunked_uploads_pipelined_requests_and_heads_keep_their_ends(tmp_path: Path) -> None:
    """Framing is followed exactly: each request gets its own answer."""
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            body = b""
            if b"chunked" in head:
                while size := int(await reader.readline(), 16):
                    body += (await reader.readexactly(size + 2))[:-2]
                await reader.readline()
            elif match := re.search(rb"content-length: (\d+)", head):
                body = await reader.readexactly(int(match[1]))
            seen.append(body)
            bare = b"" if head.startswith(b"HEAD") else b"ok"
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n" + bare)

    async with raw_server(serve) as address, running_agent(tmp_path, address) as at:
        upload = b"POST /v1/audio HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        chunks = [chunk(b"x" * 1000) for _ in range(50)]
        answers = await raw_exchange(at.port, upload, *chunks, b"0\r\n\r\n", answers=1)
        assert (answers[0].body, seen.pop()) == (b"ok", b"x" * 50_000)
        several = b"".join(post("/a", b"body %d" % number) for number in range(5))
        answers = await raw_exchange(at.port, several, answers=5)
        assert [answer.body for answer in answers] == [b"ok"] * 5
        assert seen == [b"body %d" % number for number in range(5)]
        split = post("/a", b"slowly")
        answers = await raw_exchange(at.port, *(split[k : k + 7] for k in range(0, len(split), 7)), answers=1)
        assert seen.pop() == b"slowly"
        reader, writer = await asyncio.open_connection("127.0.0.1", at.port)
        writer.write(b"HEAD /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await asyncio.wait_for(reader.read(), 20)).startswith(b"HTTP/1.1 200 OK")
        writer.close()


async def test_a_smuggled_request_is_refused(tmp_path: Path) -> None:
    """What follows a chunked body in the same bytes would reach the engine unread."""
    async with scripted_engine(whole_script) as engine, running_agent(tmp_path, engine.address) as at:
        upload = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
        (answer,) = await raw_exchange(at.port, upload + post("/v1/completions", BODY, "x-data-parallel-rank: 1"))
        assert answer.status == 400
        for bad in (
            b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
            b"POST / HTTP/1.1\r\nhost: x\r\nx-data-parallel-rank : 1\r\n\r\n",
            b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
            b"GET / HTTP/1.1\r\nhost: x\nx-data-parallel-rank: 1\r\n\r\n",
            b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n",
            b"garbage\r\n\r\n",
            b"GET / HTTP/1.1\r\nx: " + b"y" * 100_000,
        ):
            (answer,) = await raw_exchange(at.port, bad)
            assert 400 <= answer.status < 500, bad[:40]
        assert engine.asked == []


async def _echoing_app(scope: Any, receive: Any, send: Any) -> None:
    """Says what it was asked; /slow takes a while to."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    await asyncio.sleep(0.2 if scope["path"] == "/slow" else 0.05)
    said = scope["path"].encode() + b" " + body
    headers = [(b"content-length", b"%d" % len(said))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": said})


@asynccontextmanager
async def uvicorn_server(http: Literal["h11", "httptools"]) -> AsyncIterator[str]:
    """The HTTP server that vLLM has, with keep-alive. Yields its address."""
    config = uvicorn.Config(_echoing_app, http=http, log_level="critical", ws="none", lifespan="off")
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving


_SMUGGLED = post("/v1/completions", b"smuggled", "x-data-parallel-rank: 1")
_OFFERS = {
    "a websocket": b"GET /slow HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
    "another": b"GET /slow HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: other\r\n\r\n",
    "with a body": post("/slow", b"body", "connection: upgrade", "upgrade: websocket"),
    "chunked": b"POST /slow HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"transfer-encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("split", [False, True], ids=["at once", "later"])
@pytest.mark.parametrize("http", ["httptools", "h11"])
@pytest.mark.parametrize("offer", _OFFERS.values(), ids=_OFFERS)
async def test_who_offers_an_upgrade_gets_nothing_into_anothers_connection(
    tmp_path: Path, offer: bytes, http: Literal["h11", "httptools"], split: bool
) -> None:
    """A second client and a third get their own answers, whatever was sent behind the offer."""
    async with uvicorn_server(http) as engine, running_agent(tmp_path, engine) as at:
        reader, writer = await asyncio.open_connection("127.0.0.1", at.port)
        writer.writelines([offer] if split else [offer, _SMUGGLED])
        if split:
            await asyncio.sleep(0.1)
            writer.write(_SMUGGLED)
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
        for number in range(2):
            victim = b"victim %d" % number
            (answer,) = await raw_exchange(at.port, post("/v1/completions", victim), answers=1)
            assert answer.body == b"/v1/completions " + victim
        writer.close()


async def test_what_follows_an_offer_waits_for_the_engine_to_take_it(tmp_path: Path) -> None:
    """A WebSocket passes both ways; of one that is not taken nothing more reaches the engine, on a link of its own."""
    takes = asyncio.Event()
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        await asyncio.sleep(0.1)  # what comes after the head has reached the agent
        if takes.is_set():
            writer.write(b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\nhello")
        else:
            writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
        while data := await reader.read(1000):
            seen.append(data)
            writer.write(b"<" + data + b">")

    offer = b"GET /v1/realtime HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: WebSocket\r\n\r\n"
    async with raw_server(serve) as address, running_agent(tmp_path, address) as at:
        reader, writer = await asyncio.open_connection("127.0.0.1", at.port)
        writer.write(offer + _SMUGGLED)
        assert (await asyncio.wait_for(reader.read(), 20)).startswith(b"HTTP/1.1 404")
        assert seen == [offer]
        writer.close()
        takes.set()
        seen.clear()
        reader, writer = await asyncio.open_connection("127.0.0.1", at.port)
        writer.write(offer + b"early")
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\nhello<early>"), 20)
        writer.write(b"x-ballast-plan: y\r\n\r\n")
        await asyncio.wait_for(reader.readuntil(b"<x-ballast-plan: y\r\n\r\n>"), 20)
        assert seen[:2] == [offer, b"early"]
        assert at.agent.face.passing == 1
        writer.close()
        await until(lambda: not at.agent.face.passing)


async def test_other_offers_of_upgrades_are_ignored(tmp_path: Path) -> None:
    """As on the proxy face: Java's client offers h2c, and keeps its connection. A 101 that nobody offered is an end."""
    switching = asyncio.Event()
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            seen.append(head)
            if switching.is_set():
                writer.write(b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n")
            else:
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

    offer = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAA\r\n"
    request = b"GET /a HTTP/1.1\r\nhost: x\r\n%b\r\n"
    async with raw_server(serve) as address, running_agent(tmp_path, address) as at:
        answers = await raw_exchange(at.port, (request % offer) * 2, answers=2)
        assert [answer.body for answer in answers] == [b"ok"] * 2
        assert seen == [request % b""] * 2
        switching.set()
        reader, writer = await asyncio.open_connection("127.0.0.1", at.port)
        writer.write(request % b"")
        with contextlib.suppress(ConnectionError):
            await asyncio.wait_for(reader.read(), 20)
        writer.close()
        assert not at.agent.face.passing


@pytest.mark.rotating(3)
async def test_bytes_flow_only_as_fast_as_they_are_taken(tmp_path: Path) -> None:
    """Both ways: a slow client stops the engine, a slow engine stops the client. The agent holds little of either."""
    piece = b"x" * 65_536
    written = 0
    stopped = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (len(piece) * 2000))
        for _ in range(2000):
            writer.write(piece)
            drain = asyncio.ensure_future(writer.drain())
            done, _ = await asyncio.wait({drain}, timeout=1.0)
            if not done:
                stopped.set()
            await drain
            written += len(piece)

    async with raw_server(serve) as address, running_agent(tmp_path, address) as at:
        reader, writer = await asyncio.open_connection("127.0.0.1", at.port, limit=65_536)
        writer.write(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n")
        await asyncio.wait_for(stopped.wait(), 30)
        assert written < len(piece) * 1000
        await reader.readuntil(b"\r\n\r\n")
        left = len(piece) * 2000
        while left:
            left -= len(await asyncio.wait_for(reader.read(1 << 20), 20))
        writer.close()
    async with silent_server() as address, running_agent(tmp_path, address) as at:
        reader, writer = await asyncio.open_connection("127.0.0.1", at.port)
        writer.write(b"POST /large HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (1 << 30))
        writer.transport.set_write_buffer_limits(high=65_536)
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < len(piece) * 2000:
                writer.write(piece)
                await asyncio.wait_for(writer.drain(), 2)
                sent += len(piece)
        assert sent < len(piece) * 1000
        writer.transport.abort()
        at.agent.face.client_stall_timeout_s = 0.1
        await until(lambda: at.agent.face.passing == 0)


async def test_a_client_that_leaves_takes_the_engines_connection_along(tmp_path: Path) -> None:
    """So the engine stops at once."""
    asked = asyncio.Event()

    async def hangs(asked_: Asked, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await asyncio.Event().wait()

    async with scripted_engine(hangs) as engine, running_agent(tmp_path, engine.address) as at:
        _, writer = await asyncio.open_connection("127.0.0.1", at.port)
        writer.write(post("/v1/completions", BODY))
        await asyncio.wait_for(asked.wait(), 20)
        writer.close()
        await asyncio.wait_for(engine.hung_up.wait(), 20)
        await until(lambda: at.agent.face.passing == 0)


async def test_an_engine_that_is_away_is_a_503_and_one_that_closes_idle_connections_is_asked_again(
    tmp_path: Path,
) -> None:
    """So Envoy, or a peer, tries another endpoint; a stale connection is nobody's fault."""
    async with running_agent(tmp_path, GONE) as at:
        answer = await ask(at, BODY)
        assert (answer.status, assert_openai_error(answer)["code"]) == (503, "engine-unreachable")
    async with scripted_engine(whole_script) as engine, running_agent(tmp_path, engine.address) as at:
        engine.close_after = True
        for _ in range(5):
            answer = await ask(at, BODY)
            assert text_of(answer.body) == "abc"


async def test_an_answer_that_breaks_off_is_seen_as_broken(tmp_path: Path) -> None:
    """The client's connection is cut, too."""
    async with scripted_engine(breaking_script) as engine, running_agent(tmp_path, engine.address) as at:
        answer = await ask(at, BODY)
        assert not answer.whole


async def test_a_stock_llmd_picker_is_followed_only_if_the_agent_was_told_to(tmp_path: Path) -> None:
    """`x-prefiller-host-port`: prefill there, decode here. Without the flag the header is dropped."""
    async with scripted_engine(whole_script) as prefill, scripted_engine(whole_script) as decode:
        header = f"x-prefiller-host-port: {prefill.address},{prefill.address}"
        async with running_agent(tmp_path, decode.address, trust_prefiller_header=True) as at:
            answer = await ask(at, BODY, header, "x-request-id: mine")
            assert text_of(answer.body) == "abc"
            assert answer.headers["x-request-id"] == "mine"
            (first,), (second,) = prefill.asked, decode.asked
            assert first.headers["x-request-id"] == second.headers["x-request-id"] == "mine"
            assert second.body["kv_transfer_params"] == HANDLE
            both = await asyncio.gather(*(ask(at, BODY, header, "x-request-id: mine") for _ in range(2)))
            assert [text_of(each.body) for each in both] == ["abc", "abc"]
            alone = await ask(at, BODY, f"x-prefiller-host-port: {GONE}")
            assert text_of(alone.body) == "abc"
        prefill.asked.clear()
        async with running_agent(tmp_path, decode.address) as at:
            assert text_of((await ask(at, BODY, header)).body) == "abc"
            assert prefill.asked == []


async def test_mutated_requests_leave_nothing_behind(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Hundreds of them, whole and spoilt, on both ports: no fault of ours, nothing held, and the next one is served."""
    random = Random(7)

    async def lenient(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

    async with raw_server(lenient) as engine, running_agent(tmp_path, engine) as at:

        async def one(number: int) -> None:
            bases = (
                post("/v1/completions", BODY, plan_header(plan(at.place, id=f"r{number}", max_retries=0))),
                post("/v1/completions", BODY),
                b"POST /x HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n",
                b"GET /ws HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\nxyz",
                request_bytes("GET", messages.EVENTS, b"", "authorization: Ballast t=1,n=2,s=3"),
            )
            data = bytearray(b"".join(random.choices(bases, k=random.randrange(1, 4))))
            for _ in range(random.choice([0, 1, 3, 10])):
                place = random.randrange(len(data))
                data[place : place + random.randrange(4)] = random.randbytes(random.randrange(4))
            cut = random.randrange(len(data))
            reader, writer = await asyncio.open_connection("127.0.0.1", random.choice([at.port, at.pod_api]))
            for part in (data[:cut], data[cut:]):
                writer.write(bytes(part))
                await asyncio.sleep(0)
            with contextlib.suppress(TimeoutError, ConnectionError):
                await asyncio.wait_for(reader.read(4096), 0.02)
            writer.transport.abort()

        for start in range(0, 400, 20):
            await asyncio.gather(*(one(start + number) for number in range(20)))
        await until(lambda: not at.agent.face.held and not at.agent.face.passing)
        assert at.agent.face.clients.held_bytes == 0
        assert (await ask(at, BODY)).body == b"ok"
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("held_first", [False, True])
async def test_an_unreachable_engine_is_said_on_any_connection(tmp_path: Path, held_first: bool) -> None:
    """Also after another request's answer: a client that sees a reset would not know that it may try elsewhere."""
    async with scripted_engine(decode_script) as engine, running_agent(tmp_path, engine.address) as agent:
        reader, writer = await asyncio.open_connection("127.0.0.1", agent.port)
        if held_first:
            writer.write(post("/v1/completions", BODY | {"n": 2, "stream": False}, plan_header(plan(agent.place))))
            assert b" 200 " in await reader.readline()
            head = await reader.readuntil(b"\r\n\r\n")
            (length,) = (line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(int(length.partition(b":")[2]))
        agent.agent.face.links._port = 9  # where nobody listens
        agent.agent.face.links.drop()
        writer.write(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b" 503 " in await asyncio.wait_for(reader.readline(), 20)
        writer.close()


async def test_an_answer_before_the_request_is_sent_is_not_lost(tmp_path: Path) -> None:
    """An engine refuses by the head alone, and a connection that is closed over unread bytes is reset."""

    async def refuses(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 401 X\r\ncontent-length: 2\r\n\r\nno")
        while await reader.read(1 << 20):
            pass

    async with raw_server(refuses) as address, running_agent(tmp_path, address) as agent:
        reader, writer = await asyncio.open_connection("127.0.0.1", agent.port)
        writer.write(b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: 8000000\r\n\r\n")
        assert b" 401 " in await asyncio.wait_for(reader.readline(), 20)
        for _ in range(8):
            writer.write(b"a" * 1_000_000)
            await writer.drain()
        assert (await asyncio.wait_for(reader.read(), 20)).endswith(b"no")
        writer.close()


async def test_a_fault_in_reading_a_body_keeps_none_of_its_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(*_: object, **__: object) -> None:
        raise RuntimeError("a fault")

    async with scripted_engine(decode_script) as engine, running_agent(tmp_path, engine.address) as agent:
        with monkeypatch.context() as patched:
            patched.setattr("ballast_gateway.agent.face._read", fault)
            answer = await ask(agent, BODY, plan_header(plan(agent.place)))
            assert answer.status == 500
        assert agent.agent.face.clients.held_bytes == 0
        huge = await ask(agent, BODY | {"seed": "1" + "0" * 400}, plan_header(plan(agent.place, id="r2")))
        assert huge.status == 200, "whole numbers of any length are the engine's to judge"
        assert agent.agent.face.clients.held_bytes == 0
