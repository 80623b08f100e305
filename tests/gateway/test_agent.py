"""The pod agent with engines whose every byte the test chooses: plans, fall-backs and orders."""

from __future__ import annotations

import asyncio
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

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
