"""BurstGPT, Qwen-Bailian and lengths-only files; arrival processes; workloads that share prefixes."""

import itertools
import random
import statistics
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast_sim.workloads import (
    ArrivalProcess,
    NoArrivals,
    TraceError,
    WorkloadRequest,
    generate,
    line_of,
    read_lengths,
    read_trace,
)


def test_burstgpt_is_read_with_and_without_sessions(tmp_path: Path) -> None:
    """Seconds; failed requests (no response tokens) are left out; sessions are numbered as they appear."""
    plain = tmp_path / "b1.csv"
    plain.write_text(
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,300,0,300,API log\n118,GPT-4,417,276,693,Conversation log\n"
    )
    assert read_trace(plain) == [
        WorkloadRequest(arrival_s=0, input_tokens=472, output_tokens=18),
        WorkloadRequest(arrival_s=113, input_tokens=417, output_tokens=276),
    ]
    sessions = tmp_path / "b3.csv"
    sessions.write_text(
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "1,x7,2.5,ChatGPT,10,5,15,Conversation log\n2,k1,1,ChatGPT,20,5,25,API log\n9,x7,3,ChatGPT,30,5,35,API log\n"
    )
    assert [(request.session, request.turn) for request in read_trace(sessions)] == [(0, 0), (1, 0), (0, 1)]


def test_times_of_azures_format_count_in_their_own_time_zone(tmp_path: Path) -> None:
    """Seven digits, one, or none; clocks that were put forward between two requests did not wait for an hour."""
    path = tmp_path / "azure.csv"
    for stamps in (
        ("2024-03-31 01:59:59.5000009+01:00", "2024-03-31 03:00:00+02:00", "2024-03-31T03:00:00.5+02:00"),
        ("2024-03-31T00:59:59.5Z", "2024-03-31 01:00:00Z", "2024-03-31 01:00:00.500000+00:00"),
        ("2024-03-31 00:59:59.5", "2024-03-31 01:00:00", "2024-03-31 01:00:00.5000000"),
    ):
        rows = (f"{stamp},374,44" for stamp in stamps)
        path.write_text("\n".join(("TIMESTAMP,ContextTokens,GeneratedTokens", *rows)))
        assert [request.arrival_s for request in read_trace(path)] == pytest.approx([0.0, 0.5, 1.0])


def test_bailian_conversations_hang_together_by_parent(tmp_path: Path) -> None:
    """Seconds, not Mooncake's milliseconds; blocks of 16; a parent that is not in the file still names its session."""
    path = tmp_path / "qwen.jsonl"
    path.write_text(
        '{"chat_id": 159, "parent_chat_id": -1, "timestamp": 61.114, "input_length": 33, "output_length": 132,'
        ' "type": "text", "turn": 1, "hash_ids": [7, 8, 9]}\n'
        '{"chat_id": 4, "parent_chat_id": 3, "timestamp": 61.5, "input_length": 5, "output_length": 1,'
        ' "type": "text", "turn": 2, "hash_ids": [1]}\n'
        '{"chat_id": 160, "parent_chat_id": 159, "timestamp": 62.614, "input_length": 40, "output_length": 80,'
        ' "type": "text", "turn": 2, "hash_ids": [7, 8, 10]}\n'
    )
    first, other, second = read_trace(path)
    assert first == WorkloadRequest(
        arrival_s=0, input_tokens=33, output_tokens=132, hash_ids=(7, 8, 9), block_size=16, session=0, turn=0
    )
    assert (other.session, second.session, second.turn) == (1, 0, 1)
    assert second.arrival_s == pytest.approx(1.5)


def test_a_file_of_lengths_has_no_arrivals(tmp_path: Path) -> None:
    """It is told apart, its rows are read, and an error in one names its line."""
    path = tmp_path / "lengths.csv"
    path.write_text("input_tokens,output_tokens\n10,2\n20,0\n")
    with pytest.raises(NoArrivals, match="column arrival_s is missing"):
        read_trace(path)
    assert read_lengths(path) == [(10, 2), (20, 1)]
    path.write_text("input_tokens,output_tokens\n10,2\n20,-1\n")
    with pytest.raises(TraceError, match="line 3: column output_tokens: '-1' is negative"):
        read_lengths(path)


def test_a_request_is_found_again_by_its_lengths(tmp_path: Path) -> None:
    """Blank lines count, as an editor counts them."""
    path = tmp_path / "t.jsonl"
    row = '{"arrival_s": %d, "input_tokens": %d, "output_tokens": 3}\n'
    path.write_text(row % (0, 5) + "\n" + row % (1, 6))
    assert line_of(path, (6, 3)) == 3
    assert line_of(path, (7, 3)) is None


@pytest.mark.parametrize(("text", "variation"), [("poisson", 1.0), ("gamma:2", 2.0), ("gamma:0.5", 0.5)])
def test_arrivals_have_the_rate_and_the_variation_asked_for(text: str, variation: float) -> None:
    """20,000 gaps at 5 a second."""
    times = list(itertools.islice(ArrivalProcess.parse(text).times(5.0, random.Random(1)), 20_001))
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert times[0] == 0
    assert statistics.fmean(gaps) == pytest.approx(0.2, rel=0.05)
    assert statistics.pstdev(gaps) / statistics.fmean(gaps) == pytest.approx(variation, rel=0.05)


def test_bursts_come_whole_and_keep_the_mean_rate() -> None:
    """8 requests at each instant."""
    times = list(itertools.islice(ArrivalProcess.parse("burst:8").times(5.0, random.Random(1)), 40_000))
    assert set(Counter(times).values()) == {8}
    assert len(times) / times[-1] == pytest.approx(5.0, rel=0.05)


@pytest.mark.parametrize("text", ["tidal", "gamma:0", "gamma:x", "burst:2.5", "burst:-1", "gamma:inf", ""])
def test_arrivals_that_do_not_exist_are_refused(text: str) -> None:
    """The message names the option."""
    with pytest.raises(ValueError, match=r"^arrivals: "):
        ArrivalProcess.parse(text)


@given(seed=st.integers(0, 1000))
def test_every_turn_of_a_conversation_begins_with_the_whole_one_before(seed: int) -> None:
    """Ids agree over all full blocks of the earlier prompt; other sessions share the system prompt only."""
    sessions: dict[int, list[WorkloadRequest]] = defaultdict(list)
    requests = generate("multi-turn", duration_s=120, rate_rps=2, seed=seed)
    assert [request.arrival_s for request in requests] == sorted(request.arrival_s for request in requests)
    for request in requests:
        assert request.session is not None
        sessions[request.session].append(request)
        assert request.hash_ids is not None
        assert len(request.hash_ids) == -(-request.input_tokens // 64)
        assert list(request.hash_ids[:8]) == list(range(8))
    for turns in sessions.values():
        assert [request.turn for request in turns] == list(range(len(turns)))
        for earlier, later in itertools.pairwise(turns):
            assert earlier.hash_ids is not None
            assert later.hash_ids is not None
            assert later.input_tokens > earlier.input_tokens + earlier.output_tokens
            assert later.hash_ids[: len(earlier.hash_ids)] == earlier.hash_ids
    own = [set(turns[-1].hash_ids[8:]) for turns in sessions.values() if turns[-1].hash_ids]
    assert len(set().union(*own)) == sum(len(ids) for ids in own)


def test_one_tenant_is_hot_every_other_minute() -> None:
    """Its share rises above half then, and falls back."""
    requests = generate("hotspot-prefix", duration_s=240, rate_rps=20, seed=5)
    shares = []
    for minute in range(4):
        tenants = Counter(
            request.client for request in requests if minute * 60 <= request.arrival_s < (minute + 1) * 60
        )
        shares.append(max(tenants.values()) / tenants.total())
    assert shares[0] < 0.4
    assert shares[2] < 0.4
    assert shares[1] > 0.55
    assert shares[3] > 0.55
