"""`ballast load`: what it says to people."""

from __future__ import annotations

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
