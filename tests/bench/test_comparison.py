"""Figures of two runs beside each other, whatever the machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.comparison import Calibration, Earlier, Recording, Row


def name(row: Row) -> object:
    return row["name"]


def test_a_machine_of_half_the_speed_is_no_slower_code(tmp_path: Path) -> None:
    """Twice the time for the fixed work and for the figure is a ratio of one."""
    here = Calibration()
    here.take(3)
    assert here.seconds > 0
    Recording(here.seconds / 2, [{"name": "a", "p50_ms": 1.5}, {"name": "b", "p50_ms": 3.0}]).write(tmp_path / "x.json")
    earlier = Earlier(tmp_path / "x.json", name)
    assert earlier.time_ratio({"name": "a", "p50_ms": 3.0}, "p50_ms", here) == pytest.approx(1.0, rel=0.01)
    assert earlier.time_ratio({"name": "b", "p50_ms": 3.0}, "p50_ms", here) == pytest.approx(0.5, rel=0.01)
    assert earlier.time_ratio({"name": "c", "p50_ms": 3.0}, "p50_ms", here) is None
    assert Earlier(None, name).time_ratio({"name": "a", "p50_ms": 3.0}, "p50_ms", here) is None


@pytest.mark.parametrize("text", [None, "", "[]", '{"rows": []}', '{"calibration_s": "fast", "rows": []}'])
def test_a_file_that_is_no_recording_is_named(tmp_path: Path, text: str | None) -> None:
    """Missing, empty, or something else."""
    path = tmp_path / "y.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SystemExit, match=r"y\.json: holds no recorded run"):
        Recording.read(path)
