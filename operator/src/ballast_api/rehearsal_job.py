"""What the operator asks a worker process to rehearse, and what that answers: MessagePack on its stdin, on its stdout.

Times are seconds since 1970: those of `Inputs.now_s`, of the layouts and of the recorded rows alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ballast_core.policies.scaling.protocol import Proposal, Recommended, Rehearsal

WORKER: Final = "ballast_sim.simulation.autoscaling.worker"
"""The module that is run with `python -m`. It reads one job, and ends as soon as its stdin does."""


class RehearsalJob(msgspec.Struct, frozen=True, kw_only=True):
    """Candidates to try on recorded traffic."""

    proposal: Proposal
    in_force: tuple[Recommended, ...] = ()
    """The layouts that were asked for, with the times of it, the oldest first."""
    rows: tuple[bytes, ...] = ()
    """Lines of recorded traffic of all gateways, as `ballast_api.recorded_traffic.merged` gives them."""
    policy: Mapping[str, Any] = {}
    """Spec of the SchedulingPolicy that the gateways go by, as `SchedulingPolicySpec.dump` gives it."""
    cpu_s: float = 30.0
    """Seconds of processor time after which the worker is ended by the system."""


class RehearsalAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Each candidate's rehearsal, or why there is none."""

    rehearsals: tuple[Rehearsal, ...] = ()
    problem: str = ""


def job_bytes(job: RehearsalJob) -> bytes:
    """With its length in front, so that the worker need not wait for the end of its stdin."""
    body = msgspec.msgpack.encode(job)
    return len(body).to_bytes(8, "big") + body


def read_job(body: bytes) -> RehearsalJob:
    """Without the length. Raises `ValueError`."""
    return msgspec.msgpack.decode(body, type=RehearsalJob)


def read_answer(body: bytes) -> RehearsalAnswer:
    """Raises `ValueError` for what is no answer, such as that of a worker that died."""
    return msgspec.msgpack.decode(body, type=RehearsalAnswer)
