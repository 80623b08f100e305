"""Workloads: generators that keep their published statistics, trace files that are read or refused with a reason."""

import gzip
import statistics
from pathlib import Path

import pytest

from ballast_core.profiles import A100_QWEN3_32B, H20_QWEN3_32B
from ballast_core.profiles.capacity import LengthStatistics, decode_rps
from ballast_sim import capacity
from ballast_sim.engine import EngineConfig, EngineRequest, UniqueContent
from ballast_sim.workloads import (
    GENERATORS,
    TraceError,
    WorkloadRequest,
    generate,
    load_workload,
    read_trace,
    spread_equal_arrivals,
)
from tests.support.engines import started

TRACES = Path(__file__).parents[3] / "shared" / "traces"

MEANS = {
    "chat": (1000, 200),
    "random": (1056, 264),
    "sharegpt-reasoning": (183, 5657),
    "zeta": (345, 4500),
    "alpaca-reasoning": (11, 8596),
    "sharegpt-32k": (305, 7542),
    "sibyl-random": (256, 4096),
    "multi-turn": (1500, 250),
    "hotspot-prefix": (2304, 150),
    "libra-code": (2048, 28),
    "libra-chat": (621, 126),
    "libra-summary": (2588, 291),
    "libra-reasoning": (219, 1467),
    "mix-1": (1047, 1163),
    "mix-2": (549, 3561),
}


@pytest.mark.parametrize("name", GENERATORS)
def test_a_generator_keeps_the_means_that_it_promises(name: str) -> None:
    """10,000 requests at 5 a second: rate, input and output means within 5 %."""
    requests = generate(name, rate_rps=5, duration_s=2000, seed=3)
    inputs, outputs = MEANS[name]
    assert len(requests) / 2000 == pytest.approx(5, rel=0.05)
    assert statistics.fmean(request.input_tokens for request in requests) == pytest.approx(inputs, rel=0.05)
    assert statistics.fmean(request.output_tokens for request in requests) == pytest.approx(outputs, rel=0.05)
    arrivals = [request.arrival_s for request in requests]
    assert arrivals == sorted(arrivals)
    assert arrivals[0] == 0


def test_a_generator_repeats_itself_for_the_same_seed_only() -> None:
    """Also with another duration: the beginning is the same."""
    whole = generate("chat", duration_s=60, seed=1)
    assert generate("chat", duration_s=30, seed=1) == [request for request in whole if request.arrival_s < 30]
    assert generate("chat", duration_s=60, seed=2) != whole


def test_the_rate_scales_the_arrivals_of_a_trace(tmp_path: Path) -> None:
    """Twice the rate: half the time between arrivals."""
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n0,10,1\n4,10,1\n8,10,1\n")
    requests = load_workload(trace=path, duration_s=3, rate_scale=2)
    assert [request.arrival_s for request in requests] == [0, 2]


def test_all_formats_are_read(tmp_path: Path) -> None:
    """Ours as CSV and JSONL, packed or not; Azure's; Mooncake's."""
    ours = tmp_path / "ours.csv.gz"
    ours.write_bytes(gzip.compress(b"arrival_s,input_tokens,output_tokens,client\n1.5,10,2,7\n2.0,20,0,8\n"))
    lines = tmp_path / "ours.jsonl"
    row = '{"arrival_s": 0, "input_tokens": 20, "output_tokens": 3, "block_size": 16, "hash_ids": [4, 5], "session": 1}'
    lines.write_text(row + "\n\n")
    azure = tmp_path / "azure.csv"
    stamps = ("2023-11-16 18:15:46.6805900,374,44", "2023-11-16 18:15:50.9951690,396,109")
    azure.write_text("\n".join(("TIMESTAMP,ContextTokens,GeneratedTokens", *stamps)))
    mooncake = tmp_path / "mooncake.jsonl"
    mooncake.write_text('{"timestamp": 3000, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}\n')
    assert read_trace(ours) == [
        WorkloadRequest(arrival_s=0.0, input_tokens=10, output_tokens=2, client=7),
        WorkloadRequest(arrival_s=0.5, input_tokens=20, output_tokens=1, client=8),
    ]
    expected = WorkloadRequest(arrival_s=0, input_tokens=20, output_tokens=3, hash_ids=(4, 5), block_size=16, session=1)
    assert read_trace(lines) == [expected]
    assert read_trace(azure)[1].arrival_s == pytest.approx(4.314579)
    assert read_trace(azure)[1].input_tokens == 396
    assert read_trace(mooncake) == [
        WorkloadRequest(arrival_s=0.0, input_tokens=600, output_tokens=5, hash_ids=(0, 1), block_size=512)
    ]


@pytest.mark.parametrize("blank", ["\n", " \r\n\n"])
def test_blank_lines_above_the_first_row_are_passed_over(blank: str, tmp_path: Path) -> None:
    """As those below it are; lines count on."""
    path = tmp_path / "trace"
    line = '{"arrival_s": 0, "input_tokens": 5, "output_tokens": 1}\n'
    for text, broken in ((line, "{"), ("arrival_s,input_tokens,output_tokens\n0,5,1\n", "0,x,1")):
        path.write_bytes((blank + text).encode())
        assert read_trace(path) == [WorkloadRequest(arrival_s=0.0, input_tokens=5, output_tokens=1)]
        path.write_bytes((blank + text + broken).encode())
        number = (blank + text).count("\n") + 1
        with pytest.raises(TraceError, match=f"line {number}: "):
            read_trace(path)


BROKEN = {
    "empty": ("", "has no rows"),
    "header only": ("arrival_s,input_tokens,output_tokens\n", "has no rows"),
    "unknown columns": ("a,b\n1,2\n", "line 2: unknown columns a, b; expected arrival_s"),
    "a column is missing": ("arrival_s,input_tokens\n1,2\n", "line 2: column output_tokens is missing"),
    "negative": (
        "arrival_s,input_tokens,output_tokens\n0,5,1\n1,-5,1\n",
        "line 3: column input_tokens: '-5' is negative",
    ),
    "not a number": (
        "arrival_s,input_tokens,output_tokens\n0,many,1\n",
        "line 2: column input_tokens: 'many' is not a num",
    ),
    "NaN": ("arrival_s,input_tokens,output_tokens\nnan,5,1\n", "line 2: column arrival_s: 'nan' is not finite"),
    "half a token": (
        "arrival_s,input_tokens,output_tokens\n0,5.5,1\n",
        "line 2: column input_tokens: 5.5 is not a whole",
    ),
    "no prompt": ("arrival_s,input_tokens,output_tokens\n0,0,1\n", "line 2: column input_tokens: 0 is below 1"),
    "out of order": ("arrival_s,input_tokens,output_tokens\n5,5,1\n4,5,1\n", "line 3: column arrival: is earlier"),
    "a cell is missing": ("arrival_s,input_tokens,output_tokens\n0,5\n", "line 2: column output_tokens: is missing"),
    "too many cells": ("arrival_s,input_tokens,output_tokens\n0,5,1,9\n", "line 2: has more fields than"),
    "not JSON": ('{"arrival_s": 0\n', "line 1: is not JSON"),
    "not an object": ('{"arrival_s":0,"input_tokens":1,"output_tokens":1}\n[1]\n', "line 2: must be a JSON object"),
    "ids without size": (
        '{"arrival_s":0,"input_tokens":1,"output_tokens":1,"hash_ids":[1]}\n',
        "line 1: column block_size: is missing",
    ),
    "too many ids": (
        '{"arrival_s":0,"input_tokens":16,"output_tokens":1,"hash_ids":[1,2],"block_size":16}\n',
        "line 1: column hash_ids: 2 blocks of 16 are more than 16 tokens have",
    ),
    "no time": (
        "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,5,1\n",
        "line 2: column TIMESTAMP: 'yesterday' is not",
    ),
}


@pytest.mark.parametrize(("text", "reason"), BROKEN.values(), ids=BROKEN)
def test_a_broken_trace_is_refused_with_file_line_and_column(tmp_path: Path, text: str, reason: str) -> None:
    """And with what is wrong."""
    path = tmp_path / "broken.txt"
    path.write_text(text)
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert reason in str(caught.value)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    """Half a gzip file, bytes that are no text, no file at all."""
    whole = gzip.compress(b"arrival_s,input_tokens,output_tokens\n" + b"0,5,1\n" * 1000)
    half = tmp_path / "half.csv.gz"
    half.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TraceError, match="cut short"):
        read_trace(half)
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\xfe\xfa\xfb\n\x80\x81")
    with pytest.raises(TraceError, match="is not UTF-8"):
        read_trace(binary)
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(tmp_path / "nowhere.csv")


def stamped(*stamps_s: float, block: int | None = 512) -> list[WorkloadRequest]:
    """Requests at these times, with prefix blocks of so many tokens."""
    ids = None if block is None else (0,)
    return [
        WorkloadRequest(arrival_s=at_s, input_tokens=1, output_tokens=1, hash_ids=ids, block_size=block)
        for at_s in stamps_s
    ]


def test_batches_that_share_a_stamp_are_spread_over_their_step() -> None:
    """Stamps every 3 s, ten requests each: within 3 s, in order, the same for the same seed."""
    coarse = stamped(*(3.0 * (n // 10) for n in range(50)))
    spread = spread_equal_arrivals(coarse, seed=1)
    arrivals = [request.arrival_s for request in spread]
    assert len(set(arrivals)) == 50
    assert arrivals == sorted(arrivals)
    assert arrivals[9] < 3 <= arrivals[10]
    assert spread == spread_equal_arrivals(coarse, seed=1)


@pytest.mark.parametrize(
    "requests",
    [
        stamped(*[0.0] * 32),
        stamped(*[0.0] * 16, *[60.0] * 16, block=None),
        stamped(*[0.0] * 16, *[3.0] * 16, block=16),
        [*stamped(*[0.0] * 16, *[3.0] * 16), *stamped(6.0, block=None)],
        stamped(*[0.0] * 16, *[1.5] * 16),
        stamped(*(3.0 * (n // 2) for n in range(49)), 75.0, 78.0),
        generate("chat", duration_s=20, seed=1),
    ],
    ids=["one batch", "no blocks", "other blocks", "some without", "other steps", "few shared", "fine"],
)
def test_batches_that_are_not_mooncakes_arrive_as_they_stand(requests: list[WorkloadRequest]) -> None:
    """Equal arrivals are somebody's batch unless the format has made them equal."""
    assert spread_equal_arrivals(requests, seed=1) == requests


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"workload": "nothing"}, "workload: unknown workload 'nothing'; 15 are known, see `ballast workloads`"),
        ({"rate_rps": 0.0}, "rate_rps: must be above 0"),
        ({"rate_scale": -1.0}, "rate_scale: must be above 0"),
        ({"duration_s": 0.0}, "duration_s: must be above 0"),
    ],
    ids=["name", "rate", "scale", "duration"],
)
def test_impossible_arguments_are_refused_by_name(arguments: dict[str, object], message: str) -> None:
    """The message starts with the argument."""
    with pytest.raises(ValueError, match=f"^{message}"):
        load_workload(**{"duration_s": 10.0, **arguments})  # type: ignore[arg-type]


def test_capacity_is_the_law_worked_by_hand() -> None:
    """Every request 1,000 in and 100 out, on one A100 prefill endpoint and one H20 decode endpoint."""
    requests = [WorkloadRequest(arrival_s=0, input_tokens=1000, output_tokens=100)] * 3
    estimate = capacity.estimate(requests, prefill=[A100_QWEN3_32B], decode=[H20_QWEN3_32B])
    full_step_ms = 1.0 + (16.0**4 + (0.167 * 8192) ** 4) ** 0.25
    prefill_ms = full_step_ms * 1000 / 8192 + 8.4e-6 * 1000**2 / 2
    assert estimate.prefill_rps == pytest.approx(1e3 / prefill_ms)
    sequences = int(0.9 * 190_000 / 1050)
    step_ms = 1.0 + (16.0**4 + (0.562 * sequences) ** 4) ** 0.25 + 6.55e-5 * sequences * 1050 + 0.05 * sequences
    assert estimate.decode_rps == pytest.approx(sequences / step_ms * 1e3 / 100)
    assert estimate.bottleneck == "prefill"
    assert estimate.rps == estimate.prefill_rps
    assert estimate.load_ratio(estimate.prefill_rps / 2) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="decode: a fleet needs"):
        capacity.estimate(requests, prefill=[A100_QWEN3_32B], decode=[])
    with pytest.raises(ValueError, match="requests: a capacity estimate"):
        capacity.estimate([], prefill=[A100_QWEN3_32B], decode=[H20_QWEN3_32B])


@pytest.mark.parametrize(("load", "keeps_up"), [(0.85, True), (1.3, False)])
def test_an_engine_carries_the_decode_load_that_the_arithmetic_promises(load: float, keeps_up: bool) -> None:
    """The estimate against the engine itself, decode only: below it the engine keeps up with arrivals, above not."""
    row = WorkloadRequest(arrival_s=0, input_tokens=1000, output_tokens=100)
    promised_rps = decode_rps(H20_QWEN3_32B, LengthStatistics.of([row]))
    run = started(
        EngineConfig.from_profile(H20_QWEN3_32B, pulls_kv=True),
        [
            EngineRequest(
                request_id=str(number),
                input_tokens=1000,
                max_tokens=100,
                content=UniqueContent(number),
                arrival_s=number / (load * promised_rps),
                pull=True,
            )
            for number in range(600)
        ],
        check=False,
    ).until()
    ends_s = max(end.at_s for end in run.finished.values())
    arrivals_end_s = 600 / (load * promised_rps)
    assert (ends_s < 1.25 * arrivals_end_s) is keeps_up


@pytest.mark.shared
@pytest.mark.skipif(not TRACES.exists(), reason="no traces beside this checkout (../shared/traces)")
@pytest.mark.parametrize(
    ("name", "rows", "inputs", "outputs"),
    [
        ("azure23_conv_w1.csv.gz", 12337, 1246, 204),
        ("mooncake_conversation_w1.jsonl.gz", 6758, 12592, 347),
        ("servegen_r1_w1.csv.gz", 39028, 1254, 2695),
        ("agent_miniswe.jsonl.gz", 402, 6170, 110),
    ],
)
def test_the_public_traces_are_read_whole(name: str, rows: int, inputs: int, outputs: int) -> None:
    """Row counts and means are those that their documentation states."""
    requests = read_trace(TRACES / name)
    assert len(requests) == rows
    assert statistics.fmean(request.input_tokens for request in requests) == pytest.approx(inputs, abs=1)
    assert statistics.fmean(request.output_tokens for request in requests) == pytest.approx(outputs, abs=1)
