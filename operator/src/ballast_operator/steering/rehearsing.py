"""Candidates are tried on recorded traffic in a worker process: one at a time, nice, within a budget.

A rehearsal begins in one round of decisions and is over in a later one; meanwhile nothing is decided for its
ServingPool, and rounds of others go on. One that fails, or takes more than its budget, rests for `REST_S`: until then
the equilibrium decides at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import msgspec

from ballast_api.recorded_traffic import merged, rows_of
from ballast_api.rehearsal_job import WORKER, RehearsalAnswer, RehearsalJob, job_bytes, read_answer
from ballast_core.policies.scaling.protocol import Proposal
from ballast_operator.gateways.asking import TRAFFIC_S, NoAnswer, asker
from ballast_operator.gateways.board import Name
from ballast_operator.gateways.gateway_pods import GatewayPod
from ballast_operator.scaling.steered import Rehearse

logger = logging.getLogger(__name__)

REST_S: Final = 300.0
MINUTES: Final = 2.0
"""Of traffic that gateways are asked for: what a warm-up replays."""


class Outcome(StrEnum):
    """What came of a rehearsal."""

    CHOSEN = "chosen"
    """What it found decided."""
    OUTDATED = "outdated"
    """The traffic or the spec asked for something else by then."""
    OUT_OF_BUDGET = "out-of-budget"
    """Of seconds, of processor time or of memory."""
    NO_TRAFFIC = "no-traffic"
    """Gateways had recorded none."""
    SILENT = "silent"
    """A gateway did not give its recorded traffic."""
    FAILED = "failed"
    PUT_OFF = "put-off"
    """It was not begun: another one runs, or its last one failed a short while ago."""


@dataclass(frozen=True, slots=True)
class Trace:
    """What all gateways of a ServingPool recorded of the last minutes."""

    lines: tuple[bytes, ...]
    """For `ballast simulate --trace`, in order of arrival."""
    asked: int
    problems: tuple[str, ...]
    """Of the gateways that did not answer: what they recorded is missing."""


def recorded(pods: Sequence[GatewayPod], token: bytes, minutes: float, within_s: float = TRAFFIC_S) -> Trace:
    """What all these gateways recorded of the last minutes, as one trace. Raises `ValueError` for answers that are no
    recorded traffic. `within_s`: how long each of them may take."""
    parts: list[bytes] = []
    problems: list[str] = []
    for pod, answer in zip(pods, asyncio.run(_recordings(pods, token, minutes, within_s)), strict=True):
        if isinstance(answer, bytes):
            parts.append(answer)
        elif not isinstance(answer, NoAnswer):
            raise answer
        elif pod.ready:
            problems.append(f"{pod.name}: {answer}")
    rows = (row for part in parts for row in rows_of(part))
    return Trace(tuple(merged(rows)), len(parts) + len(problems), tuple(problems))


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """One that is over: of which proposal, and what came of it."""

    proposal: Proposal
    answer: RehearsalAnswer
    outcome: Outcome | None
    """Why there is no answer; None if there is one."""
    seconds: float


class _Missing(Exception):
    """There is no answer, and why."""

    def __init__(self, outcome: Outcome, problem: str) -> None:
        super().__init__(problem)
        self.outcome = outcome


@dataclass(slots=True)
class _Trial:
    """One that runs, or is over."""

    proposal: Proposal
    thread: threading.Thread
    began_s: float
    process: subprocess.Popen[bytes] | None = None
    ended: Rehearsed | None = None
    stopped: bool = False


@dataclass(slots=True)
class Rehearsals:
    """Used by one thread; each trial has one of its own. `command` starts a worker."""

    trace: Callable[[Sequence[GatewayPod], bytes, float, float], Trace] = recorded
    command: Sequence[str] = (sys.executable, "-m", WORKER)
    clock: Callable[[], float] = time.monotonic
    _trials: dict[Name, _Trial] = field(default_factory=dict, init=False)
    _rests: dict[Name, float] = field(default_factory=dict, init=False)
    """Until when, of those whose last one failed."""

    def begin(
        self, name: Name, budget: Rehearse, job: RehearsalJob, gateways: Sequence[GatewayPod], token: bytes
    ) -> str:
        """Start one. Returns why not, for people; empty if it runs now. `job`: without rows."""
        if self.clock() < self._rests.get(name, 0.0):
            return f"the last one failed, and the next one is due {REST_S:.0f} s after it"
        if any(each.ended is None for each in self._trials.values()):
            return "the operator rehearses for another ServingPool"
        trial = _Trial(job.proposal, threading.Thread(), self.clock())
        trial.thread = threading.Thread(
            target=self._run, args=(trial, budget, job, tuple(gateways), token), name="rehearse", daemon=True
        )
        self._trials[name] = trial
        trial.thread.start()
        return ""

    def runs(self, name: Name) -> bool:
        """Whether one of this ServingPool does."""
        trial = self._trials.get(name)
        return trial is not None and trial.ended is None

    def running(self) -> bool:
        """Whether any does."""
        return any(map(self.runs, self._trials))

    def over(self) -> frozenset[Name]:
        """Those whose outcome nobody has taken."""
        return frozenset(name for name in self._trials if not self.runs(name))

    def take(self, name: Name) -> Rehearsed | None:
        """The outcome of the one that is over; None if there is none."""
        trial = self._trials.get(name)
        if trial is None or trial.ended is None:
            return None
        del self._trials[name]
        if trial.ended.outcome is not None:
            self._rests[name] = self.clock() + REST_S
        return trial.ended

    def forget(self, name: Name) -> None:
        """What it came to is of no use any more."""
        self._rests.pop(name, None)
        trial = self._trials.pop(name, None)
        if trial is not None:
            _stop(trial)

    def stop(self) -> None:
        """End all that run."""
        for trial in self._trials.values():
            _stop(trial)
        for trial in self._trials.values():
            trial.thread.join(timeout=5.0)

    def _run(
        self, trial: _Trial, budget: Rehearse, job: RehearsalJob, gateways: Sequence[GatewayPod], token: bytes
    ) -> None:
        outcome: Outcome | None = Outcome.FAILED
        try:
            answer = self._answer(trial, budget, job, gateways, token)
            outcome = Outcome.FAILED if answer.problem else None
        except _Missing as missing:
            outcome, answer = missing.outcome, RehearsalAnswer(problem=str(missing))
        except (ValueError, OSError) as error:
            answer = RehearsalAnswer(problem=str(error))
        except Exception as error:
            logger.exception("a rehearsal failed unexpectedly")
            answer = RehearsalAnswer(problem=f"unexpected {type(error).__name__}")
        trial.ended = Rehearsed(trial.proposal, answer, outcome, self.clock() - trial.began_s)

    def _answer(
        self, trial: _Trial, budget: Rehearse, job: RehearsalJob, gateways: Sequence[GatewayPod], token: bytes
    ) -> RehearsalAnswer:
        trace = self.trace(gateways, token, MINUTES, self._left_s(trial, budget))
        if trace.problems:
            raise _Missing(Outcome.SILENT, f"recorded traffic is missing: {'; '.join(trace.problems)}")
        if not trace.lines:
            raise _Missing(Outcome.NO_TRAFFIC, "gateways have recorded no traffic")
        return self._tried(trial, budget, msgspec.structs.replace(job, rows=trace.lines))

    def _left_s(self, trial: _Trial, budget: Rehearse) -> float:
        return trial.began_s + budget.timeout_s - self.clock()

    def _tried(self, trial: _Trial, budget: Rehearse, job: RehearsalJob) -> RehearsalAnswer:
        left_s = self._left_s(trial, budget)
        if left_s <= 0:
            raise _too_long(budget)
        late = threading.Event()
        with subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            trial.process = process

            def end() -> None:
                late.set()
                process.kill()

            timer = threading.Timer(left_s, end)
            timer.daemon = True
            timer.start()
            try:
                if trial.stopped:
                    process.kill()
                assert process.stdin is not None
                assert process.stdout is not None
                assert process.stderr is not None
                try:
                    process.stdin.write(job_bytes(job))
                    process.stdin.flush()
                except BrokenPipeError:  # it is gone: its exit status says why
                    with contextlib.suppress(BrokenPipeError):
                        process.stdin.close()  # else what is left of the job is tried again at the end
                body = process.stdout.read()
                said = process.stderr.read()
                process.wait()
            finally:
                timer.cancel()
                process.kill()
        if late.is_set():
            raise _too_long(budget)
        if process.returncode == 0:
            return read_answer(body)
        if process.returncode < 0 and not said:
            raise _Missing(
                Outcome.OUT_OF_BUDGET,
                f"out of its budget of {budget.cpu_s:g} s of processor time (spec.ratio.rehearse.cpuS), or out of "
                "memory; the equilibrium decides",
            )
        last = said.decode(errors="replace").strip().rsplit("\n", 1)[-1]
        return RehearsalAnswer(problem=f"the worker ended with {process.returncode}: {last[:200]}")


def _too_long(budget: Rehearse) -> _Missing:
    return _Missing(
        Outcome.OUT_OF_BUDGET,
        f"out of its budget of {budget.timeout_s:g} s (spec.ratio.rehearse.timeoutS); the equilibrium decides",
    )


def _stop(trial: _Trial) -> None:
    trial.stopped = True
    if trial.process is not None:
        trial.process.kill()


async def _recordings(
    pods: Sequence[GatewayPod], token: bytes, minutes: float, within_s: float
) -> list[bytes | BaseException]:
    """All by one secret, so that their names agree."""
    secret = secrets.token_hex(16)
    async with asker() as ask:
        asking = [ask.traffic(pod.address, token, names=secret, minutes=minutes, within_s=within_s) for pod in pods]
        return await asyncio.gather(*asking, return_exceptions=True)
