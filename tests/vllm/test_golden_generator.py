"""The golden generator gives the same bytes as those that are committed."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".tools" / "vllm" / "bin" / "python"
CASES = ("hold_prefill", "prefix_evict")


@pytest.mark.vllm
@pytest.mark.rotating(4)
def test_vllm_takes_the_recorded_decisions_again(tmp_path: Path) -> None:
    """A file that pins the prefill side and one that pins the prefix cache, made anew."""
    paths = os.pathsep.join(str(ROOT / folder) for folder in ("tools", "gateway/src"))
    subprocess.run(
        [PYTHON, "-m", "vllm_golden", tmp_path, *CASES],
        env={**os.environ, "PYTHONPATH": paths},
        check=True,
        timeout=600,
    )
    for case in CASES:
        name = f"{case}.jsonl.gz"
        assert (tmp_path / name).read_bytes() == (ROOT / "tests" / "golden" / "engine" / name).read_bytes(), name
