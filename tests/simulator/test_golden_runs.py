"""Our engine takes the same steps as vLLM's own scheduler, on every recorded run beside the checkout."""

from pathlib import Path

import pytest

from ballast_sim.validation import GoldenFileError, compare, read_golden

GOLDEN = Path(__file__).parents[3] / "shared" / "golden"
FILES = sorted(GOLDEN.glob("*.jsonl.gz"))


@pytest.mark.shared
@pytest.mark.skipif(not FILES, reason="no golden runs beside this checkout (../shared/golden)")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.removesuffix(".jsonl.gz"))
def test_every_step_is_the_one_that_vllm_took(path: Path) -> None:
    """Same steps, same token times within the files' rounding, same cache hits, same preemptions."""
    result = compare(read_golden(path))
    assert result.first_differing_step is None
    assert result.steps_ours == result.steps_golden
    assert result.missing_tokens == 0
    assert result.token_time_error_s["max"] < 1e-4
    assert result.cached_tokens_ours == result.cached_tokens_golden
    assert result.preemptions_ours == result.preemptions_golden


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
