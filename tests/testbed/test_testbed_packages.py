"""Debian packages are installed also while another apt runs."""

import os
from pathlib import Path

import pytest

from testbed import packages
from testbed.errors import TestbedError

LOCKED = "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 7 (apt-get)"


@pytest.fixture
def apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An apt-get that does what the file `answers` says, a line for each call, and notes its arguments in `calls`."""
    program = tmp_path / "apt-get"
    program.write_text(
        f"""#!/bin/sh
echo "$@" >> {tmp_path}/calls
line=$(head -1 {tmp_path}/answers); sed -i 1d {tmp_path}/answers
[ -z "$line" ] || {{ echo "$line" >&2; exit 100; }}
"""
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(packages, "LOCK_POLL_S", 0.0)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    absent = iter([["runc"], []])
    monkeypatch.setattr(packages, "missing_packages", lambda: next(absent))
    return tmp_path


def test_it_waits_for_an_apt_that_runs(apt: Path) -> None:
    """dpkg's lock by apt's own timeout, the lists' by asking again; people are told once."""
    (apt / "answers").write_text(f"{LOCKED}\n{LOCKED}\n\n\n")
    said: list[str] = []
    packages.install(said.append)
    calls = (apt / "calls").read_text().splitlines()
    assert [call.split()[2] for call in calls] == ["update", "update", "update", "install"]
    assert all(call.startswith("-o DPkg::Lock::Timeout=600 ") for call in calls)
    assert sum("another apt" in line for line in said) == 1


def test_other_failures_are_said_at_once(apt: Path) -> None:
    """With apt's own words."""
    (apt / "answers").write_text("E: Unable to locate package runc\n")
    with pytest.raises(TestbedError, match="Unable to locate package runc"):
        packages.install(print)
