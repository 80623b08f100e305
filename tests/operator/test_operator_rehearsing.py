"""Candidates are tried on recorded traffic in a worker process before the operator acts, within a budget."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ballast_api.rehearsal_job import RehearsalJob, job_bytes
from ballast_core.policies.scaling.ballast import BallastScaling
from ballast_core.policies.scaling.records import explained
from ballast_operator.gateways.gateway_pods import GatewayPod
from ballast_operator.kinds import Manifest
from ballast_operator.metrics import OperatorMetrics
from ballast_operator.scaling.records import records_of
from ballast_operator.scaling.steered import Rehearse
from ballast_operator.steering.rehearsing import Outcome, Rehearsals, Trace
from tests.support.recorded_rows import rows
from tests.support.scaled_fleet import Fleet
from tests.support.scaling import inputs, split, traffic

BUDGET = Rehearse(cpu_s=60.0, timeout_s=60.0)
LONG = {"prompt": 24_000, "output": 20}
"""Few of these keep a fleet busy, and a simulation short."""


def rehearsing(lines: Sequence[bytes] | None = None, *, budget: dict[str, float] | None = None, **more: Any) -> Fleet:
    """A fleet in which three prompts of 24,000 tokens in two seconds come, so that it is about to grow."""
    spec = {"ratio": {"mode": "Auto", "rehearse": budget or {}}}
    fleet = Fleet(spec=spec, lengths=LONG, rate_rps=1.5, **more)
    fleet.scaler.policy = BallastScaling(rehearse=False, candidates=2)
    given = rows(fleet.now_s + 15.0, 1.5, **LONG) if lines is None else lines
    fleet.scaler.rehearsals.trace = lambda *_: Trace(tuple(given), 1, ())
    fleet.scaler.rehearsed = OperatorMetrics().rehearsed
    return fleet


def outcomes(fleet: Fleet) -> dict[str, float]:
    """What the metrics say came of its rehearsals; `seconds` is how many have a time."""
    registry = fleet.scaler.rehearsed.__self__.registry  # type: ignore[attr-defined]
    samples = [each for found in registry.collect() for each in found.samples]
    counted = {s.labels["outcome"]: s.value for s in samples if s.name == "ballast_operator_rehearsals_total"}
    timed = [s.value for s in samples if s.name == "ballast_operator_rehearsal_seconds_count"]
    return {**counted, "seconds": timed[0]}


def decided(fleet: Fleet) -> Manifest:
    """The first decision, once its rehearsal is over, as it is stored."""
    fleet.round(1)
    over(fleet.scaler.rehearsals)
    fleet.scaler.steer(soon=True)
    fleet.look()
    assert fleet.decisions is not None
    return dict(records_of(fleet.decisions)[-1])


def over(rehearsals: Rehearsals) -> None:
    """Wait until none runs."""
    until_s = time.monotonic() + 60
    while rehearsals.running():
        assert time.monotonic() < until_s
        time.sleep(0.02)


@pytest.mark.rotating(3)
def test_a_change_waits_for_its_rehearsal_and_is_stored_with_what_each_candidate_came_to() -> None:
    fleet = rehearsing()
    before = fleet.counts()
    fleet.round(1)
    assert (fleet.counts(), fleet.decisions) == (before, None)
    record = decided(fleet)
    tried = [each for each in record["candidates"] if each["attainment"] is not None]
    assert [each["origin"] for each in tried] == ["equilibrium", "present"]
    assert all(each["requests"] > 50 for each in tried)
    assert tried[0]["attainment"] > tried[1]["attainment"]
    assert record["reason"] == "ScaledUp"
    assert record["predicted_attainment"] == tried[0]["attainment"]
    assert fleet.counts()["prefill"] > before["prefill"]
    assert outcomes(fleet) == {"chosen": 1, "seconds": 1}
    [line] = [line for line in explained(record) if "(equilibrium)" in line]
    assert line.endswith(f"{tried[0]['attainment']:.1%} of {tried[0]['requests']} met in rehearsal")


@pytest.mark.rotating(3)
@pytest.mark.parametrize(
    ("lines", "budget", "why", "outcome"),
    [
        pytest.param(None, {"timeoutS": 0.05}, "out of its budget of 0.05 s (spec.ratio.", "out-of-budget", id="time"),
        pytest.param(None, {"cpuS": 0.01}, "out of its budget of 0.01 s of proc", "out-of-budget", id="processor"),
        pytest.param([], None, "gateways have recorded no traffic", "no-traffic", id="empty"),
        pytest.param([b'{"arrival_s": "soon"}\n'], None, "recorded traffic cannot be repl", "failed", id="garbage"),
    ],
)
def test_without_a_rehearsal_the_equilibrium_decides_and_says_why(
    lines: list[bytes] | None, budget: dict[str, float] | None, why: str, outcome: str
) -> None:
    if budget and "cpuS" in budget:  # a bound of a whole second, which a longer trace exceeds
        lines = rows(1_800_000_015.0, 12.0, **LONG)
    fleet = rehearsing(lines, budget=budget)
    before = fleet.counts()
    record = decided(fleet)
    assert f"not rehearsed: {why}" in record["message"]
    assert all(each["attainment"] is None for each in record["candidates"])
    assert fleet.counts()["prefill"] > before["prefill"]
    # The next ones rest: a fleet that must grow does not wait a budget each time.
    fleet.rate_rps = 4.5
    fleet.round(1)
    assert not fleet.scaler.rehearsals.running()
    assert "not rehearsed: the last one failed" in fleet.said["message"]
    assert outcomes(fleet) == {outcome: 1, "put-off": 1, "seconds": 1}


def test_gateways_that_keep_their_traffic_to_themselves_are_named() -> None:
    fleet = rehearsing()
    fleet.scaler.rehearsals.trace = lambda *_: Trace((), 2, ("gateway-b: no answer within 30 s",))
    assert "recorded traffic is missing: gateway-b: no answer within 30 s" in decided(fleet)["message"]
    assert outcomes(fleet) == {"silent": 1, "seconds": 1}


@pytest.mark.rotating(3)
def test_what_was_tried_is_not_taken_for_an_answer_to_another_question() -> None:
    fleet = rehearsing(rows(1_800_000_015.0, 0.2, **LONG))
    fleet.round(1)
    fleet.rate_rps = 4.5
    over(fleet.scaler.rehearsals)
    fleet.round(1)
    assert "the traffic or the spec asks for something else by now" in fleet.said["message"]
    assert outcomes(fleet) == {"outdated": 1, "seconds": 1}
    assert fleet.counts()["prefill"] > 2


def test_without_the_field_nothing_is_tried() -> None:
    fleet = rehearsing()
    fleet.edit(ratio={"mode": "Auto"})
    fleet.look()
    fleet.round(1)
    assert "equilibrium, not rehearsed" in fleet.said["message"]
    assert outcomes(fleet) == {"seconds": 0}
    assert not fleet.scaler.rehearsals.running()


def test_with_mode_off_the_field_has_no_effect_and_the_status_says_so() -> None:
    fleet = Fleet(spec={"ratio": {"mode": "Off", "rehearse": {}}})
    said = [each["message"] for each in fleet.status["conditions"]]
    assert any("ratio.rehearse has no effect while ratio.mode is Off" in each for each in said)


# --- the process ----------------------------------------------------------------------------------------------------


def job(lines: Sequence[bytes] = ()) -> RehearsalJob:
    """Of a fleet of two and two, at time 0."""
    return RehearsalJob(proposal=BallastScaling().propose(inputs(split(2, 2), traffic(4.0))), rows=tuple(lines))


def idle(*command: str) -> Rehearsals:
    """With workers that do nothing."""
    return Rehearsals(trace=lambda *_: Trace((b"{}\n",), 1, ()), command=command or ("sleep", "60"))


def pid_of(rehearsals: Rehearsals, name: tuple[str, str]) -> int:
    """Of its worker, once there is one."""
    until_s = time.monotonic() + 10
    while (process := rehearsals._trials[name].process) is None:
        assert time.monotonic() < until_s
        time.sleep(0.01)
    return process.pid


def gone(pid: int, within_s: float = 10.0) -> bool:
    """Whether a process ends."""
    until_s = time.monotonic() + within_s
    while time.monotonic() < until_s:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            return True
        if state == "Z":  # an orphan whom nobody reaps here
            return True
        time.sleep(0.02)
    return False


def test_one_at_a_time_and_none_outlives_its_use() -> None:
    rehearsals, a, b = idle(), ("n", "a"), ("n", "b")
    gateways = [GatewayPod("g", "127.0.0.1:1", True)]
    assert rehearsals.begin(a, BUDGET, job(), gateways, b"") == ""
    pid = pid_of(rehearsals, a)
    assert rehearsals.begin(b, BUDGET, job(), gateways, b"") == "the operator rehearses for another ServingPool"
    rehearsals.forget(a)
    assert gone(pid)
    assert rehearsals.begin(b, BUDGET, job(), gateways, b"") == ""
    pid = pid_of(rehearsals, b)
    rehearsals.stop()
    assert gone(pid)


def test_a_worker_that_fails_says_why_in_a_line() -> None:
    rehearsals, name = idle(sys.executable, "-c", "raise SystemExit('no such thing')"), ("n", "a")
    rehearsals.begin(name, BUDGET, job(), [], b"")
    over(rehearsals)
    found = rehearsals.take(name)
    assert found is not None
    assert found.answer.problem == "the worker ended with 1: no such thing"


def test_a_worker_that_fails_before_it_has_its_job_says_why_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job is written in vain then."""
    rehearsals, name = idle(sys.executable, "-c", "raise SystemExit('no such thing')"), ("n", "a")

    def late(job: RehearsalJob) -> bytes:
        assert gone(pid_of(rehearsals, name))
        return job_bytes(job)

    monkeypatch.setattr("ballast_operator.steering.rehearsing.job_bytes", late)
    rehearsals.begin(name, BUDGET, job(), [], b"")
    over(rehearsals)
    found = rehearsals.take(name)
    assert found is not None
    assert found.answer.problem == "the worker ended with 1: no such thing"


def test_a_gateway_that_hangs_takes_no_more_than_the_time_of_the_rehearsal() -> None:
    """However long recorded traffic may take otherwise."""
    with socket.create_server(("127.0.0.1", 0)) as hung:
        gateway = GatewayPod("gateway-b", f"127.0.0.1:{hung.getsockname()[1]}", True)
        rehearsals, name = Rehearsals(), ("n", "a")
        rehearsals.begin(name, Rehearse(cpu_s=60.0, timeout_s=0.3), job(), [gateway], b"of the fleet")
        over(rehearsals)
    found = rehearsals.take(name)
    assert found is not None
    assert found.outcome is Outcome.SILENT
    assert re.fullmatch(r"recorded traffic is missing: gateway-b: no answer within 0\.\d+ s", found.answer.problem)


OPERATOR = """
import sys, time
from tests.operator.test_operator_rehearsing import BUDGET, job, pid_of
from tests.support.recorded_rows import rows
from ballast_operator.steering.rehearsing import Rehearsals, Trace
rehearsals = Rehearsals(trace=lambda *_: Trace(tuple(rows(0.0, 8.0)), 1, ()))
rehearsals.begin(("n", "a"), BUDGET, job(), [], b"")
print(pid_of(rehearsals, ("n", "a")), flush=True)
time.sleep(60)
"""


@pytest.mark.rotating(3)
def test_an_operator_that_is_killed_leaves_no_worker_behind() -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen([sys.executable, "-c", OPERATOR], stdout=subprocess.PIPE, env=environment) as operator:
        assert operator.stdout is not None
        pid = int(operator.stdout.readline())
        time.sleep(0.5)
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        operator.send_signal(signal.SIGKILL)
    assert b"ballast_sim.simulation.autoscaling.worker" in command
    assert gone(pid)


def test_rows_are_what_gateways_record() -> None:
    assert {*json.loads(rows(0.0, 1.0)[0])} >= {"arrival_s", "input_tokens", "output_tokens", "outcome", "class"}
