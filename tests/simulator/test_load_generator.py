"""The load generator against real engine-sims, and against servers that misbehave."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ballast_sim.load import LoadSettings, Progress, RequestResult, build_report, client, run_load
from ballast_sim.load.prompts import PromptMaker
from ballast_sim.simulation.inputs.objective import Objective
from ballast_sim.workloads import WorkloadRequest, generate
from tests.support.engine_sim import engine_sim, metric

SMALL = [
    WorkloadRequest(arrival_s=0.02 * n, input_tokens=50 + n, output_tokens=5 + n % 7, hash_ids=(1, n), block_size=32)
    for n in range(30)
]


def settings(port: int, **changes: object) -> LoadSettings:
    """For the server `m` on this port."""
    return LoadSettings(**{"url": f"http://127.0.0.1:{port}", "model": "m", "timeout_s": 20.0, **changes})  # type: ignore[arg-type]


async def test_every_request_completes_with_the_tokens_it_asked_for() -> None:
    """The report's counts are the server's; shared prefixes are shared for the server, too."""
    seen: list[Progress] = []
    async with engine_sim() as (server, client):
        report = await run_load(settings(server.port, objective=Objective(ttft_s=10)), SMALL, seen.append)
        assert (report.requests, report.completed, report.failed) == (30, 30, 0)
        assert report.output_tokens == report.asked_output_tokens == sum(row.output_tokens for row in SMALL)
        assert await metric(client, "vllm:generation_tokens_total") == report.output_tokens
        assert await metric(client, "vllm:prompt_tokens_total") == report.input_tokens
        assert await metric(client, "vllm:prefix_cache_hits_total") >= 29 * 32
    assert report.attainment == 1
    assert report.goodput_rps == report.completed_rps
    assert 0 < report.ttft_s["p50"] <= report.e2e_s["p50"]
    assert seen[-1].completed == 30
    assert not report.interrupted
    json.dumps(report.as_json(), allow_nan=False)


async def test_text_prompts_have_as_many_tokens_as_asked() -> None:
    """One word of four letters is one token."""
    async with engine_sim() as (server, client):
        report = await run_load(settings(server.port, prompt_kind="text"), SMALL[:5])
        assert report.failed == 0
        assert await metric(client, "vllm:prompt_tokens_total") == sum(row.input_tokens for row in SMALL[:5])


@pytest.mark.parametrize(("prompt_seed", "cached"), [(None, False), (7, True)])
async def test_a_second_run_finds_the_prompts_of_the_first_in_no_cache(prompt_seed: int | None, cached: bool) -> None:
    """Unless both are to have the same tokens."""
    rows = [WorkloadRequest(arrival_s=0, input_tokens=100, output_tokens=2)] * 3
    async with engine_sim() as (server, client):
        for _ in range(2):
            report = await run_load(settings(server.port, prompt_seed=prompt_seed), rows)
            assert report.failed == 0
        assert (await metric(client, "vllm:prefix_cache_hits_total") > 0) is cached


@pytest.mark.rotating(3)
async def test_stretched_time_is_reported_in_the_time_of_the_workload() -> None:
    """Arrivals and engine both three times as slow: the wall time is, the report is not."""
    async with engine_sim(time_scale=3.0) as (server, _):
        slow = await run_load(settings(server.port, time_scale=3.0), SMALL)
    assert slow.wall_s > 3 * SMALL[-1].arrival_s
    assert slow.rate_rps == pytest.approx(50)
    assert slow.time_scale == 3
    assert slow.span_s == pytest.approx(slow.wall_s / 3, rel=0.2)


async def test_refusals_are_counted_by_status_with_the_servers_words() -> None:
    """A model that is not served: 404 for each; nothing is thrown."""
    async with engine_sim() as (server, _):
        report = await run_load(settings(server.port, model="other"), SMALL[:3])
    assert report.errors == {"status_404": 3}
    assert report.failures[0].status == 404
    assert "does not exist" in report.failures[0].reason
    assert report.ttft_s == {}


async def test_nobody_listening_is_a_failure_to_connect() -> None:
    """Port 1 has no server."""
    report = await run_load(settings(1), SMALL[:2])
    assert report.errors == {"connect": 2}


@asynccontextmanager
async def misbehaving(answer: bytes, on_request: Callable[[], None] = lambda: None) -> AsyncIterator[int]:
    """A server that reads a request, writes `answer` and hangs up."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        on_request()
        writer.write(answer)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
CHUNK = b'data: {"choices":[{"index":0,"text":" a"}]}\n\n'
ONE_TOKEN = STREAM + CHUNK + b"data: [DONE]\n\n"
USAGE = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3}}
EVENTS = [
    b'{"choices":[{"text":" a"}],"usage":null}',
    b'{"choices":[{"text":" bc"}]}',
    json.dumps(USAGE).encode(),
    b"[DONE]",
]
WRITTEN = {
    "plain": (b"data: %b\n\n", EVENTS),
    "CRLF": (b"data: %b\r\n\r\n", EVENTS),
    "no space": (b"data:%b\n\n", EVENTS),
    "other fields": (b": ping\nevent: chunk\nid: 5\ndata: %b\nretry: 9\n\n", EVENTS),
    "several lines": (b"data: %b\n\n", [event.replace(b'"choices"', b'\ndata: "choices"') for event in EVENTS]),
}
"""The same stream as servers may write it; two chunks of three tokens."""


@pytest.mark.parametrize(("form", "events"), WRITTEN.values(), ids=WRITTEN)
async def test_a_stream_is_read_however_it_is_written(form: bytes, events: list[bytes]) -> None:
    """Also where it comes byte by byte, and a line's end in two pieces."""
    stream = b"".join(form % event for event in events)
    chunked = b"HTTP/1.1 200 OK\r\ncontent-type: Text/Event-Stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
    bitwise = b"".join(b"1\r\n%c\r\n" % byte for byte in stream) + b"0\r\n\r\n"
    for answer in (STREAM + stream, chunked + bitwise):
        async with misbehaving(answer) as port:
            report = await run_load(settings(port), [WorkloadRequest(arrival_s=0, input_tokens=4, output_tokens=3)])
        assert (report.errors, report.output_tokens) == ({}, 3)
        assert (report.input_tokens, report.asked_input_tokens) == (5, 4)


MISBEHAVIOUR = {
    "cut in the middle": (STREAM + CHUNK, "broken_stream"),
    "nothing": (b"", "broken_stream"),
    "no HTTP": (b"hello\r\n\r\n", "broken_stream"),
    "too few tokens": (STREAM + CHUNK + b"data: [DONE]\n\n", "short"),
    "an error in the stream": (
        STREAM + CHUNK + b'data: {"error":{"message":"oops"}}\n\ndata: [DONE]\n\n',
        "broken_stream",
    ),
    "no stream": (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", "broken_stream"),
    "overloaded": (b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 4\r\n\r\nbusy", "status_503"),
}


@pytest.mark.parametrize(("answer", "kind"), MISBEHAVIOUR.values(), ids=MISBEHAVIOUR)
async def test_a_server_that_misbehaves_is_reported_not_raised(answer: bytes, kind: str) -> None:
    """Each kind under its name."""
    async with misbehaving(answer) as port:
        report = await run_load(settings(port), [WorkloadRequest(arrival_s=0, input_tokens=5, output_tokens=3)])
    assert report.errors == {kind: 1}
    assert report.failures[0].reason


@pytest.mark.parametrize(("most_idle_s", "connections"), [(4.0, 1), (0.05, 3)])
async def test_connections_that_a_server_may_be_closing_are_not_used_again(
    monkeypatch: pytest.MonkeyPatch, most_idle_s: float, connections: int
) -> None:
    """Three requests, 0.2 s apart: one connection is enough, unless it may not be idle so long."""
    monkeypatch.setattr(client, "MOST_IDLE_S", most_idle_s)
    rows = [WorkloadRequest(arrival_s=0.2 * n, input_tokens=5, output_tokens=1) for n in range(3)]
    answer = CHUNK + b"data: [DONE]\n\n"
    head = STREAM.replace(b"connection: close", b"content-length: %d" % len(answer))
    opened: list[asyncio.BaseTransport] = []

    class Kept(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            opened.append(transport)

        def data_received(self, data: bytes) -> None:
            transport = opened[-1]
            assert isinstance(transport, asyncio.Transport)
            transport.write(head + answer)

    async with await asyncio.get_running_loop().create_server(Kept, "127.0.0.1", 0) as server:
        report = await run_load(settings(server.sockets[0].getsockname()[1]), rows)
    assert (report.completed, len(opened)) == (3, connections)


async def test_a_generator_that_is_behind_sends_what_is_due_before_it_makes_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A burst, all due at once: none waits until the last one is made, and few are ever in flight."""
    made, made_at_arrival = 0, []
    make = PromptMaker.body

    def count(maker: PromptMaker, index: int, request: WorkloadRequest) -> bytes:
        nonlocal made
        made += 1
        return make(maker, index, request)

    monkeypatch.setattr(PromptMaker, "body", count)
    burst = [WorkloadRequest(arrival_s=0, input_tokens=5, output_tokens=1)] * 400
    async with misbehaving(ONE_TOKEN, lambda: made_at_arrival.append(made)) as port:
        report = await run_load(settings(port, max_in_flight=200), burst)
    assert report.errors == {}
    assert made_at_arrival[0] < 200


async def test_lateness_is_a_part_of_the_time_to_the_first_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each prompt takes 5 ms to make, and all are due at once; both are in the workload's time, which is stretched."""
    make = PromptMaker.body

    def slowly(maker: PromptMaker, index: int, request: WorkloadRequest) -> bytes:
        time.sleep(0.005)
        return make(maker, index, request)

    monkeypatch.setattr(PromptMaker, "body", slowly)
    burst = [WorkloadRequest(arrival_s=0, input_tokens=5, output_tokens=1)] * 40
    async with misbehaving(ONE_TOKEN) as port:
        report = await run_load(settings(port, time_scale=10), burst)
    assert report.late_s["p50"] >= 20 * 0.005 / 10
    for share in ("p50", "p99"):
        assert report.late_s[share] < report.ttft_s[share]


async def test_a_run_that_is_stopped_reports_what_it_has() -> None:
    """Stopped as soon as something completed; the rest is not counted."""
    stop = asyncio.Event()

    def on_progress(progress: Progress) -> None:
        if progress.completed:
            stop.set()

    rows = [WorkloadRequest(arrival_s=0.01 * n, input_tokens=10, output_tokens=2 if n < 5 else 900) for n in range(40)]
    async with engine_sim() as (server, _):
        report = await run_load(settings(server.port), rows, on_progress, stop)
    assert report.interrupted
    assert 0 < report.completed < 40


async def test_a_request_that_takes_too_long_is_given_up() -> None:
    """A tenth of a second for 2,000 tokens."""
    rows = [WorkloadRequest(arrival_s=0, input_tokens=10, output_tokens=2000)]
    async with engine_sim() as (server, client):
        report = await run_load(settings(server.port, timeout_s=0.1), rows)
        assert report.errors == {"timeout": 1}
        assert await metric(client, "vllm:generation_tokens_total") < 2000


def test_prompts_share_exactly_what_their_ids_share() -> None:
    """Same leading ids of either sign, same tokens; a partial block begins as the whole one; seeds differ."""
    maker = PromptMaker("m", "ids", 1)

    def prompt(index: int, ids: tuple[int, ...], tokens: int, made: PromptMaker = maker) -> list[int]:
        row = WorkloadRequest(arrival_s=0, input_tokens=tokens, output_tokens=1, hash_ids=ids, block_size=16)
        value: list[int] = json.loads(made.body(index, row))["prompt"]
        return value

    first, second = prompt(0, (1, 2, 3), 48), prompt(1, (1, 2, 4), 40)
    assert (len(first), len(second)) == (48, 40)
    assert first[:32] == second[:32]
    assert first[32:40] != second[32:]
    assert prompt(2, (1, 2, 3), 40) == first[:40]
    assert prompt(5, (-1, 2), 32) == prompt(6, (-1, 2), 32) != prompt(7, (1, 2), 32)
    assert prompt(3, (1,), 40)[16:] != prompt(4, (1,), 40)[16:]
    assert prompt(0, (1, 2, 3), 48, PromptMaker("m", "ids", 2)) != first


def test_the_report_worked_by_hand() -> None:
    """Two requests done, one late for its SLO, one failed: rates over the 4 s from first arrival to last token."""
    common: dict[str, Any] = {"input_tokens": 10, "asked_tokens": 11}
    results = [
        RequestResult(
            request_id="a",
            arrival_s=0.0,
            received_tokens=11,
            first_token_s=1.0,
            last_token_s=2.0,
            **common,
        ),
        RequestResult(
            request_id="b",
            arrival_s=1.0,
            received_tokens=11,
            first_token_s=3.0,
            last_token_s=4.0,
            **common,
        ),
        RequestResult(request_id="c", arrival_s=2.0, reason="no", kind="timeout", **common),
    ]
    report = build_report(results, objective=Objective(ttft_s=1.5, tpot_s=0.2), time_scale=1, wall_s=5)
    assert report.ttft_s["mean"] == 1.5
    assert report.tpot_s["p50"] == pytest.approx(0.1)
    assert report.e2e_s["p99"] == pytest.approx(2.99)
    assert report.goodput_rps == 0.25
    assert report.attainment == pytest.approx(1 / 3)
    assert report.throughput_tok_s == 5.5
    assert report.rate_rps == 1
    assert report.errors == {"timeout": 1}


@pytest.mark.parametrize(
    ("failed_s", "end", "span_s"),
    [
        (19.5, {}, 19.5),  # refused at once
        (None, {}, 19.0),  # the last arrival, at least
        (24.0, {"time_scale": 2.0}, 24.0),
        (None, {"interrupted": True, "time_scale": 2.0}, 30.0),  # 60 s on the wall
    ],
)
def test_a_server_that_stops_answering_goes_on_costing_time(
    failed_s: float | None, end: dict[str, Any], span_s: float
) -> None:
    """Five requests a second for 20 s; after 3 s it answers none: 15 requests were served in all of the time."""
    results = [
        RequestResult(
            request_id=str(number),
            arrival_s=number / 5,
            input_tokens=1,
            asked_tokens=10,
            received_tokens=10 * (number < 15),
            first_token_s=number / 5 + 0.1 if number < 15 else None,
            last_token_s=number / 5 + 0.2 if number < 15 else None,
            failed_s=failed_s if number == 95 else None,
            reason=None if number < 15 else "no",
        )
        for number in range(96)
    ]
    report = build_report(results, **{"objective": Objective(ttft_s=1), "time_scale": 1.0, "wall_s": 60.0, **end})
    assert report.span_s == span_s
    assert report.goodput_rps == report.completed_rps == pytest.approx(15 / span_s)
    assert report.throughput_tok_s == pytest.approx(150 / span_s)


async def test_the_time_that_failed_requests_took_is_measured() -> None:
    """A server that hangs: the one request is given up after 0.2 s, in the workload's time 0.1."""
    rows = [WorkloadRequest(arrival_s=0, input_tokens=10, output_tokens=2000)]
    async with engine_sim() as (server, _):
        report = await run_load(settings(server.port, timeout_s=0.2, time_scale=2.0), rows)
    assert report.span_s >= 0.1
    assert report.completed_rps == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"time_scale": 0}, "time_scale: must be above 0"),
        ({"url": "ftp://x"}, "url: 'ftp://x' is not an http"),
        ({"url": "nonsense"}, "url: 'nonsense' is not an http"),
    ],
    ids=["scale", "scheme", "no URL"],
)
async def test_settings_that_cannot_work_are_refused_by_name(changes: dict[str, object], message: str) -> None:
    """Before anything is sent."""
    with pytest.raises(ValueError, match=message):
        await run_load(settings(1, **changes), generate("chat", duration_s=1))


@pytest.mark.parametrize(("time_scale", "attainment"), [(1.0, 0.0), (10.0, 1.0)])
async def test_a_gap_between_tokens_counts_against_its_threshold(time_scale: float, attainment: float) -> None:
    """Three tokens, the last of them 0.2 s late: above 0.1 s, unless the workload's time is stretched tenfold."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(STREAM + CHUNK + CHUNK)
        await writer.drain()
        await asyncio.sleep(0.2)
        writer.write(CHUNK + b"data: [DONE]\n\n")
        writer.close()

    rows = [WorkloadRequest(arrival_s=0, input_tokens=5, output_tokens=3)]
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        report = await run_load(settings(port, objective=Objective(tbt_s=0.1), time_scale=time_scale), rows)
    assert (report.completed, report.attainment, report.slo) == (1, attainment, {"tbt": 0.1})
