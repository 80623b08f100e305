"""`ballast load`: what it says to people."""

from __future__ import annotations

import socket
import subprocess
import sys
from dataclasses import replace

import pytest

from ballast_cli.load import report_lines
from ballast_sim.load import MOST_LATE_S, RequestResult, build_report

WHOLE = RequestResult(
    request_id="load-0-0",
    arrival_s=0.0,
    input_tokens=3,
    asked_tokens=2,
    received_tokens=2,
    first_token_s=1.0,
    last_token_s=2.0,
)


@pytest.mark.parametrize(("late_s", "said"), [(2 * MOST_LATE_S, True), (0.9 * MOST_LATE_S, False)])
def test_a_client_that_was_late_itself_says_so(late_s: float, said: bool) -> None:
    lines = report_lines(build_report([WHOLE], objective=None, time_scale=1, wall_s=2, late_s=[late_s]))
    assert any("requests left up to 200 ms late (P99)" in line for line in lines) is said


@pytest.mark.parametrize(("prompt_tokens", "said"), [(None, False), (3, False), (7, True)])
def test_prompts_of_other_lengths_than_the_workloads_are_named(prompt_tokens: int | None, said: bool) -> None:
    """As text prompts have on a model whose tokens are shorter."""
    report = build_report([replace(WHOLE, prompt_tokens=prompt_tokens)], objective=None, time_scale=1, wall_s=2)
    assert any("counted 7 prompt tokens where the workload has 3" in line for line in report_lines(report)) is said


def test_each_kind_of_failure_has_its_first_reason_on_one_line() -> None:
    failed = [
        replace(WHOLE, reason=reason, kind=kind)
        for reason, kind in [("no\nsuch \x1b[31mmodel", "status_404"), ("other", "status_404"), ("late", "timeout")]
    ]
    report = build_report(failed, objective=None, time_scale=1, wall_s=2)
    assert report_lines(report)[-2:] == [
        "  status_404: 2, the first one: no such  [31mmodel",
        "  timeout: 1, the first one: late",
    ]
    assert report.as_json()["reasons"] == {"status_404": "no\nsuch \x1b[31mmodel", "timeout": "late"}


@pytest.mark.parametrize(("limit", "kinds"), [("-Sn", ["timeout: 80"]), ("-n", ["not_sent: ", "timeout: "])])
def test_a_limit_on_open_files_is_no_failure_of_the_server(limit: str, kinds: list[str]) -> None:
    """80 requests in flight where 60 files may be open: a soft limit is raised, a hard one is said to be our own."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listening:
        command = [sys.executable, "-m", "ballast_cli", "load", "--model", "m", "--rate", "1000", "--limit", "80"]
        command += ["--timeout", "1", "--url", f"http://127.0.0.1:{listening.getsockname()[1]}"]
        limited = ["sh", "-c", f'ulimit {limit} 60; exec "$@"', "sh", *command]
        done = subprocess.run(limited, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1, done.stderr
    found = [line.strip() for line in done.stdout.splitlines() if line.startswith("  ")]
    assert [line.startswith(kind) for line, kind in zip(found, kinds, strict=True)] == [True] * len(kinds)
