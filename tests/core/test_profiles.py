"""The step-time law and the shipped profiles."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from ballast_core.profiles import H20_QWEN3_32B, SHIPPED_PROFILES, HardwareProfile

PINNED = Path(__file__).parents[3] / "shared" / "profiles" / "pinned.json"


def test_a_step_of_the_law_worked_by_hand() -> None:
    """8 decodes over 8,000 tokens of context and one 512-token chunk after 1,024: each term computed on its own."""
    memory_and_compute = (16.0**4 + (0.562 * 520) ** 4) ** 0.25
    expected_ms = 1.0 + memory_and_compute + 6.55e-5 * 8000 + 2.9e-5 * 512 * (1024 + 256) + 0.05 * 8
    assert H20_QWEN3_32B.step_s(520, 8000, 512 * (1024 + 256), 8) == pytest.approx(expected_ms / 1e3, rel=1e-12)


@pytest.mark.parametrize("profile", SHIPPED_PROFILES.values(), ids=lambda profile: profile.name)
def test_steps_of_decodes_alone_last_as_each_by_itself(profile: HardwareProfile) -> None:
    """To the last bit: an engine that jumps over steps must not tell other times than one that takes them."""
    contexts = range(8000, 8000 + 37 * 64, 37)
    assert profile.decodes_s(37, contexts) == [profile.step_s(37, context, 0.0, 37) for context in contexts]


def test_a_pull_lasts_the_set_up_and_the_bytes_over_the_link() -> None:
    """1,000 tokens of 262,144 B over 200 Gb/s are 10.5 ms, after 5 ms of set-up."""
    assert H20_QWEN3_32B.transfer_s(1000) == pytest.approx(0.005 + 262_144_000 / 25e9)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("a_ms", -1.0),
        ("s_ms_per_pair", float("nan")),
        ("kv_tokens", 15),
        ("block_size", 0),
        ("link_gbps", 0.0),
        ("gpus", 0),
    ],
)
def test_an_impossible_coefficient_is_refused_by_name(field: str, value: float) -> None:
    """The message starts with the field that is wrong."""
    with pytest.raises(ValueError, match=f"^{field}: must"):
        HardwareProfile(**{**asdict(H20_QWEN3_32B), field: value})


@pytest.mark.shared
@pytest.mark.skipif(not PINNED.exists(), reason=f"{PINNED} is absent")
def test_the_shipped_profiles_are_the_pinned_ones() -> None:
    """Same names, same numbers; others stand beside them."""
    pinned = json.loads(PINNED.read_text())["profiles"]
    assert len(pinned) == 3
    for name, spec in pinned.items():
        ours = asdict(SHIPPED_PROFILES[name])
        assert {key: ours[key] for key in spec if key != "derivation"} == {
            k: v for k, v in spec.items() if k != "derivation"
        }


@pytest.mark.parametrize("profile", SHIPPED_PROFILES.values(), ids=SHIPPED_PROFILES)
def test_a_shipped_name_says_hardware_model_and_tensor_parallel_degree(profile: HardwareProfile) -> None:
    """`h100-llama3-70b-tp4`; one GPU, and what is pinned, need no suffix. The derivation is never silent."""
    gpu, model, size, *suffix = profile.name.split("-")
    assert f"{gpu}-{model}-{size}".startswith(("a100-", "h100-", "h200-", "h20-"))
    assert profile.hardware.removeprefix(f"{profile.gpus} x ").lower().startswith(f"{gpu} ")
    if suffix and suffix[0].startswith("tp"):
        assert suffix == [f"tp{profile.gpus}"]
    elif profile.name != "a100-qwen3-32b":
        assert profile.gpus == 1
    assert profile.derivation


def test_more_gpus_and_better_gpus_are_faster() -> None:
    """A step of 64 decodes at 1,000 tokens each, and a prefill of 4,096."""
    for slower, faster in (
        ("a100-llama3-70b-tp4", "a100-llama3-70b-tp8"),
        ("a100-qwen3-32b-tp2", "h100-qwen3-32b-tp2"),
        ("h100-llama3-70b-tp4", "h100-llama3-70b-tp8"),
        ("a100-qwen3-32b-tp2", "a100-qwen3-32b-tp4"),
        ("h20-qwen3-14b", "h200-qwen3-14b"),
    ):
        one, other = SHIPPED_PROFILES[slower], SHIPPED_PROFILES[faster]
        assert other.step_s(64, 64_000, 0, 64) < one.step_s(64, 64_000, 0, 64)
        assert other.step_s(4096, 0, 4096**2 / 2, 0) < one.step_s(4096, 0, 4096**2 / 2, 0)


def test_h20_decodes_as_fast_as_sibyl_measured() -> None:
    """Eq. 15 at its peak, 53 requests: 1,177 tokens a second; the profile assumes 2,500 tokens of context each."""
    profile = SHIPPED_PROFILES["h20-qwen3-32b-sibyl"]
    assert 53 / profile.step_s(53, 53 * 2500, 0, 53) == pytest.approx(1177, rel=0.02)
