"""SIBYL's appendix G: its lengths and machines, and how its analysis reads results."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ballast_core.profiles import SHIPPED_PROFILES
from ballast_sim.capacity import estimate
from bench.reproduce.results import Results
from bench.reproduce.sibyl.a100 import CLAIMS, DECODE_RPS, EXPERIMENT, PAPER_CHANGES
from bench.reproduce.sibyl.a100_profiles import DECODE, PREFILL
from bench.reproduce.sibyl.lengths import UniformLengths
from bench.reproduce.verdicts import Verdict


def lengths(rate_rps: float, limit: int) -> UniformLengths:
    return UniformLengths(longest_input_tokens=1024, longest_output_tokens=4096, rate_rps=rate_rps, limit=limit)


@settings(max_examples=20)
@given(st.integers(0, 1000), st.floats(0.5, 20))
def test_lengths_are_uniform_and_arrivals_have_the_rate(seed: int, rate_rps: float) -> None:
    requests = lengths(rate_rps, 2000).load(seed, 1.0).requests
    assert len(requests) == 2000
    assert requests == lengths(rate_rps, 2000).load(seed, 1.0).requests
    assert requests != lengths(rate_rps, 2000).load(seed + 1, 1.0).requests
    assert all(1 <= each.input_tokens <= 1024 and 1 <= each.output_tokens <= 4096 for each in requests)
    assert sum(each.input_tokens for each in requests) / 2000 == pytest.approx(512.5, rel=0.08)
    assert sum(each.output_tokens for each in requests) / 2000 == pytest.approx(2048.5, rel=0.08)
    assert requests[-1].arrival_s == pytest.approx(2000 / rate_rps, rel=0.15)
    faster = lengths(rate_rps, 2000).load(seed, 2.0).requests
    assert faster[-1].arrival_s == pytest.approx(requests[-1].arrival_s / 2)


def test_a_smaller_card_has_the_bandwidth_and_the_memory_of_table_4() -> None:
    base = SHIPPED_PROFILES["a100-llama3-8b"]
    llama, qwen = DECODE["llama3-8b"], DECODE["qwen2.5-7b"]
    assert llama.a_ms / base.a_ms == pytest.approx(2.039 / 1.89)
    assert llama.d_ms_per_token == base.d_ms_per_token
    assert qwen.kv_bytes_per_token == 57_344
    for profile, weights in ((llama, 16.06e9), (qwen, 15.23e9)):
        used = profile.kv_tokens * profile.kv_bytes_per_token + weights + 3 * 2**30
        assert used == pytest.approx(0.8 * 40 * 2**30, rel=0.002)
    assert {each.max_num_seqs for each in PREFILL.values()} == {1}


@pytest.mark.parametrize("model", DECODE_RPS)
def test_load_1_is_what_decode_endpoints_carry(model: str) -> None:
    drawn = lengths(1.0, 20_000).load(0, 1.0).requests
    capacity = estimate(drawn, prefill=[PREFILL[model]] * 2, decode=[DECODE[model]])
    assert capacity.decode_rps == pytest.approx(DECODE_RPS[model], rel=0.02)
    assert capacity.prefill_rps > 1.2 * 4 * capacity.decode_rps


def made(tpot_s: float, tokens_per_s: float) -> dict[int, dict[str, float]]:
    """Three seeds of a run."""
    return {
        seed: {
            "tpot_mean_s": tpot_s * (1 + 0.001 * seed),
            "tpot_p99_s": tpot_s * (1 + 0.001 * seed),
            "tpot_p999_s": tpot_s * (1 + 0.001 * seed),
            "throughput_tok_s": tokens_per_s,
            "preemptions": 5.0,
            "requests": 100.0,
        }
        for seed in (0, 1, 2)
    }


def test_verdicts_follow_the_results() -> None:
    def verdicts(factor: float) -> list[Verdict | None]:
        figures = {
            run.name: made(0.03 * factor, 100 / factor) if run.name.endswith("sibyl") else made(0.03, 100)
            for run in EXPERIMENT.runs
        }
        lasting = dict.fromkeys(figures, 4.0)
        found = EXPERIMENT.analyse(Results(figures, lasting))
        assert "5 / 5 / 5 times in 100 requests" in found.text
        assert {row.claim for row in found.rows if row.verdict is not None} == {each.name for each in CLAIMS}
        return [row.verdict for row in found.rows if row.verdict is not None]

    assert len(verdicts(0.5)) == sum(map(len, PAPER_CHANGES.values())) + 1
    assert set(verdicts(0.5)) == {Verdict.HOLDS}
    assert set(verdicts(1.5)) == {Verdict.CONTRADICTED}


def test_nothing_is_said_without_results() -> None:
    found = EXPERIMENT.analyse(Results())
    assert found.text == ""
    assert {row.verdict for row in found.rows} == {None, Verdict.OPEN}
