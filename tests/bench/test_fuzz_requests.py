"""A sample of the fuzzer of requests; `python -m bench.reliability fuzz-requests --inputs 1000000` is all of it."""

from __future__ import annotations

import pytest

from ballast_gateway import strict_json
from bench.reliability.experiments.fuzz_requests import CASES, fuzz


@pytest.mark.parametrize("case", CASES)
def test_hostile_bytes_break_no_promise(case: str) -> None:
    row = fuzz(case, 3_000, seed=1)
    assert row.reasons == {}
    assert row.whole > 200
    assert len(row.refused) > 1


def test_the_fuzzer_sees_a_reader_that_lets_doubled_names_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strict_json, "_refuse_doubles", lambda raw, document: None)
    assert fuzz("bodies", 500, seed=1).wrong
