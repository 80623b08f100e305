"""Shipped profiles are what the public tables and SIBYL's figures give, by a command that anyone can run again."""

import csv
import gzip
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ballast_cli.main import app
from ballast_core.profiles import H200_LLAMA3_8B, SHIPPED_PROFILES
from ballast_core.profiles.derived import DERIVED_PROFILES
from ballast_sim.fitting.data_sheet import EQ15_LARGEST_BATCH, h20_profiles, throughput_tok_s
from ballast_sim.fitting.derivation import Derived
from ballast_sim.fitting.kernel_tables import derive_from_tables
from ballast_sim.fitting.law import COEFFICIENTS
from ballast_sim.fitting.model_shapes import MODELS
from ballast_sim.fitting.splitwise import measured_over_derived

pytestmark = pytest.mark.rotating(4, each=True)

TABLES = Path(__file__).parents[3] / "shared" / "profiles"
needs_tables = pytest.mark.skipif(not TABLES.exists(), reason=f"{TABLES} is absent")
LAST_DIGIT = 1e-3  # another BLAS may round the fourth digit the other way


@pytest.fixture(scope="module")
def from_tables() -> dict[str, Derived]:
    return {item.profile.name: item for item in derive_from_tables(TABLES)}


def assert_shipped(derived: Derived) -> None:
    """Every number, and the text that quotes the errors."""
    ours, theirs = asdict(SHIPPED_PROFILES[derived.profile.name]), asdict(derived.profile)
    for name in COEFFICIENTS:
        assert ours.pop(name) == pytest.approx(theirs.pop(name), rel=LAST_DIGIT), name
    assert ours == theirs


@pytest.mark.shared
@needs_tables
def test_the_shipped_profiles_are_what_the_tables_give(from_tables: dict[str, Derived]) -> None:
    """All of them, and no other is shipped as derived."""
    shipped = {name for name, item in from_tables.items() if not item.left_out}
    assert shipped | {item.profile.name for item in h20_profiles()} == {profile.name for profile in DERIVED_PROFILES}
    for name in shipped:
        assert_shipped(from_tables[name])


@pytest.mark.shared
@needs_tables
def test_the_pinned_fit_of_the_same_tables_is_found_again(from_tables: dict[str, Derived]) -> None:
    """Pinned: mean 1.4 %, max 6.8 %. The attention's share is taken from its own kernel here, hence `s` differs."""
    item = from_tables["h200-llama3-8b-tp1"]
    assert item.left_out == "the pinned h200-llama3-8b is from the same tables"
    assert item.held_out
    assert item.held_out.mean_ratio < 0.02
    for name in ("a_ms", "d_ms_per_token", "k_ms_per_kv_token", "b_ms_per_seq"):
        assert getattr(item.profile, name) == pytest.approx(getattr(H200_LLAMA3_8B, name), rel=0.02)


@pytest.mark.shared
@needs_tables
def test_what_the_law_cannot_describe_is_left_out_with_its_error(from_tables: dict[str, Derived]) -> None:
    """One KV head a GPU on H200: the kernels jump between batch sizes."""
    reason = from_tables["h200-llama3-70b-tp8"].left_out
    assert reason is not None
    assert "held-out error mean 13" in reason


def test_the_h20_profiles_are_what_sibyl_publishes() -> None:
    """No data file is read: Table 4 and Eq. 15 are a few numbers."""
    for item in h20_profiles():
        assert_shipped(item)


def test_eq_15_is_the_papers() -> None:
    """It peaks at 53 requests, 1,177 tokens a second; one request alone gets 36.6."""
    assert throughput_tok_s(1) == pytest.approx(36.59)
    assert max(range(1, 106), key=throughput_tok_s) == EQ15_LARGEST_BATCH
    assert throughput_tok_s(53) == pytest.approx(1176.6, abs=0.1)


def test_model_shapes_give_the_pinned_arithmetic() -> None:
    """Qwen3-32B: 262,144 B a KV token, 62.4 GFLOP a token, 2.1 MFLOP a pair, 64 GB of weights."""
    shape = MODELS["qwen3-32b"]
    assert shape.kv_bytes_per_token == 262_144
    assert shape.flop_per_token == pytest.approx(62.4e9, rel=1e-3)
    assert shape.flop_per_pair == pytest.approx(2.1e6, rel=2e-3)
    assert shape.bytes_per_step == pytest.approx(64e9, rel=1e-3)


@pytest.mark.shared
@needs_tables
def test_the_command_prints_coefficients_and_errors() -> None:
    """For people and as JSON."""
    shown = CliRunner().invoke(app, ["profile", "derive", "--tables", str(TABLES)])
    assert shown.exit_code == 0, shown.output
    assert "h100-llama3-70b-tp4" in shown.output
    assert "left out: the law does not describe it" in shown.output
    result = CliRunner().invoke(app, ["profile", "derive", "--tables", str(TABLES), "--json"])
    rows = {row["name"]: row for row in json.loads(result.output)}
    assert rows["h100-llama3-70b-tp4"]["a_ms"] == pytest.approx(14.76, rel=LAST_DIGIT)
    assert rows["h100-llama3-70b-tp4"]["held_out"].keys() == {"samples", "mean_ratio", "p90_ratio", "max_ratio", "r2"}


@pytest.mark.shared
@needs_tables
def test_measured_requests_of_an_old_engine_take_longer_than_kernels_alone(from_tables: dict[str, Derived]) -> None:
    """Llama-2-70B on eight H100: 29.8 ms a token, where kernels and 1 ms give about 11."""
    profiles = [item.profile for item in from_tables.values()]
    ratios = {item.name: item for item in measured_over_derived(TABLES, profiles)}
    assert ratios.keys() == {f"{gpu}-llama3-70b-tp{tp}" for gpu in ("a100", "h100") for tp in (4, 8)}
    assert ratios["h100-llama3-70b-tp8"].token_ratio == pytest.approx(29.8 / 10.6, rel=0.1)
    assert all(item.prompt_ratio > 1 for item in ratios.values())


def write_table(path: Path, rows: list[dict[str, Any]]) -> None:
    with gzip.open(path, "wt", newline="") as lines:
        writer = csv.DictWriter(lines, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ms": "fast"}, "step_decode.csv.gz: line 2: ms: must be a number"),
        ({"ms": "-1"}, "step_decode.csv.gz: line 2: ms: must be above 0"),
        ({"gpu": "b200"}, "step_decode.csv.gz: gpu 'b200'"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused_by_file_and_line(
    change: dict[str, str], message: str, tmp_path: Path
) -> None:
    """Status 2 and no traceback."""
    row = {"gpu": "h100", "model": "llama3-8b", "tp": "1", "batch": "1", "context": "128", "ms": "5"}
    write_table(tmp_path / "step_decode.csv.gz", [{**row, **change}])
    result = CliRunner().invoke(app, ["profile", "derive", "--tables", str(tmp_path)])
    assert result.exit_code == 2
    assert message in result.output


def test_a_folder_without_tables_is_refused(tmp_path: Path) -> None:
    """It names the file that is missing."""
    result = CliRunner().invoke(app, ["profile", "derive", "--tables", str(tmp_path)])
    assert result.exit_code == 2
    assert "step_decode.csv.gz: cannot be read" in result.output
