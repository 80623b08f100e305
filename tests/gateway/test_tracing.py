"""OpenTelemetry traces: a real receiver gets the spans of a request, told apart as its time was spent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from ballast_api.errors import InvalidInput
from ballast_gateway.tracing import starting
from tests.gateway.test_agent_engine_sim import Fleet, ids_of, stream
from tests.gateway.test_moving_streams import Line as MovingLine
from tests.gateway.test_proxy_engine_sim import Line
from tests.gateway.test_view_agents import fleet_of
from tests.gateway.test_workers import running
from tests.support.gateway_kit import RunningGateway, running_gateway, settings, until
from tests.support.otlp import Received, Receiver, receiving
from tests.support.scripted_engine import Asked, decode_script, json_reply, scripted_engine
from tests.support.view_kit import ask

PROMPT = list(range(1000, 1300))
SECRET = "the prompt that nobody else may read"
TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = f"00-{TRACE}-{CALLER}-01"
UNSAMPLED = f"00-{TRACE}-{CALLER}-00"
BODY = {"model": "tiny", "prompt": PROMPT, "max_tokens": 12, "stream": True}


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    with receiving() as made:
        yield made


async def post(gateway: RunningGateway, body: dict[str, Any], **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(timeout=60) as client:
        return await client.post(f"{gateway.url}/v1/completions", json=body, headers=headers)


async def the_request(receiver: Receiver) -> Received:
    """The span of the only request, when it has come: last of all."""
    await until(receiver.roots)
    [root] = receiver.roots()
    return root


def by_name(receiver: Receiver, of: Received) -> dict[str, Received]:
    return {span.name: span for span in receiver.children(of)}


@asynccontextmanager
async def traced(engine: Any, tmp_path: Path, receiver: Receiver, **more: Any) -> AsyncIterator[RunningGateway]:
    tracing = {"endpoint": receiver.url, **more.pop("tracing", {})}
    async with running_gateway(tmp_path, {"d0": engine.address}, tracing=tracing, **more) as gateway:
        yield gateway


async def test_the_spans_of_a_request_are_how_its_time_was_spent(tmp_path: Path, receiver: Receiver) -> None:
    """Prefill and decode on different engines: parents are right, times lie within the request and are its log's."""
    async with Line(tmp_path) as line:
        gateway = await line.start(tracing={"endpoint": receiver.url})
        await post(gateway, BODY, traceparent=SAMPLED, tracestate="vendor=value")
        root, entry = await the_request(receiver), gateway.request()
    assert (root.trace_id, root.parent, root.state) == (TRACE, CALLER, "vendor=value")
    assert root.name == "text_completion tiny"
    names = [span.name for span in receiver.children(root)]
    assert names == ["queue", "decide", "prefill", "hand-off", "decide", "decode"]
    for span in receiver.children(root):
        assert root.start_ns <= span.start_ns <= span.end_ns <= root.end_ns, span.name
        assert span.trace_id == root.trace_id
    spans = by_name(receiver, root)
    assert spans["prefill"].end_ns <= spans["hand-off"].start_ns <= spans["decode"].start_ns
    assert spans["prefill"].attributes["ballast.endpoint"] == entry["prefill"]
    assert spans["decode"].attributes["ballast.endpoint"] == entry["decode"]
    assert spans["decode"].attributes["server.port"] == line.engines[entry["decode"]].port
    assert root.seconds == pytest.approx(entry["e2e_s"], abs=2e-6)
    first_s = (root.events["first token"] - root.start_ns) / 1e9
    assert first_s == pytest.approx(entry["ttft_s"], abs=2e-6)
    assert (spans["prefill"].end_ns - root.start_ns) / 1e9 == pytest.approx(entry["prefill_s"], abs=1e-3)
    assert spans["hand-off"].end_ns == pytest.approx(root.events["first token"], abs=1e6)
    said = root.attributes
    assert (said["gen_ai.operation.name"], said["gen_ai.request.model"]) == ("text_completion", "tiny")
    assert (said["gen_ai.usage.input_tokens"], said["gen_ai.usage.output_tokens"]) == (300, 12)
    assert said["http.response.status_code"] == 200
    assert said["ballast.request_id"] == entry["request_id"]
    assert root.resource["service.name"] == "ballast-gateway"
    assert not root.error


async def test_engines_get_the_span_of_their_leg_as_parent(tmp_path: Path, receiver: Receiver) -> None:
    async with scripted_engine(decode_script) as engine, traced(engine, tmp_path, receiver) as gateway:
        await post(gateway, BODY, traceparent=SAMPLED, tracestate="vendor=value")
        root = await the_request(receiver)
        [asked] = engine.asked
    leg = by_name(receiver, root)["decode"]
    assert asked.headers["traceparent"] == f"00-{TRACE}-{leg.id}-01"
    assert asked.headers["tracestate"] == "vendor=value"


HOSTILE = (
    f"00-{'0' * 32}-{CALLER}-01",
    f"00-{TRACE}-{'0' * 16}-01",
    f"ff-{TRACE}-{CALLER}-01",
    f"00-{TRACE.upper()}-{CALLER}-01",
    f"00-{TRACE}-{CALLER}-01-more",
    "x" * 5000,
    "00-" + "%0d%0a" * 9,
    "",
)


@pytest.mark.parametrize(
    ("parent", "state"),
    [(SAMPLED, SECRET), (SAMPLED, ",".join(f"k{number}=v" for number in range(40))), (SAMPLED + "-x" * 300, "a=b")],
    ids=["no state", "too many", "a parent that is too long"],
)
async def test_a_context_that_is_none_is_left_out_and_not_logged(
    parent: str, state: str, tmp_path: Path, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    """The library would warn of it at each request, in the client's own words."""
    async with scripted_engine(decode_script) as engine, traced(engine, tmp_path, receiver) as gateway:
        caplog.clear()
        await post(gateway, BODY, traceparent=parent, tracestate=state)
        await the_request(receiver)
    assert not [record for record in caplog.records if record.name.startswith("opentelemetry")]
    assert "tracestate" not in engine.asked[0].headers


async def test_what_is_no_trace_context_begins_a_trace_and_reaches_no_engine(
    tmp_path: Path, receiver: Receiver
) -> None:
    """Nor do two of them, of which nobody knows which one holds."""
    async with scripted_engine(decode_script) as engine, traced(engine, tmp_path, receiver) as gateway:
        async with httpx.AsyncClient(timeout=60) as client:
            for parents in (*((parent,) for parent in HOSTILE), (SAMPLED, UNSAMPLED)):
                lines = [*(("traceparent", parent) for parent in parents), ("tracestate", "a=b")]
                answer = await client.post(f"{gateway.url}/v1/completions", json=BODY, headers=lines)
                assert answer.status_code == 200
        await until(lambda: len(receiver.roots()) == len(HOSTILE) + 1)
    for root, asked in zip(receiver.roots(), engine.asked, strict=True):
        assert not root.parent
        assert root.trace_id != TRACE
        assert asked.headers["traceparent"].startswith(f"00-{root.trace_id}-")
        assert "tracestate" not in asked.headers


async def test_a_request_whose_caller_is_not_recorded_is_not_either_and_engines_learn_so(
    tmp_path: Path, receiver: Receiver
) -> None:
    async with scripted_engine(decode_script) as engine, traced(engine, tmp_path, receiver) as gateway:
        await post(gateway, BODY, traceparent=UNSAMPLED)
        await post(gateway, BODY, traceparent=SAMPLED)
        root = await the_request(receiver)
    assert root.parent == CALLER
    assert engine.asked[0].headers["traceparent"] == UNSAMPLED


async def test_by_a_ratio_of_nothing_nothing_is_recorded_but_what_callers_record(
    tmp_path: Path, receiver: Receiver
) -> None:
    async with scripted_engine(decode_script) as engine:
        async with traced(engine, tmp_path, receiver, tracing={"sampleRatio": 0}) as gateway:
            await post(gateway, BODY)
            await post(gateway, BODY, traceparent=SAMPLED)
            root = await the_request(receiver)
        assert root.trace_id == TRACE
        assert engine.asked[0].headers["traceparent"].endswith("-00")


async def test_clients_that_are_not_followed_cannot_have_their_requests_recorded(
    tmp_path: Path, receiver: Receiver
) -> None:
    async with scripted_engine(decode_script) as engine:
        not_followed = {"sampleRatio": 0, "followClients": False}
        async with traced(engine, tmp_path, receiver, tracing=not_followed) as gateway:
            await post(gateway, BODY, traceparent=SAMPLED, tracestate="a=b")
        assert not receiver.spans
        assert TRACE not in engine.asked[0].headers["traceparent"]
        assert "tracestate" not in engine.asked[0].headers


async def test_a_leg_that_fails_and_a_request_that_fails_say_so(tmp_path: Path, receiver: Receiver) -> None:
    async def refuses(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(json_reply({"error": {"message": SECRET}}, status=500))

    async with scripted_engine(refuses) as engine, traced(engine, tmp_path, receiver) as gateway:
        answer = await post(gateway, BODY | {"prompt": SECRET})
        root, entry = await the_request(receiver), gateway.request()
    assert root.error == root.attributes["error.type"] == entry["reason"]
    assert root.attributes["http.response.status_code"] == answer.status_code
    assert by_name(receiver, root)["decode"].error == "error"
    assert SECRET.encode() not in b"".join(receiver.raw)


async def test_a_body_that_is_refused_has_a_span_and_is_no_error_of_ours(tmp_path: Path, receiver: Receiver) -> None:
    async with scripted_engine(decode_script) as engine, traced(engine, tmp_path, receiver) as gateway:
        answer = await post(gateway, {"model": SECRET, "prompt": SECRET})
        root = await the_request(receiver)
    assert answer.status_code == root.attributes["http.response.status_code"] == 404
    assert not root.error
    assert SECRET.encode() not in b"".join(receiver.raw)


@pytest.mark.rotating(3)
async def test_a_move_is_a_span_with_its_warm_up_and_two_decode_legs(tmp_path: Path, receiver: Receiver) -> None:
    async with MovingLine(tmp_path) as line:
        gateway = await line.start(slower=4, tracing={"endpoint": receiver.url})
        await post(gateway, BODY | {"max_tokens": 80})
        root, entry = await the_request(receiver), gateway.request()
    moved = [s for s in receiver.children(root) if s.name == "move" and s.attributes["ballast.outcome"] == "moved"]
    assert len(moved) == entry["migrations"] >= 1
    legs = [span for span in receiver.children(root) if span.name == "decode"]
    assert len(legs) == len(moved) + 1
    for move, before, after in zip(moved, legs, legs[1:], strict=False):
        [warm_up] = receiver.children(move)
        assert warm_up.name == "warm-up"
        assert move.start_ns <= warm_up.start_ns <= warm_up.end_ns <= move.end_ns <= root.end_ns
        assert warm_up.attributes["ballast.endpoint"] == move.attributes["ballast.target"]
        assert before.attributes["ballast.endpoint"] == move.attributes["ballast.source"]
        assert after.attributes["ballast.endpoint"] == move.attributes["ballast.target"]
        assert before.end_ns <= after.start_ns


@pytest.mark.rotating(3)
async def test_a_stream_that_is_rescued_says_how_long_that_took(tmp_path: Path, receiver: Receiver) -> None:
    async with MovingLine(tmp_path) as line:
        gateway = await line.start(slower=8, shuffle_s=None, tracing={"endpoint": receiver.url})
        asking = asyncio.create_task(post(gateway, BODY | {"max_tokens": 60}))
        ledger = gateway.gateway.driver.director.ledger
        await until(lambda: any(entry.generated_tokens >= 16 for entry in ledger))
        line.kill(_decodes_on(gateway))
        await asking
        root = await the_request(receiver)
    spans = receiver.children(root)
    [rescue] = [span for span in spans if span.name == "rescue"]
    first, last = (span for span in spans if span.name == "decode")
    assert first.error
    assert not last.error
    assert first.end_ns <= rescue.start_ns <= last.start_ns <= rescue.end_ns <= last.end_ns


def _decodes_on(gateway: RunningGateway) -> str:
    snapshot = gateway.gateway.live.taking.snapshot(0)
    return snapshot.requests[0].decode


async def test_behind_envoy_picker_and_agent_are_one_trace(tmp_path: Path, receiver: Receiver) -> None:
    """The picker's span is the parent of the agent's, which has the legs. The picker sees the decision."""
    async with Fleet(tmp_path) as engines:
        running_agents = await engines.start("p0", "d0", trace_endpoint=receiver.url)
        fleet = fleet_of(tmp_path, running_agents)
        try:
            picker = await fleet.start(tracing={"endpoint": receiver.url})
            picked = ask(picker, "r", json.dumps(stream(12)).encode(), {"traceparent": SAMPLED, "tracestate": "a=b"})
            picked.session.close(broken=False)
            assert picked.headers["tracestate"] == "a=b"
            passed_on = ("x-ballast-plan", "traceparent", "tracestate")
            lines = [f"{name}: {picked.headers[name]}" for name in passed_on]
            await ids_of(running_agents["d0"].port, stream(12), *lines)
            await until(lambda: len(receiver.roots()) == 2)
        finally:
            await fleet.close()
    of = {root.resource["service.name"]: root for root in receiver.roots()}
    outer, inner = of["ballast-gateway"], of["ballast-agent"]
    assert (outer.trace_id, outer.parent, inner.trace_id, inner.parent) == (TRACE, CALLER, TRACE, outer.id)
    assert by_name(receiver, outer).keys() == {"queue", "decide", inner.name}
    assert by_name(receiver, inner).keys() == {"prefill", "hand-off", "decode"}
    assert outer.start_ns <= inner.start_ns
    assert outer.attributes["gen_ai.usage.output_tokens"] == inner.attributes["gen_ai.usage.output_tokens"] == 12


@pytest.mark.rotating(3)
async def test_a_receiver_that_hangs_costs_no_request_anything(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue is bounded, and its thread alone waits; what is in it is lost with the end."""
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "8")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4")
    receiver.hangs.set()
    async with scripted_engine(decode_script) as engine, traced(engine, tmp_path, receiver) as gateway:
        async with asyncio.timeout(20):
            for _ in range(10):
                assert (await post(gateway, BODY)).status_code == 200
        receiver.closed.set()


async def test_the_environment_of_opentelemetry_is_respected(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=blue")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "front")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
    async with (
        scripted_engine(decode_script) as engine,
        running_gateway(tmp_path, {"d0": engine.address}, tracing={}) as gateway,
    ):
        await post(gateway, BODY)
        await post(gateway, BODY, traceparent=SAMPLED)
        root = await the_request(receiver)
    assert root.trace_id == TRACE
    assert (root.resource["service.name"], root.resource["deployment.environment.name"]) == ("front", "test")
    assert receiver.headers[0]["x-tenant"] == "blue"


async def test_the_sdk_can_be_disabled_from_outside(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    async with scripted_engine(decode_script) as engine, traced(engine, tmp_path, receiver) as gateway:
        await post(gateway, BODY, traceparent=SAMPLED)
        assert engine.asked[0].headers["traceparent"] == SAMPLED, "as without traces"
    assert not receiver.spans


async def test_missing_packages_are_named_with_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "find_spec", lambda name: None)
    with pytest.raises(InvalidInput, match=r"tracing: .*install ballast\[otel\]"):
        async with running_gateway(tmp_path, {}, tracing={}):
            pass


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("OTEL_BSP_MAX_QUEUE_SIZE", "256", "max_export_batch_size must be less than or equal to max_queue_size"),
        ("OTEL_BSP_SCHEDULE_DELAY", "0", "schedule_delay_millis must be positive"),
    ],
)
async def test_an_environment_that_opentelemetry_refuses_is_refused_with_its_word(
    name: str, value: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(InvalidInput, match=rf"tracing: .*OTEL_\*.*{said}"):
        async with running_gateway(tmp_path, {}, tracing={"endpoint": "http://127.0.0.1:9"}):
            pass


@pytest.mark.parametrize(
    ("tracing", "said"),
    [
        ({"endpoint": "collector:4318"}, r"tracing.endpoint\s+must be http://host:port"),
        ({"endpoint": "http://collector:4318/?a=b"}, "tracing.endpoint"),
        ({"sampleRatio": 1.5}, "tracing.sampleRatio"),
    ],
)
def test_a_wrong_setting_is_refused(tracing: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=said):
        settings(tmp_path / "none", tracing=tracing)


@pytest.mark.rotating(4)
async def test_a_gateway_process_traces_all_of_its_workers(tmp_path: Path, receiver: Receiver) -> None:
    """The real command, with engines of vLLM's protocol; what is queued at its end is sent; workers are told apart."""
    async with Line(tmp_path) as line:
        await line.start()
        addresses = {name: f"127.0.0.1:{engine.port}" for name, engine in line.engines.items()}
        folder = tmp_path / "process"
        folder.mkdir()
        async with running(folder, addresses, workers=2, tracing={"endpoint": receiver.url}) as process:
            url = f"http://127.0.0.1:{process.ports['proxy']}/v1/completions"
            for _ in range(8):
                async with httpx.AsyncClient(timeout=60) as client:
                    await client.post(url, json=BODY)
        await until(lambda: len(receiver.roots()) == 8)
    for root in receiver.roots():
        assert {"queue", "decide", "prefill", "hand-off", "decode"} == by_name(receiver, root).keys()
    assert {root.resource["service.instance.id"][-9:] for root in receiver.roots()} <= {"/worker-0", "/worker-1"}
