"""`bench.choosing`: the tables of docs/choosing.md are those of the record."""

from __future__ import annotations

import json

import pytest

from bench import choosing


def test_the_page_is_what_the_record_renders_to() -> None:
    assert choosing.main(["--check"]) == 0


def test_another_record_is_another_page(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    record = json.loads(choosing.RECORD.read_text())
    record[0]["candidates"][0]["attainment"] = 0.123
    monkeypatch.setattr(json, "loads", lambda text: record)
    assert choosing.main(["--check"]) == 1
    assert "--render" in capsys.readouterr().out


def test_policies_are_compared_on_the_same_layout_only() -> None:
    """The one that beats the default there and is tried on another layout without a default counts once."""

    def candidate(endpoints: str, policy: str, attainment: float) -> dict[str, object]:
        return {
            "endpoints": endpoints,
            "policy": policy,
            "attainment": attainment,
            "ttft_p99_s": 1.0,
            "tpot_p99_ms": 20.0,
        }

    row = {
        "workload": "chat",
        "load": 0.9,
        "rate_rps": 1.0,
        "input_tokens": 10,
        "output_tokens": 20,
        "candidates": [
            candidate("1P1D@x", "better", 0.9),
            candidate("1P1D@x", "default", 0.8),
            candidate("2C@x", "better", 0.1),
        ],
    }
    page = choosing.render([row])
    assert "| better (P/D) | 1 | +10.0 (best +10.0: chat 0.9; worst +10.0: chat 0.9) | 1.00 " in page
    assert "better (colocated)" not in page
    assert "| chat | 10 / 20 | 0.9 | (1) | `1P1D@x` | better | 90.0% | 1.00 | 20.0 | 10.0% | - | - |" in page


def test_a_page_without_a_place_for_tables_is_refused() -> None:
    with pytest.raises(ValueError, match="no place for the tables"):
        choosing.page_with("tables", "a page")


def test_asked_rates_chunks_and_more_seeds_are_shown() -> None:
    def candidate(endpoints: str, attainment: float) -> dict[str, object]:
        return {
            "endpoints": endpoints,
            "policy": "default",
            "attainment": attainment,
            "ttft_p99_s": 1.0,
            "tpot_p99_ms": 20.0,
        }

    best, together = candidate("1P1D@x", 1.0), candidate("2C@x", 0.999)
    row = {
        "workload": "chat",
        "load": 0.9,
        "rate_rps": 6.78,
        "asked_rps": 11.2,
        "input_tokens": 10,
        "output_tokens": 20,
        "candidates": [best, together],
        "chunked": candidate("2C@x", 0.95),
        "closer": [candidate("1P1D@x", 0.9991), candidate("2C@x", 0.9994)],
    }
    page = choosing.render([row])
    assert "| 11.2 (6.78) | `1P1D@x` | default | 100.0% | 1.00 | 20.0 | 99.9% | 95.0% | 1.00, 20.0 |" in page
    assert "| chat | 99.91%, 99.94% | 1.00, 1.00 | 20.0, 20.0 |" in page


def test_a_row_is_looked_at_again_with_the_rate_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The best colocated fleet in small chunks; both of them again, as they differ in the third digit."""
    monkeypatch.setattr(choosing, "REQUESTS", 20)
    monkeypatch.setattr(choosing, "SEEDS", (0, 1, 2))
    record = json.loads(choosing.RECORD.read_text())
    row = next(each for each in record if each["workload"] == "hotspot-prefix")
    best, together = row["candidates"][0], next(each for each in row["candidates"] if "C@" in each["endpoints"])
    best["attainment"], together["attainment"] = 0.9999, 0.9994
    found = choosing.looked_closer(row)
    assert found["asked_rps"] == choosing.question_of("hotspot-prefix", 0.9).source.rate_rps
    assert found["chunked"]["endpoints"] == "2C@a100-qwen3-32b,6C@h20-qwen3-32b"
    assert [each["endpoints"] for each in found["closer"]] == [
        row["candidates"][0]["endpoints"],
        found["chunked"]["endpoints"],
    ]
    assert found["candidates"] == row["candidates"]
