"""The traffic recorder: bounded, without words of clients, and in the format that the simulator reads."""

from __future__ import annotations

import asyncio
import json
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from ballast_api.recorded_traffic import merged, rows_of
from ballast_core.model import Request, RequestId
from ballast_core.state.flights import Flights
from ballast_core.state.ledger import Entry
from ballast_gateway.records import RequestRecord
from ballast_gateway.traffic import BLOCK_BYTES, ROW_BYTES, Bounds, TrafficRecorder
from ballast_sim.workloads import read_trace
from tests.support.gateway_kit import post, raw_exchange, running_gateway, until
from tests.support.scripted_engine import (
    SSE_HEAD,
    Asked,
    chunk,
    decode_script,
    prefill_script,
    scripted_engine,
    vllm_events,
)

PATH = "/v1/completions"


def recorder(now_s: float = 100.0, **bounds: float) -> TrafficRecorder:
    kept: dict[str, Any] = {"requests": 1000, "seconds": 60.0, "blocks": 10_000} | bounds
    return TrafficRecorder(Bounds(**kept), now_s=lambda: now_s, unix_s=1e9)


def record(
    arrived_s: float = 90.0,
    *,
    prompt_tokens: int = 640,
    output_tokens: int = 20,
    hashes: tuple[int, ...] = (),
    outcome: str = "completed",
    limit: int = 30,
    measured: int = 0,
    traffic_class: str = "m",
) -> RequestRecord:
    asked = Request(
        RequestId("secret-id"),
        prompt_tokens,
        max_output_tokens=limit,
        model="secret-model",
        block_hashes=hashes,
        block_size=64 if hashes else 0,
        traffic_class=traffic_class,
        tenant="secret-tenant",
    )
    return RequestRecord(
        id="secret-id",
        arrived_s=arrived_s,
        model="secret-model",
        first_token_s=arrived_s + 0.5,
        ended_s=arrived_s + 2.0,
        output_tokens=output_tokens,
        outcome=outcome,
        detail="secret detail",
        measured_prompt_tokens=measured,
        asked=asked,
    )


def rows(kept: TrafficRecorder, **asked: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for part in kept.trace(**asked) for line in part.splitlines()]


def test_a_request_is_a_row_without_words() -> None:
    """Blocks and classes leave as numbers: those of the engine's cache or of other gateways say nothing here."""
    kept = recorder()
    kept(record(91.0, hashes=(2**64 - 1, 5), traffic_class="secret|objective"))
    kept(record(90.0, hashes=(2**64 - 1, 7, 9)))
    first, second = rows(kept)
    assert (first["arrival_s"], second["arrival_s"]) == (1e9 + 90.0, 1e9 + 91.0)
    assert first["hash_ids"] == [3, 1, 2]
    assert second["hash_ids"] == [3, 0]
    assert second == {
        "arrival_s": 1e9 + 91.0,
        "input_tokens": 640,
        "output_tokens": 20,
        "max_tokens": 30,
        "hash_ids": [3, 0],
        "block_size": 64,
        "class": 0,
        "priority": 0,
        "stream": False,
        "outcome": "completed",
        "ttft_s": 0.5,
        "e2e_s": 2.0,
    }
    assert b"secret" not in b"".join(kept.trace())


def test_what_no_engine_was_asked_is_no_traffic() -> None:
    kept = recorder()
    kept(RequestRecord(id="models", arrived_s=90.0, outcome="answered"))
    assert rows(kept) == []


def test_estimates_of_text_are_corrected_by_what_engines_counted() -> None:
    """A prompt that engines have not counted keeps its estimate; blocks stay as long as one text has made them."""
    kept = recorder()
    kept(record(90.0, prompt_tokens=640, measured=480, hashes=tuple(range(10))))
    kept(record(91.0, prompt_tokens=64))
    first, second = rows(kept)
    assert (first["input_tokens"], first["block_size"], len(first["hash_ids"])) == (480, 48, 10)
    assert second["input_tokens"] == 64


@pytest.mark.parametrize(
    ("bounds", "left"),
    [({"requests": 3}, 3), ({"blocks": 8}, 2), ({"seconds": 4.5}, 5), ({"seconds": 0.0}, 0)],
    ids=["requests", "blocks", "time", "none"],
)
def test_the_newest_are_kept(bounds: dict[str, float], left: int) -> None:
    """Ten requests a second apart, of four blocks each."""
    kept = recorder(now_s=12.0, **bounds)
    for second in range(10):
        kept(record(float(second), hashes=(1, 2, 3, 4)))
    assert len(kept) == left
    kept_s = [row["arrival_s"] - 1e9 for row in rows(kept, limit=1)]
    assert kept_s == [9.0][:left]


def test_a_prompt_with_more_blocks_than_are_kept_stays_without_them() -> None:
    kept = recorder(blocks=3)
    kept(record(90.0, hashes=(1, 2)))
    kept(record(91.0, hashes=(1, 2, 3, 4)))
    assert ["hash_ids" in row for row in rows(kept)] == [True, False]


def test_new_bounds_hold_at_once() -> None:
    """For what is there, too, and for good: what they exclude does not come back with wider ones."""
    wide = Bounds(requests=1000, seconds=60.0, blocks=10_000)
    kept = recorder()
    for second in (90.0, 91.0, 92.0):
        kept(record(second, hashes=(1, 2, 3)))
    kept.bounds = replace(wide, blocks=2)
    kept.bounds = wide
    assert ["hash_ids" in row for row in rows(kept)] == [False] * 3
    kept.bounds = replace(wide, requests=2)
    assert len(kept) == 2
    kept.bounds = replace(wide, seconds=7.0)  # they ended at 93 and 94, and it is 100
    assert len(kept) == 2
    kept.bounds = replace(wide, seconds=6.5)
    assert len(kept) == 1
    kept.bounds = replace(wide, seconds=0.0)
    kept(record(95.0))
    kept.bounds = wide
    assert (len(kept), rows(kept)) == (0, [])


@pytest.mark.parametrize(("blocks", "shown"), [(0, False), (2, False), (3, True)])
def test_one_that_runs_shows_no_more_blocks_than_are_kept_of_one(blocks: int, shown: bool) -> None:
    """And not whether it streams: nobody has told."""
    asked = record(hashes=(1, 2, 3)).asked
    assert asked is not None
    running = Entry(asked, 99.0, Flights())
    kept = TrafficRecorder(
        Bounds(requests=10, seconds=60.0, blocks=blocks), now_s=lambda: 100.0, unix_s=0.0, running=lambda: [running]
    )
    [row] = rows(kept)
    assert ("hash_ids" in row, "stream" in row, row["outcome"]) == (shown, False, "running")


def test_a_window_is_the_last_seconds() -> None:
    kept = recorder(now_s=100.0)
    for second in (50, 80, 95):
        kept(record(float(second)))
    assert [row["arrival_s"] - 1e9 for row in rows(kept, seconds=30.0)] == [80.0, 95.0]
    assert len(rows(kept)) == 3


def test_memory_is_what_the_bounds_say() -> None:
    """Full of requests with every field, and turned over twice."""
    requests, each = 2000, 40
    kept = recorder(requests=requests, blocks=requests * each, seconds=1e9)

    def fill() -> None:
        for number in range(requests):
            blocks = tuple(range(number << 40, (number << 40) + each))
            kept(record(1e5 + number / 7, prompt_tokens=10**6 + number, measured=10**6 + 3 * number, hashes=blocks))

    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        fill()
        fill()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(kept) == requests
    assert kept.most_bytes == requests * (ROW_BYTES + each * BLOCK_BYTES)
    assert after - before <= kept.most_bytes
    assert sys.getsizeof(kept) < 1000


def test_the_simulator_reads_it(tmp_path: Path) -> None:
    """Requests whose output was not seen are left out, but for those that have none; limits and classes stay."""
    kept = recorder()
    kept(record(92.0, hashes=(8, 9)))
    kept(record(90.0, hashes=(8,), outcome="cancelled"))
    kept(record(91.0, outcome="rejected", output_tokens=0))
    kept(record(93.0, outcome="completed", output_tokens=0))
    kept(record(94.0, outcome="completed", output_tokens=0, limit=1))
    file = tmp_path / "traffic.jsonl"
    file.write_bytes(b"".join(kept.trace()))
    read = read_trace(file)
    assert [(each.arrival_s, each.output_tokens) for each in read] == [(0.0, 20), (2.0, 20), (4.0, 1)]
    assert [each.hash_ids for each in read] == [(0,), (0, 1), None]
    assert [each.max_tokens for each in read] == [30, 30, 1]
    assert {each.traffic_class for each in read} == {"class-0"}


def named(kept: TrafficRecorder, key: bytes = b"k" * 32) -> bytes:
    return b"".join(kept.trace(key=key))


def test_rows_of_several_gateways_make_one_trace(tmp_path: Path) -> None:
    """That of one gateway with all of the requests: order, shared blocks, classes, corrections by engines' counts."""
    together, parts = recorder(), (recorder(), recorder())
    for number in range(40):
        hashes = tuple(range(10 * (number % 3), 10 * (number % 3) + 1 + number % 10))
        one = record(
            50.0 + number,
            prompt_tokens=64 * len(hashes) + number,
            hashes=hashes,
            measured=(64 * len(hashes) + number) * 3 // 4 if number % 2 else 0,
            traffic_class=f"secret-{number % 4}",
        )
        together(one)
        parts[number * 7 % 5 % 2](one)
    file = tmp_path / "merged.jsonl"
    file.write_bytes(b"".join(merged(row for part in parts for row in rows_of(named(part)))))
    (tmp_path / "alone.jsonl").write_bytes(b"".join(together.trace()))
    found, alone = read_trace(file), read_trace(tmp_path / "alone.jsonl")

    def shape(requests: Any) -> list[Any]:
        """Blocks and classes by their first appearance: numbers are each trace's own."""
        known: dict[int, int] = {}
        return [
            (r.arrival_s, r.input_tokens, r.block_size, [known.setdefault(b, len(known)) for b in r.hash_ids or ()])
            for r in requests
        ]

    assert shape(found) == shape(alone)
    assert len(found) == 40
    classes = [request.traffic_class for request in found]
    assert classes == [f"class-{number % 4}" for number in range(40)]


def test_names_are_the_same_for_one_key_only() -> None:
    """And no hash of a prompt is in them."""
    kept = recorder()
    kept(record(90.0, hashes=(2**64 - 1, 5), traffic_class="secret"))
    [row], [other] = ([json.loads(line) for line in named(kept, key * 32).splitlines()] for key in (b"a", b"b"))
    assert not {2**64 - 1, 5} & {*row["hash_ids"], *other["hash_ids"]}
    assert not {*row["hash_ids"], row["class"]} & {*other["hash_ids"], other["class"]}
    assert row == json.loads(named(kept, b"a" * 32))
    assert b"secret" not in named(kept)


@pytest.mark.parametrize(
    "line",
    [
        *("[]", '{"a": 1}', "<html>", "[" * 10_000),
        '{"arrival_s": "1", "input_tokens": 1, "class": 0}',
        '{"arrival_s": NaN, "input_tokens": 1, "class": 0}',
        '{"arrival_s": 1, "input_tokens": [2], "class": 0}',
        '{"arrival_s": 1, "input_tokens": 1, "class": {}}',
        '{"arrival_s": 1, "input_tokens": 1, "class": 0, "taken_tokens": "3"}',
        '{"arrival_s": 1, "input_tokens": 1, "class": 0, "hash_ids": [[1]], "block_size": 16}',
        '{"arrival_s": 1, "input_tokens": 1, "class": 0, "hash_ids": [1]}',
    ],
)
def test_what_is_no_row_is_refused(line: str) -> None:
    """In words, also where the fields are there and hold something else."""
    assert len(rows_of(b'{"arrival_s": 1.5, "input_tokens": 1, "class": 0}\n')) == 1
    with pytest.raises(ValueError, match="no row of recorded traffic"):
        rows_of(line.encode() + b"\n")


async def test_the_admin_api_gives_the_traffic_of_the_gateway(tmp_path: Path) -> None:
    """What was refused at the door is not in it."""
    async with (
        scripted_engine(prefill_script) as prefill,
        scripted_engine(decode_script) as decode,
        running_gateway(tmp_path, {"p0": prefill.address, "d0": decode.address}) as gateway,
        httpx.AsyncClient(base_url=gateway.admin_url) as admin,
    ):
        prompt = "a canary that nobody may see again " * 20
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 3, "stream": True}
        key = "authorization: Bearer canary-key"
        for name in ("canary-one", "canary-two"):
            await raw_exchange(gateway.port, post(PATH, body, key, f"x-request-id: {name}"), answers=1)
        await raw_exchange(gateway.port, post(PATH, body | {"model": "other"}), answers=1)
        answer = await admin.get("/ballast/v1/traffic", params={"minutes": 5})
        assert answer.headers["content-type"] == "application/jsonl"
        one, two = [json.loads(line) for line in answer.text.splitlines()]
        assert one["hash_ids"] == two["hash_ids"]
        assert sorted(one["hash_ids"]) == [0, 1]
        assert (one["outcome"], one["stream"], one["max_tokens"]) == ("completed", True, 3)
        assert one["arrival_s"] < two["arrival_s"]
        assert "canary" not in answer.text
        assert len((await admin.get("/ballast/v1/traffic", params={"limit": 1})).text.splitlines()) == 1
        for wrong in ({"minutes": 0}, {"limit": 0}, {"minutes": "x"}):
            assert (await admin.get("/ballast/v1/traffic", params=wrong)).status_code == 422


async def test_a_request_that_runs_is_in_it_with_its_tokens_so_far(tmp_path: Path) -> None:
    """And no more once it has ended, but as one that has."""
    go_on = asyncio.Event()

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        first, *rest = vllm_events(["a", "b", "c"])
        writer.write(SSE_HEAD + chunk(first))
        await go_on.wait()
        writer.write(b"".join(map(chunk, rest)) + b"0\r\n\r\n")

    async with (
        scripted_engine(script) as engine,
        running_gateway(tmp_path, {"d0": engine.address}) as gateway,
    ):
        body = {"model": "tiny", "prompt": [1, 2, 3], "max_tokens": 3, "stream": True}
        asking = asyncio.create_task(raw_exchange(gateway.port, post(PATH, body), answers=1))
        kept = gateway.gateway.traffic
        await until(lambda: [row["output_tokens"] for row in rows(kept)] == [1])
        [row] = rows(kept)
        assert (row["outcome"], row["input_tokens"], row["max_tokens"]) == ("running", 3, 3)
        assert "e2e_s" not in row
        go_on.set()
        await asking
        await until(lambda: [(row["outcome"], row["output_tokens"]) for row in rows(kept)] == [("completed", 3)])
