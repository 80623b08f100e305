"""A process is named by id, start time and boot: no other process is ever taken for it, or ended."""

import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.processes import ProcessRecord, kill_recorded, pids_with_arguments, start_ticks

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process of ours that lives until the test's end."""
    with subprocess.Popen(["sleep", "600"]) as process:
        # Popen returns when exec closes our pipe, a moment before the kernel shows the new arguments.
        deadline_s = time.monotonic() + 10
        while not Path(f"/proc/{process.pid}/cmdline").read_bytes() and time.monotonic() < deadline_s:
            time.sleep(0.001)
        yield process
        process.kill()


def test_a_record_survives_the_disk_and_knows_its_process(sleeper: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """What `up` writes, `down` reads."""
    record = ProcessRecord.of(sleeper.pid)
    assert record is not None
    record.save(tmp_path / "r.json")
    loaded = ProcessRecord.load(tmp_path / "r.json")
    assert loaded == record
    assert loaded.alive()


def test_the_recorded_process_is_killed(sleeper: subprocess.Popen[bytes]) -> None:
    """And counts as gone once it is a zombie."""
    record = ProcessRecord.of(sleeper.pid)
    assert record is not None
    assert kill_recorded(record, timeout_s=10)
    assert sleeper.wait() == -9


@pytest.mark.parametrize("change", [{"start_ticks": 1}, {"boot_id": "another boot"}])
def test_a_process_with_a_recycled_id_is_left_alone(
    sleeper: subprocess.Popen[bytes], change: dict[str, int | str]
) -> None:
    """Same id, other start or other boot: not ours."""
    record = ProcessRecord.of(sleeper.pid)
    assert record is not None
    stranger = ProcessRecord(**{**dataclasses.asdict(record), **change})
    assert not stranger.alive()
    assert kill_recorded(stranger, timeout_s=1)
    assert sleeper.poll() is None


def test_a_process_that_is_gone_is_no_error() -> None:
    """Killing twice is fine."""
    with subprocess.Popen(["true"]) as process:
        process.wait()
    assert ProcessRecord.of(process.pid) is None
    assert kill_recorded(ProcessRecord(process.pid, 1, "x"), timeout_s=1)


@pytest.mark.parametrize("content", ["", "{", "[]", json.dumps({"pid": 1}), json.dumps({"pid": 1, "other": 2})])
def test_a_broken_record_counts_as_none(tmp_path: Path, content: str) -> None:
    """A crash may leave anything."""
    path = tmp_path / "r.json"
    path.write_text(content)
    assert ProcessRecord.load(path) is None
    assert ProcessRecord.load(tmp_path / "absent.json") is None


def test_the_start_time_is_found_behind_any_command_name(tmp_path: Path) -> None:
    """proc(5): the name stands in parentheses and may hold spaces and parentheses."""
    (tmp_path / "7").mkdir()
    rest = " ".join(["S", *(str(n) for n in range(4, 23))])
    (tmp_path / "7" / "stat").write_text(f"7 (a) b) ({rest.split()[0]}) {rest}\n")
    assert start_ticks(7, tmp_path) == 22


def test_processes_are_found_by_their_last_arguments(sleeper: subprocess.Popen[bytes]) -> None:
    """All given words must match, at the end."""
    assert sleeper.pid in pids_with_arguments(("sleep", "600"))
    assert sleeper.pid not in pids_with_arguments(("600", "sleep"))
