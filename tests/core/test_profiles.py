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
    """Same names, same numbers."""
    pinned = json.loads(PINNED.read_text())["profiles"]
    assert set(pinned) == set(SHIPPED_PROFILES)
    for name, spec in pinned.items():
        ours = asdict(SHIPPED_PROFILES[name])
        assert {key: ours[key] for key in spec if key != "derivation"} == {
            k: v for k, v in spec.items() if k != "derivation"
        }
