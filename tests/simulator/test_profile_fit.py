"""Profiles from measurements: the fit finds the engine again, says what it cannot know, and refuses what is broken."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ballast_core.profiles import (
    A100_QWEN3_32B,
    H20_QWEN3_32B,
    H200_LLAMA3_8B,
    SHIPPED_PROFILES,
    HardwareProfile,
)
from ballast_sim.fitting.bench_results import read_bench_result
from ballast_sim.fitting.errors import FitInputError
from ballast_sim.fitting.fitting import FittedProfile, fit_profile
from ballast_sim.fitting.law import COEFFICIENTS, NotEnoughSamples, fit_law
from ballast_sim.fitting.nnls import FloatArray, non_negative_least_squares
from ballast_sim.fitting.samples import Sample, Samples, chunk_parts
from ballast_sim.fitting.scrapes import read_scrapes
from ballast_sim.fitting.step_logs import read_step_log
from tests.support.measured_engine import measure

pytestmark = pytest.mark.rotating(4, each=True)

GOLDEN = sorted(Path("tests/golden/engine").glob("*.jsonl.gz"))
BASE = SHIPPED_PROFILES["h100-qwen3-32b-tp2"]


def write_jsonl(path: Path, rows: Sequence[object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_csv(path: Path, rows: Sequence[dict[str, float]]) -> Path:
    with path.open("w", newline="") as lines:
        writer = csv.DictWriter(lines, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    return path


def assert_same_law(found: HardwareProfile, truth: HardwareProfile, rel: float) -> None:
    for name in COEFFICIENTS:
        assert getattr(found, name) == pytest.approx(getattr(truth, name), rel=rel), name


def step_of(profile: HardwareProfile, decodes: int, context: int, prompt: int = 0) -> Sample:
    """A step as `profile` takes it: decodes with `context` tokens each, and one whole prompt."""
    tokens, pairs = decodes + prompt, prompt**2 / 2
    return Sample(
        duration_ms=profile.step_s(tokens, decodes * context, pairs, decodes) * 1e3,
        parts=((1.0, float(tokens)),),
        decode_context_tokens=float(decodes * context),
        prefill_pairs=pairs,
        decodes=float(decodes),
    )


def mixed_steps(profile: HardwareProfile, count: int = 600, seed: int = 0) -> list[Sample]:
    rng = np.random.default_rng(seed)
    return [
        step_of(profile, int(rng.integers(1, 200)), int(rng.integers(50, 4000)), int(rng.choice([0, 0, 0, 100, 1500])))
        for _ in range(count)
    ]


# -- non-negative least squares ----------------------------------------------------------------------------------------

NUMBERS = st.floats(-100, 100, allow_subnormal=False).map(lambda x: round(x, 3))


@given(arrays(float, (8, 4), elements=NUMBERS), arrays(float, 8, elements=NUMBERS))
def test_nnls_meets_the_conditions_of_kuhn_and_tucker(matrix: FloatArray, target: FloatArray) -> None:
    """No coefficient is negative; no free one could improve the sum, and no bound one wants to grow."""
    found = non_negative_least_squares(matrix, target)
    assert (found >= 0).all()
    lengths = np.linalg.norm(matrix, axis=0)
    gradient = matrix.T @ (target - matrix @ found) / np.where(lengths > 0, lengths, 1)
    tolerance = 1e-6 * max(float(np.linalg.norm(target)), 1.0)
    assert (gradient <= tolerance).all()
    assert np.abs(gradient[found > 0]).max(initial=0.0) <= tolerance


def test_nnls_by_hand() -> None:
    """Unbounded: (3, -1). The second stays at 0, and the first is then the mean of 2 and 3 weighted by 1 and 1."""
    matrix = np.array([[1.0, 1.0], [1.0, 0.0]])
    assert non_negative_least_squares(matrix, np.array([2.0, 3.0])).tolist() == pytest.approx([2.5, 0.0])


def test_nnls_takes_columns_of_any_scale() -> None:
    """Contexts are millions, decodes are ones."""
    rng = np.random.default_rng(0)
    matrix = rng.uniform(0.1, 1, (50, 4)) * [1, 1e9, 1e-6, 1]
    truth = np.array([2.0, 3e-9, 5e6, 0.0])
    np.testing.assert_allclose(non_negative_least_squares(matrix, matrix @ truth), truth, rtol=1e-6, atol=1e-9)


# -- the law -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", SHIPPED_PROFILES.values(), ids=SHIPPED_PROFILES)
def test_every_shipped_profile_is_found_again_from_its_steps(profile: HardwareProfile) -> None:
    """Whatever the base was."""
    fit = fit_law(Samples.of(mixed_steps(profile)), BASE)
    assert not fit.kept
    assert_same_law(fit.profile, profile, rel=0.01)
    assert fit.held_out.max_ratio < 1e-3
    assert not fit.warnings()


def test_disturbed_steps_have_no_say() -> None:
    """One step in twelve took up to eight times as long; all others have 1 % of noise."""
    rng = np.random.default_rng(1)
    truth = A100_QWEN3_32B
    samples = [
        replace(
            sample,
            duration_ms=sample.duration_ms * rng.lognormal(0, 0.01) * (rng.uniform(2, 8) if number % 12 == 0 else 1),
        )
        for number, sample in enumerate(mixed_steps(truth, 3000))
    ]
    fit = fit_law(Samples.of(samples), BASE)
    for decodes, context, prompt in ((1, 1000, 0), (64, 1000, 0), (150, 3000, 0), (32, 1000, 2000)):
        clean = Samples.of([step_of(truth, decodes, context, prompt)])
        assert clean.predict_ms(fit.profile) == pytest.approx(clean.duration_ms, rel=0.02)
    assert fit.held_out.max_ratio > 0.4  # the errors still tell of them


@pytest.mark.parametrize(
    ("samples", "kept"),
    [
        ([step_of(H20_QWEN3_32B, n, c) for n in range(1, 80, 3) for c in (100, 900, 3000)], {"s_ms_per_pair"}),
        ([step_of(H20_QWEN3_32B, 0, 0, p) for p in range(100, 4000, 50)], {"k_ms_per_kv_token", "b_ms_per_seq"}),
    ],
    ids=["decodes only", "prefills only"],
)
def test_what_the_data_do_not_show_is_kept_from_the_base_and_named(samples: list[Sample], kept: set[str]) -> None:
    """Nothing is made up."""
    fit = fit_law(Samples.of(samples), BASE)
    assert kept <= fit.kept.keys()
    for name in fit.kept:
        assert getattr(fit.profile, name) == getattr(BASE, name)
    assert fit.held_out.mean_ratio < 0.01


def equal_contexts() -> Samples:
    """Decodes of 1,000 tokens each, with 0.5 % of noise: k and b are one, and so are overhead and floor."""
    rng = np.random.default_rng(0)
    return Samples.of(
        replace(sample, duration_ms=sample.duration_ms * rng.lognormal(0, 0.005))
        for sample in (step_of(H200_LLAMA3_8B, n % 60 + 1, 1000) for n in range(600))
    )


def test_what_cannot_be_told_apart_is_kept_and_the_rest_still_predicts() -> None:
    """Of k and b the base tells b, of overhead and floor it tells the overhead."""
    fit = fit_law(equal_contexts(), SHIPPED_PROFILES["h100-llama3-8b"])
    assert {"overhead_ms", "b_ms_per_seq", "s_ms_per_pair"} <= fit.kept.keys()
    assert "k_ms_per_kv_token" not in fit.kept
    assert "a_ms" not in fit.kept
    assert fit.held_out.mean_ratio < 0.01


def test_a_base_that_contradicts_the_data_is_not_believed() -> None:
    """The same data, but the base's b and k are each more than both together can be: they stay fitted, and unsure."""
    fit = fit_law(equal_contexts(), H20_QWEN3_32B)
    assert {"k_ms_per_kv_token", "b_ms_per_seq"} <= fit.unsure.keys()
    assert not fit.unsure.keys() & fit.kept.keys()
    assert "contradict the base's 0.05" in fit.unsure["b_ms_per_seq"]
    assert fit.held_out.mean_ratio < 0.01


def test_a_poor_fit_is_said_to_be_poor() -> None:
    """Durations that have nothing to do with the work."""
    rng = np.random.default_rng(0)
    samples = [replace(sample, duration_ms=rng.uniform(5, 500)) for sample in mixed_steps(A100_QWEN3_32B)]
    (warning,) = fit_law(Samples.of(samples), BASE).warnings()
    assert "the fit is poor" in warning


def test_too_few_samples_are_refused() -> None:
    """Eleven."""
    with pytest.raises(NotEnoughSamples, match="11 usable samples are too few"):
        fit_law(Samples.of(mixed_steps(A100_QWEN3_32B, 11)), BASE)


def test_the_held_out_part_is_stretches_of_a_quarter() -> None:
    """Neighbouring steps are alike: they stay together."""
    from ballast_sim.fitting.law import held_out

    chosen = held_out(4000, 40)
    assert chosen.sum() == 1000
    assert np.count_nonzero(np.diff(chosen.astype(int))) == 20
    assert held_out(13, 40).sum() == 3


def test_samples_over_several_steps_predict_the_sum() -> None:
    """A prompt of 20,000 tokens in chunks of 8,192: 2 whole steps and one of 3,616."""
    assert chunk_parts(20_000, 8192) == ((2.0, 8192.0), (1.0, 3616.0))
    assert chunk_parts(8192, 8192) == ((1.0, 8192.0),)
    profile = A100_QWEN3_32B
    sample = Sample(
        duration_ms=1.0,
        parts=chunk_parts(20_000, 8192),
        decode_context_tokens=0.0,
        prefill_pairs=20_000**2 / 2,
        decodes=0.0,
    )
    starts = (0, 8192, 16_384)
    expected_s = sum(profile.step_s(n, 0, n * (c + n / 2), 0) for n, c in zip((8192, 8192, 3616), starts, strict=True))
    assert Samples.of([sample, sample]).predict_ms(profile) == pytest.approx([expected_s * 1e3] * 2)


# -- step logs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", [H20_QWEN3_32B, H200_LLAMA3_8B, A100_QWEN3_32B], ids=lambda profile: profile.name)
@pytest.mark.parametrize("write", [write_jsonl, write_csv])
def test_a_step_log_of_our_engine_gives_its_profile(profile: HardwareProfile, write: Any, tmp_path: Path) -> None:
    """Within 1 %, from another base."""
    fitted = fit_profile([write(tmp_path / "log", measure(profile).steps)], BASE, "mine")
    assert fitted.kind == "steps"
    assert not fitted.fit.kept
    assert_same_law(fitted.profile, profile, rel=0.01)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.name.removesuffix(".jsonl.gz"))
def test_golden_files_give_the_profile_that_they_were_made_with(path: Path) -> None:
    """What the recorded steps show is within 1 %, overhead and floor together; the engine's capacity is stated."""
    summary = json.loads(gzip.decompress(path.read_bytes()).splitlines()[0])["summary"]
    fitted = fit_profile([path], BASE, "golden")
    profile, formula = fitted.profile, summary["formula"]
    assert profile.overhead_ms + profile.a_ms == pytest.approx(formula["overhead_ms"] + formula["a_ms"], rel=0.01)
    for name in set(COEFFICIENTS) - {"overhead_ms", "a_ms"} - set(fitted.fit.kept):
        assert getattr(profile, name) == pytest.approx(formula[name], rel=0.01), name
    assert fitted.fit.held_out.p90_ratio < 0.001
    assert profile.kv_tokens == (summary["kv_blocks"] - 1) * summary["block_size"]
    assert profile.max_num_batched_tokens == summary["max_num_batched_tokens"]


ROW = {"duration_ms": 5.0, "decodes": 2, "decode_context_tokens": 90, "tokens": 2, "prefill_pairs": 0}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"duration_ms": -1}, "line 2: duration_ms: must be from 0 to 1e+12, not -1"),
        ({"duration_ms": 0}, "line 2: duration_ms: must be above 0"),
        ({"prefills": [512, 0]}, "line 2: prefills: must be a list with [tokens, tokens computed before] for each"),
        ({"prefills": 512}, "line 2: prefills: must be a list with [tokens, tokens computed before] for each"),
        ({"duration_ms": "soon"}, "line 2: duration_ms: must be a number, not 'soon'"),
        ({"decodes": float("nan")}, "line 2: decodes: must be from 0 to 1e+12, not nan"),
        ({"tokens": 1}, "line 2: tokens: must be at least 1 and one for each of the 2 decodes, not 1"),
        ({"tokens": None}, "line 2: tokens: must be a number, not None"),
    ],
)
def test_a_broken_row_is_refused_by_line_and_column(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(FitInputError) as caught:
        read_step_log(write_jsonl(tmp_path / "log.jsonl", [ROW, {**ROW, **change}]))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: no column duration_ms, decodes, decode_context_tokens"),
        ("a,b\n1,2\n", "line 1: no column duration_ms"),
        ("duration_ms,decodes,decode_context_tokens\n5,1,9\n", "line 2: 'tokens' is missing"),
        ("duration_ms,decodes,decode_context_tokens\n", "no engine steps"),
        ("duration_ms,decodes,decode_context_tokens\n5,1,9,4\n", "line 2: more values than the first line names"),
        ("{\n", "line 1: is not JSON"),
        ('{"duration_ms": 5}\n[]\n', "line 1: 'decodes' is missing"),
    ],
)
def test_a_log_of_another_shape_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(text)
    with pytest.raises(FitInputError) as caught:
        read_step_log(path)
    assert message in str(caught.value)


def test_blanks_after_commas_are_none_of_a_column(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("duration_ms, decodes, decode_context_tokens, tokens, prefill_pairs\n5, 2, 90, 2, 0\n")
    (sample,) = read_step_log(path).samples
    assert (sample.duration_ms, sample.decodes, sample.decode_context_tokens) == (5, 2, 90)


def test_a_truncated_gzip_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl.gz"
    path.write_bytes(GOLDEN[0].read_bytes()[:500])
    with pytest.raises(FitInputError, match="cannot be read"):
        read_step_log(path)


# -- benchmark files ---------------------------------------------------------------------------------------------------


def fit_bench(tmp_path: Path, value: object) -> FittedProfile:
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(value))
    return fit_profile([path], BASE, "mine")


@pytest.mark.parametrize("profile", [H20_QWEN3_32B, H200_LLAMA3_8B, A100_QWEN3_32B], ids=lambda profile: profile.name)
def test_token_times_give_the_engine_back(profile: HardwareProfile, tmp_path: Path) -> None:
    """Exact clocks: within 1 %, overhead and floor together."""
    fitted = fit_bench(tmp_path, measure(profile).bench_result())
    assert fitted.kind == "bench"
    assert not fitted.fit.kept
    assert fitted.profile.overhead_ms + fitted.profile.a_ms == pytest.approx(
        profile.overhead_ms + profile.a_ms, rel=0.01
    )
    for name in set(COEFFICIENTS) - {"overhead_ms", "a_ms"}:
        assert getattr(fitted.profile, name) == pytest.approx(getattr(profile, name), rel=0.01), name


@pytest.mark.parametrize("profile", [H200_LLAMA3_8B, A100_QWEN3_32B], ids=lambda profile: profile.name)
def test_token_times_of_a_real_client_predict_steps_within_3_percent(profile: HardwareProfile, tmp_path: Path) -> None:
    """Every time is off by 3 ms (standard deviation): half a step of the faster engine."""
    fitted = fit_bench(tmp_path, measure(profile, 300).bench_result(jitter_s=3e-3))
    for decodes, context, prompt in ((1, 500, 0), (16, 800, 0), (40, 800, 0), (16, 800, 500), (16, 800, 2500)):
        clean = Samples.of([step_of(profile, decodes, context, prompt)])
        assert clean.predict_ms(fitted.profile) == pytest.approx(clean.duration_ms, rel=0.03)


TWO_STREAMS: dict[str, Any] = {
    "start_times": [0.0, 1.12], "ttfts": [1.0, 0.28], "input_lens": [10, 20], "output_lens": [5, 2],
    "itls": [[0.1, 0.1, 0.2, 0.15], [0.15]],
}  # fmt: skip


def test_a_benchmark_by_hand(tmp_path: Path) -> None:
    """A (10 tokens of prompt) decodes alone, then with B's prefill of 20, then with B decoding. One sample a stream."""
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(TWO_STREAMS))
    samples = read_bench_result(path, 8192).samples
    assert [[tokens for _, tokens in sample.parts] for sample in samples] == [[1, 1, 21, 2], [2]]
    rows = [(round(s.duration_ms), s.decode_context_tokens, s.prefill_pairs, s.decodes) for s in samples]
    assert rows == [(550, 10 + 11 + 12 + 33, 200, 5), (150, 33, 0, 2)]


def test_steps_whose_prompts_may_have_been_cut_give_no_sample(tmp_path: Path) -> None:
    """The same streams, but the engine computes 15 tokens a step: B's 20 take two steps, and the rest of B is its own.

    Where B goes on for 17 tokens more, the run after the first 16 steps is whole.
    """
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(TWO_STREAMS))
    with pytest.raises(FitInputError, match="no request has two tokens whose steps can be reconstructed"):
        read_bench_result(path, 15)
    longer = [TWO_STREAMS["itls"][0], [0.15] + [0.1] * 17]
    path.write_text(json.dumps({**TWO_STREAMS, "itls": longer, "output_lens": [5, 19]}))
    measured = read_bench_result(path, 15)
    assert [round(sample.duration_ms) for sample in measured.samples] == [200]
    assert measured.notes[1] == "2 samples passed over: more than 15 prompt tokens were waiting"


def test_of_results_that_were_appended_the_last_one_counts_and_a_note_says_so(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    path.write_text("\n".join(json.dumps(each) for each in ({"duration": 1}, {"duration": 2}, TWO_STREAMS)))
    measured = read_bench_result(path, 8192)
    assert len(measured.samples) == 2
    assert (
        measured.notes[1] == "2 earlier results of bench.json passed over: only the last one counts; give each a file"
    )


DETAILED = {"start_times": [0.0], "ttfts": [1.0], "itls": [[0.1]], "input_lens": [10], "output_lens": [2]}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"duration": 3}, "no start_times, ttfts, itls, input_lens, output_lens; run `vllm bench serve --save-result"),
        ({"throughput_tok_s": 1, "ttft_s": {}}, "a report of `ballast load` has no times of single tokens; run `vllm"),
        ({**DETAILED, "ttfts": [1.0, 2.0]}, "must be lists of one length"),
        ({**DETAILED, "ttfts": ["x"]}, "request 0: start_times, ttfts, itls"),
        ({**DETAILED, "itls": [[-0.1]]}, "request 0: times must be finite and in order"),
        ({**DETAILED, "output_lens": [0]}, "no request completed"),
        ({**DETAILED, "output_lens": [20]}, "several tokens came in one chunk"),
        ({**DETAILED, "itls": [[]], "output_lens": [1]}, "no request has two tokens"),
        (DETAILED, "1 usable samples are too few"),
    ],
)
def test_a_result_file_without_what_is_needed_is_refused(value: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(FitInputError) as caught:
        fit_bench(tmp_path, value)
    assert message in str(caught.value)


# -- scrapes -----------------------------------------------------------------------------------------------------------


def exposition(**values: float) -> str:
    lines = ['vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="101"} 1.0']
    lines += [f'vllm:{name}{{engine="0",model_name="m"}} {value}' for name, value in values.items()]
    return "# HELP vllm:cache_config_info x\n" + "\n".join(lines) + "\n"


def scrape(seconds: float, decodes: int = 4, step_ms: float = 10.0, **more: float) -> str:
    """After so many seconds of steady decoding."""
    steps = seconds / (step_ms / 1e3)
    return exposition(
        num_requests_running=decodes,
        kv_cache_usage_perc=0.5,
        inter_token_latency_seconds_count=steps * decodes,
        inter_token_latency_seconds_sum=seconds * decodes,
        iteration_tokens_total_count=steps,
        **more,
    )


def test_one_interval_by_hand(tmp_path: Path) -> None:
    """4 decodes, 10 ms a step, half of 1,600 tokens of KV less half a block each."""
    path = tmp_path / "metrics.txt"
    path.write_text(scrape(1) + scrape(2))
    measured = read_scrapes([path], 8192)
    (sample,) = measured.samples
    assert sample.duration_ms == pytest.approx(10)
    assert sample.parts == ((1.0, sample.decodes),)
    assert [sample.decodes, sample.decode_context_tokens] == pytest.approx([4, 800 - 4 * 8])
    assert measured.facts == {"kv_tokens": 1600, "block_size": 16}


def test_a_folder_is_read_by_name_and_a_restart_is_passed_over(tmp_path: Path) -> None:
    for name, text in (("1", scrape(5)), ("2", scrape(6)), ("3", scrape(1)), ("4", scrape(2, decodes=40))):
        (tmp_path / name).write_text(text)
    measured = read_scrapes([tmp_path], 8192)
    assert len(measured.samples) == 1
    assert measured.notes == [
        "1 intervals passed over: the engine started anew",
        "1 intervals passed over: the number of running requests changed too much",
    ]


OLDER = (scrape(1) + scrape(2)).replace("inter_token_latency", "time_per_output_token").replace(":kv_", ":gpu_")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no vllm: metrics"),
        ("go_goroutines 5\n", "no vllm: metrics"),
        (scrape(1), "1 scrape; two or more in sequence are needed"),
        (scrape(1) + 'vllm:x{a="b"} many\n', "line 8: vllm:x: 'many' is not a number"),
        (scrape(1) + "vllm:x NaN\n", "line 8: vllm:x: must be finite, not NaN"),
        (scrape(1) + "vllm:x{\n", "line 8: is not a Prometheus sample"),
        (scrape(1) + scrape(2).replace('engine="0"', 'engine="1"'), "holds engines 0, 1; scrape one engine alone"),
        (scrape(1).replace("block_size", "size"), "needs block_size and num_gpu_blocks"),
        ("vllm:a 1\nvllm:a 2\n", "no vllm:cache_config_info"),
        (OLDER, "no vllm:inter_token_latency_seconds_count, vllm:kv_cache_usage_perc, as in older releases of vLLM"),
        (scrape(1) + scrape(2, time_to_first_token_seconds_count=3), "no vllm:prompt_tokens_by_source_total, as in"),
    ],
)
def test_scrapes_that_cannot_be_used_are_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "metrics.txt"
    path.write_text(text)
    with pytest.raises(FitInputError) as caught:
        read_scrapes([path], 8192)
    assert message in str(caught.value)


# -- any of them, damaged ----------------------------------------------------------------------------------------------

STEPS = measure(H200_LLAMA3_8B, 12)
WHOLE_FILES = {
    "steps": "".join(json.dumps(row) + "\n" for row in STEPS.steps[:60]),
    "bench": json.dumps(STEPS.bench_result()),
    "metrics": "".join(scrape(second) for second in range(1, 20)),
}
JUNK = st.sampled_from(["NaN", "-1", "1e400", "1e308", "1e-308", "null", '"x"', "[]", "{}", "0", "", ",", "\n"])


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kind=st.sampled_from(sorted(WHOLE_FILES)), where=st.floats(0, 1), junk=JUNK, cut=st.integers(0, 40))
def test_a_damaged_file_is_fitted_or_refused_with_its_name(
    kind: str, where: float, junk: str, cut: int, tmp_path: Path
) -> None:
    """Never a traceback, a warning of numpy, or a profile that cannot be."""
    whole = WHOLE_FILES[kind]
    at = int(where * len(whole))
    path = tmp_path / "damaged"
    path.write_text(whole[:at] + junk + whole[at + cut :])
    reason, step_s = "", 1.0
    try:
        step_s = fit_profile([path], BASE, "mine").profile.step_s(100, 1000, 0, 10)
    except FitInputError as error:
        reason = str(error)
    assert str(path) in reason or not reason
    assert np.isfinite(step_s)
