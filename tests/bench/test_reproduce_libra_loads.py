"""Libra's machines at given loads: derived from machines of almost the same size, and known to every run."""

import pytest

from ballast_core.profiles import SHIPPED_PROFILES
from ballast_sim.fitting.model_shapes import MODELS
from ballast_sim.simulation.inputs.shapes import parse_shape
from bench.reproduce.form import Run
from bench.reproduce.libra.loads import EXPERIMENTS
from bench.reproduce.libra.loads_profiles import CARD_BYTES, PROFILES, QWEN_72B, scaled
from bench.reproduce.libra.loads_runs import at_load
from bench.reproduce.tasks import Called


def test_a_profile_scaled_to_its_own_sizes_keeps_its_steps() -> None:
    base, shape = SHIPPED_PROFILES["a100-llama3-70b-tp4"], MODELS["llama3-70b"]
    same = scaled("same", base, shape, shape)
    for field in ("a_ms", "d_ms_per_token", "s_ms_per_pair", "k_ms_per_kv_token", "b_ms_per_seq"):
        assert getattr(same, field) == pytest.approx(getattr(base, field)), field
    assert same.kv_tokens == pytest.approx(base.kv_tokens, rel=0.01)


def test_72b_is_a_little_slower_than_70b_and_leaves_less_for_kv() -> None:
    large, base = PROFILES["a100-qwen2.5-72b-tp4"], SHIPPED_PROFILES["a100-llama3-70b-tp4"]
    assert base.a_ms < large.a_ms < 1.05 * base.a_ms
    assert base.d_ms_per_token < large.d_ms_per_token < 1.05 * base.d_ms_per_token
    assert large.kv_tokens == QWEN_72B.kv_tokens(4, CARD_BYTES) < base.kv_tokens


RUNS = [run for experiment in EXPERIMENTS for run in experiment.runs]


@pytest.mark.parametrize("run", RUNS, ids=[run.name for run in RUNS])
def test_a_run_at_a_rate_names_machines_that_are_known(run: Run) -> None:
    assert isinstance(run.task, Called)
    if run.task.function is at_load:
        system = run.task.arguments["system"]
        machines = parse_shape(system.shape, profiles=PROFILES)  # type: ignore[attr-defined]
        assert len(machines) >= 2
