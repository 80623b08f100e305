"""Our engine takes the same steps as vLLM's own scheduler: on our own recordings and on those beside the checkout."""

from pathlib import Path

import pytest

from ballast_sim.validation import Comparison, GoldenFileError, compare, read_golden

pytestmark = pytest.mark.rotating(4, each=True)

OWN = sorted((Path(__file__).parents[1] / "golden" / "engine").glob("*.jsonl.gz"))
GOLDEN = Path(__file__).parents[3] / "shared" / "golden"
FILES = sorted(GOLDEN.glob("*.jsonl.gz"))


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name.removesuffix(".jsonl.gz"))
def test_every_step_of_our_own_recordings_is_the_one_that_vllm_took(path: Path) -> None:
    """Each file pins a group of rules (docs/golden.md); `make golden` makes them anew."""
    assert_same(compare(read_golden(path)))


def test_our_own_recordings_bite() -> None:
    """Each rule happens in one of them: preemption, cache hits, aborts, pulls, hand-overs, expired leases."""
    summaries = {path.name.removesuffix(".jsonl.gz"): read_golden(path).summary for path in OWN}
    assert len(summaries) == 12
    assert all(
        summaries[name]["preemptions"] for name in ("preemption", "priority", "pull_decode", "hold_stop_preempt")
    )
    assert all(summaries[name]["aborted"] for name in ("sync", "preemption", "pull_decode", "hold_prefill"))
    assert all(summaries[name]["expired_leases"] for name in ("hold_prefill", "hold_prefill_sync", "hold_and_pull"))
    assert sum(path.stat().st_size for path in OWN) <= 600_000


@pytest.mark.rotating(2)
@pytest.mark.shared
@pytest.mark.skipif(not FILES, reason="no golden runs beside this checkout (../shared/golden)")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.removesuffix(".jsonl.gz"))
def test_every_step_is_the_one_that_vllm_took(path: Path) -> None:
    """Same steps, same token times within the files' rounding, same cache hits, same preemptions."""
    assert_same(compare(read_golden(path)))


def assert_same(result: Comparison) -> None:
    assert result.first_differing_step is None
    assert result.steps_ours == result.steps_golden
    assert result.missing_tokens == 0
    assert result.token_time_error_s["max"] < 1e-4
    assert result.cached_tokens_ours == result.cached_tokens_golden
    assert result.preemptions_ours == result.preemptions_golden
    assert result.expired_leases_ours == result.expired_leases_golden
    assert result.differing_hand_offs == 0


@pytest.mark.parametrize(
    ("text", "reason"),
    [('{"summary": {}}\n', "no requests"), ("{}\nnot json\n", "line 2"), ('{"req": {"id": 1}}\n', "line 1")],
)
def test_a_file_that_is_no_golden_run_is_refused_with_its_place(tmp_path: Path, text: str, reason: str) -> None:
    """The message names the file and the line or what is missing."""
    path = tmp_path / "broken.jsonl"
    path.write_text(text)
    with pytest.raises(GoldenFileError, match=rf"broken\.jsonl: .*{reason}"):
        read_golden(path)


def test_a_truncated_gzip_is_refused(tmp_path: Path) -> None:
    """Half a file is an error of the file, not of the program."""
    path = tmp_path / "half.jsonl.gz"
    path.write_bytes(b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03abc")
    with pytest.raises(GoldenFileError, match=r"half\.jsonl\.gz: cannot be read"):
        read_golden(path)
