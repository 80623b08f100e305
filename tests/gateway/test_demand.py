"""The demand report: arrivals, lengths and what runs, as those who decide on instances read it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx

from ballast_api.demand_report import BIN_S, BINS, DEMAND, LENGTHS, DemandReport, Load, Seen, read_demand, together
from ballast_core.model import EndpointId, Request, RequestId
from ballast_gateway.demand import Demand
from ballast_gateway.records import RequestRecord
from tests.support.gateway_kit import endpoints_text, post, raw_exchange, running_gateway
from tests.support.scripted_engine import SSE_HEAD, Asked, chunk, decode_script, scripted_engine, vllm_events


def ended(arrived_s: float, *, outcome: str = "completed", output_tokens: int = 20) -> RequestRecord:
    return RequestRecord(
        id="r",
        arrived_s=arrived_s,
        ended_s=arrived_s + 1,
        outcome=outcome,
        output_tokens=output_tokens,
        asked=Request(RequestId("r"), 100),
    )


def demand(now_s: float) -> Demand:
    return Demand(tuple, lambda _: EndpointId("e"), now_s=lambda: now_s, unix_s=1000.0)


def test_arrivals_are_counted_by_window_and_old_ones_are_forgotten() -> None:
    kept = demand(now_s=502.0)
    for arrived_s in (0.0, 499.0, 500.0, 501.0):
        kept(ended(arrived_s))
    report = kept.now()
    assert report.arrivals[-2:] == (1, 2)
    assert (sum(report.arrivals), len(report.arrivals)) == (3, BINS)
    assert [each.arrived_unix_s for each in report.requests] == [1499.0, 1500.0, 1501.0]


def test_a_refused_request_is_demand_but_tells_no_length() -> None:
    kept = demand(now_s=10.0)
    kept(ended(9.0, outcome="rejected", output_tokens=0))
    report = kept.now()
    assert (sum(report.arrivals), report.requests) == (1, ())


def test_memory_is_bounded_however_many_requests_come() -> None:
    clock = [0.0]
    kept = Demand(tuple, lambda _: EndpointId("e"), now_s=lambda: clock[0], unix_s=1000.0)
    for number in range(20 * LENGTHS):
        clock[0] = number / 10
        kept(ended(clock[0]))
    assert len(kept._arrivals) <= 2 * BINS + 1
    assert len(kept.now().requests) == LENGTHS


def report(unix_s: float, arrivals: dict[int, int], **more: object) -> DemandReport:
    """`arrivals`: windows back from the newest -> requests."""
    counts = tuple(arrivals.get(BINS - 1 - k, 0) for k in range(BINS))
    return DemandReport(unix_s=unix_s, since_unix_s=0.0, arrivals=counts, **more)  # type: ignore[arg-type]


def test_reports_of_several_gateways_are_added_window_by_window() -> None:
    """They were asked a few seconds apart, so the newest window of one is the second newest of the other."""
    early = report(1002.0, {0: 2, 1: 5}, waiting=1, oldest_unix_s=990.0, endpoints={"e": Load(1, 2, 300)})
    late = report(1002.0 + BIN_S, {0: 1, 1: 4}, waiting=2, oldest_unix_s=995.0, endpoints={"e": Load(0, 1, 50)})
    both = together([early, late])
    assert both.arrivals[-3:] == (5, 6, 1)
    assert (both.unix_s, both.waiting, both.oldest_unix_s) == (1007.0, 3, 990.0)
    assert both.endpoints == {"e": Load(1, 3, 350)}


def test_a_clock_that_is_ahead_hides_no_traffic_of_other_gateways() -> None:
    """Three minutes, longer than what is told: by that clock all that the others counted is too old."""
    given = {"requests": (Seen(1000.0, 9, 9, True),), "oldest_unix_s": 990.0, "idle_since_unix_s": 1001.0}
    right = report(1002.0, {0: 2, 1: 5}, **given)
    ahead = report(1182.0, {0: 1, 1: 4}, idle_since_unix_s=1100.0)
    both = together([right, ahead])
    assert both.arrivals[-2:] == (9, 3)
    assert [each.arrived_unix_s for each in both.requests] == [1180.0]
    assert (both.unix_s, both.oldest_unix_s, both.idle_since_unix_s) == (1182.0, 1170.0, 1181.0)


def test_a_gateway_that_tells_as_many_lengths_as_it_may_does_not_drown_in_older_ones() -> None:
    busy = report(1002.0, {}, requests=tuple(Seen(990.0 + k / LENGTHS, 1, 1, True) for k in range(LENGTHS)))
    calm = report(1002.0, {}, requests=(Seen(900.0, 9, 9, True), Seen(995.0, 9, 9, True)))
    assert [each.input_tokens for each in together([busy, calm]).requests if each.input_tokens == 9] == [9]


async def test_a_gateway_says_what_runs_and_what_ended(tmp_path: Path) -> None:
    """One request has ended; the other one has two of its three tokens when it is looked at."""
    go_on = asyncio.Event()

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        *first, last = [chunk(event) for event in vllm_events(["a", "b", "c"], prompt=asked.body["prompt"])]
        writer.write(SSE_HEAD + b"".join(first[:2]))
        await writer.drain()
        if len(asked.body["prompt"]) == 4:
            await go_on.wait()
        writer.write(b"".join(first[2:]) + last + b"0\r\n\r\n")

    async with (
        scripted_engine(script) as engine,
        running_gateway(tmp_path, {"f0": engine.address}) as gateway,
        httpx.AsyncClient(base_url=gateway.admin_url) as admin,
    ):

        async def now() -> DemandReport:
            return read_demand((await admin.get(DEMAND)).content)

        writers = []
        for prompt in ([1] * 3, [1] * 4):
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            body = {"model": "tiny", "prompt": prompt, "max_tokens": 3, "stream": True}
            writer.write(post("/v1/completions", body, "connection: close"))
            writers.append(writer)
            if len(prompt) == 3:
                await reader.read()
        for _ in range(200):
            seen = await now()
            if seen.decoding and seen.requests[-1].output_tokens:
                break
            await asyncio.sleep(0.01)
        assert sum(seen.arrivals) == 2
        assert [(each.input_tokens, each.ended) for each in seen.requests] == [(3, True), (4, False)]
        assert (seen.waiting, seen.decoding) == (0, 1)
        assert seen.endpoints["f0"].decoding == 1
        assert seen.decoding_tokens == seen.endpoints["f0"].decoding_tokens == 4 + seen.requests[-1].output_tokens
        go_on.set()
        for writer in writers:
            writer.close()


async def test_a_request_that_comes_while_there_is_no_endpoint_is_told_at_once_and_served_when_one_appears(
    tmp_path: Path,
) -> None:
    """Scaled to zero: the report says that somebody waits, and since when nobody did."""
    async with (
        scripted_engine(decode_script) as engine,
        running_gateway(tmp_path, {}, wait=False, limits={"holdS": 300}) as gateway,
        httpx.AsyncClient(base_url=gateway.admin_url) as admin,
    ):

        async def now() -> DemandReport:
            return read_demand((await admin.get(DEMAND)).content)

        quiet = await now()
        assert (quiet.waiting, quiet.idle_since_unix_s) == (0, quiet.since_unix_s)
        body = {"model": "tiny", "prompt": [1, 2, 3], "max_tokens": 1}
        asked = asyncio.create_task(raw_exchange(gateway.port, post("/v1/completions", body), answers=1))
        async with asyncio.timeout(20):
            while not (report := await now()).waiting:  # noqa: ASYNC110 - only asking tells
                await asyncio.sleep(0.01)
        assert (report.waiting_tokens, report.idle_since_unix_s) == (3, None)
        assert not asked.done()
        gateway.endpoints_file.write_text(endpoints_text({"f0": engine.address}), encoding="utf-8")
        (answer,) = await asked
        assert answer.status == 200
        after = (await now()).idle_since_unix_s
        assert after is not None
        assert after > (quiet.idle_since_unix_s or 0)


def test_a_fleet_is_idle_since_the_last_request_of_any_gateway_and_not_while_one_is_not_known_to_be() -> None:
    idle = [report(1002.0, {}, idle_since_unix_s=since_s) for since_s in (900.0, 950.0)]
    assert together(idle).idle_since_unix_s == 950.0
    assert together([*idle, report(1002.0, {})]).idle_since_unix_s is None
