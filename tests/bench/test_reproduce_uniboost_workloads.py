"""UniBoost's reasoning alone, and one instance's share of a cluster: lengths, rates, and what is left of bursts."""

import gzip
import random
import statistics
from pathlib import Path

import pytest

from ballast_sim.simulation.inputs.source import Load
from ballast_sim.workloads import GENERATORS
from bench.reproduce.libra.loads_profiles import PROFILES
from bench.reproduce.uniboost.reasoning import context_parallel
from bench.reproduce.uniboost.workloads import Reasoning, Share

RATE_RPS, LIMIT = 0.73, 3_000
SCALES = (1, 8, 512)


@pytest.fixture(scope="module")
def bursty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace with 30 arrivals a second every tenth second, one a second else, for 100 s."""
    rng = random.Random(0)
    stamps = sorted(second + rng.random() for second in range(100) for _ in range(1 if second % 10 else 30))
    file = tmp_path_factory.mktemp("share") / "bursty.csv.gz"
    rows = "".join(f"{at_s - stamps[0]:.6f},100,10\n" for at_s in stamps)
    file.write_bytes(gzip.compress(f"arrival_s,input_tokens,output_tokens\n{rows}".encode()))
    return file


def share(trace: Path, instances: int, seed: int = 0, rate_scale: float = 1.0) -> Load:
    source = Share(trace=trace, workload="mix-2", rate_rps=RATE_RPS, limit=LIMIT, instances=instances)
    return source.load(seed, rate_scale)


def dispersion(load: Load, window_s: float) -> float:
    """Variance over mean of the arrivals in a window: 1 for Poisson."""
    counts = [0] * int(load.requests[-1].arrival_s / window_s)
    for request in load.requests:
        window = int(request.arrival_s / window_s)
        if window < len(counts):
            counts[window] += 1
    return statistics.pvariance(counts) / statistics.fmean(counts)


@pytest.mark.parametrize("instances", SCALES)
def test_a_share_has_the_rate_and_the_requests_of_any_other(bursty: Path, instances: int) -> None:
    load = share(bursty, instances)
    arrivals = [request.arrival_s for request in load.requests]
    assert arrivals[0] == 0
    assert arrivals == sorted(arrivals)
    assert len(arrivals) == LIMIT
    assert load.rate_rps == pytest.approx(RATE_RPS)
    lengths = [(request.input_tokens, request.output_tokens) for request in load.requests]
    drawn = GENERATORS["mix-2"].requests(1.0, 0)
    assert lengths == [
        (request.input_tokens, request.output_tokens) for request, _ in zip(drawn, arrivals, strict=False)
    ]
    assert share(bursty, instances) == load != share(bursty, instances, seed=1)


def test_the_larger_the_cluster_the_less_is_left_of_bursts(bursty: Path) -> None:
    whole, eighth, little = (dispersion(share(bursty, instances), 4.0) for instances in SCALES)
    assert whole > 1.5 * eighth
    assert eighth > little
    assert little == pytest.approx(1, abs=0.2)


def test_a_faster_share_is_the_same_in_less_time(bursty: Path) -> None:
    once, twice = share(bursty, 8), share(bursty, 8, rate_scale=2.0)
    assert twice.requests[-1].arrival_s == pytest.approx(once.requests[-1].arrival_s / 2)


def test_reasoning_alone_has_the_lengths_of_the_mixes() -> None:
    source = Reasoning(rate_rps=1.3, limit=6_000)
    load = source.load(0, 1.0)
    assert load == source.load(0, 1.0) != source.load(1, 1.0)
    assert load.rate_rps == pytest.approx(1.3, rel=0.05)
    drawn = GENERATORS["mix-2"].requests(1.0, 0)
    mixed = [request.output_tokens for request, _ in zip(drawn, range(6_000), strict=False)]
    alone = [request.output_tokens for request in load.requests]
    assert statistics.fmean(alone) == pytest.approx(4_950, rel=0.03)
    assert statistics.fmean(mixed) == pytest.approx(0.7 * statistics.fmean(alone) + 0.3 * 204, rel=0.05)


def test_groups_share_out_tokens_and_kv_but_not_weights() -> None:
    base = PROFILES["a100-qwen2.5-72b-tp4"]
    made = context_parallel(base, 4)
    assert made.gpus == 16
    assert made.kv_tokens == 4 * base.kv_tokens
    assert made.step_s(1, 0, 0, 1) == pytest.approx(base.step_s(1, 0, 0, 1), rel=1e-6)
    assert base.step_s(8192, 0, 8192**2 / 2, 0) / made.step_s(8192, 0, 8192**2 / 2, 0) > 3.5
