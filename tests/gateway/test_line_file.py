"""A file of lines on a disk that is full for a while. The kernel is what refuses: files may not grow further."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ballast_gateway.line_file import LineFile


@contextmanager
def files_of_at_most(most_bytes: int) -> Iterator[None]:
    """The kernel writes what fits, and then nothing."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_lines_that_do_not_fit_are_lost_and_later_ones_stand_by_themselves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Twelve bytes fit: a line and the half of one, which is ended before what comes when there is room again."""
    path = tmp_path / "lines"
    with LineFile(path) as file:
        with files_of_at_most(12):
            for line in ("first ü\n", "second\n", "third\n", "fourth\n"):
                file.write(line)
            assert path.read_text() == "first ü\nsec"
        file.write("fifth\n")
        file.write("sixth\n")
    assert path.read_text() == "first ü\nsec\nfifth\nsixth\n"
    said = [(record.levelname, vars(record).get("lost_lines")) for record in caplog.records]
    assert said == [("ERROR", None), ("WARNING", 3)]
    assert vars(caplog.records[0])["file"] == str(path)


def test_a_file_that_is_there_is_added_to(tmp_path: Path) -> None:
    """A gateway that starts anew goes on in it."""
    path = tmp_path / "lines"
    for line in ("one\n", "two\n"):
        with LineFile(path) as file:
            file.write(line)
    assert path.read_text() == "one\ntwo\n"
