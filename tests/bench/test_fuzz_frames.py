"""A sample of the fuzzer of frames; `python -m bench.reliability fuzz-frames --inputs 100000` is all of it."""

from __future__ import annotations

import random
import time
from collections import Counter

import pytest

from ballast_gateway.h2 import frames
from ballast_gateway.h2.connection import Connection
from ballast_gateway.h2.stream import Stream
from bench.reliability.experiments.fuzz_frames import CASES, fuzz


@pytest.mark.parametrize("case", CASES)
def test_hostile_frames_break_no_promise(case: str) -> None:
    row = fuzz(case, 1_000, seed=1)
    assert row.reasons == {}
    assert row.whole > 200
    assert len(row.refused) > 3


def test_the_fuzzer_sees_a_server_that_overruns_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    def send(stream: Stream, data: bytes) -> None:
        stream._connection.put(frames.frame(frames.DATA, 0, stream.id, data))

    monkeypatch.setattr(Stream, "send", send)
    assert fuzz("time", 200, seed=1).wrong


def test_the_fuzzer_sees_inputs_that_are_always_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = Counter[str]()

    def attempt(rng: random.Random) -> tuple[int, str]:
        name = str(rng.random())
        tried[name] += 1
        if len(tried) == 2 or (len(tried) == 3 and tried[name] == 1):  # the second always, the third once
            begin_s = time.thread_time()
            while time.thread_time() - begin_s < 0.26:
                pass
        return 100, ""

    monkeypatch.setitem(CASES, "slow", attempt)
    row = fuzz("slow", 5, seed=1)
    assert row.wrong == 1
    assert next(iter(row.reasons)).startswith("input 1: ")
    assert sorted(tried.values()) == [1, 1, 1, 2, 3]


def test_the_fuzzer_sees_a_server_that_forgets_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "_lose", lambda connection, stream: None)
    assert fuzz("pieces", 200, seed=1).wrong
