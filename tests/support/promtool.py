"""Prometheus' own checker, of Debian's package `prometheus`: the test bed brings it, and CI runs these tests there."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.support.testbed_programs import missing


def promtool(*arguments: str | Path, stdin: str = "") -> str:
    """What it prints; the test is skipped where it is not installed, and fails where it finds fault."""
    program = shutil.which("promtool")
    if program is None:
        missing("promtool is not installed (Debian's package prometheus; `make testbed-build` brings it)")
    done = subprocess.run(
        [program, *map(str, arguments)], input=stdin, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
